"""Fake quantization on a GPU: one Triton kernel forward and one backward for each quantizer, one for each observer.

Bits are the reference's: divisions round to nearest (Triton's plain division does not), ties go to the even code, and
sums over a row or a tensor are in float64 and always in the same order.
"""

import itertools
from typing import Any

import torch
import triton
import triton.language as tl

from embedl_deploy.nn.number import NumberFormat
from embedl_deploy.nn.rounding import SMALLEST_SCALE, Implementation, Norm, RowGradients, Rows, Seen, damping

_BLOCK = 4096
_WATCHERS = 528  # four for each multiprocessor of the largest GPUs
_SMALLEST = tl.constexpr(SMALLEST_SCALE)
# Adding it to a number below 2^22 leaves no room for a fraction, and the sum rounds half to even.
_WHOLE = tl.constexpr(1.5 * 2.0**23)


@triton.jit
def _round_to_codes(ratio, low, high):  # type: ignore[no-untyped-def]
    # Borders are whole numbers, so clipping before rounding is clipping after it.
    clipped = tl.clamp(ratio, low, high, propagate_nan=tl.PropagateNan.ALL)
    whole = (clipped + _WHOLE) - _WHOLE
    # What rounds to zero keeps its sign.
    return tl.where(whole == 0.0, clipped * 0.0, whole)


@triton.jit(do_not_specialize_on_alignment=["scale_at", "zero_at"])  # type: ignore[untyped-decorator]
def _round_values(  # type: ignore[no-untyped-def]
    x, y, inside_at, scale_at, zero_at, count, low, high, MASK: tl.constexpr, BLOCK: tl.constexpr
):
    place = tl.program_id(0).to(tl.int64) * BLOCK + tl.arange(0, BLOCK)
    here = place < count
    scale = tl.maximum(tl.abs(tl.load(scale_at).to(tl.float32)), _SMALLEST)
    zero = tl.load(zero_at).to(tl.float32)
    value = tl.load(x + place, mask=here, other=0.0).to(tl.float32)
    ratio = tl.div_rn(value, scale)
    codes = _round_to_codes(ratio, low - zero, high - zero)
    tl.store(y + place, (codes * scale).to(y.dtype.element_ty), mask=here)
    if MASK:
        inside = (ratio >= low - zero) & (ratio <= high - zero)
        tl.store(inside_at + place, inside.to(tl.int8), mask=here)


@triton.jit(do_not_specialize_on_alignment=["partial", "scale_at", "zero_at"])  # type: ignore[untyped-decorator]
def _value_gradients(  # type: ignore[no-untyped-def]
    g, x, dx, partial, scale_at, zero_at, count, low, high, LEARNED: tl.constexpr, BLOCK: tl.constexpr
):
    place = tl.program_id(0).to(tl.int64) * BLOCK + tl.arange(0, BLOCK)
    here = place < count
    scale = tl.maximum(tl.abs(tl.load(scale_at).to(tl.float32)), _SMALLEST)
    zero = tl.load(zero_at).to(tl.float32)
    value = tl.load(x + place, mask=here, other=0.0).to(tl.float32)
    grad = tl.load(g + place, mask=here, other=0.0)
    ratio = tl.div_rn(value, scale)
    inside = (ratio >= low - zero) & (ratio <= high - zero)
    tl.store(dx + place, tl.where(inside, grad, grad * 0.0), mask=here)
    if LEARNED:
        codes = _round_to_codes(ratio, low - zero, high - zero)
        slope = tl.where(inside, codes - ratio, codes) * grad.to(tl.float32)
        tl.store(partial + tl.program_id(0), tl.sum(slope.to(tl.float64), 0))


_ROW_VECTORS = ["gamma_at", "variance_at", "scale_at", "ratio_at", "used_at", "inverse_at"]


