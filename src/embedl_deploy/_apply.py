"""A plan becomes a new network, each rewrite proved on the example inputs.

A step that can no longer be done (it needs one that is off, or its proof failed) becomes a refusal; the rest goes on.
"""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from itertools import groupby

from embedl_deploy._graph import Network
from embedl_deploy._match import Found, Matcher, Walk
from embedl_deploy._plan import Plan, Step
from embedl_deploy._proof import Proof, prove
from embedl_deploy.pattern import Phase, Refusal, Replacement


@dataclass(frozen=True)
class Done:
    """A step that was carried out, with its proof when there were example inputs."""

    step: Step
    proof: Proof | None


@dataclass
class Outcome:
    """What came of a plan, gathered while it is carried out."""

    network: Network
    done: list[Done] = field(default_factory=list)
    refusals: list[Refusal] = field(default_factory=list)


def carry_out(plan: Plan, *, verify: bool, tolerance: float, converted: Network | None = None) -> Outcome:
    """Do the enabled steps of a plan.

    Args:
        plan: What to do.
        verify: Prove every step on the example inputs.
        tolerance: A rewrite that is not lossy and whose error is a larger part of the range is refused.
        converted: A network on which all conversions are done already; used when none is off and nothing is proved.
    """
    conversions = [step for step in plan.steps if step.phase is Phase.CONVERSION]
    proving = verify and plan.tracing.network.example is not None
    if converted is not None and not proving and all(step.enabled for step in conversions):
        outcome = Outcome(converted, [Done(step, None) for step in conversions])
        rest: Sequence[Step] = [step for step in plan.steps if step.phase is not Phase.CONVERSION]
    else:
        outcome = Outcome(plan.tracing.network.copy())
        rest = plan.steps
    matcher = Matcher(plan.patterns, allow_lossy=plan.allow_lossy)
    for _, steps in groupby(rest, key=lambda step: step.round):
        _carry_out_round(outcome, matcher, list(steps), verify=verify, tolerance=tolerance)
    return outcome


def _carry_out_round(outcome: Outcome, matcher: Matcher, steps: list[Step], *, verify: bool, tolerance: float) -> None:
    """Do one round: find its matches again, prove them together, put them in place."""
    network = outcome.network
    ready = list(_ready(outcome, matcher, steps))
    rewrites = [(step, found, found.pattern().replace(found.match)) for step, found in ready]
    proofs: list[Proof | None] = [None] * len(rewrites)
    if verify and network.example is not None and rewrites:
        proofs = list(prove(network, [(found.match, replacement) for _, found, replacement in rewrites]))
    for (step, found, replacement), proof in zip(rewrites, proofs, strict=True):
        if proof is not None and (reason := _objection(step, proof, tolerance)):
            outcome.refusals.append(Refusal(reason, step.pattern.__name__, step.place))
            continue
        _put(network, step, found, replacement)
        outcome.done.append(Done(step, proof))


def _put(network: Network, step: Step, found: Found, replacement: Replacement) -> None:
    """Put one replacement in place."""
    network.substitute(found.match, replacement, made_by=step.number)


def _ready(outcome: Outcome, matcher: Matcher, steps: list[Step]) -> Iterator[tuple[Step, Found]]:
    """Yield the steps that can be done now; the others become refusals."""
    network = outcome.network
    nodes = {node.name: node for node in network.graph.nodes}
    walk = Walk(network)
    finished = {done.step.number for done in outcome.done}
    for step in steps:
        if not step.enabled:
            continue
        missing = [number for number in step.needs if number not in finished]
        anchor = nodes.get(step.anchor)
        found = refusal = None
        if anchor is not None and not missing:
            candidates = (one for one in matcher.find_at(network, anchor, walk) if one.pattern is step.pattern)
            found = next((one for one in candidates if _same(one, step)), None)
            refusal = matcher.judge(network, found) if found is not None else None
        if missing:
            reason = f"it needs step {missing[0]}, which was not done"
        elif found is None:
            reason = "the graph is no longer as planned here"
        elif refusal is not None:
            reason = refusal.reason
        else:
            yield step, found
            continue
        outcome.refusals.append(Refusal(reason, step.pattern.__name__, step.place))


def _same(found: Found, step: Step) -> bool:
    """Say whether a match has the members that were planned."""
    return tuple(node.name for node in found.match.ops.values()) == step.members


def _objection(step: Step, proof: Proof, tolerance: float) -> str:
    """Say why a proof forbids a rewrite; empty when it does not."""
    if proof.fault:
        return f"its result {proof.fault}" if not proof.fault.startswith("the replacement") else proof.fault
    if not step.pattern.lossy and proof.relative_error > tolerance:
        return f"it changes the result by {proof.relative_error:.1e} of its range, more than {tolerance:g}"
    return ""
