"""The converter, run by the Python of its own environment: ``python converter.py REQUEST.json`` prints one JSON object.

Imports nothing of ours but the folder ``conversion`` beside it, because nothing of ours is installed there. Converts
ONNX to TFLite with onnx2tf, quantizes with ai-edge-quantizer or as the Q/DQ of the file say, finds out which tensor
became which and in what layout, and holds the result against ONNX Runtime. Its environment's packages are imported on
use: the hub reads the functions for arrays from here.
"""

from __future__ import annotations

import contextlib
import importlib.metadata
import itertools
import json
import os
import re
import sys
import time
import types
import warnings
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np

if TYPE_CHECKING:
    from .conversion.factors import Apart
    from .conversion.qdq import QdqFile

MARK = "converter: error: "
_VERSIONS = ("onnx2tf", "ai-edge-litert", "ai-edge-quantizer", "onnxruntime", "onnx")
_CHECK_SAMPLES = 2
# Tensors whose layout shapes alone leave open are tried both ways; more than this many would take too long.
_MOST_OPEN = 6

# What costs time in most networks, and what INT8 makes faster.
HEAVY = ("CONV_2D", "DEPTHWISE_CONV_2D", "TRANSPOSE_CONV", "FULLY_CONNECTED", "BATCH_MATMUL")
_GOOD_SHARE = 1e-3
_GOOD_DB = 20.0
_WORTH_DB = 3.0

Arrays = dict[str, np.ndarray]
# Inputs and outputs, each a name, a type, a shape and more.
Ends = tuple[list[dict[str, Any]], list[dict[str, Any]]]


class Made(NamedTuple):
    """A model, its inputs and outputs before and after, and how far its outputs are from ONNX Runtime's."""

    path: Path
    inputs: list[dict[str, Any]]
    outputs: list[dict[str, Any]]
    check: list[dict[str, Any]]


class ConverterError(Exception):
    """What cannot be converted; the text is for the user."""


def main(request_path: str) -> int:
    """Carry out one request; whatever libraries print goes to stderr."""
    result_stream = os.fdopen(os.dup(sys.stdout.fileno()), "w")
    os.dup2(sys.stderr.fileno(), sys.stdout.fileno())
    warnings.simplefilter("ignore")
    request = json.loads(Path(request_path).read_text(encoding="utf-8"))
    try:
        answer = convert(request)
    except ConverterError as error:
        sys.stderr.write(f"\n{MARK}{error}\n")
        return 1
    with result_stream:
        json.dump(answer, result_stream)
        result_stream.write("\n")
    return 0


def convert(request: Mapping[str, Any]) -> dict[str, object]:
    """Convert, quantize if asked to, check, and tell how the tensors changed."""
    seconds: dict[str, float] = {}
    with _timed(seconds, "convert"):
        samples, expected = _checked_references(request)
        quantized = _taken_apart(request)
        floats = _converted(request, samples, expected, quantized)
    made, quantization, nodes = floats, dict[str, object](), dict[str, list[str]]()
    sources = _sources(floats.path.parent)
    if quantized is not None:
        with _timed(seconds, "quantize"):
            made, quantization, nodes = _carried_over(floats, request, samples, expected, quantized)
        sources = {name: found[0] for name, found in nodes.items() if found}
    elif request["calibration"] is not None:
        with _timed(seconds, "quantize"):
            made, quantization = _best_quantized(floats, request, samples, expected)
    Path(request["output"]).write_bytes(made.path.read_bytes())
    return {
        "inputs": made.inputs,
        "outputs": made.outputs,
        "check": floats.check,
        "quantization": quantization,
        "operators": _operators(made.path),
        "source_of_tensors": sources,
        "nodes_of_tensors": nodes,
        "size_bytes": made.path.stat().st_size,
        "seconds": seconds,
        "versions": {name: importlib.metadata.version(name) for name in _VERSIONS},
    }


@contextlib.contextmanager
def _timed(seconds: dict[str, float], name: str) -> Iterator[None]:
    start = time.perf_counter()
    yield
    seconds[name] = round(time.perf_counter() - start, 3)


