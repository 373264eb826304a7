"""Trials on a machine: what a configuration is made of, and what it behaves like."""

from __future__ import annotations

import contextlib
import functools
import hashlib
import itertools
import json
import math
import queue
import threading
from collections.abc import Callable, Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

from embedl_device.statistics import percentile, without_waiting
from embedl_hub.bisection._compiling import Compilations, Compiling, compilations_of
from embedl_hub.bisection._judge import Sitting, Verdict, judge_ends, judge_trial, until_clear
from embedl_hub.bisection._plan import (
    ANSWERS,
    DATA,
    MODEL,
    OPTION,
    ROUNDS,
    RUNTIME,
    SIZE,
    STARTS,
    BisectionPlan,
    Side,
    config_of,
)
from embedl_hub.bisection._search import Answer, Decision, Names, Switch, first_in_order
from embedl_hub.bisection._statistics import LOOKS, Estimate, estimate, mcnemar_p, share_of
from embedl_hub.core.profile import ProfileError
from embedl_hub.errors import HubError
from embedl_hub.machine.driver import Driver, driver_of
from embedl_hub.machine.machine import Machine, open_machine
from embedl_hub.refusal import RefusedError

if TYPE_CHECKING:
    import numpy as np

    from embedl_hub.core.context import HubContext
    from embedl_hub.machine.variants import Variant
    from embedl_hub.models.hybrid import Hybrids
    from embedl_hub.tracking import ActiveRun, LoggedArtifact

PART = "model: "
STEP = "BisectionStep"
_TRIAL, _GOOD_END, _BAD_END = "trial", "good end", "bad end"
_HALF = 0.5
# On one processor, sittings of the same processes are no more alike than those of fresh ones, but whether there is a
# difference at all must not hang on where two processes happen to lie. On several they are: the scheduler keeps a
# process where it is, and where that is slower all its sittings are, so every sitting has fresh ones. So it has where a
# start is what is asked about: a process that has loaded its model twice had it in its files' cache and its memory.
_ENDS_A_START, _TRIALS_A_START, _FRESH = 2, 4, 1
_MOST_FOR_THE_REST = 24
# How sure it must be that nothing much is left: nobody is blamed by that, so it takes nothing of the search's error.
_LEFT_LEVEL = 0.05
# What is left of the difference once a cause is found must be at least this much of it to be searched too.
_REST = 0.2


@dataclass(frozen=True)
class Settings:
    """How sure the answers must be, and what they may cost."""

    alpha: float = 0.01  # the error of the whole search
    least: float = 0.02  # a smaller difference is none: 0.02 is 2 %
    seconds: float = 0.2  # turns of one sitting last at least so long
    most_sittings: int = LOOKS[-1]


class Steps:
    """Keeps decisions as runs, and finds those that were made before: the store is the only state."""

    def __init__(
        self, ctx: HubContext, bisect_id: str, known: Mapping[str, Decision], told: Callable[[Decision], None]
    ) -> None:
        self._ctx, self._id, self._told = ctx, bisect_id, told
        self.known = dict(known)
        self.order: list[str] = []
        self._numbers: dict[str, int] = {}
        self._lock = threading.Lock()

    def operators(self, run_id: str) -> list[dict[str, Any]]:
        """Return the operators that an earlier process named, as they were recorded."""
        store = self._ctx.client.store
        run = None if store is None else store.run(run_id)
        rows = run.params["$operators"].value if run is not None and "$operators" in run.params else []
        return [row for row in rows if isinstance(row, dict)] if isinstance(rows, list) else []

    def number(self, key: str) -> int:
        """Return which decision it is, from 1; its share of the error follows from that."""
        with self._lock:
            return self._numbers.setdefault(key, len(self._numbers) + 1)

    @property
    def made(self) -> list[Decision]:
        """The decisions in the order they were asked for."""
        return [self.known[key] for key in self.order]

    def decide(self, key: str, title: str, device: str | None, work: Callable[[ActiveRun], Decision]) -> Decision:
        """Return a decision that was made before, or make it within a run of its own."""
        if key not in self.known:
            with self._ctx.client.start_run("CUSTOM", title[:100], component=STEP, device=device) as run:
                run.log_batch(tags={"bisect": self._id, "decision": key})
                with contextlib.nullcontext() if device is None else self._ctx.run_on(device):
                    decision = replace(work(run), run_id=run.id)
                run.log_param("$decision", as_value(decision))
                run.log_batch({"answer": str(decision.answer), "reason": decision.reason})
            self.known[key] = decision
        with self._lock:
            if key not in self.order:
                self.order.append(key)
                self._told(self.known[key])
        return self.known[key]


