"""`verify`: original, transformed, simulated and exported model side by side, per output and per quantized boundary.

Differences grow with depth, so a limit on the output says little. Two bounds are checked at every boundary instead,
where nothing has grown yet: the runtime's kernel against exact integer arithmetic on the integers the runtime had
before it, and the simulation in torch against the file's operators on the values the simulation had before it. The
outputs have a low floor only, which tells another model from the same one.
"""

import os
from collections.abc import Callable, Iterable, Mapping, Sequence
from contextlib import ExitStack
from dataclasses import replace
from functools import cached_property
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import onnxruntime as ort
import torch
from torch import nn
from torch.utils import _pytree as pytree

from embedl_deploy.dialect import dialects, family_for, family_here, get_dialect, remedies_of
from embedl_deploy.dialect._files import load
from embedl_deploy.dialect._lower import is_integer_operator
from embedl_deploy.dialect._model import DIALECT, LABELS, PLACED, Weight, metadata, read, read_entry
from embedl_deploy.dialect._names import main_modules
from embedl_deploy.dialect._observe import Sample, by_input, make_session, run, to_array, with_outputs
from embedl_deploy.dialect._origin import restore_origin
from embedl_deploy.dialect._portable import digest_of
from embedl_deploy.errors import InputError, ModelFileError, first_line
from embedl_deploy.export._verification import BoundaryRow, FamilyRow, OutputRow, Verification
from embedl_deploy.integer import IntegerModel, IntegerRun
from embedl_deploy.nn import QuantStub
from embedl_deploy.quantize import retarget
from embedl_deploy.quantize._quantization import find_quantization
from embedl_deploy.target import Target, TargetLike, get_target
from embedl_kernels import EXACT, REQUIRES, Family, mismatch
from embedl_kernels import families as all_families

Stage = Callable[..., Any]
# Both sides of a boundary round, so they may be one step apart; the rest is for sums in another order.
_LAYER_BOUND = 1.01


def verify(
    exported: onnx.ModelProto | str | os.PathLike[str],
    samples: Iterable[Sample],
    *,
    original: Stage | None = None,
    transformed: Stage | None = None,
    simulated: Stage | None = None,
    min_sqnr_db: float = 6.0,
    target: TargetLike | None = None,
    families: Iterable[str] | None = None,
) -> Verification:
    """Compare an exported file with the models it came from, in ONNX Runtime on this machine.

    Args:
        exported: The file.
        samples: Inputs: a tensor or array, a tuple of them in the order of the model's inputs, or arrays by input name.
        original: The model before anything was done to it.
        transformed: The model after conversions and fusions.
        simulated: The quantized model in torch; its boundaries are compared with the file's.
        min_sqnr_db: What every output must reach against the other stages. Models that have nothing to do with each
            other come out near 0 or below; raise it to demand a quality.
        target: What the file is for: it must be written in its dialect, and the answers of its processor are predicted.
        families: Kernel families to predict the answers of, by name, or ``["all"]``: a row each says whether the file
            gives the same bits there, and if not, where it first differs and by how much.

    Raises:
        ModelFileError: The file cannot be read, or is written for another target.
        InputError: There are no samples, or one does not fit or is not finite.
    """
    model = load(exported)
    stages = {"original": original, "transformed": transformed, "simulated": _simulated_for(model, simulated)}
    dialect = metadata(model).get(DIALECT, "")
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
    work = _Verifier(model, {name: stage for name, stage in stages.items() if stage is not None}, _wanted(families))
    count = 0
    for sample in samples:
        work.take(sample)
        count += 1
    if not count:
        raise InputError("There are no samples to verify with; give at least one.")
    file = "" if isinstance(exported, onnx.ModelProto) else Path(exported).name
    if integer:
        work.notes.append(
            f"The file has integer operators ({', '.join(integer[:3])}): their kernels were not judged, only outputs. "
            "Verify the Q/DQ file that it was made from."
        )
    if dialect and not _runs_here(dialect):
        work.notes.append(f"Judged with ONNX Runtime's kernels on this machine; those of {dialect} were not run.")
    if chosen is not None and chosen.runtime_version not in ("", ort.__version__):
        work.notes.append(f"Run in ONNX Runtime {ort.__version__}; {chosen.name} has {chosen.runtime_version}.")
    return Verification(
        work.output_rows(min_sqnr_db), work.boundary_rows(), count, tuple(work.notes), file, dialect, work.here.name,
        work.cause(), work.family_rows(), remedies_of(model),
        mismatch(metadata(model).get(REQUIRES, ""), work.here),
    )  # fmt: skip


