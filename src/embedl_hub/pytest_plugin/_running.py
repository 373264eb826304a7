"""The test that runs now, for the checks in it. Imports nothing of the hub: pytest loads it everywhere."""

from __future__ import annotations

from collections.abc import Callable
from contextvars import ContextVar
from typing import TYPE_CHECKING, Any

from embedl_hub.pytest_plugin._ends import NotMeasuredError

if TYPE_CHECKING:
    from embedl_hub.comparison import Finding
    from embedl_hub.pytest_plugin._session import Session


class RunningTest:
    """One test while it runs: where it measures, and what its checks found."""

    def __init__(
        self, nodeid: str, session: Callable[[], Session], add_property: Callable[[tuple[str, str]], None]
    ) -> None:
        self.nodeid = nodeid
        self.device: str | None = None  # the one of its fixture ``board``
        self._session = session
        self._add_property = add_property
        self._found: list[dict[str, Any]] = []

    @property
    def session(self) -> Session:
        """What all tests of the process share; made on first use."""
        return self._session()

    def add(self, finding: Finding) -> None:
        """Keep what a check found for the reports."""
        self._found.append(finding.as_dict())
        words = [("check", finding.title), ("outcome", str(finding.outcome)), ("device", finding.place)]
        words += [("figure", f"{name}: {text}") for name, text in finding.figures]
        words += [("run", run) for _, run in finding.runs]
        for name, text in words:
            if text:
                self._add_property((f"edgeproof.{name}", text))

    def add_error(self, message: str) -> None:
        """Keep that nothing was measured."""
        from embedl_hub.comparison import Finding  # noqa: PLC0415 - only after an error

        self.add(Finding.not_measured(self.nodeid, message, meaning="an error of the test, not a failure"))

    def take(self) -> list[dict[str, Any]]:
        """Return what was found since the last time."""
        found, self._found = self._found, []
        return found


# A check is a plain function, and what it needs, the store and the board of its test, comes from the test around it.
CURRENT: ContextVar[RunningTest | None] = ContextVar("embedl_hub_running_test", default=None)


def current_test(check: str) -> RunningTest:
    """Return the test that runs now, or say that none does."""
    test = CURRENT.get()
    if test is None:
        raise NotMeasuredError(
            f"{check} was called outside of a test, or in a thread of its own. Call it in a test that pytest runs; the "
            "plugin is loaded where edgeproof-hub is installed, unless -p no:edgeproof leaves it out."
        )
    return test
