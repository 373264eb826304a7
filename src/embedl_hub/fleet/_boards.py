"""Which boards of a sweep may get work."""

from __future__ import annotations

import threading
from collections import defaultdict
from collections.abc import Callable
from typing import TYPE_CHECKING, Protocol

if TYPE_CHECKING:
    from embedl_hub.fleet._model import Listener, Outcome, Target

# Without a watch over the boards' health: one that fails this often in a row is left alone.
_MOST_FAULTS = 3
_CHECK_WAIT_S = 120.0


class BoardHealth(Protocol):
    """Whoever knows which boards are well."""

    def report_failure(self, name: str) -> object:
        """Hear that a step failed on a board through no fault of its model."""
        ...

    def is_in(self, name: str) -> bool:
        """Tell whether a board may get work."""
        ...

    def why_out(self, name: str) -> str:
        """Return what is wrong with a board that may not."""
        ...

    def settled(self, name: str, timeout_s: float | None = None) -> object:
        """Wait until what was reported of a board has been looked into."""
        ...


class Boards:
    """Which boards may get work."""

    def __init__(self, targets: tuple[Target, ...], health: BoardHealth | None, listener: Listener) -> None:
        self._names = frozenset(name for target in targets for name in target.devices)
        self._health = health
        self._listener = listener
        self._faults: dict[str, int] = defaultdict(int)
        self._out: frozenset[str] = frozenset()

    @property
    def may_come_back(self) -> bool:
        """Whether anybody looks after boards that are out."""
        return self._health is not None

    def out(self) -> frozenset[str]:
        """Return the boards that are to get no work now."""
        if self._health is None:
            out = frozenset(name for name in self._names if self._faults[name] >= _MOST_FAULTS)
        else:
            out = frozenset(name for name in self._names if not self._health.is_in(name))
        for name in sorted(out - self._out):
            self._listener.said(f"Device {name!r} gets no more work: {self._why(name)}.")
        for name in sorted(self._out - out):
            self._listener.said(f"Device {name!r} is back.")
        self._out = out
        return out

    def count(self, name: str, *, is_fault: bool) -> None:
        """Count a board's faults in a row."""
        self._faults[name] = self._faults[name] + 1 if is_fault else 0
        if is_fault and self._health is not None:
            self._health.report_failure(name)

    def when_checked(self, outcome: Outcome, then: Callable[[], None]) -> None:
        """Call when it is known how the board of a failed job is; at once where nobody looks after boards."""
        health, name = self._health, outcome.device
        if health is None or name is None or not outcome.is_boards_fault:
            then()
            return

        def wait() -> None:
            try:
                health.settled(name, _CHECK_WAIT_S)
            finally:
                then()

        threading.Thread(target=wait, name=f"edgeproof-sweep-check-{name}", daemon=True).start()

    def are_all_out(self, target: Target) -> bool:
        """Tell whether a target has no board left; this machine is never out."""
        return bool(target.devices) and self._out.issuperset(target.devices)

    def why_out(self, target: Target) -> str:
        """Return why the boards of a target get no work."""
        return "; ".join(f"{name!r} {self._why(name)}" for name in target.devices if name in self._out)

    def _why(self, name: str) -> str:
        if self._health is not None:
            return f"did not pass its health check ({self._health.why_out(name).rstrip('.')})"
        return f"failed {self._faults[name]} times in a row"
