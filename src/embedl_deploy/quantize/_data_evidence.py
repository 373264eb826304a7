"""The verdict on calibration data before anything is quantized: it fits, it differs, it is faulty, or nobody can tell.

Real pictures of another source differ from the training data too, and that is no fault. Data is called faulty only
where undoing one preparation brings the distance down to half and less, for nearly every choice of the samples; where
the channels in another order fit better than anything that pictures show could make them; where values next to each
other have nothing in common; or where no real data could be so far away.
"""

import enum
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import torch
from torch import nn

from embedl_deploy._table import Printed, table
from embedl_deploy.errors import CalibrationError
from embedl_deploy.quantize._answers import surer
from embedl_deploy.quantize._batch_norm_evidence import (
    ENTRY,
    LayerFit,
    Moments,
    Norm,
    find_norms,
    fit_all,
    prefers,
    resampled,
    score,
    watch,
)
from embedl_deploy.quantize._preprocessing import Explanation, is_flat, is_noise, order_faults, range_faults
from embedl_deploy.quantize._rows import Sample, rows_of

LEAST = 4  # samples: fewer say nothing
MOST = 64  # samples that are looked at
_FITS = 0.3  # stored standard deviations: training data less its augmentation, and other data of the kind, are within
_OFF = 0.4  # where ranges of values are doubted
_BETTER = 0.5  # what a repair must leave of the distance, at most
_ORDER = 0.6  # the same for order and layout, which move a part of the channels only
_CLOSE = 0.5  # and how close it must come
_IMPOSSIBLE = 2.2  # crops of one photograph, a network's farthest right data, gave up to 1.7
_TENDS = 0.05  # what statistics must say for the other order of channels where the answers speak for it too
_SURER = 2.0  # standard errors: how much surer the answers must be then
_SURE = 0.99  # of the resamples
_MARGIN = 0.8  # of the given distance: a repair is below it in these resamples, not only below the distance itself
_CLEARLY = 0.7  # what an explanation with one more fault in it must leave of the simpler one's distance, at most
_NOTICED = 0.05  # and how much less that must be: where next to nothing is left, a share of it says nothing
_TIMES = 200


class DataVerdict(enum.Enum):
    """What is said of calibration data."""

    FITS = "fits"
    DIFFERS = "differs"
    FAULTY = "faulty"
    NO_EVIDENCE = "no evidence"


@dataclass(frozen=True, repr=False)
class DataEvidence(Printed):
    """What a network's own statistics say of the data it is calibrated on; prints as a table of its layers."""

    verdict: DataVerdict
    reason: str
    samples: int = 0
    distance: float | None = None  # of the layers nearest to the input, in stored standard deviations
    layers: tuple[LayerFit, ...] = ()  # in the order they are reached
    fault: str = ""  # what explains the distance
    advice: str = ""
    repaired: float | None = None  # the distance without the fault
    source: str = "stored statistics of normalization layers"
    tried: Mapping[str, float] = field(default_factory=dict)  # the distance that every explanation leaves

    @property
    def line(self) -> str:
        """The verdict in one line, as reports show it."""
        return f"Calibration data: {self.reason}"

    def _line(self) -> str:
        return self.line

    def __str__(self) -> str:
        if not self.layers:
            return self.line
        rows = [fit.row() for fit in self.layers]
        head = ("layer", "channels", "distance", "mean, off by", "deviation")
        return "\n".join([self.line, "", table(head, rows)])

    def to_dict(self) -> dict[str, Any]:
        """Return plain data for JSON."""
        return {
            "verdict": self.verdict.value,
            "reason": self.reason,
            "source": self.source,
            "samples": self.samples,
            "distance": self.distance,
            "fault": self.fault,
            "advice": self.advice,
            "repaired_distance": self.repaired,
            "tried": dict(self.tried),
            "layers": [
                {"name": fit.name, "channels": fit.channels, "distance": fit.distance, "shift": fit.shift,
                 "spread": fit.spread}
                for fit in self.layers
            ],
        }  # fmt: skip


def no_evidence(reason: str, samples: int = 0) -> DataEvidence:
    return DataEvidence(DataVerdict.NO_EVIDENCE, f"no evidence: {reason}", samples)


def judge_data(model: nn.Module, calls: Sequence[Sample]) -> DataEvidence:
    """Compare calls with what a model keeps of its training data, and look for the fault that explains a difference.

    Raises:
        CalibrationError: A value is not finite.
    """
    norms, unset = find_norms(model)
    samples = sum(map(rows_of, calls))
    refuse_damage(calls)
    if not norms:
        return _without_norms(model, calls, unset, samples)
    if samples < LEAST:
        return no_evidence(f"{samples} samples are too few to tell; give {LEAST} and more.", samples)
    moments = watch(model, norms, calls)
    if not moments:
        return no_evidence("the layers that keep statistics are not reached by this data.", samples)
    return _Trial(model, norms, list(calls), moments, samples).judge()


