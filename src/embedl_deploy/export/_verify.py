"""`verify`: original, transformed, simulated and exported model side by side, per output, layer and quantized boundary.

Differences grow with depth, so a limit on the output alone says little. Three bounds are checked at every boundary
instead, where nothing has grown yet: the runtime's kernel against exact integer arithmetic on the integers the runtime
had before it, the layers in torch against the file's operators on the values the model had before them, and the file's
number formats against the simulated ones. The outputs are bounded too: the file as written by the simulated model, the
file as it runs by the quality that the simulated model has against float.
"""

import hashlib
import os
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from math import log10, sqrt
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import onnxruntime as ort
import torch
from torch import nn

from embedl_deploy.dialect import dialects, family_for, family_here, get_dialect, remedies_of
from embedl_deploy.dialect._files import load
from embedl_deploy.dialect._lower import is_integer_operator
from embedl_deploy.dialect._model import DIALECT, LABELS, ORIGIN, PLACED, Weight, metadata, read, read_entry, write
from embedl_deploy.dialect._names import main_modules, read_modules
from embedl_deploy.dialect._numbers import Params
from embedl_deploy.dialect._observe import Sample, by_input, make_session, run, to_array, with_outputs
from embedl_deploy.dialect._origin import restore_origin
from embedl_deploy.dialect._portable import digest_of
from embedl_deploy.errors import InputError, ModelFileError, first_line
from embedl_deploy.export._compare import Comparison
from embedl_deploy.export._torch_stage import Feed, Recording, Stage, StubValue, call, first_random_layer, record
from embedl_deploy.export._verification import (
    FORMAT_BOUND,
    BoundaryRow,
    FamilyRow,
    LayerRow,
    MetricRow,
    OutputRow,
    Verification,
)
from embedl_deploy.export._walk import Difference, Walk, ends_of, has_float16, place_of
from embedl_deploy.integer import IntegerModel, IntegerRun
from embedl_deploy.quantize import retarget
from embedl_deploy.quantize._quantization import find_quantization
from embedl_deploy.target import Target, TargetLike, get_target
from embedl_kernels import EXACT, REQUIRES, Family, mismatch
from embedl_kernels import families as all_families

Metric = Callable[[nn.Module], float]
# Of outputs that the runtime's float operators make from the same integers: it fuses those and sums in another order.
_KERNELS_DB = 60.0
# The same where the rest of the file is in half precision: 11 bits, and roundings that turn over.
_HALF_DB = 30.0
# Of outputs where every kernel is an integer one: the same bits, but for the last of a float32.
_EXACT_DB = 100.0
# What data that a format fits keeps in it, whatever quality the user asks of the outputs.
_FITTING_DB = 10.0
# Noises of two roundings add up: 3 dB if they have nothing in common, and as much for few samples.
_TWO_ROUNDINGS_DB = 6.0
# Shares of fewer samples are not compared: one sample more or less is points.
_COUNTED = 50
_STAGES = ("original", "transformed", "simulated")
_TITLES = {"written": "the file as written", "file": "the file as it runs", "integer": "integer arithmetic"}


@dataclass(frozen=True)
class _Bounds:
    """What the user may set."""

    sqnr_db: float
    written_db: float
    drop_db: float
    drop: float


def verify(  # noqa: PLR0913 - stages, bounds and what is judged, each by name
    exported: onnx.ModelProto | str | os.PathLike[str],
    samples: Iterable[Sample],
    *,
    original: Stage | None = None,
    transformed: Stage | None = None,
    simulated: Stage | None = None,
    min_sqnr_db: float = 10.0,
    min_written_db: float = 45.0,
    max_drop_db: float = 20.0,
    labels: Iterable[Any] | None = None,
    metric: Metric | None = None,
    max_drop: float = 0.02,
    target: TargetLike | None = None,
    families: Iterable[str] | None = None,
) -> Verification:
    """Compare an exported file with the models it came from, in ONNX Runtime on this machine.

    It passes only if every stage agrees with the others within bounds that follow from the arithmetic; the result says
    which stages were compared, what was not judged, and for a failure the first wrong layer.

    Args:
        exported: The file.
        samples: Inputs that were not calibrated on: a tensor or array, a tuple of them in the order of the model's
            inputs, or arrays by input name, which the models in torch get by name too.
        original: The model before anything was done to it.
        transformed: The model after conversions and fusions.
        simulated: The quantized model in torch; its layers and boundaries are compared with the file's.
        min_sqnr_db: What every output of a quantized file must reach against the float model.
        min_written_db: What stages of the same arithmetic must reach against each other: the file as written (ONNX
            Runtime with optimization off) against the simulated model, the transformed model against the original, a
            float file against the model it was made from.
        max_drop_db: How far the file as it runs may lie below the simulated model, both against the float model.
        labels: The classes of each sample, so that accuracies are compared.
        metric: Takes a model and returns a number, larger is better, as for `MaxDrop`; it is given every stage.
        max_drop: How far accuracy or metric of the file may lie below the simulated model's, in the metric's own unit;
            without labels, how far its agreement with the float model may.
        target: What the file is for: it must be written in its dialect, and the answers of its processor are predicted.
        families: Kernel families to predict the answers of, by name, or ``["all"]``: a row each says whether the file
            gives the same bits there, and if not, where it first differs and by how much.

    Raises:
        ModelFileError: The file cannot be read, or is written for another target.
        InputError: There are no samples, or one does not fit or is not finite.
    """
    model = load(exported)
    dialect = metadata(model).get(DIALECT, "")
    simulated = _simulated_for(simulated, metadata(model).get(PLACED, ""))
    stages = {"original": original, "transformed": transformed, "simulated": simulated}
    families = [families] if isinstance(families, str) else list(families or ())
    chosen = None if target is None else get_target(target)
    if chosen is not None:
        families += [chosen.family] if chosen.family and "all" not in families else []
        _check_dialect(dialect, chosen)
    integer = sorted({node.op_type for node in model.graph.node if is_integer_operator(node.op_type)})
    if integer and families:
        raise ModelFileError(
            f"The file has integer operators ({', '.join(integer[:3])}), whose answers on other processors are not "
            "predicted; verify the Q/DQ file that it was made from."
        )
    bounds = _Bounds(min_sqnr_db, min_written_db, max_drop_db, max_drop)
    given = {name: stage for name, stage in stages.items() if stage is not None}
    work = _Verifier(model, given, _wanted(families), bounds)
    count = 0
    truths = None if labels is None else iter(labels)
    for sample in samples:
        work.take(sample, None if truths is None else next(truths, None))
        count += 1
    if not count:
        raise InputError("There are no samples to verify with; give at least one.")
    if metric is not None:
        work.measure(metric)
    if integer:
        work.notes.append(
            f"The file has integer operators ({', '.join(integer[:3])}): their kernels were not judged, only outputs. "
            "Verify the Q/DQ file that it was made from."
        )
    if work.in_float:
        work.notes.append(
            f"Judged with ONNX Runtime in float, on the integers that the file says: its integer kernels saturate on "
            f"this processor, and are not those of {dialect}, which were not run."
        )
    elif not work.runs_here:
        work.notes.append(f"Judged with ONNX Runtime's kernels on this machine; those of {dialect} were not run.")
    if chosen is not None and chosen.runtime_version not in ("", ort.__version__):
        work.notes.append(f"Run in ONNX Runtime {ort.__version__}; {chosen.name} has {chosen.runtime_version}.")
    file = "" if isinstance(exported, onnx.ModelProto) else Path(exported).name
    return work.result(count, file, dialect)


