"""The store as one visitor may see it. Everything the page shows comes through here."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

from embedl_hub.errors import ConfigError, TrackingError
from embedl_hub.health import device_health
from embedl_hub.tracking import DeviceSummary, Lineage, ProjectSummary, check_filter

if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence

    from embedl_hub.health import Health
    from embedl_hub.tracking import Page, Run, Store, ValueNames

_NEWEST = 500


class NotHereError(ConfigError):
    """There is no such thing, or it is not this visitor's to see: the answer is the same."""


@dataclass(frozen=True)
class Scope:
    """A store, and the projects of it that may be seen; None for all."""

    store: Store
    visible: frozenset[str] | None = None

    def find(
        self, where: Sequence[str], *, order: str = "-started", archived: bool | None = False,
        after: str | None = None, limit: int = 50,
    ) -> Page:  # fmt: skip
        """Return a page of runs that meet all conditions."""
        return self.store.find(self._within(where), order=order, archived=archived, after=after, limit=limit)

    def count(self, where: Sequence[str], *, archived: bool | None = False) -> int:
        """Return how many runs meet all conditions."""
        return self.store.count(self._within(where), archived=archived)

    def run(self, run_id: str) -> Run:
        """Return a run with everything it logged."""
        try:
            run = self.store.run(run_id)
        except TrackingError:
            run = None
        # The beginning of an id is for people at a prompt; here it would tell of runs that are not to be seen.
        if run is None or run.id != run_id or not self.sees(run):
            raise NotHereError(f"There is no run {run_id!r} here.")
        return run

    def lineage(self, run: Run) -> Lineage:
        """Return where a run stands among the others."""
        found = self.store.lineage(run.id)
        return Lineage(
            tuple(other for other in found.made_from if self.sees(other)),
            tuple(other for other in found.used_by if self.sees(other)),
            found.parent if found.parent is not None and self.sees(found.parent) else None,
            tuple(part for part in found.parts if self.sees(part)),
        )

    def projects(self) -> list[ProjectSummary]:
        """Return the projects by name."""
        return [one for one in self.store.projects() if self.visible is None or one.name in self.visible]

    def devices(self) -> list[DeviceSummary]:
        """Return the devices that runs were made on; for a visitor of some projects, by their newest runs."""
        if self.visible is None:
            return self.store.devices()
        found: dict[str, DeviceSummary] = {}
        for run in self.find(["device is not null"], archived=None, limit=_NEWEST).runs:
            name, failed = str(run.device), int(run.status == "FAILED")
            last = found.get(name, DeviceSummary(name, 0, 0, run.started_ms))
            found[name] = DeviceSummary(name, last.runs + 1, last.failed + failed, last.last_started_ms)
        return [found[name] for name in sorted(found)]

    def health(self, names: Iterable[str]) -> dict[str, Health]:
        """Return how devices are, as far as their checks may be seen."""
        # By the projects of the store itself: it may be one that shows less already.
        return device_health(self.store.for_projects(project.name for project in self.projects()), names)

    def value_names(self, project: str | None) -> ValueNames | None:
        """Return what the newest runs logged; None where that would tell of other projects."""
        if self.visible is not None and project not in self.visible:
            return None
        return self.store.value_names(project)

    def sees(self, run: Run) -> bool:
        """Tell whether a run may be seen."""
        return self.visible is None or run.project in self.visible

    def _within(self, where: Sequence[str]) -> str:
        parts = [text for text in where if text.strip()]
        for text in parts:
            # Alone first: what is whole by itself cannot reach out of the brackets it is put in.
            check_filter(text)
        if self.visible is not None:
            parts.append(one_of("project", sorted(self.visible)))
        return " and ".join(f"({text})" for text in parts)


def quoted(text: str) -> str:
    """Return a text as a filter writes it."""
    return "'" + text.replace("'", "''") + "'"


def one_of(field: str, values: Sequence[str]) -> str:
    """Return the condition that a field has one of some values; of none, the condition that nothing meets."""
    if not values:
        return f"{field} is null and {field} is not null"
    return f"{field} in ({', '.join(map(quoted, values))})"