def refuse_damage(calls: Iterable[Sample]) -> None:
    """Raise where a batch holds what is no number."""
    for number, (args, kwargs) in enumerate(calls, start=1):
        for value in (*args, *kwargs.values()):
            if isinstance(value, torch.Tensor) and value.is_floating_point() and not bool(value.isfinite().all()):
                raise CalibrationError(
                    f"calibration batch {number} has values that are not finite; look for NaN or infinity in it.",
                    batch=number,
                )


@dataclass(frozen=True)
class _Found:
    explanation: Explanation
    moments: Mapping[str, Moments]
    distance: float
    needed: float


class _Trial:
    """One look for the fault that explains a distance."""

    def __init__(
        self, model: nn.Module, norms: Mapping[str, Norm], calls: list[Sample], moments: Mapping[str, Moments],
        samples: int,
    ) -> None:  # fmt: skip
        self._model, self._norms, self._calls, self._moments, self._samples = model, norms, calls, moments, samples
        self._fits = fit_all(norms, moments)
        self._given = score(self._fits)
        self._tried: dict[str, float] = {}

    def judge(self) -> DataEvidence:
        slots = _float_inputs(self._calls)
        found: list[_Found] = []
        for slot in slots:
            value = torch.cat([_at(call, slot) for call in self._calls])
            found += self._try(slot, order_faults(value), _ORDER)
            if self._given > _OFF:
                found += self._try(slot, range_faults(value), _BETTER)
        best = self._simplest(found)
        if best is not None and self._is_sure(best):
            return self._faulty(best.explanation.fault, best.explanation.advice, best.distance)
        farthest = max(fit.distance for fit in self._fits)
        if max(self._given, farthest) > _OFF and slots:
            value = torch.cat([_at(call, slots[0]) for call in self._calls])
            if is_noise(value):
                return self._faulty("values next to each other have nothing in common, as in noise", "give real data")
            if is_flat(value):
                return self._faulty("all pictures are of one color, as where the mean of 0 to 255 is taken off 0 to 1",
                                    "prepare the data as in training")  # fmt: skip
        if self._given > _IMPOSSIBLE:
            return self._faulty("no real data is so far away, and no preparation that was tried explains it",
                                "prepare the data as in training")  # fmt: skip
        return self._sound()

    def _try(self, slot: "_Slot", explanations: Iterable[Explanation], needed: float) -> list[_Found]:
        found = []
        for each in explanations:
            calls = [_with(call, slot, each.repair(_at(call, slot))) for call in self._calls]
            moments = watch(self._model, self._norms, calls, ENTRY)
            distance = score(fit_all(self._norms, moments))
            self._tried[each.fault] = min(distance, self._tried.get(each.fault, distance))
            if self._comes_near(each, distance, needed) and (needed != _ORDER or self._takes(each, calls)):
                found.append(_Found(each, moments, distance, needed))
        return found

    def _takes(self, each: Explanation, calls: Sequence[Sample]) -> bool:
        """Say whether all layers take the other version of the samples, or tend to it while the answers are surer."""
        preferred = prefers(self._norms, self._moments, watch(self._model, self._norms, calls))
        if preferred >= each.evidence or not each.paired:
            return preferred >= each.evidence
        return preferred >= _TENDS and surer(self._model, self._calls, calls) >= _SURER

    def _simplest(self, found: Sequence[_Found]) -> _Found | None:
        """Return what leaves least, or the same with one fault less where that leaves hardly more."""
        best = min(found, key=lambda each: each.distance / each.needed, default=None)
        for each in found if best is not None and best.explanation.simpler else ():
            assert best is not None
            if each.explanation.fault == best.explanation.simpler:
                most = min(_CLEARLY * each.distance, each.distance - _NOTICED)
                return best if best.distance < most else each
        return best

    def _comes_near(self, each: Explanation, distance: float, needed: float) -> bool:
        if each.paired:
            return distance < self._given
        # Constants that are taken from the data move any data towards the network's: they must meet what fits.
        return distance <= min(needed * self._given, _FITS if each.free else _CLOSE)

    def _is_sure(self, best: _Found) -> bool:
        if best.explanation.paired:
            return True
        given, repaired = (resampled(self._norms, moments, _TIMES) for moments in (self._moments, best.moments))
        return int((repaired < _MARGIN * given).sum()) >= _SURE * _TIMES

    def _faulty(self, fault: str, advice: str, repaired: float | None = None) -> DataEvidence:
        reason = f"looks faulty: {fault} ({self._given:.2f} stored deviations off"
        reason += f", {repaired:.2f} without)" if repaired is not None else ")"
        return DataEvidence(
            DataVerdict.FAULTY, f"{reason}; {advice}.", self._samples, self._given, self._fits, fault, advice,
            repaired, tried=self._tried,
        )  # fmt: skip

    def _sound(self) -> DataEvidence:
        farthest = max(fit.distance for fit in self._fits)
        layers = f"{len(self._fits)} normalization layers" if len(self._fits) > 1 else "one normalization layer"
        facts = f"{layers}, {self._given:.2f} off at the input, farthest {farthest:.2f}, {self._samples} samples"
        if self._given <= _FITS:
            verdict, reason = DataVerdict.FITS, f"fits the network's statistics ({facts})."
        else:
            verdict = DataVerdict.DIFFERS
            reason = f"differs from the training data, and no fault of preprocessing explains it ({facts})."
        return DataEvidence(verdict, reason, self._samples, self._given, self._fits, tried=self._tried)


