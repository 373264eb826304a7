"""Run the calibration data once, keep statistics of every stub, and solve scales from them."""

import contextlib
import sys
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sized
from contextlib import contextmanager
from dataclasses import replace
from typing import Any

import torch
from torch import fx, nn

from embedl_deploy._graph.run import evaluating_parts
from embedl_deploy.errors import CalibrationError
from embedl_deploy.nn import Mode, QuantizedLayer, Quantizer, QuantStub, WeightQuantizer
from embedl_deploy.nn.quantized import hold_folded
from embedl_deploy.nn.rounding import Unfinished, fake_quantize
from embedl_deploy.quantize._config import CalibrationMethod, QuantConfig
from embedl_deploy.quantize._formats import settle_formats
from embedl_deploy.quantize._histogram import Calibration, Histogram, Inbox
from embedl_deploy.quantize._quantization import Samples, put_quantization, quantization_of
from embedl_deploy.quantize._range import solve_all
from embedl_deploy.quantize._ranks import has_ranks, merge_ranks

_RATIOS = tuple(1.0 - step / 40 for step in range(25))
_CHANNELS = (1, 3, 4)  # of a picture


def best_ratio(quantizer: WeightQuantizer, weight: torch.Tensor) -> torch.Tensor:
    """Return, for every group of weights with one scale, the part of its peak with the least squared error."""
    peak = quantizer.peak(weight)
    best, least = torch.ones_like(peak), torch.full_like(peak, torch.inf)
    zero = torch.zeros((), device=weight.device)
    for ratio in _RATIOS:
        scale = peak * ratio / quantizer.form.high
        scale = torch.where(scale > 0, scale, torch.ones_like(scale))
        error = (fake_quantize(weight, quantizer.spread(scale, weight), zero, quantizer.form) - weight) ** 2
        total = quantizer.reduced(error, torch.sum)
        better = total < least
        best, least = torch.where(better, torch.full_like(best, ratio), best), torch.where(better, total, least)
    return best


ForwardLoop = Callable[[nn.Module], object] | Iterable[Any]


def calibrate(
    model: nn.Module,
    forward_loop: ForwardLoop | Calibration,
    *,
    config: QuantConfig | None = None,
    progress: bool = False,
    across_ranks: bool | None = None,
) -> Calibration:
    """Find every scale of a model with quantize/dequantize pairs, in place, and return the statistics.

    The model runs in eval mode without gradients, and gets its mode back.

    Args:
        model: What `insert_qdq` made.
        forward_loop: A function that runs the calibration batches through the model it is given; or the batches
            themselves (a tensor or array, a tuple of inputs of which those beyond the model's are left out, or a
            dictionary); or statistics from an earlier run, and then no data is needed.
        config: How ranges are found, when it should differ from what the model was made with.
        progress: Count batches on the error stream.
        across_ranks: Whether the data of all processes of `torch.distributed` decides, each of which must call this
            with its own part; `None` says yes where there are several.

    Raises:
        CalibrationError: There was no batch, a batch does not fit, or a value is not finite, here or in another
            process.
        QuantizationError: The model has no pairs.
    """
    quantization_of(model)
    if isinstance(forward_loop, Calibration):
        found = forward_loop
    elif has_ranks() if across_ranks is None else across_ranks:
        found = _collect_across_ranks(model, forward_loop, progress=progress)
    else:
        found = collect(model, forward_loop, progress=progress)
    apply_calibration(model, found, config=config)
    return found


def _collect_across_ranks(model: nn.Module, forward_loop: ForwardLoop, *, progress: bool) -> Calibration:
    try:
        mine: Calibration | CalibrationError = collect(model, forward_loop, progress=progress)
    except CalibrationError as error:
        # The others wait for this process: they are told, and all raise.
        mine = error
    return merge_ranks(mine)


