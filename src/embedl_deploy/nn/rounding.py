"""Fake quantization with gradients: one definition in plain torch, and implementations that must give the same bits.

The reference is what the CPU runs and what a compiler is shown, which makes one kernel of it by itself. On a GPU every
operator is a launch, so `embedl_deploy.nn.triton_kernels` has one kernel forward and one backward for each quantizer.
torch's own `fake_quantize_per_tensor_affine` is no implementation: it multiplies by 1/scale, and a value on the edge
of a rounding falls to the other side.

Half-precision values are divided and rounded in float32: a quotient in bfloat16 has no more digits than the code.
"""

import functools
import importlib.util
from collections.abc import Callable, Sequence
from contextlib import AbstractContextManager
from dataclasses import dataclass
from typing import Any, NamedTuple

import torch

from embedl_deploy.nn.number import NumberFormat, PlainFormat, Precision, quantized_codes

SMALLEST_SCALE = 2.0**-100
_MOST_ELEMENTS = 2**31
_SOURCE = "_edgeproof_rounded_from"


class Norm(NamedTuple):
    """The batch norm whose factor is folded into a weight before it is rounded, and divided out again."""

    gamma: torch.Tensor | None
    variance: torch.Tensor
    epsilon: float


class RowGradients(NamedTuple):
    """The gradients of a weight that was rounded row by row; `None` where nobody asked."""

    weight: torch.Tensor
    gamma: torch.Tensor | None
    scale: torch.Tensor | None


class RowWeight(NamedTuple):
    """A weight that is rounded row by row, with scales from the peaks of its rows."""

    weight: torch.Tensor
    norm: Norm | None
    ratio: torch.Tensor  # the part of a row's peak that is kept
    form: NumberFormat
    copy: torch.Tensor  # where the scales that were used are noted


class Unfinished(NamedTuple):
    """A contiguous value, and what happens to it before it is seen."""

    value: torch.Tensor
    bias: torch.Tensor | None  # added to every channel, which are dimension 1
    other: torch.Tensor | None  # then added; of the same shape and type
    top: float | None  # then cut at zero and here, as in `Implementation.masked_values`


Rows = tuple[torch.Tensor, torch.Tensor, torch.Tensor | None]
RowsOf = Callable[
    [torch.Tensor, Norm | None, torch.Tensor | None, torch.Tensor, NumberFormat, torch.Tensor | None], Rows
]
RowGradientsOf = Callable[
    [torch.Tensor, torch.Tensor, torch.Tensor | None, torch.Tensor | None, torch.Tensor, NumberFormat, bool, bool],
    RowGradients,
]