def _taken_apart(request: Mapping[str, Any]) -> QdqFile | None:
    """Return a Q/DQ file's numbers apart from its operators; None for a float model."""
    import onnx

    from .conversion import qdq

    model = onnx.load(request["model"])
    try:
        return qdq.take_apart(model) if qdq.has_qdq(model) else None
    except qdq.IntegerEndError as error:
        raise ConverterError(str(error)) from error


def _converted(
    request: Mapping[str, Any], samples: Sequence[Arrays], expected: Sequence[Arrays], quantized: QdqFile | None
) -> Made:
    """Return the float model: of a Q/DQ file, what is left without Q/DQ."""
    if quantized is None:
        return _best_converted(request, samples, expected)
    import onnx

    from .conversion.factors import Apart

    path = Path(request["work"]) / "without_qdq.onnx"
    onnx.save(quantized.model, path)
    session = _session(str(path))
    names = [value.name for value in session.get_outputs()]
    plain = [dict(zip(names, session.run(None, sample), strict=True)) for sample in samples]
    request = {**request, "model": str(path)}
    try:
        return _best_converted(request, samples, plain, Apart(quantized))
    except ConverterError:
        return _best_converted(request, samples, plain)


def _carried_over(
    floats: Made, request: Mapping[str, Any], samples: Sequence[Arrays], expected: Sequence[Arrays], quantized: QdqFile
) -> tuple[Made, dict[str, object], dict[str, list[str]]]:
    """Return the INT8 model with a Q/DQ file's own numbers, what it does not do of them, and its tensors' nodes."""
    from .conversion.quantize import CannotCarryError, carry_over

    path, runner = Path(request["work"]) / "carried.tflite", Runner(floats.path)
    by_name = {tensor["compiled_name"]: tensor for tensor in floats.inputs}
    own = [(tensor["index"], by_name[tensor["name"]]) for tensor in runner.inputs]
    feed: dict[int, np.ndarray] = {index: as_converted(tensor, samples[0][tensor["name"]]) for index, tensor in own}
    try:
        carried = carry_over(quantized, floats.path, samples[0], feed, path, quantize_io=request["quantize_io"])
    except CannotCarryError as error:
        raise ConverterError(str(error)) from error
    runner = Runner(path)
    inputs, outputs = _with_numbers(floats.inputs, runner.inputs), _with_numbers(floats.outputs, runner.outputs)
    check = _check(runner, inputs, outputs, samples, expected)
    for output in check:
        step = carried.steps.get(output["name"])
        output["steps"] = None if step is None else round(output["max_abs_error"] / step, 3)
    facts: dict[str, object] = {
        "scheme": "INT8 as the file's Q/DQ say",
        "integer_operators": carried.integer_operators,
        "float_operators": carried.float_operators,
        "left_float": [item._asdict() for item in carried.refused],
        "difference": check,
    }
    return Made(path, inputs, outputs, check), facts, {name: list(nodes) for name, nodes in carried.nodes.items()}


def _best_converted(
    request: Mapping[str, Any], samples: Sequence[Arrays], expected: Sequence[Arrays], apart: Apart | None = None
) -> Made:
    """Return the float model, which is converted with some of its factors apart if it is given so.

    Folded constants make most conversions better and some wrong, so what does not pass is converted as it came.
    """
    from .conversion import channels

    work = Path(request["work"]) / ("whole" if apart is None else "apart")
    work.mkdir()
    model = Path(request["model"]) if apart is None else apart.write(work / "factors_apart.onnx")
    before = _onnx_tensors(request["model"])
    found: list[Made] = []
    problems: list[ConverterError] = []
    for source in (_simplified(model, work), model):
        try:
            path = _to_tflite(source, work)
            if apart is not None:
                apart.join(path)
            channels.reorder_in_weights(path)
            runner = Runner(path)
            inputs, outputs = _matched(before, runner, samples, expected)
            found.append(Made(path, inputs, outputs, _check(runner, inputs, outputs, samples, expected)))
        except ConverterError as error:
            problems.append(error)
            continue
        if _worst_share(found[-1].check) <= _GOOD_SHARE:
            break
    if not found:
        raise problems[0]
    return min(found, key=lambda made: _worst_share(made.check))


