"""Learn several versions of a runtime, each by whoever is free; what was asked before is not asked again."""

from collections.abc import Sequence
from contextlib import AbstractContextManager, ExitStack
from dataclasses import asdict, dataclass
from functools import partial
from pathlib import Path
from typing import Any

from embedl_deploy._spread import Spread
from embedl_deploy.dialect._tables import RuleTable, number
from embedl_deploy.errors import DeployError, DialectError
from embedl_deploy.rules._environment import Say, python_with
from embedl_deploy.rules._learn import Graphs, Journal, Learner, Lesson
from embedl_deploy.rules._open import open_journal, open_probe
from embedl_deploy.rules._probe import Probe
from embedl_deploy.rules._shrink import shrink


@dataclass(frozen=True)
class Learned:
    """What became of one version: its table and where that lies, or why there is none."""

    runtime: str
    version: str
    table: RuleTable | None = None
    path: Path | None = None
    lessons: tuple[Lesson, ...] = ()
    failed: str = ""

    def to_dict(self) -> dict[str, Any]:
        """Return it as JSON-able data; the rules themselves are in the file."""
        return {
            "runtime": self.runtime, "version": self.version, "path": None if self.path is None else str(self.path),
            "rules": 0 if self.table is None else len(self.table.rules),
            "graphs": 0 if self.table is None else self.table.graphs,
            "operators": [asdict(each) for each in self.lessons], "failed": self.failed,
        }  # fmt: skip

    def __str__(self) -> str:
        if self.table is None:
            return f"{self.runtime} {self.version}: FAILED: {self.failed}"
        tested, wrong = sum(each.tested for each in self.lessons), sum(each.wrong for each in self.lessons)
        open_ones = ", ".join(each.operator for each in self.lessons if not each.is_settled)
        return (
            f"{self.path}: {len(self.table.rules)} rules from {self.table.graphs} graphs; while learning, {wrong} of "
            f"{tested} graphs were predicted wrong before they were run."
            + (f" Not settled: {open_ones}." if open_ones else "")
        )


def learn(
    runtime: str,
    folder: Path,
    *,
    versions: Sequence[str] = (),
    python: Path | None = None,
    operators: Sequence[str] = (),
    spread: Spread | None = None,
    say: Say | None = None,
) -> list[Learned]:
    """Learn the rules of a runtime's versions; one that fails does not stop the others.

    Args:
        runtime: Its name, such as ``onnxruntime``.
        folder: Where journals and tables go. What the journals hold is not asked again, and a version that is learned
            begins with the rules of the next one that has a journal there.
        versions: Versions of ONNX Runtime, each asked in an environment of its own, which is made on first use; the
            runtime that is installed when there are none.
        python: The interpreter of an environment that has the runtime, instead of versions.
        operators: Only these; all that there are graphs of when none is named.
        spread: Who works on several versions: ``ProcessPoolExecutor(...).map``, ``over_ray()``; one after the other,
            which share their graphs, when not given. Whoever works writes to the folder.
        say: What hears how it goes.

    Raises:
        DialectError: The runtime is unknown, or the folder cannot be made.
    """
    try:
        folder.mkdir(parents=True, exist_ok=True)
    except OSError as exc:
        raise DialectError(f"{folder} cannot be made: {exc}.") from exc
    if not versions:
        with open_probe(runtime, python) as probe:
            return [_learn(probe, folder, operators, Graphs(), say)]
    work = partial(_learn_version, runtime, folder, tuple(operators))
    if spread is not None:
        found = list(spread(work, versions))
    else:
        graphs = Graphs()
        found = [work(version, graphs, say) for version in versions]
    _compare(runtime, folder, found, say)
    return found


def _compare(runtime: str, folder: Path, found: Sequence[Learned], say: Say | None) -> None:
    """Ask the versions that were learned about each other's graphs, and about small ones of what changed."""
    tables = {each.version: each.table for each in found if each.table is not None}
    if len(tables) < 2:
        return
    with ExitStack() as stack:
        probes = [stack.enter_context(_asking(runtime, version, None)) for version in tables]
        journals = {probe.version: open_journal(folder, probe) for probe in probes}
        asked = shrink(probes, journals, tables)
    if say is not None:
        say(f"{runtime}: {asked} graphs were asked to compare {', '.join(tables)}")


def _learn_version(
    runtime: str, folder: Path, operators: Sequence[str], version: str, graphs: Graphs | None = None,
    say: Say | None = None,
) -> Learned:  # fmt: skip
    try:
        with _asking(runtime, version, say) as probe:
            return _learn(probe, folder, operators, graphs or Graphs(), say)
    except DeployError as error:
        return Learned(runtime, version, failed=str(error))


def _asking(runtime: str, version: str, say: Say | None) -> AbstractContextManager[Probe]:
    return open_probe(runtime, python_with(runtime, version, say=say))


def _learn(probe: Probe, folder: Path, operators: Sequence[str], graphs: Graphs, say: Say | None) -> Learned:
    journal = open_journal(folder, probe)
    name = f"{probe.runtime} {probe.version}"
    if say is not None:
        damaged = f", {journal.damaged} lines tell nothing and are asked again" if journal.damaged else ""
        say(f"{name}: {len(journal.answers)} graphs are known{damaged}")
    learner = Learner(probe, journal, graphs=graphs, prior=_nearest(folder, probe, len(journal.answers)))
    table, lessons = learner.run(operators, say=None if say is None else lambda line: say(f"{name}: {line}"))
    path = folder / f"{probe.runtime}-{probe.version}.json"
    try:
        table.save(path)
    except OSError as exc:
        raise DialectError(f"The rule table {path} cannot be written: {exc}.") from exc
    return Learned(probe.runtime, probe.version, table, path, tuple(lessons))


def _nearest(folder: Path, probe: Probe, asked: int) -> Journal | None:
    """Return the journal of the version that is next to a probe's, has a table and knows more than is known of it."""
    own = number(probe.version)
    found = []
    for path in folder.glob(f"{probe.runtime}-*.jsonl"):
        version = path.stem.removeprefix(f"{probe.runtime}-")
        if version != probe.version and number(version) and path.with_suffix(".json").exists():
            found.append((_apart(own, number(version)), path))
    nearest = Journal.open(min(found)[1]) if found else None
    return nearest if nearest is not None and len(nearest.answers) > asked else None


def _apart(one: Sequence[int], other: Sequence[int]) -> tuple[int, ...]:
    return tuple(abs(a - b) for a, b in zip(one, other, strict=False))