@dataclass(frozen=True)
class Implementation:
    """Who computes fake quantization: forward bits are those of `REFERENCE`, gradients agree to a part in a million.

    Scales may be of any sign and size, as an optimizer leaves them; what is divided by is `usable(scale)`.
    """

    name: str
    values: Callable[[torch.Tensor, torch.Tensor, torch.Tensor, NumberFormat], torch.Tensor]
    """(value, scale, zero point, format): the rounded value."""
    masked_values: Callable[
        [torch.Tensor, torch.Tensor, torch.Tensor, NumberFormat, torch.Tensor | None, float | None],
        tuple[torch.Tensor, torch.Tensor],
    ]
    """(…, what is added to the value first, where it is then cut): the same, and which gradients pass, in its own form.

    The sum is cut at zero and at that height: infinity for a ReLU, 6 for a ReLU6; `None` cuts nothing.
    """
    inside_gradients: Callable[[torch.Tensor, torch.Tensor, tuple[int, ...]], torch.Tensor]
    """(gradient, what the function before gave, strides of the rounded value): the gradient of the value."""
    value_gradients: Callable[
        [torch.Tensor, torch.Tensor, torch.Tensor, torch.Tensor, NumberFormat, bool],
        tuple[torch.Tensor, torch.Tensor | None],
    ]
    """(gradient, value, scale, zero point, format, scale is learned): gradients of the value and of the scale."""
    rows: RowsOf
    """(weight, batch norm, scale, ratio, format, copy): the rounded weight, the scale of every row, 1/deviation.

    Without a scale, it is the row's peak times the ratio over the largest code. Scales are written to the copy too.
    """
    row_gradients: RowGradientsOf
    """(gradient, weight, gamma, 1/deviation, scale, format, gamma is learned, scale is learned)."""
    rows_together: Callable[[Sequence[RowWeight]], tuple[list[torch.Tensor], list[torch.Tensor | None]]]
    """Round several weights: the rounded ones, and what `together_gradients` wants to have of it."""
    together_gradients: Callable[
        [
            Sequence[torch.Tensor | None],
            Sequence[torch.Tensor],
            Sequence[torch.Tensor | None],
            Sequence[torch.Tensor | None],
            NumberFormat,
            Sequence[bool],
        ],
        list[RowGradients | None],
    ]
    """(gradients, weights, gammas, what `rows_together` kept, format, gammas that are learned)."""
    see: Callable[[torch.Tensor, int, int, torch.Tensor, int, torch.Tensor, int], None]
    """(contiguous value, first, step, bounds, slot, samples, place): note its extremes and every `step`-th element.

    Least values of its parts go to ``bounds[slot, 0]``, largest to ``bounds[slot, 1]``, elements to `samples` from
    `place` on.
    """
    parts: int
    """How many parts that are."""
    see_finished: (
        Callable[
            [Unfinished, torch.Tensor, int, int, torch.Tensor, int, torch.Tensor, int],
            None,
        ]
        | None
    )
    """(what is left to do, result, …): do it, write the result, and note of it what `see` notes; `None` where that is
    no faster than one after the other."""
    counted: Callable[[torch.Tensor, list[int], list[int], list[int], list[int], int], torch.Tensor]
    """(samples, where each begins, their lengths, the row of each, exponents of rows, half of the bins): counts."""


def usable(scale: torch.Tensor) -> torch.Tensor:
    """Return the scale to divide by: a step of the optimizer may carry a learned one to zero and past it."""
    return scale.abs().clamp(min=SMALLEST_SCALE)


def is_dense(value: torch.Tensor) -> bool:
    """Say whether a tensor's elements are one piece of memory, in whatever order of dimensions."""
    if value.is_contiguous():
        return True
    expected = 1
    for stride, size in sorted(zip(value.stride(), value.shape, strict=True)):
        if size != 1:
            if stride != expected:
                return False
            expected *= size
    return True


def _wide(value: torch.Tensor) -> torch.Tensor:
    return value.float() if value.dtype in (torch.float16, torch.bfloat16) else value


def _values(value: torch.Tensor, scale: torch.Tensor, zero_point: torch.Tensor, form: NumberFormat) -> torch.Tensor:
    wide = _wide(value)
    used = usable(scale).to(wide.dtype)
    # In place on what was just made: this is bound by memory, not by arithmetic.
    return quantized_codes(wide, used, zero_point.to(wide.dtype), form).mul_(used).to(value.dtype)


def _masked_values(
    value: torch.Tensor,
    scale: torch.Tensor,
    zero_point: torch.Tensor,
    form: NumberFormat,
    other: torch.Tensor | None,
    top: float | None,
) -> tuple[torch.Tensor, torch.Tensor]:
    total = value if other is None else value + other
    cut = total if top is None else total.clamp(0.0, top)
    wide = _wide(cut)
    ratio, point = wide / usable(scale).to(wide.dtype), zero_point.to(wide.dtype)
    inside = (ratio >= form.low - point) & (ratio <= form.high - point)
    if top is not None:
        inside &= (total > 0) & (total < top)
    return _values(cut, scale, zero_point, form), inside