def collect(model: nn.Module, forward_loop: ForwardLoop, *, progress: bool = False) -> Calibration:
    """Run the data through the float model and keep the statistics of every stub."""
    quantization_of(model)
    if isinstance(forward_loop, torch.Tensor | Mapping | str) or _is_array(forward_loop):
        raise CalibrationError(
            f"forward_loop is one {type(forward_loop).__name__}; it is a list or loader of batches, "
            "or a function that runs them: for a single batch give [batch]."
        )
    parts = dict(model.named_modules())
    stubs = {name: part for name, part in parts.items() if isinstance(part, QuantStub)}
    statistics = {name: Histogram() for name, stub in stubs.items() if stub.fixed is None}
    with _watching(parts.values(), stubs, statistics) as empty, evaluating_parts(parts.values()):
        if callable(forward_loop):
            forward_loop(model)
        else:
            _run_batches(model, forward_loop, progress=progress)
    found = Calibration(statistics)
    if not found.batches and empty:
        raise CalibrationError(f"the value at '{empty[0]}' is empty; leave empty batches out.", place=empty[0])
    if not found.batches:
        raise CalibrationError(
            "no calibration batch was seen: the loader is empty, or forward_loop never called the model it was given."
        )
    return found


@contextlib.contextmanager
def _watching(
    parts: Collection[nn.Module], stubs: Mapping[str, QuantStub], statistics: Mapping[str, Histogram]
) -> Iterator[list[str]]:
    """Let every stub show its values, with all quantization off; put everything back afterwards.

    Gives the list of the places whose value was empty once, as a decoder's cache is before its first token.
    """
    layers = [part for part in parts if isinstance(part, QuantizedLayer)]
    inbox = Inbox()
    empty: list[str] = []
    try:
        with _floating(parts):
            hold_folded(layers)
            for name, histogram in statistics.items():
                stubs[name].observer = _Watch(histogram, inbox, empty)
            yield empty
            inbox.flush()
    finally:
        for layer in layers:
            layer.held = None
        for stub in stubs.values():
            stub.observer = None


@contextlib.contextmanager
def floating(model: nn.Module) -> Iterator[None]:
    with _floating(list(model.modules())):
        yield


@contextlib.contextmanager
def _floating(parts: Iterable[nn.Module]) -> Iterator[None]:
    modes = [(part, part.mode) for part in parts if isinstance(part, Quantizer)]
    try:
        # Past `nn.Module.__setattr__`, as in `evaluating_parts`.
        for part, _ in modes:
            part.switch(Mode.FLOAT)
        yield
    finally:
        for part, mode in modes:
            part.switch(mode)


class _Watch:
    """Leaves what a stub's values are like in an inbox."""

    def __init__(self, histogram: Histogram, inbox: Inbox, empty: list[str]) -> None:
        self._histogram = histogram
        self._inbox = inbox
        self._empty = empty

    def __call__(self, stub: QuantStub, value: torch.Tensor) -> None:
        if not value.is_floating_point() or stub.masked:
            return
        if not value.numel():
            self._empty.append(stub.label)
            return
        self._inbox.put(stub, self._histogram, value)

    def finish(self, stub: QuantStub, left: Unfinished) -> torch.Tensor | None:
        """Return the finished value, looked at meanwhile, where its device can do that."""
        return None if stub.masked else self._inbox.put_finished(stub, self._histogram, left)


def _run_batches(model: nn.Module, batches: Iterable[Any], *, progress: bool) -> None:
    assert isinstance(model, fx.GraphModule)
    inputs = [node for node in model.graph.nodes if node.op == "placeholder"]
    total = len(batches) if isinstance(batches, Sized) else None
    for place, batch in enumerate(batches, start=1):
        # Of data with a part held out, the user knows the place among all batches.
        number = getattr(batches, "number", place)
        args, kwargs = as_call(batch, len(inputs))
        try:
            model(*args, **kwargs)
        except CalibrationError:
            raise
        except Exception as exc:
            raise not_taken(number, batch, exc) from exc
        if progress:
            sys.stderr.write(f"\rcalibrating: batch {number}{'' if total is None else f' of {total}'}")
            sys.stderr.flush()
    if progress:
        sys.stderr.write("\n")


def as_call(batch: Any, inputs: int) -> tuple[tuple[Any, ...], Mapping[str, Any]]:
    """Return positional and keyword inputs of a batch; labels behind the inputs are left out."""
    if isinstance(batch, Mapping):
        return (), {name: torch.as_tensor(item) if _is_array(item) else item for name, item in batch.items()}
    items = batch[:inputs] if isinstance(batch, list | tuple) else (batch,)
    return tuple(torch.as_tensor(item) if _is_array(item) else item for item in items), {}


def _is_array(value: object) -> bool:
    """Say whether a value is NumPy's, which need not be installed."""
    return hasattr(value, "__array_interface__")


