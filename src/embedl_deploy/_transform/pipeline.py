"""trace → recompose → plan → apply, in one call or in two."""

import time
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from itertools import groupby
from typing import Any

from torch import fx

from embedl_deploy._graph.network import Network
from embedl_deploy._graph.proof import Proof, compare, prove
from embedl_deploy._graph.run import evaluating
from embedl_deploy._graph.shapes import DynamicShapes
from embedl_deploy._trace.tracing import Model, Tracing, trace
from embedl_deploy._transform.match import Found, Matcher
from embedl_deploy._transform.plan import Draft, Plan, Step, draft
from embedl_deploy._transform.report import Done, Report, modules_left, norms_left
from embedl_deploy.backend import Backend
from embedl_deploy.errors import PatternError, TargetError
from embedl_deploy.pattern import Pattern, Phase, Refusal
from embedl_deploy.target import TargetLike, choose_backend


@dataclass
class Outcome:
    """What came of a plan, gathered while it is applied."""

    network: Network
    done: list[Done] = field(default_factory=list)
    refusals: list[Refusal] = field(default_factory=list)

    def refuse(self, step: Step, reason: str) -> None:
        self.refusals.append(Refusal(reason, step.pattern.__name__, step.place))


def apply_steps(plan: Plan, *, verify: bool, tolerance: float, converted: Network | None = None) -> Outcome:
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
        _apply_round(outcome, list(_ready(outcome, matcher, list(steps))), proving=proving, tolerance=tolerance)
    return outcome


def _apply_round(outcome: Outcome, ready: list[tuple[Step, Found]], *, proving: bool, tolerance: float) -> None:
    """Prove the rewrites of one round together, then put them in place."""
    network = outcome.network
    rewrites = [(found.match, found.pattern().replace(found.match)) for _, found in ready]
    proofs: Sequence[Proof | None] = prove(network, rewrites) if proving and rewrites else [None] * len(rewrites)
    for (step, _), (match, replacement), proof in zip(ready, rewrites, proofs, strict=True):
        if proof is not None and (reason := _objection(step, proof, tolerance)):
            outcome.refuse(step, reason)
            continue
        network.substitute(match, replacement, made_by=step.number)
        outcome.done.append(Done(step, proof))


def _ready(outcome: Outcome, matcher: Matcher, steps: list[Step]) -> Iterator[tuple[Step, Found]]:
    """Yield the steps that can be done now, each with the match it was planned for; the others become refusals."""
    nodes = {node.name: node for node in outcome.network.graph.nodes}
    finished = {done.step.number for done in outcome.done}
    for step in steps:
        missing = [number for number in step.needs if number not in finished]
        if not step.enabled:
            outcome.refuse(step, f"step {step.number} was switched off")
        elif missing:
            outcome.refuse(step, f"it needs step {missing[0]}, which was not done")
        elif (match := step.wiring.match_on(outcome.network, nodes)) is None:
            outcome.refuse(step, "the graph is no longer as planned here")
        elif (refusal := matcher.judge(outcome.network, found := Found(step.pattern, match))) is not None:
            outcome.refuse(step, refusal.reason)
        else:
            yield step, found


def _objection(step: Step, proof: Proof, tolerance: float) -> str:
    if proof.fault:
        return f"its result {proof.fault}" if not proof.fault.startswith("the replacement") else proof.fault
    if not step.pattern.lossy and proof.relative_error > tolerance:
        return f"it changes the result by {proof.relative_error:.1e} of its range, more than {tolerance:g}"
    return ""


TOLERANCE = 1e-4
"""The largest error, as a part of a value's range, that a rewrite which is not lossy may have."""


@dataclass(frozen=True)
class TransformResult:
    """A transformed model and how it came about."""

    model: fx.GraphModule  # the new network; it shares the weights of the one that was given, which is unchanged
    plan: Plan  # the plan that was applied
    report: Report  # what was done, with proofs, and what not, with reasons

    @property
    def matches(self) -> tuple[Step, ...]:
        """The steps that were done."""
        return tuple(done.step for done in self.report.done)


