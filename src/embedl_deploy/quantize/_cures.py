"""Cures for the errors that quantisation makes: each is tried where its symptom shows, measured, and kept if it helps.

The measure is the signal-to-noise ratio of the model's own outputs against the float model, on calibration data.
A cure that does not raise it is undone, and the report says so.
"""

import contextlib
import copy
import enum
from collections.abc import Callable, Collection, Iterable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any, Union

import torch
from torch import fx, nn
from torch.utils import _pytree as pytree

from embedl_deploy._run import evaluating
from embedl_deploy._table import table
from embedl_deploy.errors import QuantizationError, known
from embedl_deploy.nn import Mode, QuantizedConv, QuantizedLinear, QuantStub
from embedl_deploy.nn.number import Precision
from embedl_deploy.quantize._balance import Site, balance, factors, sites
from embedl_deploy.quantize._calibrate import apply_calibration, collect
from embedl_deploy.quantize._calibration import Calibration
from embedl_deploy.quantize._insert import run_layer, setup_of, stubs_of, weighted_of
from embedl_deploy.quantize._rounding import learn_rounding, put_folded
from embedl_deploy.quantize._weights import best_ratio

_UNEVEN = 4.0
_SHIFT = 0.02
_WORTH = 0.05
_ROUGH_DB = 32.0
_MOST_ROUNDED = 12
_ROUNDING_STEPS = 150

Cures = Union["Cure", str, Iterable[Union["Cure", str]]]
Layer = QuantizedConv | QuantizedLinear
Sample = tuple[tuple[Any, ...], dict[str, Any]]


class Cure(enum.Enum):
    """A way to lessen an error of quantisation."""

    SMOOTH = "smooth"
    EQUALIZE = "equalise"
    WEIGHT_RANGES = "weight ranges"
    ROUNDING = "learned rounding"
    BIAS = "bias correction"

    @classmethod
    def chosen(cls, cures: "Cures") -> tuple["Cure", ...]:
        """Return cures for what a user wrote: one or several, themselves or by name.

        Raises:
            QuantizationError: A name is no cure's.
        """
        several = (cures,) if isinstance(cures, Cure | str) or not isinstance(cures, Iterable) else tuple(cures)
        return tuple(cls._named(one) for one in several)

    @classmethod
    def _named(cls, cure: object) -> "Cure":
        """Return the cure that is meant by a name as it stands in code or in a report."""
        for one in cls:
            if cure is one or (isinstance(cure, str) and cure.lower() in (one.name.lower(), one.value)):
                return one
        raise QuantizationError(f"{cure!r} is no cure; they are {known(one.name for one in cls)}.")


@dataclass(frozen=True)
class Treatment:
    """What a cure did.

    Attributes:
        cure: Which one.
        layers: Where its symptom showed.
        before_db: Signal-to-noise ratio of the model's outputs before.
        after_db: And after.
        kept: Whether it helped and was kept.
    """

    cure: Cure
    layers: tuple[str, ...]
    before_db: float
    after_db: float
    kept: bool

    def row(self) -> tuple[str, ...]:
        """Return the cells of a table."""
        if not self.layers:
            return (self.cure.value, "0", "", "", "no symptom")
        what = "kept" if self.kept else "undone: it did not help"
        return (self.cure.value, str(len(self.layers)), f"{self.before_db:.2f}", f"{self.after_db:.2f}", what)


def treatments_table(treatments: Sequence[Treatment]) -> str:
    """Set treatments as a table."""
    return table(("cure", "layers", "before, dB", "after, dB", "result"), [one.row() for one in treatments])


@dataclass
class Patient:
    """A quantised model with what is needed to judge a change.

    Attributes:
        model: The calibrated model, changed in place.
        data: The calibration data, to run again when ranges change.
        sample: One call of the model, to learn from.
        held: Another call, to judge by: the other half of the batch where it has one, so that nothing marks itself.
        reference: What the float model gives for the latter.
        calibration: The statistics that belong to the model now.
    """

    model: fx.GraphModule
    data: Any
    sample: Sample
    held: Sample
    reference: list[torch.Tensor]
    calibration: Calibration

    def ratio(self) -> float:
        """Return the signal-to-noise ratio of the outputs, in dB."""
        return ratio_db(self.reference, run_sample(self.model, self.held))

    def run(self) -> None:
        """Run the sample to learn from."""
        run_sample(self.model, self.sample)

    def recalibrate(self) -> None:
        """Take the statistics again: a cure has changed the values."""
        self.calibration = collect(self.model, self.data)
        apply_calibration(self.model, self.calibration)


