"""Run the calibration data once, keep statistics of every stub, and solve scales from them."""

import contextlib
import sys
from collections.abc import Callable, Iterable, Iterator, Mapping, Sized
from typing import Any

import torch
from torch import fx, nn

from embedl_deploy._run import evaluating
from embedl_deploy.errors import CalibrationError
from embedl_deploy.nn import Mode, QuantizedConv, QuantizedLinear, QuantStub, WeightQuantizer
from embedl_deploy.quantize._calibration import Calibration
from embedl_deploy.quantize._config import CalibrationMethod, QuantConfig
from embedl_deploy.quantize._histogram import Histogram, Inbox
from embedl_deploy.quantize._insert import setup_of, stubs_of, weighted_of
from embedl_deploy.quantize._range import solve_all
from embedl_deploy.quantize._weights import best_ratio

ForwardLoop = Callable[[nn.Module], object] | Iterable[Any]


def calibrate(
    model: nn.Module,
    forward_loop: ForwardLoop | Calibration,
    *,
    config: QuantConfig | None = None,
    progress: bool = False,
) -> Calibration:
    """Find every scale of a model with quantise/dequantise pairs, in place, and return the statistics.

    The model runs in eval mode without gradients, and gets its mode back.

    Args:
        model: What `insert_qdq` made.
        forward_loop: A function that runs the calibration batches through the model it is given; or the batches
            themselves (a tensor or array, a tuple of inputs of which those beyond the model's are left out, or a
            dictionary); or statistics from an earlier run, and then no data is needed.
        config: How ranges are found, when it should differ from what the model was made with.
        progress: Count batches on the error stream.

    Raises:
        CalibrationError: There was no batch, a batch does not fit, or a value is not finite.
        QuantizationError: The model has no pairs.
    """
    setup_of(model)
    found = forward_loop if isinstance(forward_loop, Calibration) else collect(model, forward_loop, progress=progress)
    apply_calibration(model, found, config=config)
    return found


def collect(model: nn.Module, forward_loop: ForwardLoop, *, progress: bool = False) -> Calibration:
    """Run the data through the float model and keep the statistics of every stub."""
    setup_of(model)
    if isinstance(forward_loop, torch.Tensor | Mapping | str) or _is_array(forward_loop):
        raise CalibrationError(
            f"forward_loop is one {type(forward_loop).__name__}; it is a list or loader of batches, "
            "or a function that runs them: for a single batch give [batch]."
        )
    statistics = {name: Histogram() for name, stub in stubs_of(model) if stub.fixed is None}
    with _watching(model, statistics), evaluating([model]):
        if callable(forward_loop):
            forward_loop(model)
        else:
            _run_batches(model, forward_loop, progress=progress)
    found = Calibration(statistics)
    if not found.batches:
        raise CalibrationError(
            "no calibration batch was seen: the loader is empty, or forward_loop never called the model it was given."
        )
    return found


@contextlib.contextmanager
def _watching(model: nn.Module, statistics: Mapping[str, Histogram]) -> Iterator[None]:
    """Let every stub show its values, with all quantisation off; put everything back afterwards."""
    stubs, layers = dict(stubs_of(model)), [one for _, one in weighted_of(model)]
    quantizers = [one.weight_quantizer for one in layers if one.weight_quantizer is not None]
    switched: list[QuantStub | WeightQuantizer] = [*stubs.values(), *quantizers]
    modes = [part.mode for part in switched]
    inbox = Inbox()
    try:
        for part in switched:
            part.mode = Mode.FLOAT
        for layer in layers:
            if isinstance(layer, QuantizedConv):
                with torch.no_grad():
                    layer.held = layer.folded()
        for name, histogram in statistics.items():
            stubs[name].observer = _observer(histogram, inbox)
        yield
        inbox.settle()
    finally:
        for part, mode in zip(switched, modes, strict=True):
            part.mode = mode
        for layer in layers:
            if isinstance(layer, QuantizedConv):
                layer.held = None
        for stub in stubs.values():
            stub.observer = None


