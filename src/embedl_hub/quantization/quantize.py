"""INT8 by onnxruntime.quantization, in a process of its own: its memory, its messages and its crashes stay there.

``python -m embedl_hub.quantization.quantize REQUEST.json`` prints one JSON object.
"""

from __future__ import annotations

import itertools
import sys
from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from embedl_hub.core.invoke import compare_outputs
from embedl_hub.machine.worker import call_worker, serve
from embedl_hub.models import onnx_file
from embedl_hub.models.calibration import open_calibration
from embedl_hub.refusal import RefusedError
from embedl_kernels import EXACT, family_of, probe

if TYPE_CHECKING:
    import onnx

    from embedl_hub.models.calibration import CalibrationSet, Sample

METHODS = ("minmax", "entropy", "percentile")
# Per-channel scales and the kernels that fuse them need this opset.
_LOWEST_OPSET = 13
_GOOD_OPSET = 17
_LOWEST_IR = 8
_DRIFT_BATCHES = 4
_LARGE_BYTES = 1_900_000_000
# What the CPU kernels fuse. Around anything else, quantize and dequantize are pure cost.
_OP_TYPES = (
    "Conv", "MatMul", "Gemm", "Add", "Mul", "Concat", "Split", "AveragePool", "GlobalAveragePool", "MaxPool", "Relu",
    "Clip", "LeakyRelu", "Sigmoid", "Flatten", "Reshape", "Transpose", "Squeeze", "Unsqueeze", "Slice", "Pad", "Resize",
    "Gather",
)  # fmt: skip


@dataclass(frozen=True)
class NumberFormat:
    """The integers a target runs fast; portable: no pair of weights can saturate, else it needs exact kernels."""

    activations: str
    weights: str = "int8"
    portable: bool = False

    @property
    def kernels(self) -> str:
        """For which processors the file is right, in words."""
        if self.activations == "int8":
            return "ARM"
        return "every x86 processor (portable)" if self.portable else "x86 with exact u8 x s8 kernels (VNNI or AMX)"


def refuse_quantized(model: Path) -> None:
    """Refuse a file that is in integers already: quantizing it again would lose accuracy without a word."""
    if (layer := onnx_file.quantized_layer(onnx_file.read_graph(model))) is not None:
        raise RefusedError(
            f"The model is quantized already (it has {layer}); quantization starts from the float model. Give that "
            "one, or compile without calibration_data (--calibration-data) to run this file as it is."
        )


def number_format(architecture: str, cpu_features: tuple[str, ...], u8s8: str | None = None) -> NumberFormat:
    """Return what a processor runs fast: unsigned activations on x86, signed ones on ARM.

    ``u8s8`` is what the runtime's kernels answered there; None when they were not asked.
    """
    family = family_of(architecture, cpu_features)
    if family is not None and family.signed:
        return NumberFormat("int8")
    if family is not None:
        # That it has no AVX2 at all is not believed of a list that may just be empty.
        by_features = EXACT if family.any_of and not family.saturates else None
        return NumberFormat("uint8", portable=(u8s8 or by_features) != EXACT)
    raise RefusedError(
        f"It is not known which INT8 format {architecture!r} runs fast; known are x86_64 and aarch64. "
        "Compile without calibration_data, or name the nearest in DeviceSpec(architecture=...)."
    )


@dataclass(frozen=True, kw_only=True)
class Integers:
    """Which integers a model is to be made of; each output channel of a weight may have its own scale."""

    activations: str = "uint8"
    weights: str = "int8"
    per_channel: bool = False
    quantize_io: bool = False
    op_types: Sequence[str] = ()  # what becomes integers; what ONNX Runtime's CPU kernels fuse when empty


@dataclass(frozen=True)
class Request(Integers):
    """What to quantize and how; paths are text, as JSON needs it."""

    model: str
    output: str
    calibration: str
    method: str
    portable: bool


def quantize(request: Request, scratch: Path) -> dict[str, Any]:
    """Quantize in a process of its own and return what it tells about the result."""
    return call_worker(__name__, request, scratch, "Quantization failed")


