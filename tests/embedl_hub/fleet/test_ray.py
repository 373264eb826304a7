"""Two hosts on loopback with boards of their own: jobs run where the cable is; whatever dies, nothing stays held."""

import json
import os
import re
import signal
import subprocess
import sys
import threading
from collections.abc import Callable, Iterator
from concurrent.futures import Future
from dataclasses import dataclass
from itertools import pairwise
from pathlib import Path

import pytest
from support.debian import require
from support.fleet import model_files, plain_device, plain_sweep
from support.fleet_boards import take_lease, write_devices
from support.processes import command_line, descendants, wait_until
from support.ray_nodes import TESTS, RayNode
from support.sshd import SSHServer

from embedl_hub.core import HubContext
from embedl_hub.core.device import Device
from embedl_hub.core.steps import HERE
from embedl_hub.errors import ConfigError, WorkerLostError
from embedl_hub.fleet import (
    CellState,
    DeviceSelection,
    Job,
    Outcome,
    Plan,
    Ray,
    Step,
    StepKind,
    Sweep,
    SweepModel,
    Target,
    Workers,
    find_sweep,
    plan_node,
    plan_sweep,
    run_sweep,
)
from embedl_hub.fleet._ray_cluster import connected
from embedl_hub.fleet._work import claimed_ms
from embedl_hub.tracking import Store

IMPORTS = ("support.fleet_boards",)
REACHES = {"north": ("a0", "a1"), "south": ("b0",)}
BOARDS = ("a0", "a1", "b0")
# A process of Ray may take a minute to start on a busy host; what is waited for is a fact, not this time.
_BUSY_S = 240.0
# The first time, a step of this board waits for its end; the next time it does not.
ONCE = "test -e {mark} || {{ touch {mark}; sleep 120; }}"


@dataclass(frozen=True)
class Cluster:
    """The two hosts.

    Attributes:
        address: Of the head.
        homes: By host.
        servers: By board.
    """

    address: str
    homes: dict[str, Path]
    servers: dict[str, SSHServer]

    def home_of(self, board: str) -> Path:
        """Return the home of the host that reaches a board."""
        return self.homes[next(host for host, boards in REACHES.items() if board in boards)]


@pytest.fixture(scope="module")
def cluster(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Cluster]:
    """A head and a second node; this process has joined them."""
    folder = tmp_path_factory.mktemp("fleet")
    servers = {name: SSHServer(folder / name).start() for name in BOARDS}
    homes = {host: folder / host for host in REACHES}
    nodes: list[RayNode] = []
    try:
        for host, boards in REACHES.items():
            write_devices(homes[host], {name: servers[name] for name in boards})
            head = nodes[0].address if nodes else None
            nodes.append(RayNode(homes[host], head=head, ip="127.0.0.1", cpus=1))
            nodes[-1].wait()
        with connected(nodes[0].address):
            yield Cluster(nodes[0].address, homes, servers)
    finally:
        for node in reversed(nodes):
            node.stop()
        for server in servers.values():
            server.stop()


@pytest.fixture
def ctx(tmp_path: Path) -> Iterator[HubContext]:
    """The driver's context: it knows the boards' names, and has no way to reach them."""
    with HubContext("fleet", [plain_device(name) for name in BOARDS], home=tmp_path / "home") as ctx:
        yield ctx


def engine(cluster: Cluster, **settings: float) -> Ray:
    return Ray(cluster.address, IMPORTS, **settings)


def check_no_overlap(store: Store) -> None:
    """Look at the recorded times of every board."""
    claims: dict[str, list[tuple[int, int]]] = {}
    for run in store.runs():
        if run.device is not None and (claimed := claimed_ms(run)) is not None:
            claims.setdefault(run.device, []).append(claimed)
    assert claims
    for times in claims.values():
        assert all(before[1] <= after[0] for before, after in pairwise(sorted(times)))


def check_free(cluster: Cluster, board: str) -> None:
    """Nobody has a board any more."""
    with take_lease(cluster.home_of(board), board, wait_s=10):
        pass


