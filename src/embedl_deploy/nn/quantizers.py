"""What rounds: stubs on values and quantizers on weights.

A stub passes values on, shows them to an observer, or quantizes and dequantizes them; which of the three is its `mode`.
"""

import enum
import math
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, TypedDict

import torch
from torch import nn

from embedl_deploy.nn import kernels
from embedl_deploy.nn.number import FormatState, NumberFormat, PlainFormat, Precision, quantized_codes
from embedl_deploy.nn.rounding import (
    SMALLEST_SCALE,
    Norm,
    RowWeight,
    Unfinished,
    fake_quantize,
    fake_quantize_after,
    fake_quantize_rows,
    peak_scale,
    traced_rows,
    traced_values,
    usable,
)

Observer = Callable[["QuantStub", torch.Tensor], None]
"""What looks at the values of stubs; with a method `finish`, as in `QuantStub.see_after`, it does more meanwhile."""


class Mode(enum.Enum):
    """What a stub or a weight quantizer does with a value."""

    FLOAT = "float"
    QUANTIZE = "quantize"


class _State(TypedDict, total=False):
    """What of a quantizer is no tensor, as it is saved."""

    calibrated: bool
    mode: str
    form: FormatState
    axis: int | None
    block: int
    follows: bool
    found_scale: float
    quantizes: bool
    masked: bool


class Quantizer(nn.Module):
    """What a stub and a weight quantizer have in common: a number format, a scale, and whether it is on.

    Attributes:
        calibrated: The scale was found from data.
        rounds: Whether `mode` is to quantize; with `low`, `high` and `is_fp8`, the format's, in plain numbers for
            compilers. Before every call of a compiled model they check everything that was read of it: objects that
            modules share and properties cost them most, and keep them from their shortcut for plain modules.
    """

    scale: torch.Tensor
    mode: Mode
    rounds: bool
    low: float
    high: float
    is_fp8: bool

    def __init__(self, form: NumberFormat) -> None:
        super().__init__()
        self.form = form
        self.calibrated = False
        self.mode = Mode.FLOAT
        self.register_buffer("scale", torch.ones(()))

    def __setattr__(self, name: str, value: Any) -> None:
        """Note what compilers read of a mode or a number format."""
        if name == "mode":
            self.switch(value)
            return
        super().__setattr__(name, value)
        if name == "form":
            self.__dict__.update(low=value.low, high=value.high, is_fp8=value.is_fp8)

    def switch(self, mode: Mode) -> None:
        """Set the mode, past `nn.Module.__setattr__`: calibration switches all of a network for every batch."""
        self.__dict__.update(mode=mode, rounds=mode is not Mode.FLOAT)

    def plain_form(self) -> PlainFormat:
        """Return the number format as compilers read it."""
        return PlainFormat(self.low, self.high, self.is_fp8)

    @property
    def learned(self) -> bool:
        """Whether gradient moves the scale."""
        return isinstance(self.scale, nn.Parameter)

    @property
    def positive_scale(self) -> torch.Tensor:
        """The scale to divide by: a step of the optimizer may carry a learned one to zero and past it."""
        return usable(self.scale)

    def get_extra_state(self) -> _State:
        """Save what is no tensor."""
        return {"calibrated": self.calibrated, "mode": self.mode.value, "form": self.form.to_state()}

    def set_extra_state(self, state: _State) -> None:
        """Load what is no tensor; scales mean nothing in another format."""
        self.calibrated = state["calibrated"]
        self.mode = Mode(state["mode"])
        self.form = NumberFormat.from_state(state["form"])


_ROUNDED_BY = "_edgeproof_rounded_by"
_SEEN_BY = "_edgeproof_seen_by"
_TOPS: dict[type[nn.Module], float] = {nn.ReLU: math.inf, nn.ReLU6: 6.0}


