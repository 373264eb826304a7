"""A sweep, carried out on threads: what is shared is done once, and every cell ends once."""

from __future__ import annotations

import json
import logging
import threading
import time
from collections import Counter
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING

import pytest
from support.fleet import (
    Heard,
    assert_each_ended_once,
    assert_no_overlap,
    model_files,
    plain_device,
    plain_sweep,
    store_of,
)
from support.processes import wait_until

from embedl_hub.core.device import Device, LocalCommandRunner
from embedl_hub.errors import ConfigError
from embedl_hub.fleet import (
    CellState,
    DeviceSelection,
    Listener,
    Outcome,
    Step,
    StepKind,
    Sweep,
    SweepOption,
    Target,
    Threads,
    expand,
    find_sweep,
    plan_sweep,
    run_sweep,
)
from embedl_hub.testing import temporary_context
from embedl_hub.tracking import RunStatus

if TYPE_CHECKING:
    from pathlib import Path


def test_shared_steps_are_done_once_and_cells_end_once(tmp_path: Path) -> None:
    """Two options differ in how they profile: one compile serves both."""
    note = tmp_path / "note"
    sweep = plain_sweep(
        model_files(tmp_path, 2),
        options={"a": {"value": 1.0, "note": str(note)}, "b": {"value": 2.0, "note": str(note)}},
    )
    heard = Heard()
    with temporary_context([plain_device("x"), plain_device("y")]) as ctx:
        result = run_sweep(ctx, sweep, listener=heard)
        store = store_of(ctx)
        assert store.count("type = 'COMPILE'") == 4
        assert store.count("type = 'PROFILE'") == 8
        own = store.run(result.id)
        assert own.component == "Sweep"
        assert own.status is RunStatus.FINISHED
        plan = json.loads(own.artifacts["plan"].local().read_text())
        assert [cell["id"] for cell in plan["cells"]] == [cell.id for cell in result.plan.cells]
        tags = store.find("type = 'PROFILE'").runs[0].tags
        assert tags["sweep"] == result.id
        assert tags["step"] in result.plan.steps
        assert assert_no_overlap(store, result.id) == 12
    assert result.count(CellState.DONE) == 8
    assert {each.metrics.get("latency_median") for each in result.cells} == {1.0, 2.0}
    assert result.cells[0].outcomes[StepKind.PROFILE].verdict == "stable"
    assert_each_ended_once(result, heard)
    assert len(heard.steps) == 12
    assert len(note.read_text().splitlines()) == 8


def test_a_failed_compile_ends_the_cells_that_need_it(tmp_path: Path) -> None:
    """With its reason; the other cells go on, and a model's own failure is not tried again."""
    options = (
        SweepOption("good"),
        SweepOption("bad", {StepKind.COMPILE: {"fail": "no such operator"}}),
        SweepOption("poor", {StepKind.PROFILE: {"fail": "out of memory"}}),
    )
    heard = Heard()
    with temporary_context([plain_device("x")]) as ctx:
        sweep = Sweep("s", "plain", model_files(tmp_path, 1), options, retries=2)
        result = run_sweep(ctx, sweep, listener=heard)
        assert store_of(ctx).count("type = 'PROFILE'") == 2
    assert [(each.state, each.reason) for each in result.cells] == [
        (CellState.DONE, None),
        (CellState.FAILED, "compile failed: no such operator"),
        (CellState.FAILED, "profile failed: out of memory"),
    ]
    assert_each_ended_once(result, heard)


def test_a_models_failure_is_tried_again_where_asked(tmp_path: Path) -> None:
    """As often as retries says, then it ends."""
    note = tmp_path / "note"
    sweep = plain_sweep(
        model_files(tmp_path, 1), options={"bad": {"fail": "flaky", "note": str(note)}}, retries=2, retry_failures=True
    )
    with temporary_context([plain_device("x")]) as ctx:
        result = run_sweep(ctx, sweep)
    assert result.count(CellState.FAILED) == 1
    assert len(note.read_text().splitlines()) == 3


def test_a_pool_serves_one_queue(tmp_path: Path) -> None:
    """Two boards share the work of one target, at the same time."""
    sweep = plain_sweep(model_files(tmp_path, 4), options={"a": {"wait_s": 0.2}})
    with temporary_context([plain_device("x"), plain_device("y")]) as ctx:
        result = run_sweep(ctx, expand(sweep, (Target("pool", ("x", "y")),)))
        counts = Counter(run.device for run in store_of(ctx).runs("type = 'PROFILE'"))
        assert_no_overlap(store_of(ctx), result.id)
    assert result.count(CellState.DONE) == 4
    assert set(counts) == {"x", "y"}


