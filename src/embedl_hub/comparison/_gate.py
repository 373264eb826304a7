"""A gate for builds: is this run worse than that one, by more than is tolerated, and again when both are repeated?

What was recorded is only a first look: a machine that was busy then and is not now makes the same model look slower or
faster by more than any tolerance. The answer comes from fresh measurements in turns, candidate and baseline side by
side, so that what the machine does meanwhile happens to both. It goes on until the answer is clear, or the turns run
out.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass, field
from enum import StrEnum
from typing import TYPE_CHECKING
from xml.etree import ElementTree as ET

from embedl_device.statistics import Ratio, series_of, trimmed_mean
from embedl_hub.comparison._compare import compare, error_of
from embedl_hub.core.document import document_of, find_metric
from embedl_hub.errors import ConfigError, quoted_list

if TYPE_CHECKING:
    from embedl_hub.tracking import Run

_FEWEST_PAIRS = 3
_PROFILE = "PROFILE"


@dataclass(frozen=True)
class Pair:
    """One turn: both measured right after each other. Without a fresh baseline, the recorded one stands in."""

    candidate: float
    baseline: float
    candidate_run: str
    baseline_run: str
    error: float = 0.0  # standard error of the logarithm of their ratio, as far as the samples within the two runs tell


@dataclass(frozen=True)
class GateResult:
    """The gate's answer and everything it rests on."""

    decision: Decision
    reason: str
    metric: str
    tolerance: float
    candidate_id: str
    baseline_id: str
    worsening: Ratio  # candidate over baseline, turned so that more than 1 is worse; with a 99 % interval if repeated
    first_look: Ratio  # the same from what was recorded
    pairs: tuple[Pair, ...] = ()  # the fresh measurements
    differences: tuple[str, ...] = field(default=())  # what else differs between the two runs, in words

    def as_dict(self) -> dict[str, object]:
        """Return everything as plain JSON values."""
        return asdict(self)


class Decision(StrEnum):
    """What the gate says."""

    OK = "ok"
    WORSE = "worse"
    CANNOT_TELL = "cannot tell"


def gate(
    candidate: Run,
    baseline: Run,
    *,
    metric: str = "latency_median",
    tolerance: float = 0.05,
    measure_again: Callable[[Run], Run] | None = None,
    repeat_baseline: bool = True,
    more_is_better: bool | None = None,
    most_pairs: int = 30,
) -> GateResult:
    """Tell whether a run is worse than a baseline by more than is tolerated.

    Args:
        candidate: The run that is to pass.
        baseline: The run it is held against.
        metric: What is compared.
        tolerance: How much worse is still fine: 0.05 is 5 %.
        measure_again: Repeats the measurement of a run and returns the new run. Without it a profile that looks worse
            is never called worse, because nobody confirmed it; a metric that is no measurement counts as it is.
            Estimates are never repeated: the answer is about them, and says so.
        repeat_baseline: Measure the baseline again too, in turns. False where its model is gone: then what was
            recorded stands in, and only a worsening that every repeat shows counts.
        more_is_better: For metrics of your own.
        most_pairs: Give up after so many turns.
    """
    if not 0 <= tolerance < math.inf:
        raise ConfigError(f"tolerance is {tolerance!r}; give a share such as 0.05 for 5 %.")
    if most_pairs < _FEWEST_PAIRS:
        raise ConfigError(f"most_pairs is {most_pairs!r}; at least {_FEWEST_PAIRS} turns are needed.")
    is_better = find_metric(metric).is_more_better if more_is_better is None else more_is_better
    recorded = Ratio(metric_value(candidate, metric) / metric_value(baseline, metric))
    comparison = compare([baseline, candidate])
    row = next(row for row in comparison.metrics if row.name == metric)
    first = _turned(row.ratios[1] or recorded, is_more_better=is_better)
    differences = tuple(f"{fact.name}: {' | '.join(map(str, fact.values))}" for fact in comparison.differences)

    def answer(decision: Decision, reason: str, worsening: Ratio, pairs: tuple[Pair, ...] = ()) -> GateResult:
        return GateResult(
            decision, reason, metric, tolerance, candidate.id, baseline.id, worsening, first, pairs, differences
        )

    estimated = [run.id for run in comparison.runs if run.is_estimated]
    if len(estimated) == 1:
        raise ConfigError(
            f"The numbers of run {estimated[0]} are estimated and those of the other run are measured; they cannot be "
            "held against each other. Give two runs of one profiler."
        )
    if estimated:
        return answer(*_from_estimates(first, tolerance), first)
    if measure_again is None:
        return answer(*_from_records(candidate, first, tolerance), first)
    pairs: list[Pair] = []
    while len(pairs) < most_pairs:
        pairs.append(_measured(candidate, baseline, metric, measure_again, len(pairs), repeat_baseline=repeat_baseline))
        if len(pairs) < _FEWEST_PAIRS:
            continue
        worsening = _worsening(pairs, is_more_better=is_better)
        decided = _decided(worsening, tolerance, pairs, is_more_better=is_better, repeat_baseline=repeat_baseline)
        if decided is not None:
            return answer(*decided, worsening, tuple(pairs))
    return answer(*_undecided(worsening, tolerance, len(pairs), repeat_baseline), worsening, tuple(pairs))