def _inside_gradients(grad: torch.Tensor, inside: torch.Tensor, _stride: tuple[int, ...]) -> torch.Tensor:
    return grad * inside


def damping(elements: int, scales: int, form: NumberFormat | PlainFormat) -> float:
    """Return what the gradient of a scale is multiplied with.

    Without it a scale, which every element pulls at, moves far faster than the weights.
    """
    return float((elements / scales * form.high) ** -0.5)


def _value_gradients(
    grad: torch.Tensor,
    value: torch.Tensor,
    scale: torch.Tensor,
    zero_point: torch.Tensor,
    form: NumberFormat,
    learned: bool,
) -> tuple[torch.Tensor, torch.Tensor | None]:
    """Pass gradients of values inside the range; a scale gets the gradient of learned step size quantization."""
    wide = _wide(value)
    used, point = usable(scale).to(wide.dtype), zero_point.to(wide.dtype)
    ratio = wide / used
    inside = (ratio >= form.low - point) & (ratio <= form.high - point)
    if not learned:
        return grad * inside, None
    codes = quantized_codes(wide, used, point, form)
    slope = torch.where(inside, codes - ratio, codes) * _wide(grad)
    total = _sum_to(slope, scale.shape) * damping(value.numel(), scale.numel(), form)
    return grad * inside, _signed(total, scale)


def _sum_to(value: torch.Tensor, shape: torch.Size) -> torch.Tensor:
    """Sum over what was broadcast, in float64: the order of a float32 sum would show in the seventh digit."""
    lead = value.ndim - len(shape)
    wanted = [1] * lead + list(shape)
    dims = [dim for dim in range(value.ndim) if wanted[dim] == 1 and value.shape[dim] != 1]
    total = value.sum(dims, keepdim=True, dtype=torch.float64) if dims else value.double()
    return total.reshape(shape)


def _signed(total: torch.Tensor, scale: torch.Tensor) -> torch.Tensor:
    """Return the gradient of a scale from that of its usable magnitude."""
    return torch.where(scale.abs() >= SMALLEST_SCALE, total * scale.sign(), 0.0).to(scale.dtype)


def peak_scale(peak: torch.Tensor, ratio: torch.Tensor, form: NumberFormat | PlainFormat) -> torch.Tensor:
    """Scale so that a part of the peak meets the largest code; a channel of zeros gets the scale 1."""
    # By a tensor: on a GPU torch divides by a plain number with a product, and the last bit is another than here.
    scale = peak * ratio / torch.full((), form.high, dtype=peak.dtype, device=peak.device)
    return torch.where(scale >= SMALLEST_SCALE, scale, torch.ones_like(scale))


def _by_row(row: torch.Tensor, like: torch.Tensor) -> torch.Tensor:
    return row.reshape(-1, *[1] * (like.ndim - 1))


def inverse_deviation(variance: torch.Tensor, epsilon: float) -> torch.Tensor:
    """Return what a batch norm multiplies with, to the bit on every processor.

    Not by rsqrt, which processors round differently; nor, on a CPU, by the square root of float32, which torch has from
    MKL: on AMD's, every fifth is a bit off.
    """
    total = variance + epsilon
    root = total.double().sqrt().to(total.dtype) if total.device.type == "cpu" else total.sqrt()
    return 1 / root


def norm_factor(gamma: torch.Tensor | None, inverse: torch.Tensor) -> torch.Tensor:
    """Return what a weight is multiplied with and divided by; a channel that is multiplied with zero stays as it is."""
    factor = inverse if gamma is None else inverse * gamma
    return torch.where(factor.abs() < SMALLEST_SCALE, torch.ones_like(factor), factor)


