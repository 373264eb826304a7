"""Patterns and a graph become a plan: which rewrite happens where, in which order, and why others do not.

A plan is data. Conversions are tried out on a scratch copy, round after round, until nothing matches any more; fusions
are then chosen on the result, the longest first. Overlaps are settled here, never discovered while applying.
"""

from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from types import MappingProxyType

from torch import fx

from embedl_deploy._graph.network import Network
from embedl_deploy._table import Printed, table
from embedl_deploy._trace.tracing import Tracing
from embedl_deploy._transform.match import Found, Matcher
from embedl_deploy.errors import PatternError, PlanError
from embedl_deploy.pattern import Match, Pattern, Phase, Refusal, is_pattern

_MOST_ROUNDS = 64
_PATIENCE = 4  # rounds before a network is compared with its earlier states; honest chains are shorter


@dataclass(frozen=True)
class Wiring:
    """How the members of a match hang together, by the names of nodes: what finds it again on a copy of the network."""

    members: tuple[tuple[str, str, tuple[str, ...]], ...]  # Name in the tree, node's name, names of nodes it reads.
    inputs: tuple[tuple[int, int], ...]  # Where each value enters: the member and the position among what it reads.
    names: Mapping[str, int]  # Inputs that the tree names, as positions.

    @classmethod
    def of(cls, match: Match) -> "Wiring":
        members = tuple(
            (role, node.name, tuple(read.name for read in node.all_input_nodes)) for role, node in match.ops.items()
        )
        places: dict[str, list[tuple[int, int]]] = {}
        for number, (_, _, reads) in enumerate(members):
            for position, name in enumerate(reads):
                places.setdefault(name, []).append((number, position))
        # A value that several members read has as many places; the last serves all that are left.
        found = [places[node.name] for node in match.inputs]
        return cls(members, tuple(place.pop(0) if len(place) > 1 else place[0] for place in found), match.names)

    def match_on(self, network: Network, nodes: Mapping[str, fx.Node]) -> Match | None:
        """Return the match on a network with the same node names, `None` when its members hang together otherwise."""
        inside = {name for _, name, _ in self.members}
        reads: list[list[fx.Node]] = []
        for _, name, planned in self.members:
            reads.append(nodes[name].all_input_nodes if name in nodes else [])
            now = [node.name if node.name in inside else "" for node in reads[-1]]
            if name not in nodes or now != [read if read in inside else "" for read in planned]:
                return None
        ops = {role: nodes[name] for role, name, _ in self.members}
        inputs = tuple(reads[member][position] for member, position in self.inputs)
        return Match(MappingProxyType(ops), inputs, self.names, nodes[self.members[-1][1]], network)


@dataclass(frozen=True)
class Step:
    """One planned rewrite."""

    number: int  # row in the plan, from 1
    pattern: type[Pattern]
    place: str  # where, in the user's model
    members: tuple[str, ...]  # names of the graph's nodes it replaces, in the order of the data
    inputs: tuple[str, ...]  # names of the nodes whose values it reads
    layers: tuple[str, ...]  # the user's modules it stands for
    round: int  # which round of conversions, from 1; fusions come in the round after the last
    wiring: Wiring = field(repr=False, compare=False)  # how the members hang together; `apply_plan` finds them by it
    needs: tuple[int, ...] = ()  # numbers of the steps that made some of its members
    enabled: bool = True  # whether `apply_plan` does it

    @property
    def phase(self) -> Phase:
        """The pattern's phase."""
        return self.pattern.phase


