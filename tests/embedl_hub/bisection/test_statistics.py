"""The decisions: Student's t without scipy, and the error of a whole search as simulated."""

import math
import random

import pytest

from embedl_hub.bisection._statistics import (
    LOOKS,
    estimate,
    is_hopeless,
    level_at,
    mcnemar_p,
    share_of,
    student_p,
    student_quantile,
)


@pytest.mark.parametrize(
    ("t", "degrees", "p"),
    [(2.5706, 5, 0.05), (4.0321, 5, 0.01), (63.657, 1, 0.01), (3.1693, 10, 0.01), (1.0, 1, 0.5), (12.924, 3, 0.001)],
)
def test_student_is_as_in_the_tables(t: float, degrees: int, p: float) -> None:
    """Two-sided probabilities and quantiles are those of the printed tables."""
    assert student_p(t, degrees) == pytest.approx(p, rel=1e-3)
    assert student_quantile(p, degrees) == pytest.approx(t, rel=1e-3)


def test_no_search_spends_more_than_its_error() -> None:
    """The shares of any number of decisions, and of all looks within one, add up to no more than what is given."""
    assert math.fsum(share_of(number, 0.01) for number in range(1, 5000)) <= 0.01
    assert math.fsum(level_at(1.0) for _ in LOOKS) <= 1.0 + 1e-12


def test_equal_ends_are_called_different_less_often_than_allowed() -> None:
    """Looked at nine times, sittings without a difference are called different in no more than the share of cases."""
    draws, wrong = random.Random(7), 0  # noqa: S311 - no secret
    for _ in range(1500):
        values = [draws.gauss(0.0, 0.02) for _ in range(LOOKS[-1])]
        wrong += any(
            not found.low <= 0.0 <= found.high
            for count in LOOKS
            for found in [estimate(values[:count], level_at(0.05))]
        )

    # 5 % of 1500 are 75; three standard deviations above that would be 100.
    assert wrong <= 75


def test_one_disturbed_sitting_neither_moves_nor_widens_much() -> None:
    """From eight sittings on, a value that is far off counts as the next one does."""
    values = [0.10, 0.11, 0.09, 0.10, 0.12, 0.08, 0.11, 0.10]

    calm, disturbed = estimate(values, 0.01), estimate([*values[:-1], 5.0], 0.01)

    assert disturbed.mean == pytest.approx(calm.mean, abs=0.01)
    assert disturbed.high - disturbed.low < 2 * (calm.high - calm.low)


def test_the_trimmed_interval_misses_no_more_often_than_it_says() -> None:
    """On normal values, at counts where it is trimmed; its own table would let it miss more often."""
    draws, level, count = random.Random(11), 0.02, 12  # noqa: S311 - no secret

    wrong = 0
    for _ in range(4000):
        found = estimate([draws.gauss(0.0, 1.0) for _ in range(count)], level)
        wrong += not found.low <= 0.0 <= found.high

    assert wrong <= 4000 * level


@pytest.mark.parametrize(("distance", "sittings", "hopeless"), [(0.0, 16, True), (0.05, 16, False), (0.0, 8, False)])
def test_it_gives_up_only_where_luck_would_not_help(distance: float, sittings: int, hopeless: bool) -> None:
    """A middle on the bound is hopeless, one well beyond it only takes more sittings, and early nobody gives up."""
    found = estimate([0.03 * (-1) ** number for number in range(sittings)], 1e-4)

    assert is_hopeless(found, distance, 1e-4, sittings=sittings, most=LOOKS[-1]) is hopeless


def test_mcnemar_counts_only_what_the_two_answer_otherwise() -> None:
    """Nine to one by chance is about 2 %, nothing to nothing is certain."""
    assert mcnemar_p(9, 1) == pytest.approx(0.021484, rel=1e-3)
    assert mcnemar_p(1, 9) == mcnemar_p(9, 1)
    assert mcnemar_p(0, 0) == 1.0
    assert mcnemar_p(50, 50) == 1.0
