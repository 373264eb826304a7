"""Patterns and a graph become a plan: which rewrite happens where, in which order, and why others do not.

A plan is data. Conversions are tried out on a scratch copy, round after round, until nothing matches any more; fusions
are then chosen on the result, the longest first. Overlaps are settled here, never discovered while applying.
"""

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, field, replace

from torch import fx

from embedl_deploy._graph import Network
from embedl_deploy._match import Found, Matcher
from embedl_deploy._table import table
from embedl_deploy._trace import Tracing
from embedl_deploy.errors import PatternError, PlanError
from embedl_deploy.pattern import Pattern, Phase, Refusal, is_pattern

_MOST_ROUNDS = 64
_PATIENCE = 4  # rounds before a network is compared with its earlier states; honest chains are shorter


@dataclass(frozen=True)
class Step:
    """One planned rewrite.

    Attributes:
        number: Row in the plan, from 1.
        pattern: The pattern class.
        place: Where, in the user's model.
        members: Names of the graph's nodes it replaces, in the order of the data.
        inputs: Names of the nodes whose values it reads.
        layers: The user's modules it stands for.
        anchor: The last member.
        round: Which round of conversions, from 1; fusions come in the round after the last.
        needs: Numbers of the steps that made some of its members.
        enabled: Whether `apply_plan` does it.
    """

    number: int
    pattern: type[Pattern]
    place: str
    members: tuple[str, ...]
    inputs: tuple[str, ...]
    layers: tuple[str, ...]
    anchor: str
    round: int
    needs: tuple[int, ...] = ()
    enabled: bool = True

    @property
    def phase(self) -> Phase:
        """The pattern's phase."""
        return self.pattern.phase


@dataclass(frozen=True)
class Plan:
    """What would be done to a model, and what not and why.

    Print it for a table. `without` and `only` return plans with rows switched off; `apply_plan` carries one out.
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
        """Return the numbers of the steps that any of `rows` means."""
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
        counts: dict[str, int] = {}
        for step in self.steps:
            if step.enabled:
                counts[step.pattern.__name__] = counts.get(step.pattern.__name__, 0) + 1
        return counts

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
    """Raise unless every pattern is one that a transform can run."""
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
    """Make the plan for a traced model.

    Raises:
        PatternError: A pattern cannot be run by a transform.
        PlanError: Conversions undo each other for ever.
    """
    check_patterns(patterns)
    scratch = tracing.network.copy()
    steps: list[Step] = []
    refusals = _convert(scratch, Matcher(_of(patterns, Phase.CONVERSION), allow_lossy=allow_lossy), steps)
    fusions = Matcher(_of(patterns, Phase.FUSION), allow_lossy=allow_lossy)
    chosen, refused = choose(fusions, scratch, _position(patterns))
    makers = _makers(scratch)
    last = max((step.round for step in steps), default=0) + 1
    for found in chosen:
        steps.append(_step(scratch, found, len(steps) + 1, last, makers))
    covered = {name for step in steps for name in step.members}
    refusals += [refusal for node, refusal in refused if node.name not in covered]
    told = dict.fromkeys(refusal for refusal in refusals if refusal.informative)
    plan = Plan(tuple(steps), tuple(told), tracing, tuple(patterns), allow_lossy)
    return Draft(plan, scratch)


def _of(patterns: Sequence[type[Pattern]], phase: Phase) -> tuple[type[Pattern], ...]:
    """Return the patterns of one phase."""
    return tuple(pattern for pattern in patterns if pattern.phase is phase)


def _convert(network: Network, matcher: Matcher, steps: list[Step]) -> list[Refusal]:
    """Apply conversions until nothing matches, noting each as a step; return the last round's refusals."""
    if not matcher.patterns:
        return []
    order = _position(matcher.patterns)
    seen: dict[int, int] = {}
    for number in range(1, _MOST_ROUNDS + 1):
        chosen, refused = choose(matcher, network, order)
        if not chosen:
            return [refusal for _, refusal in refused]
        makers = _makers(network)
        for found in chosen:
            steps.append(_step(network, found, len(steps) + 1, number, makers))
        # Every replacement is made before the first is put in place: replace() may still ask about its neighbours.
        replacements = [found.pattern().replace(found.match) for found in chosen]
        for found, replacement, step in zip(chosen, replacements, steps[-len(chosen) :], strict=True):
            network.substitute(found.match, replacement, made_by=step.number)
        if number >= _PATIENCE:
            signature = _signature(network)
            if signature in seen:
                raise _endless(steps, seen[signature])
            seen[signature] = number
    raise _endless(steps, _MOST_ROUNDS - 4)


def _endless(steps: Sequence[Step], since: int) -> PlanError:
    """Name the patterns that keep undoing each other."""
    looping = [step for step in steps if step.round > since]
    names = sorted({step.pattern.__name__ for step in looping})
    places = sorted({step.place for step in looping})
    return PlanError(
        f"the conversions {', '.join(names)} keep changing '{places[0]}'"
        f"{f' and {len(places) - 1} more places' if len(places) > 1 else ''} for ever: "
        f"each one's result matches another; leave one of them out, or let its check refuse what the other makes."
    )


def choose(
    matcher: Matcher, network: Network, order: Callable[[Found], int]
) -> tuple[list[Found], list[tuple[fx.Node, Refusal]]]:
    """Settle overlaps: the longest first, then by the order of the patterns, then by place.

    Two matches clash when they share a member, or when one reads a value that the other hides.
    """
    refused: list[tuple[fx.Node, Refusal]] = []
    fitting = sorted(matcher.find(network), key=lambda found: (-len(found.match.ops), order(found)))
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


def _position(patterns: Sequence[type[Pattern]]) -> Callable[[Found], int]:
    """Rank a match by where its pattern stands in the list."""
    rank = {pattern: position for position, pattern in enumerate(patterns)}
    return lambda found: rank[found.pattern]


def _makers(network: Network) -> dict[str, int]:
    """Map nodes that conversions made to the step that made them."""
    return {node.name: node.meta["made_by"] for node in network.graph.nodes if "made_by" in node.meta}


def _step(network: Network, found: Found, number: int, round_: int, makers: dict[str, int]) -> Step:
    """Describe a match as a row of the plan."""
    match = found.match
    members = tuple(node.name for node in match.ops.values())
    return Step(
        number=number,
        pattern=found.pattern,
        place=match.place,
        members=members,
        inputs=tuple(node.name for node in match.inputs),
        layers=tuple(dict.fromkeys(name for node in match.ops.values() for name in network.origins_of(node))),
        anchor=match.output.name,
        round=round_,
        needs=tuple(sorted({makers[name] for name in members if name in makers})),
    )


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