def _to_tflite(source: Path, work: Path) -> Path:
    """Return the float model, or refuse operators that TFLite has not, each with its node."""
    import onnx2tf

    work = work / source.stem
    work.mkdir()
    try:
        onnx2tf.convert(
            input_onnx_file_path=str(source), output_folder_path=str(work / "onnx2tf"), not_use_onnxsim=True,
            report_op_coverage=True, non_verbose=True, verbosity="error",
        )  # fmt: skip
    except (Exception, SystemExit) as error:
        # The converter raises whatever its builders raise, and exits for some models.
        report = _report(work)
        lacking = _lacking(report) or f"{type(error).__name__}: {_short(error)}"
        raise ConverterError(f"onnx2tf cannot convert the model: {lacking}.{_hint(error)}") from error
    if lacking := _lacking(_report(work)):
        raise ConverterError(f"TFLite has no operator for these nodes of the model: {lacking}.")
    made = next((work / "onnx2tf").glob("*_float32.tflite"), None)
    if made is None:
        raise ConverterError("onnx2tf ended without an error and wrote no model.")
    return made


def _simplified(source: Path, work: Path) -> Path:
    """Return the model with constants folded, in this process: the converter's own way starts three more."""
    import onnx
    import onnxsim

    model = onnx.load(source)
    path = work / "simplified.onnx"
    try:
        folded, is_same = onnxsim.simplify(model)
    except Exception:  # noqa: BLE001 - a helper that crashes on some graphs; the converter may still do
        folded, is_same = model, False
    onnx.save(folded if is_same else model, path)
    return path


def _report(work: Path) -> dict[str, object]:
    path = next((work / "onnx2tf").glob("*_op_coverage_report.json"), None)
    report = json.loads(path.read_text(encoding="utf-8")) if path is not None else {}
    return report if isinstance(report, dict) else {}


def _sources(folder: Path) -> dict[str, str]:
    """Return the source's nodes by the tensors of the converted model that they became."""
    path = next(folder.glob("*_tensor_correspondence_report.json"), None)
    records = json.loads(path.read_text(encoding="utf-8")).get("records", ()) if path is not None else ()
    return {
        str(record["resolved_tflite_tensor_name"]): str(record["onnx_op_name"])
        for record in records
        if record.get("exists_in_final_model")
    }


def _lacking(report: Mapping[str, Any]) -> str:
    """Return the nodes that became no operator of TFLite, in words; empty when all did."""
    nodes = [*report.get("unsupported_nodes", ()), *report.get("custom_lowered_nodes", ())]
    words = [f"{node.get('onnx_op')} (node {node.get('node_name')!r}: {_reason(node)})" for node in nodes]
    more = f" and {len(words) - 5} more" if len(words) > 5 else ""
    return ", ".join(words[:5]) + more


def _reason(node: Mapping[str, Any]) -> str:
    if str(node.get("reason_code", "")).startswith("custom_op"):
        return "it would need a custom operator, which no runtime brings"
    return _short(node.get("message") or node.get("reason_code") or "not supported")


def _hint(error: BaseException) -> str:
    has_open_shape = "rank" in str(error) or "shape" in str(error)
    return " Fixing every size with input_shape may help." if has_open_shape else ""


def _short(error: object) -> str:
    return " ".join(str(error).split())[:400]


def _onnx_tensors(path: str) -> Ends:
    """Return inputs and outputs as the source declares them, with the sizes that ONNX Runtime sees."""
    session = _session(path)

    def facts(value: Any) -> dict[str, Any]:  # noqa: ANN401 - the runtime's object
        return {"name": value.name, "dtype": _DTYPES.get(value.type, value.type), "shape": list(value.shape)}

    return [facts(value) for value in session.get_inputs()], [facts(value) for value in session.get_outputs()]


_DTYPES = {
    "tensor(float)": "float32", "tensor(double)": "float64", "tensor(float16)": "float16", "tensor(int8)": "int8",
    "tensor(uint8)": "uint8", "tensor(int32)": "int32", "tensor(int64)": "int64", "tensor(bool)": "bool",
}  # fmt: skip


