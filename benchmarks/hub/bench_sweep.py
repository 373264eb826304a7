"""Does a sweep keep its boards busy, and what does it add to recording?

- Eight boards, each a real sshd on loopback, and jobs that wait on them: the time that the jobs ask for, over the time
  that eight boards were there for. Lease, run folder, records and connections are all in the latter.
- A sweep of 10,000 cells whose jobs do nothing: time per cell, less that of the same number of bare runs with the same
  values, half of them recorded before the sweep and half after it.
- How long the finished sweep needs to find that nothing is left to do, with its context opened anew.

    python benchmarks/hub/bench_sweep.py [--engine threads ...] [--cells 10000] [--wait-s 5] [--jobs 6] [--json FILE]
"""

from __future__ import annotations

import contextlib
import sys
import tempfile
import time
from pathlib import Path
from typing import TYPE_CHECKING, Any

sys.path.insert(0, str(Path(__file__).parents[1]))
sys.path.insert(0, str(Path(__file__).parents[2] / "tests"))
from figures import Figure, bounded, declared
from report import Session, parser
from support.fleet import PROVIDER, assert_no_overlap, model_files, plain_device, plain_sweep, store_of
from support.sshd import SSHServer

from embedl_hub.core import HubContext
from embedl_hub.core.device import Device, SSHCommandRunner
from embedl_hub.fleet import CellState, StepKind, SweepModel, find_engine, plan_sweep, run_sweep

if TYPE_CHECKING:
    from collections.abc import Iterator

    from embedl_hub.tracking import Client, Run

BOARDS = 8
ENGINES = ("threads",)
LEAST_EFFICIENCY, MOST_MS_A_CELL, MOST_RESUME_S = 0.9, 10.0, 2.0


@contextlib.contextmanager
def boards(folder: Path) -> Iterator[list[Device]]:
    """Yield eight boards."""
    with contextlib.ExitStack() as ending:
        devices = []
        for number in range(BOARDS):
            server = SSHServer(folder / f"sshd{number}").start()
            ending.callback(server.stop)
            runner = SSHCommandRunner(server.config())
            ending.callback(runner.close)
            devices.append(
                Device(f"board{number}", runner, provider_type=PROVIDER, lease_dir=str(folder / f"lease{number}"))
            )
        yield devices


def scaling(folder: Path, engine: str, jobs: int, wait_s: float) -> dict[str, object]:
    """Return how busy eight boards were kept by jobs that wait on each of them."""
    options: dict[str, dict[str, object]] = {"wait": {"command": ("sleep", str(wait_s))}}
    sweep = plain_sweep(model_files(folder / "models", jobs), options=options)
    with boards(folder) as devices, HubContext("bench", devices, home=folder / "home") as ctx:
        plan = plan_sweep(ctx, sweep)
        started = time.perf_counter()
        result = run_sweep(ctx, plan, engine=find_engine(engine))
        wall_s = time.perf_counter() - started
        assert result.count(CellState.DONE) == jobs * BOARDS, [each.reason for each in result.cells]
        claims = assert_no_overlap(store_of(ctx), result.id)
    asked_s = jobs * BOARDS * wait_s
    return {
        "boards": BOARDS, "jobs": jobs * BOARDS, "wait_s": wait_s, "wall_s": wall_s, "asked_s": asked_s,
        "efficiency": asked_s / (BOARDS * wall_s), "added_s_a_job": (BOARDS * wall_s - asked_s) / (jobs * BOARDS),
        "claims_without_overlap": claims,
    }  # fmt: skip


def record_bare(client: Client, template: Run, count: int) -> float:
    """Record as many runs with the values of one of the sweep's; return the seconds it took."""
    params = {name: param.value for name, param in template.params.items()}
    metrics = [(metric.name, metric.value, metric.step) for metric in template.metrics]
    started = time.perf_counter()
    for _ in range(count):
        with client.start_run(
            template.type,
            template.name,
            component=template.component,
            provider=template.provider,
            device=template.device,
        ) as run:
            run.log_batch(params, metrics, {name: f"bare {value}" for name, value in template.tags.items()})
    return time.perf_counter() - started