@triton.jit(do_not_specialize_on_alignment=_ROW_VECTORS)  # type: ignore[untyped-decorator]
def _round_rows(  # type: ignore[no-untyped-def]
    w, y, gamma_at, variance_at, scale_at, ratio_at, used_at, inverse_at, epsilon, columns, low, high,
    NORM: tl.constexpr, GAMMA: tl.constexpr, FOLLOWS: tl.constexpr, RATIOS: tl.constexpr, BLOCK: tl.constexpr,
):  # fmt: skip
    row = tl.program_id(0).to(tl.int64)
    start = row * columns
    factor = 1.0
    if NORM:
        inverse = tl.div_rn(1.0, tl.sqrt_rn(tl.load(variance_at + row) + epsilon))
        tl.store(inverse_at + row, inverse)
        factor = inverse
        if GAMMA:
            factor = inverse * tl.load(gamma_at + row).to(tl.float32)
        factor = tl.where(tl.abs(factor) < _SMALLEST, 1.0, factor)
    if FOLLOWS:
        peaks = tl.zeros([BLOCK], tl.float32)
        for first in range(0, columns, BLOCK):
            place = first + tl.arange(0, BLOCK)
            value = tl.load(w + start + place, mask=place < columns, other=0.0).to(tl.float32)
            if NORM:
                value = value * factor
            peaks = tl.maximum(peaks, tl.abs(value), propagate_nan=tl.PropagateNan.ALL)
        ratio = tl.load(ratio_at + row * RATIOS).to(tl.float32)
        scale = tl.div_rn(tl.max(peaks, 0) * ratio, high)
        scale = tl.where(scale >= _SMALLEST, scale, 1.0)
    else:
        scale = tl.maximum(tl.abs(tl.load(scale_at + row).to(tl.float32)), _SMALLEST)
    tl.store(used_at + row, scale)
    for first in range(0, columns, BLOCK):
        place = first + tl.arange(0, BLOCK)
        here = place < columns
        value = tl.load(w + start + place, mask=here, other=0.0).to(tl.float32)
        if NORM:
            value = value * factor
        rounded = _round_to_codes(tl.div_rn(value, scale), low, high) * scale
        if NORM:
            rounded = tl.div_rn(rounded, factor)
        tl.store(y + start + place, rounded.to(y.dtype.element_ty), mask=here)


@triton.jit(  # type: ignore[untyped-decorator]
    do_not_specialize_on_alignment=["gamma_at", "inverse_at", "used_at", "dgamma", "dscale"],
)
def _row_gradients(  # type: ignore[no-untyped-def]
    g, w, dw, gamma_at, inverse_at, used_at, dgamma, dscale, damp, columns, low, high,
    NORM: tl.constexpr, GAMMA: tl.constexpr, OF_GAMMA: tl.constexpr, OF_SCALE: tl.constexpr, BLOCK: tl.constexpr,
):  # fmt: skip
    row = tl.program_id(0).to(tl.int64)
    start = row * columns
    factor = 1.0
    inverse = 1.0
    plain = 1.0
    if NORM:
        inverse = tl.load(inverse_at + row)
        plain = inverse
        if GAMMA:
            plain = inverse * tl.load(gamma_at + row).to(tl.float32)
        factor = tl.where(tl.abs(plain) < _SMALLEST, 1.0, plain)
    scale = tl.load(used_at + row)
    of_gamma = tl.zeros([BLOCK], tl.float64)
    of_scale = tl.zeros([BLOCK], tl.float64)
    for first in range(0, columns, BLOCK):
        place = first + tl.arange(0, BLOCK)
        here = place < columns
        value = tl.load(w + start + place, mask=here, other=0.0).to(tl.float32)
        grad = tl.load(g + start + place, mask=here, other=0.0)
        if NORM:
            value = value * factor
        ratio = tl.div_rn(value, scale)
        inside = (ratio >= low) & (ratio <= high)
        tl.store(dw + start + place, tl.where(inside, grad, grad * 0.0), mask=here)
        if OF_GAMMA or OF_SCALE:
            codes = _round_to_codes(ratio, low, high)
            wide = grad.to(tl.float32)
            if OF_GAMMA:
                # The product is rounded before it is subtracted: a fused multiply-add would be a bit off.
                rounded = (codes * scale).to(tl.float64)
                apart = (tl.where(inside, value, 0.0).to(tl.float64) - rounded).to(tl.float32)
                of_gamma += (apart * wide).to(tl.float64)
            if OF_SCALE:
                of_scale += (tl.where(inside, codes - ratio, codes) * wide).to(tl.float64)
    if NORM:
        over = factor.to(tl.float64)  # type: ignore[attr-defined]
    if OF_GAMMA:
        total = tl.sum(of_gamma, 0) / (over * over) * inverse.to(tl.float64)  # type: ignore[attr-defined]
        total = tl.where(tl.abs(plain) < _SMALLEST, 0.0, total)
        tl.store(dgamma + row, total.to(dgamma.dtype.element_ty))
    if OF_SCALE:
        total = tl.sum(of_scale, 0)
        if NORM:
            total = total / over
        tl.store(dscale + row, total * damp)