def _simulated_for(model: Stage | None, placed: str) -> Stage | None:
    """Return a quantized model as it is in the file of the dialect that it was placed for."""
    record = find_quantization(model) if isinstance(model, nn.Module) else None
    if record is None or placed not in record.placement.variants:
        return model
    assert isinstance(model, nn.Module)
    return retarget(model, placed)


def _check_dialect(dialect: str, target: Target) -> None:
    """Refuse a file that says it is written for something else."""
    wanted = get_dialect(target.dialect).name if target.dialect else ""
    if dialect and wanted and dialect != wanted:
        raise ModelFileError(
            f"The file is written in the dialect {dialect!r}, and the target {target.name!r} takes {wanted!r}; "
            "export it for the target, or relower it."
        )


def _runs_here(dialect: str) -> bool:
    """Say whether ONNX Runtime's own kernels run files of a dialect; one that is not known here may be named so."""
    known = {entry.name: entry.is_onnxruntime for entry in dialects()}
    return known.get(dialect, dialect.startswith("onnxruntime"))


def _wanted(names: Sequence[str]) -> tuple[Family, ...]:
    return all_families() if "all" in names else tuple(family_for(name) for name in names)


class _FileModel(nn.Module):
    """A file as a model in torch, for a metric."""

    def __init__(self, session: Any, names: Sequence[str]) -> None:
        super().__init__()
        self._session, self._names = session, names

    def forward(self, *args: torch.Tensor, **kwargs: torch.Tensor) -> Any:
        """Run the file."""
        feed = {**dict(zip(self._names, map(to_array, args), strict=False)),
                **{name: to_array(value) for name, value in kwargs.items()}}  # fmt: skip
        found = [torch.from_numpy(np.asarray(value)) for value in run(self._session, None, feed)]
        return found[0] if len(found) == 1 else tuple(found)


