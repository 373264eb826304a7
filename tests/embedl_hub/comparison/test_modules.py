"""Modules side by side, and which to leave in float."""

from __future__ import annotations

import pytest

from embedl_hub.comparison import ModuleRow
from embedl_hub.comparison._overlay import float_choices, overlay_modules
from embedl_hub.core.document import ProfileDocument
from embedl_hub.core.profile import ModuleTimes, module_times


def times(precision: str, costs: dict[str, float] | None = None, **modules: float) -> ModuleTimes:
    """Return the module table of a run; dots are written as underscores."""
    names = {name.replace("_", "."): time for name, time in modules.items()}
    found = module_times(ProfileDocument.from_json({
        "layers": {"rows": [{"name": "n", "time_ms": time, "modules": [name], "source_nodes": ["s"]}
                            for name, time in names.items()]},
        "modules": {"precisions": dict.fromkeys(names, precision),
                    "sensitivity": None if costs is None else {"unit": "u", "method": "m", "modules": costs}},
    }))  # fmt: skip
    assert found is not None
    return found


def test_rows_are_those_of_all_runs() -> None:
    """What a run does not have is None; neighbors by their largest time."""
    rows = overlay_modules([times("float32", a_x=2.0, b=1.0), None, times("int8", a_x=0.5, c=1.5)])
    assert [row.name for row in rows] == ["", "a", "a.x", "c", "b"]
    assert rows[2].times_ms == (2.0, None, 0.5)
    assert rows[2].precisions == ("float32", None, "int8")
    assert rows[3].own_ms == (None, None, 1.5)
    assert rows[1].own_ms == (None, None, None)
    assert overlay_modules([None, None]) == ()


def test_the_most_accuracy_for_the_least_time_comes_first() -> None:
    """A module that is faster in float is the best choice of all; one that matters in no way is not named."""
    rows = overlay_modules([
        times("float32", head=0.1, stem=0.2, deep=4.0, wide=3.0, small=1.0),
        times("int8", {"head": 0.7, "stem": 0.0, "deep": 0.1, "wide": 0.2, "small": 0.001},
              head=0.05, stem=0.5, deep=1.0, wide=1.0, small=0.5),
    ])  # fmt: skip
    found = float_choices(rows)
    assert [choice.name for choice in found] == ["stem", "head", "wide", "deep"]
    assert found[0].sentence() == "Leaving stem in float saves 0.3 ms and wins back 0.0% of the quantization loss."
    assert found[1].sentence() == "Leaving head in float costs +0.05 ms and wins back 69.9% of the quantization loss."
    assert found[1].extra_ms == pytest.approx(0.05)
    assert (found[1].float_run, found[1].quantized_run) == (0, 1)


@pytest.mark.parametrize(
    ("own_ms", "precisions", "share"),
    [
        ((1.0, 0.5), ("float32", "int8"), None), ((1.0, 0.5), ("float32", "float16"), 0.5),
        ((1.0, 0.5), ("int8", "int8"), 0.5), ((1.0, 0.5), ("float32", None), 0.5),
        ((1.0, None), ("float32", "int8"), 0.5),
        ((1.0, 0.5), ("float32", "float32, asked for int8"), 0.5),
    ],
)  # fmt: skip
def test_without_both_sides_there_is_no_choice(
    own_ms: tuple[float | None, ...], precisions: tuple[str | None, ...], share: float | None
) -> None:
    """Float time, quantized time and loss are all needed."""
    network = ModuleRow("", (2.0, 1.0), (None, None), (None, None), None)
    assert float_choices([network, ModuleRow("a", own_ms, own_ms, precisions, share)]) == ()