def _rows(
    weight: torch.Tensor,
    norm: Norm | None,
    scale: torch.Tensor | None,
    ratio: torch.Tensor,
    form: NumberFormat,
    copy: torch.Tensor | None,
) -> Rows:
    value, inverse, factor = _wide(weight), None, None
    if norm is not None:
        inverse = inverse_deviation(norm.variance, norm.epsilon)
        factor = _by_row(norm_factor(norm.gamma, inverse), weight)
        value = value * factor
    used = peak_scale(value.abs().flatten(1).amax(1), ratio, form) if scale is None else usable(scale)
    if copy is not None:
        copy.copy_(used)
    spread = _by_row(used, weight).to(value.dtype)
    zero = torch.zeros((), device=weight.device)
    rounded = quantized_codes(value, spread, zero, form).mul_(spread)
    if factor is not None:
        rounded = rounded / factor
    return rounded.to(weight.dtype), used, inverse


def _row_gradients(
    grad: torch.Tensor,
    weight: torch.Tensor,
    gamma: torch.Tensor | None,
    inverse: torch.Tensor | None,
    used: torch.Tensor,
    form: NumberFormat,
    wants_gamma: bool,
    wants_scale: bool,
) -> RowGradients:
    factor = None if inverse is None else norm_factor(gamma, inverse)
    value = _wide(weight) if factor is None else _wide(weight) * _by_row(factor, weight)
    spread = _by_row(used, weight).to(value.dtype)
    ratio = value / spread
    inside = (ratio >= form.low) & (ratio <= form.high)
    of_gamma = of_scale = None
    if wants_gamma or wants_scale:
        codes = quantized_codes(value, spread, torch.zeros((), device=weight.device), form)
        wide = _wide(grad)
        over = torch.ones((), dtype=torch.float64, device=weight.device) if factor is None else factor.double()
        if wants_gamma:
            assert gamma is not None
            assert inverse is not None
            slope = (torch.where(inside, value, 0.0) - codes * spread) * wide
            total = slope.flatten(1).sum(1, dtype=torch.float64) / (over * over) * inverse
            of_gamma = torch.where((inverse * gamma).abs() < SMALLEST_SCALE, 0.0, total).to(gamma.dtype)
        if wants_scale:
            slope = torch.where(inside, codes - ratio, codes) * wide
            total = slope.flatten(1).sum(1, dtype=torch.float64) / over
            of_scale = total * damping(weight.numel(), used.numel(), form)
    return RowGradients(grad * inside, of_gamma, of_scale)


def rows_one_by_one(rows: RowsOf, parts: Sequence[RowWeight]) -> tuple[list[torch.Tensor], list[torch.Tensor | None]]:
    """Round several weights one after the other."""
    found = [rows(part.weight, part.norm, None, part.ratio, part.form, part.copy) for part in parts]
    return [one[0] for one in found], [*[one[1] for one in found], *[one[2] for one in found]]


def gradients_one_by_one(
    row_gradients: RowGradientsOf,
    grads: Sequence[torch.Tensor | None],
    weights: Sequence[torch.Tensor],
    gammas: Sequence[torch.Tensor | None],
    kept: Sequence[torch.Tensor | None],
    form: NumberFormat,
    wants: Sequence[bool],
) -> list[RowGradients | None]:
    """Return the gradients of several weights, one after the other."""
    found: list[RowGradients | None] = []
    for grad, weight, gamma, used, inverse, wanted in zip(
        grads, weights, gammas, kept[: len(weights)], kept[len(weights) :], wants, strict=True
    ):
        assert used is not None
        found.append(None if grad is None else row_gradients(grad, weight, gamma, inverse, used, form, wanted, False))
    return found


def _see(
    value: torch.Tensor, first: int, step: int, bounds: torch.Tensor, slot: int, samples: torch.Tensor, place: int
) -> None:
    bounds[slot, 0, 0], bounds[slot, 1, 0] = torch.aminmax(value)
    kept = value.reshape(-1)[first::step]
    samples[place : place + len(kept)] = kept


