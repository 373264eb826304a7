"""trtexec's options, shapes and types: the same request means the same with TensorRT 8, 10 and 11, or it is refused.

The defaults changed with 11 (NVIDIA/TensorRT samples/common/sampleOptions.cpp at v10.16 and v11.1): CUDA graph and spin
wait became the default, data transfers stopped being one, layers are always timed in a run of their own, and no option
lowers the precision any more.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

import numpy as np
from onnx import TensorProto

from embedl_hub.errors import quoted_list
from embedl_hub.models.onnx_file import nodes_of, shape_hint
from embedl_hub.refusal import RefusedError

if TYPE_CHECKING:
    import onnx

    from embedl_hub.core.context import HubContext
    from embedl_hub.models.onnx_file import Tensor
    from embedl_hub.toolchains.tensorrt.config import TensorRTRTXConfig, TrtexecConfig
    from embedl_hub.toolchains.tensorrt.log import Capabilities

# TensorRT 8.4 is the first with --exportLayerInfo and --memPoolSize.
_OLDEST = (8, 4, 0)
_FLOATS = {TensorProto.FLOAT16: "float16", TensorProto.BFLOAT16: "bfloat16"}
_QUANTIZED = {
    TensorProto.INT8: "int8", TensorProto.UINT8: "int8", TensorProto.FLOAT8E4M3FN: "fp8",
    TensorProto.FLOAT8E5M2: "fp8",
}  # fmt: skip
# What TensorRT prints for its types, and what NumPy calls them.
_NUMPY = {
    "fp32": "float32", "fp16": "float16", "int8": "int8", "int32": "int32", "int64": "int64", "bool": "bool",
    "uint8": "uint8",
}  # fmt: skip


@dataclass(frozen=True)
class ShapeProfile:
    """The smallest, best and largest shape of each open input, by name; inputs that are fixed are not in it."""

    smallest: Mapping[str, tuple[int, ...]] = field(default_factory=dict)
    best: Mapping[str, tuple[int, ...]] = field(default_factory=dict)
    largest: Mapping[str, tuple[int, ...]] = field(default_factory=dict)

    def named(self) -> tuple[tuple[str, Mapping[str, tuple[int, ...]]], ...]:
        """Return the three by TensorRT's words for them."""
        return (("min", self.smallest), ("opt", self.best), ("max", self.largest))

    def as_value(self) -> dict[str, dict[str, list[int]]]:
        """Return it for recording."""
        return {name: {tensor: list(shape) for tensor, shape in shapes.items()} for name, shapes in self.named()}

    @classmethod
    def from_value(cls, value: Mapping[str, Mapping[str, Sequence[int]]]) -> ShapeProfile:
        """Return what was recorded."""
        parts = [
            {tensor: tuple(shape) for tensor, shape in value.get(name, {}).items()} for name in ("min", "opt", "max")
        ]
        return cls(*parts)


def shape_profile(inputs: Sequence[Tensor], config: TrtexecConfig | TensorRTRTXConfig) -> ShapeProfile:
    """Return the shapes for a model's open inputs, or say which are missing or impossible."""
    opened = {tensor.name: tensor for tensor in inputs if not tensor.is_fixed}
    fixed = {tensor.name for tensor in inputs} - set(opened)
    given = {name: tuple(shape) for name, shape in config.opt_shapes.items()}
    if stray := set(given) - set(opened):
        kind = "is fixed in the model" if stray <= fixed else "is no input of the model"
        raise RefusedError(
            f"opt_shapes names {quoted_list(stray)}, which {kind}. The inputs are: {'; '.join(map(str, inputs))}."
        )
    for tensor in opened.values():
        if tensor.name not in given:
            example = ", ".join(str(size) if isinstance(size, int) else "1" for size in tensor.shape)
            raise RefusedError(
                f"Input {tensor} has no fixed shape. Compile with {shape_hint(tensor)}, or give a range in the "
                f"device's config: opt_shapes={{{tensor.name!r}: ({example})}}, with min_shapes and max_shapes."
            )
    smallest = {name: tuple(config.min_shapes.get(name, shape)) for name, shape in given.items()}
    largest = {name: tuple(config.max_shapes.get(name, shape)) for name, shape in given.items()}
    for name, tensor in opened.items():
        _check_range(tensor, smallest[name], given[name], largest[name])
    return ShapeProfile(smallest, given, largest)


def _check_range(tensor: Tensor, low: tuple[int, ...], best: tuple[int, ...], high: tuple[int, ...]) -> None:
    for shape in (low, best, high):
        if not tensor.takes(shape):
            raise RefusedError(f"The shape {list(shape)} does not fit the input {tensor}.")
    if not all(a <= b <= c for a, b, c in zip(low, best, high, strict=True)):
        raise RefusedError(
            f"The shapes of {tensor.name!r} must grow: min {list(low)}, opt {list(best)}, max {list(high)}."
        )


