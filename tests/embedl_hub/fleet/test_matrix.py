"""A sweep's matrix: every run in its place, the front, and who held which device when."""

from __future__ import annotations

from pathlib import Path

from hypothesis import given
from hypothesis import strategies as st

from embedl_hub.fleet import Cell, CellState, Plan, Step, StepKind, Target, matrix_of
from embedl_hub.fleet._matrix import Matrix, MatrixCell, Slot
from embedl_hub.tracking import LoggedMetric, LoggedParam, Run, RunStatus, Value

BOARD = Target("board", ("board",))


def _plan(*cells: tuple[str, str]) -> Plan:
    """Return a plan in which each model has one compile step that its options share."""
    steps: dict[str, Step] = {}
    made = []
    for model, option in cells:
        first = f"{model}-compile"
        steps[first] = Step(first, StepKind.COMPILE, "toy", model, Path(model), {}, BOARD)
        second = f"{model}-{option}-profile"
        steps[second] = Step(second, StepKind.PROFILE, "toy", model, Path(model), {}, BOARD, first)
        made.append(Cell(f"{model}-{option}", model, option, "board", (first, second)))
    return Plan("toy", tuple(made), steps)


def _run(run_id: str, step: str, kind: str = "PROFILE", *, tag: str = "step", started_ms: int = 0,
         status: RunStatus = RunStatus.FINISHED, error: str | None = None, metrics: dict[str, float] | None = None,
         params: dict[str, Value] | None = None) -> Run:  # fmt: skip
    return Run(
        run_id, "project", kind, step, status, started_ms, device="board", error=error, tags={tag: step, "model": "m"},
        metrics=tuple(LoggedMetric(name, value) for name, value in (metrics or {}).items()),
        params={name: LoggedParam(name, value) for name, value in (params or {}).items()},
    )  # fmt: skip


def _held(*runs: Run, option: str = "float") -> MatrixCell:
    cell = matrix_of(_plan(("m", option)), runs).cell("m", option, "board")
    assert cell is not None
    return cell


def test_a_cell_without_runs_waits() -> None:
    assert _held().state is CellState.WAITING
    assert _held().run_id is None


def test_a_cell_goes_on_until_its_last_step_has_ended() -> None:
    compiled = _run("c", "m-compile", "COMPILE", params={"from_cache": True})
    assert _held(compiled).state is CellState.RUNNING
    under_way = _run("p", "m-float-profile", status=RunStatus.RUNNING)
    assert _held(compiled, under_way).state is CellState.RUNNING
    done = _held(compiled, _run("p", "m-float-profile", metrics={"latency": 2.0}, params={"verdict": "drifting"}))
    assert (done.state, done.verdict, done.run_id, done.is_cached) == (CellState.DONE, "drifting", "p", True)
    assert done.metrics == {"latency": 2.0}


def test_what_counts_is_the_try_that_finished() -> None:
    failed = _run("one", "m-compile", "COMPILE", started_ms=1, status=RunStatus.FAILED, error="board gone")
    cell = _held(failed)
    assert (cell.state, cell.reason) == (CellState.FAILED, "board gone")
    again = _run("two", "m-compile", "COMPILE", started_ms=2, metrics={"size": 1.0})
    late = _run("three", "m-compile", "COMPILE", started_ms=3, status=RunStatus.KILLED)
    assert _held(late, again, failed).run_ids == {StepKind.COMPILE: "two"}


def test_a_stopped_step_has_a_reason_in_words() -> None:
    cell = _held(_run("one", "m-compile", "COMPILE", status=RunStatus.KILLED))
    assert cell.reason == "The compile step was stopped."


def test_a_shared_step_counts_for_every_cell_that_needs_it() -> None:
    failed = _run("c", "m-compile", "COMPILE", status=RunStatus.FAILED, error="no")
    matrix = matrix_of(_plan(("m", "float"), ("m", "int8"), ("n", "float")), [failed])
    assert matrix.count(CellState.FAILED) == 2
    assert matrix.count(CellState.WAITING) == 1
    assert (matrix.models, matrix.options, matrix.targets) == (("m", "n"), ("float", "int8"), ("board",))


