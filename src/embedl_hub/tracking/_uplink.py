"""Sends a store's runs to a server, in order and once, whatever happens on the way.

The store stays the first place that a value goes to; sending follows behind. A server that cannot be reached costs
nothing but time: the runs stay in the outbox and go with the next client, or with ``embedl-hub sync``.
"""

from __future__ import annotations

import contextlib
import logging
import threading
import time
from collections.abc import Iterable
from dataclasses import dataclass
from enum import Enum, auto
from pathlib import Path
from typing import TYPE_CHECKING

from embedl_hub.credentials import Server, find_server
from embedl_hub.errors import TrackingError
from embedl_hub.paths import is_plain
from embedl_hub.tracking import _fork
from embedl_hub.tracking._outbox import Mark, Outbox, Piece
from embedl_hub.tracking._sql.rows import files_of
from embedl_hub.tracking._values import project_id
from embedl_hub.tracking._wire import NotAllowedError, RefusedError, UnreachableError, Wire

if TYPE_CHECKING:
    from embedl_hub.tracking._store import Store

_LOG = logging.getLogger("embedl_hub")
_GATHER_S = 0.25
_LOOK_AGAIN_S = 30.0
_FIRST_PAUSE_S = 0.5
_LONGEST_PAUSE_S = 30.0
_AT_CLOSE_S = 10.0
_PIECE_BYTES = 8 << 20
_MOST_TRIES = 50


@dataclass(frozen=True)
class Sent:
    """What became of the runs of a home that a server is to get."""

    runs: int  # the server has them now whole
    waiting: int  # they still have to be sent
    refused: dict[str, str]  # those that it will not take, with the reasons
    elsewhere: int  # they wait for another server, or another account put them there


class _Outcome(Enum):
    """What became of one run."""

    SENT = auto()
    GONE = auto()
    OPEN = auto()
    REFUSED = auto()


