"""Leases as a state machine: hosts come, go, die and are cut off, the board starts anew, its clock jumps.

The keepers are the real scripts in real shells, the clients the real ones, and only the network between them is ours.
Times are a tenth of the real ones. Two rules hold whatever happens: never two holders, and never stuck.
"""

from __future__ import annotations

import contextlib
import itertools
import os
import shutil
import signal
import subprocess
import tempfile
import threading
import time
from pathlib import Path
from typing import IO, Any

import pytest
from hypothesis import HealthCheck, Phase, settings
from hypothesis import strategies as st
from hypothesis.stateful import (
    RuleBasedStateMachine,
    initialize,
    invariant,
    precondition,
    rule,
    run_state_machine_as_test,
)
from support.keepers import keeper_command

from embedl_hub.core.device import _lease, _process
from embedl_hub.core.device._lease import RemoteLease, keep_remote_lease
from embedl_hub.errors import HubError

BEAT_EVERY_S, LOST_AFTER_S, LIMIT_S = 0.2, 1.4, 2
# A keeper of a client that was cut off has its limit, and whoever comes next looks once a second.
NEVER_STUCK_S = LIMIT_S + 8.0
HOSTS = st.integers(0, 2)


class Link:
    """A keeper on the board, and the network to it, which can be cut and mended."""

    def __init__(self, command: list[str], environment: dict[str, str]) -> None:
        self.keeper = subprocess.Popen(
            command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, bufsize=0,
            start_new_session=True, env=environment,
        )  # fmt: skip
        self.is_up = threading.Event()
        self.is_up.set()
        self.returncode: int | None = None
        theirs_in, ours_in = os.pipe()
        ours_out, theirs_out = os.pipe()
        ours_err, theirs_err = os.pipe()
        os.close(theirs_err)
        self.stdin: IO[bytes] | None = os.fdopen(ours_in, "wb", buffering=0)
        self.stdout: IO[bytes] | None = os.fdopen(ours_out, "rb", buffering=0)
        self.stderr: IO[bytes] | None = os.fdopen(ours_err, "rb", buffering=0)
        assert self.keeper.stdin is not None
        assert self.keeper.stdout is not None
        self._pumps = [
            threading.Thread(target=self._pump, args=pair, daemon=True)
            for pair in ((os.fdopen(theirs_in, "rb", buffering=0), self.keeper.stdin),
                         (self.keeper.stdout, os.fdopen(theirs_out, "wb", buffering=0)))
        ]  # fmt: skip
        for pump in self._pumps:
            pump.start()

    def _pump(self, source: IO[bytes], target: IO[bytes]) -> None:
        # ValueError: the other side was closed meanwhile.
        with contextlib.suppress(OSError, ValueError), source, target:
            while True:
                chunk = os.read(source.fileno(), 4096)
                # What is under way when the network is cut, its end too, arrives when it is mended.
                self.is_up.wait()
                if not chunk:
                    return
                target.write(chunk)

    def poll(self) -> int | None:
        if self.is_up.is_set() and self.returncode is None:
            self.returncode = self.keeper.poll()
        return self.returncode

    def wait(self, timeout: float | None = None) -> int:
        end = time.monotonic() + (60.0 if timeout is None else timeout)
        while self.poll() is None:
            if time.monotonic() > end:
                raise subprocess.TimeoutExpired("a keeper", timeout or 0.0)
            time.sleep(0.01)
        return self.returncode or 0

    def kill(self) -> None:
        self.returncode = 255

    def reset(self) -> None:
        """End it on the board, as when the host's network stack says that nobody is there."""
        self.is_up.set()
        with contextlib.suppress(OSError):
            assert self.keeper.stdin is not None
            self.keeper.stdin.close()

    def crash(self) -> None:
        """End the keeper as the end of the board does."""
        with contextlib.suppress(ProcessLookupError):
            os.killpg(self.keeper.pid, signal.SIGKILL)
        self.keeper.wait(10)


class Client:
    """A host that wants the board, has it, or has had it."""

    def __init__(self, link: Link) -> None:
        self.link = link
        self.lease: RemoteLease | None = None
        self.error: HubError | None = None
        self.is_over = False
        self._go = threading.Event()
        self.thread = threading.Thread(target=self._run, daemon=True)
        self.thread.start()

    def _run(self) -> None:
        try:
            with keep_remote_lease(lambda: self.link, place="pi", wait_s=60) as lease:
                assert isinstance(lease, RemoteLease)
                self.lease = lease
                self._go.wait()
        except HubError as error:
            self.error = error

    @property
    def holds(self) -> bool:
        return self.lease is not None and not self.is_over and not self.lease.is_lost

    def end(self) -> None:
        self.is_over = True
        self._go.set()