def step_plan(ctx: HubContext, models: tuple[SweepModel, ...], *boards: str, **values: object) -> Plan:
    sweep = plain_sweep(models, options={"only": values}, devices=DeviceSelection(boards or BOARDS))
    return plan_sweep(ctx, sweep)


def profile_job(folder: Path, target: Target, *, timeout_s: float | None = None, **values: object) -> Job:
    """Return a job that needs no compiled model."""
    source = model_files(folder, 1)[0]
    step = Step("key", StepKind.PROFILE, "plain", source.name, source.path, values, target)
    return Job("0" * 32, step, timeout_s=timeout_s)


def test_each_step_runs_where_its_board_is(cluster: Cluster, ctx: HubContext, tmp_path: Path) -> None:
    """Models and compiled runs travel there, every run comes back with its lineage, and no two meet on a board."""
    plan = step_plan(ctx, model_files(tmp_path / "models", 4), command=("true",), wait_s=0.05)
    result = run_sweep(ctx, plan, engine=engine(cluster))
    assert {cell.state for cell in result.cells} == {CellState.DONE}
    store = ctx.client.store
    assert store is not None
    check_no_overlap(store)
    profiles = [run for run in store.runs() if run.type == "PROFILE"]
    assert len(profiles) == 12
    for run in profiles:
        made_from = [one for one in store.lineage(run.id).made_from if one.type == "COMPILE"]
        assert run.device in {one.device for one in made_from}
        assert run.tags["sweep"] == result.id
        assert run.metric("latency_median") is not None
    for home in cluster.homes.values():
        with Store(home) as theirs:
            found = {run.device for run in theirs.runs() if run.tags.get("sweep") == result.id}
            assert found == set(REACHES[home.name])


def test_a_pool_serves_one_queue(cluster: Cluster, ctx: HubContext, tmp_path: Path) -> None:
    """Boards on two hosts share the work; one that is out gets none, and one to be avoided only at need."""
    pool = Target("pool", ("a0", "b0"))
    with engine(cluster).open(ctx, (pool,)) as workers:
        jobs = [workers.submit(profile_job(tmp_path, pool, wait_s=0.5)) for _ in range(4)]
        assert {job.result(60).device for job in jobs} == {"a0", "b0"}
        workers.set_devices_out(frozenset({"a0"}))
        jobs = [workers.submit(profile_job(tmp_path, pool)) for _ in range(2)]
        assert {job.result(60).device for job in jobs} == {"b0"}


def test_a_killed_worker_is_told_and_its_board_is_free(cluster: Cluster, ctx: HubContext, tmp_path: Path) -> None:
    """The future says that nothing is known of the job; a sweep tries it again and comes to its end."""
    note, mark = tmp_path / "note", tmp_path / "mark"
    once = ("sh", "-c", ONCE.format(mark=mark))
    plan = step_plan(ctx, model_files(tmp_path / "models", 1), "b0", note=str(note), command=once)
    killing = threading.Thread(target=kill_the_process_of, args=(note, mark))
    killing.start()
    result = run_sweep(ctx, plan, engine=engine(cluster))
    killing.join()
    assert [cell.state for cell in result.cells] == [CellState.DONE]
    assert len(pids_in(note)) == 2
    check_free(cluster, "b0")


@pytest.mark.slow
def test_a_lost_worker_is_an_error_of_the_future(cluster: Cluster, ctx: HubContext, tmp_path: Path) -> None:
    note, mark = tmp_path / "note", tmp_path / "mark"
    target = Target("b0", ("b0",))
    with engine(cluster).open(ctx, (target,)) as workers:
        once = ("sh", "-c", ONCE.format(mark=mark))
        job = workers.submit(profile_job(tmp_path, target, note=str(note), command=once))
        kill_the_process_of(note, mark)
        with pytest.raises(WorkerLostError, match="'b0' is gone"):
            job.result(60)
        assert workers.submit(profile_job(tmp_path, target)).result(60).error is None


