"""Time per module adds up to the time of the layers, whatever the names."""

from __future__ import annotations

from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from embedl_hub.core.document import ProfileDocument
from embedl_hub.core.profile import ModuleTimes, module_times

_NAMES = st.lists(st.sampled_from("abc"), max_size=4).map(".".join)


def layer(time: float | None, modules: list[str] | None = None, **more: Any) -> dict[str, Any]:
    """Return a row of a profile document."""
    return {"name": "n", "time_ms": time, "modules": modules, "source_nodes": ["s"] if modules else [], **more}


def table(*rows: dict[str, Any], **told: Any) -> ModuleTimes:
    """Return the module table of a document."""
    found = module_times(ProfileDocument.from_json({"layers": {"rows": list(rows)}, "modules": told}))
    assert found is not None
    return found


def test_time_rolls_up_the_names() -> None:
    """A module has the time of all inside it; the costliest of neighbors comes first."""
    found = table(layer(1.0, ["f.3.conv", "f.3.bn"]), layer(2.0, ["f.4"]), layer(0.5, [""]), layer(0.25, ["f.3"]))
    assert [(row.name, row.time_ms, row.own_ms) for row in found.rows] == [
        ("", 3.75, 0.5), ("f", 3.25, None), ("f.4", 2.0, 2.0), ("f.3", 1.25, 0.25), ("f.3.conv", 1.0, 1.0),
    ]  # fmt: skip
    assert [row.name for row in found.costliest] == ["f.4", "f.3.conv", "", "f.3"]
    assert [row.depth for row in found.rows] == [0, 1, 2, 2, 3]


@given(st.lists(st.tuples(st.floats(0, 1e3), st.none() | _NAMES, st.booleans()), max_size=12))
def test_nothing_is_lost_and_nothing_counts_twice(layers: list[tuple[float, str | None, bool]]) -> None:
    """Own times and what belongs to no module are the whole; a module has its own and its children's."""
    rows = [
        layer(time, None if name is None else [name], **({} if name is not None else {"source_nodes": ["s"] * known}))
        for time, name, known in layers
    ]
    found = table(*rows)
    own = sum(row.own_ms or 0.0 for row in found.rows)
    assert own + found.added_ms + found.unnamed_ms == pytest.approx(sum(time for time, _, _ in layers))
    for row in found.rows:
        inside = [one for one in found.rows if one.name and one.name != row.name and _is_child(one.name, row.name)]
        assert row.time_ms == pytest.approx((row.own_ms or 0.0) + sum(one.time_ms for one in inside))


def _is_child(name: str, parent: str) -> bool:
    return name.rpartition(".")[0] == parent


@pytest.mark.parametrize(
    ("ran", "asked", "shown"),
    [
        ([None], "int8", "int8"), ([None], None, None), ([True], "int8", "int8"), ([True], "float32", "int8"),
        ([True], None, "int8"), ([False], "float16", "float16"), ([False], "int8", "float32, asked for int8"),
        ([False, None], None, "float32"), ([True, False], "int8", "int8 and float32"),
        ([True], "int8, weights int4", "int8, weights int4"),
    ],
)  # fmt: skip
def test_what_ran_counts_for_more_than_what_was_asked(
    ran: list[bool | None], asked: str | None, shown: str | None
) -> None:
    """A file may ask for integers that the runtime has no kernel for; the hub may have quantized a float file."""
    rows = [layer(1.0, ["a"], integer=integer) for integer in ran]
    found = table(*rows, precisions={} if asked is None else {"a": asked})
    assert found.rows[1].precision == shown


def test_a_float_layer_that_the_runtime_quantized_is_told() -> None:
    """In a file that quantizes others: its maker left this one in float on purpose."""
    rows = [layer(1.0, ["a"], integer=True), layer(1.0, ["b"], integer=True)]
    found = table(*rows, precisions={"a": "float32", "b": "int8"})
    assert {row.name: row.precision for row in found.rows[1:]} == {"a": "int8, asked for float32", "b": "int8"}


def test_costs_stand_beside_times() -> None:
    """With unit, method and their part of the whole."""
    told = {"unit": "points", "method": "measured", "modules": {"a": 3.0, "b": 1.0, "gone": 0.0}}
    found = table(layer(1.0, ["a"]), layer(1.0, ["c"]), sensitivity=told)
    rows = {row.name: row for row in found.rows}
    assert (rows["a"].sensitivity, rows["a"].sensitivity_share) == (3.0, 0.75)
    assert rows["c"].sensitivity is None
    assert (found.unit, found.method) == ("points", "measured")


@pytest.mark.parametrize(
    "document",
    [
        {},
        {"modules": 3},
        {"modules": {}, "layers": []},
        {"modules": {}, "layers": {"rows": 3}},
        {"layers": {"rows": []}},
    ],
)  # fmt: skip
def test_a_document_without_modules_has_no_table(document: dict[str, Any]) -> None:
    """Older documents, and models of other exporters."""
    assert module_times(ProfileDocument.from_json(document)) is None


def test_odd_values_are_left_out() -> None:
    """A document may be damaged or made by others."""
    found = table(
        layer(None, ["a"]), layer(1.0, ["a"]), {"modules": [3]}, {"modules": "a", "time_ms": True},
        precisions=[1], sensitivity={"modules": {"a": "x"}}, problem=4,
    )  # fmt: skip
    assert [(row.name, row.time_ms, row.precision, row.sensitivity) for row in found.rows] == [
        ("", 1.0, None, None), ("a", 1.0, None, None),
    ]  # fmt: skip
    assert found.problem is None
