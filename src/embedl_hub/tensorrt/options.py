"""trtexec's options: the same wish means the same with TensorRT 8, 10 and 11, or it is refused.

The defaults changed with 11 (NVIDIA/TensorRT samples/common/sampleOptions.cpp at v10.16 and v11.1): CUDA graph and spin
wait became the default, data transfers stopped being one, layers are always timed in a run of their own, and no option
lowers the precision any more.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from embedl_hub.toolchain.refusal import RefusedError

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from embedl_hub.core.device import TrtexecConfig
    from embedl_hub.tensorrt.log import Capabilities
    from embedl_hub.tensorrt.shapes import ShapeProfile

# TensorRT 8.4 is the first with --exportLayerInfo and --memPoolSize.
_OLDEST = (8, 4, 0)


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
            "up ranges at random, and the outputs mean nothing. Quantise the model first."
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
    pairs = []
    for name, shape in shapes.items():
        check_name(name)
        pairs.append(f"{quoted(name)}:{'x'.join(map(str, shape)) or 'scalar'}")
    return ",".join(pairs)


def quoted(name: str) -> str:
    """Return a tensor's name so that a colon in it does not end it."""
    return f"'{name}'"


def check_name(name: str) -> None:
    """Refuse a tensor's name that trtexec cannot be told."""
    if not name or any(letter in name for letter in "',"):
        raise RefusedError(
            f"trtexec cannot be told of a tensor called {name!r}: it splits at commas and quotation marks. "
            "Rename the tensor in the model."
        )