def wait_until_it_runs(cluster: Cluster, board: str, mark: Path, job: Future[Outcome]) -> None:
    """Wait until a job's command runs on the board; where it does not, say how it ended or where it stands."""
    try:
        wait_until(lambda: mark.exists() or job.done(), _BUSY_S)
    except AssertionError as error:
        home = cluster.home_of(board)
        with Store(home, recovers=False) as store:
            runs = [(run.name, run.status, run.params.get("$claimed")) for run in store.runs(archived=None)[:3]]
        ours = "\n".join(f"{pid} {command_line(pid)[:160]}" for pid in descendants(1) if "ray::" in command_line(pid))
        raise AssertionError(f"{error}\n{runs}\n{ours}\n{(home / 'node.log').read_text()[-2000:]}") from error
    assert mark.exists(), job.result()


def kill_the_process_of(note: Path, mark: Path) -> None:
    """Kill a job's process once its command runs on the board."""
    wait_until(mark.exists, _BUSY_S)
    os.kill(pids_in(note)[-1], signal.SIGKILL)


def pids_in(note: Path) -> list[int]:
    return [int(line.split()[-1]) for line in note.read_text().splitlines()]


@pytest.mark.slow
def test_a_job_ends_at_its_time_limit(cluster: Cluster, ctx: HubContext, tmp_path: Path) -> None:
    """What waits on the board is stopped there, its run says why, and the board takes the next job."""
    target = Target("a1", ("a1",))
    with engine(cluster).open(ctx, (target,)) as workers:
        job = profile_job(tmp_path, target, command=("sleep", "100"), timeout_s=1)
        outcome = workers.submit(job).result(60)
        assert "time limit of 1 s" in str(outcome.error)
        assert outcome.is_boards_fault
        assert ctx.client.store is not None
        assert ctx.client.store.run(str(outcome.run_id)).status == "FAILED"
        assert workers.submit(profile_job(tmp_path, target)).result(60).error is None
    check_free(cluster, "a1")


def test_a_board_that_is_unplugged_is_blamed(cluster: Cluster, ctx: HubContext, tmp_path: Path) -> None:
    """Its host says so; plugged in again, it takes the next job."""
    target, mark = Target("a0", ("a0",)), tmp_path / "mark"
    server = cluster.servers["a0"]
    with engine(cluster).open(ctx, (target,)) as workers:
        job = workers.submit(profile_job(tmp_path, target, command=("sh", "-c", ONCE.format(mark=mark))))
        wait_until_it_runs(cluster, "a0", mark, job)
        server.kill()
        try:
            outcome = job.result(60)
        finally:
            server.start()
        assert outcome.is_boards_fault
        assert outcome.error is not None
        assert workers.submit(profile_job(tmp_path, target)).result(60).error is None


def test_leaving_stops_what_runs(cluster: Cluster, ctx: HubContext, tmp_path: Path) -> None:
    """The job under way is said to be stopped, those that wait are cancelled, and the board is free."""
    target, mark = Target("b0", ("b0",)), tmp_path / "mark"
    with engine(cluster).open(ctx, (target,)) as workers:
        once = ("sh", "-c", ONCE.format(mark=mark))
        running, waiting = (workers.submit(profile_job(tmp_path, target, command=once)) for _ in range(2))
        wait_until_it_runs(cluster, "b0", mark, running)
    assert running.result(0).is_stopped
    assert waiting.cancelled()
    check_free(cluster, "b0")


def test_a_board_that_nobody_reaches_is_refused_at_once(cluster: Cluster, ctx: HubContext) -> None:
    target = Target("c9", ("c9",))
    with (
        pytest.raises(ConfigError, match=r"No host of the cluster reaches 'c9'; its hosts reach: 'a0', 'a1', 'b0'"),
        engine(cluster).open(ctx, (target,)),
    ):
        pass


def test_what_a_host_cannot_do_is_an_outcome(cluster: Cluster, ctx: HubContext, tmp_path: Path) -> None:
    """A module that is not installed there, in words that say where."""
    target = Target("b0", ("b0",))
    with Ray(cluster.address, ("not_installed_there",)).open(ctx, (target,)) as workers:
        outcome = workers.submit(profile_job(tmp_path, target)).result(60)
    assert "'not_installed_there' cannot be imported" in str(outcome.error)
    assert "on host" in str(outcome.error)


