"""Which layers cost accuracy, from one cached pass.

The float model runs once. At every quantised layer the error that quantising it alone makes is computed beside it and
kept. Backward passes from random directions of the output then tell how much of each error arrives there: to first
order, the output's noise from layer l is the mean over directions v of (∂(v·output)/∂y_l · e_l)².
"""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import torch
from torch import fx, nn

from embedl_deploy._run import evaluating
from embedl_deploy._table import table
from embedl_deploy.nn import QuantizedConv, QuantizedLinear, QuantStub
from embedl_deploy.quantize._cures import floating, tensors
from embedl_deploy.quantize._insert import run_layer, setup_of, stubs_of, weighted_of

Layer = QuantizedConv | QuantizedLinear


@dataclass(frozen=True)
class LayerCost:
    """What quantising one layer costs.

    Attributes:
        place: Its qualified name in the user's model.
        noise: Power of the noise it puts on the model's outputs, as a part of their own power.
        share: Its part of the noise of all layers.
    """

    place: str
    noise: float
    share: float


@dataclass(frozen=True)
class Sensitivity:
    """What quantising each layer costs, the dearest first.

    Attributes:
        layers: One cost per quantised layer.
        method: How it was found out.
        unit: What `LayerCost.noise` is.
    """

    layers: tuple[LayerCost, ...]
    method: str = "estimated: first-order noise of each layer alone at the model's outputs"
    unit: str = "noise power / output power"

    def __str__(self) -> str:
        rows = [
            (one.place, f"{-10 * torch.log10(torch.tensor(max(one.noise, 1e-30))):.1f}", f"{one.share:.1%}")
            for one in self.layers
        ]
        return table(("layer", "alone, dB", "of all noise"), rows)


def sensitivity(
    model: nn.Module,
    args: tuple[Any, ...] = (),
    *,
    kwargs: Mapping[str, Any] | None = None,
    probes: int = 8,
) -> Sensitivity:
    """Estimate what each quantised layer of a calibrated model costs, without quantising them one by one.

    Args:
        model: A calibrated model.
        args: One batch.
        kwargs: Keyword inputs of the batch.
        probes: Random directions of the output; more make the estimate steadier.

    Raises:
        QuantizationError: The model has no pairs.
    """
    setup = setup_of(model)
    assert isinstance(model, fx.GraphModule)
    places = {f"{_target(model, one.node)}.": one.place for one in setup.placement.quantized}
    found = _probe(model, args, dict(kwargs or {}), probes)
    costs: dict[str, float] = {}
    for name, noise in found.items():
        place = next((place for prefix, place in places.items() if name.startswith(prefix)), name)
        costs[place] = costs.get(place, 0.0) + noise
    total = sum(costs.values()) or 1.0
    rows = [LayerCost(place, noise, noise / total) for place, noise in costs.items()]
    return Sensitivity(tuple(sorted(rows, key=lambda one: -one.noise)))


def _target(model: fx.GraphModule, name: str) -> str:
    """Return what a node calls."""
    return next(str(node.target) for node in model.graph.nodes if node.name == name)


def _probe(model: fx.GraphModule, args: tuple[Any, ...], kwargs: dict[str, Any], probes: int) -> dict[str, float]:
    """Run once forward and a few times backward; return the noise of every layer at the output."""
    inputs = _input_stubs(model)
    errors: dict[str, torch.Tensor] = {}
    results: dict[str, torch.Tensor] = {}

    def hook(name: str, layer: Layer, value: torch.Tensor, result: torch.Tensor) -> torch.Tensor:
        with torch.no_grad():
            weight, bias = layer.folded()
            rounded = weight if layer.weight_quantizer is None else layer.weight_quantizer.rounded(weight)
            stub = inputs.get(name)
            errors[name] = run_layer(layer, value if stub is None else stub.rounded(value), rounded, bias) - result
        results[name] = result if result.requires_grad else result.detach().requires_grad_()
        return results[name]

    handles = [
        layer.register_forward_hook(lambda part, given, result, name=name: hook(name, part, given[0], result))
        for name, layer in weighted_of(model)
        if layer.weight_quantizer is not None
    ]
    try:
        with floating(model), evaluating([model]), torch.enable_grad():
            outputs = tensors(model(*args, **kwargs))
    finally:
        for handle in handles:
            handle.remove()
    return _backward(outputs, results, errors, probes)


def _backward(
    outputs: list[torch.Tensor], results: dict[str, torch.Tensor], errors: dict[str, torch.Tensor], probes: int
) -> dict[str, float]:
    """Ask random directions of the output how much of every error arrives."""
    power = sum(float(one.detach().double().pow(2).sum()) for one in outputs) or 1.0
    generator = torch.Generator().manual_seed(0)
    noise = dict.fromkeys(results, 0.0)
    for _ in range(probes):
        total = sum((one * torch.randn(one.shape, generator=generator).to(one)).sum() for one in outputs)
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
    for name, _ in weighted_of(model):
        target = name.rpartition(".")[0]
        for node in model.graph.nodes:
            if node.op == "call_module" and node.target == target and isinstance(node.args[0], fx.Node):
                stub = stubs.get(str(node.args[0].target))
                if stub is not None and stub.quantizes:
                    found[name] = stub
    return found
