"""Does Ray keep eight boards busy?

Eight boards, each a real sshd on loopback, four on each of two Ray nodes of this machine, and jobs that wait on them:
the time that the jobs ask for, over the time that eight boards were there for. Joining the cluster, starting a process
for each board, sending models, lease, records, and the way back of every run are all in the latter. Starting the
processes is paid once a sweep; the second figure begins with the first job of each board.

    python benchmarks/hub/bench_ray.py [--wait-s 5] [--jobs 20] [--json FILE]
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
from report import Session, parser, print_table
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


def scaling(folder: Path, jobs: int, wait_s: float) -> dict[str, Any]:
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


def figures(data: dict[str, Any]) -> list[Figure]:
    """Return what is quoted."""
    busy = data["scaling"]
    asked = "the time that the jobs ask for"
    boards = f"Ray, {busy['nodes']} nodes: {busy['boards']} boards busy, of the time"
    return [
        bounded(f"{boards} they were there", "", busy["efficiency"], 0.05, asked).at_least(LEAST_EFFICIENCY).in_short(),
        bounded(f"{boards} from their first job on", "", busy["efficiency_at_work"], 0.05, asked),
        declared(f"Ray: {busy['jobs']} jobs of {busy['wait_s']:g} s, from start to end", "s", busy["wall_s"], 0.05,
                 asked, busy["jobs"] * busy["wait_s"] / busy["boards"]),
        declared(f"Ray: added to a job of {busy['wait_s']:g} s", "s", busy["added_s_a_job"], 0.5),
    ]  # fmt: skip


def main() -> None:
    """Measure and report."""
    options = parser(__doc__)
    options.add_argument("--wait-s", type=float, default=5.0)
    options.add_argument("--jobs", type=int, default=20, help="jobs for each board")
    arguments = options.parse_args()
    session = Session("ray", options, arguments)
    with tempfile.TemporaryDirectory(prefix="edgeproof-bench-") as folder:
        busy = scaling(Path(folder), arguments.jobs, arguments.wait_s)
    rows = [
        ("scaling efficiency, 8 boards on 2 Ray nodes", f"{busy['efficiency']:.3f}", f"≥ {LEAST_EFFICIENCY}"),
        ("  from the first job of each board on", f"{busy['efficiency_at_work']:.3f}", ""),
        (f"  added to a job of {busy['wait_s']} s, s", f"{busy['added_s_a_job']:.2f}", ""),
    ]
    print_table(("figure", "measured", "must hold"), rows)
    data = {"scaling": busy}
    session.finish(data, figures(data), packages=("ray",))


if __name__ == "__main__":
    main()