def overhead(folder: Path, engine: str, cells: int) -> dict[str, object]:
    """Return what a sweep of jobs that do nothing adds to recording them, and how long it takes to resume."""
    (first,) = model_files(folder / "models", 1)
    options: dict[str, dict[str, object]] = {f"o{number}": {"value": float(number)} for number in range(100)}
    models = []
    for number in range(cells // 100):
        path = folder / "models" / f"n{number}.onnx"
        path.write_text(f"model {number}")
        models.append(SweepModel(f"n{number}", path))
    sweep = plain_sweep(tuple(models), options=options)
    devices = [plain_device("board")]
    with HubContext("bench", devices, home=folder / "home") as ctx:
        warm = run_sweep(ctx, plain_sweep((first,)), engine=find_engine(engine))
        template = store_of(ctx).run(str(warm.cells[0].outcomes[StepKind.PROFILE].run_id))
        steps = len(plan_sweep(ctx, sweep).steps)
        bare_s = record_bare(ctx.client, template, steps // 2)
        started = time.perf_counter()
        plan = plan_sweep(ctx, sweep)
        expand_s = time.perf_counter() - started
        result = run_sweep(ctx, plan, engine=find_engine(engine))
        sweep_s = time.perf_counter() - started
        bare_s += record_bare(ctx.client, template, steps - steps // 2)
        assert result.count(CellState.DONE) == len(plan.cells)
    started, busy_s = time.perf_counter(), time.process_time()
    with HubContext("bench", devices, home=folder / "home") as ctx:
        resumed = run_sweep(ctx, sweep, engine=find_engine(engine), resume=result.id)
    resume_s, resume_cpu_s = time.perf_counter() - started, time.process_time() - busy_s
    assert len(resumed.reused) == steps
    return {
        "cells": len(plan.cells), "steps": steps, "expand_s": expand_s, "sweep_s": sweep_s, "bare_s": bare_s,
        "ms_a_cell": 1000 * sweep_s / len(plan.cells), "bare_ms_a_cell": 1000 * bare_s / len(plan.cells),
        "added_ms_a_cell": 1000 * (sweep_s - bare_s) / len(plan.cells), "resume_s": resume_s,
        "resume_cpu_s": resume_cpu_s,
    }  # fmt: skip


def figures(data: dict[str, Any]) -> list[Figure]:
    """Return what is quoted, engine by engine."""
    return [
        figure for engine, parts in data.items() for figure in _of_engine(engine, parts["scaling"], parts["overhead"])
    ]


def _of_engine(engine: str, scaling: dict[str, Any], overhead: dict[str, Any]) -> list[Figure]:
    sweep = f"{engine}: a sweep of {overhead['cells']:,} cells"
    asked, bare = "the time that the jobs ask for", "bare runs with the same values"
    return [
        bounded(f"{engine}: {scaling['boards']} boards busy, of the time they were there", "", scaling["efficiency"],
                0.05, asked).at_least(LEAST_EFFICIENCY).in_short(),
        declared(f"{engine}: {scaling['jobs']} jobs of {scaling['wait_s']:g} s, from start to end", "s",
                 scaling["wall_s"], 0.05, asked, scaling["asked_s"] / scaling["boards"]),
        declared(f"{engine}: added to a job of {scaling['wait_s']:g} s", "s", scaling["added_s_a_job"], 0.5),
        declared(f"{sweep}, a cell", "ms", overhead["ms_a_cell"], 0.5, bare, overhead["bare_ms_a_cell"]).in_short(),
        bounded(f"{sweep}, a cell: more than bare runs", "ms", overhead["added_ms_a_cell"], 1.0)
        .at_most(MOST_MS_A_CELL),
        declared(f"{sweep}: the plan", "s", overhead["expand_s"], 0.5),
        declared(f"{sweep}: found to be done", "s", overhead["resume_s"], 0.5).at_most(MOST_RESUME_S),
        declared(f"{sweep}: found to be done, on a processor", "s", overhead["resume_cpu_s"], 0.3),
    ]  # fmt: skip


def main() -> None:
    """Measure each engine and report."""
    options = parser(__doc__)
    options.add_argument("--engine", nargs="+", default=list(ENGINES), help="engines, one after the other")
    options.add_argument("--cells", type=int, default=10_000)
    options.add_argument("--wait-s", type=float, default=5.0)
    options.add_argument("--jobs", type=int, default=6, help="jobs for each board")
    asked = options.parse_args()
    session = Session("sweep", options, asked)
    data = {}
    for engine in asked.engine:
        with tempfile.TemporaryDirectory(prefix="edgeproof-bench-") as folder:
            data[engine] = {
                "scaling": scaling(Path(folder) / "scaling", engine, asked.jobs, asked.wait_s),
                "overhead": overhead(Path(folder) / "overhead", engine, asked.cells),
            }
    session.finish(data, figures(data))


if __name__ == "__main__":
    main()
