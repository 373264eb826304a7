"""Number formats keep the real numbers they stand for."""

import numpy as np
from hypothesis import given
from hypothesis import strategies as st

from embedl_deploy.dialect._numbers import (
    change_sign,
    counterpart,
    for_range,
    per_tensor,
    with_zero_at_minimum,
    without_zero_point,
)

SCALES = st.floats(2**-20, 8, width=32)


@given(SCALES, st.integers(-128, 127))
def test_changing_the_sign_keeps_scale_and_range(scale: float, zero: int) -> None:
    """The scale stays to the bit and the ends stay where they are."""
    signed = per_tensor(scale, zero, "int8")
    unsigned = change_sign(signed, "uint8")
    assert unsigned.scale.tobytes() == signed.scale.tobytes()
    assert unsigned.bounds == signed.bounds
    assert change_sign(unsigned, "int8").same(signed)


@given(SCALES)
def test_a_middle_zero_point_goes_without_a_new_scale(scale: float) -> None:
    """The uint8 zero point 128 is int8 0."""
    found = without_zero_point(per_tensor(scale, 128, "uint8"))
    assert found.scale == np.float32(scale)
    assert (int(found.zero_point), found.type) == (0, "int8")


@given(SCALES, st.integers(0, 255))
def test_a_symmetric_format_holds_the_range_it_replaces(scale: float, zero: int) -> None:
    """Both old ends can still be told, to half a step."""
    old = per_tensor(scale, zero, "uint8")
    new = without_zero_point(old)
    half = float(new.scale) * 0.5
    assert int(new.zero_point) == 0
    assert new.bounds[0] <= old.bounds[0] + half
    assert new.bounds[1] >= old.bounds[1] - half


@given(st.floats(-1e4, 1e4), st.floats(-1e4, 1e4), st.sampled_from(["int8", "uint8", "int16"]), st.booleans())
def test_a_format_for_a_range_is_usable(one: float, other: float, kind: str, zero_point: bool) -> None:
    """The scale is finite and positive, 0 is exact, and values within the range are at most half a step off."""
    if kind == "uint8":
        zero_point = True
    low, high = sorted((one, other))
    params = for_range(low, high, kind, zero_point=zero_point)
    assert np.isfinite(params.scale)
    assert params.scale > 0
    assert params.dequantize(params.quantize(np.zeros(1, np.float32)))[0] == 0
    values = np.linspace(low, high, 50, dtype=np.float32)
    error = np.abs(params.dequantize(params.quantize(values)) - values)
    assert error.max() <= float(params.scale) * 1.01 + 1e-6


def test_an_empty_range_gets_a_scale_of_one() -> None:
    """A constant 0 has no range."""
    assert float(for_range(0.0, 0.0, "int8", zero_point=False).scale) == 1.0


def test_the_minimum_is_the_types_own() -> None:
    """After a Relu all integers are above the zero point."""
    assert int(with_zero_at_minimum(per_tensor(0.1, 0, "int8")).zero_point) == -128
    assert counterpart("uint16", signed=True) == "int16"
    assert counterpart("float8e4m3fn", signed=True) == "float8e4m3fn"