def _counted(
    samples: torch.Tensor, starts: list[int], lengths: list[int], rows: list[int], exponents: list[int], half: int
) -> torch.Tensor:
    joined = torch.cat([samples[start : start + length] for start, length in zip(starts, lengths, strict=True)])
    device, total = joined.device, joined.numel()
    # A product with a power of two is exact, unless a tiny value becomes zero in it and so leaves its bin.
    exact = torch.float32 if max(exponents) <= 0 and joined.dtype != torch.float64 else torch.float64
    owners, sizes = torch.tensor(rows, device=device), torch.tensor(lengths, device=device)
    factors = torch.tensor([2.0**-exponent for exponent in exponents], dtype=exact, device=device)[owners]
    index = joined.to(exact).mul(factors.repeat_interleave(sizes, output_size=total)).floor_().to(torch.int32)
    index += (owners * (2 * half) + half).int().repeat_interleave(sizes, output_size=total)
    return torch.bincount(index, minlength=2 * half * len(exponents)).reshape(len(exponents), -1)


REFERENCE = Implementation(
    "reference", _values, _masked_values, _inside_gradients, _value_gradients, _rows, _row_gradients,
    functools.partial(rows_one_by_one, _rows), functools.partial(gradients_one_by_one, _row_gradients), _see, 1,
    None, _counted,
)  # fmt: skip


@functools.cache
def _has_triton() -> bool:
    return importlib.util.find_spec("triton") is not None


def implementations() -> dict[str, Implementation]:
    """Return every implementation that can be imported here, by name."""
    found = [REFERENCE]
    if _has_triton():
        found.append(_triton())
    return {one.name: one for one in found}


def implementation_for(value: torch.Tensor, form: NumberFormat | None = None) -> Implementation:
    """Return who rounds or watches a value: Triton on a GPU, the reference elsewhere, for FP8 and for compilers."""
    if not value.is_cuda or torch.compiler.is_compiling() or not _has_triton():
        return REFERENCE
    if form is not None and form.precision is Precision.FP8:
        return REFERENCE
    if value.dtype == torch.float64 or not 0 < value.numel() < _MOST_ELEMENTS:
        return REFERENCE
    return _triton()


@functools.cache
def _triton() -> Implementation:
    from embedl_deploy.nn.triton_kernels import TRITON  # noqa: PLC0415 - triton comes with torch for GPUs alone

    return TRITON


class _Values(torch.autograd.Function):
    """Round in the forward pass; straight through in the backward pass, with the learned-step gradient for scales."""

    @staticmethod
    def forward(
        ctx: Any,
        value: torch.Tensor,
        scale: torch.Tensor,
        zero_point: torch.Tensor,
        form: NumberFormat,
        by: Implementation,
    ) -> torch.Tensor:
        ctx.save_for_backward(value, scale, zero_point)
        ctx.form, ctx.by = form, by
        return by.values(value, scale, zero_point, form)

    @staticmethod
    def backward(ctx: Any, *grads: torch.Tensor) -> tuple[torch.Tensor | None, ...]:
        value, scale, zero_point = ctx.saved_tensors
        of_value, of_scale = ctx.by.value_gradients(
            grads[0], value, scale, zero_point, ctx.form, ctx.needs_input_grad[1]
        )
        return of_value, of_scale, None, None, None


class _Masked(torch.autograd.Function):
    """As `_Values` with a scale that is not learned, keeping a mask instead of the value."""

    @staticmethod
    def forward(
        ctx: Any,
        value: torch.Tensor,
        other: torch.Tensor | None,
        scale: torch.Tensor,
        zero_point: torch.Tensor,
        form: NumberFormat,
        by: Implementation,
        top: float | None,
    ) -> torch.Tensor:
        rounded, inside = by.masked_values(value, scale, zero_point, form, other, top)
        ctx.save_for_backward(inside)
        ctx.by, ctx.layout = by, rounded.stride()
        return rounded

    @staticmethod
    def backward(ctx: Any, *grads: torch.Tensor) -> tuple[torch.Tensor | None, ...]:
        (inside,) = ctx.saved_tensors
        found = ctx.by.inside_gradients(grads[0], inside, ctx.layout)
        return found, found if ctx.needs_input_grad[1] else None, None, None, None, None, None