def test_runs_need_a_store_to_come_back_to(cluster: Cluster) -> None:
    with (
        HubContext("untracked", tracking=False) as ctx,
        pytest.raises(ConfigError, match="with tracking"),
        engine(cluster).open(ctx, ()),
    ):
        pass


DRIVER = """
import sys
from pathlib import Path
from support.fleet import plain_device
from embedl_hub.core import HubContext
from embedl_hub.fleet import Ray, run_sweep
from test_ray import BOARDS, slow_sweep
home, address, folder = sys.argv[1:]
with HubContext("fleet", [plain_device(name) for name in BOARDS], home=home) as ctx:
    run_sweep(ctx, slow_sweep(Path(folder)), engine=Ray(address, ("support.fleet_boards",)))
"""


def slow_sweep(folder: Path) -> Sweep:
    """Return a sweep whose second measurement waits for its end, until it is told not to."""
    mark = folder / "mark"
    board = f"if test -e {mark}; then touch {mark}-2; test -e {mark}-go || sleep 120; fi; touch {mark}"
    options: dict[str, dict[str, object]] = {"only": {"command": ("sh", "-c", board)}}
    return plain_sweep(model_files(folder / "models", 3), options=options, devices=DeviceSelection(("b0",)))


@pytest.mark.slow
def test_a_killed_driver_leaves_nothing_behind(cluster: Cluster, ctx: HubContext, tmp_path: Path) -> None:
    """Its job dies, its board is free, and the sweep is resumed: what was done is not done again."""
    argv = [sys.executable, "-c", DRIVER, str(ctx.home), cluster.address, str(tmp_path)]
    paths = os.pathsep.join((str(TESTS), str(Path(__file__).parent)))
    with (tmp_path / "driver.log").open("wb") as log:
        driver = subprocess.Popen(argv, env={**os.environ, "PYTHONPATH": paths}, stdout=log, stderr=log)
    try:
        wait_until(lambda: (tmp_path / "mark-2").exists() or driver.poll() is not None, _BUSY_S)
        assert driver.poll() is None, (tmp_path / "driver.log").read_text()
    finally:
        driver.kill()
        driver.wait()
    check_free(cluster, "b0")
    store = ctx.client.store
    assert store is not None
    store.recover()
    sweep = slow_sweep(tmp_path)
    before = steps_done(store)
    assert before
    (tmp_path / "mark-go").touch()
    result = run_sweep(ctx, sweep, engine=engine(cluster), resume=find_sweep(store, "fleet", sweep.name))
    assert {cell.state for cell in result.cells} == {CellState.DONE}
    after = steps_done(store)
    assert len(after) == len(set(after)) == 6
    assert set(before) < set(after)
    check_no_overlap(store)


def steps_done(store: Store) -> list[str]:
    return [run.tags["step"] for run in store.runs() if run.status == "FINISHED" and "step" in run.tags]


@pytest.mark.slow
def test_status_shows_who_reaches_what(cluster: Cluster) -> None:
    """Hosts and boards, for people and for programs."""
    argv = [sys.executable, "-m", "embedl_hub", "fleet", "status", "--address", cluster.address]
    found = subprocess.run([*argv, "--json"], capture_output=True, text=True, check=True, timeout=90)
    hosts = json.loads(found.stdout)
    assert sorted(tuple(device["name"] for device in host["devices"]) for host in hosts) == [("a0", "a1"), ("b0",)]
    assert all(host["alive"] for host in hosts)


def test_here_is_the_host_that_sweeps(cluster: Cluster, tmp_path: Path) -> None:
    """This machine needs no resource of the cluster, and its steps run on it."""
    note = tmp_path / "note"
    sweep = plain_sweep(
        model_files(tmp_path / "models", 1), options={"only": {"note": str(note)}}, devices=DeviceSelection((HERE,))
    )
    with HubContext("fleet", [Device(HERE)], home=tmp_path / "home") as ctx:
        result = run_sweep(ctx, sweep, engine=engine(cluster))
    assert [cell.state for cell in result.cells] == [CellState.DONE]
    assert pids_in(note) != [os.getpid()]