def metric_value(run: Run, metric: str) -> float:
    """Return a run's number that a ratio can be made of.

    Raises:
        ConfigError: It has no such metric, or it is not above zero.
    """
    logged = run.metric(metric)
    if logged is None:
        names = {logged.name for logged in run.metrics}
        why = _why_none(run, metric)
        raise ConfigError(f"Run {run.id} ({run.status}) has no metric {metric!r}{why}; it has: {quoted_list(names)}.")
    if not math.isfinite(logged.value) or logged.value <= 0:
        raise ConfigError(f"{metric} of run {run.id} is {logged.value}; a ratio needs numbers above zero.")
    return logged.value


def _why_none(run: Run, metric: str) -> str:
    """Return why a profile has no such percentile or bound, in brackets; nothing where nobody says."""
    percentile = metric.removeprefix("latency_").removesuffix("_high")
    reason = document_of(run)[0].fact("tails", percentile, "reason")
    return f" ({reason}; profile with --until {percentile})" if isinstance(reason, str) else ""


def _turned(ratio: Ratio, *, is_more_better: bool) -> Ratio:
    if not is_more_better:
        return ratio
    low = None if ratio.high is None else 1 / ratio.high
    return Ratio(1 / ratio.value, low, None if ratio.low is None else 1 / ratio.low)


def _from_records(candidate: Run, first: Ratio, tolerance: float) -> tuple[Decision, str]:
    looks_worse = first.value > 1 + tolerance
    if candidate.type != _PROFILE:
        if looks_worse:
            return Decision.WORSE, "the recorded value is worse; it is no measurement that could be repeated"
        return Decision.OK, "the recorded value is within the tolerance"
    if looks_worse:
        return Decision.CANNOT_TELL, "it looks worse on record, and nobody measured again"
    return Decision.OK, "on record it is within the tolerance; it was not measured again"


def _from_estimates(first: Ratio, tolerance: float) -> tuple[Decision, str]:
    # The same model would be estimated the same again: turns would confirm the estimate, not the model.
    if first.value > 1 + tolerance:
        return Decision.WORSE, "the estimate is worse; both numbers are estimated, nothing was measured"
    return Decision.OK, "the estimate is within the tolerance; both numbers are estimated, nothing was measured"


def _measured(
    candidate: Run, baseline: Run, metric: str, measure_again: Callable[[Run], Run], turn: int, *, repeat_baseline: bool
) -> Pair:
    if not repeat_baseline:
        return _pair(measure_again(candidate), baseline, metric)
    # Whoever goes first meets a cooler machine; it is the other one's turn next time.
    order = (candidate, baseline) if turn % 2 else (baseline, candidate)
    fresh = {run.id: measure_again(run) for run in order}
    return _pair(fresh[candidate.id], fresh[baseline.id], metric)


def _pair(candidate: Run, baseline: Run, metric: str) -> Pair:
    errors = [error_of(metric, series_of(document_of(run)[0].samples_us)) for run in (candidate, baseline)]
    error = math.hypot(*(0.0 if each is None else each.log for each in errors))
    return Pair(metric_value(candidate, metric), metric_value(baseline, metric), candidate.id, baseline.id, error)


def _logs(pairs: list[Pair], *, is_more_better: bool) -> list[float]:
    sign = -1 if is_more_better else 1
    return [sign * math.log(pair.candidate / pair.baseline) for pair in pairs]


def _worsening(pairs: list[Pair], *, is_more_better: bool) -> Ratio:
    middle, reach = trimmed_mean(_logs(pairs, is_more_better=is_more_better), [pair.error for pair in pairs])
    return Ratio(math.exp(middle), math.exp(middle - reach), math.exp(min(middle + reach, 700.0)))


def _decided(
    worsening: Ratio, tolerance: float, pairs: list[Pair], *, is_more_better: bool, repeat_baseline: bool
) -> tuple[Decision, str] | None:
    """Return the answer once the tolerance lies outside the interval."""
    limit = 1 + tolerance
    low, high = worsening.low or 0.0, worsening.high or math.inf
    turns = f"{len(pairs)} turns"
    if high <= limit:
        return Decision.OK, f"within the tolerance, confirmed by {turns}"
    if low <= limit:
        return None
    if repeat_baseline:
        return Decision.WORSE, f"worse by more than the tolerance, confirmed by {turns}"
    if min(_logs(pairs, is_more_better=is_more_better)) > math.log(limit):
        return Decision.WORSE, f"worse than the recorded baseline in each of {len(pairs)} repeats"
    return None