class _Verifier:
    """Runs the stages sample by sample and keeps sums, never samples."""

    def __init__(
        self, model: onnx.ModelProto, stages: dict[str, Stage], targets: tuple[Family, ...], bounds: _Bounds
    ) -> None:
        self.model = model
        self.stages = stages
        self.bounds = bounds
        self.notes: list[str] = []
        self.here = family_here()
        dialect = metadata(model).get(DIALECT, "")
        self.runs_here = not dialect or _runs_here(dialect)
        # Weights that no kernel of another runtime saturates may saturate ONNX Runtime's, which only stand in for it.
        self.in_float = self.here.saturates and not self.runs_here
        # The judge adds up exactly, whatever this processor does: a file is proved by its own arithmetic.
        self.integer = IntegerModel(model, family=replace(self.here, u8s8=EXACT, wraps=""))
        self.unrun = ""  # why integer arithmetic cannot be computed
        self.origin = _origin_weights(model)
        self.explanation = _Explanation(IntegerModel(model, family=self.here)) if self.here.saturates else None
        self.predictions = [_FamilyPrediction(model, target) for target in dict.fromkeys(targets)]
        self.outputs = [value.name for value in model.graph.output]
        names = self.integer.qdq.integers
        self.watched = {boundary: names[boundary] for boundary in self.integer.qdq.tensor_of if boundary in names}
        self.is_quantized = bool(self.watched or self.integer.qdq.weights)
        self.plain = self._open(model)
        self.tapped = self._open(with_outputs(model, self.watched.values()))
        self.written = self._open_as_written(model)
        self.inputs = [value.name for value in self.plain.get_inputs()]
        self.float = next((name for name in ("original", "transformed") if name in stages), "")
        self.tallies: dict[tuple[str, str, str], Comparison] = {}
        self.steps: dict[str, int] = dict.fromkeys(self.watched, 0)
        self.simulated: dict[str, float] = {}
        self.sides: dict[str, Comparison] = {}
        self.float_sides: dict[str, dict[int, Comparison]] = {}
        self.labels = _labels(model, self.integer)
        self.stubs: dict[str, list[StubValue]] = {}
        self.seen = self.calibrated = 0
        self.random: str | None = None
        self.first: Feed | None = None
        self.right: dict[str, list[int]] = {}
        self.metrics: dict[str, float] = {}
        self.graph = _FileGraph(model, self.integer)
        # The model whose layers the file must have, where it is given
        self.judged = "simulated" if "simulated" in stages else "" if self.is_quantized else _last(stages)
        self.placed = not _lowering_moved(model)
        self.is_half = has_float16(model)
        self.kernels_db = _HALF_DB if self.is_half else _KERNELS_DB
        self.walk = Walk(self.integer, self.labels, self.placed, self.outputs) if self.judged else None
        self.walked_weights: Mapping[str, Weight] = {}

    # -- one sample ---------------------------------------------------------------------------------------------------

    def take(self, sample: Sample, truth: Any = None) -> None:
        """Run every stage on one sample."""
        feed = Feed(by_input(sample, self.inputs), self.inputs, isinstance(sample, Mapping))
        if self.first is None:
            self.first = feed
            self._look_for_random_layers(feed)
        self._count(feed)
        results = {name: call(stage, feed) for name, stage in self.stages.items()}
        recording = record(self.stages[self.judged], feed) if self.judged else None
        results["file"] = run(self.plain, None, feed.arrays)
        if self.written is not None:
            results["written"] = run(self.written, None, feed.arrays)
        exact = self._by_integers(feed)
        if exact is not None:
            results["integer"] = [exact.outputs[name] for name in self.outputs]
        if self.predictions:
            plain = self.exact.run(feed.arrays)
            for prediction in self.predictions:
                prediction.take(feed.arrays, plain)
        self._compare_outputs(results)
        if truth is not None:
            self._compare_labels(results, truth)
        asked = [*self.watched.values(), *self.outputs]
        values = dict(zip(asked, run(self.tapped, asked, feed.arrays), strict=True))
        given = {boundary: values[name] for boundary, name in self.watched.items()}
        if exact is not None:
            self._compare_kernels(feed, given, {name: values[name] for name in self.outputs})
        if recording is not None and not self.unrun:
            self._compare_layers(feed, recording, given)
        if given:
            self._compare_with_float(feed, given)

    def _look_for_random_layers(self, feed: Feed) -> None:
        for stage in self.stages.values():
            if self.random is None:
                self.random = first_random_layer(stage, feed)

    def _count(self, feed: Feed) -> None:
        """Count samples, and those among them that the model was calibrated on."""
        sizes = {len(array) for array in feed.arrays.values() if array.ndim}
        rows = sizes.pop() if len(sizes) == 1 else 1
        self.seen += rows
        if self.calibration:
            for row in range(rows):
                parts = [feed.arrays[name][row : row + 1] for name in self.inputs if feed.arrays[name].ndim]
                self.calibrated += _digest(parts) in self.calibration

    @cached_property
    def calibration(self) -> frozenset[str]:
        """What the simulated model was calibrated on, as far as it is kept."""
        model = self.stages.get("simulated")
        found = find_quantization(model) if isinstance(model, nn.Module) else None
        return (
            frozenset(_digest([to_array(value) for value in sample]) for sample in found.samples)
            if found
            else frozenset()
        )

    def _by_integers(self, feed: Feed) -> IntegerRun | None:
        if self.unrun:
            return None
        try:
            return self.integer.run(feed.arrays)
        except ModelFileError as exc:
            self.unrun = str(exc)
            return None

    def _open(self, model: onnx.ModelProto) -> Any:
        """Open a session; a file that ONNX Runtime cannot optimize is run as it is written."""
        try:
            return make_session(model, integer_kernels=not self.in_float)
        except Exception as exc:  # noqa: BLE001 - onnxruntime raises classes of its own, made in C++
            reason = first_line(exc)
            try:
                session = make_session(model, graph_optimization_level=ort.GraphOptimizationLevel.ORT_DISABLE_ALL)
            except Exception as again:
                raise ModelFileError(f"ONNX Runtime does not take the model: {first_line(again)}") from again
            note = f"ONNX Runtime cannot optimize this file and runs it as written: {reason}"
            self.notes += [note] if note not in self.notes else []
            return session

    def _open_as_written(self, model: onnx.ModelProto) -> Any:
        """Open the file with optimization off; where a remedy changed its weights, with those that were simulated."""
        if self.origin:
            qdq = read(model)
            qdq.weights |= self.origin
            model = write(qdq)
        try:
            return make_session(model, graph_optimization_level=ort.GraphOptimizationLevel.ORT_DISABLE_ALL)
        except Exception as exc:  # noqa: BLE001 - onnxruntime raises classes of its own, made in C++
            self.notes.append(f"ONNX Runtime runs this file with its optimization only: {first_line(exc)}")
            return None

    def _compare_outputs(self, results: dict[str, list[np.ndarray]]) -> None:
        pairs = [(stage, self.float) for stage in results if self.float and stage != self.float]
        if "simulated" in results:
            pairs += [(stage, "simulated") for stage in ("written", "file") if stage in results]
        pairs += [("integer", "file")] if "integer" in results else []
        for stage, against in dict.fromkeys(pairs):
            if len(results[stage]) != len(self.outputs) or len(results[against]) != len(self.outputs):
                raise InputError(f"{stage!r} or {against!r} has not the {len(self.outputs)} outputs of the file.")
            for name, values, reference in zip(self.outputs, results[stage], results[against], strict=True):
                self.tallies.setdefault((name, stage, against), Comparison()).add(reference, values)

    def _compare_labels(self, results: dict[str, list[np.ndarray]], truth: Any) -> None:
        wanted = to_array(truth).reshape(-1)
        for stage in (*_STAGES, "file"):
            if stage in results:
                scores = results[stage][0]
                if scores.ndim < 2 or len(scores) != len(wanted):
                    raise InputError(
                        f"The labels of a sample are {len(wanted)} classes, and the first output has the shape "
                        f"{list(scores.shape)}; give a class per row, or a metric."
                    )
                count = self.right.setdefault(stage, [0, 0])
                count[0] += int(np.sum(scores.reshape(len(scores), -1).argmax(1) == wanted))
                count[1] += len(wanted)

    def measure(self, metric: Metric) -> None:
        """Ask the user's metric about every stage."""
        for name, stage in self.stages.items():
            if isinstance(stage, nn.Module):
                with torch.no_grad():
                    self.metrics[name] = float(metric(stage))
        self.metrics["file"] = float(metric(_FileModel(self.plain, self.inputs)))

    def _compare_kernels(self, feed: Feed, given: dict[str, np.ndarray], outputs: dict[str, np.ndarray]) -> None:
        made = self.integer.run(feed.arrays, given)
        for boundary, steps in _steps_apart(given, made.boundaries).items():
            self.steps[boundary] = max(self.steps[boundary], steps)
        far = False
        for name, values in outputs.items():
            tally = self.tallies.setdefault((name, "kernels", "file"), Comparison())
            tally.add(values, made.outputs[name])
            far = far or tally.decibels < self.kernels_db
        if self.explanation is not None and (far or any(self.steps.values())):
            self.explanation.take(feed.arrays, given, outputs)

    @cached_property
    def exact(self) -> IntegerModel:
        """The file by its own arithmetic, as processors with VNNI compute it."""
        return IntegerModel(self.model)

    def _compare_layers(self, feed: Feed, recording: Recording, given: dict[str, np.ndarray]) -> None:
        """Run the file's operators in float on the model's values and compare what they make."""
        assert self.walk is not None
        if not self.stubs:
            self._meet_stubs(recording)
            self.walked_weights = self._chosen_weights(feed, recording)
        made = self.walk.take(feed.arrays, recording, self.walked_weights)
        for name, reference in zip(self.outputs, recording.outputs, strict=False):
            if reference.shape == made[name].shape and reference.dtype.kind == "f":
                self.walk.compare(name, made[name], reference)
        for boundary, values in given.items():
            params = self.integer.qdq.params[boundary]
            stub = next(iter(self._stubs_at(boundary, recording)), None)
            if stub is None or stub.after.shape != values.shape or not params.scale > 0:
                continue
            real = params.dequantize(values)
            steps = np.abs(real.astype(np.float64) - stub.after) / float(params.scale)
            self.simulated[boundary] = max(self.simulated.get(boundary, 0.0), float(np.rint(steps.max(initial=0.0))))
            self.sides.setdefault(boundary, Comparison()).add(stub.after, real)

    def _stubs_at(self, boundary: str, recording: Recording) -> list[StubValue]:
        tensor = self.integer.qdq.tensor_of[boundary]
        return [
            value for label, value in recording.stubs.items()
            if value.stub.quantizes and self.labels.get(label) == tensor
        ]  # fmt: skip

    def _meet_stubs(self, recording: Recording) -> None:
        for label, value in recording.stubs.items():
            if value.stub.quantizes and label in self.labels:
                self.stubs.setdefault(self.labels[label], []).append(value)

    def _chosen_weights(self, feed: Feed, recording: Recording) -> Mapping[str, Weight]:
        """Return the weights that were simulated: the file's own, or those before a remedy changed them."""
        if not self.origin:
            return {}
        wrong = []
        for weights in ({}, self.origin):
            walk = Walk(self.integer, self.labels, self.placed, self.outputs)
            walk.take(feed.arrays, recording, weights)
            wrong.append(sum(not entry.inside for entry in walk.differences.values()))
        return self.origin if wrong[1] < wrong[0] else {}

    def _compare_with_float(self, feed: Feed, given: dict[str, np.ndarray]) -> None:
        """Compare the boundaries of the running file with the float model, to name where quality is lost.

        The inputs are what was given, whether or not there is a model.
        """
        name = "transformed" if "transformed" in self.stages else self.float
        recording = record(self.stages[name], feed) if name else Recording([])
        for boundary, values in given.items():
            tensor, params = self.integer.qdq.tensor_of[boundary], self.integer.qdq.params[boundary]
            candidates = [feed.arrays[tensor]] if tensor in feed.arrays else self.graph.twins(tensor, recording)
            tallies = self.float_sides.setdefault(boundary, {})
            for index, candidate in enumerate(candidates):
                if candidate.shape == values.shape and candidate.dtype.kind == "f":
                    tallies.setdefault(index, Comparison()).add(candidate, params.dequantize(values))

    # -- the result ---------------------------------------------------------------------------------------------------

    def result(self, count: int, file: str, dialect: str) -> Verification:
        """Put the rows together."""
        outputs, boundaries, layers = self._output_rows(), self._boundary_rows(), self._layer_rows()
        metrics = self._metric_rows()
        found = Verification(
            outputs, boundaries, count, tuple(self._notes()), file, dialect, self.here.name,
            self._cause(outputs, boundaries), self.family_rows(), remedies_of(self.model),
            mismatch(metadata(self.model).get(REQUIRES, ""), self.here), layers, metrics, self._compared(),
            self._unjudged(), self.random, calibration=self._evidence(),
        )  # fmt: skip
        return found if found.passed else replace(found, first_wrong=self._first_wrong(found))

    def _evidence(self) -> str:
        model = self.stages.get("simulated")
        found = find_quantization(model) if isinstance(model, nn.Module) else None
        return "" if found is None or found.evidence is None else found.evidence.line

    def _notes(self) -> Iterator[str]:
        yield from self.notes
        if self.seen < 2:
            yield "One sample says little; give several that the model was not calibrated on."
        if self.calibrated:
            yield (
                f"{self.calibrated} of {self.seen} samples were calibrated on: on those every quantized model looks "
                "better than it is; give others."
            )

    def _compared(self) -> tuple[str, ...]:
        names = ["file"] if self.written is None else ["written", "file"]
        names += [] if self.unrun else ["integer"]
        return (*self.stages, *(_TITLES[name] for name in names))

    def _unjudged(self) -> tuple[str, ...]:
        found = []
        if not self.float:
            found.append("the quality against the float model (give original=)")
        if self.is_quantized and "simulated" not in self.stages:
            found.append("the file against the quantized model in torch (give simulated=)")
        if self.unrun:
            found.append(f"the file's integer arithmetic ({self.unrun})")
        return tuple(found)

    def _output_rows(self) -> tuple[OutputRow, ...]:
        rows = [
            OutputRow(name, stage, against, tally.largest, tally.decibels, tally.agreement,
                      *self._bound(name, stage, against, tally))
            for (name, stage, against), tally in self.tallies.items()
        ]  # fmt: skip
        if self.walk is not None and not self.unrun:
            for name in self.outputs:
                if (entry := self.walk.differences.get(name)) is not None:
                    bound = -20 * log10(entry.allowed) if self.placed else self.bounds.sqnr_db
                    rows.append(OutputRow(name, "layers", self.judged, entry.largest, _as_decibels(entry.share), 1.0,
                                          bound, 0.0, "sums in another order, of the usual values"))  # fmt: skip
        return tuple(rows)

    def _bound(self, name: str, stage: str, against: str, tally: Comparison) -> tuple[float, float, str]:
        """Return the decibels and the agreement that two stages must have, and why."""
        bounds, pair = self.bounds, (stage, against)
        base = self.tallies.get((name, "simulated", against)) if pair == ("file", self.float) else None
        if tally.is_integer:
            return float("-inf"), self._least_equal(pair, tally, base), "equal entries"
        if stage == "kernels":
            return self.kernels_db, 0.0, "the same integers before it"
        if pair == ("integer", "file") and not (self.integer.inexact or self.is_half or self.in_float):
            return _EXACT_DB, 0.0, "integer kernels only"
        alike = pair == ("transformed", "original") or (against == self.float and not self.is_quantized)
        if alike or (pair == ("written", "simulated") and self.placed):
            return self._same_bound(name, pair)
        if base is None:
            return bounds.sqnr_db, 0.0, ""
        # An output that nothing rounds is simulated exactly; the runtime still adds up in another order.
        least = min(base.decibels - bounds.drop_db, bounds.written_db)
        why = f"{bounds.drop_db:g} dB below simulated" if least > bounds.sqnr_db else ""
        return max(least, bounds.sqnr_db), self._least_agreement(base), why

    def _same_bound(self, name: str, pair: tuple[str, str]) -> tuple[float, float, str]:
        """Return what stages of the same arithmetic must have."""
        if self.is_half and pair != ("transformed", "original"):
            return min(self.bounds.written_db, _HALF_DB), 0.0, "half precision"
        if pair == ("written", "simulated") and self._layers_agree:
            apart = self._roundings_apart(name)
            if apart < self.bounds.written_db:
                return apart, 0.0, "every layer agrees alone; roundings on an edge add up"
        weights = " with the simulated weights" if pair[0] == "written" and self.origin else ""
        return self.bounds.written_db, 0.0, f"the same arithmetic{weights}"

    @cached_property
    def _layers_agree(self) -> bool:
        """Whether every layer of the file makes of the model's values what the model's layer makes."""
        walked = self.walk is not None and not self.unrun and bool(self.walk.differences)
        return walked and all(entry.inside for entry in self.walk.differences.values())  # type: ignore[union-attr]

    def _roundings_apart(self, name: str) -> float:
        """Return what an output may differ by where values on the edge of a rounding fall to either side.

        Each such value changes what the layers after it read. Two roundings of one network are at most as far apart as
        both are from float.
        """
        base = self.tallies.get((name, "simulated", self.float)) if self.float else None
        return max(self.bounds.sqnr_db, 20.0 if base is None else base.decibels - _TWO_ROUNDINGS_DB)

    def _least_equal(self, pair: tuple[str, str], tally: Comparison, base: Comparison | None) -> float:
        """Return the share of an output's integers that must be equal; one of them may always differ."""
        if pair in (("kernels", "file"), ("transformed", "original")):
            return 1.0
        least = (1.0 if base is None else base.agreement) - self.bounds.drop
        return min(least, 1 - 1 / max(tally.rows, 1))

    def _least_agreement(self, simulated: Comparison) -> float:
        """Return the agreement with float that the file must have: that of the simulated model, less a few points."""
        if not simulated.is_classes or simulated.rows < _COUNTED:
            return 0.0
        share = simulated.agreement
        return max(0.0, share - self.bounds.drop - 2 * sqrt(share * (1 - share) / simulated.rows))

    def _metric_rows(self) -> tuple[MetricRow, ...]:
        accuracies = {stage: right / of for stage, (right, of) in self.right.items()}
        rows = []
        for values in (accuracies, self.metrics):
            base = values.get("simulated", values.get(self.float))
            for stage, value in values.items():
                least = None if stage != "file" or base is None else base - self.bounds.drop
                rows.append(MetricRow(stage, value, least))
        return tuple(rows)

    def _boundary_rows(self) -> tuple[BoundaryRow, ...]:
        makers = {kernel.boundary: kernel for kernel in self.integer.kernels if kernel.boundary is not None}
        inexact = set(self.integer.inexact)
        rows = []
        for boundary in self.watched:
            tensor = self.integer.qdq.tensor_of[boundary]
            kernel, node = makers.get(boundary), self.graph.makers.get(tensor)
            name = kernel.node.name if kernel is not None else node.name if node is not None else ""
            what = kernel.name if kernel is not None else node.op_type if node is not None else "input"
            # ONNX Runtime's kernels stand in for those of another runtime, whose steps need not be its own.
            bound = int(name in inexact or not self.runs_here)
            entry, scale = self._difference(tensor), float(np.max(self.integer.qdq.params[boundary].scale))
            layer = None if entry is None else entry.largest / scale
            layer_bound = 0.5 if entry is None else entry.allowed * entry.at / scale
            form = self._format_difference(boundary)
            inside = self.steps[boundary] <= bound and (entry is None or entry.inside)
            inside = inside and (form is None or form <= FORMAT_BOUND)
            side, sides = self.sides.get(boundary), self.float_sides.get(boundary, {}).values()
            level = max((one.decibels for one in sides), default=None)
            if level is not None and tensor in self.graph.first:
                # Nothing was rounded before it: whoever calibrates on data like this keeps 30 dB and more.
                inside = inside and level >= min(self.bounds.sqnr_db, _FITTING_DB)
            rows.append(
                BoundaryRow(
                    tensor, self.graph.modules.get(name, ""), what, self.steps[boundary], bound, layer,
                    self.simulated.get(boundary), None if side is None else side.decibels, inside, layer_bound, form,
                    level,
                )
            )  # fmt: skip
        held = set(self.integer.qdq.tensor_of.values())
        for tensor in self.stubs if self.placed and self.is_quantized else ():
            if tensor not in held and (tensor in self.graph.makers or tensor in self.inputs):
                module = self.graph.name_of(tensor)
                rows.append(BoundaryRow(tensor, module, "no Q/DQ", 0, 0, None, None, None, False,
                                        format_lsb=float("inf")))  # fmt: skip
        return tuple(sorted(rows, key=lambda row: self.graph.position(row.tensor)))

    def _difference(self, tensor: str) -> Difference | None:
        """Return how far a boundary is from the model's value; None where the model has no stub to compare it with."""
        if self.walk is None or not (self.placed or tensor in self.stubs):
            return None
        return self.walk.differences.get(tensor)

    def _format_difference(self, boundary: str) -> float | None:
        """Return by how many steps the ends of a format are away from the nearest stub's on the same value."""
        tensor, params = self.integer.qdq.tensor_of[boundary], self.integer.qdq.params[boundary]
        if not self.stubs or not self.placed or params.axis is not None:
            return None
        found = []
        for value in self.stubs.get(tensor, ()):
            scale = max(float(value.stub.scale.detach().abs()), 1e-30)
            wanted, have = ends_of(value), params.bounds
            if not np.isfinite(wanted[0]):
                found.append(abs(float(params.scale) / scale - 1) * 255)
            else:
                found.append(max(abs(have[0] - wanted[0]), abs(have[1] - wanted[1])) / scale)
        return min(found, default=float("inf"))

    def _layer_rows(self) -> tuple[LayerRow, ...]:
        if self.walk is None:
            return ()
        return tuple(
            LayerRow(self.graph.name_of(tensor), tensor, self.graph.operator_of(tensor), entry.share, entry.allowed)
            for tensor, entry in self.walk.differences.items()
        )

    def _cause(self, outputs: Sequence[OutputRow], boundaries: Sequence[BoundaryRow]) -> str:
        """Say why kernels are outside, where this processor's explain it."""
        outside = [row for row in boundaries if row.kernel_lsb > row.kernel_bound]
        far = [row for row in outputs if row.stage == "kernels" and not row.inside]
        if self.explanation is None or not (outside or far) or not self.explanation.explains:
            return ""
        what = f"{len(outside)} boundaries" if outside else f"{len(far)} outputs"
        return (
            f"{self.here.cause}; {what} differ from the file's arithmetic, each by what that "
            "predicts. Write the portable file: export_onnx(..., dialect='onnxruntime-x86'), or embedl-deploy relower "
            "FILE PORTABLE --dialect onnxruntime-x86"
        )

    def family_rows(self) -> tuple[FamilyRow, ...]:
        modules = main_modules(self.model)
        return tuple(prediction.row(modules) for prediction in self.predictions)

    # -- the first wrong layer ----------------------------------------------------------------------------------------

    def _first_wrong(self, found: Verification) -> str:
        if found.random_layer is not None:
            return found.random_layer or "the model's own forward"
        far = {(row.stage, row.against) for row in found.outputs if not row.inside}
        places = [row.tensor for row in found.boundaries if not row.inside]
        if any(stage == "layers" for stage, _ in far) or places:
            places += [row.tensor for row in found.layers if not row.inside]
        if ("simulated", self.float) in far:
            # What the simulated model lost already is no fault of the file's; it may come first.
            places.append(self._where_quality_falls(found))
        if places:
            return self.graph.name_of(min(places, key=self.graph.position))
        if ("kernels", "file") in far or far == {("integer", "file")}:
            return self.graph.last_kernel(next(row.output for row in found.outputs if not row.inside))
        if ("transformed", "original") in far:
            return self._first_in_torch()
        return self.graph.name_of(self._where_quality_falls(found))

    def _first_in_torch(self) -> str:
        """Return the first layer of the transformed model that is not what the original has."""
        assert self.first is not None
        before, after = record(self.stages["original"], self.first), record(self.stages["transformed"], self.first)
        for place, values in after.values.items():
            names = after.modules.get(place, ())
            candidates = [array for name in names for array in before.values.get(name, [])]
            same = [array for array in candidates if values and array.shape == values[0].shape]
            if same and max(_decibels(array, values[0]) for array in same) < self.bounds.written_db:
                return names[0] or place
        return "the model's own forward"

    def _where_quality_falls(self, found: Verification) -> str:
        """Return the first boundary that has about the noise of the worst output."""
        rows = [row for row in found.outputs if not row.inside and row.stage in ("file", "simulated", "written")]
        worst = min((row.sqnr_db for row in rows), default=self.bounds.sqnr_db)
        by_float = any(row.against == self.float for row in rows)
        for row in found.boundaries:
            level = row.float_db if by_float else row.sqnr_db
            if level is not None and level <= worst + 3:
                return row.tensor
        return rows[0].output if rows else self.outputs[0]


