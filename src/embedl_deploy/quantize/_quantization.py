"""How a model was quantized and what came of it: one value, which travels with the model."""

import enum
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Union

import torch
from torch import fx, nn

from embedl_deploy._table import table
from embedl_deploy.errors import QuantizationError, quoted_list
from embedl_deploy.quantize._config import CalibrationMethod, QuantConfig
from embedl_deploy.quantize._data_evidence import DataEvidence
from embedl_deploy.quantize._histogram import Calibration
from embedl_deploy.quantize._placement import Placement

_KEY = "embedl_deploy.quantization"
_WORTH_DB = 0.1
Samples = list[tuple[torch.Tensor, ...]]
Corrections = Union["Correction", str, Iterable[Union["Correction", str]]]


class Correction(enum.Enum):
    """A way to lessen an error of quantization."""

    SMOOTH = "smooth"
    EQUALIZE = "equalize"
    WEIGHT_RANGES = "weight ranges"
    ROUNDING = "learned rounding"
    BIAS = "bias correction"

    @classmethod
    def chosen(cls, corrections: "Corrections") -> tuple["Correction", ...]:
        """Return corrections for what a user wrote: one or several, themselves or by name.

        Raises:
            QuantizationError: A name is no correction's.
        """
        if isinstance(corrections, Correction | str) or not isinstance(corrections, Iterable):
            corrections = (corrections,)
        return tuple(cls._named(choice) for choice in corrections)

    @classmethod
    def _named(cls, choice: object) -> "Correction":
        """Return the correction that is meant by a name as it stands in code or in a report."""
        for member in cls:
            if choice is member or (isinstance(choice, str) and choice.lower() in (member.name.lower(), member.value)):
                return member
        raise QuantizationError(f"{choice!r} is no correction; they are {quoted_list(member.name for member in cls)}.")


@dataclass(frozen=True)
class Gain:
    """By how much one model is closer to the float model than another, over samples that neither was made from."""

    mean_db: float  # mean over samples of the difference in signal-to-noise ratio
    low_db: float  # the mean may be as small as this by chance (95 %)
    high_db: float  # or as large as this
    samples: int  # how many samples were compared

    @property
    def is_real(self) -> bool:
        """Whether it is more than noise, and enough to matter."""
        return self.low_db > 0 and self.mean_db >= _WORTH_DB

    def __str__(self) -> str:
        return f"{self.mean_db:+.2f} dB ({self.low_db:+.2f} to {self.high_db:+.2f}, {self.samples} unseen samples)"


@dataclass(frozen=True)
class Trial:
    """What a correction did."""

    correction: Correction
    layers: tuple[str, ...]  # where its symptom showed
    # Mean signal-to-noise ratio of the model's outputs on held-out samples before; with a goal, its metric
    before_db: float
    after_db: float  # and after
    kept: bool  # whether it helped and was kept
    gain: Gain | None = None  # the difference, sample by sample; None where nothing was compared
    reason: str = ""  # why it was not tried, where it was not

    def row(self) -> tuple[str, ...]:
        """Return the cells of a table."""
        if not self.layers:
            return (self.correction.value, "0", "", "", self.reason or "no symptom")
        result = "kept" if self.kept else "undone: it did not help"
        if self.gain is not None:
            gain = self.gain
            text = f"{gain.low_db:+.2f} to {gain.high_db:+.2f} dB"
            result = f"kept: {text} on {gain.samples} unseen samples"
            if not self.kept:
                result = f"undone: no improvement on {gain.samples} unseen samples ({text})"
        return (self.correction.value, str(len(self.layers)), f"{self.before_db:.2f}", f"{self.after_db:.2f}", result)


@dataclass(frozen=True)
class MethodTrial:
    """What one range method gives on held-out samples."""

    method: CalibrationMethod
    db: float  # mean signal-to-noise ratio of the outputs
    gain: Gain | None  # over min-max; None for min-max itself


@dataclass(frozen=True)
class RangeChoice:
    """Which range method was chosen, and why."""

    method: CalibrationMethod
    trials: tuple[MethodTrial, ...] = ()  # all that were compared, min-max first
    samples: int = 0  # held-out samples that they were compared on
    seconds: float = 0.0  # what the comparison cost
    reason: str = ""  # why nothing was compared, where nothing was

    def __str__(self) -> str:
        if not self.trials:
            return f"Ranges: {self.method.value}, {self.reason}"
        rows = [
            (
                trial.method.value,
                f"{trial.db:.2f}",
                "" if trial.gain is None else f"{trial.gain.low_db:+.2f} to {trial.gain.high_db:+.2f}",
                "chosen" if trial.method is self.method else "",
            )
            for trial in self.trials
        ]
        head = f"Ranges: {self.method.value}, chosen on {self.samples} unseen samples in {self.seconds:.1f} s:"
        return "\n".join([head, table(("method", "dB", "over min-max, dB", ""), rows)])