class _Sender:
    """Brings single runs over."""

    def __init__(self, store: Store, server: Server) -> None:
        self._store = store
        self.wire = Wire(server)

    def send(self, mark: Mark) -> None:
        while (piece := mark.next_piece()).records:
            self._send_piece(mark, piece)

    def _send_piece(self, mark: Mark, piece: Piece) -> None:
        address = f"/api/projects/{project_id(mark.learn_project())}"
        body = b'{"after":%d,"records":[%s]}' % (mark.last, b",".join(piece.lines))
        try:
            answer, _ = self.wire.ask(
                "POST", f"{address}/runs/{mark.run_id}/records", body, {"Content-Type": "application/json"}
            )
        except RefusedError as error:
            if error.code != "hole":
                raise
            mark.go_back(error.last)
            return
        data = answer.get("data", {})
        mark.advance(piece, int(data["last"]))
        for missing in data["missing"]:
            self._send_content(address, mark, piece, str(missing["sha256"]))

    def _send_content(self, address: str, mark: Mark, piece: Piece, sha256: str) -> None:
        path = self._find(mark.run_id, piece, sha256)
        size, address = path.stat().st_size, f"{address}/contents/{sha256}"
        for _ in range(max(_MOST_TRIES, 2 * size // _PIECE_BYTES)):
            _, headers = self.wire.ask("HEAD", address)
            if headers.get("upload-complete") == "true":
                return
            start = int(headers.get("upload-offset", 0))
            with path.open("rb") as file:
                file.seek(start)
                chunk = file.read(_PIECE_BYTES)
            sent = f"{start}-{start + len(chunk) - 1}" if chunk else "*"
            try:
                self.wire.ask("PUT", address, chunk, {"Content-Range": f"bytes {sent}/{size}"})
            except RefusedError as error:
                if error.code != "wrong_offset":
                    raise
        raise UnreachableError(f"Content {sha256} does not arrive.", is_down=False)

    def _find(self, run_id: str, piece: Piece, sha256: str) -> Path:
        for record in piece.records:
            if record["kind"] == "artifact":
                place = self._store.artifact_path(run_id, record["name"], record["file_name"])
                inner = [name for name, own_hash in files_of(record) if own_hash == sha256]
                for path in (self._store.blobs.path_of(sha256), *(place / name for name in inner)):
                    # A run folder from elsewhere may hold links; what they lead to is not for a server.
                    if inner and is_plain(path, self._store.home):
                        return path
        raise RefusedError(f"The content {sha256} is gone from {self._store.home}.", code="gone")


class Uplink(_fork.ForkAware):
    """Sends the runs of a store to a server, in a thread of its own. Never raises into the run that logs."""

    def __init__(self, store: Store, server: Server) -> None:
        self._store = store
        self._server = server
        self._outbox = Outbox(store, server.url)
        self._start_empty()
        _fork.watch(self)

    def _start_empty(self) -> None:
        self._held: dict[str, Mark] = {}
        self._own: set[str] = set()
        self._lock = threading.Lock()
        self._something = threading.Event()
        self._closing = threading.Event()
        self._deadline = 0.0
        self._look_at = 0.0
        self._thread: threading.Thread | None = None
        self._sender = _Sender(self._store, self._server)
        self._trouble = ""

    def after_fork(self, *, in_child: bool) -> None:
        """Leave the runs to the parent: a child that kept the marks would keep a dead parent's runs from being sent."""
        if in_child:
            for mark in self._held.values():
                mark.close()
            self._start_empty()

    def add(self, run_id: str) -> None:
        """Say that a run is to be sent; before its first record, so that no kill can come between."""
        with self._store.translated():
            mark = self._outbox.hold(run_id, new=True)
        with self._lock:
            self._own.add(run_id)
            if mark is not None:
                self._held[run_id] = mark
            if self._thread is None and not self._closing.is_set():
                self._thread = threading.Thread(target=self._work, name="edgeproof-uplink", daemon=True)
                self._thread.start()

    def drop(self, run_id: str) -> None:
        """Say that a run never began."""
        with self._lock:
            self._own.discard(run_id)
            mark = self._held.pop(run_id, None)
        if mark is not None:
            mark.remove()

    def notify(self) -> None:
        """Say that there is something new."""
        if not self._something.is_set():
            self._something.set()

    def close(self, wait_s: float = _AT_CLOSE_S) -> None:
        """Send what is left, for as long as this, and say what is still to be sent."""
        if self._thread is None:
            return
        self._deadline = time.monotonic() + wait_s
        self._closing.set()
        self._something.set()
        self._thread.join(wait_s + 1)
        refused = self._outbox.refusals()
        left = sum(run_id not in refused for run_id in self._outbox.waiting())
        left += len(self._held) if self._thread.is_alive() else 0
        if others := self._outbox.elsewhere():
            _LOG.info(
                "%d runs in %s wait for another server or account: embedl-hub sync --all", others, self._store.home
            )
        self._thread = None
        self._sender.wire.close()
        if left:
            _LOG.warning(
                "%d runs are still to be sent to %s. They are kept in %s; the next client sends them, or: "
                "embedl-hub sync",
                left, self._server.url, self._store.home,
            )  # fmt: skip

    def send_all(self, *, also: Iterable[str] = ()) -> Sent:
        """Send every run that is waiting, and those of ``also``, now, and return what became of them."""
        for run_id in also:
            if (mark := self._outbox.hold(run_id, new=True)) is not None:
                mark.close()
        self._outbox.forget_refusals()
        sent = 0
        try:
            for run_id in self._outbox.run_ids():
                if (mark := self._outbox.hold(run_id)) is None:
                    continue
                with contextlib.closing(mark):
                    sent += self._send(mark) is _Outcome.SENT
        finally:
            self._sender.wire.close()
        return Sent(sent, len(self._outbox.waiting()), self._outbox.refusals(), self._outbox.elsewhere())

    def _send(self, mark: Mark) -> _Outcome:
        """Send what there is of a run; one that the server will not take is put aside with the reason."""
        try:
            self._sender.send(mark)
        except NotAllowedError as error:
            if not error.is_closed:
                raise
            return self._put_aside(
                mark,
                f"the key does not open project {mark.learn_project()!r} for writing at {self._server.url}. Get a key "
                "that does, then: embedl-hub sync",
            )
        except RefusedError as error:
            if error.status != 410:
                return self._put_aside(mark, str(error))
            # Somebody deleted it over there, on purpose.
            mark.remove()
            return _Outcome.GONE
        # A run of our own may be about to begin; of others, one that has no record never will.
        never_began = mark.run_id not in self._own and not self._store.manifest(mark.run_id).exists()
        if mark.has_ended or never_began:
            mark.remove()
            return _Outcome.SENT if mark.has_ended else _Outcome.GONE
        return _Outcome.OPEN

    def _put_aside(self, mark: Mark, reason: str) -> _Outcome:
        mark.refuse(reason)
        _LOG.warning("Run %s cannot be sent: %s", mark.run_id, reason)
        return _Outcome.REFUSED

    def _work(self) -> None:
        pause_s, closing = 0.0, False
        while not closing:
            self._something.wait(_LOOK_AGAIN_S)
            self._something.clear()
            closing = self._closing.wait(max(_GATHER_S, pause_s))
            try:
                self._send_round(closing=closing)
            except UnreachableError as error:
                self._note(str(error))
                self._something.set()
                pause_s = max(error.wait_s, min(_LONGEST_PAUSE_S, max(_FIRST_PAUSE_S, 2 * pause_s)))
                # Whoever closes waits for a busy server, not for one that is not there.
                closing = closing and (error.is_down or not self._rest(min(pause_s, 1.0)))
            except (TrackingError, OSError, KeyError, TypeError, ValueError) as error:
                # A key that is not taken, a full disk, an answer from something else than a server of ours.
                self._note(str(error))
                pause_s = _LONGEST_PAUSE_S
            else:
                self._note("")
                pause_s = 0.0
        with self._lock:
            for mark in self._held.values():
                mark.close()

    def _send_round(self, *, closing: bool) -> None:
        if closing:
            self._sender.wire.limit_s = max(1.0, self._deadline - time.monotonic())
        if closing or time.monotonic() >= self._look_at:
            self._adopt()
            self._look_at = time.monotonic() + _LOOK_AGAIN_S
        self._send_held()

    def _rest(self, seconds: float) -> bool:
        """Wait a little while closing; tell whether there is time for another try."""
        time.sleep(max(0.0, min(seconds, self._deadline - time.monotonic())))
        return time.monotonic() < self._deadline

    def _adopt(self) -> None:
        """Take the runs that nobody sends: their processes are gone, or could not reach the server."""
        refused = self._outbox.refusals()
        for run_id in self._outbox.run_ids():
            if run_id not in self._held and run_id not in refused and (mark := self._outbox.hold(run_id)) is not None:
                with self._lock:
                    self._held[run_id] = mark

    def _send_held(self) -> None:
        with self._lock:
            held = list(self._held.values())
        closed_door: NotAllowedError | None = None
        for mark in held:
            try:
                outcome = self._send(mark)
            except NotAllowedError as error:
                # The key may open the projects of other runs.
                closed_door = error
                continue
            # An open run of others has no process; whoever goes on with it sends it on.
            if outcome is not _Outcome.OPEN or mark.run_id not in self._own:
                with self._lock:
                    self._held.pop(mark.run_id, None)
                mark.close()
        if closed_door is not None:
            raise closed_door

    def _note(self, trouble: str) -> None:
        if trouble and not self._trouble:
            _LOG.warning("%s. Runs are kept in %s and sent later.", trouble.rstrip("."), self._store.home)
        elif self._trouble and not trouble:
            _LOG.warning("%s can be reached again.", self._server.url)
        self._trouble = trouble


def open_uplink(store: Store) -> Uplink | None:
    """Return the way to this user's server; None when there is none."""
    server = find_server()
    return None if server is None else Uplink(store, server)