class _Reader:
    """One batch at a time in the shape that the calibrators read."""

    def __init__(self, batch: Sample) -> None:
        self._batch: Sample | None = batch

    def get_next(self) -> Sample | None:
        batch, self._batch = self._batch, None
        return batch


def _quantize_here(request: Request, folder: Path) -> dict[str, Any]:
    import onnxruntime.quantization as ort_quantization  # noqa: PLC0415 - only this process needs it
    from onnxruntime.quantization import CalibrationMethod  # noqa: PLC0415

    folder.mkdir()
    model = flat_biases(float_model(Path(request.model), folder))
    inputs = onnx_file.inputs_of(onnx_file.read_graph(Path(request.model)))
    samples = open_calibration(Path(request.calibration), inputs)
    op_types = list(request.op_types) or quantized_ops(quantize_io=request.quantize_io)
    kind = {"minmax": "MinMax", "entropy": "Entropy", "percentile": "Percentile"}[request.method]
    calibrator = ort_quantization.create_calibrator(
        model, op_types, str(folder / "augmented.onnx"), CalibrationMethod[kind],
        use_external_data_format=model.stat().st_size > _LARGE_BYTES,
    )  # fmt: skip
    used = 0
    for batch in samples.batches():
        # Batch by batch: the histogram methods keep every activation of what they are given in one call.
        calibrator.collect_data(_Reader(batch))
        used += samples.batch
    result = quantized(_inferred(model), request, op_types, calibrator.compute_data())
    remedies = _fit_kernels(result, request, model, samples, folder)
    io = integer_io(result) if request.quantize_io else {}
    _stamp_as_before(result, onnx_file.read_graph(Path(request.model)))
    written = onnx_file.write_model(result, Path(request.output))
    # Kernels of this machine may saturate where the target's do not.
    drift = [] if request.quantize_io else _drift(model, written, samples, fused=request.portable or _is_exact_here())
    return {
        "output": str(written),
        "samples": used,
        "samples_left_out": samples.count - used,
        "io": io,
        "ops": Counter(node.op_type for node in result.graph.node),
        "drift": drift,
        "remedies": remedies,
    }


def _fit_kernels(
    result: onnx.ModelProto, request: Request, plain: Path, samples: CalibrationSet, folder: Path
) -> list[dict[str, Any]]:
    """Give weights of all 8 bits the form of the target, in place, and return what each layer got."""
    import onnx  # noqa: PLC0415 - only this process needs it

    from embedl_hub.quantization.portable import make_portable, narrow, require_exact, saturating_layers  # noqa: PLC0415 - needs onnx

    if request.activations == "int8":
        narrow(result)
        return []
    if not request.portable:
        require_exact(result)
        return []

    def runs(watched: onnx.ModelProto) -> Callable[[Mapping[str, np.ndarray]], dict[str, np.ndarray]]:
        session = open_session(onnx_file.write_model(watched, folder / "watched.onnx"), "DISABLE_ALL")
        names = [value.name for value in session.get_outputs()]
        return lambda feed: dict(zip(names, session.run(names, dict(feed)), strict=True))

    remedies = make_portable(result, onnx.load(plain), samples.batches(), runs)
    if left := saturating_layers(result):
        raise RefusedError(
            f"Layer {left[0]!r} cannot be given weights that are computed alike on every processor, so its INT8 form "
            "would be wrong on this one. Compile without calibration_data."
        )
    return remedies


def _is_exact_here() -> bool:
    import onnxruntime  # noqa: PLC0415 - only this process needs it

    found = probe(lambda model: onnxruntime.InferenceSession(model, providers=["CPUExecutionProvider"]))
    return found.u8s8 == EXACT


def quantized_ops(*, quantize_io: bool) -> list[str]:
    """Return the operators that become integers."""
    return [*_OP_TYPES, "Softmax"] if quantize_io else list(_OP_TYPES)


def quantized(model: onnx.ModelProto, form: Integers, op_types: list[str], ranges: Any) -> onnx.ModelProto:  # noqa: ANN401 - the quantizer's own
    """Return a model with the ranges put in; the one that is given is used up."""
    from onnxruntime.quantization import QDQQuantizer, QuantType  # noqa: PLC0415 - only this process needs it

    types = {"uint8": QuantType.QUInt8, "int8": QuantType.QInt8}
    quantizer = QDQQuantizer(
        model, form.per_channel, False, types[form.weights], types[form.activations], ranges, [], [],
        op_types, {},
    )  # fmt: skip
    quantizer.quantize_model()
    result: onnx.ModelProto = quantizer.model.model
    return result