@dataclass(frozen=True, repr=False)
class Plan(Printed):
    """What would be done to a model, and what not and why.

    Print it for a table. `without` and `only` return plans with rows switched off; `apply_plan` applies one.
    """

    steps: tuple[Step, ...]
    refusals: tuple[Refusal, ...]
    tracing: Tracing = field(repr=False)
    patterns: tuple[type[Pattern], ...] = field(repr=False)
    allow_lossy: bool = False

    def without(self, *rows: int | str | type[Pattern]) -> "Plan":
        """Switch steps off: by row number, by pattern (class or name), or by place in the model.

        Raises:
            PlanError: A row, pattern or place is not in the plan.
        """
        off = self._select(rows)
        return replace(self, steps=tuple(replace(s, enabled=s.enabled and s.number not in off) for s in self.steps))

    def only(self, *rows: int | str | type[Pattern]) -> "Plan":
        """Switch every step off but these and the ones they need."""
        on = self._select(rows)
        for step in reversed(self.steps):
            if step.number in on:
                on.update(step.needs)
        return replace(self, steps=tuple(replace(s, enabled=s.number in on) for s in self.steps))

    def _select(self, rows: Iterable[int | str | type[Pattern]]) -> set[int]:
        chosen: set[int] = set()
        for row in rows:
            name = row.__name__ if isinstance(row, type) else row
            found = {s.number for s in self.steps if name in (s.number, s.pattern.__name__, s.place)}
            if not found:
                raise PlanError(
                    f"the plan has no step {name!r}; it has the rows 1 to {len(self.steps)}, "
                    f"for the patterns {', '.join(self.counts()) or 'none'}."
                )
            chosen |= found
        return chosen

    def counts(self) -> dict[str, int]:
        """Count the enabled steps by pattern."""
        return dict(Counter(step.pattern.__name__ for step in self.steps if step.enabled))

    def _line(self) -> str:
        return (
            f"{sum(step.enabled for step in self.steps)} of {len(self.steps)} steps on, {len(self.refusals)} not done"
        )

    def __str__(self) -> str:
        rows = [
            (str(s.number), "on" if s.enabled else "off", s.phase.value, s.pattern.__name__, ", ".join(s.layers))
            for s in self.steps
        ]
        lines = [table(("row", "", "phase", "pattern", "layers"), rows) if rows else "nothing to do"]
        if self.refusals:
            refused = [(refusal.pattern, refusal.place, refusal.reason) for refusal in self.refusals]
            lines += ["", "Not done:", table(("pattern", "place", "reason"), refused)]
        if notes := self.tracing.notes:
            lines += ["", "Tracing:", *(f"- {note}" for note in notes)]
        return "\n".join(lines)


@dataclass(frozen=True)
class Draft:
    """A plan together with the scratch network on which its conversions were tried out."""

    plan: Plan
    converted: Network


def check_patterns(patterns: Sequence[type[Pattern]]) -> None:
    for pattern in patterns:
        if not is_pattern(pattern):
            raise PatternError(
                f"patterns holds {pattern!r}; give pattern classes (not instances), such as ConvBNPattern."
            )
        phase = getattr(pattern, "phase", None)
        if phase not in (Phase.CONVERSION, Phase.FUSION):
            has = f"phase {phase.name}" if isinstance(phase, Phase) else "no phase"
            raise PatternError(f"{pattern.__name__} has {has}; transform runs CONVERSION and FUSION patterns only.")


def draft(tracing: Tracing, patterns: Sequence[type[Pattern]], *, allow_lossy: bool = False) -> Draft:
    check_patterns(patterns)
    scratch = tracing.network.copy()
    steps: list[Step] = []
    refusals = _convert(scratch, Matcher(_of(patterns, Phase.CONVERSION), allow_lossy=allow_lossy), steps)
    chosen, refused = choose(Matcher(_of(patterns, Phase.FUSION), allow_lossy=allow_lossy), scratch)
    makers = _makers(scratch)
    last = max((step.round for step in steps), default=0) + 1
    for found in chosen:
        steps.append(_step(scratch, found, len(steps) + 1, last, makers))
    covered = {name for step in steps for name in step.members}
    refusals += [refusal for node, refusal in refused if node.name not in covered]
    shown = dict.fromkeys(refusal for refusal in refusals if refusal.informative)
    return Draft(Plan(tuple(steps), tuple(shown), tracing, tuple(patterns), allow_lossy), scratch)


def _of(patterns: Sequence[type[Pattern]], phase: Phase) -> tuple[type[Pattern], ...]:
    return tuple(pattern for pattern in patterns if pattern.phase is phase)


