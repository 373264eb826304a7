"""Does a sweep keep its boards busy, and what does it add to recording?

- Eight boards, each a real sshd on loopback, and jobs that wait on them: the time that the jobs ask for, over the time
  that eight boards were there for. Lease, run folder, records and connections are all in the latter.
- A sweep of 10,000 cells whose jobs do nothing: time per cell, less that of the same number of bare runs with the same
  values, half of them recorded before the sweep and half after it.
- How long the finished sweep needs to find that nothing is left to do, with its context opened anew.

    python benchmarks/hub/bench_sweep.py [--engine threads] [--cells 10000] [--wait-s 5] [--jobs 6] [--json FILE]
"""

from __future__ import annotations

import argparse
import contextlib
import json
import sys
import tempfile
import time
from pathlib import Path
from typing import TYPE_CHECKING

sys.path.insert(0, str(Path(__file__).parents[1]))
sys.path.insert(0, str(Path(__file__).parents[2] / "tests"))
from report import machine, print_table
from support.fleet import PROVIDER, assert_no_overlap, model_files, plain_device, plain_sweep, store_of
from support.sshd import SSHServer

from embedl_hub.core import HubContext
from embedl_hub.core.device import Device, SSHCommandRunner
from embedl_hub.fleet import CellState, StepKind, SweepModel, find_engine, plan_sweep, run_sweep

if TYPE_CHECKING:
    from collections.abc import Iterator

    from embedl_hub.tracking import Client, Run

BOARDS = 8
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


def main() -> None:
    """Measure, print, and keep."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--engine", default="threads")
    parser.add_argument("--cells", type=int, default=10_000)
    parser.add_argument("--wait-s", type=float, default=5.0)
    parser.add_argument("--jobs", type=int, default=6, help="jobs for each board")
    parser.add_argument("--json", type=Path)
    asked = parser.parse_args()
    facts = machine()
    with tempfile.TemporaryDirectory(prefix="edgeproof-bench-") as folder:
        busy = scaling(Path(folder) / "scaling", asked.engine, asked.jobs, asked.wait_s)
        added = overhead(Path(folder) / "overhead", asked.engine, asked.cells)
    rows = [
        ("scaling efficiency, 8 boards", f"{busy['efficiency']:.3f}", f"≥ {LEAST_EFFICIENCY}"),
        (f"  added to a job of {asked.wait_s:g} s, s", f"{busy['added_s_a_job']:.2f}", ""),
        ("added to a bare run, ms a cell", f"{added['added_ms_a_cell']:.2f}", f"≤ {MOST_MS_A_CELL}"),
        ("  a sweep's cell, ms", f"{added['ms_a_cell']:.2f}", ""),
        ("  bare runs of a cell, ms", f"{added['bare_ms_a_cell']:.2f}", ""),
        (f"resume of {added['cells']} cells, s", f"{added['resume_s']:.2f}", f"≤ {MOST_RESUME_S}"),
        ("  of these, on a processor, s", f"{added['resume_cpu_s']:.2f}", ""),
    ]
    print_table(("figure", "measured", "must hold"), rows)
    if asked.json is not None:
        kept = json.loads(asked.json.read_text()) if asked.json.exists() else {}
        kept[asked.engine] = {"machine": facts, "scaling": busy, "overhead": added}
        asked.json.write_text(json.dumps(kept, indent=2) + "\n")


if __name__ == "__main__":
    main()
