"""What a user can choose about quantisation: frozen values, checked when they are made."""

import enum
from collections.abc import Callable, Collection
from dataclasses import dataclass, field
from typing import Any

from torch import nn

from embedl_deploy.errors import QuantizationError, known
from embedl_deploy.nn.number import NumberFormat, Precision

Member = nn.Module | type[nn.Module] | str
Metric = Callable[[nn.Module], float]
_POWERS = tuple(2**at for at in range(4, 13))


class CalibrationMethod(enum.Enum):
    """How a range is taken from the statistics of a tensor; every one works on the same statistics.

    MINMAX keeps everything. MOVING_AVERAGE_MINMAX keeps the mean, over batches, of the smallest and the largest value.
    PERCENTILE leaves out a small part at both ends. MSE cuts large magnitudes off until the squared error is least;
    HISTOGRAM does so for both ends separately. ENTROPY keeps the range whose distribution changes least.
    """

    MINMAX = "min-max"
    MOVING_AVERAGE_MINMAX = "moving average min-max"
    HISTOGRAM = "histogram"
    PERCENTILE = "percentile"
    MSE = "mse"
    ENTROPY = "entropy"


@dataclass(frozen=True)
class TensorQuantConfig:
    """How one kind of tensor is quantised.

    Attributes:
        precision: The number format.
        symmetric: Zero is the middle of the range; `None` leaves it to the backend (weights are always symmetric).
        per_channel: A scale per output channel; only weights can have it.
        calibration_method: How the range is found. Weights know MINMAX and MSE.
        percentile: What PERCENTILE keeps, in per cent.
        block_size: For INT4 weights of fully connected layers: how many inputs share a scale; 0 for whole channels.
    """

    precision: Precision = Precision.INT8
    symmetric: bool | None = None
    per_channel: bool = False
    calibration_method: CalibrationMethod = CalibrationMethod.MINMAX
    percentile: float = 99.99
    block_size: int = 0

    def __post_init__(self) -> None:
        """Check values that no tensor could have."""
        for name, kind in (("precision", Precision), ("calibration_method", CalibrationMethod)):
            value = getattr(self, name)
            if not isinstance(value, kind):
                members: list[enum.Enum] = list(kind)
                raise QuantizationError(f"{name} is {value!r}; it is one of {known(one.name for one in members)}.")
        if not 50 < self.percentile <= 100:
            raise QuantizationError(f"percentile is {self.percentile}; it is above 50 and at most 100.")
        if self.block_size and self.block_size not in _POWERS:
            raise QuantizationError(f"block_size is {self.block_size}; it is 0 or a power of two from 16 to 4096.")

    def format(self, *, symmetric: bool) -> NumberFormat:
        """Return the number format, with the backend's word where `symmetric` was left open."""
        chosen = symmetric if self.symmetric is None else self.symmetric
        return NumberFormat(self.precision, signed=chosen or self.precision is Precision.FP8)


@dataclass(frozen=True)
class ModulesToSkip:
    """Layers to leave alone: module instances, module types (or their names), or qualified names.

    A name covers what is inside it.

    Attributes:
        stub: No quantise/dequantise pair on the values of these layers.
        weight: The weights of these layers stay float.
        smooth: No smoothing into these layers.
    """

    stub: Collection[Member] = ()
    weight: Collection[Member] = ()
    smooth: Collection[Member] = ()

    @classmethod
    def layers(cls, *members: Member) -> "ModulesToSkip":
        """Keep these layers float altogether."""
        return cls(stub=members, weight=members, smooth=members)


def _weight() -> TensorQuantConfig:
    """Return how weights are quantised unless told otherwise."""
    return TensorQuantConfig(symmetric=True, per_channel=True)


@dataclass(frozen=True)
class QuantConfig:
    """How a model is quantised."""

    activation: TensorQuantConfig = field(default_factory=TensorQuantConfig)
    weight: TensorQuantConfig = field(default_factory=_weight)
    skip: ModulesToSkip = field(default_factory=ModulesToSkip)

    def __post_init__(self) -> None:
        """Check what no target can run."""
        for name, kind in (("activation", TensorQuantConfig), ("weight", TensorQuantConfig), ("skip", ModulesToSkip)):
            if not isinstance(value := getattr(self, name), kind):
                example = f"ModulesToSkip.layers({value!r})" if name == "skip" else "TensorQuantConfig(...)"
                raise QuantizationError(f"{name} is {value!r}; it is a {kind.__name__}: give {example}.")
        if self.activation.block_size:
            raise QuantizationError("blocks are for INT4 weights; leave block_size of activations out.")
        if self.activation.per_channel:
            raise QuantizationError("activations have one scale per tensor on every target; leave per_channel out.")
        if self.activation.precision is Precision.INT4:
            raise QuantizationError("INT4 is for weights; give activations INT8, INT16 or FP8.")
        if self.weight.symmetric is False:
            raise QuantizationError("weights are symmetric on every target; leave symmetric out.")
        if self.weight.calibration_method not in (CalibrationMethod.MINMAX, CalibrationMethod.MSE):
            raise QuantizationError(
                f"weights are calibrated by MINMAX or MSE, not {self.weight.calibration_method.name}."
            )
        if self.weight.precision is Precision.INT16:
            raise QuantizationError("no target has INT16 weights; give weights INT8, INT4 or FP8.")


@dataclass(frozen=True)
class MaxDrop:
    """A goal: the metric of the quantised model may be at most `drop` below that of the float model.

    Attributes:
        metric: Takes a model and returns a number, larger is better (accuracy, say).
        drop: In the metric's own unit.
        most_islands: Stop with what was reached when this many layers are float.
    """

    metric: Metric
    drop: float
    most_islands: int = 16

    def __post_init__(self) -> None:
        """Check the goal."""
        if not callable(self.metric):
            raise QuantizationError("metric is a function that takes a model and returns a number, larger is better.")
        if self.drop < 0:
            raise QuantizationError(f"drop is {self.drop}; give how much the metric may fall, 0 or more.")


Batch = Any