class QuantStub(Quantizer):
    """A boundary between two layers, quantized or only watched.

    Attributes:
        quantizes: It carries a Q/DQ pair; otherwise its range is kept for targets that want one here.
        label: The value it stands on, for messages and files.
        bounds: The range that was found, ``(low, high)``.
        fixed: A range that is known without data (a softmax lies in 0..1), or `None`.
        found_scale: The scale that calibration found for the range, before training moved it.
        required: The backend's patterns want a pair here, whatever the dialect.
        masked: It holds minus infinity, behind a mask, and stays float.
    """

    zero_point: torch.Tensor
    bounds: torch.Tensor

    def __init__(
        self, label: str, form: NumberFormat, *, quantizes: bool, fixed: tuple[float, float] | None = None
    ) -> None:
        super().__init__(form)
        self.label = label
        self.quantizes = quantizes
        self.fixed = fixed
        self.observer: Observer | None = None
        self.found_scale = 1.0
        self.required = False
        self.masked = False
        self.register_buffer("zero_point", torch.zeros(()))
        self.register_buffer("bounds", torch.zeros(2))

    def current_bounds(self) -> tuple[float, float]:
        """Return the range that belongs to the scale as it is now: training may have moved it since calibration."""
        low, high = self.bounds.tolist()
        factor = float(self.scale.detach().abs()) / self.found_scale
        return low * factor, high * factor

    def set_format(self, form: NumberFormat, scale: float, zero_point: float) -> None:
        """Take a number format that a target wants for the range."""
        self.form = form
        with torch.no_grad():
            self.scale.fill_(scale)
            self.zero_point.fill_(zero_point)
        self.found_scale = float(self.scale.detach())
        self.mode = Mode.QUANTIZE if self.quantizes else Mode.FLOAT

    def set_range(self, low: float, high: float) -> None:
        """Take a range: scale and zero point follow from it and the number format."""
        with torch.no_grad():
            self.bounds.copy_(torch.tensor([low, high]))
        self.calibrated = True
        self.set_format(self.form, *scale_of(low, high, self.form))

    def forward(self, value: torch.Tensor) -> torch.Tensor:
        """Pass on, watch or quantize."""
        if torch.compiler.is_compiling() and self.observer is None:
            if not self.rounds or not value.is_floating_point():
                return value
            return traced_values(value, self.scale, self.zero_point, self.plain_form())
        if self.observer is not None and getattr(value, _SEEN_BY, None) is not self:
            self.observer(self, value)
        if self.mode is Mode.FLOAT or not value.is_floating_point() or getattr(value, _ROUNDED_BY, None) is self:
            return value
        return self.rounded(value)

    def rounded(self, value: torch.Tensor) -> torch.Tensor:
        """Quantize and dequantize, whatever the mode."""
        return fake_quantize(value, self.scale, self.zero_point, self.form)

    def round_after(
        self, act: nn.Module | None, value: torch.Tensor, other: torch.Tensor | None = None
    ) -> torch.Tensor | None:
        """Add, activate and quantize in one step, for the layer that alone is read here; then pass the result on.

        `None` where that is more than one step: in eval mode, for a learned scale, another activation, and where
        somebody's hook wants to see the value in between.
        """
        scale = self._buffers.get("scale")
        if scale is None or not self.training or self.mode is Mode.FLOAT or not value.requires_grad:
            return None
        top = None if act is None else _TOPS.get(type(act), 0.0)
        if top == 0.0 or (act is not None and act._forward_hooks):
            return None
        if other is not None and (other.shape != value.shape or other.dtype != value.dtype):
            return None
        if not torch.is_grad_enabled():
            return None
        rounded = fake_quantize_after(other, top, value, scale, self.zero_point, self.form)
        setattr(rounded, _ROUNDED_BY, self)
        return rounded

    def see_after(
        self,
        act: nn.Module | None,
        value: torch.Tensor,
        other: torch.Tensor | None = None,
        bias: torch.Tensor | None = None,
    ) -> torch.Tensor | None:
        """Add, activate and show to the observer in one step, as `round_after` rounds; `None` where that is more."""
        top = None if act is None else _TOPS.get(type(act), 0.0)
        if top == 0.0 or (act is not None and act._forward_hooks) or torch.is_grad_enabled():
            return None
        finish = getattr(self.observer, "finish", None)
        if finish is None:
            return None
        found: torch.Tensor | None = finish(self, Unfinished(value, bias, other, top))
        if found is not None:
            setattr(found, _SEEN_BY, self)
        return found

    @property
    def finishes(self) -> bool:
        """Whether its observer can do what is left to do with a value."""
        return self.observer is not None and hasattr(self.observer, "finish")

    def get_extra_state(self) -> _State:
        """Save what is no tensor."""
        own: _State = {"found_scale": self.found_scale, "quantizes": self.quantizes, "masked": self.masked}
        return {**super().get_extra_state(), **own}

    def set_extra_state(self, state: _State) -> None:
        """Load what is no tensor."""
        super().set_extra_state(state)
        self.found_scale, self.quantizes, self.masked = state["found_scale"], state["quantizes"], state["masked"]

    def on_grid(self) -> kernels.Scale:
        """Return scale and zero point as a runtime has them."""
        return kernels.Scale(self.positive_scale.detach().float(), self.zero_point.float())

    def extra_repr(self) -> str:
        """Name the value, the format and the range."""
        kind = self.form.name if self.quantizes else "watched"
        bounds = f", range=({self.bounds[0]:.4g}, {self.bounds[1]:.4g})" if self.calibrated else ", not calibrated"
        return f"{self.label}, {kind}{bounds}"