def _stamp_as_before(result: onnx.ModelProto, source: onnx.ModelProto) -> None:
    """Take back the versions this machine's runtime stamped on what it folded; an older one on a board refuses them."""
    used = {node.domain for node in onnx_file.nodes_of(result.graph)}
    kept = [entry for entry in result.opset_import if entry.domain in used or entry.domain in ("", "ai.onnx")]
    onnx_file.replace_items(result.opset_import, kept)
    result.ir_version = min(result.ir_version, max(source.ir_version, _LOWEST_IR))


def _drift(plain: Path, quantized: Path, samples: CalibrationSet, *, fused: bool) -> list[dict[str, Any]]:
    """Return how far INT8 is from float on the first of the very data it was made from: the least one can expect."""
    answers: list[dict[str, list[np.ndarray]]] = []
    batches = list(itertools.islice(samples.batches(), _DRIFT_BATCHES))
    for path in (plain, quantized):
        # Not fused, what is between QuantizeLinear and DequantizeLinear is computed in float.
        session = open_session(path, "ENABLE_ALL" if fused else "DISABLE_ALL")
        names = [value.name for value in session.get_outputs()]
        rows = [session.run(None, batch) for batch in batches]
        answers.append({name: [row[at] for row in rows] for at, name in enumerate(names)})
    numbers = [name for name, parts in answers[0].items() if parts[0].dtype.kind in "fiub" and parts[0].ndim]
    if not numbers:
        return []
    ours, theirs = ({name: np.concatenate(answer[name]) for name in numbers} for answer in reversed(answers))
    return [asdict(output) for output in compare_outputs(ours, theirs).outputs]


def open_session(path: Path, level: str, entries: Mapping[str, str] | None = None, **options: object) -> Any:  # noqa: ANN401 - the runtime's object
    """Open a model on the CPU, with options of the session; with the level ``DISABLE_ALL`` nothing is fused."""
    import onnxruntime  # noqa: PLC0415 - only this process needs it

    wanted = onnxruntime.SessionOptions()
    wanted.log_severity_level = 3
    wanted.graph_optimization_level = getattr(onnxruntime.GraphOptimizationLevel, f"ORT_{level}")
    for name, value in options.items():
        setattr(wanted, name, value)
    for name, value in (entries or {}).items():
        wanted.add_session_config_entry(name, value)
    try:
        return onnxruntime.InferenceSession(str(onnx_file.model_file(path)), wanted, providers=["CPUExecutionProvider"])
    except Exception as error:  # the runtime raises a class of its own per cause
        text = " ".join(str(error).split())[:500]
        raise RefusedError(f"ONNX Runtime {onnxruntime.__version__} cannot load the model: {text}") from error


def float_model(path: Path, folder: Path) -> Path:
    """Return the model with norms folded and constants computed, as quantization wants it."""
    from onnx import version_converter  # noqa: PLC0415 - only this process needs it

    model = onnx_file.read_model(path)
    opset = next((entry.version for entry in model.opset_import if entry.domain in ("", "ai.onnx")), 0)
    if opset < _LOWEST_OPSET:
        try:
            model = version_converter.convert_version(model, _GOOD_OPSET)
        except Exception as error:  # the converter raises whatever it meets
            raise RefusedError(
                f"INT8 needs opset {_LOWEST_OPSET} or newer; the model has {opset} and cannot be converted: {error}. "
                "Export it anew with a newer opset."
            ) from error
    current = onnx_file.write_model(model, folder / "current.onnx")
    folded = folder / "folded.onnx"
    open_session(current, "ENABLE_BASIC", optimized_model_filepath=str(folded))
    return folded


