"""Does Ray keep eight boards busy?

Eight boards, each a real sshd on loopback, four on each of two Ray nodes of this machine, and jobs that wait on them:
the time that the jobs ask for, over the time that eight boards were there for. Joining the cluster, starting a process
for each board, sending models, lease, records, and the way back of every run are all in the latter. Starting the
processes is paid once a sweep; the second figure begins with the first job of each board.

    python benchmarks/hub/bench_fleet_ray.py [--wait-s 5] [--jobs 20] [--json FILE]
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
from support.fleet import assert_no_overlap, model_files, plain_device, plain_sweep, store_of
from support.fleet_boards import write_devices
from support.ray_nodes import RayNode
from support.sshd import SSHServer

from embedl_hub.core import HubContext
from embedl_hub.fleet import CellState, Ray, plan_sweep, run_sweep
from embedl_hub.fleet._work import claimed_ms
from embedl_hub.tracking import equal

if TYPE_CHECKING:
    from collections.abc import Iterator

    from embedl_hub.tracking import Store

BOARDS, NODES = 8, 2
LEAST_EFFICIENCY = 0.9


@contextlib.contextmanager
def cluster(folder: Path) -> Iterator[str]:
    """Run the nodes with their boards and yield the address of the head."""
    with contextlib.ExitStack() as ending:
        head: str | None = None
        for number in range(NODES):
            servers = {}
            for board in range(number, BOARDS, NODES):
                servers[f"board{board}"] = SSHServer(folder / f"sshd{board}").start()
                ending.callback(servers[f"board{board}"].stop)
            write_devices(folder / f"host{number}", servers)
            node = RayNode(folder / f"host{number}", head=head, ip="127.0.0.1", cpus=BOARDS // NODES)
            ending.callback(node.stop)
            node.wait()
            head = node.address
        assert head is not None
        yield head


def time_at_work_s(store: Store, device: str) -> float:
    """Return the time from the first moment that a board was had to the last."""
    spans = [span for run in store.runs(equal("device", device)) if (span := claimed_ms(run)) is not None]
    return (max(until for _, until in spans) - min(begin for begin, _ in spans)) / 1000


def scaling(folder: Path, jobs: int, wait_s: float) -> dict[str, object]:
    """Return how busy eight boards were kept by jobs that wait on each of them."""
    options: dict[str, dict[str, object]] = {"wait": {"command": ("sleep", str(wait_s))}}
    sweep = plain_sweep(model_files(folder / "models", jobs), options=options)
    devices = [plain_device(f"board{number}") for number in range(BOARDS)]
    with cluster(folder) as address, HubContext("bench", devices, home=folder / "home") as ctx:
        plan = plan_sweep(ctx, sweep)
        started = time.perf_counter()
        result = run_sweep(ctx, plan, engine=Ray(address, ("support.fleet_boards",)))
        wall_s = time.perf_counter() - started
        assert result.count(CellState.DONE) == jobs * BOARDS, [each.reason for each in result.cells]
        claims = assert_no_overlap(store_of(ctx), result.id)
        at_work_s = sum(time_at_work_s(store_of(ctx), name) for name in ctx.devices)
    asked_s = jobs * BOARDS * wait_s
    return {
        "boards": BOARDS, "nodes": NODES, "jobs": jobs * BOARDS, "wait_s": wait_s, "wall_s": wall_s,
        "efficiency": asked_s / (BOARDS * wall_s), "efficiency_at_work": asked_s / at_work_s,
        "claims_without_overlap": claims, "added_s_a_job": (BOARDS * wall_s - asked_s) / (jobs * BOARDS),
    }  # fmt: skip


def main() -> None:
    """Measure, print, and keep."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--wait-s", type=float, default=5.0)
    parser.add_argument("--jobs", type=int, default=20, help="jobs for each board")
    parser.add_argument("--json", type=Path)
    asked = parser.parse_args()
    facts = machine()
    with tempfile.TemporaryDirectory(prefix="edgeproof-bench-") as folder:
        busy = scaling(Path(folder), asked.jobs, asked.wait_s)
    rows = [
        ("scaling efficiency, 8 boards on 2 Ray nodes", f"{busy['efficiency']:.3f}", f"≥ {LEAST_EFFICIENCY}"),
        ("  from the first job of each board on", f"{busy['efficiency_at_work']:.3f}", ""),
        (f"  added to a job of {busy['wait_s']} s, s", f"{busy['added_s_a_job']:.2f}", ""),
    ]
    print_table(("figure", "measured", "must hold"), rows)
    if asked.json is not None:
        asked.json.write_text(json.dumps({"machine": facts, "scaling": busy}, indent=2) + "\n")


if __name__ == "__main__":
    main()