def _observer(histogram: Histogram, inbox: Inbox) -> Callable[[QuantStub, torch.Tensor], None]:
    """Return a function that takes a stub's values into a histogram."""

    def observe(stub: QuantStub, value: torch.Tensor) -> None:
        if not value.is_floating_point():
            return
        if not value.numel():
            raise CalibrationError(f"the value at '{stub.label}' is empty; leave empty batches out.", place=stub.label)
        inbox.put(stub.label, histogram, value)

    return observe


def _run_batches(model: nn.Module, batches: Iterable[Any], *, progress: bool) -> None:
    """Run every batch, saying which one does not fit."""
    assert isinstance(model, fx.GraphModule)
    inputs = [node for node in model.graph.nodes if node.op == "placeholder"]
    total = len(batches) if isinstance(batches, Sized) else None
    for number, batch in enumerate(batches, start=1):
        args, kwargs = as_call(batch, len(inputs))
        try:
            model(*args, **kwargs)
        except CalibrationError:
            raise
        except Exception as exc:
            raise CalibrationError(
                f"the model does not take batch {number} ({describe(batch)}): {exc}. "
                "Batches are a tensor or array, a tuple of the model's inputs, or a dictionary of them."
            ) from exc
        if progress:
            sys.stderr.write(f"\rcalibrating: batch {number}{'' if total is None else f' of {total}'}")
            sys.stderr.flush()
    if progress:
        sys.stderr.write("\n")


def as_call(batch: Any, inputs: int) -> tuple[tuple[Any, ...], dict[str, Any]]:
    """Return positional and keyword inputs of a batch; labels behind the inputs are left out."""
    if isinstance(batch, Mapping):
        return (), {name: _as_tensor(one) for name, one in batch.items()}
    if isinstance(batch, list | tuple):
        return tuple(_as_tensor(one) for one in batch[:inputs]), {}
    return (_as_tensor(batch),), {}


def _as_tensor(value: Any) -> Any:
    """Return NumPy's arrays as tensors, and anything else as it is."""
    return torch.as_tensor(value) if _is_array(value) else value


def _is_array(value: object) -> bool:
    """Say whether a value is NumPy's, which need not be installed."""
    return hasattr(value, "__array_interface__")


def describe(batch: Any) -> str:
    """Name what a batch is made of."""
    if isinstance(batch, torch.Tensor) or _is_array(batch):
        return f"shape {tuple(batch.shape)}, {batch.dtype}"
    if isinstance(batch, list | tuple):
        return ", ".join(describe(one) for one in batch)
    return type(batch).__name__


def apply_calibration(model: nn.Module, calibration: Calibration, *, config: QuantConfig | None = None) -> None:
    """Solve every scale of a model from statistics, in place.

    Raises:
        CalibrationError: The statistics are of another model.
    """
    setup = setup_of(model)
    config = config or setup.config
    parts = dict(model.named_modules())
    stubs = {name: part for name, part in parts.items() if isinstance(part, QuantStub)}
    missing = [name for name, stub in stubs.items() if stub.fixed is None and name not in calibration.statistics]
    if missing:
        raise CalibrationError(
            f"the calibration knows nothing of '{missing[0]}'; it is of another model or another placement."
        )
    pooled: dict[str, Histogram] = {}
    for name, stub in stubs.items():
        if stub.fixed is None:
            leader = setup.groups.get(name, name)
            own = calibration.statistics[name]
            pooled[leader] = pooled[leader].merge(own) if leader in pooled else own
    leaders = [name for name, one in pooled.items() if one.batches]
    solved: dict[str, tuple[float, float]] = {}
    for form in {stubs[name].form for name in leaders}:
        names = [name for name in leaders if stubs[name].form == form]
        solved |= zip(names, solve_all([pooled[name] for name in names], config.activation, form), strict=True)
    for name, stub in stubs.items():
        found = stub.fixed or solved.get(setup.groups.get(name, name))
        if found is not None:
            stub.set_range(*found)
    for layer in parts.values():
        if not isinstance(layer, QuantizedConv | QuantizedLinear) or layer.weight_quantizer is None:
            continue
        quantizer = layer.weight_quantizer
        if config.weight.calibration_method is CalibrationMethod.MSE:
            weight = layer.folded()[0].detach()
            quantizer.calibrate(weight, best_ratio(quantizer, weight))
        else:
            quantizer.calibrate_peak(layer.folded_peak(quantizer))