def _convert(network: Network, matcher: Matcher, steps: list[Step]) -> list[Refusal]:
    """Apply conversions until nothing matches, noting each as a step; return the last round's refusals."""
    if not matcher.patterns:
        return []
    seen: dict[int, int] = {}
    for number in range(1, _MOST_ROUNDS + 1):
        chosen, refused = choose(matcher, network)
        if not chosen:
            return [refusal for _, refusal in refused]
        makers = _makers(network)
        for found in chosen:
            steps.append(_step(network, found, len(steps) + 1, number, makers))
        # Every replacement is made before the first is put in place: replace() may still ask about its neighbors.
        replacements = [found.pattern().replace(found.match) for found in chosen]
        for found, replacement, step in zip(chosen, replacements, steps[-len(chosen) :], strict=True):
            network.substitute(found.match, replacement, made_by=step.number)
        if number >= _PATIENCE:
            signature = _signature(network)
            if signature in seen:
                raise _endless_error(steps, seen[signature])
            seen[signature] = number
    raise _endless_error(steps, _MOST_ROUNDS - 4)


def _endless_error(steps: Sequence[Step], since: int) -> PlanError:
    looping = [step for step in steps if step.round > since]
    names = sorted({step.pattern.__name__ for step in looping})
    places = sorted({step.place for step in looping})
    return PlanError(
        f"the conversions {', '.join(names)} keep changing '{places[0]}'"
        f"{f' and {len(places) - 1} more places' if len(places) > 1 else ''} forever: "
        f"each one's result matches another; leave one of them out, or let its check refuse what the other makes."
    )


def choose(matcher: Matcher, network: Network) -> tuple[list[Found], list[tuple[fx.Node, Refusal]]]:
    """Settle overlaps: the longest first, then by the order of the patterns, then by place.

    Two matches clash when they share a member, or when one reads a value that the other hides.
    """
    refused: list[tuple[fx.Node, Refusal]] = []
    rank = {pattern: position for position, pattern in enumerate(matcher.patterns)}
    fitting = sorted(matcher.find(network), key=lambda found: (-len(found.match.ops), rank[found.pattern]))
    taken: dict[fx.Node, Found] = {}
    hidden: dict[fx.Node, Found] = {}
    read: dict[fx.Node, Found] = {}
    chosen: list[Found] = []
    for found in fitting:
        members = set(found.match.ops.values())
        inner = members - {found.match.output}
        rival = next((taken[node] for node in members if node in taken), None)
        rival = rival or next((hidden[node] for node in found.match.inputs if node in hidden), None)
        rival = rival or next((read[node] for node in inner if node in read), None)
        if rival is not None:
            loses = not members <= set(rival.match.ops.values()) and found.pattern is not rival.pattern
            if loses and matcher.judge(network, found) is None:
                reason = f"'{rival.match.place}' went to {rival.pattern.__name__}"
                refused.append((found.match.output, Refusal(reason, found.pattern.__name__, found.match.place)))
            continue
        if (refusal := matcher.judge(network, found)) is not None:
            refused.append((found.match.output, refusal))
            continue
        taken.update(dict.fromkeys(members, found))
        hidden.update(dict.fromkeys(inner, found))
        read.update(dict.fromkeys(found.match.inputs, found))
        chosen.append(found)
    chosen.sort(key=lambda found: found.match.output)
    return chosen, refused


def _makers(network: Network) -> dict[str, int]:
    return {node.name: node.meta["made_by"] for node in network.graph.nodes if "made_by" in node.meta}


def _step(network: Network, found: Found, number: int, round_: int, makers: dict[str, int]) -> Step:
    match = found.match
    members = tuple(node.name for node in match.ops.values())
    inputs = tuple(node.name for node in match.inputs)
    layers = tuple(dict.fromkeys(name for node in match.ops.values() for name in network.origins_of(node)))
    needs = tuple(sorted({makers[name] for name in members if name in makers}))
    return Step(number, found.pattern, match.place, members, inputs, layers, round_, Wiring.of(match), needs)


def _signature(network: Network) -> int:
    """Hash what the graph computes, whatever its nodes are called."""
    index: dict[fx.Node, int] = {}
    rows = []
    for position, node in enumerate(network.graph.nodes):
        index[node] = position
        module = network.module_of(node)
        what = (type(module), repr(module)) if module is not None else (node.op, str(node.target))
        rows.append((what, tuple(index[used] for used in node.all_input_nodes)))
    return hash(tuple(rows))
