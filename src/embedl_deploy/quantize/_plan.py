"""Where pairs go in a transformed model, for a backend or a target; and the same model for another target."""

from collections.abc import Mapping
from dataclasses import replace
from typing import Any

from torch import fx, nn

from embedl_deploy._graph.clone import copy_deep
from embedl_deploy._graph.network import Example, Network
from embedl_deploy.backend import Backend, discover_backends, get_backend
from embedl_deploy.dialect import Dialect, dialects, get_dialect
from embedl_deploy.errors import QuantizationError, quoted_list
from embedl_deploy.quantize._config import QuantConfig
from embedl_deploy.quantize._fit import fit_weights, is_fitted
from embedl_deploy.quantize._formats import settle_formats
from embedl_deploy.quantize._insert import transformed_network, wire
from embedl_deploy.quantize._placement import Placement, Skip, plan_placement
from embedl_deploy.quantize._quantization import quantization_of
from embedl_deploy.quantize._targeting import targeted
from embedl_deploy.target import TargetLike, choose_backend, choose_dialect, get_target


def plan_qdq(
    model: nn.Module,
    args: tuple[Any, ...] | None = None,
    config: QuantConfig | None = None,
    *,
    backend: Backend | str | None = None,
    target: TargetLike | None = None,
    kwargs: Mapping[str, Any] | None = None,
) -> Placement:
    """Say for every layer of a transformed model whether it will be quantized, and why; print it to read it.

    Raises:
        QuantizationError: The model was not transformed, the backend quantizes nothing, or a skip means no layer.
        BackendSelectionError: Neither backend nor target was given and no backend is active.
    """
    config = config or QuantConfig()
    dialect = dialect_name(backend, target)
    backend = choose_backend(backend, target)
    if not backend.quantized_patterns:
        raise QuantizationError(
            f"the backend '{backend.name}' has no quantized patterns; transform and quantize with one that has: "
            f"{quoted_list(each.name for each in discover_backends() if each.quantized_patterns)}."
        )
    network = transformed_network(model)
    if args is not None or kwargs is not None:
        network.example = Example(tuple(args or ()), kwargs or {})
    patterns = (*backend.smooth_patterns, *backend.quantized_patterns)
    placement = plan_placement(network, patterns, Skip(network, config.skip))
    if not any(decision.pattern for decision in placement.layers):
        raise QuantizationError(
            f"no layer of this model is one the backend '{backend.name}' quantizes: it has {_operators(network)}. "
            "Call transform(model, args) with the patterns of the same backend first, or export the model in float."
        )
    placement = replace(
        placement, integer_kernels=backend.integer_kernels, symmetric=backend.symmetric_activations, dialect=dialect
    )
    return targeted(network, placement)


def dialect_name(backend: Backend | str | None, target: TargetLike | None) -> str:
    """Return the name of the dialect that a target's files are written in; empty where nobody says."""
    if target is None:
        # A backend of one runtime: whoever names it means that runtime's files.
        name = get_backend(backend).name
        return name if name in (dialect.name for dialect in dialects()) else ""
    chosen = get_target(target).dialect
    return get_dialect(chosen).name if chosen else ""


def retarget(model: nn.Module, target: TargetLike | Dialect) -> fx.GraphModule:
    """Return a quantized model as it is in another target's file: where that rounds, in its number formats.

    One calibration serves every target. The model given is not changed.

    Args:
        model: What `quantize` made, trained since or not.
        target: A target or a dialect, itself or by name.

    Raises:
        QuantizationError: The model has no pairs, or it was placed before the dialect was known.
        TargetError: The target is unknown, or names no dialect.
    """
    dialect = target if isinstance(target, Dialect) else choose_dialect(None, target)
    assert dialect is not None
    placement = quantization_of(model).placement
    if dialect.name not in placement.variants:
        raise QuantizationError(
            f"this model was quantized before the dialect '{dialect.name}' was registered, so nobody watched what that "
            f"rounds; quantize it again. It can be exported for: {quoted_list(placement.variants)}."
        )
    assert isinstance(model, fx.GraphModule)
    result = copy_deep(model)
    same = placement.dialect == dialect.name
    if not same:
        wire(result, replace(placement, dialect=dialect.name))
    settle_formats(result)
    if not (same and is_fitted(result)):
        fit_weights(result)
    return result


def _operators(network: Network) -> str:
    """Name the operators of a network, a few of them."""
    names = []
    for node in network.graph.nodes:
        module = network.module_of(node)
        if module is not None:
            names.append(type(module).__name__)
        elif node.op in ("call_function", "call_method"):
            names.append(str(getattr(node.target, "__name__", node.target)).partition(".")[0])
    found = list(dict.fromkeys(names))
    return ", ".join(found[:8]) + (f" and {len(found) - 8} more" if len(found) > 8 else "")
