"""Corrections of the errors that quantization makes: each is tried where its symptom shows, measured, kept if it helps.

The measure is the signal-to-noise ratio of the model's own outputs against the float model, on held-out samples, or the
metric of a goal. A correction that does not raise it beyond noise is undone, and the report says so.
"""

import contextlib
import copy
from collections.abc import Callable, Collection, Iterator, Sequence
from dataclasses import dataclass
from typing import Any, Protocol

import torch
from torch import fx, nn

from embedl_deploy.nn import QuantizedLayer, QuantStub
from embedl_deploy.nn.number import Precision
from embedl_deploy.quantize._balance import Site, balance, factors, sites
from embedl_deploy.quantize._calibrate import apply_calibration, best_ratio, floating
from embedl_deploy.quantize._held_out import Judge, gain, ratio_db, run_sample
from embedl_deploy.quantize._histogram import Calibration
from embedl_deploy.quantize._insert import layers_of, stubs_of
from embedl_deploy.quantize._quantization import Correction, Gain, Trial, quantization_of
from embedl_deploy.quantize._rows import Sample

_LOW, _HIGH = -0.1, 1.1
_PULL = 0.01


def learn_rounding(layer: QuantizedLayer, value: torch.Tensor, target: torch.Tensor, *, steps: int) -> None:
    """Choose up or down for every weight of a layer, in place, so that for inputs `value` it gives `target`.

    Adaptive rounding, ``min over h in [0, 1] ‖((floor(W/s) + h)·s)x - Wx‖²``: a soft choice h, a growing pull to 0 or
    1, and a hard choice at the end.
    """
    quantizer = layer.weight_quantizer
    assert quantizer is not None
    weight, bias = (None if tensor is None else tensor.detach() for tensor in layer.folded())
    assert weight is not None
    scale = quantizer.spread(quantizer.scale.detach(), weight)
    floor = torch.floor(weight / scale)
    rest = (weight / scale - floor).clamp(1e-4, 1 - 1e-4)
    choice = torch.logit((rest - _LOW) / (_HIGH - _LOW)).requires_grad_()
    optimizer = torch.optim.Adam([choice], lr=0.02)
    norm = target.detach().pow(2).mean().clamp(min=1e-12)
    with torch.enable_grad():
        for step in range(steps):
            soft = _soft(choice)
            rounded = (floor + soft).clamp(quantizer.form.low, quantizer.form.high) * scale
            error = (layer.run(value, rounded, bias) - target).pow(2).mean() / norm
            sharp = 20 - 18 * step / steps
            pull = (1 - (2 * soft - 1).abs().pow(sharp)).mean() if step > steps // 5 else torch.zeros(())
            optimizer.zero_grad()
            (error + _PULL * pull).backward()  # type: ignore[no-untyped-call]
            optimizer.step()
    with torch.no_grad():
        codes = (floor + (_soft(choice) >= 0.5)).clamp(quantizer.form.low, quantizer.form.high)
        layer.put_folded(codes * scale)


def _soft(choice: torch.Tensor) -> torch.Tensor:
    """Return the soft choice between 0 and 1; the stretched sigmoid can reach both ends."""
    return (torch.sigmoid(choice) * (_HIGH - _LOW) + _LOW).clamp(0, 1)


_UNEVEN = 4.0
_SHIFT = 0.02
_WORTH = 0.05
_ROUGH_DB = 32.0
_MOST_ROUNDED = 12
_ROUNDING_STEPS = 150

Visit = Callable[[str, QuantizedLayer, Any, Any], Any]


@dataclass
class QuantState:
    """A quantized model with what is needed to judge a change."""

    model: fx.GraphModule  # Calibrated; changed in place.
    collect: Callable[[], Calibration]  # Runs the calibration data again, when ranges change.
    sample: Sample  # One call of the model, to learn from.
    judge: "Verdict"  # Measures a model, and says which of two is better.
    calibration: Calibration  # The statistics that belong to the model now.


@dataclass(frozen=True)
class Measure:
    """What a judge found of a model: one number to print, and what it takes to compare."""

    value: float
    scores: torch.Tensor | None = None  # a row per held-out sample, a column per output


class Verdict(Protocol):
    """Who says whether a change helps."""

    def measure(self, model: fx.GraphModule) -> Measure:
        """Measure a model."""
        ...

    def compare(self, before: Measure, after: Measure) -> tuple[bool, Gain | None]:
        """Say whether the later model is better, with the evidence where there is any."""
        ...