class _FileGraph:
    """Where the tensors of a file come from."""

    def __init__(self, model: onnx.ModelProto, integer: IntegerModel) -> None:
        self.modules = main_modules(model)
        self.all_modules = read_modules(model)
        self.kernels = integer.kernels
        graph = self.graph = integer.qdq.graph
        self.edges = integer.qdq.edges
        self.makers = {name: node for node in graph.node for name in node.output if name}
        self._positions = {name: place for place, node in enumerate(graph.node) for name in node.output if name}

    @cached_property
    def first(self) -> set[str]:
        """The tensors that nothing quantized leads to."""
        rounded: set[str] = set()
        for node in self.graph.node:
            if any((node.name, index) in self.edges or name in rounded for index, name in enumerate(node.input)):
                rounded.update(node.output)
        return {*self.makers, *(value.name for value in self.graph.input)} - rounded

    def position(self, tensor: str) -> int:
        return self._positions.get(tensor, -1)

    def operator_of(self, tensor: str) -> str:
        return self.makers[tensor].op_type if tensor in self.makers else "input"

    def name_of(self, tensor: str) -> str:
        """Return the user's name of the layer that makes a tensor."""
        node = self.makers.get(tensor)
        if node is None:
            return f"input {tensor!r}"
        # What the model's own forward does is no module's: the operator's name in the file says where it is.
        return self.modules.get(node.name) or node.name

    def twins(self, tensor: str, recording: Recording) -> list[np.ndarray]:
        """Return the values of a model in torch that may be this tensor: of its place, and of the modules in it."""
        node = self.makers.get(tensor)
        if node is None:
            return []
        names = (place_of(node), *self.all_modules.get(node.name, ()))
        return [array for name in dict.fromkeys(names) for array in recording.values.get(name, [])]

    def last_kernel(self, output: str) -> str:
        """Return the layer of the last integer kernel on the way to an output, behind the last boundary."""
        integers = {kernel.node.name: kernel.output for kernel in self.kernels if kernel.integer}
        waiting, seen = [output], set[str]()
        while waiting:
            node = self.makers.get(waiting.pop(0))
            if node is None or node.name in seen:
                continue
            seen.add(node.name)
            if node.name in integers:
                return self.name_of(node.output[0])
            waiting += [name for index, name in enumerate(node.input) if name and (node.name, index) not in self.edges]
        return self.name_of(output)


