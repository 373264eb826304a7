"""The engine for many hosts. Ray places every job on the host that reaches its board; the board's lease stays the lock.

Each board is a resource of the host that reaches it, so a job can run nowhere else. Which board of a pool takes a job
is decided here, by whichever is free first: a second resource for pools would let Ray give one board away twice.
"""

from __future__ import annotations

import contextlib
import logging
import threading
import time
from collections import deque
from concurrent.futures import Future, InvalidStateError
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from embedl_hub.core.device import DEVICES_FILE, read_devices
from embedl_hub.errors import ConfigError, HubError, StoreUnusableError, WorkerLostError, known
from embedl_hub.fleet._engine import Outcome
from embedl_hub.fleet._model import StepKind
from embedl_hub.fleet._parcel import Packer, Parcel, take_in
from embedl_hub.fleet._ray_cluster import (
    connected,
    device_resource,
    hosts,
    lost_workers,
    need_ray,
    reachable_devices,
)
from embedl_hub.fleet._ray_host import Begun, Ended, Terms, work
from embedl_hub.fleet._work import wait_for_store

if TYPE_CHECKING:
    from collections.abc import Iterator

    from ray import ObjectRef, ObjectRefGenerator

    from embedl_hub.core import HubContext
    from embedl_hub.fleet._engine import Job
    from embedl_hub.fleet._model import Target
    from embedl_hub.tracking import Store

_LOG = logging.getLogger("embedl_hub")
_LOOK_EVERY_S = 1.0
_HOST_WAIT_S = 30.0
# On top of a job's own limits: the host stops it first, and says so; force is for a process that cannot.
_FORCE_AFTER_S = 30.0
_END_S = 10.0


@dataclass(frozen=True)
class Ray:
    """Places jobs on the hosts of a Ray cluster.

    Attributes:
        address: ``host:port`` of the cluster's head, ``auto`` for the one that this host belongs to, or None for a Ray
            on this machine alone, with the devices of this home.
        imports: Modules that hosts import first: toolchains and providers of one's own, installed on each host.
        host_wait_s: How long a board may be without a host that reaches it, before its jobs are given up.
        force_after_s: How long after its time limit a job's process is killed, if nothing was heard of it.
    """

    address: str | None = None
    imports: tuple[str, ...] = ()
    host_wait_s: float = _HOST_WAIT_S
    force_after_s: float = _FORCE_AFTER_S

    @contextlib.contextmanager
    def open(self, ctx: HubContext, targets: tuple[Target, ...]) -> Iterator[_Workers]:
        """Join the cluster and check that every board is reached by one of its hosts; see :class:`Engine`."""
        store = ctx.client.store
        if store is None:
            raise ConfigError("Runs come back from the hosts into a store: open the context with tracking.")
        devices = list(dict.fromkeys(device for target in targets for device in target.devices))
        if self.address is None:
            _check_written_down(ctx, devices)
        with connected(self.address, devices):
            _check_reach(devices)
            home = ctx.home if self.address is None else None
            terms = Terms(ctx.project_name, ctx.tags, home, ctx.lease_wait_s, self.imports)
            workers = _Workers(store, targets, self, terms)
            try:
                yield workers
            finally:
                workers.close()


def _check_written_down(ctx: HubContext, devices: list[str]) -> None:
    assert ctx.home is not None  # noqa: S101 - there is a store
    path = ctx.home / DEVICES_FILE
    written = read_devices(path)
    if missing := [name for name in devices if name not in written]:
        raise ConfigError(
            f"{path} has no device {known(missing)}; it has: {known(written)}. Processes of Ray read it to reach the "
            "boards: embedl-hub device add NAME ..."
        )


def _check_reach(devices: list[str]) -> None:
    reached = reachable_devices()
    if missing := [name for name in devices if name not in reached]:
        raise ConfigError(
            f"No host of the cluster reaches {known(missing)}; its hosts reach: {known(reached)}. On the host with the "
            "cable: embedl-hub device add NAME ..., then embedl-hub fleet node --address HOST:PORT."
        )