class ByNoise:
    """Judges by the noise on held-out samples, sample by sample."""

    def __init__(self, judge: Judge) -> None:
        self._judge = judge

    def measure(self, model: fx.GraphModule) -> Measure:
        """Return the mean ratio, and that of every sample."""
        scores = self._judge.scores(model)
        return Measure(float(scores.mean()), scores)

    def compare(self, before: Measure, after: Measure) -> tuple[bool, Gain | None]:
        """Compare sample by sample."""
        assert before.scores is not None
        assert after.scores is not None
        found = gain(before.scores, after.scores)
        return found.is_real, found


class Always:
    """Keeps every correction: those that were judged before."""

    def measure(self, model: fx.GraphModule) -> Measure:
        """Measure nothing."""
        del model
        return Measure(0.0)

    def compare(self, before: Measure, after: Measure) -> tuple[bool, Gain | None]:
        """Keep it."""
        del before, after
        return True, None


def apply_corrections(state: QuantState, corrections: Collection[Correction]) -> list[Trial]:
    """Try corrections in the order in which they do not undo each other."""
    return [try_correction(state, correction) for correction in Correction if correction in corrections]


def try_correction(
    state: QuantState, correction: Correction, announce: Callable[[Correction], object] = lambda _: None
) -> Trial:
    """Try one correction; put everything back when it does not help.

    Args:
        state: The model and who judges it.
        correction: What to try.
        announce: Told of it once the model before it was measured.
    """
    before = state.judge.measure(state.model)
    announce(correction)
    saved = copy.deepcopy(state.model.state_dict())
    statistics = state.calibration
    layers = _CORRECTIONS[correction](state)
    if not layers:
        return Trial(correction, (), before.value, before.value, kept=False)
    after = state.judge.measure(state.model)
    kept, found = state.judge.compare(before, after)
    if not kept:
        state.model.load_state_dict(saved)
        state.calibration = statistics
    return Trial(correction, tuple(layers), before.value, after.value, kept, found)


def _balance(state: QuantState, *, smooth: bool) -> list[str]:
    """Even out channels at every value where a few of them are far larger than the rest."""
    allowed = quantization_of(state.model).placement.smooth
    found = [site for site in sites(state.model) if site.smooth is smooth and (not smooth or site.place in allowed)]
    peaks = _channel_peaks(state, found)
    done = []
    for site in found:
        peak = peaks[site.place]
        # Where the largest are cut off, the small ones show it.
        usual = peak.float().quantile(0.5 if site.top is None else 0.25)
        if float(peak.max()) > _UNEVEN * float(usual.clamp(min=1e-12)):
            balance(site, factors(site, peak))
            done.append(site.place)
    if done:
        # The values have changed: take the statistics again.
        state.calibration = state.collect()
        apply_calibration(state.model, state.calibration)
    return done


def _channel_peaks(state: QuantState, found: Sequence[Site]) -> dict[str, torch.Tensor]:
    stubs = dict(stubs_of(state.model))
    peaks: dict[str, torch.Tensor] = {}

    def watch(site: Site) -> Callable[[QuantStub, torch.Tensor], None]:
        def observe(_stub: QuantStub, value: torch.Tensor) -> None:
            peak = value.detach().abs().movedim(site.dim, 0).flatten(1).amax(1)
            peaks[site.place] = torch.maximum(peak, peaks.get(site.place, peak))

        return observe

    watched = [(stubs[name], site) for site in found for name in site.stubs]
    try:
        for stub, site in watched:
            stub.observer = watch(site)
        # In float: a channel far smaller than the rest would be seen as nothing but zeros.
        with floating(state.model):
            run_sample(state.model, state.sample)
    finally:
        for stub, _ in watched:
            stub.observer = None
    return peaks


def _weight_ranges(state: QuantState) -> list[str]:
    """Clip the weights of layers where that lowers their squared error."""
    done = []
    for name, layer in layers_of(state.model):
        quantizer = layer.weight_quantizer
        if quantizer is None or quantizer.form.precision is Precision.FP8:
            continue
        weight = layer.folded()[0].detach()
        ratio = best_ratio(quantizer, weight)
        error = (quantizer.rounded(weight) - weight).pow(2).sum()
        scale, kept = quantizer.scale, quantizer.ratio
        quantizer.calibrate(weight, ratio)
        if (quantizer.rounded(weight) - weight).pow(2).sum() < error * (1 - _WORTH):
            done.append(name)
        else:
            quantizer.scale, quantizer.ratio = scale, kept
    return done