def _last(stages: Mapping[str, Stage]) -> str:
    """Return the stage that a float file is made from: the last that is given."""
    return next(reversed(list(stages)), "")


def _digest(arrays: Sequence[np.ndarray]) -> str:
    found = hashlib.sha256()
    for array in arrays:
        found.update(str((array.dtype, array.shape)).encode())
        found.update(np.ascontiguousarray(array).tobytes())
    return found.hexdigest()


def _as_decibels(share: float) -> float:
    return float("inf") if share == 0 else -20 * log10(share) if share > 0 else float("nan")


def _decibels(reference: np.ndarray, values: np.ndarray) -> float:
    tally = Comparison()
    tally.add(reference, values)
    return tally.decibels


def _lowering_moved(model: onnx.ModelProto) -> bool:
    """Tell whether the file's dialect has other Q/DQ than the model that was exported, as lowering noted it."""
    record = read_entry(model, ORIGIN, "{}")
    if not record:
        return False
    try:
        before, after = (_noted_formats(record[name]) for name in ("boundaries", "lowered"))
    except (KeyError, TypeError, ValueError, AttributeError) as exc:
        raise ModelFileError(f"The metadata {ORIGIN!r} cannot be read ({type(exc).__name__}: {exc}).") from exc
    if before.keys() != after.keys():
        return True
    return any(
        len(ends) != len(after[tensor])
        or any(abs(one - other) > 0.25 * step for (*pair, step), (*others, _) in zip(ends, after[tensor], strict=True)
               for one, other in zip(pair, others, strict=True))
        for tensor, ends in before.items()
    )  # fmt: skip