@pytest.mark.slow
def test_a_process_that_cannot_be_stopped_is_killed(cluster: Cluster, ctx: HubContext, tmp_path: Path) -> None:
    """Python code that never returns: its thread is given up on its host, its process ends, the board works on."""
    note, target = tmp_path / "note", Target("b0", ("b0",))
    with engine(cluster).open(ctx, (target,)) as workers:
        outcome = workers.submit(profile_job(tmp_path, target, note=str(note), hang=True, timeout_s=1)).result(90)
        assert "could not be stopped" in str(outcome.error)
        wait_until(lambda: not Path(f"/proc/{pids_in(note)[0]}").exists(), 20)
        assert workers.submit(profile_job(tmp_path, target)).result(60).error is None
    check_free(cluster, "b0")


@pytest.mark.slow
def test_a_lost_host_is_told(cluster: Cluster, tmp_path: Path, new_server: Callable[..., SSHServer]) -> None:
    """Its job is lost, and the next one is given up when no host has come to reach the board."""
    write_devices(tmp_path / "east", {"c0": new_server()})
    node = RayNode(tmp_path / "east", head=cluster.address, ip="127.0.0.1", cpus=0)
    target, mark = Target("c0", ("c0",)), tmp_path / "mark"
    try:
        node.wait()
        with (
            HubContext("fleet", [plain_device("c0")], home=tmp_path / "home") as ctx,
            engine(cluster, host_wait_s=2).open(ctx, (target,)) as workers,
        ):
            once = ("sh", "-c", ONCE.format(mark=mark))
            job = workers.submit(profile_job(tmp_path, target, command=once))
            wait_until(mark.exists, _BUSY_S)
            node.kill()
            with pytest.raises(WorkerLostError, match="'c0' is gone"):
                job.result(90)
            # Ray may still try the host that is gone, until it has noticed.
            wait_until(
                lambda: "No host of the cluster has reached device 'c0'" in lost(workers, target, tmp_path), _BUSY_S
            )
    finally:
        node.stop()


def lost(workers: Workers, target: Target, folder: Path) -> str:
    """Return why a job was lost."""
    return str(workers.submit(profile_job(folder, target)).exception(90))


ALONE = """
import sys
from pathlib import Path
from support.debian import require
from support.fleet import model_files, plain_sweep
from embedl_hub.core import HubContext
from embedl_hub.core.device import load_devices
from embedl_hub.fleet import Ray, run_sweep
home, models = map(Path, sys.argv[1:])
with HubContext("alone", load_devices(home / "devices.toml"), home=home) as ctx:
    result = run_sweep(ctx, plain_sweep(model_files(models, 2)), engine=Ray(imports=("support.fleet_boards",)))
print([cell.state.value for cell in result.cells])
"""


@pytest.mark.slow
def test_a_ray_on_this_machine_alone(tmp_path: Path, new_server: Callable[..., SSHServer]) -> None:
    """Without a cluster the engine starts one for the devices of the home, and ends it."""
    write_devices(tmp_path / "home", {"d0": new_server(), "d1": new_server()})
    argv = [sys.executable, "-c", ALONE, str(tmp_path / "home"), str(tmp_path / "models")]
    environment = {**os.environ, "PYTHONPATH": str(TESTS)}
    environment.pop("RAY_ADDRESS", None)
    done = subprocess.run(argv, env=environment, capture_output=True, text=True, check=False, timeout=180)
    assert done.stdout.strip() == str(["done"] * 4), done.stderr[-3000:]


IN_A_RAY_ALONE = """
import sys
from embedl_hub.fleet._ray_cluster import connected
import ray
with connected(None):
    print(ray.get_runtime_context().gcs_address, ray.get(ray.remote(lambda: 6 * 7).remote()), flush=True)
    sys.stdin.read()
"""
FOREIGN = """
import ray, sys
ray.init(address=sys.argv[1], logging_level="error")
print("ran", ray.get(ray.remote(lambda: 6 * 7).remote()))
"""


