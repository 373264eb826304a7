"""The event dump: medians in the order of the run, and a dump that is none says why there are no layers."""

from __future__ import annotations

import struct

import pytest

from embedl_executorch.etdump import Event, NoLayersError, as_rows, read_runs


def test_layers_are_medians_of_runs_that_were_alike() -> None:
    """Shares add up."""
    runs = [
        [Event("Convolution (NHWC, QC8) IGEMM #1", 0, True, time), Event("mean.out", 1, False, 1.0)]
        for time in (2.0, 3.0, 10.0)
    ]
    table = as_rows(runs)
    assert table["runs"] == 3
    assert [row["time_ms"] for row in table["rows"]] == [0.003, 0.001]
    assert [row["provider"] for row in table["rows"]] == ["XNNPACK", "portable"]
    assert table["rows"][0]["op_type"] == "Convolution (NHWC, QC8) IGEMM"
    assert sum(row["share"] for row in table["rows"]) == pytest.approx(1)
    with pytest.raises(NoLayersError, match="not alike"):
        as_rows([runs[0], runs[0][:1]])


@pytest.mark.parametrize(
    "content",
    [
        b"",
        b"\0\0\0\0nothing at all",
        struct.pack("<II4s", 100, 8, b"ED00"),
        struct.pack("<II4sI", 100, 8, b"ED00", 0xFFFFFFFF),
        struct.pack("<II4siHHHHIII", 100, 8, b"ED00", 8, 8, 8, 0, 4, 4, 0x7FFFFFFF, 0),
    ],
)
def test_a_dump_that_is_cut_short_or_points_elsewhere_is_no_crash(content: bytes) -> None:
    """The message goes into the profile in place of layers."""
    with pytest.raises(NoLayersError):
        as_rows(read_runs(content))