def scale_of(low: float, high: float, form: NumberFormat) -> tuple[float, float]:
    """Return scale and zero point for a range; a range of nothing gets the scale 1, never 0 and never NaN."""
    low, high = min(low, 0.0), max(high, 0.0)
    if form.precision is Precision.FP8 or form.signed:
        scale = max(-low, high) / form.high
        return (scale if scale >= SMALLEST_SCALE else 1.0), 0.0
    scale = (high - low) / (form.high - form.low)
    if scale < SMALLEST_SCALE:
        return 1.0, 0.0
    return scale, float(min(max(round(form.low - low / scale), form.low), form.high))


@dataclass(frozen=True)
class Grid:
    """The stubs around a layer that its target runs on integers."""

    inputs: tuple[QuantStub, ...]  # on the values it reads
    output: QuantStub | None  # on its result, `None` when the result is float

    def active(self, *values: torch.Tensor) -> bool:
        """Say whether the layer computes on integers of eight bits now."""
        stubs = self.inputs if self.output is None else (*self.inputs, self.output)
        return all(stub.mode is Mode.QUANTIZE and stub.form.precision is Precision.INT8 for stub in stubs) and all(
            value.dtype == torch.float32 for value in values
        )


class WeightQuantizer(Quantizer):
    """Quantizes a weight symmetrically, per output channel, per tensor or per block of the input dimension.

    Attributes:
        axis: The output channel's dimension, `None` for one scale.
        block: Elements of dimension 1 that share a scale; 0 for whole channels.
        follows: While training, the scale follows the weight; otherwise it stays as calibrated (or is learned).
        fitted: Integers that a target's file has in the place of the rounded weight, until the weight is trained.
        own_scale: The scale of the weight itself while others are fitted.
    """

    ratio: torch.Tensor
    fitted: torch.Tensor | None
    own_scale: torch.Tensor | None

    def __init__(self, form: NumberFormat, axis: int | None, block: int = 0) -> None:
        super().__init__(form)
        self.axis = axis
        self.block = block
        self.follows = True
        self.register_buffer("ratio", torch.ones(()))
        self.register_buffer("fitted", None)
        self.register_buffer("own_scale", None)

    @property
    def has_eight_bits(self) -> bool:
        """Whether weights are integers of eight bits now, with a scale per channel or one for all."""
        return self.mode is not Mode.FLOAT and self.form.precision is Precision.INT8 and not self.block

    def calibrate(self, weight: torch.Tensor, ratio: torch.Tensor | None = None) -> None:
        """Take the scale from a weight; `ratio` is the part of each channel's peak that is kept."""
        self.calibrate_peak(self.peak(weight.detach()), ratio)

    def calibrate_peak(self, peak: torch.Tensor, ratio: torch.Tensor | None = None) -> None:
        """Take the scale from the peaks of a weight."""
        with torch.no_grad():
            self.ratio = torch.ones_like(peak) if ratio is None else ratio
            self._set_scale(self._scale_for(peak))
        self.fitted = self.own_scale = None
        self.calibrated = True
        self.mode = Mode.QUANTIZE

    def fit(self, codes: torch.Tensor, scale: torch.Tensor) -> None:
        """Take the integers that a target's file has; the weight itself stays for other targets."""
        self.own_scale = self.scale.detach().clone()
        self.fitted = codes
        self._set_scale(scale.to(self.scale))

    def unfit(self) -> None:
        """Round the weight itself again."""
        if self.fitted is not None:
            self.fitted = None
            assert self.own_scale is not None
            self._set_scale(self.own_scale)
            self.own_scale = None

    def reduced(self, value: torch.Tensor, reduce: Callable[..., torch.Tensor]) -> torch.Tensor:
        """Reduce every group of elements that shares a scale to one number, by ``torch.amax`` or ``torch.sum``."""
        if self.block:
            return reduce(value.reshape(value.shape[0], -1, self.block), 2)
        if self.axis is None:
            return reduce(value, list(range(value.ndim)))
        return reduce(value, [dim for dim in range(value.ndim) if dim != self.axis])

    def peak(self, weight: torch.Tensor) -> torch.Tensor:
        """Return the largest magnitude of every group of elements that shares a scale."""
        return self.reduced(weight.abs(), torch.amax)

    def _scale_for(self, peak: torch.Tensor) -> torch.Tensor:
        return peak_scale(peak, self.ratio, self.form)

    def _set_scale(self, scale: torch.Tensor) -> None:
        if isinstance(self.scale, nn.Parameter):
            self.scale.data = scale
        elif self.scale.shape == scale.shape and self.scale.device == scale.device:
            # In place: a captured graph and DistributedDataParallel know the buffer by its address.
            self.scale.copy_(scale)
        else:
            self.scale = scale

    def spread(self, scale: torch.Tensor, weight: torch.Tensor) -> torch.Tensor:
        """Shape scales so that they broadcast against the weight."""
        if self.block:
            return scale.repeat_interleave(self.block, 1)
        if self.axis is None:
            return scale
        return scale.reshape([-1 if dim == self.axis else 1 for dim in range(weight.ndim)])

    def is_by_row(self) -> bool:
        """Say whether dimension 0 of the weight has a scale for every element."""
        return self.axis == 0 and not self.block and self.ratio.ndim == 1

    def forward(self, weight: torch.Tensor, norm: Norm | None = None) -> torch.Tensor:
        """Quantize and dequantize, or pass on; `norm` is folded in before and divided out after, by row alone."""
        if not self.rounds:
            return weight
        if self.training:
            self.unfit()
        scale = self.scale
        follows = self.training and self.follows and not isinstance(scale, nn.Parameter)
        if self.is_by_row() and self.fitted is None:
            if torch.compiler.is_compiling():
                return self._traced(weight, norm, follows)
            if not follows:
                return fake_quantize_rows(weight, norm, scale, self.ratio, self.form)
            if scale.shape != weight.shape[:1] or scale.device != weight.device:
                self._set_scale(scale := torch.ones(weight.shape[0], dtype=scale.dtype, device=weight.device))
            return fake_quantize_rows(weight, norm, None, self.ratio, self.form, scale)
        if follows:
            # Rounded with what was computed, not with the buffer: a second pass before the backward changes that.
            scale = self._scale_for(self.peak(weight.detach()))
            self._set_scale(scale)
            return self._by(scale, weight)
        return self.rounded(weight)

    def _traced(self, weight: torch.Tensor, norm: Norm | None, follows: bool) -> torch.Tensor:
        rounded, used = traced_rows(weight, norm, None if follows else self.scale, self.ratio, self.plain_form())
        if follows:
            self._set_scale(used)
        return rounded

    def row_weight(self, weight: torch.Tensor, norm: Norm | None) -> RowWeight | None:
        """Return what can be rounded together with other weights; `None` where `forward` does more than that."""
        if self.mode is Mode.FLOAT or not (self.training and self.follows) or self.axis != 0 or self.block:
            return None
        buffers = self._buffers  # a scale that is learned is none of them
        scale, ratio = buffers.get("scale"), buffers["ratio"]
        if scale is None or ratio is None or buffers["fitted"] is not None:
            return None
        if self._forward_hooks or self._forward_pre_hooks or ratio.ndim != 1 or scale.shape != ratio.shape:
            return None
        if scale.get_device() != weight.get_device():
            return None
        return RowWeight(weight, norm, ratio, self.form, scale)

    def rounded(self, weight: torch.Tensor) -> torch.Tensor:
        """Quantize and dequantize, whatever the mode."""
        if self.fitted is not None:
            # The gradient is the weight's, straight through.
            return weight + (self.fitted.to(weight.dtype) * self.spread(self.positive_scale, weight) - weight).detach()
        return self._by(self.scale, weight)

    def _by(self, scale: torch.Tensor, weight: torch.Tensor) -> torch.Tensor:
        return fake_quantize(weight, self.spread(scale, weight), torch.zeros((), device=weight.device), self.form)

    def codes(self, weight: torch.Tensor) -> torch.Tensor:
        """Return the integers (or FP8 values) a runtime stores."""
        if self.fitted is not None:
            return self.fitted.to(weight.dtype)
        scale = self.spread(self.positive_scale.detach(), weight)
        return quantized_codes(weight.detach(), scale, torch.zeros((), device=weight.device), self.form)

    def get_extra_state(self) -> _State:
        """Save what is no tensor."""
        return {**super().get_extra_state(), "axis": self.axis, "block": self.block, "follows": self.follows}

    def set_extra_state(self, state: _State) -> None:
        """Load what is no tensor; scales mean nothing spread over other elements."""
        super().set_extra_state(state)
        self.axis, self.block = state["axis"], state["block"]
        self.follows = state.get("follows", True)

    def _load_from_state_dict(self, state_dict: dict[str, torch.Tensor], prefix: str, *rest: Any) -> None:
        """Take scales of any shape: an uncalibrated quantizer does not know its own yet."""
        for name in ("fitted", "own_scale"):
            saved = state_dict.get(prefix + name)
            setattr(self, name, None if saved is None else torch.empty_like(saved))
        for name in ("scale", "ratio"):
            saved = state_dict.get(prefix + name)
            if saved is not None and saved.shape != getattr(self, name).shape:
                getattr(self, name).data = torch.ones_like(saved)
        super()._load_from_state_dict(state_dict, prefix, *rest)

    def extra_repr(self) -> str:
        """Name the format and how scales are shared."""
        shared = f"blocks of {self.block}" if self.block else "tensor" if self.axis is None else "channel"
        return f"{self.form.name} per {shared}"
