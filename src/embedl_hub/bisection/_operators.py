"""Which operators a version of the runtime made slower: layer times in turns, then the operator alone in turns."""

from __future__ import annotations

import math
from collections import defaultdict
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any

from embedl_device.interpreter import python_argv
from embedl_device.statistics import percentile
from embedl_hub.bisection._plan import RUNTIME
from embedl_hub.bisection._search import Answer, Decision, Names
from embedl_hub.bisection._statistics import estimate, share_of
from embedl_hub.core.answer import check_form, parse_answer
from embedl_hub.errors import CommandError
from embedl_hub.refusal import RefusedError

if TYPE_CHECKING:
    from embedl_hub.bisection._oracle import Steps, Trials
    from embedl_hub.core.answer import Form
    from embedl_hub.machine.machine import Machine
    from embedl_hub.machine.variants import Variant
    from embedl_hub.tracking import ActiveRun

_REPEATS = 6
_CANDIDATES = 2
_FORM: Form = {"layers": {"rows": [{"name": str, "op_type": str, "time_ms": float}]}}
# One that holds less of the change is not worth a name.
_LEAST_SHARE = 0.1


@dataclass(frozen=True)
class Operator:
    """What became of one kind of operator between two versions."""

    op_type: str
    good_ms: float
    bad_ms: float
    low_ms: float  # the interval of the change
    high_ms: float
    share: float  # its part of the change of all
    layer: str  # the layer of it that changed most
    alone: Decision | None = None  # the operator alone, measured in turns
    note: str = ""  # why it could not be measured alone

    @property
    def is_shown(self) -> bool:
        """Whether it is shown to have changed: alone in turns, or by the layers where it cannot be had alone."""
        return self.alone.is_bad if self.alone is not None else self.low_ms > 0 or self.high_ms < 0


def name_operators(
    trials: Trials, steps: Steps, cause: Names, device: str | None, alpha: float
) -> tuple[Operator, ...]:
    """Name the operators that explain why a version of the runtime is slower, those that hold most of it first."""
    good, bad = cause - {RUNTIME}, cause | {RUNTIME}
    taken: list[Operator] = []

    def layers(run: ActiveRun) -> Decision:
        with trials.machine(device) as machine:
            ends = trials.variant(machine, "good end", good), trials.variant(machine, "bad end", bad)
            tables: list[list[dict[str, tuple[str, float]]]] = [[], []]
            for repeat in range(_REPEATS):
                for place in (0, 1) if repeat % 2 else (1, 0):
                    tables[place].append(_layers(machine, trials, ends[place]))
            taken.extend(_changes(tables, alpha))
        run.log_param("$operators", [_as_value(each) for each in taken])
        named = ", ".join(f"{each.op_type} {each.share:.0%}" for each in taken[:3]) or "none"
        return Decision(
            "operators", good, bad, bad, Answer.BAD if taken else Answer.OPEN, f"change by operator: {named}"
        )

    decided = steps.decide("operators", "which operators changed?", device, layers)
    if not taken and decided.run_id is not None:
        taken = [operator_of(row) for row in steps.operators(decided.run_id)]
    # The layers nominate; what counts is the operator alone.
    asked = [_alone(trials, steps, each, good, bad, device, alpha) for each in taken[:_CANDIDATES]]
    return tuple(each for each in asked if each.is_shown)


def _layers(machine: Machine[Any], trials: Trials, variant: Variant) -> dict[str, tuple[str, float]]:
    from embedl_hub.machine import variants  # noqa: PLC0415 - only where something is measured

    driver = trials.driver
    start = machine.program(driver.runtime) if variant.python is None else python_argv(
        variant.python, file=str(variants.program_file(machine, driver))
    )  # fmt: skip
    words = variants.words_of(machine, driver, variant)
    plan = ["--iterations", "3", "--min-seconds", "0", "--max-warmup-seconds", "0.2", "--layer-runs", "25"]
    try:
        told = machine.runner.run([*start, "profile", *words, *plan], hide=True, timeout_s=machine.config.timeout_s)
        answer = parse_answer(told.stdout.strip().splitlines()[-1])
        check_form(answer, _FORM, "the answer")
    except (CommandError, ValueError, IndexError) as error:
        raise RefusedError(f"The layers of {variant.name} are not told on {machine.title}: {error}") from error
    rows: Mapping[str, Any] = answer  # type: ignore[assignment]
    return {row["name"]: (row["op_type"], row["time_ms"]) for row in rows["layers"]["rows"]}


def _changes(tables: Sequence[Sequence[Mapping[str, tuple[str, float]]]], alpha: float) -> list[Operator]:
    """Compare layer tables of two versions, taken in turns: by kind of operator, those that hold most of it first."""
    sums: list[dict[str, list[float]]] = []
    for side in tables:
        ops = {op for table in tables[0] + tables[1] for op, _ in table.values()}  # type: ignore[operator]
        sums.append({op: [sum(time for own, time in table.values() if own == op) for table in side] for op in ops})
    changes = {op: [bad - good for good, bad in zip(sums[0][op], sums[1][op], strict=True)] for op in sums[0]}
    # Medians: one repeat that something else disturbed must not nominate.
    means = {op: percentile(values, 50) for op, values in changes.items()}
    total = math.fsum(means.values())
    layers: dict[str, dict[str, float]] = defaultdict(lambda: defaultdict(float))
    for side, sign in zip(tables, (-1, 1), strict=True):
        for table in side:
            for name, (op, time) in table.items():
                layers[op][name] += sign * time / len(side)
    found = []
    for op, values in changes.items():
        interval = estimate(values, alpha / len(changes))
        towards = 1 if total >= 0 else -1
        layer = max(layers[op], key=lambda name: towards * layers[op][name])
        good, bad = (percentile(side[op], 50) for side in sums)
        found.append(Operator(op, good, bad, interval.low, interval.high, means[op] / total if total else 0.0, layer))
    found.sort(key=lambda each: -each.share)
    return [each for each in found if each.share >= _LEAST_SHARE]


def _alone(
    trials: Trials, steps: Steps, operator: Operator, good: Names, bad: Names, device: str | None, alpha: float
) -> Operator:
    """Measure the layer that changed most alone, in turns in both versions."""
    try:
        path = trials.alone(operator.layer, operator.op_type)
    except RefusedError as error:
        return replace(operator, note=f"not measured alone: {error}")
    key = f"alone {operator.op_type} {operator.layer}"
    asked = Decision("alone", good, bad, bad, Answer.OPEN, "")

    def work(run: ActiveRun) -> Decision:
        with trials.machine(device) as machine:
            ends = [
                replace(trials.variant(machine, name, names), model=path, data=None)
                for name, names in (("good end", good), ("bad end", bad))
            ]
            decision = trials.differ_variants(asked, share_of(steps.number(key), alpha), run, machine, ends)
        return replace(decision, reason=f"{operator.op_type} alone ({operator.layer}): {decision.reason}")

    try:
        return replace(operator, alone=steps.decide(key, f"{operator.op_type} alone", device, work))
    except RefusedError as error:
        return replace(operator, note=f"not measured alone: {error}")


def _as_value(operator: Operator) -> dict[str, object]:
    names = [name for name in Operator.__dataclass_fields__ if name != "alone"]
    return {name: getattr(operator, name) for name in names}


def operator_of(values: Mapping[str, Any]) -> Operator:
    """Return an operator of a record."""
    return Operator(
        **{name: values[name] for name in Operator.__dataclass_fields__ if name in values and name != "alone"}
    )