def _undecided(worsening: Ratio, tolerance: float, turns: int, repeat_baseline: bool) -> tuple[Decision, str]:
    """Return the answer when the turns have run out and the tolerance lies inside the interval."""
    low, high = worsening.low or 0.0, worsening.high or math.inf
    if low > 1 and worsening.value > 1 + tolerance and repeat_baseline:
        return Decision.WORSE, f"slower for certain after {turns} turns, and most likely by more than the tolerance"
    if low > 1 and worsening.value <= 1 + tolerance:
        return Decision.OK, f"worse for certain after {turns} turns, but most likely within the tolerance"
    return Decision.CANNOT_TELL, (
        f"after {turns} turns the ratio is only known to lie between {low:.3f} and {high:.3f}; "
        "measure longer, on a quieter machine, or a metric that other work disturbs less (latency_min)"
    )


def decide(worsening: Ratio, tolerance: float, measured: str) -> tuple[Decision, str]:
    """Return the answer that one ratio with its interval gives, and why; ``measured`` says how often, in words."""
    limit = 1 + tolerance
    low, high = worsening.low, worsening.high
    if low is None or high is None:
        return Decision.CANNOT_TELL, f"{measured} tell no interval"
    if high <= limit:
        return Decision.OK, f"within the tolerance, confirmed by {measured}"
    if low > limit:
        return Decision.WORSE, f"worse by more than the tolerance, confirmed by {measured}"
    if low > 1:
        if worsening.value > limit:
            return Decision.WORSE, f"worse for certain after {measured}, and most likely by more than the tolerance"
        return Decision.OK, f"worse for certain after {measured}, but most likely within the tolerance"
    return Decision.CANNOT_TELL, (
        f"after {measured} the ratio is only known to lie between {low:.3f} and {high:.3f}; measure longer, or on a "
        "quieter machine"
    )


def junit_xml(results: Sequence[GateResult], *, seconds: float = 0.0) -> str:
    """Return a report with one test case per answer; what the gate cannot tell is a skipped test."""
    count = {decision: sum(result.decision is decision for result in results) for decision in Decision}
    suite = ET.Element(
        "testsuite",
        name="embedl-hub gate",
        tests=str(len(results)),
        failures=str(count[Decision.WORSE]),
        skipped=str(count[Decision.CANNOT_TELL]),
        errors="0",
        time=f"{seconds:.3f}",
    )
    for result in results:
        case = ET.SubElement(
            suite,
            "testcase",
            classname=f"gate.{_clean(result.metric)}",
            name=f"{result.candidate_id} against {result.baseline_id}",
            time=f"{seconds / len(results):.3f}",
        )
        if result.decision is Decision.WORSE:
            ET.SubElement(case, "failure", type="worse", message=_clean(result.reason)).text = _clean(describe(result))
        elif result.decision is Decision.CANNOT_TELL:
            ET.SubElement(case, "skipped", message=_clean(result.reason))
        ET.SubElement(case, "system-out").text = _clean(describe(result))
    ET.indent(suite)
    return '<?xml version="1.0" encoding="UTF-8"?>\n' + ET.tostring(suite, encoding="unicode") + "\n"


def junit_recorded(run_id: str, baseline: str) -> str:
    """Return a report that says that a run is a baseline from now on: nothing was compared."""
    suite = ET.Element(
        "testsuite", name="embedl-hub gate", tests="1", failures="0", skipped="1", errors="0", time="0.000"
    )
    case = ET.SubElement(suite, "testcase", classname="gate.record", name=_clean(f"{run_id} is {baseline}"), time="0")
    ET.SubElement(case, "skipped", message="recorded as the baseline; nothing was compared")
    ET.indent(suite)
    return '<?xml version="1.0" encoding="UTF-8"?>\n' + ET.tostring(suite, encoding="unicode") + "\n"


def junit_error(candidate: str, baseline: str, metric: str, message: str) -> str:
    """Return a report that says why nothing was measured: an error of the rig, no failure of the model."""
    suite = ET.Element(
        "testsuite", name="embedl-hub gate", tests="1", failures="0", skipped="0", errors="1", time="0.000"
    )
    case = ET.SubElement(
        suite, "testcase", classname=f"gate.{_clean(metric)}", name=_clean(f"{candidate} against {baseline}"),
        time="0.000",
    )  # fmt: skip
    ET.SubElement(case, "error", type="not measured", message=_clean(message))
    ET.indent(suite)
    return '<?xml version="1.0" encoding="UTF-8"?>\n' + ET.tostring(suite, encoding="unicode") + "\n"


def describe(result: GateResult) -> str:
    """Return the answer in a few lines."""
    ratio = result.worsening
    interval = "" if ratio.low is None or ratio.high is None else f" ({ratio.low:.3f} to {ratio.high:.3f})"
    numbers = f"worsening × {ratio.value:.3f}{interval}, tolerated × {1 + result.tolerance:.3f}"
    lines = [f"{result.metric}: {result.decision} - {result.reason}", numbers]
    lines.append(f"on record × {result.first_look.value:.3f}")
    return "\n".join([*lines, *(f"differs in {line}" for line in result.differences)])


def _clean(text: str) -> str:
    """Leave out what XML cannot hold."""
    return "".join(c for c in text if c.isprintable() or c == "\n")
