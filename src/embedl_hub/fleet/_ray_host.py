"""A job on the host that reaches its board: this host's home, its devices, its store; the run goes back as a bundle."""

from __future__ import annotations

import contextlib
import importlib
import os
import socket
import threading
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import TYPE_CHECKING

from embedl_hub.core import HubContext
from embedl_hub.core.device import DEVICES_FILE, Device, load_devices
from embedl_hub.core.steps import HERE
from embedl_hub.errors import ConfigError, HubError, blames_board, quoted_list
from embedl_hub.fleet._model import Job, Outcome, Target
from embedl_hub.fleet._parcel import Parcel, bundle_bytes, unpack
from embedl_hub.fleet._threads import Threads
from embedl_hub.tracking import Store, find_home

if TYPE_CHECKING:
    from ray import ObjectRef


@dataclass(frozen=True)
class Terms:
    """What holds for every job of an engine."""

    project: str  # runs are recorded under it, on the host and where they go
    tags: Mapping[str, str] = field(default_factory=dict)  # labels of every run
    home: Path | None = None  # the home to work in; None for the host's own
    lease_wait_s: float = 600.0  # how long to wait for a board that somebody else is using
    imports: tuple[str, ...] = ()  # modules to import first: toolchains and providers of the user's own


@dataclass(frozen=True)
class Begun:
    """A job has all it needs and begins."""

    host: str
    pid: int


@dataclass(frozen=True)
class Ended:
    """How a job ended."""

    outcome: Outcome  # what to tell
    # Its runs, as a bundle without what the sender has; None when there is none, or the store is shared.
    runs: bytes | None = None
    is_hung: bool = False  # whether something of it could not be stopped, so that this process must be


class HostWorker:
    """Carries out jobs on this host, one after the other; the context and its connection stay open between them."""

    def __init__(self, terms: Terms, device: str | None) -> None:
        self._terms = terms
        self._device = device
        self._target = Target(device or HERE, () if device is None else (device,))
        self._closing = contextlib.ExitStack()
        self._ctx: HubContext | None = None

    def work(self, parcel: Parcel[ObjectRef[bytes]]) -> Iterator[Begun | Ended]:
        """Carry out a job: tell when it begins, and how it ended."""
        try:
            yield from self._work(parcel)
        except HubError as error:
            words = f"{error} (on host {socket.gethostname()})"
            fault = blames_board(error)
            yield Ended(Outcome(parcel.job.step.key, None, words, is_boards_fault=fault, device=self._device))

    def close(self) -> None:
        """Let go of everything; what jobs left on the board is removed."""
        self._closing.close()

    def _work(self, parcel: Parcel[ObjectRef[bytes]]) -> Iterator[Begun | Ended]:
        import ray  # noqa: PLC0415 - an extra

        ctx = self._open()
        store = ctx.client.store
        assert store is not None  # noqa: S101 - tracking is on
        job = unpack(parcel, store, ray.get)
        job = replace(job, step=replace(job.step, target=self._target), avoid=frozenset())
        with Threads().open(ctx, (self._target,)) as workers:
            yield Begun(socket.gethostname(), os.getpid())
            outcome = workers.submit(job).result()
        is_shared = self._terms.home is not None
        runs = None if is_shared else _bundle(store, job, outcome, parcel.known)
        yield Ended(outcome, runs, workers.has_abandoned)

    def _open(self) -> HubContext:
        if self._ctx is None:
            terms = self._terms
            for name in terms.imports:
                try:
                    importlib.import_module(name)
                except ImportError as error:
                    raise ConfigError(
                        f"The module {name!r} cannot be imported: {error}. Install it on every host of the cluster."
                    ) from error
            home = find_home(terms.home)
            ctx = HubContext(
                terms.project, _devices(home, self._device), home=home, lease_wait_s=terms.lease_wait_s, tags=terms.tags
            )
            self._ctx = self._closing.enter_context(ctx)
        return self._ctx


def work_once(parcel: Parcel[ObjectRef[bytes]], terms: Terms) -> Iterator[Begun | Ended]:
    """Carry out a job that needs no board."""
    worker = HostWorker(terms, None)
    try:
        for said in worker.work(parcel):
            yield said
            if isinstance(said, Ended) and said.is_hung:
                # Held until whoever asked ends this process: no other job may be given to it.
                threading.Event().wait()
    finally:
        worker.close()


def _devices(home: Path, device: str | None) -> list[Device]:
    if device is None:
        return []
    devices = {each.name: each for each in load_devices(home / DEVICES_FILE)}
    if device == HERE and device not in devices:
        return [Device(HERE)]
    if device not in devices:
        raise ConfigError(
            f"This host said that it reaches {device!r}, but {home / DEVICES_FILE} knows: {quoted_list(devices)}. "
            "Start its node again: embedl-hub fleet stop, then embedl-hub fleet node."
        )
    return [devices[device]]


def _bundle(store: Store, job: Job, outcome: Outcome, known_there: frozenset[str]) -> bytes | None:
    """Return the runs that a job left: its own, its parts, and the model that was kept for it."""
    if outcome.run_id is None:
        return None
    lineage = store.lineage(outcome.run_id)
    others = [run.id for run in (*lineage.made_from, *lineage.parts) if run.tags.get("sweep") == job.sweep]
    wanted = [run_id for run_id in (*others, outcome.run_id) if run_id != job.compiled]
    return bundle_bytes(store, *dict.fromkeys(wanted), known=known_there)