@dataclass(frozen=True)
class OutputQuality:
    """How close one output of the quantized model is to that of the float model, on held-out samples."""

    name: str
    db: float  # mean signal-to-noise ratio
    samples: int
    kept: tuple[str, ...] = ()  # layers that were left float for it, without being asked
    before_db: float | None = None  # the ratio without them
    advice: str = ""  # what to do where it stays low

    def __str__(self) -> str:
        text = f"{self.name}: {self.db:.1f} dB on {self.samples} unseen samples"
        if self.kept:
            text += f"; kept in float for it: {', '.join(self.kept)} ({self.before_db:.1f} -> {self.db:.1f} dB)"
        return f"{text}. {self.advice}" if self.advice else text


@dataclass(frozen=True)
class Step:
    """One model that was measured in the search for a goal."""

    what: str  # what was changed
    metric: float
    kept: bool  # whether the search went on from it
    seconds: float  # to make and to measure it


@dataclass(frozen=True)
class Search:
    """What the search for a goal found: range method, corrections, then float islands, until the goal is met."""

    islands: tuple[str, ...]  # layers that stay float
    float_metric: float
    metric: float
    allowed: float  # the least that was asked for
    tried: int  # how many quantized models were measured
    steps: tuple[Step, ...] = ()  # every one of them, in order
    seconds: float = 0.0  # what it cost, the metric included

    @property
    def met(self) -> bool:
        """Whether the goal was reached."""
        return self.metric >= self.allowed

    def __str__(self) -> str:
        verdict = "met" if self.met else "not met"
        line = (
            f"Goal {verdict}: {self.metric:.4g}, float {self.float_metric:.4g}, at least {self.allowed:.4g} wanted; "
            f"{self.tried} models measured in {self.seconds:.1f} s. Float islands: {', '.join(self.islands) or 'none'}"
        )
        rows = [
            (step.what, f"{step.metric:.4g}", f"{step.seconds:.1f}", "kept" if step.kept else "") for step in self.steps
        ]
        return "\n".join([line, *([table(("tried", "metric", "s", ""), rows)] if rows else [])])


@dataclass(frozen=True)
class LayerCost:
    """What quantizing one layer costs."""

    place: str  # its qualified name in the user's model
    noise: float  # power of the noise it puts on the model's outputs, as a part of their own power
    share: float  # its part of the noise of all layers


@dataclass(frozen=True)
class Sensitivity:
    """What quantizing each layer costs, the most expensive first."""

    layers: tuple[LayerCost, ...]  # one cost per quantized layer
    method: str = "estimated: first-order noise of each layer alone at the model's outputs"  # how it was found out
    unit: str = "noise power / output power"  # what `LayerCost.noise` is

    def __str__(self) -> str:
        rows = [
            (cost.place, f"{-10 * torch.log10(torch.tensor(max(cost.noise, 1e-30))):.1f}", f"{cost.share:.1%}")
            for cost in self.layers
        ]
        return table(("layer", "alone, dB", "of all noise"), rows)


@dataclass(frozen=True)
class FittedLayer:
    """What the weights of one layer became, so that no input can saturate a kernel's sums."""

    remedy: str  # ``none`` where nothing had to be done, else the remedy's name
    cost_db: float  # by how much its noise grew over 8-bit weights on exact kernels
    sqnr_db: float  # its output against its noise
    measured: bool  # whether this was judged on samples; else on the weights alone
    tried: Mapping[str, float]  # the cost of every remedy that applied, by name


