"""A bisection, carried out: every decision is a run, and the store is all that a later process needs to go on."""

from __future__ import annotations

import hashlib
import json
import tempfile
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

from embedl_device.readers import MOST_DOCUMENT_BYTES, UnreadableError, parse_json, telling
from embedl_hub.bisection._operators import Operator, name_operators, operator_of
from embedl_hub.bisection._oracle import STEP, Settings, Steps, Trials, as_value, decision_of
from embedl_hub.bisection._plan import ANSWERS, ROUNDS, RUNTIME, BisectionPlan
from embedl_hub.bisection._search import Answer, Cause, Decision, Found, Switch, search
from embedl_hub.core.profile import ProfileError
from embedl_hub.errors import ConfigError, TrackingError
from embedl_hub.refusal import refusals_as
from embedl_hub.tracking import RunStatus

if TYPE_CHECKING:
    from embedl_hub.core.context import HubContext
    from embedl_hub.tracking import ActiveRun, Run, Store

BISECTION = "Bisection"
"""The component of a bisection's run."""
RESULT = "bisection"
"""The artifact that holds what it found."""
_KEY = "bisect_key"
_FORMAT = 1


@dataclass(frozen=True)
class BisectionResult:
    """What was found, and everything it rests on."""

    run_id: str
    good_id: str
    bad_id: str
    metric: str
    place: str  # where it was measured
    alpha: float  # the error of the whole search is at most this
    least: float
    switches: tuple[Switch, ...]  # all recorded differences
    found: Found
    decisions: tuple[Decision, ...]  # in the order they were made
    operators: tuple[Operator, ...] = ()  # what a version of the runtime made slower
    notes: tuple[str, ...] = ()
    reused: int = 0  # so many decisions were made by an earlier call
    ended: bool = field(default=True)

    @property
    def differ(self) -> Decision | None:
        """Whether GOOD and BAD differ at all, now and there."""
        return next((each for each in self.decisions if each.question == "differ"), None)

    @property
    def has_difference(self) -> bool:
        """Whether a difference was shown."""
        return self.differ is not None and self.differ.is_bad

    @property
    def is_undecided(self) -> bool:
        """Whether it is neither shown that the ends differ nor that they do not."""
        return self.differ is not None and self.differ.answer is Answer.OPEN

    @property
    def undecided(self) -> tuple[Switch, ...]:
        """What was neither shown to matter nor to be harmless."""
        return tuple(each for cause in self.found.causes for each in cause.undecided)

    @property
    def refused(self) -> tuple[Switch, ...]:
        """The differences that cannot be switched."""
        return tuple(each for each in self.switches if each.refusal is not None)

    @property
    def parts(self) -> tuple[str, ...]:
        """What explains the difference, part by part, and the operators that the parts are made of."""
        return tuple(_switch_words(each, self.operators) for cause in self.found.causes for each in cause.switches)

    def sentence(self, most: int | None = None) -> str:
        """Say what was found; of long lists only the first so many, and how many more there are."""
        differ = self.differ
        if differ is None:
            return "nothing was asked yet"
        count = f"{len(self.decisions)} decision{'s' if len(self.decisions) != 1 else ''}"
        chance = any(each.level is not None for each in self.decisions)
        sure = f"error of the whole search at most {self.alpha:.2g}" if chance else "nothing is left to chance"
        if not self.has_difference:
            facts = [each.name for each in self.refused if each.kind == "fact"]
            left = f" What cannot be switched differs too: {', '.join(facts)}." if facts else ""
            if self.is_undecided:
                return (
                    f"Undecided: whether {self.metric} differs on {self.place} is not shown either way: "
                    f"{_effect_words(self.metric, differ)} in {differ.sittings} sittings. Measure on a quieter "
                    f"machine, or longer with --sitting-seconds.{left}"
                )
            return (
                f"No difference in {self.metric} is shown on {self.place}: nothing to explain ({differ.reason}).{left}"
            )
        causes = " and ".join(
            f"{_cause_words(cause, self.operators, most)}{self._alone(cause)}"
            for cause in self.found.causes
            if cause.switches
        )
        more = "" if self.found.is_complete else f"; {self.found.note}"
        if self.undecided:
            names = _folded([each.name for each in self.undecided], most, ", ")
            more += f"; undecided: {names} (neither shown to matter nor to be harmless; needs a quieter machine)"
        effect = _effect_words(self.metric, differ)
        return f"{self.metric} {effect}: {causes or 'no single cause is shown'}; {count}, {sure}{more}"

    def _alone(self, cause: Cause) -> str:
        """Say what each of several switches of a cause does without the others, as far as that was measured."""
        names = {each.name for each in cause.switches}
        shares = {
            name: each.share
            for each in self.decisions
            if each.question == "trial" and each.share is not None and not each.base and len(each.trial) == 1
            for name in each.trial & names
        }
        if len(names) < 2 or not shares:
            return ""
        said = ", ".join(f"{name} {share:.0%}" for name, share in shares.items())
        return f" (alone: {said} of the difference)"

    def as_dict(self) -> dict[str, Any]:
        """Return everything as plain JSON values."""
        return {
            "format": _FORMAT,
            "run": self.run_id,
            "good": self.good_id,
            "bad": self.bad_id,
            "metric": self.metric,
            "place": self.place,
            "alpha": self.alpha,
            "least": self.least,
            "sentence": self.sentence(),
            "differs": self.has_difference,
            "causes": [
                {"switches": [vars(each) for each in cause.switches], "notes": list(cause.notes),
                 "undecided": [vars(each) for each in cause.undecided]}
                for cause in self.found.causes
            ],
            "is_complete": self.found.is_complete,
            "note": self.found.note,
            "switches": [vars(each) for each in self.switches],
            "parts": [vars(each) for each in self.found.refined],
            "decisions": [as_value(each) for each in self.decisions],
            "operators": [
                {**{name: value for name, value in vars(each).items() if name != "alone"},
                 "alone": None if each.alone is None else as_value(each.alone)}
                for each in self.operators
            ],
            "notes": list(self.notes),
            "reused": self.reused,
        }  # fmt: skip


