"""Place, calibrate: one call."""

from collections.abc import Mapping, Sequence
from typing import Any

from torch import fx, nn

from embedl_deploy._graph import Example
from embedl_deploy.backend import Backend, get_backend
from embedl_deploy.errors import QuantizationError
from embedl_deploy.pattern import Pattern
from embedl_deploy.quantize._calibrate import ForwardLoop, calibrate
from embedl_deploy.quantize._calibration import Calibration
from embedl_deploy.quantize._config import QuantConfig
from embedl_deploy.quantize._insert import insert_qdq, network_of
from embedl_deploy.quantize._placement import Placement, plan_placement
from embedl_deploy.quantize._skip import Skip


def plan_qdq(
    model: nn.Module,
    args: tuple[Any, ...] | None = None,
    config: QuantConfig | None = None,
    *,
    backend: Backend | None = None,
    kwargs: Mapping[str, Any] | None = None,
) -> Placement:
    """Say for every layer of a transformed model whether it will be quantised, and why; print it to read it.

    Raises:
        QuantizationError: The model was not transformed, the backend quantises nothing, or a skip means no layer.
        BackendSelectionError: No backend was given and none is active.
    """
    config = config or QuantConfig()
    backend = backend or get_backend()
    patterns = _patterns(backend)
    network = network_of(model)
    if args is not None or kwargs is not None:
        network.example = Example(tuple(args or ()), kwargs or {})
    placement = plan_placement(network, patterns, Skip(network, config.skip))
    if not any(one.pattern for one in placement.layers):
        raise QuantizationError(
            f"no layer of this model is one the backend '{backend.name}' quantises; "
            "call transform(model, args) with the patterns of the same backend first."
        )
    return placement


def _patterns(backend: Backend) -> Sequence[type[Pattern]]:
    """Return a backend's placement patterns."""
    if not backend.quantized_patterns:
        raise QuantizationError(
            f"the backend '{backend.name}' has no quantised patterns; choose another with set_backend."
        )
    return backend.quantized_patterns


def quantize(
    model: nn.Module,
    args: tuple[Any, ...] | None = None,
    config: QuantConfig | None = None,
    forward_loop: ForwardLoop | Calibration | None = None,
    *,
    backend: Backend | None = None,
    kwargs: Mapping[str, Any] | None = None,
    progress: bool = False,
) -> fx.GraphModule:
    """Quantise a transformed model: place, calibrate.

    Args:
        model: What `transform` made; it is not changed, and the result has weights of its own.
        args: Example inputs, for rules that look at shapes; they are the only calibration batch when there is no other.
        config: How tensors are quantised and what is left out.
        forward_loop: The calibration data, as `calibrate` takes it.
        backend: The target; the active one when `None`.
        kwargs: Example keyword inputs.
        progress: Count batches on the error stream.

    Raises:
        QuantizationError: A choice cannot be met.
        CalibrationError: The data is missing or unusable.
        BackendSelectionError: No backend was given and none is active.
    """
    backend = backend or get_backend()
    config = config or QuantConfig()
    placement = plan_qdq(model, args, config, backend=backend, kwargs=kwargs)
    result = insert_qdq(model, placement, config, symmetric=backend.symmetric_activations)
    if forward_loop is None:
        if args is None and kwargs is None:
            raise QuantizationError("there is nothing to calibrate with; give forward_loop=batches, or args at least.")
        forward_loop = [tuple(args)] if args is not None else [dict(kwargs or {})]
    calibrate(result, forward_loop, progress=progress)
    return result