def as_value(decision: Decision) -> dict[str, object]:
    """Return a decision as plain JSON values."""
    values = {name: getattr(decision, name) for name in Decision.__dataclass_fields__}
    values |= {name: sorted(values[name]) for name in ("base", "trial", "whole")}
    # No JSON has a number for what is not known at all.
    ends = {name: values[name] for name in ("low", "high") if values[name] is not None and math.isfinite(values[name])}
    return {**values, "low": ends.get("low"), "high": ends.get("high"), "answer": str(decision.answer)}


def decision_of(values: Mapping[str, Any]) -> Decision:
    """Return a decision of a record."""
    known: dict[str, Any] = {name: values.get(name) for name in Decision.__dataclass_fields__}
    known |= {name: frozenset(map(str, known[name] or ())) for name in ("base", "trial", "whole")}
    return Decision(**{**known, "answer": Answer(str(known["answer"]))})


class Trials:
    """Answers the search's questions by running configurations on the plan's machine."""

    def __init__(self, ctx: HubContext, plan: BisectionPlan, settings: Settings, steps: Steps, folder: Path) -> None:
        self._ctx, self._plan, self._settings, self._steps, self._folder = ctx, plan, settings, steps, folder
        self._driver: Driver = driver_of(plan.toolchain)
        self._pythons: dict[str | None, str | None] = {}
        self._hybrids: Hybrids | None = None
        self._values: dict[Names, Any] = {}
        self._compiling = Compiling(ctx, plan)
        self._count = itertools.count()
        self._total: float | None = None
        self._lock = threading.Lock()
        self._boards: queue.SimpleQueue[str | None] = queue.SimpleQueue()
        for name in plan.pool or (plan.device,):
            self._boards.put(name)

    # -- what the search asks

    def differ(self, base: Names, whole: Names, *, is_rest: bool) -> Decision:
        """Tell whether two configurations differ by more than the least difference that matters."""
        question = "rest" if is_rest else "differ"
        if is_rest and (shown := self._nothing_left(base, whole)) is not None:
            return shown
        work = self._differ_exactly if self._is_exact else self._differ_by_turns
        decision = self._ask(question, base, whole, whole, work)
        if not is_rest and decision.effect is not None:
            self._total = decision.effect
        return decision

    def first_bad(self, base: Names, whole: Names, trials: Sequence[Names]) -> Names | None:
        """Return the first of the trials that behaves as ``whole`` does."""
        return first_in_order(
            trials,
            lambda trial: self._trial(base, whole, trial),
            (lambda many: self._at_once(base, whole, many)) if len(self._plan.pool) > 1 else None,
        )

    def without(self, base: Names, whole: Names, trial: Names) -> Decision:
        """Tell what a found set behaves like without one of its switches."""
        return self._ask("needed", base, trial, whole, self._try_exactly if self._is_exact else self._try_by_turns)

    def parts_of(self, switch: Switch) -> tuple[Sequence[Switch], str | None]:
        """Return the parts of the model, where it is the model and both files can be cut."""
        if switch.name != MODEL:
            return (), None
        compilations, why = self._compilations
        if compilations is not None and sum(each.refusal is None for each in compilations.switches) > 1:
            return compilations.switches, None
        if compilations is not None:
            told = [f"{each.name.removeprefix(OPTION)} ({each.good} -> {each.bad})" for each in compilations.switches]
            refusals = [f"; {each.refusal}" for each in compilations.switches if each.refusal is not None]
            why = f"both are compiled from one file and differ in {', '.join(told)}{''.join(refusals[:1])}"
        try:
            parts = self.hybrids.parts
        except RefusedError as error:
            return (), "; ".join(filter(None, [why, f"it stays one switch: {error}"]))
        times = self._layer_changes()
        return [
            Switch(
                PART + part.name, f"{part.kind}: {part.good}", part.bad, "part",
                suspicion=part.change if self._is_exact else max(0.0, sum(times.get(name, 0.0) for name in part.nodes)),
            )
            for part in parts
        ], why  # fmt: skip

    @property
    def hybrids(self) -> Hybrids:
        """The two files in parts; a refusal where they cannot be cut."""
        with self._lock:
            if self._hybrids is None:
                try:
                    from embedl_hub.models.hybrid import Hybrids  # noqa: PLC0415 - needs onnx
                    from embedl_hub.models.onnx_file import read_model  # noqa: PLC0415
                except ImportError as error:
                    raise RefusedError(f"the Python package {error.name!r} is not installed") from error
                good, bad = (self._ctx.bring_here(side.model) for side in (self._plan.good, self._plan.bad))
                self._hybrids = Hybrids(read_model(good), read_model(bad))
            return self._hybrids

    @functools.cached_property
    def _compilations(self) -> tuple[Compilations | None, str | None]:
        return compilations_of(self._plan)

    def _nothing_left(self, base: Names, whole: Names) -> Decision | None:
        """Return the answer to what is left, where the trial that found the cause has shown it already."""
        for each in self._steps.made:
            is_it = each.question == "trial" and each.is_bad and (each.trial, each.whole) == (base, whole)
            if is_it and each.left is not None and math.log(each.left) < self._least("rest"):
                return Decision("rest", base, whole, whole, Answer.GOOD, f"at most {each.left - 1:.1%} is left")
        return None

    def _layer_changes(self) -> dict[str, float]:
        """Return how much longer each node took in BAD by the recorded layers, in ms."""
        changes: dict[str, float] = {}
        for side, sign in ((self._plan.bad, 1.0), (self._plan.good, -1.0)):
            for row in side.document.rows:
                names = row.source_nodes or (row.name,)
                for name in names:
                    changes[name] = changes.get(name, 0.0) + sign * (row.time_ms or 0.0) / len(names)
        return changes

    def _trial(self, base: Names, whole: Names, trial: Names) -> Decision:
        work = self._try_exactly if self._is_exact else self._try_by_turns
        return self._ask("trial", base, trial, whole, work)

    def _at_once(self, base: Names, whole: Names, trials: Sequence[Names]) -> None:
        """Decide trials side by side, each on one of the equal boards."""
        for trial in trials:
            self._steps.number(_key("trial", base, trial, whole))
        with ThreadPoolExecutor(len(self._plan.pool), thread_name_prefix="edgeproof-bisect") as threads:
            list(threads.map(lambda trial: self._trial(base, whole, trial), trials))

    def _ask(
        self,
        question: str,
        base: Names,
        trial: Names,
        whole: Names,
        work: Callable[[Decision, float, ActiveRun, Machine[Any]], Decision],
    ) -> Decision:
        key = _key(question, base, trial, whole)
        asked = Decision(question, base, trial, whole, Answer.OPEN, "")
        level = share_of(self._steps.number(key), self._settings.alpha)
        if key in self._steps.known:
            return self._steps.decide(key, "", None, lambda _: asked)
        device = self._boards.get()
        try:

            def decide(run: ActiveRun) -> Decision:
                with self.machine(device) as machine:
                    return work(asked, level, run, machine)

            return self._steps.decide(key, _title(asked), device, decide)
        finally:
            self._boards.put(device)

    # -- where, and with what

    @contextlib.contextmanager
    def machine(self, device: str | None) -> Iterator[Machine[Any]]:
        """Yield the machine of a device; only within a run."""
        component = self._plan.toolchain.profiler or self._plan.toolchain.compiler
        with open_machine(self._ctx, device, component, *self._driver.configs) as machine:
            if (refusal := self._driver.refusal(machine)) is not None:
                raise RefusedError(refusal)
            yield machine

    @property
    def driver(self) -> Driver:
        """The device program."""
        return self._driver

    def find_pythons(self) -> tuple[tuple[Switch, ...], list[str]]:
        """Find the Pythons that have the recorded versions of the runtime; return the switches, and what to know.

        A Python is the user's own word, by --python or in the settings of a device; a record names none.
        """
        from embedl_hub.machine.variants import runtime_version  # noqa: PLC0415 - only where something is measured

        plan, missing = self._plan, []
        versions = {side.version for side in (plan.good, plan.bad)}
        with self.machine(plan.device) as machine:
            own = runtime_version(machine, self._driver, None)
            for version in sorted(filter(None, versions)):
                for python in self._candidates(version, own):
                    if python is None or runtime_version(machine, self._driver, python) == version:
                        self._pythons[version] = python
                        break
                else:
                    missing.append(version)
        if not missing:
            return plan.switches, []
        self._pythons = {}
        title, has = plan.toolchain.title, own or "none that tells its version"
        if len(versions) == 1:
            told = (
                f"Both runs were measured with {title} {missing[0]}; {plan.place} has {has} now, and trials use that."
            )
            return plan.switches, [told]
        package = f"{self._driver.runtime.module.removeprefix('embedl_')}=={missing[0]}"
        why = (
            f"{plan.place} has no Python with {title} {' or '.join(missing)} (it has {has}); make one (python3 -m venv "
            f"DIR; DIR/bin/pip install numpy {package}) and name it: --python {missing[0]}=DIR/bin/python"
        )
        return tuple(replace(each, refusal=why) if each.name == RUNTIME else each for each in plan.switches), []

    def _candidates(self, version: str | None, own: str | None) -> Iterator[str | None]:
        if version in self._plan.pythons:
            yield self._plan.pythons[str(version)]
        if version is None or version == own:
            yield None
        for side in (self._plan.good, self._plan.bad):
            device = None if side.step.device is None else self._ctx.devices.get(side.step.device)
            python = None if device is None else getattr(device.provider_config, "python_path", None)
            if python and side.version == version:
                yield str(python)

    def variant(self, machine: Machine[Any], name: str, names: Names) -> Variant:
        """Return what a configuration is on a machine."""
        from embedl_hub.machine.variants import Variant  # noqa: PLC0415 - only where something is measured

        plan = self._plan
        config = config_of(plan.good, machine.config, dict.fromkeys(names, plan.bad))
        version = self._side(RUNTIME, names).version
        data = self._side(DATA, names).data
        path = data if isinstance(data, Path) or data is None else self._ctx.bring_here(data)
        return Variant(name, self.model(names), config, self._pythons.get(version), path)

    def _side(self, name: str, names: Names) -> Side:
        return self._plan.bad if name in names else self._plan.good

    def model(self, names: Names) -> Path:
        """Return the file of a configuration: one of the two, or one between them."""
        parts = sorted(name.removeprefix(PART) for name in names if name.startswith(PART))
        compilations = self._compilations[0]
        if compilations is not None and MODEL not in names and any(name.startswith(OPTION) for name in names):
            with self._lock:
                return self._compiling.model(compilations, names)
        if MODEL in names or not parts:
            return self._ctx.bring_here(self._side(MODEL, names).model)
        path = self._folder / f"{hashlib.sha256(json.dumps(parts).encode()).hexdigest()[:16]}.onnx"
        if not path.exists():
            made = self.hybrids.build(parts)
            part = path.with_suffix(f".{threading.get_ident()}")
            part.write_bytes(made.SerializeToString())
            part.replace(path)
        return path

    def alone(self, layer: str, op_type: str) -> Path:
        """Return a model of one layer of GOOD's file."""
        try:
            from embedl_hub.models.hybrid import one_operator  # noqa: PLC0415 - needs onnx
            from embedl_hub.models.onnx_file import read_model  # noqa: PLC0415
        except ImportError as error:
            raise RefusedError(f"the Python package {error.name!r} is not installed") from error
        made = one_operator(read_model(self._ctx.bring_here(self._plan.good.model)), layer, op_type)
        path = self._folder / "one_operator.onnx"
        path.write_bytes(made.SerializeToString())
        return path

    # -- answers by turns

    def _least(self, question: str) -> float:
        """Return the least difference that matters, as a logarithm; of what is left, a fifth of all."""
        least = math.log1p(self._settings.least)
        return max(least, _REST * abs(math.log(self._total))) if question == "rest" and self._total else least

    @property
    def _is_exact(self) -> bool:
        return self._plan.metric in (SIZE, *ANSWERS)

    def _differ_by_turns(self, asked: Decision, level: float, run: ActiveRun, machine: Machine[Any]) -> Decision:
        ends = [self.variant(machine, _GOOD_END, asked.base), self.variant(machine, _BAD_END, asked.whole)]
        return self.differ_variants(asked, level, run, machine, ends)

    def differ_variants(
        self, asked: Decision, level: float, run: ActiveRun, machine: Machine[Any], ends: Sequence[Variant]
    ) -> Decision:
        """Tell whether two variants differ, in turns until that is clear."""
        least, is_rest = self._least(asked.question), asked.question == "rest"

        verdict, sittings = self._in_turns(
            run, machine, ends, level, lambda taken, at: judge_ends(taken, at, least, is_rest=is_rest), _ENDS_A_START,
            _MOST_FOR_THE_REST if is_rest else None,
        )  # fmt: skip
        answer, found = verdict.answer, verdict.shown
        times = f"× {math.exp(found.mean):.3f}"
        words = {
            Answer.BAD: f"they differ: {times}",
            Answer.GOOD: f"they differ by no more than {math.expm1(least):.1%}",
            Answer.OPEN: f"no difference over {math.expm1(least):.1%} shown in {len(sittings)} sittings",
        }
        return replace(
            asked, answer=answer, reason=words[answer], effect=math.exp(found.mean), level=level,
            sittings=len(sittings), **_interval(found),
        )  # fmt: skip

    def _try_by_turns(self, asked: Decision, level: float, run: ActiveRun, machine: Machine[Any]) -> Decision:
        try:
            three = [
                self.variant(machine, _GOOD_END, asked.base),
                self.variant(machine, _BAD_END, asked.whole),
                self.variant(machine, _TRIAL, asked.trial),
            ]
        except RefusedError as error:
            return replace(asked, answer=Answer.INVALID, reason=f"it cannot be made: {error}")
        steers = asked.question == "trial"
        try:
            verdict, sittings = self._in_turns(
                run, machine, three, level, lambda taken, at: judge_trial(taken, at, steers=steers), _TRIALS_A_START
            )
        except (RefusedError, ProfileError) as error:
            if f"Variant '{_TRIAL}'" not in str(error):
                raise
            return replace(asked, answer=Answer.INVALID, reason=f"it does not run: {error}")
        answer, found = verdict.answer, verdict.shown
        effect = estimate([bad - good for good, bad, _ in sittings], _LEFT_LEVEL).mean
        rest = estimate([bad - trial for _, bad, trial in sittings], _LEFT_LEVEL)
        left = math.exp(min(max(abs(rest.low), abs(rest.high)), 700.0))
        share = found.mean / effect if effect else None
        shown = "" if share is None else f", {share:.0%} of the difference"
        words = {
            Answer.BAD: "nearer to BAD",
            Answer.GOOD: "nearer to GOOD",
            Answer.OPEN: f"neither is shown in {len(sittings)} sittings",
        }
        return replace(
            asked, answer=answer, reason=words[answer] + shown, share=share, effect=math.exp(effect), level=level,
            sittings=len(sittings), left=left, **_interval(found),
        )  # fmt: skip

    def _in_turns(
        self,
        run: ActiveRun,
        machine: Machine[Any],
        variants: Sequence[Variant],
        level: float,
        judge: Callable[[Sequence[Sitting], float], Verdict],
        restart_every: int,
        most: int | None = None,
    ) -> tuple[Verdict, list[Sitting]]:
        """Let variants take turns until the answer is clear or the sittings run out; keep all that was measured."""
        from embedl_hub.machine.variants import measure_variants  # noqa: PLC0415 - only where something is measured

        documents: list[dict[str, Any]] = []
        is_alone = all(getattr(each.config, "threads", None) == 1 for each in variants)
        every = restart_every if is_alone and self._plan.metric not in STARTS else _FRESH

        def take(count: int, done: int) -> list[list[float]]:
            document = measure_variants(
                machine, self._driver, variants, sittings=count, first_sitting=done, one_processor=is_alone,
                restart_every=every, seconds=self._settings.seconds,
            )  # fmt: skip
            documents.append(document)
            return [self._logs(sitting, len(variants)) for sitting in document["sittings"]]

        verdict, sittings = until_clear(take, judge, level, min(most or LOOKS[-1], self._settings.most_sittings))
        path = run.artifact_dir / "turns.json"
        path.write_text(json.dumps(documents), encoding="utf-8")
        run.log_artifact(path, name="output_file")
        return verdict, sittings

    def _logs(self, sitting: Mapping[str, Any], count: int) -> list[float]:
        """Return the logarithm of the metric of each variant in a sitting; only differences of them mean something."""
        metric = self._plan.metric
        if metric in STARTS:
            values = sitting[STARTS[metric]]
            if any(not isinstance(value, int | float) or value <= 0 for value in values):
                raise RefusedError(f"{self._plan.place} does not tell {metric}.")
            return [math.log(value) for value in values]
        waits = sitting.get("waited_us") or [None] * count
        times = [without_waiting(own, wait) for own, wait in zip(sitting["times_us"], waits, strict=True)]
        if any(min(own, default=0.0) <= 0 for own in times):
            raise RefusedError(f"The device program on {self._plan.place} gave times that are none.")
        sign = -1.0 if metric == ROUNDS[2] else 1.0
        # Round by round against the first: what the machine did meanwhile happened to all of a round.
        first = times[0]
        return [
            sign * percentile([math.log(time / other) for time, other in zip(own, first, strict=True)], 50)
            for own in times
        ]

    # -- answers without chance

    def _differ_exactly(self, asked: Decision, level: float, run: ActiveRun, machine: Machine[Any]) -> Decision:  # noqa: ARG002 - as by turns
        good, bad = (self._value(machine, names) for names in (asked.base, asked.whole))
        told = replace(asked, value=bad.number, effect=bad.number)
        if asked.question == "rest":
            total = abs(bad.loss - self._value(machine, frozenset()).loss)
            is_much = abs(bad.loss - good.loss) > _REST * total
            words = "more differs" if is_much else "what is left is less than a fifth of the difference"
            return replace(told, answer=Answer.BAD if is_much else Answer.GOOD, reason=words)
        shown = f"{good.shown} and {bad.shown}"
        if (
            good.right is not None
            and bad.right is not None
            and good.right.shape == bad.right.shape
            and DATA not in asked.whole
        ):
            only_good, only_bad = int((good.right & ~bad.right).sum()), int((bad.right & ~good.right).sum())
            chance = mcnemar_p(only_good, only_bad)
            is_other = chance <= level
            words = f"{shown}; only GOOD has {only_good} right, only BAD {only_bad}: by chance with p = {chance:.2g}"
            return replace(told, answer=Answer.BAD if is_other else Answer.OPEN, reason=words, level=level)
        low, high = sorted((good.loss, bad.loss))
        is_other = (
            good.loss != bad.loss if self._plan.metric == SIZE else high - low > max(self._settings.least * low, 1e-9)
        )
        return replace(told, answer=Answer.BAD if is_other else Answer.GOOD, reason=shown)

    def _try_exactly(self, asked: Decision, level: float, run: ActiveRun, machine: Machine[Any]) -> Decision:  # noqa: ARG002 - as by turns
        good, bad = (self._value(machine, names) for names in (asked.base, asked.whole))
        try:
            trial = self._value(machine, asked.trial)
        except (HubError, RefusedError) as error:
            return replace(asked, answer=Answer.INVALID, reason=f"it cannot be made or does not run: {error}")
        share = (trial.loss - good.loss) / (bad.loss - good.loss) if bad.loss != good.loss else 0.0
        answer = Answer.BAD if share > _HALF else Answer.GOOD
        words = f"{trial.shown}: nearer to {str(answer).upper()}, {share:.0%} of the difference"
        return replace(asked, answer=answer, reason=words, value=trial.number, share=share, effect=bad.number)

    def _value(self, machine: Machine[Any], names: Names) -> _Value:
        if names not in self._values:
            self._values[names] = self._size(names) if self._plan.metric == SIZE else self._answers(machine, names)
        found: _Value = self._values[names]
        return found

    def _size(self, names: Names) -> _Value:
        path = self.model(names)
        count = (
            path.stat().st_size
            if path.is_file()
            else sum(each.stat().st_size for each in path.rglob("*") if each.is_file())
        )
        return _Value(count / 1e6, float(count), f"{count:,} bytes")

    def _answers(self, machine: Machine[Any], names: Names) -> _Value:
        from embedl_hub.core.invoke import compare_outputs  # noqa: PLC0415
        from embedl_hub.machine.variants import answers_of  # noqa: PLC0415

        outputs = answers_of(machine, self._driver, self.variant(machine, _TRIAL, names), next(self._count))
        metric, reference = self._plan.metric, self._side(DATA, names).reference
        if metric == "accuracy":
            assert self._plan.labels is not None  # noqa: S101 - the plan has refused that
            right = _right(outputs, _labels(self._plan.labels))
            return _Value(float(right.mean()), 1.0 - float(right.mean()), f"{right.mean():.4f}", right)
        assert reference is not None  # noqa: S101 - the plan has refused that
        wanted = self._reference(machine, reference, names)
        if len(outputs) == len(wanted) == 1:
            wanted = dict(zip(outputs, wanted.values(), strict=True))
        if metric == "top1_agreement":
            right = _right(outputs, next(iter(wanted.values())).argmax(axis=-1))
            return _Value(float(right.mean()), 1.0 - float(right.mean()), f"{right.mean():.4f}", right)
        found = compare_outputs(outputs, wanted)
        if metric == "cosine":
            return _Value(found.cosine, 1.0 - found.cosine, f"cosine {found.cosine:.7g}")
        return _Value(found.max_abs_error, found.max_abs_error, f"error {found.max_abs_error:.4g}")

    def _reference(self, machine: Machine[Any], artifact: LoggedArtifact, names: Names) -> dict[str, np.ndarray]:
        """Return the answers to compare with: as they were kept, or by running the model that was kept instead."""
        from embedl_device.readers import read_npz  # noqa: PLC0415 - numpy
        from embedl_hub.machine.variants import answers_of  # noqa: PLC0415

        path, key = self._ctx.bring_here(artifact), frozenset({artifact.sha256, str(DATA in names)})
        if path.suffix == ".npz":
            return read_npz(path)
        if key not in self._values:
            variant = replace(self.variant(machine, "reference", names & {DATA}), model=path)
            self._values[key] = answers_of(machine, self._driver, variant, next(self._count))
        found: dict[str, np.ndarray] = self._values[key]
        return found


