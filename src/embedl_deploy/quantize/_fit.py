"""Weights that a target's kernels multiply alike on every processor, chosen before the model is judged."""

import importlib.util
from collections.abc import Iterator, Mapping
from contextlib import ExitStack
from dataclasses import replace
from typing import Any

import torch
from torch import fx, nn

from embedl_deploy._graph.run import evaluating
from embedl_deploy.dialect import get_dialect
from embedl_deploy.nn import Mode, QuantizedConv, QuantizedLayer
from embedl_deploy.nn.number import Precision
from embedl_deploy.quantize._insert import layers_of, stubs_of
from embedl_deploy.quantize._quantization import FittedLayer, put_quantization, quantization_of


def fit_weights(model: fx.GraphModule) -> None:
    """Choose the weights of a calibrated model that its target's file will have, in place.

    Only a portable dialect changes them. Without the packages for writing files they are chosen on export.
    """
    record = quantization_of(model)
    unfit_weights(model)
    fitted: dict[str, FittedLayer] = {}
    dialect = get_dialect(record.placement.dialect) if record.placement.dialect else None
    if dialect is not None and dialect.portable and importlib.util.find_spec("numpy") is not None:
        from embedl_deploy.dialect._fitting import fit_layer, layer_rows  # noqa: PLC0415 - needs the extra
        from embedl_kernels import is_depthwise  # noqa: PLC0415

        found = {
            name: (layer, step)
            for name, (layer, step) in _integer_layers(model)
            # Kernels of a depthwise convolution widen every product before they add.
            if not (isinstance(layer, QuantizedConv) and is_depthwise(layer.source.weight.shape, layer.source.groups))
        }
        rows: dict[str, list[Any]] = {name: [] for name in found}

        def look(name: str, layer: QuantizedLayer, value: torch.Tensor) -> None:
            shape, window = tuple(layer.folded()[0].shape), _window(layer)
            rows[name].append(layer_rows(value.detach().cpu().numpy(), shape, window, len(record.samples)))

        _run_samples(model, found, look)
        for name, (layer, step) in found.items():
            quantizer = layer.weight_quantizer
            assert quantizer is not None
            weight = layer.folded()[0].detach().float()
            scale = quantizer.positive_scale.detach().float().cpu()
            choice = fit_layer(
                weight.cpu().double().numpy(), quantizer.codes(weight).cpu().numpy(), scale.numpy(), rows[name], step,
                groups=layer.source.groups if isinstance(layer, QuantizedConv) else 0, whole=dialect.whole_channels,
            )  # fmt: skip
            if choice.codes is not None:
                made = (
                    torch.from_numpy(choice.codes).to(weight.device),
                    torch.from_numpy(choice.scale).to(weight.device),
                )
                quantizer.fit(made[0], made[1].reshape(quantizer.scale.shape))
            fitted[name] = FittedLayer(choice.remedy, choice.cost_db, choice.sqnr_db, choice.measured, choice.tried)
    put_quantization(model, replace(record, fitted=fitted))


def is_fitted(model: fx.GraphModule) -> bool:
    """Tell whether the weights are those that were fitted: training drops them, all at once."""
    changed = {name for name, fit in quantization_of(model).fitted.items() if fit.remedy not in ("none", "unsigned")}
    found = dict(layers_of(model))
    quantizers = [found[name].weight_quantizer for name in changed]
    return bool(changed) and all(each is not None and each.fitted is not None for each in quantizers)


def unfit_weights(model: fx.GraphModule) -> None:
    """Take back what was chosen for the target's kernels, in place."""
    for _, layer in layers_of(model):
        if layer.weight_quantizer is not None:
            layer.weight_quantizer.unfit()


def _integer_layers(model: fx.GraphModule) -> Iterator[tuple[str, tuple[QuantizedLayer, float]]]:
    """List the layers that multiply integers of eight bits, with the step of their input."""
    stubs = {name: stub for name, stub in stubs_of(model) if stub.quantizes and stub.calibrated}
    inputs = {
        str(node.target): stubs.get(str(node.args[0].target))
        for node in model.graph.nodes
        if node.op == "call_module" and node.args and isinstance(node.args[0], fx.Node)
    }
    for name, layer in layers_of(model):
        stub, quantizer = inputs.get(name.rpartition(".")[0]), layer.weight_quantizer
        if stub is None or quantizer is None or not quantizer.has_eight_bits or quantizer.mode is Mode.FLOAT:
            continue
        transposed = isinstance(layer, QuantizedConv) and layer.transposed
        if stub.form.precision is Precision.INT8 and not transposed and quantizer.axis == 0:
            yield name, (layer, float(stub.scale.detach()))


def _run_samples(model: fx.GraphModule, layers: Mapping[str, Any], look: Any) -> None:
    """Run what was kept of the calibration data and show what each layer reads."""
    with ExitStack() as stack:
        for name, (layer, _) in layers.items():
            hook = layer.register_forward_pre_hook(lambda part, args, name=name: look(name, part, args[0]))
            stack.callback(hook.remove)
        stack.enter_context(evaluating([model]))
        device = next((value.device for value in model.parameters()), torch.device("cpu"))
        for sample in quantization_of(model).samples:
            model(*(value.to(device) for value in sample))


def _window(layer: QuantizedLayer) -> tuple[Any, ...] | None:
    """Return how a convolution walks over its input: kernel, stride, padding, dilation, groups; None for others."""
    if not isinstance(layer, QuantizedConv):
        return None
    conv: nn.Conv2d = layer.source
    rank = conv.weight.ndim - 2
    padding = conv.padding
    if conv.padding == "same":
        total = [dilation * (size - 1) for dilation, size in zip(conv.dilation, conv.kernel_size, strict=True)]
        ends = (*(side // 2 for side in total), *(side - side // 2 for side in total))
    else:
        plain = (0,) * rank if isinstance(padding, str) else tuple(padding)
        ends = (*plain, *plain)
    return tuple(conv.kernel_size), tuple(conv.stride), ends, tuple(conv.dilation), conv.groups
