"""What a user can choose about quantization: frozen values, checked when they are made."""

import enum
from collections.abc import Callable, Collection
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from torch import nn

from embedl_deploy.errors import QuantizationError, quoted_list
from embedl_deploy.nn.number import NumberFormat, Precision

Member = nn.Module | type[nn.Module] | str
Metric = Callable[[nn.Module], float]
_POWERS = tuple(2**power for power in range(4, 13))


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
    """How one kind of tensor is quantized."""

    precision: Precision = Precision.INT8
    # Zero is the middle of the range; `None` leaves it to the backend (weights are always symmetric)
    symmetric: bool | None = None
    per_channel: bool = False  # A scale per output channel; only weights can have it
    # How the range is found. `None` for activations: `quantize` compares the methods on held-out data and takes
    # min-max unless another is better; without such data, and for weights, min-max. Weights know MINMAX and MSE.
    calibration_method: CalibrationMethod | None = None
    percentile: float = 99.99  # what PERCENTILE keeps, in percent
    # For INT4 weights of fully connected layers: how many inputs share a scale; 0 for whole channels
    block_size: int = 0

    def __post_init__(self) -> None:
        """Check values that no tensor could have."""
        for name, kind in (("precision", Precision), ("calibration_method", CalibrationMethod)):
            value = getattr(self, name)
            left_open = value is None and name == "calibration_method"
            if not left_open and not isinstance(value, kind):
                members: list[enum.Enum] = list(kind)
                raise QuantizationError(
                    f"{name} is {value!r}; it is one of {quoted_list(member.name for member in members)}."
                )
        if not 50 < self.percentile <= 100:
            raise QuantizationError(f"percentile is {self.percentile}; it is above 50 and at most 100.")
        if self.block_size and self.block_size not in _POWERS:
            raise QuantizationError(f"block_size is {self.block_size}; it is 0 or a power of two from 16 to 4096.")

    @property
    def range_method(self) -> CalibrationMethod:
        """How the range is found where nothing else was chosen."""
        return self.calibration_method or CalibrationMethod.MINMAX

    def format(self, *, symmetric: bool) -> NumberFormat:
        """Return the number format, with the backend's word where `symmetric` was left open."""
        chosen = symmetric if self.symmetric is None else self.symmetric
        return NumberFormat(self.precision, signed=chosen or self.precision is Precision.FP8)


@dataclass(frozen=True)
class ModulesToSkip:
    """Layers to leave alone: module instances, module types (or their names), or qualified names.

    A name covers what is inside it.
    """

    stub: Collection[Member] = ()  # no quantize/dequantize pair on the values of these layers
    weight: Collection[Member] = ()  # the weights of these layers stay float
    smooth: Collection[Member] = ()  # no smoothing into these layers

    @classmethod
    def layers(cls, *members: Member) -> "ModulesToSkip":
        """Keep these layers float altogether."""
        return cls(stub=members, weight=members, smooth=members)


@dataclass(frozen=True)
class QuantConfig:
    """How a model is quantized."""

    activation: TensorQuantConfig = TensorQuantConfig()
    weight: TensorQuantConfig = TensorQuantConfig(symmetric=True, per_channel=True)
    skip: ModulesToSkip = ModulesToSkip()

    def __post_init__(self) -> None:
        """Check what no target can run."""
        for name, kind in (("activation", TensorQuantConfig), ("weight", TensorQuantConfig), ("skip", ModulesToSkip)):
            if not isinstance(value := getattr(self, name), kind):
                example = f"ModulesToSkip.layers({value!r})" if name == "skip" else "TensorQuantConfig(...)"
                raise QuantizationError(f"{name} is {value!r}; it is a {kind.__name__}: give {example}.")
        activation, weight = self.activation, self.weight
        method = weight.range_method
        faults = {
            "blocks are for INT4 weights; leave block_size of activations out.": activation.block_size,
            "activations have one scale per tensor on every target; leave per_channel out.": activation.per_channel,
            "INT4 is for weights; give activations INT8, INT16 or FP8.": activation.precision is Precision.INT4,
            "weights are symmetric on every target; leave symmetric out.": weight.symmetric is False,
            f"weights are calibrated by MINMAX or MSE, not {method.name}.": method.name not in ("MINMAX", "MSE"),
            "no target has INT16 weights; give weights INT8, INT4 or FP8.": weight.precision is Precision.INT16,
        }
        if fault := next((text for text, holds in faults.items() if holds), ""):
            raise QuantizationError(fault)


@dataclass(frozen=True)
class MaxDrop:
    """A goal: the metric of the quantized model may be at most `drop` below that of the float model.

    Range methods, corrections and float islands are tried in this order, until it is met.
    """

    metric: Metric  # takes a model and returns a number, larger is better (accuracy, say)
    drop: float  # in the metric's own unit
    most_islands: int = 16  # stop with what was reached when this many layers are float
    # A file of what was measured, by content of the model: a search that was stopped goes on from it
    journal: str | Path | None = None

    def __post_init__(self) -> None:
        """Check the goal."""
        if not callable(self.metric):
            raise QuantizationError("metric is a function that takes a model and returns a number, larger is better.")
        if self.drop < 0:
            raise QuantizationError(f"drop is {self.drop}; give how much the metric may fall, 0 or more.")


Batch = Any