@dataclass
class _Waiting:
    """A job that has not been given to Ray."""

    job: Job
    future: Future[Outcome]


class _Workers:
    """Takes a job for each board that is free and has Ray carry it out. One condition guards what is shared."""

    def __init__(self, store: Store, targets: tuple[Target, ...], settings: Ray, terms: Terms) -> None:
        self._ray = need_ray()
        self._store = store
        self._targets = {target.name: target for target in targets}
        self._settings = settings
        self._terms = terms
        self._task = self._ray.remote(max_retries=0, num_returns="streaming")(work)
        self._packer: Packer[ObjectRef[bytes]] = Packer(store, self._ray.put)
        self._packing = threading.Lock()
        self._condition = threading.Condition()
        self._queues: dict[str, deque[_Waiting]] = {target.name: deque() for target in targets}
        self._out: frozenset[str] = frozenset()
        self._is_closing = False
        self._streams: set[ObjectRefGenerator[Begun | Ended]] = set()
        devices = dict.fromkeys(device for target in targets for device in target.devices)
        here = (
            0 if all(target.devices for target in targets) else max(1, int(self._ray.cluster_resources().get("CPU", 1)))
        )
        self._threads = [
            threading.Thread(target=self._serve, args=(device,), name=f"edgeproof-ray-{device or 'any'}", daemon=True)
            for device in (*devices, *[None] * here)
        ]
        for thread in self._threads:
            thread.start()

    def submit(self, job: Job) -> Future[Outcome]:
        """Queue a job for its target; see :class:`Workers`."""
        waiting = _Waiting(job, Future())
        with self._condition:
            self._queues[job.step.target.name].append(waiting)
            self._condition.notify_all()
        return waiting.future

    def set_devices_out(self, names: frozenset[str]) -> None:
        """Give no work to these devices; see :class:`Workers`."""
        with self._condition:
            self._out = names
            self._condition.notify_all()

    def close(self) -> None:
        """Stop what runs, end what waits, and leave no board leased."""
        with self._condition:
            self._is_closing = True
            waiting = [each for queue in self._queues.values() for each in queue]
            for queue in self._queues.values():
                queue.clear()
            streams = list(self._streams)
            self._condition.notify_all()
        for each in waiting:
            each.future.cancel()
        for stream in streams:
            self._ray.cancel(stream, force=True)
        for thread in self._threads:
            thread.join()

    def _serve(self, device: str | None) -> None:
        while (waiting := self._take(device)) is not None:
            with contextlib.suppress(InvalidStateError):
                try:
                    waiting.future.set_result(self._carry_out(waiting.job, device))
                except Exception as error:  # noqa: BLE001 - it goes on in the thread that waits
                    waiting.future.set_exception(error)

    def _take(self, device: str | None) -> _Waiting | None:
        """Return the next job for a device, waiting for one; None at the end."""
        with self._condition:
            while not self._is_closing:
                if (found := self._next(device)) is not None:
                    return found
                self._condition.wait()
            return None

    def _next(self, device: str | None) -> _Waiting | None:
        if device in self._out:
            return None
        for name, queue in self._queues.items():
            devices = self._targets[name].devices
            if device not in (devices or (None,)):
                continue
            for waiting in list(queue):
                others = set(devices) - waiting.job.avoid - self._out
                if device in waiting.job.avoid and others:
                    continue
                queue.remove(waiting)
                if waiting.future.set_running_or_notify_cancel():
                    return waiting
        return None

    def _carry_out(self, job: Job, device: str | None) -> Outcome:
        try:
            stream = self._send(job, device)
        except HubError as error:
            return Outcome(job.step.key, None, str(error), device=device)
        try:
            with lost_workers(device):
                ended = self._await(stream, job, device)
        except WorkerLostError:
            if self._is_closing:
                return _stopped(job, device)
            raise
        finally:
            with self._condition:
                self._streams.discard(stream)
        if ended.is_hung:
            self._ray.cancel(stream, force=True)
        if ended.runs is not None:
            self._take_in(ended.runs)
        return ended.outcome

    def _send(self, job: Job, device: str | None) -> ObjectRefGenerator[Begun | Ended]:
        if self._terms.home is not None:
            # One machine, one store: everything is where the job says it is.
            parcel: Parcel[ObjectRef[bytes]] = Parcel(job, {}, {}, None)
        else:
            with self._packing:
                parcel = self._packer.pack(job)
        with self._condition:
            stream = self._task.options(**_place(self._ray, job, device)).remote(parcel, self._terms, device)
            self._streams.add(stream)
            if self._is_closing:
                self._ray.cancel(stream, force=True)
        return stream

    def _await(self, stream: ObjectRefGenerator[Begun | Ended], job: Job, device: str | None) -> Ended:
        said = self._await_begin(stream, device)
        if isinstance(said, Ended):
            return said
        limit_s = None
        if job.timeout_s is not None:
            limit_s = job.timeout_s + self._terms.lease_wait_s + self._settings.force_after_s
        ended = self._receive(stream, limit_s)
        if ended is None:
            self._ray.cancel(stream, force=True)
            _LOG.warning("The process of a job on %s host %s was killed.", device or "any", said.host)
            error = (
                f"It was stopped at its time limit of {job.timeout_s:g} s; its process on host {said.host} did not "
                "stop it itself and was killed."
            )
            return Ended(Outcome(job.step.key, None, error, is_boards_fault=True, device=device))
        assert isinstance(ended, Ended)  # noqa: S101 - what the host says second
        return ended

    def _await_begin(self, stream: ObjectRefGenerator[Begun | Ended], device: str | None) -> Begun | Ended:
        """Wait until Ray has placed a job, as long as there is a host to place it on."""
        seen_s = time.monotonic()
        while (said := self._receive(stream, _LOOK_EVERY_S)) is None:
            if device is None or device in reachable_devices():
                seen_s = time.monotonic()
            elif time.monotonic() - seen_s > self._settings.host_wait_s:
                self._ray.cancel(stream, force=True)
                raise WorkerLostError(
                    f"No host of the cluster has reached device {device!r} for {self._settings.host_wait_s:g} s; hosts "
                    f"there: {known(host.name for host in hosts() if host.is_alive)}. Is the device's host on, and "
                    "does embedl-hub fleet node run there?"
                )
        return said

    def _receive(self, stream: ObjectRefGenerator[Begun | Ended], wait_s: float | None) -> Begun | Ended | None:
        ready, _ = self._ray.wait([stream], timeout=wait_s)
        if not ready:
            return None
        if (item := next(stream, None)) is None:
            raise WorkerLostError("The process that carried out a job ended without a word.")
        said: Begun | Ended = self._ray.get(item)
        return said

    def _take_in(self, runs: bytes) -> None:
        while True:
            try:
                take_in(self._store, runs)
            except StoreUnusableError:
                if not wait_for_store(self._store):
                    raise
            else:
                return


def _place(ray: Any, job: Job, device: str | None) -> dict[str, Any]:  # noqa: ANN401 - Ray's module and options
    """Return what a job asks of the host that carries it out."""
    if device is not None:
        # The board works, not the host: a host with few processors may serve many boards at once.
        return {"num_cpus": 0, "resources": {device_resource(device): 1}}
    if job.step.kind is not StepKind.PROFILE:
        return {"num_cpus": 1}
    # A measurement of this machine is made on this machine, with nothing of ours beside it.
    here = ray.get_runtime_context().get_node_id()
    resources = next(node["Resources"] for node in ray.nodes() if node["NodeID"] == here)
    strategy = ray.util.scheduling_strategies.NodeAffinitySchedulingStrategy(here, soft=False)
    return {"num_cpus": resources.get("CPU", 1), "scheduling_strategy": strategy}


def _stopped(job: Job, device: str | None) -> Outcome:
    return Outcome(job.step.key, None, "The sweep was stopped.", is_stopped=True, device=device)