def test_a_resumed_sweep_does_only_what_is_left(tmp_path: Path) -> None:
    """Finished steps stay, a model's own failure stays unless asked for, the id stays the same."""
    note = tmp_path / "note"
    models = model_files(tmp_path, 2)
    sweep = plain_sweep(models, options={"a": {"note": str(note)}, "bad": {"fail": "no", "note": str(note)}})
    with temporary_context([plain_device("x")]) as ctx:
        first = run_sweep(ctx, sweep)
        more = replace(sweep, models=(*models, *model_files(tmp_path / "more", 3)[2:]))
        heard = Heard()
        second = run_sweep(ctx, more, resume=first.id, listener=heard)
        assert second.id == first.id
        assert len(second.reused) == 6
        assert len(heard.steps) == 3
        assert_each_ended_once(second, heard)
        assert len(note.read_text().splitlines()) == 6
        assert find_sweep(store_of(ctx), "test", "plain") == first.id
        third = run_sweep(ctx, more, resume=first.id, retry_failed=True)
        assert len(note.read_text().splitlines()) == 9
        assert third.count(CellState.FAILED) == 3


def test_a_sweep_to_resume_must_be_there(tmp_path: Path) -> None:
    """And not go on elsewhere."""
    sweep = plain_sweep(model_files(tmp_path, 1))
    with temporary_context([plain_device("x")]) as ctx:
        with pytest.raises(ConfigError, match="no sweep 'x' in"):
            run_sweep(ctx, sweep, resume="x")
        with pytest.raises(ConfigError, match="no sweep 'plain' to go on with"):
            find_sweep(store_of(ctx), "test", "plain")
        with ctx.client.start_run("CUSTOM", "plain", component="Sweep") as run:
            run.log_tag("sweep", run.id)
            wait_until(lambda: bool(store_of(ctx).tagged("sweep", [run.id])), 10)
            with pytest.raises(ConfigError, match="still going on"):
                run_sweep(ctx, sweep, resume=run.id)


def test_measurements_are_made_anew_unless_asked(tmp_path: Path) -> None:
    """A second sweep measures again; with reuse_measurements it takes the earlier numbers and says so."""
    sweep = plain_sweep(model_files(tmp_path, 1))
    with temporary_context([plain_device("x")]) as ctx:
        run_sweep(ctx, sweep)
        again = run_sweep(ctx, sweep)
        assert store_of(ctx).count("type = 'PROFILE'") == 2
        assert not again.cells[0].outcomes[StepKind.PROFILE].is_cached
        reused = run_sweep(ctx, replace(sweep, reuse_measurements=True))
        assert store_of(ctx).count("type = 'PROFILE'") == 2
        assert reused.cells[0].outcomes[StepKind.PROFILE].is_cached
        assert reused.cells[0].metrics.get("latency_median") == 1.0


def test_this_machine_needs_no_device(tmp_path: Path) -> None:
    """A context without devices sweeps here; profiles alone take the files as they are."""
    with temporary_context() as ctx:
        result = run_sweep(ctx, plain_sweep(model_files(tmp_path, 2), steps=(StepKind.PROFILE,)))
        assert store_of(ctx).count("type = 'PROFILE'") == 2
        resumed = run_sweep(ctx, result.plan, resume=result.id)
    assert [each.cell.target for each in result.cells] == ["here", "here"]
    assert len(resumed.reused) == 2


def test_a_sweep_needs_a_store(tmp_path: Path) -> None:
    """Without one it could not be resumed."""
    with temporary_context([plain_device("x")], tracking=False) as ctx, pytest.raises(ConfigError, match="store"):
        run_sweep(ctx, plain_sweep(model_files(tmp_path, 1)))


def test_a_hanging_command_is_stopped_at_the_time_limit(tmp_path: Path) -> None:
    """Its thread comes free, its lease goes, the device works on; the run keeps why."""
    device = Device("x", LocalCommandRunner(), provider_type="plain", lease_dir=str(tmp_path / "lease"))
    sweep = plain_sweep(
        model_files(tmp_path, 1), options={"hang": {"command": ("sleep", "60")}, "good": {}}, timeout_s=1, retries=1
    )
    heard = Heard()
    with temporary_context([device]) as ctx:
        result = run_sweep(ctx, sweep, listener=heard)
        runs = store_of(ctx).runs("type = 'PROFILE' and status = 'FAILED'")
        assert [run.tags["stopped"] for run in runs] == ["It was stopped at its time limit of 1 s."] * 2
        assert_no_overlap(store_of(ctx), result.id)
        with LocalCommandRunner().lease(str(tmp_path / "lease"), "the test", wait_s=0):
            pass
    assert [each.state for each in result.cells] == [CellState.FAILED, CellState.DONE]
    assert "time limit of 1 s" in str(result.cells[0].reason)
    assert any("is tried again" in text for text in heard.words)
    assert_each_ended_once(result, heard)


