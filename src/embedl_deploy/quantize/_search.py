"""The search for a goal: range methods, corrections, then float islands, all judged by the goal's own metric."""

import ctypes
import hashlib
import json
import sys
import time
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import torch
from torch import fx

from embedl_deploy.errors import QuantizationError
from embedl_deploy.quantize._config import CalibrationMethod, MaxDrop
from embedl_deploy.quantize._corrections import Measure, try_correction
from embedl_deploy.quantize._fit import fit_weights, unfit_weights
from embedl_deploy.quantize._histogram import Calibration
from embedl_deploy.quantize._job import METHODS, Job
from embedl_deploy.quantize._quantization import (
    Correction,
    Gain,
    RangeChoice,
    Search,
    Step,
    Trial,
    put_quantization,
    quantization_of,
)
from embedl_deploy.quantize._sensitivity import sensitivity
from embedl_device.readers import UnreadableError, parse_json, read_plain

Build = Callable[[tuple[str, ...]], fx.GraphModule]


class Ledger:
    """Measures models by the goal's metric, and keeps what was measured and what it cost."""

    def __init__(self, goal: MaxDrop, float_model: fx.GraphModule, *, progress: bool) -> None:
        self._goal, self._progress = goal, progress
        self._started = self._last = time.perf_counter()
        self.steps: list[Step] = []
        self._journal = None if goal.journal is None else Path(goal.journal)
        self._known: dict[str | None, float] = {} if self._journal is None else _read_journal(self._journal)
        self.whole = self._metric(float_model)
        self.allowed = self.whole - goal.drop
        self._say(f"goal: float {self.whole:.4g}, at least {self.allowed:.4g} wanted")

    def measure(self, what: str, model: fx.GraphModule) -> float:
        """Measure a model and note it; it is kept if it is better than all before."""
        found = self._metric(model)
        now = time.perf_counter()
        kept = not self.steps or found > max(step.metric for step in self.steps if step.kept)
        self.steps.append(Step(what, found, kept, now - self._last))
        self._last = now
        self._say(f"goal: {what}: {found:.4g}{' (kept)' if kept else ''}")
        return found

    def met(self, metric: float) -> bool:
        """Say whether this is enough."""
        return metric >= self.allowed

    def result(self, islands: tuple[str, ...], metric: float) -> Search:
        """Return what was found, and what it cost."""
        seconds = time.perf_counter() - self._started
        return Search(islands, self.whole, metric, self.allowed, len(self.steps), tuple(self.steps), seconds)

    def _metric(self, model: fx.GraphModule) -> float:
        key = None if self._journal is None else _digest(model)
        if key in self._known:
            return self._known[key]
        found = float(self._goal.metric(model))
        if found != found:  # noqa: PLR0124 (NaN is the one number that differs from itself)
            raise QuantizationError("the metric returned NaN; it must return a number, larger is better.")
        if self._journal is not None:
            with self._journal.open("a") as file:
                file.write(json.dumps({"model": key, "metric": found}) + "\n")
        return found

    def _say(self, line: str) -> None:
        if self._progress:
            sys.stderr.write(line + "\n")
            sys.stderr.flush()


def _digest(model: fx.GraphModule) -> str:
    """Return a name for what a model computes: its graph, its weights, its scales and formats."""
    found = hashlib.sha256(str(model.graph).encode())
    for name, value in model.state_dict().items():
        found.update(name.encode())
        if isinstance(value, torch.Tensor):
            raw = value.detach().cpu().contiguous()
            # Not through NumPy, which need not be installed.
            found.update(ctypes.string_at(raw.data_ptr(), raw.nbytes))
        else:
            found.update(repr(value).encode())
    return found.hexdigest()


def _read_journal(path: Path) -> dict[str | None, float]:
    """Return what was measured, by model; a last line that was cut off is measured again."""
    if not path.exists():
        return {}
    known: dict[str | None, float] = {}
    for line in read_plain(path).decode(errors="replace").splitlines():
        try:
            entry = parse_json(line)
            known[str(entry["model"])] = float(entry["metric"])
        except (UnreadableError, KeyError, TypeError, ValueError):
            continue
    return known


class _ByMetric:
    """Judges corrections by the goal's metric, on the weights that the file will have."""

    def __init__(self, ledger: Ledger, known: float) -> None:
        self._ledger = ledger
        self._known = known
        self.what = ""

    def measure(self, model: fx.GraphModule) -> Measure:
        """Measure the model; before a correction it is the one that was measured last."""
        if not self.what:
            return Measure(self._known)
        fit_weights(model)
        found = self._ledger.measure(self.what, model)
        unfit_weights(model)
        return Measure(found)

    def compare(self, before: Measure, after: Measure) -> tuple[bool, Gain | None]:
        """Take what is higher."""
        return after.value > before.value, None

    def expect(self, correction: Correction) -> None:
        """Say which correction is tried next."""
        self.what = correction.value

    def settle(self, trial: Trial) -> float:
        """Take note of what became of it, and return the metric that holds now."""
        self.what = ""
        self._known = trial.after_db if trial.kept else self._known
        return self._known