def _simulated_for(exported: onnx.ModelProto, model: Stage | None) -> Stage | None:
    """Return a quantized model as it is in a file that was written from it: one calibration serves many dialects."""
    placed = metadata(exported).get(PLACED, "")
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


class _Comparison:
    """Sums for one comparison."""

    def __init__(self) -> None:
        self.signal = self.noise = self.largest = 0.0
        self.same = self.rows = 0

    def add(self, reference: np.ndarray, values: np.ndarray) -> None:
        if reference.shape != values.shape:
            raise InputError(f"Outputs have the shapes {reference.shape} and {values.shape}: not the same model.")
        wanted = reference.astype(np.float64)
        with np.errstate(invalid="ignore"):  # an output that is not finite makes the result no number: it is judged
            difference = values.astype(np.float64) - wanted
        self.signal += float(np.sum(wanted**2))
        self.noise += float(np.sum(difference**2))
        self.largest = float(np.maximum(self.largest, np.max(np.abs(difference), initial=0.0)))
        first, second = np.atleast_2d(reference), np.atleast_2d(values)
        flat = (first.shape[0], -1)
        self.same += int(np.sum(first.reshape(flat).argmax(1) == second.reshape(flat).argmax(1)))
        self.rows += first.shape[0]

    @property
    def decibels(self) -> float:
        return float(10 * np.log10(max(self.signal, 1e-300) / self.noise)) if self.noise else float("inf")