def shapes_of(data: Mapping[str, np.ndarray], profile: ShapeProfile) -> dict[str, tuple[int, ...]]:
    """Return the shapes of the data for the open inputs, or say what the engine takes."""
    shapes = {}
    for name in profile.best:
        shape, low, high = tuple(data[name].shape), profile.smallest[name], profile.largest[name]
        if len(shape) != len(low) or not all(a <= b <= c for a, b, c in zip(low, shape, high, strict=True)):
            raise RefusedError(
                f"Input {name!r} has shape {list(shape)}; the engine was built for {list(low)} to {list(high)}. "
                "Split the data, or compile with larger max_shapes."
            )
        shapes[name] = shape
    return shapes


@dataclass(frozen=True)
class ModelTypes:
    """The number formats that a model itself asks for, which decide what the builder must be allowed."""

    floats: frozenset[str] = field(default_factory=frozenset)
    quantized: frozenset[str] = field(default_factory=frozenset)


def check_version(capabilities: Capabilities, title: str) -> None:
    """Refuse a trtexec that cannot say what is asked of it."""
    needed = ("--onnx", "--saveEngine", "--loadEngine", "--exportTimes", "--exportProfile", "--exportLayerInfo")
    missing = [option for option in needed if not capabilities.takes(option)]
    if capabilities.version < _OLDEST or missing:
        lacks = f" and lacks {', '.join(missing)}" if missing else ""
        raise RefusedError(
            f"The trtexec of {title} is of TensorRT {capabilities.version_text}{lacks}; this hub needs 8.4 or newer."
        )


def precision_options(capabilities: Capabilities, precision: str | None, types: ModelTypes) -> tuple[list[str], str]:
    """Return the options for a precision and what they mean in words."""
    if precision is None:
        return _own_types(capabilities, types)
    if precision == "int8" and "int8" not in types.quantized:
        raise RefusedError(
            "precision='int8' needs a model with QuantizeLinear and DequantizeLinear nodes: without them trtexec makes "
            "up ranges at random, and the outputs mean nothing. Quantize the model first."
        )
    if capabilities.is_strongly_typed:
        if precision in types.quantized:
            return [], f"{precision} as the model's own types say; TensorRT {capabilities.version[0]} needs no option"
        raise RefusedError(
            f"precision={precision!r} cannot be asked of TensorRT {capabilities.version_text}: it is strongly typed "
            "and has no option that lowers the precision. Convert the model itself to those types (float16 weights and "
            "activations, or QuantizeLinear nodes) and leave precision out."
        )
    option = f"--{precision}"
    if not capabilities.takes(option):
        raise RefusedError(f"precision={precision!r}: TensorRT {capabilities.version_text} has no {option}.")
    meaning = f"the builder may use {precision} wherever it is faster"
    if precision == "best":
        meaning = "the builder may use any precision"
        if not types.quantized:
            meaning += "; INT8 ranges are made up, so that only the speed means something"
    return [option, *_needed_types(capabilities, types, besides=precision)], meaning


def _own_types(capabilities: Capabilities, types: ModelTypes) -> tuple[list[str], str]:
    if capabilities.is_strongly_typed:
        return [], "the model's own types; this TensorRT has nothing else"
    if capabilities.takes("--stronglyTyped"):
        return ["--stronglyTyped"], "the model's own types (--stronglyTyped)"
    options = _needed_types(capabilities, types)
    return options, f"the model's own types, which the builder may use anywhere ({' '.join(options) or 'float32'})"


def _needed_types(capabilities: Capabilities, types: ModelTypes, besides: str | None = None) -> list[str]:
    """Return the options without which a weakly typed builder refuses the model."""
    names = {"float16": "fp16", "bfloat16": "bf16"}
    needed = {names[kind] for kind in types.floats if kind in names} | set(types.quantized)
    if besides == "best":
        return []
    found = sorted(f"--{name}" for name in needed if name != besides)
    if missing := [option for option in found if not capabilities.takes(option)]:
        raise RefusedError(f"The model needs {', '.join(missing)}; TensorRT {capabilities.version_text} has it not.")
    return found


def build_options(
    capabilities: Capabilities, config: TrtexecConfig, types: ModelTypes, profile: ShapeProfile
) -> tuple[list[str], str]:
    """Return the options that decide what an engine becomes, and the precision in words; paths are not among them."""
    words, meaning = precision_options(capabilities, config.precision, types)
    if not config.tf32:
        words.append("--noTF32")
    if config.workspace_mib is not None:
        words.append(f"--memPoolSize=workspace:{config.workspace_mib}")
    words += [f"--{name}Shapes={shape_words(shapes)}" for name, shapes in profile.named() if shapes]
    words.append("--profilingVerbosity=detailed")
    words.append("--skipInference" if capabilities.takes("--skipInference") else "--buildOnly")
    return [*words, *place_options(config), *config.cli_args], meaning


