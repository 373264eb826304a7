"""From a sweep to its plan."""

from __future__ import annotations

import time
from dataclasses import replace
from typing import TYPE_CHECKING

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from support.fleet import model_files, plain_sweep

from embedl_hub.errors import ConfigError
from embedl_hub.fleet import StepKind, Sweep, SweepModel, SweepOption, Target, expand
from embedl_hub.fleet._plan import check_sweep

if TYPE_CHECKING:
    from pathlib import Path

ALL = (StepKind.COMPILE, StepKind.PROFILE, StepKind.INVOKE)
VALUES = st.dictionaries(st.sampled_from(["a", "b"]), st.integers(0, 2), max_size=2)


@settings(max_examples=60, deadline=None)
@given(
    contents=st.lists(st.sampled_from(["one", "two"]), min_size=1, max_size=3),
    options=st.lists(st.tuples(VALUES, VALUES), min_size=1, max_size=4),
    targets=st.integers(1, 3),
)
def test_every_cell_is_there_and_every_step_once(
    tmp_path_factory: pytest.TempPathFactory,
    contents: list[str],
    options: list[tuple[dict[str, int], dict[str, int]]],
    targets: int,
) -> None:
    """Cells are the product; two cells share a step exactly where all that decides its result is the same."""
    folder = tmp_path_factory.mktemp("models")
    models = []
    for number, content in enumerate(contents):
        (folder / f"{number}").write_text(content)
        models.append(SweepModel(f"m{number}", folder / f"{number}"))
    made = tuple(
        SweepOption(f"o{number}", {StepKind.COMPILE: compiling, StepKind.PROFILE: profiling})
        for number, (compiling, profiling) in enumerate(options)
    )
    places = tuple(Target(f"t{number}", (f"t{number}",)) for number in range(targets))
    plan = expand(Sweep("s", "plain", tuple(models), made, steps=ALL[:2]), places)
    assert len(plan.cells) == len(contents) * len(options) * targets
    assert len({cell.id for cell in plan.cells}) == len(plan.cells)
    seen: dict[str, object] = {}
    for cell in plan.cells:
        content = contents[int(cell.model[1:])]
        compiling, profiling = options[int(cell.option[1:])]
        compiled, profiled = cell.steps
        assert plan.steps[compiled].after is None
        assert plan.steps[profiled].after == compiled
        for key, facts in ((compiled, (content, compiling)), (profiled, (content, compiling, profiling))):
            assert seen.setdefault(key, (cell.target, facts)) == (cell.target, facts)
    assert len(set(map(repr, seen.values()))) == len(seen) == len(plan.steps)


def test_a_step_is_known_by_content_not_by_path(tmp_path: Path) -> None:
    """The same files elsewhere give the same keys; a changed data file gives others, for the steps that use it."""
    here, there = Target("t", ("t",)), []
    for folder in ("a", "b"):
        (model,) = model_files(tmp_path / folder, 1)
        (tmp_path / folder / "data").write_text("numbers")
        there.append(replace(model, data={"calibration": tmp_path / folder / "data"}))
    option = SweepOption("int8", {StepKind.COMPILE: {"calibration_data": "$calibration"}})

    def keys(model: SweepModel) -> tuple[str, ...]:
        return expand(Sweep("s", "plain", (model,), (option,)), (here,)).cells[0].steps

    assert keys(there[0]) == keys(there[1])
    (tmp_path / "b" / "data").write_text("other numbers")
    assert set(keys(there[0])).isdisjoint(keys(there[1]))


def test_ten_thousand_cells_are_written_out_at_once(tmp_path: Path) -> None:
    """Apart from reading files, in far less than a second; a slow machine is given thrice that."""
    models = model_files(tmp_path, 1)
    many = tuple(SweepModel(f"m{number}", models[0].path) for number in range(100))
    options: dict[str, dict[str, object]] = {f"o{number}": {"value": number} for number in range(100)}
    started = time.process_time()
    plan = expand(plain_sweep(many, options=options), (Target("t", ("t",)),))
    assert time.process_time() - started < 3
    assert len(plan.cells) == 10_000
    # One compile for all, and one profile for each option: the models' contents are the same.
    assert len(plan.steps) == 1 + 100


def test_a_model_may_have_values_of_its_own(tmp_path: Path) -> None:
    """An option's go before them; a slip in them is named with the model."""
    (model,) = model_files(tmp_path, 1)
    own = replace(model, steps={StepKind.PROFILE: {"wait_s": 0.5, "value": 2.0}})
    sweep = plain_sweep((own,), options={"default": {}, "fast": {"wait_s": 0.1}})
    plan = expand(sweep, (Target("here", ()),))
    values = [plan.steps[cell.steps[-1]].values for cell in plan.cells]
    assert [dict(one) for one in values] == [{"wait_s": 0.5, "value": 2.0}, {"wait_s": 0.1, "value": 2.0}]
    wrong = replace(model, steps={StepKind.PROFILE: {"speed": 1, "note": "$notes"}})
    with pytest.raises(ConfigError) as raised:
        check_sweep(plain_sweep((wrong,)))
    for text in ("model 'm0', profile has no 'speed'", "model 'm0' has no data 'notes'"):
        assert text in str(raised.value)