class _Verifier:
    """Runs the stages sample by sample and keeps sums, never samples."""

    def __init__(self, model: onnx.ModelProto, stages: dict[str, Stage], targets: tuple[Family, ...]) -> None:
        self.model = model
        self.stages = stages
        self.notes: list[str] = []
        self.here = family_here()
        # The judge adds up exactly, whatever this processor does: a file is proved by its own arithmetic.
        self.integer = IntegerModel(model, family=replace(self.here, u8s8=EXACT, wraps=""))
        self.origin = _origin_weights(model)
        self.explanation = _Explanation(IntegerModel(model, family=self.here)) if self.here.saturates else None
        self.predictions = [_FamilyPrediction(model, target) for target in dict.fromkeys(targets)]
        self.outputs = [value.name for value in model.graph.output]
        names = self.integer.qdq.integers
        self.watched = {boundary: names[boundary] for boundary in self.integer.qdq.tensor_of if boundary in names}
        self.plain = self._open(model)
        self.tapped = self._open(with_outputs(model, self.watched.values()))
        self.inputs = [value.name for value in self.plain.get_inputs()]
        self.tallies: dict[tuple[str, str, str], _Comparison] = {}
        self.steps: dict[str, int] = dict.fromkeys(self.watched, 0)
        self.simulated: dict[str, float] = {}
        self.layers: dict[str, float] = {}
        self.sides: dict[str, _Comparison] = {}
        self.labels = _labels(model, self.integer)

    def take(self, sample: Sample) -> None:
        """Run every stage on one sample."""
        feed = by_input(sample, self.inputs)
        taps: dict[str, np.ndarray] = {}
        results: dict[str, list[np.ndarray]] = {}
        for name, stage in self.stages.items():
            results[name] = self._call(stage, feed, taps if name == "simulated" else None)
        results["file"] = run(self.plain, None, feed)
        results["integer"] = [self.integer.run(feed).outputs[name] for name in self.outputs]
        if self.predictions:
            exact = self.exact.run(feed)
            for prediction in self.predictions:
                prediction.take(feed, exact)
        self._compare_outputs(results)
        # Asked for no name, ONNX Runtime gives every output.
        values = run(self.tapped, list(self.watched.values()), feed) if self.watched else []
        given = dict(zip(self.watched, values, strict=True))
        self._compare_kernels(feed, given)
        self._compare_taps(given, taps)
        if taps:
            self._compare_layers(feed, taps)

    def _open(self, model: onnx.ModelProto) -> Any:
        """Open a session; a file that ONNX Runtime cannot optimize is run as it is written."""
        try:
            return make_session(model)
        except Exception as exc:  # noqa: BLE001 - onnxruntime raises classes of its own, made in C++
            reason = first_line(exc)
            try:
                session = make_session(model, graph_optimization_level=ort.GraphOptimizationLevel.ORT_DISABLE_ALL)
            except Exception as again:
                raise ModelFileError(f"ONNX Runtime does not take the model: {first_line(again)}") from again
            note = f"ONNX Runtime cannot optimize this file and runs it as written: {reason}"
            self.notes += [note] if note not in self.notes else []
            return session

    def _call(self, stage: Stage, feed: dict[str, np.ndarray], taps: dict[str, np.ndarray] | None) -> list[np.ndarray]:
        """Call a model in torch, in eval mode, watching its boundaries if asked."""
        tensors = [torch.from_numpy(feed[name]) for name in self.inputs]
        with ExitStack() as stack:
            stack.enter_context(torch.no_grad())
            if isinstance(stage, nn.Module):
                was = stage.training
                stage.eval()
                stack.callback(stage.train, was)
                if taps is not None:
                    self._tap(stage, taps, stack)
            result = stage(*tensors)
        return [to_array(leaf) for leaf in pytree.tree_leaves(result)]

    def _tap(self, model: nn.Module, taps: dict[str, np.ndarray], stack: ExitStack) -> None:
        def keep(stub: nn.Module, _args: Any, value: Any) -> None:
            assert isinstance(stub, QuantStub)
            if stub.quantizes and stub.label in self.labels:
                taps[self.labels[stub.label]] = to_array(value)

        for part in model.modules():
            if isinstance(part, QuantStub):
                stack.callback(part.register_forward_hook(keep).remove)

    def _compare_outputs(self, results: dict[str, list[np.ndarray]]) -> None:
        order = list(results)
        pairs = [(stage, order[0]) for stage in order[1:]]
        if "simulated" in results and order[0] != "simulated":
            pairs.append(("file", "simulated"))
        if order[0] != "file":
            pairs.append(("integer", "file"))
        for stage, against in dict.fromkeys(pairs):
            if len(results[stage]) != len(self.outputs) or len(results[against]) != len(self.outputs):
                raise InputError(f"{stage!r} or {against!r} has not the {len(self.outputs)} outputs of the file.")
            for name, values, reference in zip(self.outputs, results[stage], results[against], strict=True):
                self.tallies.setdefault((name, stage, against), _Comparison()).add(reference, values)

    def _compare_kernels(self, feed: dict[str, np.ndarray], given: dict[str, np.ndarray]) -> None:
        for boundary, steps in _steps_apart(given, self.integer.run(feed, given).boundaries).items():
            self.steps[boundary] = max(self.steps[boundary], steps)
        if self.explanation is not None and any(self.steps.values()):
            self.explanation.take(feed, given)

    @cached_property
    def exact(self) -> IntegerModel:
        """The file by its own arithmetic, as processors with VNNI compute it."""
        return IntegerModel(self.model)

    def cause(self) -> str:
        """Say why boundaries are outside, where this processor's kernels explain it."""
        outside = [row for row in self.boundary_rows() if row.kernel_lsb > row.kernel_bound]
        if self.explanation is None or not outside or not self.explanation.explains:
            return ""
        return (
            f"{self.here.cause}; {len(outside)} boundaries differ from the file's arithmetic, each by what that "
            "predicts. Write the portable file: export_onnx(..., dialect='onnxruntime-x86'), or embedl-deploy relower "
            "FILE PORTABLE --dialect onnxruntime-x86"
        )

    def family_rows(self) -> tuple[FamilyRow, ...]:
        modules = main_modules(self.model)
        return tuple(prediction.row(modules) for prediction in self.predictions)

    def _compare_taps(self, given: dict[str, np.ndarray], taps: dict[str, np.ndarray]) -> None:
        for boundary, values in given.items():
            params = self.integer.qdq.params[boundary]
            tap = taps.get(self.integer.qdq.tensor_of[boundary])
            if tap is None or tap.shape != values.shape or not params.scale > 0:
                continue
            real = params.dequantize(values)
            steps = np.abs(real.astype(np.float64) - tap) / float(params.scale)
            self.simulated[boundary] = max(self.simulated.get(boundary, 0.0), float(np.rint(steps.max(initial=0.0))))
            self.sides.setdefault(boundary, _Comparison()).add(tap, real)

    def _compare_layers(self, feed: dict[str, np.ndarray], taps: dict[str, np.ndarray]) -> None:
        """Run the file's operators in float on the simulation's values and compare what they make."""
        made = self.integer.run_float(feed, taps, self.origin)
        for boundary in self.watched:
            tensor, params = self.integer.qdq.tensor_of[boundary], self.integer.qdq.params[boundary]
            if tensor not in taps or tensor not in made or made[tensor].shape != taps[tensor].shape:
                continue
            # What lies beyond the format's ends is cut off on both sides.
            low, high = float(taps[tensor].min(initial=0.0)), float(taps[tensor].max(initial=0.0))
            steps = np.abs(np.clip(made[tensor], low, high) - taps[tensor]) / float(params.scale)
            self.layers[boundary] = max(self.layers.get(boundary, 0.0), float(steps.max(initial=0.0)))

    def output_rows(self, bound: float) -> tuple[OutputRow, ...]:
        return tuple(
            OutputRow(name, stage, against, tally.largest, tally.decibels, tally.same / max(tally.rows, 1), bound)
            for (name, stage, against), tally in self.tallies.items()
        )

    def boundary_rows(self) -> tuple[BoundaryRow, ...]:
        modules = main_modules(self.model)
        makers = {kernel.boundary: kernel for kernel in self.integer.kernels if kernel.boundary is not None}
        nodes = {name: node for node in self.integer.qdq.graph.node for name in node.output}
        inexact = set(self.integer.inexact)
        places = {name: place for place, name in enumerate(nodes)}
        rows = []
        for boundary in sorted(self.watched, key=lambda name: places.get(self.integer.qdq.tensor_of[name], -1)):
            tensor = self.integer.qdq.tensor_of[boundary]
            kernel, node = makers.get(boundary), nodes.get(tensor)
            name = kernel.node.name if kernel is not None else node.name if node is not None else ""
            what = kernel.name if kernel is not None else node.op_type if node is not None else "input"
            bound = int(name in inexact)
            layer = self.layers.get(boundary)
            inside = self.steps[boundary] <= bound and (layer is None or layer <= _LAYER_BOUND)
            side = self.sides.get(boundary)
            rows.append(
                BoundaryRow(
                    tensor, modules.get(name, ""), what, self.steps[boundary], bound, layer,
                    self.simulated.get(boundary), None if side is None else side.decibels, inside,
                )
            )  # fmt: skip
        return tuple(rows)


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

    def take(self, feed: dict[str, np.ndarray], given: dict[str, np.ndarray]) -> None:
        inexact = set(self.model.inexact)
        makers = {kernel.boundary: kernel.node.name for kernel in self.model.kernels}
        steps = _steps_apart(given, self.model.run(feed, given).boundaries)
        self.explains = max((off for name, off in steps.items() if makers.get(name) not in inexact), default=0) <= 1


class _FamilyPrediction:
    """What one family of processors answers, against the file's own arithmetic."""

    def __init__(self, model: onnx.ModelProto, family: Family) -> None:
        self.family = family
        self.model = IntegerModel(model, family=family)
        self.steps: dict[str, int] = {}
        self.outputs = _Comparison()

    def take(self, feed: dict[str, np.ndarray], exact: IntegerRun) -> None:
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
