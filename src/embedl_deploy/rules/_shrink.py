"""Find small graphs of what changed between two versions: ask both about smaller ones than those that showed it."""

import itertools
from collections.abc import Iterator, Mapping, Sequence

from embedl_deploy.dialect._facts import facts_of
from embedl_deploy.dialect._model import read
from embedl_deploy.dialect._tables import RuleTable
from embedl_deploy.rules._cases import CENTER, Case, NoSuchGraphError, build
from embedl_deploy.rules._diff import MOST_NODES, Change, changes_in, examples_of, observed_in, stripped
from embedl_deploy.rules._learn import Journal
from embedl_deploy.rules._probe import Probe

_AT_ONCE = 200
_ROUNDS = 2  # what was asked for one change may split another


def shrink(probes: Sequence[Probe], journals: Mapping[str, Journal], tables: Mapping[str, RuleTable]) -> int:
    """Ask versions about each other's examples, and where they differ on large graphs about smaller ones.

    Args:
        probes: What asks the versions, all of one runtime.
        journals: What they answered so far, by version; answers are added.
        tables: Their rules, by version.

    Returns:
        How many graphs were asked.
    """
    examples = examples_of(tables.values())
    asked = sum(_ask(probe, journals[probe.version], examples) for probe in probes)
    for _ in range(_ROUNDS):
        before = asked
        for pair in itertools.combinations(probes, 2):
            observed = observed_in(pair[0].runtime, {each.version: journals[each.version] for each in pair})
            unchanged = examples_of(tables[each.version] for each in pair)
            first, second = observed.versions
            changes = changes_in(observed, first, second, unchanged)
            large = (each for each in changes if each.nodes > MOST_NODES)
            cases = list(dict.fromkeys(case for change in large for case in smaller(change)))
            asked += sum(_ask(probe, journals[probe.version], cases) for probe in pair)
        if asked == before:
            break
    return asked


def _ask(probe: Probe, journal: Journal, cases: Sequence[Case]) -> int:
    wanted = [case for case in cases if case not in journal.answers]
    for start in range(0, len(wanted), _AT_ONCE):
        some = wanted[start : start + _AT_ONCE]
        for case, placement in zip(some, probe.ask([build(case) for case in some]), strict=True):
            journal.add(case, placement)
    return len(wanted)


def smaller(change: Change) -> Iterator[Case]:
    """Yield the graphs of at most `MOST_NODES` nodes of which a change speaks too, with fewer settings set."""
    case = Case.parse(change.example)
    for count in range(len(case.settings)):
        for kept in itertools.combinations(case.settings, count):
            for end in ((), (("output", "model"),), (("output", "float"),)):
                some = Case.of(case.operator, dict((*kept, *end)))
                try:
                    model = build(some)
                except NoSuchGraphError:
                    continue
                if len(stripped(model).graph.node) <= MOST_NODES and _holds(change, some):
                    yield some


def _holds(change: Change, case: Case) -> bool:
    facts = next(node.known({}) for node in facts_of(read(build(case))) if node.name == CENTER)
    return all(condition.holds(facts) for condition in change.conditions)