def _effect_words(metric: str, differ: Decision) -> str:
    if metric in ANSWERS or differ.low is None or differ.high is None:
        return differ.reason
    return f"× {differ.value:.3g} ({differ.low:.3g} to {differ.high:.3g})"


def _cause_words(cause: Cause, operators: Sequence[Operator], most: int | None) -> str:
    return _folded([_switch_words(each, operators, most) for each in cause.switches], most, " together with ")


def _switch_words(switch: Switch, operators: Sequence[Operator], most: int | None = None) -> str:
    good, bad = (_folded(text.split(", "), most, ", ") for text in (switch.good, switch.bad))
    text = f"{switch.name}: {good} -> {bad}" if switch.kind != "part" else f"{switch.name} ({good} -> {bad})"
    if switch.name == RUNTIME and operators:
        names = _folded([each.op_type for each in operators], most, ", ")
        text += f", operator{'s' if len(operators) > 1 else ''} {names}"
    return text


def _folded(words: Sequence[str], most: int | None, between: str) -> str:
    """Join words; of too many the first ones, and how many more there are."""
    if most is None or len(words) <= most + 1:
        return between.join(words)
    return f"{between.join(words[:most])} and {len(words) - most} more"


def bisect(
    ctx: HubContext,
    plan: BisectionPlan,
    *,
    settings: Settings | None = None,
    told: Callable[[str], None] = lambda _: None,
    again: bool = False,
) -> BisectionResult:
    """Find the smallest set of differences that explains why two runs differ.

    The same question goes on where an earlier process stopped, and one that was answered is not asked again.

    Args:
        ctx: The context that the plan was made in.
        plan: What is asked.
        settings: How sure the answers must be.
        told: Hears how it goes on.
        again: Search anew although the question was answered before.
    """
    store = ctx.client.store
    if store is None:
        raise ConfigError("A bisection is kept in a store: open the context with tracking.")
    if not plan.switches:
        raise ConfigError(
            f"The records of runs {plan.good.run.id} and {plan.bad.run.id} differ in nothing that could be a cause: "
            "what differs is noise, or was not recorded. To measure both in turns: embedl-hub compare --paired "
            f"{plan.good.run.id} {plan.bad.run.id}"
        )
    wanted = settings or Settings()
    key = _digest(plan, wanted)
    earlier = [] if again else [run for run in store.tagged(_KEY, [key]) if run.component == BISECTION]
    for each in sorted(earlier, key=lambda run: -run.started_ms):
        if each.status is RunStatus.FINISHED:
            told(f"answered before by run {each.id}")
            return read_bisection(store, each.id)
        if each.status is RunStatus.RUNNING:
            raise ConfigError(f"The same bisection is going on already (run {each.id}); wait for its end, or end it.")
    first = min(earlier, key=lambda run: run.started_ms, default=None)
    with ctx.client.start_run("CUSTOM", f"bisect {plan.metric}"[:100], component=BISECTION, device=plan.device) as run:
        bisect_id = run.id if first is None else first.tags.get("bisect", first.id)
        known = {} if first is None else _known(store, bisect_id)
        run.log_batch(
            {"good": plan.good.run.id, "bad": plan.bad.run.id, "metric": plan.metric, "place": plan.place,
             "alpha": wanted.alpha, "least": wanted.least},
            tags={"bisect": bisect_id, _KEY: key},
        )  # fmt: skip
        if known:
            told(f"going on with {bisect_id}: {len(known)} decisions are made")
        steps = Steps(ctx, bisect_id, known, lambda decision: told(_line(decision)))
        with refusals_as(ProfileError), tempfile.TemporaryDirectory(prefix="edgeproof-") as scratch:
            result = _carry_out(ctx, plan, wanted, steps, Path(scratch), run)
        result = replace(result, reused=sum(key in known for key in steps.order))
        _keep(run, result)
    return result