def _noted_formats(entries: Mapping[str, Any]) -> dict[str, list[tuple[float, float, float]]]:
    """Return by tensor the ends and the step of each format that is noted for it."""
    found: dict[str, list[tuple[float, float, float]]] = {}
    for entry in entries.values():
        scale, zero = np.asarray(entry["scale"], np.float32), np.asarray(entry["zero_point"], np.int64)
        low, high = Params(scale, zero, entry["type"]).bounds
        found.setdefault(str(entry["tensor"]), []).append((low, high, float(scale)))
    return {tensor: sorted(ends) for tensor, ends in found.items()}


def _labels(model: onnx.ModelProto, integer: IntegerModel) -> dict[str, str]:
    """Return the tensor that each stub of the torch model stands on; lowering may have renamed an output."""
    tensors = set(integer.qdq.tensor_of.values())
    suffixes = ("", "/raw", "/relu", "/reduced")
    return {
        label: next((tensor + suffix for suffix in suffixes if tensor + suffix in tensors), tensor)
        for label, tensor in read_entry(model, LABELS, "{}").items()
    }


def _origin_weights(model: onnx.ModelProto) -> dict[str, Weight]:
    """Return the simulated weights of layers that a remedy changed, if the file has the ones that it wrote."""
    rows = [row for row in remedies_of(model) if row.remedy != "none"]
    if not rows or metadata(model).get(PLACED):
        return {}
    now, before = read(model).weights, restore_origin(read(model)).weights
    return {
        row.weight: before[row.weight]
        for row in rows
        if row.weight in before and row.digest == (digest_of(now[row.weight]) if row.weight in now else "")
    }


