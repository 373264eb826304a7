"""Layers over each other: the smallest part of the model that no run cuts through."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st
from support import runs

from embedl_hub.comparison._overlay import overlay
from embedl_hub.core.document import LayerRow


def layer(name: str, time_ms: float | None, *nodes: str, op_type: str = "Conv") -> LayerRow:
    """Return a row of a document."""
    return LayerRow.from_json(runs.layer(name, time_ms, *nodes, op_type=op_type))


def test_fusions_meet_in_one_row() -> None:
    """One run fused what the other ran in two layers."""
    fused = [layer("conv_relu", 3.0, "conv", "relu"), layer("fc", 1.0, "fc")]
    apart = [layer("conv", 2.0, "conv"), layer("relu", 0.5, "relu", op_type="Relu"), layer("fc", 1.5, "fc")]
    first, second = overlay([fused, apart])
    assert first.source_nodes == ("conv", "relu")
    assert first.times_ms == (3.0, 2.5)
    assert first.op_types == (("Conv",), ("Conv", "Relu"))
    assert second.times_ms == (1.0, 1.5)


def test_what_the_runtime_added_is_matched_by_its_operator() -> None:
    """Its names differ from run to run; a run without it has nothing there."""
    rows = overlay([[layer("r1", 0.1, op_type="Reorder"), layer("r2", 0.2, op_type="Reorder")], [layer("c", 1.0, "c")]])
    assert rows[0].name == "Reorder, no source node known"
    assert rows[0].times_ms == (0.1 + 0.2, None)
    assert rows[1].times_ms == (None, 1.0)


_NODES = st.lists(st.sampled_from("abcdefgh"), max_size=3, unique=True)
_TABLES = st.lists(st.lists(st.tuples(_NODES, st.floats(0, 10)), max_size=6), min_size=1, max_size=4)


@given(_TABLES)
def test_no_time_is_lost(tables: list[list[tuple[list[str], float]]]) -> None:
    """Each run's rows add up to what its layers did, and no node stands in two rows."""
    given_rows: list[list[LayerRow]] = [
        [layer(f"l{number}", time, *nodes) for number, (nodes, time) in enumerate(rows)] for rows in tables
    ]
    rows = overlay(given_rows)
    for place, table in enumerate(tables):
        assert abs(sum(row.times_ms[place] or 0.0 for row in rows) - sum(time for _, time in table)) < 1e-9
    nodes = [node for row in rows for node in row.source_nodes]
    assert len(nodes) == len(set(nodes))