def _carry_out(
    ctx: HubContext, plan: BisectionPlan, settings: Settings, steps: Steps, folder: Path, run: ActiveRun
) -> BisectionResult:
    trials = Trials(ctx, plan, settings, steps, folder)
    switches, notes = trials.find_pythons()
    result = BisectionResult(
        run.id, plan.good.run.id, plan.bad.run.id, plan.metric, plan.place, settings.alpha, settings.least, switches,
        Found(), (), notes=(*plan.notes, *notes),
    )  # fmt: skip
    _keep(run, result, name="plan")
    if not any(each.refusal is None for each in switches):
        why = "; ".join(f"{each.name}: {each.refusal}" for each in switches)
        raise ConfigError(f"Nothing can be switched between runs {plan.good.run.id} and {plan.bad.run.id}: {why}.")
    found = search(switches, trials)
    operators: tuple[Operator, ...] = ()
    blamed = next((cause for cause in found.causes if RUNTIME in cause.names), None)
    if blamed is not None and plan.metric in ROUNDS:
        names = frozenset(name for cause in found.causes for name in cause.names)
        operators = name_operators(trials, steps, names, plan.device, settings.alpha)
    return replace(result, found=found, decisions=tuple(steps.made), operators=operators)


def _digest(plan: BisectionPlan, settings: Settings) -> str:
    facts = [
        _FORMAT, plan.good.run.id, plan.bad.run.id, plan.metric, plan.place, settings.alpha, settings.least,
        settings.seconds, settings.most_sittings, sorted(plan.pythons.items()), str(plan.labels),
        str(plan.good.data), str(plan.bad.data), str(plan.calibration_data),
    ]  # fmt: skip
    return hashlib.sha256(json.dumps(facts).encode()).hexdigest()[:24]


def _known(store: Store, bisect_id: str) -> dict[str, Decision]:
    found = {}
    for run in store.tagged("bisect", [bisect_id], params=("$decision",)):
        if run.component == STEP and run.status is RunStatus.FINISHED and "$decision" in run.params:
            values = run.params["$decision"].value
            if isinstance(values, dict):
                found[run.tags["decision"]] = replace(decision_of(values), run_id=run.id)
    return found


def _keep(run: ActiveRun, result: BisectionResult, name: str = RESULT) -> None:
    path = run.artifact_dir / f"{name}.json"
    path.write_text(json.dumps(result.as_dict(), indent=1), encoding="utf-8")
    run.log_artifact(path, name=name)


def _line(decision: Decision) -> str:
    names = ", ".join(sorted(decision.trial - decision.base)) or "nothing"
    what = {"differ": "GOOD and BAD", "rest": "what is left", "operators": "layers", "alone": "the operator alone"}
    ratio = ""
    if decision.low is not None and decision.high is not None:
        ratio = f" × {decision.value:.3f} ({decision.low:.3f} to {decision.high:.3f})"
    sittings = f", {decision.sittings} sittings" if decision.sittings else ""
    if decision.question == "needed":
        names = f"without {', '.join(sorted(decision.whole - decision.trial))}, {names}"
    return f"{what.get(decision.question, f'{names} as in BAD')}:{ratio} {decision.answer}: {decision.reason}{sittings}"


def read_bisection(store: Store, run_id: str) -> BisectionResult:
    """Return what a bisection found, or as far as it is where it has not ended."""
    run = store.run(run_id)
    if run.component != BISECTION:
        raise ConfigError(f"Run {run_id!r} is no bisection.")
    values = _document(run)
    decisions = [decision_of(each) for each in values["decisions"]]
    if RESULT not in run.artifacts:
        known = _known(store, run.tags.get("bisect", run.id))
        decisions = sorted(known.values(), key=lambda each: each.run_id or "")
    operators = tuple(
        replace(operator_of(row), alone=None if row.get("alone") is None else decision_of(row["alone"]))
        for row in values["operators"]
    )
    causes = tuple(
        Cause(
            tuple(Switch(**each) for each in cause["switches"]), tuple(cause["notes"]),
            tuple(Switch(**each) for each in cause.get("undecided", ())),
        )
        for cause in values["causes"]
    )  # fmt: skip
    return BisectionResult(
        run.id, values["good"], values["bad"], values["metric"], values["place"], values["alpha"], values["least"],
        tuple(Switch(**each) for each in values["switches"]),
        Found(causes, values["is_complete"], values["note"], tuple(Switch(**each) for each in values["parts"])),
        tuple(decisions), operators, tuple(values["notes"]), values["reused"], RESULT in run.artifacts,
    )  # fmt: skip


def _document(run: Run) -> dict[str, Any]:
    artifact = run.artifacts.get(RESULT) or run.artifacts.get("plan")
    if artifact is None:
        raise TrackingError(f"The bisection {run.id} ({run.status}) has kept nothing yet: {run.error or 'it goes on'}")
    try:
        with telling(), artifact.open() as file:
            values: dict[str, Any] = parse_json(file.read(MOST_DOCUMENT_BYTES + 1))
            form = values["format"]
    except (OSError, UnreadableError) as error:
        raise TrackingError(f"What the bisection {run.id} found cannot be read: {error}.") from error
    if form != _FORMAT:
        raise TrackingError(f"What the bisection {run.id} found is of format {form!r:.20}; this hub reads {_FORMAT}.")
    return values