def search(job: Job, goal: MaxDrop) -> fx.GraphModule:
    """Return the first model that meets a goal, or the best that was found."""
    assert isinstance(job.model, fx.GraphModule)
    ledger = Ledger(goal, job.model, progress=job.progress)
    best = replace(job, corrections=(), keeps_outputs=False).run()
    method = quantization_of(best).config.activation.range_method
    metric = ledger.measure(f"{method.value} ranges", best)
    if not ledger.met(metric) and job.is_open:
        best, metric = _other_methods(job, ledger, best, metric)
    if not ledger.met(metric):
        metric = _corrections(job, ledger, best, metric)
    islands: tuple[str, ...] = ()
    costs = None
    if not ledger.met(metric):
        args, kwargs = job.sample(best)
        costs = sensitivity(best, args, kwargs=kwargs)
        first = quantization_of(best)
        found, islands, metric = find_islands(
            lambda names: job.without(names, best, job.source(best).data), best, metric,
            [cost.place for cost in costs.layers], goal.most_islands, ledger,
        )  # fmt: skip
        record = quantization_of(found)
        placement = record.placement.with_islands(islands, "left float to meet the target")
        record = replace(
            record, placement=placement, ranges=first.ranges,
            trials=first.trials, warnings=first.warnings, outputs=() if islands else first.outputs,
        )  # fmt: skip
        put_quantization(found, record)
        best = found
    put_quantization(best, replace(quantization_of(best), search=ledger.result(islands, metric), sensitivity=costs))
    return best


def _other_methods(job: Job, ledger: Ledger, best: fx.GraphModule, metric: float) -> tuple[fx.GraphModule, float]:
    """Solve ranges by the other methods from the same statistics, until one meets the goal."""
    first = quantization_of(best)
    for method in METHODS:
        if method is first.config.activation.range_method:
            continue
        candidate = _with_method(job, method, best)
        found = ledger.measure(f"{method.value} ranges", candidate)
        if found > metric:
            ranges = RangeChoice(method, reason="chosen by the metric of the goal.")
            put_quantization(candidate, replace(quantization_of(candidate), ranges=ranges, warnings=first.warnings))
            best, metric = candidate, found
        if ledger.met(metric):
            break
    return best, metric


def _with_method(job: Job, method: CalibrationMethod, like: fx.GraphModule) -> fx.GraphModule:
    record = quantization_of(like)
    activation = replace(job.config.activation, calibration_method=method)
    config = replace(job.config, activation=activation)
    return replace(
        job, config=config, data=record.calibration, samples=record.samples, corrections=(), held_out=(), progress=False
    ).run()


def _corrections(job: Job, ledger: Ledger, model: fx.GraphModule, metric: float) -> float:
    """Try corrections on a model, in place, until one meets the goal; return the metric that was reached."""
    wanted = job.corrections if job.corrections is not None else tuple(Correction) if job.runs_again else ()
    if not wanted or isinstance(job.data, Calibration):
        return metric
    unfit_weights(model)
    verdict = _ByMetric(ledger, metric)
    state = job.state(model, quantization_of(model).calibration, verdict)
    trials = []
    for correction in Correction:
        if correction not in wanted or ledger.met(metric):
            continue
        trials.append(try_correction(state, correction, verdict.expect))
        metric = verdict.settle(trials[-1])
    record = replace(quantization_of(model), trials=tuple(trials), calibration=state.calibration)
    put_quantization(model, record)
    fit_weights(model)
    return metric


def find_islands(
    build: Build, first: fx.GraphModule, metric: float, ranking: list[str], most: int, ledger: Ledger
) -> tuple[fx.GraphModule, tuple[str, ...], float]:
    """Return the model with the fewest islands found, the islands, and its metric.

    The shortest prefix of the ranking that meets the goal is found by bisection; then each of its layers is put back
    if the goal still holds without it.

    Args:
        build: Makes a calibrated model with the given layers float.
        first: The model without islands.
        metric: What that one reaches.
        ranking: Layers, the dearest first.
        most: How many islands there may be.
        ledger: Measures models.
    """
    judge = _Judge(build, ledger, first, metric)
    most = min(most, len(ranking))
    if not ledger.met(judge.metric(tuple(ranking[:most]))):
        best = max(judge.seen, key=lambda islands: (judge.seen[islands], -len(islands)))
        return judge.result(best)
    low, high = 0, most
    while high - low > 1:
        middle = (low + high) // 2
        low, high = (low, middle) if ledger.met(judge.metric(tuple(ranking[:middle]))) else (middle, high)
    islands = tuple(ranking[:high])
    for name in reversed(islands[:-1]):
        fewer = tuple(island for island in islands if island != name)
        if ledger.met(judge.metric(fewer)):
            islands = fewer
    return judge.result(islands)


class _Judge:
    """Builds and measures models, each once; the last one is kept."""

    def __init__(self, build: Build, ledger: Ledger, first: fx.GraphModule, metric: float) -> None:
        self._build, self._ledger = build, ledger
        self._first = first
        self._built: dict[tuple[str, ...], fx.GraphModule] = {}
        self.seen: dict[tuple[str, ...], float] = {(): metric}

    def metric(self, islands: tuple[str, ...]) -> float:
        if islands not in self.seen:
            self._built = {islands: self._build(islands)}
            shown = ", ".join(islands[:3]) + (f" and {len(islands) - 3} more" if len(islands) > 3 else "")
            self.seen[islands] = self._ledger.measure(f"float: {shown}", self._built[islands])
        return self.seen[islands]

    def result(self, islands: tuple[str, ...]) -> tuple[fx.GraphModule, tuple[str, ...], float]:
        model = self._first if not islands else self._built.get(islands) or self._build(islands)
        return model, islands, self.seen[islands]