@dataclass(frozen=True, eq=False)
class _Value:
    """A metric without chance in it; ``loss`` grows as it gets worse, ``right`` has one answer for each sample."""

    number: float
    loss: float
    shown: str
    right: np.ndarray | None = None


def _labels(path: Path) -> np.ndarray:
    from embedl_device.readers import UnreadableError, read_npy  # noqa: PLC0415 - numpy

    try:
        found: np.ndarray = read_npy(path)
    except (OSError, UnreadableError) as error:
        raise RefusedError(f"The labels in {path} cannot be read: {error}.") from error
    return found


def _right(outputs: Mapping[str, np.ndarray], labels: np.ndarray) -> np.ndarray:
    import numpy as np  # noqa: PLC0415 - importing the face must not cost numpy

    first = np.asarray(next(iter(outputs.values())))
    if first.ndim < 2 or first.shape[:-1] != np.shape(labels):
        raise RefusedError(
            f"The answers have the shape {list(first.shape)} and the labels {list(np.shape(labels))}: there must be "
            "one label for each row of scores."
        )
    found: np.ndarray = first.argmax(axis=-1) == np.asarray(labels)
    return found


def _key(question: str, base: Names, trial: Names, whole: Names) -> str:
    words = json.dumps([question, sorted(base), sorted(trial), sorted(whole)])
    return hashlib.sha256(words.encode()).hexdigest()[:24]


def _title(asked: Decision) -> str:
    names = ", ".join(sorted(asked.trial - asked.base)) or "nothing"
    words = {"differ": "do GOOD and BAD differ?", "rest": "does more differ?"}
    if asked.question == "needed":
        return f"is it needed? {', '.join(sorted(asked.whole - asked.trial))}"
    return words.get(asked.question, f"trial: {names}")


def _interval(found: Estimate) -> dict[str, Any]:
    values = {"value": found.mean, "low": found.low, "high": found.high}
    return {name: math.exp(max(-700.0, min(value, 700.0))) for name, value in values.items()}
