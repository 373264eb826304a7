"""Numbers that contradict each other are refused, whichever of them is wrong."""

from __future__ import annotations

import pytest
from support import samples_trtexec as samples

from embedl_hub.refusal import RefusedError
from embedl_hub.toolchains.tensorrt.layers import Query, parse_times
from embedl_hub.toolchains.tensorrt.profile import check_summary, throttling

QUERIES = parse_times(samples.TIMES)


def test_times_that_agree_with_what_was_printed() -> None:
    """Or where nothing was printed."""
    check_summary(QUERIES, samples.LOG)
    check_summary(QUERIES, "nothing")


@pytest.mark.parametrize("printed", ["median = 1260 us", "median = 1260 ms", "median = 0.00126 ms"])
def test_times_that_do_not(printed: str) -> None:
    """Another unit in one of the two, said or not."""
    with pytest.raises(RefusedError, match="Both are kept"):
        check_summary(QUERIES, samples.LOG.replace("median = 1.26 ms", printed))


def test_a_file_in_another_unit() -> None:
    """All columns alike, so that their sums still hold."""
    wrong = [Query(*(value * 1e3 for value in (q.latency_ms, q.compute_ms, q.h2d_ms, q.d2h_ms))) for q in QUERIES]
    with pytest.raises(RefusedError, match=r"1\.26 ms but wrote times with a median of 1267"):
        check_summary(wrong, samples.LOG)


@pytest.mark.parametrize(
    ("bits", "words"),
    [
        ("0x0000000000000000", []),
        ("0x0000000000000001", []),
        ("0x0000000000000004", ["the GPU reports power cap"]),
        ("0x0000000000000048", ["the GPU reports hardware slowdown", "the GPU reports thermal slowdown"]),
        ("Not Supported", []),
    ],
)
def test_reasons_of_the_driver(bits: str, words: list[str]) -> None:
    """Idle is none; heat and power are."""
    assert throttling({"clocks_event_reasons": bits}) == words