# Past the wrapper that `torch.func` needs and nothing else does: it takes as long as a launch.
_apply_masked: Any = super(torch.autograd.Function, _Masked).apply


def _masked(*args: Any) -> Any:
    if torch._C._are_functorch_transforms_active():
        return _Masked.apply(*args)  # type: ignore[no-untyped-call]
    return _apply_masked(*args)


class _Rows(torch.autograd.Function):
    """Round a weight row by row, with a batch norm folded in and divided out."""

    @staticmethod
    def forward(
        ctx: Any,
        weight: torch.Tensor,
        gamma: torch.Tensor | None,
        scale: torch.Tensor | None,
        norm: Norm | None,
        ratio: torch.Tensor,
        form: NumberFormat,
        copy: torch.Tensor | None,
        by: Implementation,
    ) -> torch.Tensor:
        rounded, used, inverse = by.rows(weight, norm, scale, ratio, form, copy)
        ctx.save_for_backward(weight, gamma, inverse, used, scale)
        ctx.form, ctx.by = form, by
        return rounded

    @staticmethod
    def backward(ctx: Any, *grads: torch.Tensor) -> tuple[torch.Tensor | None, ...]:
        weight, gamma, inverse, used, scale = ctx.saved_tensors
        wants = ctx.needs_input_grad
        found = ctx.by.row_gradients(grads[0], weight, gamma, inverse, used, ctx.form, wants[1], wants[2])
        of_scale = None if found.scale is None else _signed(found.scale, scale)
        return found.weight, found.gamma, of_scale, None, None, None, None, None


@dataclass
class Token:
    """Whether the backward pass of weights that were rounded together has begun."""

    used: bool = False


class _Together(torch.autograd.Function):
    """Round several weights row by row, as `_Rows` does each, and pass the factors of their batch norms on.

    A batch norm that reads its factor here has the gradient of its own added to that of the rounding in one step for
    all, and not in one for each, as a tensor that is read twice has it.
    """

    @staticmethod
    def forward(
        ctx: Any, parts: Sequence[RowWeight], by: Implementation, token: Token, *tensors: torch.Tensor | None
    ) -> tuple[torch.Tensor, ...]:
        rounded, kept = by.rows_together(parts)
        ctx.save_for_backward(*tensors, *kept)
        ctx.form, ctx.by, ctx.token, ctx.count = parts[0].form, by, token, len(parts)
        ctx.set_materialize_grads(False)
        return *rounded, *[each.view_as(each) for each in tensors[len(parts) :] if each is not None]

    @staticmethod
    def backward(ctx: Any, *grads: torch.Tensor | None) -> tuple[torch.Tensor | None, ...]:
        ctx.token.used = True
        count, saved = ctx.count, ctx.saved_tensors
        weights, gammas, kept = saved[:count], saved[count : 2 * count], saved[2 * count :]
        wants = ctx.needs_input_grad[3 + count :]
        found = ctx.by.together_gradients(grads[:count], weights, gammas, kept, ctx.form, wants)
        of_weights = [None if one is None else one.weight for one in found]
        of_gammas = [None if one is None else one.gamma for one in found]
        if others := grads[count:]:
            both = [pair for pair in zip(of_gammas, others, strict=True) if pair[0] is not None and pair[1] is not None]
            if both:
                torch._foreach_add_(*[list(side) for side in zip(*both, strict=True)])
            of_gammas = [other if one is None else one for one, other in zip(of_gammas, others, strict=True)]
        return None, None, None, *of_weights, *of_gammas