def _session(path: str) -> Any:  # noqa: ANN401 - the runtime's object
    import onnxruntime

    onnxruntime.set_default_logger_severity(3)
    options = onnxruntime.SessionOptions()
    # Q/DQ as they are written: on x86 without VNNI the integer kernels saturate, and would be no reference.
    options.add_session_config_entry("session.disable_quant_qdq", "1")
    return onnxruntime.InferenceSession(path, options, providers=["CPUExecutionProvider"])


def _checked_references(request: Mapping[str, Any]) -> tuple[list[Arrays], list[Arrays]]:
    """Return data and answers; a model that ONNX Runtime refuses is told in the converter's words, which name nodes."""
    try:
        return _references(request)
    except Exception as error:  # the runtime raises a class of its own per cause
        _to_tflite(_simplified(Path(request["model"]), Path(request["work"])), Path(request["work"]))
        raise ConverterError(
            f"ONNX Runtime cannot run the model, so its conversion cannot be checked: {_short(error)}"
        ) from error


def _references(request: Mapping[str, Any]) -> tuple[list[Arrays], list[Arrays]]:
    """Return data in the source's names and layouts, and what ONNX Runtime answers on it."""
    session = _session(request["model"])
    if request["calibration"] is not None:
        samples = list(itertools.islice(_batches(request["calibration"]), _CHECK_SAMPLES))
    else:
        samples = [_made_up(session, seed) for seed in range(_CHECK_SAMPLES)]
    names = [value.name for value in session.get_outputs()]
    return samples, [dict(zip(names, session.run(None, sample), strict=True)) for sample in samples]


def _batches(folder: str) -> Iterator[Arrays]:
    for path in sorted(Path(folder).glob("*.npz")):
        with np.load(path, allow_pickle=False) as arrays:
            yield {name: arrays[name] for name in arrays.files}


def _made_up(session: Any, seed: int) -> Arrays:  # noqa: ANN401 - the runtime's object
    random = np.random.default_rng(seed)
    made: Arrays = {}
    for value in session.get_inputs():
        dtype = np.dtype(_DTYPES.get(value.type, "float32"))
        if dtype.kind == "f":
            made[value.name] = np.asarray(random.normal(size=value.shape), dtype)
        else:
            made[value.name] = np.asarray(random.integers(0, 2, size=value.shape), dtype)
    return made


class Runner:
    """A TFLite model in this environment's interpreter."""

    def __init__(self, path: Path) -> None:
        from ai_edge_litert.interpreter import Interpreter

        try:
            self._interpreter = Interpreter(model_path=str(path), num_threads=2)
            self._interpreter.allocate_tensors()
        except (RuntimeError, ValueError) as error:
            raise ConverterError(f"LiteRT cannot run what the converter made of the model: {_short(error)}") from error
        self.inputs = [_details(value) for value in self._interpreter.get_input_details()]
        self.outputs = [_details(value) for value in self._interpreter.get_output_details()]

    def run(self, values: Sequence[np.ndarray]) -> list[np.ndarray]:
        """Run on arrays in the order of the inputs."""
        for tensor, value in zip(self.inputs, values, strict=True):
            self._interpreter.set_tensor(tensor["index"], value)
        try:
            self._interpreter.invoke()
        except RuntimeError as error:
            # Some kernels refuse values, as INT8 division does a divisor of 0.
            raise ConverterError(f"LiteRT cannot run what the converter made of the model: {_short(error)}") from error
        return [self._interpreter.get_tensor(tensor["index"]).copy() for tensor in self.outputs]


def _details(value: Mapping[str, Any]) -> dict[str, Any]:
    scale, zero_point = value["quantization"]
    return {
        "index": int(value["index"]),
        "name": str(value["name"]),
        "dtype": np.dtype(value["dtype"]).name,
        "shape": [int(size) for size in value["shape"]],
        "scale": float(scale) or None,
        "zero_point": int(zero_point) if scale else None,
    }