def _steps_apart(found: Mapping[str, np.ndarray], wanted: Mapping[str, np.ndarray]) -> dict[str, int]:
    """Return by how many steps the integers at each boundary differ, where both have some."""
    return {
        name: int(np.abs(values.astype(np.int64) - wanted[name].astype(np.int64)).max(initial=0))
        for name, values in found.items()
        if name in wanted
    }


class _Explanation:
    """Whether this processor's kernels, as they are known, explain what the runtime answered."""

    def __init__(self, model: IntegerModel) -> None:
        self.model = model
        self.explains = False

    def take(
        self, feed: Mapping[str, np.ndarray], given: Mapping[str, np.ndarray], outputs: Mapping[str, np.ndarray]
    ) -> None:
        inexact = set(self.model.inexact)
        makers = {kernel.boundary: kernel.node.name for kernel in self.model.kernels}
        made = self.model.run(feed, given)
        steps = _steps_apart(given, made.boundaries)
        near = max((off for name, off in steps.items() if makers.get(name) not in inexact), default=0) <= 1
        for name, values in outputs.items():
            tally = Comparison()
            tally.add(made.outputs[name], values)
            near = near and tally.decibels >= _KERNELS_DB
        self.explains = near


class _FamilyPrediction:
    """What one family of processors answers, against the file's own arithmetic."""

    def __init__(self, model: onnx.ModelProto, family: Family) -> None:
        self.family = family
        self.model = IntegerModel(model, family=family)
        self.steps: dict[str, int] = {}
        self.outputs = Comparison()

    def take(self, feed: Mapping[str, np.ndarray], exact: IntegerRun) -> None:
        found = self.model.run(feed)
        for name, steps in _steps_apart(found.boundaries, exact.boundaries).items():
            if found.boundaries[name].dtype == exact.boundaries[name].dtype:
                self.steps[name] = max(self.steps.get(name, 0), steps)
        for name, values in found.outputs.items():
            self.outputs.add(exact.outputs[name], values)

    def row(self, modules: dict[str, str]) -> FamilyRow:
        makers = {kernel.boundary: kernel for kernel in self.model.kernels if kernel.boundary is not None}
        first = next(
            (name for kernel in self.model.kernels if (name := kernel.boundary) and self.steps.get(name)), None
        )
        kernel = makers.get(first) if first is not None else None
        return FamilyRow(
            self.family.name, self.family.title, first is None and self.outputs.noise == 0,
            "" if first is None else self.model.qdq.tensor_of[first],
            "" if kernel is None else modules.get(kernel.node.name, ""), "" if kernel is None else kernel.name,
            max(self.steps.values(), default=0) if first is None else self.steps[first], self.outputs.decibels,
        )  # fmt: skip