@triton.jit  # type: ignore[untyped-decorator]
def _keep_inside(g, inside_at, dx, count, BLOCK: tl.constexpr):  # type: ignore[no-untyped-def]
    place = tl.program_id(0).to(tl.int64) * BLOCK + tl.arange(0, BLOCK)
    here = place < count
    grad = tl.load(g + place, mask=here, other=0.0)
    inside = tl.load(inside_at + place, mask=here, other=0) != 0
    tl.store(dx + place, tl.where(inside, grad, grad * 0.0), mask=here)


@triton.jit(  # type: ignore[untyped-decorator]
    do_not_specialize=["first", "step", "kept_count"], do_not_specialize_on_alignment=["bounds", "kept"]
)
def _watch(  # type: ignore[no-untyped-def]
    x, bounds, kept, count, first, step, kept_count, WATCHERS: tl.constexpr, BLOCK: tl.constexpr, FEW: tl.constexpr
):
    watcher = tl.program_id(0)
    lows = tl.full([BLOCK], float("inf"), tl.float32)
    highs = tl.full([BLOCK], float("-inf"), tl.float32)
    odd = tl.zeros([BLOCK], tl.int32)
    for block in range(watcher, tl.cdiv(count, BLOCK), WATCHERS):
        place = block * BLOCK + tl.arange(0, BLOCK)
        here = place < count
        value = tl.load(x + place, mask=here, other=0.0).to(tl.float32)
        lows = tl.minimum(lows, tl.where(here, value, float("inf")))
        highs = tl.maximum(highs, tl.where(here, value, float("-inf")))
        odd |= (value != value).to(tl.int32)
    least, most = tl.min(lows, 0), tl.max(highs, 0)
    strange = tl.max(odd, 0) > 0
    tl.store(bounds + watcher, tl.where(strange, float("nan"), least))
    tl.store(bounds + WATCHERS + watcher, tl.where(strange, float("nan"), most))
    for block in range(watcher, tl.cdiv(kept_count, FEW), WATCHERS):
        number = block * FEW + tl.arange(0, FEW)
        wanted = number < kept_count
        tl.store(kept + number, tl.load(x + first + number * step, mask=wanted), mask=wanted)


@triton.jit(  # type: ignore[untyped-decorator]
    do_not_specialize_on_alignment=["x", "starts", "rows", "factors", "counts"],
)
def _count_bins(x, starts, rows, factors, counts, HALF: tl.constexpr, BLOCK: tl.constexpr):  # type: ignore[no-untyped-def]
    part = tl.program_id(0)
    start, end = tl.load(starts + part), tl.load(starts + part + 1)
    row, factor = tl.load(rows + part), tl.load(factors + part)
    for first in range(tl.program_id(1) * BLOCK, end - start, tl.num_programs(1) * BLOCK):
        place = first + tl.arange(0, BLOCK)
        here = place < end - start
        value = tl.load(x + start + place, mask=here, other=0.0).to(tl.float64)
        bins = tl.floor(value * factor).to(tl.int64) + HALF
        # Half of what follows a ReLU is zero: all of it waiting for one address would take longer than the rest.
        middle = here & (bins == HALF)
        tl.atomic_add(counts + row * (2 * HALF) + HALF, tl.sum(middle.to(tl.int64), 0))
        ones = tl.full([BLOCK], 1, tl.int64)
        tl.atomic_add(counts + row * (2 * HALF) + bins, ones, mask=here & (bins != HALF))