def listening(pid: int) -> list[str]:
    """Return the addresses that a process and those below it listen on for TCP, as ss prints them."""
    pids = {pid, *descendants(pid)}
    shown = subprocess.run([require("ss", "iproute2"), "-Hltnp"], capture_output=True, text=True, check=True).stdout
    lines = [line for line in shown.splitlines() if pids & {int(each) for each in re.findall(r"pid=(\d+)", line)}]
    return [line.split()[3].rpartition(":")[0].removeprefix("[::ffff:").strip("[]") for line in lines]


@pytest.mark.slow
def test_a_ray_on_this_machine_alone_is_closed(tmp_path: Path) -> None:
    """It listens on loopback only, and another account's driver, which has no token, runs nothing there."""
    bare = {name: value for name, value in os.environ.items() if not name.startswith("RAY_")}
    environment = {**bare, "HOME": str(tmp_path)}
    argv = [sys.executable, "-c", IN_A_RAY_ALONE]
    with subprocess.Popen(
        argv, env=environment, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True, start_new_session=True
    ) as alone:
        try:
            assert alone.stdout is not None
            address, answer = alone.stdout.readline().split()
            assert answer == "42"
            places = listening(alone.pid)
            assert len(places) > 3
            assert set(places) == {"127.0.0.1"}
            driver = [sys.executable, "-c", FOREIGN, address]
            # Ray would look for a head at this machine's address in the network, where this one does not listen.
            environment["RAY_ENABLE_WINDOWS_OR_OSX_CLUSTER"] = "0"
            foreign = subprocess.run(driver, env=environment, capture_output=True, text=True, check=False, timeout=180)
            assert "ran" not in foreign.stdout
            assert "InvalidAuthToken" in foreign.stderr
            alone.communicate(timeout=60)
        finally:
            alone.kill()


def test_a_node_needs_a_token(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Without one it is started only by those who say that they want that; one that is found is used."""
    for name in ("RAY_AUTH_MODE", "RAY_AUTH_TOKEN", "RAY_AUTH_TOKEN_PATH"):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setenv("HOME", str(tmp_path))
    for head in (None, "desk:6379"):
        with pytest.raises(ConfigError, match="ray get-auth-token --generate"):
            plan_node(tmp_path / "home", address=head)
    assert "RAY_AUTH_MODE" not in plan_node(tmp_path / "home", insecure=True).environment
    (tmp_path / ".ray").mkdir()
    (tmp_path / ".ray" / "auth_token").write_text("0" * 64)
    assert plan_node(tmp_path / "home").environment["RAY_AUTH_MODE"] == "token"
    monkeypatch.setenv("RAY_AUTH_MODE", "disabled")
    with pytest.raises(ConfigError, match="--insecure"):
        plan_node(tmp_path / "home")


def test_a_device_that_is_not_written_down_is_refused(tmp_path: Path) -> None:
    """Ray's processes on this machine could not reach it."""
    target = Target("a0", ("a0",))
    with (
        HubContext("alone", [plain_device("a0")], home=tmp_path / "home") as ctx,
        pytest.raises(ConfigError, match=r"devices\.toml has no device 'a0'"),
        Ray().open(ctx, (target,)),
    ):
        pass


@pytest.mark.slow
def test_a_node_is_stopped_by_its_home(tmp_path: Path) -> None:
    """Only that one, and a second one of the same home is refused."""
    node = RayNode(tmp_path / "home", ip="127.0.0.1", cpus=1)
    try:
        node.wait()
        program = [sys.executable, "-m", "embedl_hub", "fleet"]
        home = f"--home={tmp_path / 'home'}"
        again = subprocess.run(
            [*program, "node", "--head", home], capture_output=True, text=True, check=False, timeout=60
        )
        assert "runs already" in again.stderr
        for words in ("has ended", "No node"):
            done = subprocess.run([*program, "stop", home], capture_output=True, text=True, check=True, timeout=60)
            assert words in done.stdout
    finally:
        node.stop()