def transform(
    model: Model,
    args: tuple[Any, ...] | None = None,
    patterns: Sequence[type[Pattern]] | Backend | None = None,
    *,
    target: TargetLike | None = None,
    kwargs: Mapping[str, Any] | None = None,
    dynamic_shapes: DynamicShapes | None = None,
    allow_lossy: bool = False,
    verify: bool = True,
) -> TransformResult:
    """Turn a model into the network its target will run.

    Args:
        model: An `nn.Module`, an `fx.GraphModule`, an `ExportedProgram`, or the path of a ``.pt2`` file.
            It is never changed; the result shares its weights.
        args: Example inputs. Without them, patterns that need shapes refuse and nothing is proved.
        patterns: Conversion and fusion patterns, or a backend; the active backend's when neither they nor `target` are
            given.
        target: What the model is for, instead of patterns.
        kwargs: Example keyword inputs.
        dynamic_shapes: Dimensions that must stay open, as ``torch.export`` takes them: by the name of an input, or in
            the order of the inputs, ``{dimension: name}``. A rewrite that holds for one size only is then refused.
        allow_lossy: Also use patterns that change results.
        verify: Prove every rewrite, and the whole model, on the example inputs.

    Raises:
        TraceError: The model cannot be turned into a graph.
        InputError: The model does not accept the example inputs.
        PlanError: Conversions undo each other forever.
        PatternError: A pattern cannot be run by a transform.
        BackendSelectionError: Neither patterns nor a target were given and no backend is active.
    """
    made, clock = _draft(model, args, _chosen(patterns, target), kwargs, dynamic_shapes, allow_lossy=allow_lossy)
    return _finish(made.plan, made, clock, verify=verify)


def make_plan(
    model: Model,
    args: tuple[Any, ...] | None = None,
    patterns: Sequence[type[Pattern]] | Backend | None = None,
    *,
    target: TargetLike | None = None,
    kwargs: Mapping[str, Any] | None = None,
    dynamic_shapes: DynamicShapes | None = None,
    allow_lossy: bool = False,
) -> Plan:
    """Say what `transform` would do, without doing it; the arguments are those of `transform`."""
    return _draft(model, args, _chosen(patterns, target), kwargs, dynamic_shapes, allow_lossy=allow_lossy)[0].plan


def apply_plan(plan: Plan, *, verify: bool = True) -> TransformResult:
    """Apply a plan; rows that are off, and what needs them, are left undone."""
    return _finish(plan, None, {"trace": 0.0, "plan": 0.0}, verify=verify)


def _draft(
    model: Model,
    args: tuple[Any, ...] | None,
    patterns: tuple[type[Pattern], ...],
    kwargs: Mapping[str, Any] | None,
    dynamic_shapes: DynamicShapes | None,
    *,
    allow_lossy: bool,
) -> tuple[Draft, dict[str, float]]:
    start = time.perf_counter_ns()
    tracing = trace(model, args, kwargs, dynamic_shapes)
    traced, ran = time.perf_counter_ns(), _ran(tracing)
    made = draft(tracing, patterns, allow_lossy=allow_lossy)
    planned = time.perf_counter_ns()
    seconds = {"trace": (traced - start) / 1e9 - ran, "plan": (planned - traced) / 1e9 - (_ran(tracing) - ran)}
    return made, seconds


def _chosen(patterns: object, target: TargetLike | None) -> tuple[type[Pattern], ...]:
    """Return the patterns to use: a target's, the active backend's, a given backend's, or those of a list."""
    if patterns is None:
        return choose_backend(None, target).patterns
    if target is not None:
        raise TargetError("give patterns or target, not both: a target names its patterns.")
    if isinstance(patterns, Backend):
        return patterns.patterns
    if isinstance(patterns, str) or not isinstance(patterns, Iterable):
        raise PatternError(
            f"patterns is {patterns!r}; give a list of pattern classes or a Backend, or leave patterns out and give a "
            "target by name, or choose an installed backend with set_backend(name)."
        )
    return tuple(patterns)


def _finish(plan: Plan, made: Draft | None, seconds: dict[str, float], *, verify: bool) -> TransformResult:
    tracing = plan.tracing
    start, ran = time.perf_counter_ns(), _ran(tracing)
    outcome = apply_steps(plan, verify=verify, tolerance=TOLERANCE, converted=made.converted if made else None)
    model = outcome.network.to_graph_module()
    proof = _prove_whole(tracing, model) if verify else None
    seconds = {**seconds, "apply": (time.perf_counter_ns() - start) / 1e9 - (_ran(tracing) - ran), "run": _ran(tracing)}
    network, refusals = outcome.network, (*plan.refusals, *outcome.refusals)
    report = Report(
        tracing.network.title, tracing.route, tracing.notes, tuple(outcome.done), refusals, proof,
        modules_left(network), norms_left(network), seconds, (tracing.network, network),
    )  # fmt: skip
    return TransformResult(model, plan, report)


def _prove_whole(tracing: Tracing, model: fx.GraphModule) -> Proof | None:
    """Compare the new model's outputs with those of the model as it was given."""
    example = tracing.network.example
    if example is None:
        return None
    with evaluating([model]), example.clock:
        return compare(tracing.expected, model(*example.args, **example.kwargs))


def _ran(tracing: Tracing) -> float:
    example = tracing.network.example
    return example.clock.seconds if example is not None else 0.0