def _matched(before: Ends, runner: Runner, samples: Sequence[Arrays], expected: Sequence[Arrays]) -> Ends:
    """Return which tensor became which, and how its axes were ordered anew.

    Shapes decide where they can. Where both layouts have the same shape, the answers decide.
    """
    old_inputs = [{**tensor, "shape": list(samples[0][tensor["name"]].shape)} for tensor in before[0]]
    old_outputs = [{**tensor, "shape": list(expected[0][tensor["name"]].shape)} for tensor in before[1]]
    inputs, outputs = _pairs(old_inputs, runner.inputs), _pairs(old_outputs, runner.outputs)
    choices = [axes_between(old["shape"], new["shape"]) for old, new in (*inputs, *outputs)]
    for (old, new), found in zip((*inputs, *outputs), choices, strict=True):
        if not found:
            raise ConverterError(f"The converter made {new['name']}{new['shape']} of {old['name']}{old['shape']}.")
    if sum(len(found) > 1 for found in choices) > _MOST_OPEN:
        choices = [found[:1] for found in choices]
    splits = []
    for orders in itertools.product(*choices):
        tensors = [described(*pair, order) for pair, order in zip((*inputs, *outputs), orders, strict=True)]
        splits.append((tensors[: len(inputs)], tensors[len(inputs) :]))
    return min(splits, key=lambda split: _worst_share(_check(runner, split[0], split[1], samples[:1], expected[:1])))


def _pairs(old: Sequence[dict[str, Any]], new: Sequence[dict[str, Any]]) -> list[tuple[dict[str, Any], dict[str, Any]]]:
    """Return old and new tensors side by side: by their names as the converter spells them, else by their order."""
    if len(old) != len(new):
        raise ConverterError(
            f"The model has {[tensor['name'] for tensor in old]}, the converted {[tensor['name'] for tensor in new]}."
        )
    by_name = {_plain(tensor["name"]): tensor for tensor in new}
    if len(by_name) == len(new) and all(_plain(tensor["name"]) in by_name for tensor in old):
        return [(tensor, by_name[_plain(tensor["name"])]) for tensor in old]
    return list(zip(old, new, strict=True))


def _plain(name: str) -> str:
    return re.sub(r"[^A-Za-z0-9]", "", name.removeprefix("serving_default_"))


def axes_between(old: Sequence[int], new: Sequence[int]) -> list[list[int] | None]:
    """Return how the axes may have been ordered anew: not at all, or the channels last."""
    found: list[list[int] | None] = [None] if list(old) == list(new) else []
    if len(old) > 2:
        last = [0, *range(2, len(old)), 1]
        if [old[axis] for axis in last] == list(new):
            found.append(last)
    # Channels last is what converters do to feature maps; it comes first where both fit.
    return found[::-1]


def described(old: Mapping[str, Any], new: Mapping[str, Any], order: list[int] | None) -> dict[str, object]:
    """Return a tensor before and after, as the hub records it."""
    return {
        "name": old["name"], "dtype": old["dtype"], "shape": list(old["shape"]), "axes": order,
        "compiled_name": new["name"], "compiled_dtype": new["dtype"], "compiled_shape": new["shape"],
        "scale": new["scale"], "zero_point": new["zero_point"],
    }  # fmt: skip


def _with_numbers(
    tensors: Sequence[dict[str, object]], ordered: Sequence[dict[str, object]]
) -> list[dict[str, object]]:
    """Return tensors with the number format that the quantized model gave them."""
    now = {tensor["name"]: tensor for tensor in ordered}
    made = []
    for at, tensor in enumerate(tensors):
        # The quantizer keeps the order and may add an ending to names.
        found = now.get(tensor["compiled_name"]) or ordered[at]
        numbers = {key: found[key] for key in ("scale", "zero_point")}
        made.append({**tensor, **numbers, "compiled_name": found["name"], "compiled_dtype": found["dtype"]})
    return made


def as_converted(tensor: Mapping[str, Any], array: np.ndarray) -> np.ndarray:
    """Return an array of the source as the converted model takes it."""
    value = array if tensor["axes"] is None else np.transpose(array, tensor["axes"])
    dtype = np.dtype(tensor["compiled_dtype"])
    if tensor["scale"] and value.dtype.kind == "f" and dtype.kind in "iu":
        limits = np.iinfo(dtype)
        value = np.clip(np.round(value / tensor["scale"]) + tensor["zero_point"], limits.min, limits.max)
    return np.ascontiguousarray(value, dtype)