def traced_values(
    value: torch.Tensor, scale: torch.Tensor, zero_point: torch.Tensor, form: NumberFormat | PlainFormat
) -> torch.Tensor:
    """Return the reference's values and gradients in operators alone, which every compiler differentiates alike.

    What is inside the range is asked here, with one comparison, and not by the gradient of a clamp: a compiler that
    lays out values for convolutions forgets a mask that only the backward pass asks for, and stores it across.
    """
    wide = _wide(value)
    used, point = usable(scale).to(wide.dtype), zero_point.to(wide.dtype)
    learned = scale.requires_grad and torch.is_grad_enabled()
    if learned:
        slow = used * damping(value.numel(), scale.numel(), form)
        used = slow + (used - slow).detach()
    ratio = wide / used
    bound = torch.clamp(ratio.detach(), form.low - point, form.high - point)
    whole = bound.to(torch.float8_e4m3fn).to(wide.dtype) if form.is_fp8 else bound.round()
    inside = ratio.detach() == bound
    if learned:
        # Exact: the difference of a number and its rounding has no more digits than the number.
        clipped = torch.where(inside, ratio, bound)
        return ((clipped + (whole - clipped).detach()) * used).to(value.dtype)
    rounded = whole * used.detach()
    if torch.is_grad_enabled() and value.requires_grad:
        passed = torch.where(inside, wide, 0.0)
        rounded = rounded + (passed - passed.detach())
    return rounded.to(value.dtype)


def traced_rows(
    weight: torch.Tensor,
    norm: Norm | None,
    scale: torch.Tensor | None,
    ratio: torch.Tensor,
    form: NumberFormat | PlainFormat,
) -> tuple[torch.Tensor, torch.Tensor]:
    """Return what `fake_quantize_rows` gives, likewise in operators alone, and the scales that were used."""
    value, factor = _wide(weight), None
    if norm is not None:
        factor = _by_row(norm_factor(norm.gamma, inverse_deviation(norm.variance, norm.epsilon)), weight)
        value = value * factor
    used = peak_scale(value.detach().abs().flatten(1).amax(1), ratio, form) if scale is None else scale
    rounded = traced_values(value, _by_row(used, weight), torch.zeros((), device=weight.device), form)
    return (rounded if factor is None else rounded / factor).to(weight.dtype), used.detach()


def fake_quantize(
    value: torch.Tensor, scale: torch.Tensor, zero_point: torch.Tensor, form: NumberFormat
) -> torch.Tensor:
    """Quantize and dequantize; `scale` and `zero_point` broadcast against `value`.

    Args:
        value: What is rounded.
        scale: The step between two codes; a parameter gets the gradient of learned step size quantization.
        zero_point: The code of zero.
        form: The number format.
    """
    by = REFERENCE if scale.ndim or zero_point.ndim else implementation_for(value, form)
    learned = scale.requires_grad
    if not ((value.requires_grad or learned) and torch.is_grad_enabled()):
        return by.values(value, scale, zero_point, form)
    if torch.compiler.is_compiling():
        return traced_values(value, scale, zero_point, form)
    # Where who made the value keeps it for its own backward pass, as a softmax does, keeping it here too is free.
    if not (learned or hasattr(value.grad_fn, "_saved_result")):
        masked: torch.Tensor = _masked(value, None, scale, zero_point, form, by, None)
        return masked
    result: torch.Tensor = _Values.apply(value, scale, zero_point, form, by)  # type: ignore[no-untyped-call]
    setattr(result, _SOURCE, (by, value, scale, zero_point, form))
    return result


def fake_quantize_after(
    other: torch.Tensor | None,
    top: float | None,
    value: torch.Tensor,
    scale: torch.Tensor,
    zero_point: torch.Tensor,
    form: NumberFormat,
) -> torch.Tensor:
    """Add, cut, quantize and dequantize as one step, with one scale that is not learned.

    Args:
        other: What is added first, of the same shape and type; `None` adds nothing.
        top: Where the sum is cut, as at zero: infinity for a ReLU, 6 for a ReLU6; `None` cuts nothing.
        value: What is rounded.
        scale: The step between two codes.
        zero_point: The code of zero.
        form: The number format.
    """
    by = implementation_for(value, form)
    rounded: torch.Tensor = _masked(value, other, scale, zero_point, form, by, top)
    return rounded