def flat_biases(path: Path) -> Path:
    """Give Gemm a bias of one axis where it has a row: the same sum, and the quantizer takes no other."""
    import onnx  # noqa: PLC0415

    model = onnx.load(path)
    readers: dict[str, set[tuple[str, int]]] = {}
    for node in model.graph.node:
        for index, name in enumerate(node.input):
            readers.setdefault(name, set()).add((node.op_type, index))
    rows = [
        value
        for value in model.graph.initializer
        if len(value.dims) == 2 and value.dims[0] == 1 and readers.get(value.name) == {("Gemm", 2)}
    ]
    for value in rows:
        value.dims[:] = value.dims[1:]
        for declared in (*model.graph.input, *model.graph.value_info):
            if declared.name == value.name:
                del declared.type.tensor_type.shape.dim[0]
    if rows:
        onnx.save(model, path)
    return path


def _inferred(path: Path) -> onnx.ModelProto:
    """Return a model with the types of all tensors; the quantizer asks for them."""
    import onnx  # noqa: PLC0415

    model = onnx.load(path)
    try:
        inferred = onnx.shape_inference.infer_shapes(model, data_prop=True)
    except (onnx.shape_inference.InferenceError, ValueError):
        return model
    return inferred


def integer_io(model: onnx.ModelProto) -> dict[str, Any]:
    """Make the float inputs and outputs integers in place and return how to convert from and to them."""
    io: dict[str, Any] = {"inputs": {}, "outputs": {}}
    for kind, name, boundary in [*_boundaries(model)]:
        graph = model.graph
        if kind == "inputs":
            old, tensor = boundary.output[0], boundary.input[0]
            readers = [node for node in graph.node if tensor in node.input and node is not boundary]
            if readers:
                raise RefusedError(f"quantize_io: input {name!r} is also read as float by {readers[0].op_type}.")
            for node in graph.node:
                node.input[:] = [tensor if word == old else word for word in node.input]
        else:
            old, tensor = boundary.input[0], boundary.output[0]
            for node in graph.node:
                node.output[:] = [tensor if word == old else word for word in node.output]
                if node is not boundary:
                    node.input[:] = [tensor if word == old else word for word in node.input]
        io[kind][name] = _scale_of(model, boundary)
        value = next(value for value in (*graph.input, *graph.output) if value.name == name)
        value.type.tensor_type.elem_type = {"uint8": 2, "int8": 3}[io[kind][name]["dtype"]]
        graph.node.remove(boundary)
    return io


def _boundaries(model: onnx.ModelProto) -> Iterator[tuple[str, str, onnx.NodeProto]]:
    floats = {1, 10, 11}
    for value in inputs_values(model):
        if value.type.tensor_type.elem_type in floats:
            found = [
                node for node in model.graph.node if node.op_type == "QuantizeLinear" and node.input[0] == value.name
            ]
            if len(found) != 1:
                raise RefusedError(f"quantize_io: input {value.name!r} feeds nothing that is quantized.")
            yield "inputs", value.name, found[0]
    for value in model.graph.output:
        if value.type.tensor_type.elem_type in floats:
            maker = next((node for node in model.graph.node if value.name in node.output), None)
            if maker is None or maker.op_type != "DequantizeLinear":
                kind = maker.op_type if maker is not None else "no node"
                raise RefusedError(
                    f"quantize_io: output {value.name!r} comes from {kind}, which is not quantized; "
                    "compile with quantize_io=False."
                )
            if any(value.name in node.input for node in model.graph.node):
                raise RefusedError(f"quantize_io: output {value.name!r} is also used inside the model as float.")
            yield "outputs", value.name, maker


def inputs_values(model: onnx.ModelProto) -> list[onnx.ValueInfoProto]:
    """Return the inputs without a value of their own."""
    given = {value.name for value in model.graph.initializer}
    return [value for value in model.graph.input if value.name not in given]


def _scale_of(model: onnx.ModelProto, node: onnx.NodeProto) -> dict[str, Any]:
    from onnx import numpy_helper  # noqa: PLC0415

    values = {value.name: value for value in model.graph.initializer}
    scale = numpy_helper.to_array(values[node.input[1]])
    zero = numpy_helper.to_array(values[node.input[2]])
    return {"scale": float(scale.reshape(-1)[0]), "zero_point": int(zero.reshape(-1)[0]), "dtype": zero.dtype.name}


if __name__ == "__main__":
    sys.exit(serve("onnxruntime.quantization", _quantize_here, Request))