@dataclass(frozen=True)
class Quantization:
    """How a model was quantized, and what came of it; prints as a report."""

    placement: Placement  # every layer's decision and the rule behind it
    config: QuantConfig
    symmetric: bool  # what the backend wants of activations
    groups: Mapping[str, str]  # stub names that share a scale with an earlier stub, and which
    # The statistics; keep them to solve scales again without the data
    calibration: Calibration = field(default_factory=Calibration)
    trials: tuple[Trial, ...] = ()  # every correction that was tried, with its measured effect
    ranges: RangeChoice | None = None  # how the range method was chosen, where the user left it open
    outputs: tuple[OutputQuality, ...] = ()  # what every output keeps on held-out samples
    warnings: tuple[str, ...] = ()  # what is odd about the calibration data
    evidence: DataEvidence | None = None  # whether that data is what the network was trained on; None if not looked at
    search: Search | None = None  # the search for a goal, where one was given
    sensitivity: Sensitivity | None = None  # what each layer costs with all of them quantized, where a goal was given
    example_only: bool = False  # ranges are those of the example inputs, as no other data was given
    fitted: Mapping[str, FittedLayer] = field(default_factory=dict)  # what a portable file's weights became, by layer
    # Some of the calibration data; what is decided on export is decided on it
    samples: Sequence[tuple[torch.Tensor, ...]] = field(default=(), repr=False)

    def samples_like(
        self, args: Sequence[object], dims: Sequence[Mapping[int, str]] = ()
    ) -> list[tuple[torch.Tensor, ...]] | None:
        """Return samples in batches that fit where the given inputs do; None when there are too few for one.

        Args:
            args: Example inputs; a batch has as many samples as they have, or one where the batch may differ.
            dims: Dimensions in which a batch may differ from them, for each input.
        """
        tensors = [value for value in args if isinstance(value, torch.Tensor)]
        if len(tensors) != len(args) or not all(value.ndim for value in tensors):
            return None
        opened = [set(each) for each in dims] or [set[int]()] * len(tensors)
        # A file without an open batch takes as many samples at once as the example inputs hold.
        size = 1 if not tensors or all(0 in each for each in opened) else max(1, len(tensors[0]))
        alike: dict[tuple[torch.Size, ...], Samples] = {}
        for sample in self.samples:
            alike.setdefault(tuple(value.shape for value in sample), []).append(sample)
        batches = [
            tuple(torch.cat(parts) for parts in zip(*group[start : start + size], strict=True))
            for group in alike.values()
            for start in range(0, len(group) - size + 1, size)
        ]
        return [batch for batch in batches if _fits(batch, tensors, opened)] or None

    def __str__(self) -> str:
        total, done = len(self.placement.layers), len(self.placement.quantized)
        lines = [f"{done} of {total} layers quantized, {self.calibration.batches} batches", "", str(self.placement)]
        if self.example_only:
            lines.insert(1, "Warning: calibrated on the example inputs alone; give forward_loop=batches of real data.")
        lines[1:1] = [f"Warning: {warning}" for warning in self.warnings]
        lines[1:1] = [] if self.evidence is None else [self.evidence.line]
        if self.ranges is not None:
            lines += ["", str(self.ranges)]
        if self.trials:
            by_goal = self.search is not None
            unit = "" if by_goal else ", dB"
            head = ("correction", "layers", f"before{unit}", f"after{unit}", "result")
            rows = [trial.row() for trial in self.trials]
            what = "the metric of the goal" if by_goal else "signal-to-noise ratio of the outputs"
            lines += ["", f"Corrections, by {what}:", table(head, rows)]
        if self.outputs:
            lines += ["", "Outputs against the float model:", *(f"  {output}" for output in self.outputs)]
        if self.search is not None:
            lines += ["", str(self.search)]
        return "\n".join(lines)


def _fits(batch: Sequence[torch.Tensor], like: Sequence[torch.Tensor], opened: Sequence[set[int]]) -> bool:
    """Say whether a batch has the shapes of other inputs, but for open dimensions."""
    return len(batch) == len(like) and all(
        value.ndim == wanted.ndim
        and all(dim in free or value.shape[dim] == side for dim, side in enumerate(wanted.shape))
        for value, wanted, free in zip(batch, like, opened, strict=True)
    )


def find_quantization(model: nn.Module) -> Quantization | None:
    found = model.meta.get(_KEY) if isinstance(model, fx.GraphModule) else None
    return found if isinstance(found, Quantization) else None


def before_compile(model: nn.Module) -> nn.Module:
    """Return the model that `torch.compile` was given; another model as it is."""
    inner = getattr(model, "_orig_mod", model)
    return inner if isinstance(inner, nn.Module) else model


def quantization_of(model: nn.Module) -> Quantization:
    """Return how a model was quantized, and what came of it.

    Raises:
        QuantizationError: It was not.
    """
    found = find_quantization(model)
    if found is None:
        if (inner := before_compile(model)) is not model and find_quantization(inner) is not None:
            raise QuantizationError(
                "this is the compiled form of a quantized model: call it to train, and give the model that "
                "torch.compile was given here; both have the same weights."
            )
        raise QuantizationError(
            f"this {type(model).__name__} has no quantize/dequantize pairs; "
            "call quantize(model, args, ...) or insert_qdq first."
        )
    return found


def put_quantization(model: fx.GraphModule, quantization: Quantization) -> None:
    model.meta[_KEY] = quantization