_COMPILED: dict[tuple[Any, ...], Any] = {}


def _launch(kernel: Any, key: tuple[Any, ...], grid: int, args: tuple[Any, ...], warps: int) -> None:
    """Start a kernel; one that was compiled for arguments like these is called directly.

    Triton's own dispatch looks at every argument each time, which takes longer than most of these kernels run.
    """
    found = _COMPILED.get(key)
    if found is not None:
        found[(grid, 1, 1)](*args)
        return
    made = kernel[(grid,)](*args, num_warps=warps)
    if made is not None:  # an interpreter compiles nothing
        _COMPILED[key] = made


def _is_dense(value: torch.Tensor) -> bool:
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


def _laid_out(value: torch.Tensor, like: torch.Tensor) -> torch.Tensor:
    """Return a value with its elements where another has them."""
    return value if value.stride() == like.stride() else torch.empty_like(like, dtype=value.dtype).copy_(value)


def _kind(size: int, *tensors: torch.Tensor) -> tuple[Any, ...]:
    """Return what Triton compiles differently for: the device, types, and whether loads may be wide."""
    wide = size % 16 == 0, size == 1
    return (tensors[0].device.index, wide, *[(one.dtype, one.data_ptr() % 16) for one in tensors])


def _values(value: torch.Tensor, scale: torch.Tensor, zero_point: torch.Tensor, form: NumberFormat) -> torch.Tensor:
    return _round(value, scale, zero_point, form, None)


