"""One quantization: place, calibrate, and choose on held-out data what was left open."""

import contextlib
import time
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

import torch
from torch import fx, nn
from torch.utils import _pytree as pytree

from embedl_deploy.backend import Backend
from embedl_deploy.errors import first_line
from embedl_deploy.nn.number import Precision
from embedl_deploy.quantize._calibrate import ForwardLoop, apply_calibration, as_call, collect, keeping_samples
from embedl_deploy.quantize._config import CalibrationMethod, ModulesToSkip, QuantConfig
from embedl_deploy.quantize._corrections import Always, ByNoise, QuantState, Verdict, apply_corrections
from embedl_deploy.quantize._data_evidence import MOST, DataEvidence, judge_data, no_evidence
from embedl_deploy.quantize._fit import fit_weights
from embedl_deploy.quantize._held_out import ENOUGH_ROWS, LEAST, Judge, Split, gain, takes
from embedl_deploy.quantize._histogram import Calibration
from embedl_deploy.quantize._inputs import InputWatch
from embedl_deploy.quantize._insert import insert_qdq
from embedl_deploy.quantize._plan import plan_qdq
from embedl_deploy.quantize._quantization import (
    Correction,
    MethodTrial,
    OutputQuality,
    RangeChoice,
    Samples,
    Trial,
    put_quantization,
    quantization_of,
)
from embedl_deploy.quantize._rows import Sample, SpreadRows
from embedl_deploy.quantize._sensitivity import sensitivity

# From the plainest on: of two that are as good, the first is taken.
METHODS = (
    CalibrationMethod.MINMAX,
    CalibrationMethod.MOVING_AVERAGE_MINMAX,
    CalibrationMethod.PERCENTILE,
    CalibrationMethod.MSE,
    CalibrationMethod.ENTROPY,
)
LOW_DB = 20.0  # an output below it is not what a user would take for the float model's
_CHEAP = tuple(correction for correction in Correction if correction is not Correction.ROUNDING)
_SAMPLE = 32
_MOST_KEPT = 8
_DOMINANT = 0.1  # of an output's noise
_WORTH_KEEPING_DB = 3.0