def not_taken(number: int, batch: Any, cause: object) -> CalibrationError:
    """Return the error of a batch that the model does not take, with the likely reason."""
    why = str(cause).rstrip(".")
    said = f"the model does not take batch {number} ({describe(batch)}): {why}. {_likely(batch, why)}"
    return CalibrationError(said, batch=number)


def _likely(batch: Any, cause: str) -> str:
    items = batch if isinstance(batch, list | tuple) else batch.values() if isinstance(batch, Mapping) else (batch,)
    for item in items:
        if not isinstance(item, torch.Tensor) and not _is_array(item):
            continue
        shape = tuple(item.shape)
        if len(shape) == 4 and shape[-1] in _CHANNELS and shape[1] not in _CHANNELS:
            return "Its channels seem to come last; for a model that wants them first: batch.transpose(0, 3, 1, 2)."
        if len(shape) == 3 and "4D" in cause:
            return "It seems to be one sample, and batches have an axis of samples in front: batch[None]."
        if len(shape) > 2 and not torch.as_tensor(item).is_floating_point():
            return "Its values are integers; prepare it as in training, for instance batch.astype('float32') / 255."
    return "Batches are a tensor or array, a tuple of the model's inputs, or a dictionary of them."


def describe(batch: Any) -> str:
    if isinstance(batch, torch.Tensor) or _is_array(batch):
        return f"shape {tuple(batch.shape)}, {batch.dtype}"
    if isinstance(batch, list | tuple):
        return ", ".join(describe(item) for item in batch)
    return type(batch).__name__


def apply_calibration(model: nn.Module, calibration: Calibration, *, config: QuantConfig | None = None) -> None:
    """Solve every scale of a model from statistics, in place.

    Raises:
        CalibrationError: The statistics are of another model.
    """
    record = quantization_of(model)
    config = config or record.config
    parts = dict(model.named_modules())
    stubs = {name: part for name, part in parts.items() if isinstance(part, QuantStub)}
    for name, stub in stubs.items():
        if stub.fixed is None and name not in calibration.statistics:
            raise CalibrationError(
                f"the calibration knows nothing of '{name}'; it is of another model or another placement."
            )
    names = [name for name, stub in stubs.items() if stub.fixed is None and calibration.statistics[name].batches]
    form = config.activation.format(symmetric=record.symmetric)
    found = [calibration.statistics[name] for name in names]
    solved = dict(zip(names, solve_all(found, config.activation, form), strict=True))
    for name, stub in stubs.items():
        bounds = stub.fixed or solved.get(name)
        if bounds is not None:
            stub.form = form
            stub.set_range(*bounds)
    for layer in parts.values():
        if not isinstance(layer, QuantizedLayer) or layer.weight_quantizer is None:
            continue
        quantizer = layer.weight_quantizer
        if config.weight.range_method is CalibrationMethod.MSE:
            weight = layer.folded()[0].detach()
            quantizer.calibrate(weight, best_ratio(quantizer, weight))
        else:
            quantizer.calibrate_peak(layer.folded_peak(quantizer))
    assert isinstance(model, fx.GraphModule)
    put_quantization(model, replace(record, config=config, calibration=calibration))
    settle_formats(model)


_SAMPLES = 16
_BYTES = 64 * 2**20


@contextmanager
def keeping_samples(model: fx.GraphModule) -> Iterator[Samples]:
    """Keep the first inputs that a model is given, in the order of its inputs: a few, and never many megabytes."""
    kept: Samples = []
    space = [_BYTES]
    names = [str(node.target) for node in model.graph.nodes if node.op == "placeholder"]

    def look(_: nn.Module, args: tuple[Any, ...], kwargs: Mapping[str, Any]) -> None:
        given = [*args, *(kwargs[name] for name in names[len(args) :] if name in kwargs)]
        whole = len(given) == len(args) + len(kwargs)
        if space[0] < 0 or not whole or not all(isinstance(value, torch.Tensor) and value.ndim for value in given):
            return
        # Rows are samples only where all inputs have as many.
        if len({len(value) for value in given}) != 1:
            return
        for row in range(min(_SAMPLES - len(kept), len(given[0]))):
            sample = tuple(value[row : row + 1].detach().cpu().clone() for value in given)
            space[0] -= sum(value.numel() * value.element_size() for value in sample)
            if space[0] < 0:
                return
            kept.append(sample)

    with model.register_forward_pre_hook(look, with_kwargs=True):
        yield kept
