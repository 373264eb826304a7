"""``assert_no_slower``: a model against a baseline, both measured in turns."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Any

from embedl_hub.comparison import Again, Decision, Finding, Outcome, Reach, decide, find_baseline, gate
from embedl_hub.core.component import RunType
from embedl_hub.core.document import METRICS, find_metric
from embedl_hub.core.steps import HERE, model_of, run_of, where_measured
from embedl_hub.core.toolchain import find_component
from embedl_hub.errors import ConfigError, HubError
from embedl_hub.pytest_plugin._check import Check, Model, Subject, check_share, place_name, run_ids
from embedl_hub.pytest_plugin._running import current_test

if TYPE_CHECKING:
    from embedl_hub.tracking import Run

_METRIC = "latency_median"
_LONGER = 4


def assert_no_slower(
    model: Model,
    baseline: Model,
    *,
    tolerance: float = 0.05,
    metric: str = _METRIC,
    device: str | None = None,
    samples: int = 200,
    most_pairs: int = 30,
    strict: bool | None = None,
) -> None:
    """Fail when a model is slower than a baseline by more than is tolerated.

    Both are measured now, in turns in one process on one device, so that what the machine does meanwhile happens to
    both. Another metric than the median, or a runtime that cannot take turns, is profiled in turns as by
    ``embedl-hub gate``. When nobody can tell, it is measured once more, four times as long; then it is a warning.

    Args:
        model: A model file, the id of a run, or what a compiler returned.
        baseline: The same, or TAG=VALUE: the newest profile of a model of this name with that tag.
        tolerance: How much slower is still fine: 0.05 is 5 %.
        metric: What is compared.
        device: Where to measure; the test's board, else ``--hub-device``, else where the baseline was, if not given.
        samples: Rounds in one process; each times both once.
        most_pairs: At most so many turns of profiles.
        strict: Whether it fails when nobody can tell; as ``--hub-strict`` says if not given.
    """
    __tracebackhide__ = True
    check = Check(current_test("assert_no_slower"), device)

    def find() -> Finding:
        check_share("tolerance", tolerance)
        candidate = check.subject(model)
        word = check.word(baseline)
        if word is not None and word == check.records_as:
            return _record(check, candidate, word)
        return _Comparison(check, candidate, baseline, tolerance, metric).find(samples, most_pairs)

    check.finish(find, strict=strict)


def _record(check: Check, subject: Subject, tag: str) -> Finding:
    name, _, value = tag.partition("=")
    with check.hub.client.labeling({name: value}):
        run = _profile(check, subject, check.device)
    rows = [(row, run.metric(row.key)) for row in METRICS if row.column]
    figures = tuple((row.key, f"{found.value:.4g} {row.unit}".strip()) for row, found in rows if found is not None)
    reason = f"recorded as the baseline {tag}; nothing was compared"
    title = f"speed of {subject.name}"
    return Finding(title, Outcome.RECORDED, reason, figures, place_name(run.device), run_ids(("baseline", run)))


def _profile(check: Check, subject: Subject, device: str) -> Run:
    step: Any = find_component(RunType.PROFILE, subject.toolchain.name)()
    return run_of(check.hub, step.run(check.hub, subject.model, device=device))


class _Comparison:
    """A candidate held against a baseline."""

    def __init__(self, check: Check, candidate: Subject, baseline: Model, tolerance: float, metric: str) -> None:
        self._check, self._candidate, self._metric, self._tolerance = check, candidate, metric, tolerance
        self._title = f"{metric} of {candidate.name}"
        word = check.word(baseline)
        self._run: Run | None = None  # where the baseline is a record
        self._model: Subject | None = None  # where its model is there
        self._no_model = ""
        if word is None or Path(word).exists():
            self._model = check.subject(baseline)
        else:
            self._run = find_baseline(check.store, word, check.hub.project_name, RunType.PROFILE, model=candidate.name)
            try:
                self._model = self._recorded(self._run)
            except HubError as error:
                self._no_model = f"the baseline cannot be measured again, its record stands in: {error}"
        place = check.chosen
        if place is None and self._run is not None:
            place = where_measured(check.hub, self._run)
        self._device = place or HERE

    def _recorded(self, run: Run) -> Subject:
        toolchain = self._candidate.toolchain
        taken = model_of(self._check.hub, find_component(RunType.PROFILE, toolchain.name), run)
        taken.path.to_local(self._check.hub)
        return Subject(taken.path.file_name, taken, toolchain)

    def find(self, samples: int, most_pairs: int) -> Finding:
        """Measure in the best way there is."""
        paired = self._candidate.toolchain.paired_profiler
        is_same = self._model is not None and self._model.toolchain.name == self._candidate.toolchain.name
        if self._model is not None and not is_same:
            raise ConfigError(
                f"{self._candidate.name} is for {self._candidate.toolchain.title} and its baseline "
                f"{self._model.name} for {self._model.toolchain.title}; models of one runtime can be compared."
            )
        if self._metric == _METRIC and self._model is not None and paired is not None:
            found = self._in_turns(paired(), samples)
            return found if found.outcome is not Outcome.CANNOT_TELL else self._in_turns(paired(), _LONGER * samples)
        return self._profiled(most_pairs)

    def _in_turns(self, step: Any, samples: int) -> Finding:  # noqa: ANN401 - a toolchain's step
        assert self._model is not None  # noqa: S101 - only then is this called
        hub = self._check.hub
        result = step.run(hub, [self._model.model, self._candidate.model], device=self._device, samples=samples)
        run, (base, ours) = run_of(hub, result), result.models
        ratio = ours.ratio
        decision, reason = decide(ratio, self._tolerance, f"{result.rounds} rounds")
        reach = Reach(ratio.value, 1 + self._tolerance, ratio.low, ratio.high, 1.0, "×")
        unit = find_metric(_METRIC).unit
        figures = [
            ("worsening", f"{reach}, 99 % interval"),
            ("tolerated", reach.show(reach.limit)),
            ("candidate", f"{ours.latency_median:.4g} {unit}"),
            ("baseline", f"{base.latency_median:.4g} {unit}"),
        ]
        if result.verdict is not None and not result.verdict.is_stable:
            figures.append(("the measurement is", f"{result.verdict}: {result.verdict_reason}"))
        return Finding(
            self._title, Outcome(decision.value), reason, tuple(figures), place_name(run.device),
            run_ids(("measured in turns", run), ("baseline", self._run)), self._differences(), reach,
        )  # fmt: skip

    def _differences(self) -> tuple[str, ...]:
        if self._model is None:
            return ()
        ours, base = self._candidate.model.path, self._model.model.path
        if ours.sha256 == base.sha256:
            return ()
        return (f"model: {base.title} ({base.sha256[:12]}) | {ours.title} ({ours.sha256[:12]})",)

    def _profiled(self, most_pairs: int) -> Finding:
        candidate = _profile(self._check, self._candidate, self._device)
        reference = self._run
        if reference is None:
            assert self._model is not None  # noqa: S101 - a baseline is a run or a model
            reference = _profile(self._check, self._model, self._device)
        result = gate(
            candidate, reference, metric=self._metric, tolerance=self._tolerance,
            measure_again=Again(self._check.hub, device=self._device), repeat_baseline=self._model is not None,
            most_pairs=most_pairs,
        )  # fmt: skip
        found = Finding.of_gate(result, place=place_name(self._device))
        more = (self._no_model,) if self._no_model and result.decision is not Decision.OK else ()
        return Finding(
            self._title, found.outcome, found.reason, found.figures, found.place, found.runs,
            (*found.differences, *more), found.reach,
        )  # fmt: skip
