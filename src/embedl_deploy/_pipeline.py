"""trace → recompose → plan → apply, in one call or in two."""

import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from torch import fx

from embedl_deploy._apply import carry_out
from embedl_deploy._plan import Draft, Plan, Step, draft
from embedl_deploy._proof import Proof, compare
from embedl_deploy._report import Report, make_report
from embedl_deploy._run import evaluating
from embedl_deploy._trace import Model, Tracing, trace
from embedl_deploy.backend import get_backend
from embedl_deploy.pattern import Pattern

TOLERANCE = 1e-4
"""The largest error, as a part of a value's range, that a rewrite which is not lossy may have."""


@dataclass(frozen=True)
class TransformResult:
    """A transformed model and how it came about.

    Attributes:
        model: The new network; it shares the weights of the one that was given, which is unchanged.
        plan: The plan that was carried out.
        report: What was done, with proofs, and what not, with reasons.
    """

    model: fx.GraphModule
    plan: Plan
    report: Report

    @property
    def matches(self) -> tuple[Step, ...]:
        """The steps that were carried out."""
        return tuple(done.step for done in self.report.done)


def transform(
    model: Model,
    args: tuple[Any, ...] | None = None,
    patterns: Sequence[type[Pattern]] | None = None,
    *,
    kwargs: Mapping[str, Any] | None = None,
    allow_lossy: bool = False,
    verify: bool = True,
) -> TransformResult:
    """Turn a model into the network its target will run.

    Args:
        model: An `nn.Module`, an `fx.GraphModule`, an `ExportedProgram`, or the path of a ``.pt2`` file.
            It is never changed; the result shares its weights.
        args: Example inputs. Without them, patterns that need shapes refuse and nothing is proved.
        patterns: Conversion and fusion patterns; the active backend's when `None`.
        kwargs: Example keyword inputs.
        allow_lossy: Also use patterns that change results.
        verify: Prove every rewrite, and the whole model, on the example inputs.

    Raises:
        TraceError: The model cannot be turned into a graph.
        InputError: The model does not accept the example inputs.
        PlanError: Conversions undo each other for ever.
        PatternError: A pattern cannot be run by a transform.
        BackendSelectionError: No patterns were given and no backend is active.
    """
    made, clock = _draft(model, args, patterns, kwargs, allow_lossy=allow_lossy)
    return _finish(made.plan, made, clock, verify=verify)


def make_plan(
    model: Model,
    args: tuple[Any, ...] | None = None,
    patterns: Sequence[type[Pattern]] | None = None,
    *,
    kwargs: Mapping[str, Any] | None = None,
    allow_lossy: bool = False,
) -> Plan:
    """Say what `transform` would do, without doing it; the arguments are those of `transform`."""
    return _draft(model, args, patterns, kwargs, allow_lossy=allow_lossy)[0].plan


def apply_plan(plan: Plan, *, verify: bool = True) -> TransformResult:
    """Carry a plan out; rows that are off, and what needs them, are left undone."""
    return _finish(plan, None, {"trace": 0.0, "plan": 0.0}, verify=verify)


def _draft(
    model: Model,
    args: tuple[Any, ...] | None,
    patterns: Sequence[type[Pattern]] | None,
    kwargs: Mapping[str, Any] | None,
    *,
    allow_lossy: bool,
) -> tuple[Draft, dict[str, float]]:
    """Trace and plan, keeping the time."""
    chosen = get_backend().patterns if patterns is None else tuple(patterns)
    start = time.perf_counter_ns()
    tracing = trace(model, args, kwargs)
    traced, ran = time.perf_counter_ns(), _ran(tracing)
    made = draft(tracing, chosen, allow_lossy=allow_lossy)
    planned = time.perf_counter_ns()
    seconds = {
        "trace": (traced - start) / 1e9 - ran,
        "plan": (planned - traced) / 1e9 - (_ran(tracing) - ran),
    }
    return made, seconds


def _finish(plan: Plan, made: Draft | None, seconds: dict[str, float], *, verify: bool) -> TransformResult:
    """Apply a plan and write the report."""
    tracing = plan.tracing
    start, ran = time.perf_counter_ns(), _ran(tracing)
    outcome = carry_out(plan, verify=verify, tolerance=TOLERANCE, converted=made.converted if made else None)
    model = outcome.network.to_graph_module()
    proof = _prove_whole(tracing, model) if verify else None
    seconds = {
        **seconds,
        "apply": (time.perf_counter_ns() - start) / 1e9 - (_ran(tracing) - ran),
        "run": _ran(tracing),
    }
    refusals = (*plan.refusals, *outcome.refusals)
    return TransformResult(
        model, plan, make_report(tracing, outcome.network, tuple(outcome.done), refusals, proof, seconds)
    )


def _prove_whole(tracing: Tracing, model: fx.GraphModule) -> Proof | None:
    """Compare the new model's outputs with those of the model as it was given."""
    example = tracing.network.example
    if example is None:
        return None
    with evaluating([model]), example.clock:
        return compare(tracing.expected, model(*example.args, **example.kwargs))


def _ran(tracing: Tracing) -> float:
    """Return the seconds the model itself has run so far."""
    example = tracing.network.example
    return example.clock.seconds if example is not None else 0.0
