"""Ranges from statistics: hand-computed where they can be, and better than min-max where an outlier spoils it."""

import pytest
import torch

from embedl_deploy.nn import NumberFormat, Precision, fake_quantize
from embedl_deploy.nn.quantizers import scale_of
from embedl_deploy.quantize import CalibrationMethod, TensorQuantConfig
from embedl_deploy.quantize._histogram import Histogram
from embedl_deploy.quantize._range import solve_all

SIGNED, UNSIGNED = NumberFormat(), NumberFormat(signed=False)


def statistics(*values: torch.Tensor) -> Histogram:
    """Take batches in."""
    result = Histogram()
    for value in values:
        result.add(value, float(value.min()), float(value.max()))
    return result


def found(method: CalibrationMethod, value: torch.Tensor, form: NumberFormat, **more: float) -> tuple[float, float]:
    """Solve one range."""
    return solve_all([statistics(value)], TensorQuantConfig(calibration_method=method, **more), form)[0]  # type: ignore[arg-type]


def error(value: torch.Tensor, bounds: tuple[float, float], form: NumberFormat) -> float:
    """Return the mean squared error of a range."""
    scale, zero_point = scale_of(*bounds, form)
    back = fake_quantize(value, torch.tensor(scale), torch.tensor(zero_point), form)
    return float((back - value).pow(2).mean())


def test_min_max_by_hand() -> None:
    """-1..3 in uint8: steps of 4/255, zero at 64; in int8: steps of 3/127."""
    bounds = found(CalibrationMethod.MINMAX, torch.tensor([-1.0, 3.0]), UNSIGNED)
    assert bounds == (-1.0, 3.0)
    assert scale_of(*bounds, UNSIGNED) == (4 / 255, 64.0)
    assert scale_of(*bounds, SIGNED) == (3 / 127, 0.0)


def test_moving_average_by_hand() -> None:
    """The mean of the batches' ends."""
    values = [torch.tensor([-1.0, 2.0]), torch.tensor([-3.0, 6.0])]
    config = TensorQuantConfig(calibration_method=CalibrationMethod.MOVING_AVERAGE_MINMAX)
    assert solve_all([statistics(*values)], config, UNSIGNED)[0] == (-2.0, 4.0)


@pytest.mark.parametrize("form", [SIGNED, UNSIGNED])
def test_percentile_leaves_out_the_tail(form: NumberFormat) -> None:
    """99 % of 0..1 lie below 0.99, to a bin."""
    low, high = found(CalibrationMethod.PERCENTILE, torch.linspace(0, 1, 4001), form, percentile=99.0)
    assert low == 0.0
    assert high == pytest.approx(0.99, abs=0.002)


@pytest.mark.parametrize("form", [SIGNED, UNSIGNED])
@pytest.mark.parametrize("method", [CalibrationMethod.MSE, CalibrationMethod.HISTOGRAM])
def test_least_error_beats_min_max_with_an_outlier(method: CalibrationMethod, form: NumberFormat) -> None:
    """The bulk gets finer steps; the error of all falls."""
    value = torch.cat([torch.randn(4000), torch.tensor([6.0, 25.0])])
    bounds = found(method, value, form)
    # With eight bits clipping 25 to less costs more than it gives, with four it does not; both must not be worse.
    assert error(value, bounds, form) <= error(value, (float(value.min()), 25.0), form) * 1.001
    coarse = NumberFormat(Precision.INT4, signed=form.signed)
    narrow = found(method, value, coarse)
    assert narrow[1] < 25
    assert error(value, narrow, coarse) < 0.8 * error(value, (float(value.min()), 25.0), coarse)


def test_entropy_cuts_a_far_outlier() -> None:
    """The distribution of the bulk counts."""
    value = torch.cat([torch.randn(4000), torch.tensor([60.0])])
    assert found(CalibrationMethod.ENTROPY, value, SIGNED)[1] < 20


@pytest.mark.parametrize("method", CalibrationMethod)
@pytest.mark.parametrize("form", [SIGNED, UNSIGNED, NumberFormat(Precision.FP8), NumberFormat(Precision.INT16)])
@pytest.mark.parametrize(
    "value",
    [torch.zeros(8), torch.full((8,), 3.0), torch.full((8,), -3.0), torch.tensor([0.0, 1e-30]), torch.randn(100) * 1e9],
    ids=["zeros", "constant", "negative constant", "tiny", "huge"],
)
def test_every_method_gives_a_scale(method: CalibrationMethod, form: NumberFormat, value: torch.Tensor) -> None:
    """Constant, empty and extreme ranges: a positive finite scale and a zero point inside the type."""
    low, high = found(method, value, form)
    assert low <= 0 <= high
    scale, zero_point = scale_of(low, high, form)
    assert torch.isfinite(torch.tensor(scale))
    assert scale > 0
    assert form.low <= zero_point <= form.high


@pytest.mark.parametrize("form", [SIGNED, UNSIGNED])
@pytest.mark.parametrize("count", [2000, 50000])
def test_entropy_is_not_led_by_zeros_or_chance(form: NumberFormat, count: int) -> None:
    """Half of a ReLU's values are zeros, and few values fill bins unevenly: neither is a reason to cut the range."""
    value = torch.randn(count, generator=torch.Generator().manual_seed(0)).relu()
    low, high = found(CalibrationMethod.ENTROPY, value.reshape(2, -1), form)
    assert low == 0.0
    assert high > 0.8 * float(value.max())
    least = error(value, found(CalibrationMethod.MSE, value.reshape(2, -1), form), form)
    assert error(value, (low, high), form) < 2 * least