def run_sample(model: nn.Module, sample: Sample) -> list[torch.Tensor]:
    """Run a call in eval mode and return its tensors."""
    with evaluating([model]):
        return tensors(model(*sample[0], **sample[1]))


def halves(sample: Sample) -> tuple[Sample, Sample]:
    """Split a call of one tensor in two; a call that cannot be split is both halves."""
    args, kwargs = sample
    if len(args) == 1 and not kwargs and isinstance(args[0], torch.Tensor) and args[0].ndim and args[0].shape[0] > 1:
        middle = (args[0].shape[0] + 1) // 2
        return ((args[0][:middle],), {}), ((args[0][middle:],), {})
    return sample, sample


def tensors(value: Any) -> list[torch.Tensor]:
    """Return the floating point tensors of a result."""
    return [one for one in pytree.tree_leaves(value) if isinstance(one, torch.Tensor) and one.is_floating_point()]


def ratio_db(reference: Sequence[torch.Tensor], found: Sequence[torch.Tensor]) -> float:
    """Return the signal-to-noise ratio in dB, over all tensors together."""
    signal = sum(float(one.double().pow(2).sum()) for one in reference)
    noise = sum(float((one.double() - two.double()).pow(2).sum()) for one, two in zip(reference, found, strict=True))
    if noise == 0:
        return float("inf")
    return float(10 * torch.log10(torch.tensor(max(signal, 1e-300) / noise)))


def treat(patient: Patient, cures: Collection[Cure]) -> list[Treatment]:
    """Try cures in the order in which they do not undo each other."""
    return [_try(patient, cure) for cure in Cure if cure in cures]


def _try(patient: Patient, cure: Cure) -> Treatment:
    """Try one cure; put everything back when it does not help."""
    before = patient.ratio()
    saved = copy.deepcopy(patient.model.state_dict())
    statistics = patient.calibration
    layers = _CURES[cure](patient)
    if not layers:
        return Treatment(cure, (), before, before, kept=False)
    after = patient.ratio()
    if after <= before:
        patient.model.load_state_dict(saved)
        patient.calibration = statistics
    return Treatment(cure, tuple(layers), before, after, kept=after > before)


def _balance(patient: Patient, *, smooth: bool) -> list[str]:
    """Even out channels at every value where a few of them are far larger than the rest."""
    allowed = setup_of(patient.model).placement.smooth
    found = [site for site in sites(patient.model) if site.smooth is smooth and (not smooth or site.place in allowed)]
    peaks = channel_peaks(patient, found)
    done = []
    for site in found:
        peak = peaks[site.place]
        if float(peak.max()) > _UNEVEN * float(peak.median().clamp(min=1e-12)):
            balance(site, factors(site, peak))
            done.append(site.place)
    if done:
        patient.recalibrate()
    return done


def channel_peaks(patient: Patient, found: Sequence[Site]) -> dict[str, torch.Tensor]:
    """Return the largest magnitude of every channel at the given values, on the sample."""
    stubs = dict(stubs_of(patient.model))
    peaks: dict[str, torch.Tensor] = {}

    def watch(site: Site) -> Callable[[QuantStub, torch.Tensor], None]:
        def observe(_stub: QuantStub, value: torch.Tensor) -> None:
            peak = value.detach().abs().movedim(site.dim, 0).flatten(1).amax(1)
            peaks[site.place] = torch.maximum(peak, peaks.get(site.place, peak))

        return observe

    for site in found:
        for name in site.stubs:
            stubs[name].observer = watch(site)
    try:
        # In float: a channel far smaller than the rest would be seen as nothing but zeros.
        with floating(patient.model):
            patient.run()
    finally:
        for name in [name for site in found for name in site.stubs]:
            stubs[name].observer = None
    return peaks


def _weight_ranges(patient: Patient) -> list[str]:
    """Clip the weights of layers where that lowers their squared error."""
    done = []
    for name, layer in weighted_of(patient.model):
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


def _outputs(patient: Patient, *, quantized: bool, visit: Callable[[str, Layer, Any, Any], Any]) -> None:
    """Run the sample, showing inputs and outputs of every layer with weights; `visit` may replace the output."""
    hooks = []
    for name, layer in weighted_of(patient.model):
        hooks.append(
            layer.register_forward_hook(lambda part, args, result, name=name: visit(name, part, args[0], result))
        )
    try:
        with contextlib.nullcontext() if quantized else floating(patient.model):
            patient.run()
    finally:
        for hook in hooks:
            hook.remove()