_Slot = int | str


def _at(call: Sample, slot: _Slot) -> torch.Tensor:
    value: torch.Tensor = call[0][slot] if isinstance(slot, int) else call[1][slot]
    return value


def _with(call: Sample, slot: _Slot, value: torch.Tensor) -> Sample:
    args, kwargs = call
    if isinstance(slot, int):
        return (*args[:slot], value, *args[slot + 1 :]), kwargs
    return args, {**kwargs, slot: value}


def _float_inputs(calls: Sequence[Sample]) -> list[_Slot]:
    """Return the inputs that a repair can be tried on: tensors of numbers with channels, of one shape in all calls."""
    args, kwargs = calls[0]
    slots: list[_Slot] = [*range(len(args)), *kwargs]

    def repairable(slot: _Slot) -> bool:
        try:
            values: list[Any] = [_at(call, slot) for call in calls]
        except (IndexError, KeyError):
            return False
        tensors: list[torch.Tensor] = [value for value in values if isinstance(value, torch.Tensor)]
        if len(tensors) != len(calls) or not all(value.is_floating_point() and value.ndim > 1 for value in tensors):
            return False
        return len({value.shape[1:] for value in tensors}) == 1

    return [slot for slot in slots if repairable(slot)]


def _without_norms(model: nn.Module, calls: Sequence[Sample], unset: int, samples: int) -> DataEvidence:
    told = _told_normalization(model)
    slots = _float_inputs(calls)
    if told is not None and slots:
        value = torch.cat([_at(call, slots[0]) for call in calls])
        if value.ndim > 1 and value.shape[1] == len(told[0]):
            return _judge_range(value, *told, samples)
    if unset:
        return no_evidence(f"the statistics of {unset} normalization layers were never set by training.", samples)
    return no_evidence("this network keeps no statistics of its training data.", samples)


def _told_normalization(model: nn.Module) -> tuple[list[float], list[float]] | None:
    """Return mean and deviation where the model carries them, as those of timm do."""
    for key in ("pretrained_cfg", "default_cfg"):
        told = getattr(model, key, None)
        facts = told if isinstance(told, Mapping) else getattr(told, "__dict__", {})
        mean, deviation = _numbers(facts.get("mean")), _numbers(facts.get("std"))
        if mean and len(mean) == len(deviation) and min(deviation) > 0:
            return mean, deviation
    return None


def _numbers(value: object) -> list[float]:
    """Return what may be constants of channels; nothing where it is something else."""
    given = value if isinstance(value, list | tuple) else ()
    return [float(part) for part in given] if all(isinstance(part, int | float) for part in given) else []


def _judge_range(value: torch.Tensor, mean: list[float], deviation: list[float], samples: int) -> DataEvidence:
    """Judge pictures by the constants that the model says it was trained with: only black to white is possible."""
    shape = (1, -1, *[1] * (value.ndim - 2))
    pixels = value * torch.tensor(deviation).reshape(shape) + torch.tensor(mean).reshape(shape)
    low, high = (float(bound) for bound in torch.aminmax(pixels))
    told = "the mean and the deviation that the model names"
    source = "the normalization that the model names"
    if low >= -0.1 and high <= 1.1 and not (float(value.min()) >= 0 and samples >= LEAST):
        reason = f"is within the range of {told}; this network keeps no other statistics."
        return DataEvidence(DataVerdict.FITS, reason, samples, source=source)
    fault = f"its values lie from {float(value.min()):.3g} to {float(value.max()):.3g}, which is not what {told} give"
    return DataEvidence(
        DataVerdict.FAULTY, f"looks faulty: {fault}; normalize it so.", samples, fault=fault,
        advice="normalize it so", source=source,
    )  # fmt: skip
