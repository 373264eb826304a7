"""Connections to one database, lent to threads one each: readers do not wait for writers, nor for each other."""

from __future__ import annotations

import contextlib
import threading
from typing import TYPE_CHECKING

from embedl_hub.tracking import _fork

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    from embedl_hub.tracking._database import Connection, Database

_MOST_IDLE = 16


class Pool:
    """Lends connections; a thread that has one already gets the same again.

    Args:
        database: What to connect to.
        closed: Makes the error for whoever comes when it is not open.
    """

    def __init__(self, database: Database, closed: Callable[[], Exception]) -> None:
        self._database = database
        self._closed = closed
        self._condition = threading.Condition()
        self._idle: list[Connection] = []
        self._lent = 0
        self._is_resting = False
        self._is_open = False
        self._own = threading.local()
        _fork.watch(self)

    def open(self) -> None:
        """Lend from now on."""
        self._is_open = True

    def close(self) -> None:
        """Lend no more; what is lent is closed when it comes back."""
        with self._condition:
            self._is_open = False
            self._drop_idle()

    @contextlib.contextmanager
    def lend(self) -> Iterator[Connection]:
        """Lend a connection for a block."""
        own: Connection | None = getattr(self._own, "connection", None)
        if own is not None:
            yield own
            return
        connection = self._take()
        self._own.connection = connection
        broken = False
        try:
            yield connection
        except BaseException as error:
            broken = not isinstance(error, Exception) or self._database.is_own_error(error)
            raise
        finally:
            self._own.connection = None
            self._give_back(connection, broken=broken)

    def before_fork(self) -> None:
        """Close what is idle once nothing is lent, and lend nothing until the fork is over."""
        self._condition.acquire()
        self._is_resting = True
        # The forking thread may be in the middle of something of its own; it cannot wait for itself.
        own = int(getattr(self._own, "connection", None) is not None)
        while self._lent > own:
            self._condition.wait()
        self._drop_idle()

    def after_fork(self, *, in_child: bool) -> None:  # noqa: ARG002 - the same on both sides
        """Let the next one connect again."""
        self._is_resting = False
        self._condition.notify_all()
        self._condition.release()

    def _take(self) -> Connection:
        with self._condition:
            while self._is_resting:
                self._condition.wait()
            if not self._is_open:
                raise self._closed()
            self._lent += 1
            if self._idle:
                return self._idle.pop()
        try:
            return self._database.connect()
        except BaseException:
            self._end_loan()
            raise

    def _give_back(self, connection: Connection, *, broken: bool) -> None:
        with self._condition:
            if broken:
                # The server may have gone away: its other connections then went with this one.
                self._drop_idle()
            if not broken and self._is_open and len(self._idle) < _MOST_IDLE:
                self._idle.append(connection)
            else:
                _close(connection)
        self._end_loan()

    def _end_loan(self) -> None:
        with self._condition:
            self._lent -= 1
            self._condition.notify_all()

    def _drop_idle(self) -> None:
        while self._idle:
            _close(self._idle.pop())


def _close(connection: Connection) -> None:
    with contextlib.suppress(Exception):
        connection.close()
