"""Fake quantization on a GPU: a Triton kernel each way for a value, with an add and a ReLU before it, and for weights.

Bits are the reference's: divisions round to nearest (Triton's plain division does not), ties go to the even code, and
sums over a row or a tensor are in float64 and always in the same order.
"""

import functools
import itertools
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import torch
import triton
import triton.language as tl

from embedl_deploy.nn.number import NumberFormat
from embedl_deploy.nn.rounding import (
    SMALLEST_SCALE,
    Implementation,
    Norm,
    RowGradients,
    Rows,
    RowWeight,
    Unfinished,
    damping,
    gradients_one_by_one,
    is_dense,
    rows_one_by_one,
)

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


@triton.jit(do_not_specialize_on_alignment=["bits_at", "scale_at", "zero_at"])  # type: ignore[untyped-decorator]
def _round_values(  # type: ignore[no-untyped-def]
    x, other, y, bits_at, scale_at, zero_at, count, low, high, top,
    ADDS: tl.constexpr, CUTS: tl.constexpr, MASK: tl.constexpr, BLOCK: tl.constexpr,
):  # fmt: skip
    # In rows of eight: the bits of a row are one byte of the mask.
    row = tl.program_id(0).to(tl.int64) * (BLOCK // 8) + tl.arange(0, BLOCK // 8)
    lane = tl.arange(0, 8)
    place = row[:, None] * 8 + lane[None, :]
    here = place < count
    scale = tl.maximum(tl.abs(tl.load(scale_at).to(tl.float32)), _SMALLEST)
    zero = tl.load(zero_at).to(tl.float32)
    value = tl.load(x + place, mask=here, other=0.0).to(tl.float32)
    if ADDS:
        value = value + tl.load(other + place, mask=here, other=0.0).to(tl.float32)
        value = value.to(x.dtype.element_ty).to(tl.float32)
    cut = value
    if CUTS:
        # Whatever is no number stays none.
        cut = tl.where(value <= 0.0, 0.0, tl.where(value >= top, top, value))
    ratio = tl.div_rn(cut, scale)
    codes = _round_to_codes(ratio, low - zero, high - zero)
    tl.store(y + place, (codes * scale).to(y.dtype.element_ty), mask=here)
    if MASK:
        inside = here & (ratio >= low - zero) & (ratio <= high - zero)
        if CUTS:
            inside = inside & (value > 0.0) & (value < top)
        bits = tl.sum(inside.to(tl.int32) << lane[None, :], 1)
        tl.store(bits_at + row, bits.to(tl.uint8), mask=row * 8 < count)


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


_ROW_VECTORS = ["gamma_at", "variance_at", "scale_at", "ratio_at", "used_at", "inverse_at", "copy_at"]


@triton.jit(do_not_specialize_on_alignment=_ROW_VECTORS)  # type: ignore[untyped-decorator]
def _round_rows(  # type: ignore[no-untyped-def]
    w, y, gamma_at, variance_at, scale_at, ratio_at, used_at, inverse_at, copy_at, epsilon, columns, low, high,
    NORM: tl.constexpr, GAMMA: tl.constexpr, FOLLOWS: tl.constexpr, RATIOS: tl.constexpr, COPY: tl.constexpr,
    BLOCK: tl.constexpr,
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
    if COPY:
        tl.store(copy_at + row, scale.to(copy_at.dtype.element_ty))
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


@triton.jit(do_not_specialize_on_alignment=["bits_at"])  # type: ignore[untyped-decorator]
def _keep_inside(g, bits_at, dx, count, BLOCK: tl.constexpr):  # type: ignore[no-untyped-def]
    row = tl.program_id(0).to(tl.int64) * (BLOCK // 8) + tl.arange(0, BLOCK // 8)
    lane = tl.arange(0, 8)
    place = row[:, None] * 8 + lane[None, :]
    here = place < count
    grad = tl.load(g + place, mask=here, other=0.0)
    bits = tl.load(bits_at + row, mask=row * 8 < count, other=0).to(tl.int32)
    inside = ((bits[:, None] >> lane[None, :]) & 1) != 0
    tl.store(dx + place, tl.where(inside, grad, grad * 0.0), mask=here)


@triton.jit(  # type: ignore[untyped-decorator]
    do_not_specialize=["first", "step", "kept_count", "kept_at", "slot"],
    do_not_specialize_on_alignment=["bounds", "kept"],
)
def _watch(  # type: ignore[no-untyped-def]
    x, bounds, kept, count, first, step, kept_count, kept_at, slot,
    WATCHERS: tl.constexpr, BLOCK: tl.constexpr, FEW: tl.constexpr,
):  # fmt: skip
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
    bounds += slot * (2 * WATCHERS)
    tl.store(bounds + watcher, tl.where(strange, float("nan"), least))
    tl.store(bounds + WATCHERS + watcher, tl.where(strange, float("nan"), most))
    for block in range(watcher, tl.cdiv(kept_count, FEW), WATCHERS):
        number = block * FEW + tl.arange(0, FEW)
        wanted = number < kept_count
        tl.store(kept + kept_at + number, tl.load(x + first + number * step, mask=wanted), mask=wanted)


@triton.jit  # type: ignore[untyped-decorator]
def _finished(  # type: ignore[no-untyped-def]
    x, other, bias, place, plane, here, channels, top, ADDS: tl.constexpr, BIAS: tl.constexpr, CUTS: tl.constexpr
):
    value = tl.load(x + place, mask=here, other=0.0).to(tl.float32)
    if BIAS:
        value = value + tl.load(bias + plane % channels, mask=here, other=0.0).to(tl.float32)
        value = value.to(x.dtype.element_ty).to(tl.float32)
    if ADDS:
        value = value + tl.load(other + place, mask=here, other=0.0).to(tl.float32)
        value = value.to(x.dtype.element_ty).to(tl.float32)
    if CUTS:
        # Whatever is no number stays none.
        value = tl.where(value <= 0.0, 0.0, tl.where(value >= top, top, value))
    return value


@triton.jit(  # type: ignore[untyped-decorator]
    do_not_specialize=["first", "step", "kept_count", "kept_at", "slot", "channels"],
    do_not_specialize_on_alignment=["bounds", "kept", "bias"],
)
def _finish_and_watch(  # type: ignore[no-untyped-def]
    x, other, bias, y, bounds, kept, count, inner, channels, top, first, step, kept_count, kept_at, slot,
    ADDS: tl.constexpr, BIAS: tl.constexpr, CUTS: tl.constexpr, WATCHERS: tl.constexpr,
    ROWS: tl.constexpr, COLUMNS: tl.constexpr, FEW: tl.constexpr,
):  # fmt: skip
    # In rows of one channel each: its number is found once a row, not once an element.
    watcher = tl.program_id(0)
    planes = tl.cdiv(count, inner)
    across = tl.cdiv(inner, COLUMNS)
    lows = tl.full([ROWS, COLUMNS], float("inf"), tl.float32)
    highs = tl.full([ROWS, COLUMNS], float("-inf"), tl.float32)
    odd = tl.zeros([ROWS, COLUMNS], tl.int32)
    for block in range(watcher, tl.cdiv(planes, ROWS) * across, WATCHERS):
        plane = (block // across) * ROWS + tl.arange(0, ROWS)[:, None]
        column = (block % across) * COLUMNS + tl.arange(0, COLUMNS)[None, :]
        place = plane * inner + column
        here = (plane < planes) & (column < inner) & (place < count)
        value = _finished(x, other, bias, place, plane, here, channels, top, ADDS, BIAS, CUTS)
        tl.store(y + place, value.to(y.dtype.element_ty), mask=here)
        lows = tl.minimum(lows, tl.where(here, value, float("inf")))
        highs = tl.maximum(highs, tl.where(here, value, float("-inf")))
        odd |= (here & (value != value)).to(tl.int32)
    least, most = tl.min(tl.min(lows, 1), 0), tl.max(tl.max(highs, 1), 0)
    strange = tl.max(tl.max(odd, 1), 0) > 0
    bounds += slot * (2 * WATCHERS)
    tl.store(bounds + watcher, tl.where(strange, float("nan"), least))
    tl.store(bounds + WATCHERS + watcher, tl.where(strange, float("nan"), most))
    for block in range(watcher, tl.cdiv(kept_count, FEW), WATCHERS):
        number = block * FEW + tl.arange(0, FEW)
        wanted = number < kept_count
        place = first + number * step
        value = _finished(x, other, bias, place, place // inner, wanted, channels, top, ADDS, BIAS, CUTS)
        tl.store(kept + kept_at + number, value.to(kept.dtype.element_ty), mask=wanted)


@triton.jit(do_not_specialize_on_alignment=["x", "table", "counts"])  # type: ignore[untyped-decorator]
def _count_bins(x, table, counts, parts, HALF: tl.constexpr, BLOCK: tl.constexpr):  # type: ignore[no-untyped-def]
    part = tl.program_id(0)
    start, length = tl.load(table + part), tl.load(table + parts + part)
    row = tl.load(table + 2 * parts + part)
    factor = tl.load(table + 3 * parts + part).to(tl.float64, bitcast=True)
    for first in range(tl.program_id(1) * BLOCK, length, tl.num_programs(1) * BLOCK):
        place = first + tl.arange(0, BLOCK)
        here = place < length
        value = tl.load(x + start + place, mask=here, other=0.0).to(tl.float64)
        bins = tl.floor(value * factor).to(tl.int64) + HALF
        # Half of what follows a ReLU is zero: all of it waiting for one address would take longer than the rest.
        middle = here & (bins == HALF)
        tl.atomic_add(counts + row * (2 * HALF) + HALF, tl.sum(middle.to(tl.int32), 0))
        ones = tl.full([BLOCK], 1, tl.int32)
        tl.atomic_add(counts + row * (2 * HALF) + bins, ones, mask=here & (bins != HALF))


_COMPILED: dict[tuple[Any, ...], tuple[Any, Any, Any]] = {}
_current_stream: Any = getattr(torch._C, "_cuda_getCurrentRawStream", None)  # missing where torch has no GPU
_current_device: Any = getattr(torch._C, "_cuda_getDevice", None)


def _launch(
    kernel: Any,
    key: tuple[Any, ...],
    grid: int,
    tensors: tuple[Any, ...],
    rest: tuple[Any, ...],
    warps: int,
) -> None:
    """Start a kernel; one that was compiled for arguments like these is called directly.

    Triton's own dispatch looks at every argument each time, which takes longer than most of these kernels run. `key`
    is what it would look at, the number of the device first.
    """
    found = _COMPILED.get(key)
    if found is None or (key[0] >= 0 and key[0] != _current_device()):
        _compile(kernel, key, grid, tensors, rest, warps)
        return
    run, function, metadata = found
    # Addresses: the launcher would ask the driver about every tensor.
    addresses = [None if one is None else one.data_ptr() for one in tensors]
    run(grid, 1, 1, _current_stream(key[0]), function, metadata, None, None, None, *addresses, *rest)


def _launch_together(
    kernel: Any,
    key: tuple[Any, ...],
    grid: int,
    several: tuple[tuple[torch.Tensor, ...] | None, ...],
    addresses: list[tuple[int, ...] | None],
    tensors: tuple[Any, ...],
    rest: tuple[Any, ...],
) -> None:
    """Start a kernel for several weights, of which the addresses are known."""
    found = _COMPILED.get(key)
    if found is None or (key[0] >= 0 and key[0] != _current_device()):
        _compile(kernel, key, grid, (*several, *tensors), rest, 4)
        return
    run, function, metadata = found
    others = [None if one is None else one.data_ptr() for one in tensors]
    run(grid, 1, 1, _current_stream(key[0]), function, metadata, None, None, None, *addresses, *others, *rest)


def _compile(
    kernel: Any, key: tuple[Any, ...], grid: int, tensors: tuple[Any, ...], rest: tuple[Any, ...], warps: int
) -> None:
    """Start a kernel by Triton's dispatch, on the device of its arguments, and keep what was compiled."""
    if key[0] >= 0 and key[0] != _current_device():
        with torch.cuda.device(key[0]):
            _compile(kernel, key, grid, tensors, rest, warps)
        return
    made = kernel[(grid,)](*tensors, *rest, num_warps=warps)
    if made is not None:  # an interpreter compiles nothing
        _COMPILED[key] = made.run, made.function, made.packed_metadata


def _laid_out(value: torch.Tensor, like: torch.Tensor) -> torch.Tensor:
    """Return a value with its elements where another has them."""
    return value if value.stride() == like.stride() else torch.empty_like(like, dtype=value.dtype).copy_(value)


def _values(value: torch.Tensor, scale: torch.Tensor, zero_point: torch.Tensor, form: NumberFormat) -> torch.Tensor:
    if not is_dense(value):
        value = value.contiguous()
    result, count, at = torch.empty_like(value), value.numel(), value.data_ptr()
    key = (value.get_device(), 0, value.dtype, scale.dtype, zero_point.dtype, at & 15, count & 15, count == 1)
    rest = (count, *form.borders, 0.0, False, False, False, _BLOCK)
    _launch(_round_values, key, -(-count // _BLOCK), (value, None, result, None, scale, zero_point), rest, 8)
    return result


def _masked_values(
    value: torch.Tensor,
    scale: torch.Tensor,
    zero_point: torch.Tensor,
    form: NumberFormat,
    other: torch.Tensor | None,
    top: float | None,
) -> tuple[torch.Tensor, torch.Tensor]:
    if not is_dense(value):
        value = value.contiguous()
    if other is not None:
        other = _laid_out(other, value)
    result, count, dtype = torch.empty_like(value), value.numel(), value.dtype
    bits = value.new_empty((count + 7) // 8, dtype=torch.uint8)
    # Only the last four bits of an address decide what is compiled.
    aligned, also = value.data_ptr() & 15, 0 if other is None else other.data_ptr() & 15
    adds, cuts = other is not None, top is not None
    key = (
        value.get_device(), 1, adds, cuts, dtype, scale.dtype, zero_point.dtype, aligned, also, count & 15, count == 1
    )  # fmt: skip
    low, high = form.borders
    rest = (count, low, high, top if cuts else 0.0, adds, cuts, True, _BLOCK)
    _launch(_round_values, key, -(-count // _BLOCK), (value, other, result, bits, scale, zero_point), rest, 8)
    return result, bits


def _gradients_of_values(
    grad: torch.Tensor,
    value: torch.Tensor,
    scale: torch.Tensor,
    zero_point: torch.Tensor,
    form: NumberFormat,
    learned: bool,
) -> tuple[torch.Tensor, torch.Tensor | None]:
    if not is_dense(value):
        value = value.contiguous()
    grad, count = _laid_out(grad, value), value.numel()
    result, grid = torch.empty_like(grad), -(-count // _BLOCK)
    partial: Any = torch.empty(grid, dtype=torch.float64, device=value.device) if learned else None
    aligned = (grad.data_ptr() & 15, value.data_ptr() & 15, count & 15, count == 1)
    key = (value.get_device(), 2, learned, grad.dtype, value.dtype, scale.dtype, zero_point.dtype, *aligned)
    tensors = (grad, value, result, partial, scale, zero_point)
    _launch(_value_gradients, key, grid, tensors, (count, form.low, form.high, learned, _BLOCK), 8)
    if not learned:
        return result, None
    total = partial.sum() * damping(count, scale.numel(), form)
    return result, torch.where(scale.abs() >= SMALLEST_SCALE, total * scale.sign(), 0.0).to(scale.dtype)


@functools.cache
def _block(columns: int) -> int:
    """Return the columns of a row that a program takes at once."""
    return min(max(1 << (columns - 1).bit_length(), 16), 2048)


def _has_rows(weight: torch.Tensor) -> bool:
    """Say whether every row is one piece of memory and follows the one before."""
    if weight.is_contiguous():
        return True
    return is_dense(weight) and (weight.shape[0] == 1 or weight.stride(0) == weight.numel() // weight.shape[0])


def _rows(
    weight: torch.Tensor,
    norm: Norm | None,
    scale: torch.Tensor | None,
    ratio: torch.Tensor,
    form: NumberFormat,
    copy: torch.Tensor | None,
) -> Rows:
    if not _has_rows(weight):
        weight = weight.contiguous()
    rows = weight.shape[0]
    columns = weight.numel() // rows
    block = _block(columns)
    result = torch.empty_like(weight)
    used = torch.empty(rows, dtype=torch.float32, device=weight.device)
    inverse = None if norm is None else torch.empty_like(used)
    gamma, variance, epsilon = (None, None, 0.0) if norm is None else (norm.gamma, norm.variance, norm.epsilon)
    key = (
        weight.get_device(), 3, weight.dtype, weight.data_ptr() & 15, columns & 15, columns == 1, block,
        None if gamma is None else gamma.dtype, None if variance is None else variance.dtype,
        None if scale is None else scale.dtype, ratio.dtype, ratio.ndim, None if copy is None else copy.dtype,
    )  # fmt: skip
    flags = (norm is not None, gamma is not None, scale is None, int(ratio.ndim > 0), copy is not None, block)
    tensors = (weight, result, gamma, variance, scale, ratio, used, inverse, copy)
    _launch(_round_rows, key, rows, tensors, (epsilon, columns, form.low, form.high, *flags), 4)
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
    rows = weight.shape[0]
    columns = weight.numel() // rows
    block = _block(columns)
    grad = _laid_out(grad, weight)
    result = torch.empty_like(grad)
    of_gamma = torch.empty_like(gamma) if wants_gamma and gamma is not None else None
    of_scale = torch.empty(rows, dtype=torch.float64, device=weight.device) if wants_scale else None
    flags = (inverse is not None, gamma is not None, of_gamma is not None, wants_scale, block)
    aligned = (grad.data_ptr() & 15, weight.data_ptr() & 15, columns & 15, columns == 1)
    key = (weight.get_device(), 4, grad.dtype, weight.dtype, None if gamma is None else gamma.dtype, *aligned, *flags)
    damp = damping(weight.numel(), rows, form) if wants_scale else 1.0
    tensors = (grad, weight, result, gamma, inverse, used, of_gamma, of_scale)
    _launch(_row_gradients, key, rows, tensors, (damp, columns, form.low, form.high, *flags), 4)
    return RowGradients(result, of_gamma, of_scale)


@triton.jit  # type: ignore[untyped-decorator]
def _part_of(row, table, PARTS: tl.constexpr):  # type: ignore[no-untyped-def]
    """Return the weight that a row belongs to, the row's number in it, its columns, and where the weight begins."""
    part = 0
    for each in tl.static_range(1, PARTS):
        part += (row >= tl.load(table + each)).to(tl.int32)
    return part, row - tl.load(table + part), tl.load(table + PARTS + part), tl.load(table + 2 * PARTS + part)


@triton.jit  # type: ignore[untyped-decorator]
def _chosen(pointers, part, PARTS: tl.constexpr):  # type: ignore[no-untyped-def]
    found = pointers[0]
    for each in tl.static_range(1, PARTS):
        found = tl.where(part == each, pointers[each], found)
    return found


@triton.jit  # type: ignore[untyped-decorator]
def _round_rows_together(  # type: ignore[no-untyped-def]
    ws, gammas, variances, ratios, copies, y, kept, table, epsilon, total, low, high,
    NORM: tl.constexpr, GAMMA: tl.constexpr, PARTS: tl.constexpr, BLOCK: tl.constexpr,
):  # fmt: skip
    place = tl.program_id(0)
    part, row, columns, begin = _part_of(place, table, PARTS)
    w = _chosen(ws, part, PARTS) + row * columns
    out = y + begin + row * columns
    factor = 1.0
    if NORM:
        inverse = tl.div_rn(1.0, tl.sqrt_rn(tl.load(_chosen(variances, part, PARTS) + row) + epsilon))
        tl.store(kept + total + place, inverse)
        factor = inverse
        if GAMMA:
            factor = inverse * tl.load(_chosen(gammas, part, PARTS) + row)
        factor = tl.where(tl.abs(factor) < _SMALLEST, 1.0, factor)
    peaks = tl.zeros([BLOCK], tl.float32)
    for first in range(0, columns, BLOCK):
        at = first + tl.arange(0, BLOCK)
        value = tl.load(w + at, mask=at < columns, other=0.0).to(tl.float32)
        if NORM:
            value = value * factor
        peaks = tl.maximum(peaks, tl.abs(value), propagate_nan=tl.PropagateNan.ALL)
    scale = tl.div_rn(tl.max(peaks, 0) * tl.load(_chosen(ratios, part, PARTS) + row), high)
    scale = tl.where(scale >= _SMALLEST, scale, 1.0)
    tl.store(kept + place, scale)
    tl.store(_chosen(copies, part, PARTS) + row, scale)
    for first in range(0, columns, BLOCK):
        at = first + tl.arange(0, BLOCK)
        value = tl.load(w + at, mask=at < columns, other=0.0).to(tl.float32)
        if NORM:
            value = value * factor
        rounded = _round_to_codes(tl.div_rn(value, scale), low, high) * scale
        if NORM:
            rounded = tl.div_rn(rounded, factor)
        tl.store(out + at, rounded.to(y.dtype.element_ty), mask=at < columns)


@triton.jit  # type: ignore[untyped-decorator]
def _row_gradients_together(  # type: ignore[no-untyped-def]
    gs, ws, gammas, dw, dgamma, kept, table, total, low, high,
    NORM: tl.constexpr, GAMMA: tl.constexpr, OF_GAMMA: tl.constexpr, PARTS: tl.constexpr, BLOCK: tl.constexpr,
):  # fmt: skip
    place = tl.program_id(0)
    part, row, columns, begin = _part_of(place, table, PARTS)
    w = _chosen(ws, part, PARTS) + row * columns
    g = _chosen(gs, part, PARTS) + row * columns
    out = dw + begin + row * columns
    factor = 1.0
    inverse = 1.0
    plain = 1.0
    if NORM:
        inverse = tl.load(kept + total + place)
        plain = inverse
        if GAMMA:
            plain = inverse * tl.load(_chosen(gammas, part, PARTS) + row)
        factor = tl.where(tl.abs(plain) < _SMALLEST, 1.0, plain)
    scale = tl.load(kept + place)
    of_gamma = tl.zeros([BLOCK], tl.float64)
    for first in range(0, columns, BLOCK):
        at = first + tl.arange(0, BLOCK)
        here = at < columns
        value = tl.load(w + at, mask=here, other=0.0).to(tl.float32)
        grad = tl.load(g + at, mask=here, other=0.0)
        if NORM:
            value = value * factor
        ratio = tl.div_rn(value, scale)
        inside = (ratio >= low) & (ratio <= high)
        tl.store(out + at, tl.where(inside, grad, grad * 0.0), mask=here)
        if OF_GAMMA:
            # As in `_row_gradients`.
            rounded = (_round_to_codes(ratio, low, high) * scale).to(tl.float64)
            apart = (tl.where(inside, value, 0.0).to(tl.float64) - rounded).to(tl.float32)
            of_gamma += (apart * grad.to(tl.float32)).to(tl.float64)
    if OF_GAMMA:
        over = factor.to(tl.float64)  # type: ignore[attr-defined]
        slope = tl.sum(of_gamma, 0) / (over * over) * inverse.to(tl.float64)  # type: ignore[attr-defined]
        tl.store(dgamma + place, tl.where(tl.abs(plain) < _SMALLEST, 0.0, slope).to(tl.float32))


_TOGETHER_BLOCK = 1024


@dataclass(frozen=True)
class _Plan:
    """Where the rows of several weights go."""

    rows: int
    size: int  # elements of the results, each begun where a load of 16 bytes may begin
    begins: tuple[int, ...]
    row_counts: list[int]
    table: torch.Tensor


@functools.lru_cache(maxsize=1024)
def _plan(shapes: tuple[torch.Size, ...], device: torch.device) -> _Plan:
    rows = [shape[0] for shape in shapes]
    row_begins = [0, *itertools.accumulate(rows)][:-1]
    columns = [shape.numel() // shape[0] for shape in shapes]
    sizes = [-(-shape.numel() // 16) * 16 for shape in shapes]
    begins = [0, *itertools.accumulate(sizes)][:-1]
    table = torch.tensor([*row_begins, *columns, *begins], device=device)
    return _Plan(sum(rows), sum(sizes), tuple(begins), rows, table)


def _plan_of(weights: Sequence[torch.Tensor]) -> _Plan:
    return _plan(tuple([weight.shape for weight in weights]), weights[0].device)


def _laid(flat: torch.Tensor, weights: Sequence[torch.Tensor], begins: tuple[int, ...]) -> list[torch.Tensor]:
    return [
        flat.as_strided(weight.shape, weight.stride(), begin) for weight, begin in zip(weights, begins, strict=True)
    ]


def _is_plain(vector: torch.Tensor | None) -> bool:
    return vector is None or (vector.dtype is torch.float32 and vector.is_contiguous())


def _fits(part: RowWeight) -> bool:
    weight, norm, ratio, _, copy = part
    if not (_has_rows(weight) and ratio.ndim and _is_plain(ratio) and _is_plain(copy)):
        return False
    return norm is None or (_is_plain(norm.gamma) and _is_plain(norm.variance))


_Several = tuple[tuple[torch.Tensor, ...] | None, ...]


def _addresses(several: _Several) -> tuple[list[tuple[int, ...] | None], Any]:
    """Return the addresses of several tensors each, and what of them decides what is compiled: mostly nothing."""
    found = [None if one is None else tuple([part.data_ptr() for part in one]) for one in several]
    odd = 0
    for one in found:
        for address in one or ():
            odd |= address
    if not odd & 15:
        return found, None
    return found, tuple([address & 15 for one in found for address in one or ()])


def _rows_together(parts: Sequence[RowWeight]) -> tuple[list[torch.Tensor], list[torch.Tensor | None]]:
    if not all(_fits(part) for part in parts):
        return rows_one_by_one(_rows, parts)
    columns: tuple[Any, ...] = tuple(zip(*parts, strict=True))
    weights, norms, ratios, forms, copies = columns
    first, form, norm, plan = weights[0], forms[0], norms[0], _plan_of(weights)
    flat = first.new_empty(plan.size)
    kept = first.new_empty(plan.rows if norm is None else 2 * plan.rows, dtype=torch.float32)
    has_gamma = norm is not None and norm.gamma is not None
    several: _Several = (
        weights,
        tuple([one.gamma for one in norms]) if has_gamma else None,
        None if norm is None else tuple([one.variance for one in norms]),
        ratios,
        copies,
    )
    addresses, odd = _addresses(several)
    flags = (norm is not None, has_gamma, len(parts), _TOGETHER_BLOCK)
    rows = plan.rows
    key = (first.get_device(), 7, first.dtype, *flags, rows & 15, rows == 1, odd)
    rest = (0.0 if norm is None else norm.epsilon, rows, *form.borders, *flags)
    _launch_together(_round_rows_together, key, rows, several, addresses, (flat, kept, plan.table), rest)
    return _laid(flat, weights, plan.begins), [kept]


def _gradients_together(
    grads: Sequence[torch.Tensor | None],
    weights: Sequence[torch.Tensor],
    gammas: Sequence[torch.Tensor | None],
    kept: Sequence[torch.Tensor | None],
    form: NumberFormat,
    wants: Sequence[bool],
) -> list[RowGradients | None]:
    if len(kept) == 2 * len(weights):
        return gradients_one_by_one(_gradients_of_rows, grads, weights, gammas, kept, form, wants)
    first, both, plan = weights[0], kept[0], _plan_of(weights)
    assert both is not None
    rows = plan.rows
    has_norm, has_gamma = both.numel() > rows, gammas[0] is not None
    given = [grad for grad in grads if grad is not None]
    if len(given) < len(weights) or len({*wants}) > 1 or any(grad.dtype != first.dtype for grad in given):
        inverse: Sequence[torch.Tensor | None] = [None] * len(weights)
        if has_norm:
            inverse = torch.split(both[rows:], plan.row_counts)
        parts = [*torch.split(both[:rows], plan.row_counts), *inverse]
        return gradients_one_by_one(_gradients_of_rows, grads, weights, gammas, parts, form, wants)
    laid = tuple([_laid_out(grad, weight) for grad, weight in zip(given, weights, strict=True)])
    flat = first.new_empty(plan.size)
    of_gamma = first.new_empty(rows, dtype=torch.float32) if wants[0] else None
    several: Any = (laid, tuple(weights), tuple(gammas) if has_gamma else None)
    addresses, odd = _addresses(several)
    flags = (has_norm, has_gamma, of_gamma is not None, len(weights), _TOGETHER_BLOCK)
    key = (first.get_device(), 8, first.dtype, *flags, rows & 15, rows == 1, odd)
    rest = (rows, *form.borders, *flags)
    tensors = (flat, of_gamma, both, plan.table)
    _launch_together(_row_gradients_together, key, rows, several, addresses, tensors, rest)
    results = _laid(flat, weights, plan.begins)
    if of_gamma is None:
        return [RowGradients(result, None, None) for result in results]
    slopes = of_gamma.split_with_sizes(plan.row_counts)
    return [RowGradients(result, slope, None) for result, slope in zip(results, slopes, strict=True)]


def _inside_gradients(grad: torch.Tensor, bits: torch.Tensor, stride: tuple[int, ...]) -> torch.Tensor:
    if grad.stride() != stride:
        grad = torch.empty_strided(grad.shape, stride, dtype=grad.dtype, device=grad.device).copy_(grad)
    result, count = torch.empty_like(grad), grad.numel()
    key = (grad.get_device(), 5, grad.dtype, grad.data_ptr() & 15, count & 15, count == 1)
    _launch(_keep_inside, key, -(-count // _BLOCK), (grad, bits, result), (count, _BLOCK), 8)
    return result


def _see(
    value: torch.Tensor, first: int, step: int, bounds: torch.Tensor, slot: int, samples: torch.Tensor, place: int
) -> None:
    count = value.numel()
    kept = -(-(count - first) // step)
    key = (value.get_device(), 6, value.dtype, samples.dtype, value.data_ptr() & 15, count & 15, count == 1)
    rest = (count, first, step, kept, place, slot, _WATCHERS, _BLOCK, 128)
    _launch(_watch, key, _WATCHERS, (value, bounds, samples), rest, 8)


def _see_finished(
    left: Unfinished,
    result: torch.Tensor,
    first: int,
    step: int,
    bounds: torch.Tensor,
    slot: int,
    samples: torch.Tensor,
    place: int,
) -> None:
    value, bias, other, top = left.value, left.bias, left.other, left.top
    count = value.numel()
    kept = -(-(count - first) // step)
    channels, inner = (1, 1024) if bias is None else (bias.numel(), count // (value.shape[0] * bias.numel()))
    columns = min(_block(inner), 1024)
    flags = (other is not None, bias is not None, top is not None, _WATCHERS, 4096 // columns, columns, 128)
    others = (0 if other is None else other.data_ptr() & 15, None if bias is None else bias.dtype)
    aligned = (value.data_ptr() & 15, count & 15, count == 1, inner & 15, inner == 1)
    key = (value.get_device(), 9, value.dtype, samples.dtype, *others, *aligned, *flags[:3], columns)
    rest = (count, inner, channels, 0.0 if top is None else top, first, step, kept, place, slot, *flags)
    _launch(_finish_and_watch, key, _WATCHERS, (value, other, bias, result, bounds, samples), rest, 8)


def _counted(
    samples: torch.Tensor, starts: list[int], lengths: list[int], rows: list[int], exponents: list[int], half: int
) -> torch.Tensor:
    factors = torch.tensor([2.0 ** -exponents[row] for row in rows], dtype=torch.float64).view(torch.int64)
    # One table: every transfer waits for the device.
    table = torch.cat([torch.tensor(starts + lengths + rows), factors]).to(samples.device)
    counts = torch.zeros(len(exponents), 2 * half, dtype=torch.int32, device=samples.device)
    grid = (len(lengths), min(-(-max(lengths) // 1024), 64))
    _count_bins[grid](samples, table, counts, len(lengths), HALF=half, BLOCK=1024, num_warps=4)
    return counts


TRITON = Implementation(
    "triton", _values, _masked_values, _inside_gradients, _gradients_of_values, _rows, _gradients_of_rows,
    _rows_together, _gradients_together, _see, _WATCHERS, _see_finished,
    _counted,
)  # fmt: skip