@dataclass(frozen=True)
class Job:
    """What was asked for."""

    model: nn.Module
    args: tuple[Any, ...] | None
    kwargs: Mapping[str, Any] | None
    config: QuantConfig
    backend: Backend
    dialect: str  # whose file the model rounds like; empty for the backend's patterns alone
    data: ForwardLoop | Calibration
    held_out: tuple[Sample, ...] | None  # what to judge by; None for a part of the data
    corrections: tuple[Correction, ...] | None  # None for those that the held-out data asks for
    verdict: Verdict | None = None  # who judges corrections; None for the noise on held-out samples
    samples: Sequence[tuple[torch.Tensor, ...]] = ()  # what weights are fitted by, where the data is statistics
    example_only: bool = False
    keeps_outputs: bool = True  # whether layers may stay float for an output that is poor
    progress: bool = False
    # Filled by the first run over data: jobs that are made of this one have the same list, and do not look again
    evidence: list[DataEvidence] | None = None

    @property
    def is_open(self) -> bool:
        """Whether the range method is to be chosen."""
        return self.config.activation.calibration_method is None

    @property
    def has_batches(self) -> bool:
        """Whether the data is batches, of which some can be held out, and not a function or statistics."""
        return not (isinstance(self.data, Calibration) or callable(self.data) or self.example_only)

    @property
    def runs_again(self) -> bool:
        """Whether the data can be gone through once more."""
        return self.has_batches and not isinstance(self.data, Iterator)

    def run(self) -> fx.GraphModule:
        """Return the quantized model, with the record of how it was made."""
        placement = plan_qdq(self.model, self.args, self.config, backend=self.backend, kwargs=self.kwargs)
        result = insert_qdq(self.model, replace(placement, dialect=self.dialect), self.config)
        source = self.source(result)
        calibration, samples, warnings = self._calibrated(result, source)
        held = source.data.held if isinstance(source.data, Split) else (self.held_out or ())
        judge = Judge(self.model, held)
        if isinstance(source.data, Split) and held and not judge.can_tell:
            # Too few to compare anything by: then they are worth more as calibration data.
            more, rest, _ = self._calibrated(result, replace(source, data=[kwargs or args for args, kwargs in held]))
            calibration, samples = calibration.merge(more), (*samples, *rest)
            source = replace(source, data=self.data)
        apply_calibration(result, calibration)
        ranges = self._choose_method(result, calibration, judge) if self.is_open else None
        trials, calibration = self._correct(result, calibration, judge, source)
        record = replace(
            quantization_of(result), calibration=calibration, trials=tuple(trials), samples=samples, ranges=ranges,
            warnings=warnings,
        )  # fmt: skip
        put_quantization(result, record)
        fit_weights(result)
        if not judge.can_tell:
            return result
        scores = judge.scores(result).mean(0).tolist()
        outputs = tuple(
            OutputQuality(name, score, judge.samples) for name, score in zip(judge.names, scores, strict=True)
        )
        put_quantization(result, replace(quantization_of(result), outputs=outputs))
        if self.is_open and self.keeps_outputs and min(scores) < LOW_DB:
            result = self._keep_outputs(result, judge, source)
        return result

    def source(self, model: fx.GraphModule) -> "_Source":
        """Return the data that ranges are taken from: without a part of it, where something is to be chosen by that."""
        chooses = self.is_open or bool(self.corrections)
        if not (chooses and self.held_out is None and self.has_batches):
            return _Source(self.data, self.is_open, self.progress)
        assert not isinstance(self.data, Calibration)
        assert not callable(self.data)
        split = Split(self.data, _inputs(model), lambda call: takes(self.model, call))
        return _Source(split, self.is_open, self.progress)

    def _calibrated(
        self, model: fx.GraphModule, source: "_Source"
    ) -> tuple[Calibration, tuple[tuple[torch.Tensor, ...], ...], tuple[str, ...]]:
        """Run the data and return the statistics, some samples, and what is odd about the data."""
        if isinstance(source.data, Calibration):
            return source.data, tuple(self.samples), ()
        watch = InputWatch(model, clips=source.clips)
        rows = SpreadRows(MOST)
        kept: Samples
        with watch.watching(), keeping_samples(model) as kept, self._keeping(model, rows):
            found = collect(model, source.data, progress=source.progress)
        if self.evidence is not None and not self.evidence:
            self.evidence.append(self._judged(rows))
        return found, tuple(kept), watch.warnings

    def _keeping(self, model: fx.GraphModule, rows: SpreadRows) -> contextlib.AbstractContextManager[object]:
        """Keep some rows of what the model is given, where somebody will look at them."""
        if self.evidence is None or self.evidence:
            return contextlib.nullcontext()

        def look(_: nn.Module, args: tuple[Any, ...], kwargs: Mapping[str, Any]) -> None:
            rows.add((args, kwargs))

        return model.register_forward_pre_hook(look, with_kwargs=True)

    def _judged(self, rows: SpreadRows) -> DataEvidence:
        try:
            return judge_data(self.model, rows.calls())
        except Exception as exc:  # noqa: BLE001 (a fixed batch size, or whatever else a model has against these rows)
            return no_evidence(f"the network does not take some rows of the data ({first_line(exc)}).")

    def _choose_method(self, model: fx.GraphModule, calibration: Calibration, judge: Judge) -> RangeChoice:
        """Solve ranges by every method from the same statistics, and leave the one that held-out samples prefer."""
        if not judge.can_tell:
            return RangeChoice(CalibrationMethod.MINMAX, reason=self._why_not(judge))
        started = time.perf_counter()
        scores = {method: _solved(model, calibration, method, judge) for method in METHODS}
        plain = scores[CalibrationMethod.MINMAX]
        trials = [
            MethodTrial(method, float(found.mean()), None if method is CalibrationMethod.MINMAX else gain(plain, found))
            for method, found in scores.items()
        ]
        better = [trial for trial in trials if trial.gain is not None and trial.gain.is_real]
        best = max(better, key=lambda trial: trial.db, default=trials[0])
        _solve(model, calibration, best.method)
        return RangeChoice(best.method, tuple(trials), judge.samples, time.perf_counter() - started)

    def _why_not(self, judge: Judge) -> str:
        if isinstance(self.data, Calibration):
            return "as statistics alone cannot tell methods apart; give held_out=batches to choose by."
        if self.held_out is None and not self.has_batches:
            what = "the example inputs are the only data" if self.example_only else "forward_loop is a function"
            return f"as {what}, so nothing can be held out; give held_out=batches to choose by."
        if judge.samples >= LEAST:
            return "as the model has no output of numbers to compare."
        return (
            f"as there are {judge.samples} unseen samples to compare methods on and {LEAST} are needed; "
            f"give {ENOUGH_ROWS} samples and more, or held_out=batches."
        )

    def _correct(
        self, model: fx.GraphModule, calibration: Calibration, judge: Judge, source: "_Source"
    ) -> tuple[list[Trial], Calibration]:
        """Try corrections: those that were asked for, or the cheap ones where an output is poor."""
        wanted: Collection[Correction] = self.corrections or ()
        if self.corrections is None and self.is_open and self.keeps_outputs and judge.can_tell and self.runs_again:
            wanted = _CHEAP if float(judge.scores(model).mean(0).min()) < LOW_DB else ()
        if not wanted or isinstance(source.data, Calibration):
            return [], calibration
        if self.verdict is None and not judge.can_tell:
            reason = f"not tried: {judge.samples} unseen samples, {LEAST} are needed; give more batches or held_out"
            order = [correction for correction in Correction if correction in wanted]
            return [Trial(correction, (), 0.0, 0.0, kept=False, reason=reason) for correction in order], calibration
        state = self.state(model, calibration, self.verdict or ByNoise(judge), source)
        return apply_corrections(state, wanted), state.calibration

    def state(
        self, model: fx.GraphModule, calibration: Calibration, verdict: Verdict, source: "_Source | None" = None
    ) -> QuantState:
        """Return what corrections need of a model."""
        origin = source or self.source(model)
        again = replace(origin, progress=False)
        return QuantState(
            model, lambda: self._calibrated(model, again)[0], self.sample(model, again.data), verdict, calibration
        )

    def sample(self, model: fx.GraphModule, data: Any = None) -> Sample:
        """Return one call to learn from: the first batches, or the example inputs when the user runs the data."""
        data = self.data if data is None else data
        if isinstance(data, Calibration) or callable(data):
            return tuple(self.args or ()), dict(self.kwargs or {})
        return _first_batches(model, data)

    def without(
        self, islands: tuple[str, ...], made: fx.GraphModule, data: ForwardLoop | Calibration
    ) -> fx.GraphModule:
        """Return a model like one that was made, with more layers left float."""
        record = quantization_of(made)
        skip = self.config.skip
        wider = ModulesToSkip((*skip.stub, *islands), (*skip.weight, *islands), (*skip.smooth, *islands))
        activation = replace(self.config.activation, calibration_method=record.config.activation.range_method)
        kept = tuple(trial.correction for trial in record.trials if trial.kept)
        job = replace(
            self, config=replace(self.config, activation=activation, skip=wider), corrections=kept, verdict=Always(),
            held_out=(), samples=record.samples, progress=False,
            # Without corrections the statistics of the first run serve every placement: no data is run again.
            data=data if kept else record.calibration,
        )  # fmt: skip
        return job.run()

    def _keep_outputs(self, made: fx.GraphModule, judge: Judge, source: "_Source") -> fx.GraphModule:
        """Leave the layers float that put most of the noise on outputs below `LOW_DB`, as few as will do."""
        record = quantization_of(made)
        eight = {self.config.activation.precision, self.config.weight.precision} == {Precision.INT8}
        total = len(record.placement.quantized)
        limit = min(_MOST_KEPT, total // 4) if eight and not isinstance(self.data, Iterator) else 0
        outputs = list(record.outputs)
        result = made
        islands: tuple[str, ...] = ()
        call = judge.calls[0]
        for index in sorted(range(len(outputs)), key=lambda index: outputs[index].db):
            before = float(judge.scores(result)[:, index].mean())
            if before >= LOW_DB:
                outputs[index] = replace(outputs[index], db=before)
                continue
            costs = sensitivity(made, call[0], kwargs=call[1], output=index)
            # Noise that all layers share is not cured by leaving a few of them float.
            ranking = [cost.place for cost in costs.layers if cost.share >= _DOMINANT and cost.place not in islands]
            best: tuple[float, tuple[str, ...], fx.GraphModule] | None = None
            count = 1
            most = min(limit - len(islands), len(ranking))
            while count <= most and (best is None or best[0] < LOW_DB):
                more = tuple(ranking[:count])
                candidate = self.without((*islands, *more), made, source.data)
                score = float(judge.scores(candidate)[:, index].mean())
                if best is None or score > best[0]:
                    best = score, more, candidate
                count += 1
            if best is None or (best[0] < LOW_DB and best[0] < before + _WORTH_KEEPING_DB):
                outputs[index] = replace(outputs[index], db=before, advice=_advice(best, before))
                continue
            score, more, result = best
            islands = (*islands, *more)
            advice = "" if score >= LOW_DB else "It stays low: give goal=MaxDrop(metric, drop), or train on."
            outputs[index] = replace(outputs[index], db=score, kept=more, before_db=before, advice=advice)
        found = quantization_of(result)
        final = judge.scores(result).mean(0).tolist()
        told = tuple(replace(output, db=score) for output, score in zip(outputs, final, strict=True))
        put_quantization(
            result,
            replace(
                found, placement=found.placement.with_islands(islands, "left float to keep an output"), outputs=told,
                ranges=record.ranges, trials=record.trials, warnings=record.warnings,
            ),
        )  # fmt: skip
        return result


@dataclass(frozen=True)
class _Source:
    """Where the calibration data comes from."""

    data: Any  # as the user gave it, or less a part that is held out
    clips: bool  # values far from all others are cut
    progress: bool


def _advice(best: tuple[float, tuple[str, ...], fx.GraphModule] | None, before: float) -> str:
    if best is None:
        return "It is low, and no layer stands out: give goal=MaxDrop(metric, drop), or train on."
    return (
        f"It is low, and {len(best[1])} layers in float give {best[0]:.1f} dB only ({before:.1f} before): "
        "give goal=MaxDrop(metric, drop), or train on."
    )


def _solve(model: fx.GraphModule, calibration: Calibration, method: CalibrationMethod) -> None:
    config = quantization_of(model).config
    activation = replace(config.activation, calibration_method=method)
    apply_calibration(model, calibration, config=replace(config, activation=activation))


def _solved(model: fx.GraphModule, calibration: Calibration, method: CalibrationMethod, judge: Judge) -> torch.Tensor:
    _solve(model, calibration, method)
    return judge.scores(model)


def _inputs(model: fx.GraphModule) -> int:
    return sum(node.op == "placeholder" for node in model.graph.nodes)


def _first_batches(model: fx.GraphModule, data: Iterable[Any]) -> Sample:
    """Return the first batches as one, where they can be put together; else the first one."""
    calls = []
    count = 0
    for batch in data:
        calls.append(as_call(batch, _inputs(model)))
        leaves = [leaf for leaf in pytree.tree_leaves(calls[-1]) if isinstance(leaf, torch.Tensor) and leaf.ndim]
        count += leaves[0].shape[0] if leaves else 1
        if count >= _SAMPLE:
            break
    plain = all(not kwargs and len(args) == 1 and isinstance(args[0], torch.Tensor) for args, kwargs in calls)
    if plain and len({call[0][0].shape[1:] for call in calls}) == 1:
        return (torch.cat([call[0][0] for call in calls])[:_SAMPLE],), {}
    return calls[0]