@contextlib.contextmanager
def floating(model: nn.Module) -> Iterator[None]:
    """Switch all quantisation off for a while."""
    parts: list[Any] = [part for part in model.modules() if hasattr(part, "mode")]
    modes = [part.mode for part in parts]
    try:
        for part in parts:
            part.mode = Mode.FLOAT
        yield
    finally:
        for part, mode in zip(parts, modes, strict=True):
            part.mode = mode


def _bias(patient: Patient) -> list[str]:
    """Give back the mean that rounding took from every channel, layer after layer in one pass."""
    means: dict[str, torch.Tensor] = {}
    spreads: dict[str, torch.Tensor] = {}
    done: list[str] = []

    def remember(name: str, layer: Layer, _value: Any, result: Any) -> None:
        flat = _by_channel(layer, result)
        means[name], spreads[name] = flat.mean(1), flat.std(1)

    def correct(name: str, layer: Layer, _value: Any, result: Any) -> Any:
        shift = means[name] - _by_channel(layer, result).mean(1)
        if layer.weight_quantizer is None or bool((shift.abs() <= _SHIFT * spreads[name]).all()):
            return None
        if not _add_bias(layer, shift):
            return None
        done.append(name)
        # What follows sees the corrected values at once, so that later shifts are not counted twice.
        shape = [1, -1, *[1] * (result.ndim - 2)] if isinstance(layer, QuantizedConv) else [-1]
        return result + shift.reshape(shape)

    _outputs(patient, quantized=False, visit=remember)
    _outputs(patient, quantized=True, visit=correct)
    return done


def _by_channel(layer: Layer, result: torch.Tensor) -> torch.Tensor:
    """Return a row per output channel."""
    return result.detach().movedim(1 if isinstance(layer, QuantizedConv) else -1, 0).flatten(1)


def _add_bias(layer: Layer, shift: torch.Tensor) -> bool:
    """Add to a layer's bias; `False` when it has none."""
    holder: Any = (
        layer.linear if isinstance(layer, QuantizedLinear) else layer.bn if layer.bn is not None else layer.conv
    )
    if holder.bias is None:
        return False
    with torch.no_grad():
        holder.bias.add_(shift.to(holder.bias.dtype))
    return True


def _rounding(patient: Patient) -> list[str]:
    """Learn the rounding of the layers whose weights err most, in the order of the data."""
    targets: dict[str, torch.Tensor] = {}
    errors: dict[str, float] = {}

    def measure(name: str, layer: Layer, value: Any, _result: Any) -> None:
        quantizer = layer.weight_quantizer
        if quantizer is not None and quantizer.form.precision is not Precision.FP8:
            targets[name] = _run(layer, value, layer.folded()[0].detach())
            errors[name] = _local(layer, value, targets[name])

    _outputs(patient, quantized=False, visit=measure)
    rough = sorted((name for name, error in errors.items() if error < _ROUGH_DB), key=errors.__getitem__)
    chosen = set(rough[:_MOST_ROUNDED])
    done: list[str] = []

    def learn(name: str, layer: Layer, value: Any, _result: Any) -> Any:
        if name not in chosen:
            return None
        before = layer.folded()[0].detach().clone()
        error = _local(layer, value, targets[name])
        learn_rounding(layer, value.detach(), targets[name], steps=_ROUNDING_STEPS)
        if _local(layer, value, targets[name]) <= error:
            put_folded(layer, before)
            return None
        done.append(name)
        assert layer.weight_quantizer is not None
        result = _run(layer, value, layer.weight_quantizer.rounded(layer.folded()[0].detach()))
        return result if layer.output is None else layer.output(result)

    _outputs(patient, quantized=True, visit=learn)
    return done


def _run(layer: Layer, value: torch.Tensor, weight: torch.Tensor) -> torch.Tensor:
    """Run a layer with other weights and its own bias."""
    return run_layer(layer, value, weight, layer.folded()[1])


def _local(layer: Layer, value: torch.Tensor, target: torch.Tensor) -> float:
    """Return the signal-to-noise ratio of one layer's result."""
    assert layer.weight_quantizer is not None
    return ratio_db([target], [_run(layer, value, layer.weight_quantizer.rounded(layer.folded()[0].detach()))])


_CURES: dict[Cure, Callable[[Patient], list[str]]] = {
    Cure.SMOOTH: lambda patient: _balance(patient, smooth=True),
    Cure.EQUALIZE: lambda patient: _balance(patient, smooth=False),
    Cure.WEIGHT_RANGES: _weight_ranges,
    Cure.ROUNDING: _rounding,
    Cure.BIAS: _bias,
}