def _round(
    value: torch.Tensor, scale: torch.Tensor, zero_point: torch.Tensor, form: NumberFormat, inside: torch.Tensor | None
) -> torch.Tensor:
    if not _is_dense(value):
        value = value.contiguous()
    result, count, masks = torch.empty_like(value), value.numel(), inside is not None
    key = ("values", masks, *_kind(count, value), scale.dtype, zero_point.dtype)
    args = (value, result, inside, scale, zero_point, count, form.low, form.high, masks, _BLOCK)
    _launch(_round_values, key, -(-count // _BLOCK), args, 8)
    return result


def _masked_values(
    value: torch.Tensor, scale: torch.Tensor, zero_point: torch.Tensor, form: NumberFormat
) -> tuple[torch.Tensor, torch.Tensor]:
    if not _is_dense(value):
        value = value.contiguous()
    inside = torch.empty_like(value, dtype=torch.int8)
    return _round(value, scale, zero_point, form, inside), inside


def _gradients_of_values(
    grad: torch.Tensor,
    value: torch.Tensor,
    scale: torch.Tensor,
    zero_point: torch.Tensor,
    form: NumberFormat,
    learned: bool,
) -> tuple[torch.Tensor, torch.Tensor | None]:
    if not _is_dense(value):
        value = value.contiguous()
    grad, count = _laid_out(grad, value), value.numel()
    result, grid = torch.empty_like(grad), -(-count // _BLOCK)
    partial: Any = torch.empty(grid, dtype=torch.float64, device=value.device) if learned else None
    key = ("value gradients", learned, *_kind(count, grad, value), scale.dtype, zero_point.dtype)
    args = (grad, value, result, partial, scale, zero_point, count, form.low, form.high, learned, _BLOCK)
    _launch(_value_gradients, key, grid, args, 8)
    if not learned:
        return result, None
    total = partial.sum() * damping(count, scale.numel(), form)
    return result, torch.where(scale.abs() >= SMALLEST_SCALE, total * scale.sign(), 0.0).to(scale.dtype)


def _shape_of_rows(weight: torch.Tensor) -> tuple[int, int, int]:
    """Return rows, columns and the columns that a program takes at once."""
    rows = weight.shape[0]
    columns = weight.numel() // rows
    return rows, columns, min(max(1 << (columns - 1).bit_length(), 16), 2048)


def _has_rows(weight: torch.Tensor) -> bool:
    """Say whether every row is one piece of memory and follows the one before."""
    return _is_dense(weight) and (weight.shape[0] == 1 or weight.stride(0) == weight.numel() // weight.shape[0])


def _rows(
    weight: torch.Tensor, norm: Norm | None, scale: torch.Tensor | None, ratio: torch.Tensor, form: NumberFormat
) -> Rows:
    if not _has_rows(weight):
        weight = weight.contiguous()
    rows, columns, block = _shape_of_rows(weight)
    result = torch.empty_like(weight)
    used = torch.empty(rows, dtype=torch.float32, device=weight.device)
    inverse = None if norm is None else torch.empty_like(used)
    gamma, variance, epsilon = (None, None, 0.0) if norm is None else (norm.gamma, norm.variance, norm.epsilon)
    types = [None if one is None else one.dtype for one in (gamma, variance, scale, ratio)]
    key = ("rows", *_kind(columns, weight), *types, ratio.ndim, block)
    flags = (norm is not None, gamma is not None, scale is None, int(ratio.ndim > 0), block)
    args = (weight, result, gamma, variance, scale, ratio, used, inverse, epsilon, columns, form.low, form.high, *flags)
    _launch(_round_rows, key, rows, args, 4)
    return result, used, inverse


def _gradients_of_rows(
    grad: torch.Tensor,
    weight: torch.Tensor,
    gamma: torch.Tensor | None,
    inverse: torch.Tensor | None,
    used: torch.Tensor,
    form: NumberFormat,
    wants_gamma: bool,
    wants_scale: bool,
) -> RowGradients:
    if not _has_rows(weight):
        weight = weight.contiguous()
    rows, columns, block = _shape_of_rows(weight)
    grad = _laid_out(grad, weight)
    result = torch.empty_like(grad)
    of_gamma = torch.empty_like(gamma) if wants_gamma and gamma is not None else None
    of_scale = torch.empty(rows, dtype=torch.float64, device=weight.device) if wants_scale else None
    flags = (inverse is not None, gamma is not None, of_gamma is not None, wants_scale, block)
    key = ("row gradients", *_kind(columns, grad, weight), None if gamma is None else gamma.dtype, *flags)
    damp = damping(weight.numel(), rows, form)
    args = (grad, weight, result, gamma, inverse, used, of_gamma, of_scale, damp, columns, form.low, form.high, *flags)
    _launch(_row_gradients, key, rows, args, 4)
    return RowGradients(result, of_gamma, of_scale)


def _inside_gradients(grad: torch.Tensor, inside: torch.Tensor) -> torch.Tensor:
    grad, count = _laid_out(grad, inside), grad.numel()
    result = torch.empty_like(grad)
    key = ("inside", *_kind(count, grad, inside))
    _launch(_keep_inside, key, -(-count // _BLOCK), (grad, inside, result, count, _BLOCK), 8)
    return result


def _seen(value: torch.Tensor, first: int, step: int) -> Seen:
    count = value.numel()
    kept = torch.empty(-(-(count - first) // step), dtype=value.dtype, device=value.device)
    bounds = torch.empty(2, _WATCHERS, dtype=torch.float32, device=value.device)
    args = (value, bounds, kept, count, first, step, kept.numel(), _WATCHERS, _BLOCK, 128)
    _launch(_watch, ("seen", *_kind(count, value)), _WATCHERS, args, 8)
    return bounds[0], bounds[1], kept


def _counted(
    joined: torch.Tensor, lengths: list[int], rows: list[int], exponents: list[int], half: int
) -> torch.Tensor:
    device = joined.device
    starts = torch.tensor([0, *itertools.accumulate(lengths)], device=device)
    owners = torch.tensor(rows, device=device)
    factors = torch.tensor([2.0 ** -exponents[row] for row in rows], dtype=torch.float64, device=device)
    counts = torch.zeros(len(exponents), 2 * half, dtype=torch.int64, device=device)
    grid = (len(lengths), min(-(-max(lengths) // 1024), 64))
    _count_bins[grid](joined, starts, owners, factors, counts, HALF=half, BLOCK=1024, num_warps=4)
    return counts


TRITON = Implementation(
    "triton", _values, _masked_values, _inside_gradients, _gradients_of_values, _rows, _gradients_of_rows, _seen,
    _counted,
)  # fmt: skip