def fake_quantize_rows(
    weight: torch.Tensor,
    norm: Norm | None,
    scale: torch.Tensor | None,
    ratio: torch.Tensor,
    form: NumberFormat,
    copy: torch.Tensor | None = None,
) -> torch.Tensor:
    """Quantize and dequantize a weight with a scale for every row.

    Args:
        weight: Its dimension 0 is the one of the scales.
        norm: A batch norm whose factor is folded in before rounding and divided out afterwards.
        scale: The scales; `None` takes them from the peaks of the rows.
        ratio: The part of a row's peak that is kept.
        form: The number format.
        copy: Where the scales that were used are noted, in float32.
    """
    by = implementation_for(weight, form)
    gamma = None if norm is None else norm.gamma
    if torch.is_grad_enabled() and (
        weight.requires_grad
        or (gamma is not None and gamma.requires_grad)
        or (scale is not None and scale.requires_grad)
    ):
        found: torch.Tensor = _Rows.apply(weight, gamma, scale, norm, ratio, form, copy, by)  # type: ignore[no-untyped-call]
        return found
    return by.rows(weight, norm, scale, ratio, form, copy)[0]


def fake_quantize_together(
    parts: Sequence[RowWeight], token: Token
) -> tuple[tuple[torch.Tensor, ...], tuple[torch.Tensor | None, ...]]:
    """Quantize and dequantize several weights of one format, as `fake_quantize_rows` does each.

    Returns:
        The rounded weights, and the factors of their batch norms for these to read instead of their own.
    """
    gammas = [None if part.norm is None else part.norm.gamma for part in parts]
    by = implementation_for(parts[0].weight, parts[0].form)
    found: tuple[torch.Tensor, ...] = _Together.apply(  # type: ignore[no-untyped-call]
        parts, by, token, *[part.weight for part in parts], *gammas
    )
    count = len(parts)
    return found[:count], found[count:] or (None,) * count


def can_round_ahead() -> bool:
    """Say whether weights may be rounded before they are asked for: not under others' hooks.

    Checkpointing runs a part of the model again and must find it keeping the same.
    """
    return torch.is_grad_enabled() and not _has_hooks()


def kept_unrounded(*values: torch.Tensor) -> AbstractContextManager[object] | None:
    """Let what reads rounded values keep for its backward pass what they were rounded from, and round that again.

    The unrounded value is kept anyway, by its own rounding and by who made it: without this, training would need one
    more copy of it. `None` where there is no such value, or where others have such hooks in place (checkpointing).
    """
    if torch.compiler.is_compiling():
        return None
    known = {value.data_ptr(): value for value in values if hasattr(value, _SOURCE)}
    if not known or not torch.is_grad_enabled() or _has_hooks():
        return None
    # No reference to the rounded value itself: it is what should go.
    sources = {at: (value.numel(), value.dtype, getattr(value, _SOURCE)) for at, value in known.items()}

    def pack(saved: torch.Tensor) -> object:
        elements, dtype, source = sources.get(saved.data_ptr(), (0, None, None))
        if saved.numel() != elements or saved.dtype != dtype:
            return saved
        # A layer may keep a view: a matrix of what had more dimensions.
        return source, saved.shape, saved.stride()

    return torch.autograd.graph.saved_tensors_hooks(pack, _unpack)


def _unpack(packed: Any) -> torch.Tensor:
    if isinstance(packed, torch.Tensor):
        return packed
    (by, *rest), shape, stride = packed
    with torch.no_grad():
        return torch.as_strided(by.values(*rest), shape, stride)


def _has_hooks() -> bool:
    return torch._C._autograd._top_saved_tensors_default_hooks(True) is not None