@contextlib.contextmanager
def watching_layers(model: nn.Module, visit: Visit) -> Iterator[None]:
    """Show `visit` the name, input and output of every layer with weights that runs; it may replace the output."""
    with contextlib.ExitStack() as stack:
        for name, layer in layers_of(model):
            hook = layer.register_forward_hook(lambda part, args, result, name=name: visit(name, part, args[0], result))
            stack.callback(hook.remove)
        yield


def _visit_layers(state: QuantState, visit: Visit, *, quantized: bool) -> None:

    with watching_layers(state.model, visit), contextlib.nullcontext() if quantized else floating(state.model):
        run_sample(state.model, state.sample)


def _bias(state: QuantState) -> list[str]:
    """Give back the mean that rounding took from every channel, layer after layer in one pass."""
    means: dict[str, torch.Tensor] = {}
    spreads: dict[str, torch.Tensor] = {}
    done: list[str] = []

    def record_origin(name: str, layer: QuantizedLayer, _value: Any, result: Any) -> None:
        flat = layer.by_channel(result)
        means[name], spreads[name] = flat.mean(1), flat.std(1, correction=int(flat.shape[1] > 1))

    def correct(name: str, layer: QuantizedLayer, _value: Any, result: Any) -> Any:
        shift = means[name] - layer.by_channel(result).mean(1)
        if layer.weight_quantizer is None or bool((shift.abs() <= _SHIFT * spreads[name]).all()):
            return None
        if not layer.add_bias(shift):
            return None
        done.append(name)
        # What follows sees the corrected values at once, so that later shifts are not counted twice.
        return result + shift.reshape([-1, *[1] * (result.ndim - 2)] if layer.channel_dim == 1 else [-1])

    _visit_layers(state, record_origin, quantized=False)
    _visit_layers(state, correct, quantized=True)
    return done


def _rounding(state: QuantState) -> list[str]:
    """Learn the rounding of the layers whose weights err most, in the order of the data."""
    targets: dict[str, torch.Tensor] = {}
    errors: dict[str, float] = {}

    def measure(name: str, layer: QuantizedLayer, value: Any, _result: Any) -> None:
        quantizer = layer.weight_quantizer
        if quantizer is not None and quantizer.form.precision is not Precision.FP8:
            targets[name] = layer.run(value, layer.folded()[0].detach(), layer.folded()[1])
            errors[name] = ratio_db([targets[name]], [_rounded_result(layer, value)])

    _visit_layers(state, measure, quantized=False)
    rough = sorted((name for name, error in errors.items() if error < _ROUGH_DB), key=errors.__getitem__)
    chosen = set(rough[:_MOST_ROUNDED])
    done: list[str] = []

    def learn(name: str, layer: QuantizedLayer, value: Any, _result: Any) -> Any:
        if name not in chosen:
            return None
        before = layer.folded()[0].detach().clone()
        error = ratio_db([targets[name]], [_rounded_result(layer, value)])
        learn_rounding(layer, value.detach(), targets[name], steps=_ROUNDING_STEPS)
        result = _rounded_result(layer, value)
        if ratio_db([targets[name]], [result]) <= error:
            layer.put_folded(before)
            return None
        done.append(name)
        return result if layer.output is None else layer.output(result)

    _visit_layers(state, learn, quantized=True)
    return done


def _rounded_result(layer: QuantizedLayer, value: torch.Tensor) -> torch.Tensor:
    assert layer.weight_quantizer is not None
    weight, bias = layer.folded()
    return layer.run(value, layer.weight_quantizer.rounded(weight.detach()), bias)


_CORRECTIONS: dict[Correction, Callable[[QuantState], list[str]]] = {
    Correction.SMOOTH: lambda state: _balance(state, smooth=True),
    Correction.EQUALIZE: lambda state: _balance(state, smooth=False),
    Correction.WEIGHT_RANGES: _weight_ranges,
    Correction.ROUNDING: _rounding,
    Correction.BIAS: _bias,
}
