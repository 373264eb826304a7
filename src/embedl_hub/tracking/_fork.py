"""What must be at rest when the process forks.

SQLite keeps its file locks per process and remembers them in memory: a child that inherits an open connection, even one
it never touches, believes it holds locks that it does not, and what it writes may go to a file that its parent has
deleted. So connections are closed before a fork and opened again on first use, on both sides.
"""

from __future__ import annotations

import functools
import os
import threading
import weakref


class ForkAware:
    """Something that prepares for a fork and settles after it."""

    def before_fork(self) -> None:
        """Come to rest; hold what nobody may touch until the fork is over."""

    def after_fork(self, *, in_child: bool) -> None:
        """Go on, in the parent or in the child."""


_watched: weakref.WeakSet[ForkAware] = weakref.WeakSet()
_resting: list[ForkAware] = []
# Held from before a fork until after it: forks in two threads take turns, and nothing new is watched meanwhile.
_forking = threading.Lock()


def watch(thing: ForkAware) -> None:
    """Tell a thing about every fork for as long as it lives."""
    with _forking:
        _watched.add(thing)


def _before() -> None:
    _forking.acquire()
    for thing in list(_watched):
        thing.before_fork()
        _resting.append(thing)


def _after(*, in_child: bool) -> None:
    try:
        while _resting:
            _resting.pop().after_fork(in_child=in_child)
    finally:
        _forking.release()


os.register_at_fork(
    before=_before,
    after_in_parent=functools.partial(_after, in_child=False),
    after_in_child=functools.partial(_after, in_child=True),
)