def as_source(tensor: Mapping[str, Any], array: np.ndarray) -> np.ndarray:
    """Return an array of the converted model as the source would give it."""
    value = array
    if tensor["scale"] and array.dtype.kind in "iu":
        value = (array.astype(np.float32) - tensor["zero_point"]) * np.float32(tensor["scale"])
    if tensor["axes"] is not None:
        value = np.transpose(value, np.argsort(tensor["axes"]))
    return np.ascontiguousarray(value, np.dtype(tensor["dtype"]))


def _check(
    runner: Runner,
    inputs: Sequence[dict[str, Any]],
    outputs: Sequence[dict[str, Any]],
    samples: Sequence[Arrays],
    expected: Sequence[Arrays],
) -> list[dict[str, Any]]:
    """Return how far each output is from ONNX Runtime's: the largest difference and its share of the range."""
    found: dict[str, list[tuple[np.ndarray, np.ndarray]]] = {tensor["name"]: [] for tensor in outputs}
    by_input = {tensor["compiled_name"]: tensor for tensor in inputs}
    by_output = {tensor["compiled_name"]: tensor for tensor in outputs}
    for sample, wanted in zip(samples, expected, strict=True):
        feed = [by_input[tensor["name"]] for tensor in runner.inputs]
        answer = runner.run([as_converted(tensor, sample[tensor["name"]]) for tensor in feed])
        for tensor, array in zip((by_output[own["name"]] for own in runner.outputs), answer, strict=True):
            found[tensor["name"]].append((as_source(tensor, array), wanted[tensor["name"]]))
    return [_difference(name, pairs) for name, pairs in found.items()]


def _difference(name: str, pairs: Sequence[tuple[np.ndarray, np.ndarray]]) -> dict[str, object]:
    ours = np.concatenate([np.asarray(mine, np.float64).ravel() for mine, _ in pairs])
    theirs = np.concatenate([np.asarray(reference, np.float64).ravel() for _, reference in pairs])
    error = np.nan_to_num(np.abs(ours - theirs), nan=np.inf)
    error[(ours == theirs) | (np.isnan(ours) & np.isnan(theirs))] = 0.0
    spread = float(np.nanmax(theirs) - np.nanmin(theirs)) if theirs.size else 0.0
    noise, signal = float(np.sum(error**2)), float(np.nansum(theirs**2))
    worst = float(error.max()) if error.size else 0.0
    return {
        "name": name,
        "max_abs_error": worst,
        "range": spread,
        "share_of_range": worst / spread if spread else (0.0 if worst == 0 else float("inf")),
        "sqnr_db": None if noise == 0 or signal == 0 else round(10 * float(np.log10(signal / noise)), 2),
    }


def _worst_share(check: Sequence[Mapping[str, Any]]) -> float:
    return max((float(output["share_of_range"]) for output in check), default=0.0)


def _best_quantized(
    floats: Made, request: Mapping[str, Any], samples: Sequence[Arrays], expected: Sequence[Arrays]
) -> tuple[Made, dict[str, object]]:
    """Return the INT8 model, and what is known of it with its difference from float.

    Every operator is quantized. Where that ruins the answers, as in networks with normalizations and attention, a
    second model keeps all but the heavy operators float, and the better one is taken.
    """
    found: list[tuple[float, Made, dict[str, object]]] = []
    problems: list[ConverterError] = []
    light = tuple(op for op in _operators(floats.path) if op not in HEAVY)
    for name, left_out in (("int8", ()), ("int8-heavy", light)):
        try:
            path, facts = _quantized(floats, request, left_out, Path(request["work"]) / f"{name}.tflite")
            runner = Runner(path)
            inputs, outputs = _with_numbers(floats.inputs, runner.inputs), _with_numbers(floats.outputs, runner.outputs)
            check = _check(runner, inputs, outputs, samples, expected)
        except ConverterError as error:
            problems.append(error)
            continue
        found.append((_worst_db(check), Made(path, inputs, outputs, check), {**facts, "difference": check}))
        if found[-1][0] >= _GOOD_DB:
            break
    if not found:
        raise problems[0]
    # The second one is slower; it has to be worth it.
    best = found[-1] if len(found) > 1 and found[-1][0] > found[0][0] + _WORTH_DB else found[0]
    return best[1], best[2]