def test_a_step_that_cannot_be_stopped_is_left_behind(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    """Its thread is abandoned, its device gets no more work, its lease is free, and the sweep goes on elsewhere."""
    stuck = Device("stuck", LocalCommandRunner(), provider_type="plain", lease_dir=str(tmp_path / "lease"))
    sweep = plain_sweep(
        model_files(tmp_path, 2), options={"hang": {"hang": True}, "good": {}}, timeout_s=0.5, retries=0
    )
    plan = expand(sweep, (Target("stuck", ("stuck",)), Target("fine", ("fine",))))
    hanging = [cell for cell in plan.cells if cell.option == "hang" and cell.target == "fine"]
    plan = replace(plan, cells=tuple(cell for cell in plan.cells if cell not in hanging))
    plan = replace(plan, steps={key: plan.steps[key] for cell in plan.cells for key in cell.steps})
    heard = Heard()
    with temporary_context([stuck, plain_device("fine")]) as ctx, caplog.at_level(logging.WARNING):
        result = run_sweep(ctx, plan, engine=Threads(cut_after_s=0.3, give_up_after_s=1), listener=heard)
        with LocalCommandRunner().lease(str(tmp_path / "lease"), "the test", wait_s=0):
            pass
        assert not store_of(ctx).runs("status = 'RUNNING'")
    by_id = {each.cell.id: each for each in result.cells}
    assert by_id["m0/good/fine"].state is by_id["m1/good/fine"].state is CellState.DONE
    assert "its thread was left behind and device 'stuck' gets no more work" in str(by_id["m0/hang/stuck"].reason)
    assert "No device is left for target 'stuck'" in str(by_id["m1/hang/stuck"].reason)
    assert "did not end" in caplog.text
    assert_each_ended_once(result, heard)


@dataclass
class Nurse:
    """A watch over boards that a test directs."""

    out: set[str] = field(default_factory=set)
    reports: list[str] = field(default_factory=list)

    def report_failure(self, name: str) -> None:
        """Take the board out."""
        self.reports.append(name)
        self.out.add(name)

    def is_in(self, name: str) -> bool:
        """Tell."""
        return name not in self.out

    def why_out(self, name: str) -> str:
        """Say so."""
        return f"{name} is ill."

    def settled(self, name: str, timeout_s: float | None = None) -> None:
        """The answer is there at once."""


def test_a_board_that_is_not_well_gets_no_work_until_it_is(tmp_path: Path) -> None:
    """It is waited for at the end; its cells are done when it comes back."""
    nurse = Nurse({"x"})
    heard = Heard()
    with temporary_context([plain_device("x"), plain_device("y")]) as ctx:
        timer = threading.Timer(1.5, nurse.out.clear)
        timer.start()
        result = run_sweep(ctx, plain_sweep(model_files(tmp_path, 2)), health=nurse, listener=heard, board_wait_s=30)
        timer.join()
    assert result.count(CellState.DONE) == 4
    assert [each.cell.target for each in heard.cells] == ["y", "y", "x", "x"]
    assert heard.words == [
        "Device 'x' gets no more work: did not pass its health check (x is ill).",
        "Device 'x' is back.",
    ]


def test_cells_of_a_board_that_stays_out_are_skipped(tmp_path: Path) -> None:
    """With the reason, once nothing else is left to do."""
    heard = Heard()
    with temporary_context([plain_device("x"), plain_device("y")]) as ctx:
        result = run_sweep(
            ctx, plain_sweep(model_files(tmp_path, 2)), health=Nurse({"x"}), listener=heard, board_wait_s=0.5
        )
    assert [(each.cell.target, each.state) for each in result.cells] == [
        ("x", CellState.SKIPPED), ("y", CellState.DONE), ("x", CellState.SKIPPED), ("y", CellState.DONE),
    ]  # fmt: skip
    assert (
        result.cells[0].reason == "No device of target 'x' may be used: 'x' did not pass its health check (x is ill)."
    )
    assert_each_ended_once(result, heard)


def test_leaving_the_engine_stops_what_runs(tmp_path: Path) -> None:
    """Within moments, whatever the step would still do; what waited is taken back."""
    device = Device("x", LocalCommandRunner(), provider_type="plain", lease_dir=str(tmp_path / "lease"))
    sweep = plain_sweep(
        model_files(tmp_path, 2), options={"a": {"command": ("sleep", "60")}}, devices=DeviceSelection(("x",))
    )

    class Impatient(Listener):
        def step_ended(self, step: Step, outcome: Outcome) -> None:
            if step.kind is StepKind.COMPILE and step.model == "m1":
                raise KeyboardInterrupt

    with temporary_context([device]) as ctx:
        plan = plan_sweep(ctx, sweep)
        started = time.monotonic()
        with pytest.raises(KeyboardInterrupt):
            run_sweep(ctx, plan, listener=Impatient())
        assert time.monotonic() - started < 30
        with LocalCommandRunner().lease(str(tmp_path / "lease"), "the test", wait_s=0):
            pass
        (own,) = store_of(ctx).runs("component = 'Sweep'")
        assert own.status is RunStatus.KILLED
        assert not store_of(ctx).runs("status = 'RUNNING'")