def test_an_evaluation_adds_its_numbers_to_the_cell_it_judges() -> None:
    runs = [_run("c", "m-compile", "COMPILE"), _run("p", "m-float-profile", metrics={"latency": 2.0}),
            _run("e", "m-float-profile", "EVAL", tag="evaluates", started_ms=9, metrics={"accuracy": 0.9})]  # fmt: skip
    cell = _held(*runs)
    assert (cell.run_id, cell.metrics) == ("p", {"latency": 2.0, "accuracy": 0.9})


def test_float_is_held_against_what_was_calibrated() -> None:
    """Its cosine to itself is 1, where another option of the model has one; not where none has."""
    target, cells, steps = "board", [], {}
    for model, option in (("m", "float"), ("m", "int8"), ("n", "float")):
        key = f"{model}-{option}"
        steps[key] = Step(key, StepKind.COMPILE, "toy", model, Path(model), {}, BOARD)
        cells.append(Cell(key, model, option, target, (key,)))
    float32: dict[str, Value] = {"precision": "float32"}
    runs = [
        _run("1", "m-float", "COMPILE", params=float32, metrics={"model_size_mb": 4.0}),
        _run("2", "m-int8", "COMPILE", params={"precision": "int8"},
             metrics={"model_size_mb": 1.0, "calibration_cosine": 0.99}),
        _run("3", "n-float", "COMPILE", params=float32, metrics={"model_size_mb": 4.0}),
    ]  # fmt: skip
    matrix = matrix_of(Plan("toy", tuple(cells), steps), runs)
    front = matrix.front(target, "model_size_mb", "calibration_cosine")
    assert [(point.cell.name, point.y, point.on_front) for point in front] == [
        ("m int8", 0.99, True), ("m float", 1.0, True),
    ]  # fmt: skip


def _of(cells: list[tuple[float, float]]) -> Matrix:
    held = {
        (str(place), "o", "t"): MatrixCell(str(place), "o", "t", CellState.DONE, metrics={"latency": x, "accuracy": y})
        for place, (x, y) in enumerate(cells)
    }
    return Matrix("s", tuple(key[0] for key in held), ("o",), ("t",), held, {})


@given(st.lists(st.tuples(st.integers(1, 8), st.integers(0, 8)), max_size=12))
def test_the_front_holds_exactly_what_nothing_beats(cells: list[tuple[float, float]]) -> None:
    points = _of(cells).front("t", "latency", "accuracy")
    assert sorted((point.x, point.y) for point in points) == sorted(cells)
    beaten = {(x, y) for x, y in cells if any(a <= x and b >= y and (a, b) != (x, y) for a, b in cells)}
    on_front = [(point.x, point.y) for point in points if point.on_front]
    assert set(on_front) == set(cells) - beaten
    assert len(on_front) == len(set(on_front)), "of equal cells one stands for all"


def test_overlaps_are_found_also_behind_a_long_slot() -> None:
    times = [(0, 10), (10, 20), (20, 100), (30, 40), (50, 60), (100, 110)]
    slots = tuple(Slot(str(begin), "s", begin, end, RunStatus.FINISHED) for begin, end in times)
    found = Matrix("s", (), (), (), {}, {"pi": slots}).overlaps()
    assert [(one.from_ms, other.from_ms) for _, one, other in found] == [(20, 30), (20, 50)]


def test_slots_are_what_runs_recorded_of_their_claims() -> None:
    claimed = _run("p", "m-float-profile", params={"$claimed": {"from_ms": 5, "until_ms": 7}})
    odd = _run("q", "m-float-profile", params={"$claimed": {"from_ms": "x"}})
    matrix = matrix_of(_plan(("m", "float")), [claimed, odd])
    assert matrix.slots == {"board": (Slot("p", "profile m", 5, 7, RunStatus.FINISHED),)}
