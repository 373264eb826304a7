"""Statistics are the same to the last bit whatever the order, the split and the merge."""

import random
from fractions import Fraction

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from embedl_deploy.quantize._histogram import HALF, MOST_SAMPLES, Histogram, exponent_for, sample

numbers = st.floats(-1e6, 1e6, width=32)
batches = st.lists(st.lists(numbers, min_size=1, max_size=20), min_size=1, max_size=6)


def of(*values: torch.Tensor) -> Histogram:
    """Take batches in one after the other."""
    result = Histogram()
    for value in values:
        result.add(value, float(value.min()), float(value.max()))
    return result


@given(batches, st.randoms(use_true_random=False))
@settings(max_examples=60, deadline=None)
def test_order_and_split_change_nothing(lists: list[list[float]], order: random.Random) -> None:
    """One pass, another order, and two halves merged: equal."""
    values = [torch.tensor(one, dtype=torch.float32) for one in lists]
    whole = of(*values)
    shuffled = list(values)
    order.shuffle(shuffled)
    assert of(*shuffled) == whole
    middle = len(values) // 2
    assert of(*values[:middle]).merge(of(*values[middle:])) == whole
    assert of(*values[middle:]).merge(of(*values[:middle])) == whole


@given(st.lists(numbers, min_size=1, max_size=50))
@settings(max_examples=60, deadline=None)
def test_every_value_is_in_its_bin(values: list[float]) -> None:
    """Bins reach over all values, and each value lies within half a bin of its bin's middle."""
    tensor = torch.tensor(values, dtype=torch.float32)
    found = of(tensor)
    assert int(found.counts.sum()) == len(values)
    width = 2.0**found.exponent
    middles = torch.repeat_interleave(found.centers(), found.counts)
    assert float((middles - tensor.double().sort().values).abs().max()) <= width / 2 * (1 + 1e-9)


def test_bins_double_when_a_larger_value_comes() -> None:
    """Two bins become one; nothing is lost."""
    found = of(torch.linspace(-1, 1, 1001))
    before = found.exponent
    found.add(torch.tensor([3.9]), 3.9, 3.9)
    assert found.exponent == before + 1
    assert int(found.counts.sum()) == 1002


@pytest.mark.parametrize("top", [1.0, 0.999, 1.001, 2.0, 2.0**-30, 3e8])
def test_the_least_exponent_that_reaches(top: float) -> None:
    """The bins reach the value, bins half as wide would not."""
    exponent = exponent_for(-top / 2, top)
    assert top < HALF * 2.0**exponent
    assert top >= HALF * 2.0 ** (exponent - 1)


def test_an_even_sample_of_a_large_tensor() -> None:
    """It is bounded, the same every time, and does not run in step with rows."""
    value = torch.arange(64 * 112 * 112, dtype=torch.float32).reshape(1, 64, 112, 112)
    found = sample(value)
    assert found.numel() <= 4096
    assert torch.equal(found, sample(value))
    assert len(set((found % 112).tolist())) == 112
    assert sample(value.expand(32, -1, -1, -1)).numel() <= MOST_SAMPLES


def test_a_constant_zero() -> None:
    """All in one bin, and later values still fit."""
    found = of(torch.zeros(4), torch.tensor([5.0]))
    assert (found.low, found.high, found.low_sum, found.high_sum) == (0.0, 5.0, Fraction(5), Fraction(5))
    assert int(found.counts[HALF]) == 4


def test_files_hold_everything() -> None:
    """What is written and read is equal."""
    found = of(torch.randn(1000), torch.randn(1000) * 7)
    assert Histogram.from_state(found.to_state()) == found