def place_options(config: TrtexecConfig) -> list[str]:
    """Return the options that choose the GPU."""
    return [f"--device={config.gpu}"] if config.gpu else []


def measure_options(capabilities: Capabilities, config: TrtexecConfig) -> list[str]:
    """Return the options of a measurement, pinned so that every version measures the same."""
    words = [
        f"--iterations={config.iterations}",
        f"--duration={config.min_seconds:g}",
        f"--warmUp={config.warmup_seconds * 1e3:g}",
        *_pinned(capabilities, "--noCudaGraph", on="--useCudaGraph", wanted=config.cuda_graph),
        *_pinned(capabilities, "--noSpinWait", on="--useSpinWait", wanted=config.spin_wait),
    ]
    if capabilities.takes("--includeDataTransfers"):
        words += ["--includeDataTransfers"] if config.data_transfers else []
    elif not config.data_transfers:
        words.append("--noDataTransfers")
    if not capabilities.takes("--noCudaGraph"):
        # Without it, versions before 11 write no times when layers are profiled.
        words.append("--separateProfileRun")
    return words


def _pinned(capabilities: Capabilities, off: str, *, on: str, wanted: bool) -> list[str]:
    """Return what switches a thing on where it is off by default, and off where it is on."""
    if capabilities.takes(off):
        return [] if wanted else [off]
    return [on] if wanted else []


def invoke_options(capabilities: Capabilities) -> list[str]:
    """Return the options of one inference whose outputs are wanted."""
    words = ["--iterations=1", "--duration=0", "--warmUp=0"]
    if capabilities.takes("--includeDataTransfers"):
        # From 11 on copies are left out by default; here they are what matters.
        words.append("--includeDataTransfers")
    if capabilities.takes("--dumpRawBindingsToFile"):
        words.append("--dumpRawBindingsToFile")
    return words


def shape_words(shapes: Mapping[str, Sequence[int]]) -> str:
    """Return shapes as trtexec reads them: ``'image':1x3x224x224``."""
    return ",".join(f"{quoted(name)}:{'x'.join(map(str, shape)) or 'scalar'}" for name, shape in shapes.items())


def quoted(name: str) -> str:
    """Return a tensor's name so that a colon in it does not end it, or refuse one that trtexec cannot be told."""
    if not name or any(letter in name for letter in "',"):
        raise RefusedError(
            f"trtexec cannot be told of a tensor called {name!r}: it splits at commas and quotation marks. "
            "Rename the tensor in the model."
        )
    return f"'{name}'"


def model_types(model: onnx.ModelProto) -> ModelTypes:
    """Return what a model asks for beyond float32."""
    kinds = {value.name: value.data_type for value in model.graph.initializer}
    floats = {_FLOATS[kind] for kind in kinds.values() if kind in _FLOATS}
    floats |= {
        _FLOATS[value.type.tensor_type.elem_type]
        for value in (*model.graph.input, *model.graph.output)
        if value.type.tensor_type.elem_type in _FLOATS
    }
    quantized = set()
    for node in nodes_of(model.graph):
        if node.op_type in {"QuantizeLinear", "DequantizeLinear"}:
            # Without a zero point the quantized type is uint8, which TensorRT takes as int8.
            zero = node.input[2] if len(node.input) > 2 else ""
            quantized.add(_QUANTIZED.get(kinds.get(zero, TensorProto.INT8), "int8"))
    return ModelTypes(frozenset(floats), frozenset(quantized))


def numpy_name(tensorrt_name: str) -> str | None:
    """Return NumPy's name for a type as trtexec prints it; None where NumPy has none."""
    return _NUMPY.get(tensorrt_name)


def engine_dtype(dtype: str, version: tuple[int, int, int]) -> str:
    """Return the type a tensor of the model has in an engine: double is never there, 64-bit integers from 10 on."""
    if dtype == "float64":
        return "float32"
    if dtype == "int64" and version[0] < 10:
        return "int32"
    return dtype


def as_engine_array(array: np.ndarray, dtype: str) -> np.ndarray:
    """Return an array as the engine reads it, or refuse numbers that it cannot hold."""
    if array.dtype.name == dtype:
        return np.ascontiguousarray(array)
    converted = array.astype(dtype)
    if array.dtype.kind in "iu" and not np.array_equal(converted.astype(array.dtype), array):
        raise OverflowError(f"numbers beyond {dtype}, which is all this TensorRT has")
    return np.ascontiguousarray(converted)


def log_precision(ctx: HubContext, engine: Mapping[str, Any]) -> None:
    """Log the number format that every toolchain logs, and what it means here; an old engine may not tell."""
    for name, key in (("precision", "number_format"), ("precision_meaning", "precision")):
        if engine.get(key) is not None:
            ctx.client.log_param(name, engine[key])
