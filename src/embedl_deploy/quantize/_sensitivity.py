"""Which layers cost accuracy, from one cached pass.

The float model runs once. At every quantized layer the error that quantizing it alone makes is computed beside it and
kept. Backward passes from random directions of the output then tell how much of each error arrives there: to first
order, the output's noise from layer l is the mean over directions v of (∂(v·output)/∂y_l · e_l)².
"""

from collections.abc import Mapping
from typing import Any

import torch
from torch import fx, nn

from embedl_deploy._graph.run import evaluating
from embedl_deploy.errors import QuantizationError
from embedl_deploy.nn import QuantizedLayer, QuantStub
from embedl_deploy.quantize._calibrate import floating
from embedl_deploy.quantize._corrections import watching_layers
from embedl_deploy.quantize._held_out import float_tensors
from embedl_deploy.quantize._insert import layers_of, stubs_of
from embedl_deploy.quantize._quantization import LayerCost, Sensitivity, quantization_of


def sensitivity(
    model: nn.Module,
    args: tuple[Any, ...] = (),
    *,
    kwargs: Mapping[str, Any] | None = None,
    probes: int = 8,
    output: int | None = None,
) -> Sensitivity:
    """Estimate what each quantized layer of a calibrated model costs, without quantizing them one by one.

    Args:
        model: A calibrated model.
        args: One batch.
        kwargs: Keyword inputs of the batch.
        probes: Random directions of the output; more make the estimate steadier.
        output: Which of the outputs that are numbers to look at; all of them together unless told.

    Raises:
        QuantizationError: The model has no pairs, or no such output.
    """
    placement = quantization_of(model).placement
    assert isinstance(model, fx.GraphModule)
    targets = {node.name: str(node.target) for node in model.graph.nodes}
    places = {f"{targets[decision.node]}.": decision.place for decision in placement.quantized}
    found = _probe(model, args, kwargs or {}, probes, output)
    costs: dict[str, float] = {}
    for name, noise in found.items():
        place = next((place for prefix, place in places.items() if name.startswith(prefix)), name)
        costs[place] = costs.get(place, 0.0) + noise
    total = sum(costs.values()) or 1.0
    rows = [LayerCost(place, noise, noise / total) for place, noise in costs.items()]
    return Sensitivity(tuple(sorted(rows, key=lambda cost: -cost.noise)))


def _probe(
    model: fx.GraphModule, args: tuple[Any, ...], kwargs: Mapping[str, Any], probes: int, output: int | None
) -> dict[str, float]:
    """Run once forward and a few times backward; return the noise of every layer at the output."""
    inputs = _input_stubs(model)
    errors: dict[str, torch.Tensor] = {}
    results: dict[str, torch.Tensor] = {}

    def visit(name: str, layer: QuantizedLayer, value: torch.Tensor, result: torch.Tensor) -> torch.Tensor | None:
        if layer.weight_quantizer is None:
            return None
        with torch.no_grad():
            weight, bias = layer.folded()
            stub = inputs.get(name)
            given = value if stub is None else stub.rounded(value)
            errors[name] = layer.run(given, layer.weight_quantizer.rounded(weight), bias) - result
        results[name] = result if result.requires_grad else result.detach().requires_grad_()
        return results[name]

    with watching_layers(model, visit), floating(model), evaluating([model]), torch.enable_grad():
        outputs = float_tensors(model(*args, **kwargs))
    if output is not None:
        if not 0 <= output < len(outputs):
            raise QuantizationError(f"there is no output {output}; the model has {len(outputs)} that are numbers.")
        outputs = [outputs[output]]
    return _backward(outputs, results, errors, probes)


def _backward(
    outputs: list[torch.Tensor], results: dict[str, torch.Tensor], errors: dict[str, torch.Tensor], probes: int
) -> dict[str, float]:
    """Ask random directions of the output how much of every error arrives."""
    power = sum(float(output.detach().double().pow(2).sum()) for output in outputs) or 1.0
    generator = torch.Generator().manual_seed(0)
    noise = dict.fromkeys(results, 0.0)
    for _ in range(probes):
        total = sum((output * torch.randn(output.shape, generator=generator).to(output)).sum() for output in outputs)
        assert isinstance(total, torch.Tensor)
        grads = torch.autograd.grad(total, list(results.values()), retain_graph=True, allow_unused=True)
        for name, grad in zip(results, grads, strict=True):
            if grad is not None:
                # By item: errors of different pictures of a batch do not cancel each other.
                along = (grad * errors[name]).flatten(1).sum(1)
                noise[name] += float(along.double().pow(2).sum()) / probes / power
    return noise


def _input_stubs(model: fx.GraphModule) -> dict[str, QuantStub]:
    """Return the stub in front of every layer with weights, by the name of the layer's weights."""
    stubs = dict(stubs_of(model))
    found = {}
    for name, _ in layers_of(model):
        target = name.rpartition(".")[0]
        for node in model.graph.nodes:
            if node.op == "call_module" and node.target == target and isinstance(node.args[0], fx.Node):
                stub = stubs.get(str(node.args[0].target))
                if stub is not None and stub.quantizes:
                    found[name] = stub
    return found