class LeaseMachine(RuleBasedStateMachine):
    """What can happen to a board and its hosts."""

    form, shell = "flock", "bash"

    @initialize()
    def begin(self) -> None:
        self.folder = Path(tempfile.mkdtemp(prefix="edgeproof-leases-"))
        self.lock = self.folder / "lock"
        self.uptime = self.folder / "uptime"
        self.clients: dict[int, Client] = {}
        self.all: list[Client] = []
        self.started_s = time.monotonic() - 1000
        self.overlaps: list[str] = []
        self.over = threading.Event()
        (self.folder / "jump").write_text("0\n")
        date = self.folder / "bin/date"
        date.parent.mkdir()
        date.write_text(
            f'#!/bin/sh\nread -r jump < {self.folder}/jump\nexec /bin/date -d "@$(( $(/bin/date +%s) + jump ))" "$@"\n'
        )
        date.chmod(0o755)
        self.environment = {**os.environ, "PATH": f"{date.parent}:{os.environ['PATH']}"}
        self.watch = threading.Thread(target=self._watch, daemon=True)
        self.watch.start()

    def _watch(self) -> None:
        for tick in itertools.count():
            if self.over.is_set():
                return
            if tick % 20 == 0:
                part = self.uptime.with_name("part")
                part.write_text(f"{time.monotonic() - self.started_s:.2f} 0.00\n")
                part.replace(self.uptime)
            clients = list(self.all)
            first = [client for client in clients if client.holds]
            # Looked at twice: who holds it before and after another was seen to hold it did so at the same time.
            if len(first) > 1 and len(both := [client for client in first if client.holds]) > 1:
                self.overlaps.append(f"{len(both)} holders")
            time.sleep(0.005)

    def _start(self) -> Client:
        command = keeper_command(
            self.form, self.shell, self.lock, "somebody", wait_s=60, limit_s=LIMIT_S, uptime=self.uptime
        )
        client = Client(Link(command, self.environment))
        self.all.append(client)
        return client

    @rule(hosts=st.sets(HOSTS, min_size=1))
    def hosts_want_it(self, hosts: set[int]) -> None:
        for host in hosts - set(self.clients):
            self.clients[host] = self._start()
        # Most of what can go wrong needs a holder, and somebody who waits.
        end = time.monotonic() + 1.0
        while self._holder() is None and time.monotonic() < end:
            time.sleep(0.01)

    def _holder(self) -> int | None:
        return next((host for host, client in self.clients.items() if client.holds), None)

    @precondition(lambda self: self._holder() is not None)
    @rule(how=st.sampled_from(["releases", "dies", "is cut off", "is cut off"]))
    def the_holder(self, how: str) -> None:
        self._happens(self._holder(), how)

    @rule(host=HOSTS, how=st.sampled_from(["releases", "dies", "is cut off"]))
    def a_host(self, host: int, how: str) -> None:
        self._happens(host, how)

    def _happens(self, host: int | None, how: str) -> None:
        if host not in self.clients:
            return
        client = self.clients[host]
        if how == "is cut off":
            client.link.is_up.clear()
            return
        del self.clients[host]
        client.is_over = True
        if how == "dies":
            # Kill -9, or the worker of a sweep is killed: the kernel closes what it had.
            client.link.reset()
        client.end()

    @rule()
    def the_network_is_back(self) -> None:
        for client in self.clients.values():
            client.link.is_up.set()

    @precondition(lambda self: self._holder() is not None)
    @rule(is_cleared=st.booleans())
    def board_starts_anew(self, is_cleared: bool) -> None:
        """No host is told; what is in the board's temporary folder may be gone."""
        for client in self.all:
            client.link.is_up.clear()
        for client in self.all:
            client.link.crash()
        if is_cleared:
            shutil.rmtree(self.lock, ignore_errors=True)
        self.started_s = time.monotonic()
        self.uptime.write_text("0.00 0.00\n")

    @rule(seconds=st.sampled_from([-86400, -30, 30, 3600, 10**7]))
    def clock_jumps(self, seconds: int) -> None:
        (self.folder / "jump").write_text(f"{seconds}\n")

    @rule(seconds=st.sampled_from([0.1, 0.6, 1.6, 2.6, 3.5]))
    def time_passes(self, seconds: float) -> None:
        time.sleep(seconds)

    @invariant()
    def never_two_holders(self) -> None:
        assert not getattr(self, "overlaps", None), self.overlaps

    def teardown(self) -> None:
        if not hasattr(self, "over"):
            return
        try:
            # Whoever is cut off stays so; the others go. Then the board must be had in time.
            for client in self.clients.values():
                if client.link.is_up.is_set():
                    client.end()
            started = time.monotonic()
            last = self._start()
            while last.lease is None and last.error is None and time.monotonic() - started < NEVER_STUCK_S:
                time.sleep(0.02)
            assert last.lease is not None, f"stuck for {time.monotonic() - started:.1f} s: {last.error}"
            assert not self.overlaps, self.overlaps
        finally:
            self.over.set()
            self.watch.join()
            for client in self.all:
                client.end()
                client.link.crash()
                client.link.is_up.set()
            for client in self.all:
                client.thread.join(10)
            shutil.rmtree(self.folder, ignore_errors=True)


def run_machine(form: str, shell: str, examples: int, steps: int) -> None:
    machine: Any = type("Machine", (LeaseMachine,), {"form": form, "shell": shell})
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(_lease, "BEAT_EVERY_S", BEAT_EVERY_S)
        patch.setattr(_lease, "LOST_AFTER_S", LOST_AFTER_S)
        patch.setattr(_process, "_GRACE_S", 0.3)
        run_state_machine_as_test(
            machine,
            settings=settings(
                max_examples=examples, stateful_step_count=steps, deadline=None, derandomize=True, database=None,
                phases=[Phase.generate], suppress_health_check=list(HealthCheck),
            ),
        )  # fmt: skip


@pytest.mark.parametrize("form", ["flock", "folder"])
def test_never_two_holders_and_never_stuck(form: str) -> None:
    """A few histories, with the shell of fewest features."""
    run_machine(form, "dash", 3, 8)


@pytest.mark.slow
@pytest.mark.timeout(1200)
@pytest.mark.parametrize("shell", ["dash", "bash", "busybox"])
@pytest.mark.parametrize("form", ["flock", "folder"])
def test_never_two_holders_and_never_stuck_in_long_histories(form: str, shell: str) -> None:
    """Many, and long."""
    run_machine(form, shell, 12, 25)