def _worst_db(difference: Sequence[Mapping[str, Any]]) -> float:
    return min((output["sqnr_db"] for output in difference if output["sqnr_db"] is not None), default=float("inf"))


def _quantized(
    floats: Made, request: Mapping[str, Any], left_out: Sequence[str], path: Path
) -> tuple[Path, dict[str, object]]:
    """Return an INT8 model; operators that are left out, or that the quantizer fails on, stay float and are named."""
    skipped = list(left_out)
    try:
        made = _quantize_once(floats, request, skipped)
    except (ValueError, RuntimeError) as error:
        # The quantizer gives the fill value of PADV2 too many axes.
        if "PADV2" not in _operators(floats.path) or "PADV2" in skipped:
            raise ConverterError(f"ai-edge-quantizer cannot quantize the model: {_short(error)}") from error
        skipped.append("PADV2")
        made = _quantize_once(floats, request, skipped)
    made.export_model(str(path), overwrite=True)
    return path, {"scheme": "static INT8, weights per channel", "left_float": skipped}


def _quantize_once(floats: Made, request: Mapping[str, Any], left_out: Sequence[str]) -> Any:  # noqa: ANN401 - the quantizer's object
    from ai_edge_litert.interpreter import Interpreter
    from ai_edge_quantizer import qtyping, quantizer, recipe

    work = quantizer.Quantizer(str(floats.path), recipe.static_wi8_ai8())
    known = {operation.value for operation in qtyping.TFLOperationName}
    for name in (*left_out, *(() if request["quantize_io"] else ("INPUT", "OUTPUT"))):
        if name in known:
            work.update_quantization_recipe(".*", qtyping.TFLOperationName(name), algorithm_key="no_quantize")
    signature, keys = next(iter(Interpreter(model_path=str(floats.path)).get_signature_list().items()))
    by_name = {_plain(tensor["compiled_name"]): tensor for tensor in floats.inputs}
    by_key = {key: by_name[_plain(key)] for key in keys["inputs"] if _plain(key) in by_name}
    if len(by_key) != len(floats.inputs):
        by_key = dict(zip(keys["inputs"], floats.inputs, strict=True))
    return work.quantize(work.calibrate({signature: _Calibration(request["calibration"], by_key)}))


class _Calibration:
    """Batches as the converted model takes them; the quantizer goes through them more than once."""

    def __init__(self, folder: str, by_key: Mapping[str, dict[str, Any]]) -> None:
        self._folder = folder
        self._by_key = by_key

    def __iter__(self) -> Iterator[Arrays]:
        for batch in _batches(self._folder):
            yield {key: as_converted(tensor, batch[tensor["name"]]) for key, tensor in self._by_key.items()}


def _operators(path: Path) -> dict[str, int]:
    """Return how often each operator occurs."""
    from ai_edge_litert import schema_py_generated as schema

    names = {code: name for name, code in vars(schema.BuiltinOperator).items() if isinstance(code, int)}
    model = schema.ModelT.InitFromPackedBuf(path.read_bytes(), 0)
    codes = (model.operatorCodes[operator.opcodeIndex] for graph in model.subgraphs for operator in graph.operators)
    numbers = [max(code.builtinCode, code.deprecatedBuiltinCode) for code in codes]
    return Counter(names.get(number, str(number)) for number in numbers)


if __name__ == "__main__":
    # A script has no package; this one's holds the files beside it and nothing that our own would import.
    __package__ = "converter_files"
    sys.modules[__package__] = types.ModuleType(__package__)
    sys.modules[__package__].__path__ = [str(Path(__file__).resolve().parent)]
    sys.exit(main(sys.argv[1]))
