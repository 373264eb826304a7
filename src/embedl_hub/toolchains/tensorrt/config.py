"""Settings of the TensorRT providers, and the checks of what this machine needs."""

from __future__ import annotations

import importlib.metadata
import shutil
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from embedl_hub.core.device import NO_RUNNER, CheckResult, DeviceKind, ProviderConfig
from embedl_hub.errors import ConfigError, quoted_list

if TYPE_CHECKING:
    from embedl_hub.core.device import Device

RTX_PACKAGE = "tensorrt-rtx"
TRTEXEC = "trtexec"
TENSORRT_RTX = "tensorrt_rtx"
PRECISIONS = ("fp16", "bf16", "int8", "fp8", "best")
# What TensorRT-RTX 1.7 builds for; the first of a generation runs on all of it.
COMPUTE_CAPABILITIES = ("SM75", "SM80", "SM86", "SM89", "SM120", "SM121")

# Options of trtexec that the hub sets itself, by the setting that decides them.
_OWNED = {
    "--onnx": "the model given to run", "--loadEngine": "the model given to run", "--saveEngine": "the artifact folder",
    "--exportTimes": "the profiler", "--exportProfile": "the profiler", "--exportLayerInfo": "the compiler",
    "--exportOutput": "the invoker", "--loadInputs": "the invoker", "--dumpRawBindingsToFile": "the invoker",
    "--profilingVerbosity": "nothing: it is always detailed", "--skipInference": "the compiler",
    "--buildOnly": "the compiler", "--timingCacheFile": "nothing: it is kept per device",
    "--minShapes": "min_shapes", "--optShapes": "opt_shapes", "--maxShapes": "max_shapes", "--shapes": "opt_shapes",
    "--device": "gpu", "--memPoolSize": "workspace_mib", "--workspace": "workspace_mib", "--noTF32": "tf32",
    "--fp16": "precision", "--bf16": "precision", "--int8": "precision", "--fp8": "precision", "--best": "precision",
    "--stronglyTyped": "precision", "--useCudaGraph": "cuda_graph", "--noCudaGraph": "cuda_graph",
    "--useSpinWait": "spin_wait", "--noSpinWait": "spin_wait", "--noDataTransfers": "data_transfers",
    "--includeDataTransfers": "data_transfers", "--separateProfileRun": "nothing: it is always separate",
    "--iterations": "iterations", "--duration": "min_seconds", "--warmUp": "warmup_seconds",
}  # fmt: skip


def check_trtexec() -> list[CheckResult]:
    """Tell whether this machine has trtexec; boards are asked by ``embedl-hub device test``."""
    path = shutil.which("trtexec")
    if path is None:
        message = "not on this machine's PATH; boards have their own"
        advice = "apt-get install libnvinfer-bin (NVIDIA's packages)"
        return [CheckResult("trtexec", is_ok=None, message=message, advice=advice)]
    return [CheckResult("trtexec", is_ok=True, message=path)]


def rtx_version() -> str | None:
    """Return the version of the builder, if it is here; it is not imported."""
    try:
        return importlib.metadata.version(RTX_PACKAGE)
    except importlib.metadata.PackageNotFoundError:
        return None


def check_tensorrt_rtx() -> list[CheckResult]:
    """Tell whether the builder is here; it is not imported."""
    if (version := rtx_version()) is None:
        advice = "pip install 'edgeproof-hub[tensorrt-rtx]'"
        return [CheckResult("tensorrt-rtx", is_ok=None, message="not installed", advice=advice)]
    message = f"{version}: compiles; profile and invoke need trtexec"
    return [CheckResult("tensorrt-rtx", is_ok=True, message=message)]


@dataclass(frozen=True)
class _ShapesConfig(ProviderConfig):
    """Shapes that an engine must take: all equal makes it fixed, which is fastest."""

    # The smallest shape of each open input, by its name; as ``opt_shapes`` when not given
    min_shapes: Mapping[str, Sequence[int]] = field(default_factory=dict, kw_only=True)
    opt_shapes: Mapping[str, Sequence[int]] = field(default_factory=dict, kw_only=True)  # the shape to be fastest at
    # The largest shape; as ``opt_shapes`` when not given
    max_shapes: Mapping[str, Sequence[int]] = field(default_factory=dict, kw_only=True)
    # Scratch memory that the builder may plan with; TensorRT's own limit when not given
    workspace_mib: int | None = field(default=None, kw_only=True)

    def __post_init__(self) -> None:
        for name in ("min_shapes", "opt_shapes", "max_shapes"):
            _check_shapes(name, getattr(self, name))
        for name in ("min_shapes", "max_shapes"):
            if stray := set(getattr(self, name)) - set(self.opt_shapes):
                raise ConfigError(f"{name} names {quoted_list(stray)}, opt_shapes does not; give both.")
        _check_least("workspace_mib", self.workspace_mib, 1)


@dataclass(frozen=True)
class TrtexecConfig(_ShapesConfig):
    """TensorRT through ``trtexec``, on a board or on this machine.

    The same settings mean the same with TensorRT 8, 10 and 11, whose defaults differ.
    """

    trtexec_path: str = "trtexec"  # the program; where NVIDIA's packages put it is looked at too
    cli_args: tuple[str, ...] = ()  # further arguments for each of its calls, as ``--builderOptimizationLevel=4``
    # ``fp16``, ``bf16``, ``int8``, ``fp8`` or ``best`` lets the builder lower it; not given, the model's own types
    # hold. TensorRT 11 knows the model's own types only.
    precision: str | None = field(default=None, kw_only=True)
    # Whether float32 products may be rounded to TF32, as TensorRT does by itself
    tf32: bool = field(default=True, kw_only=True)
    gpu: int = field(default=0, kw_only=True)  # which GPU, by its number
    iterations: int = field(default=100, kw_only=True)  # A profile takes at least so many samples,
    min_seconds: float = field(default=3.0, kw_only=True)  # and measures at least so long,
    warmup_seconds: float = field(default=0.5, kw_only=True)  # after warming up so long
    cuda_graph: bool = field(default=True, kw_only=True)  # whether the runs are launched as one CUDA graph
    spin_wait: bool = field(default=True, kw_only=True)  # whether the processor waits actively
    # Whether copies to and from the GPU count into the latency
    data_transfers: bool = field(default=False, kw_only=True)
    layers: bool = field(default=True, kw_only=True)  # whether layers are timed too, in a run of their own
    # Whether an engine built before for the same model, options, version and GPU is taken again
    use_cache: bool = field(default=True, kw_only=True)
    # Trtexec is stopped after this long; None takes the runner's own limit
    timeout_s: float | None = field(default=None, kw_only=True)

    def __post_init__(self) -> None:
        super().__post_init__()
        _check_cli_args(self.cli_args)
        if self.precision is not None and self.precision not in PRECISIONS:
            raise ConfigError(
                f"precision is one of {', '.join(PRECISIONS)}, or not given for the model's own types; "
                f"not {self.precision!r}."
            )
        for name, least in (("gpu", 0), ("iterations", 1), ("min_seconds", 0), ("warmup_seconds", 0)):
            _check_least(name, getattr(self, name), least)


@dataclass(frozen=True)
class TensorRTRTXConfig(_ShapesConfig):
    """TensorRT-RTX: engines for a generation of GPUs, built on this machine without one."""

    # What the engine shall run on: ``SM75`` (Turing), ``SM80`` and ``SM86`` (Ampere), ``SM89`` (Ada), ``SM120`` and
    # ``SM121`` (Blackwell). There is no SM90: the vendor builds none for Hopper.
    compute_capabilities: tuple[str, ...] = ("SM86",)
    timeout_s: float | None = field(default=None, kw_only=True)  # the builder is stopped after this long

    def __post_init__(self) -> None:
        super().__post_init__()
        # One name alone is text, whose letters are no names either.
        wanted = self.compute_capabilities
        if not wanted or set(wanted) - set(COMPUTE_CAPABILITIES):
            hint = " TensorRT-RTX builds nothing for Hopper (SM90); use trtexec there." if "SM90" in wanted else ""
            raise ConfigError(
                f"compute_capabilities is a tuple of {', '.join(COMPUTE_CAPABILITIES)}, not {wanted!r}.{hint}"
            )


def _check_shapes(name: str, shapes: object) -> None:
    if not isinstance(shapes, Mapping):
        raise ConfigError(f"{name} is a mapping of input names to shapes, not {shapes!r:.100}.")
    for tensor, shape in shapes.items():
        if isinstance(shape, str) or not all(isinstance(size, int) and size >= 1 for size in shape):
            raise ConfigError(f"{name} of {tensor!r} must be sizes of at least 1, as (1, 3, 224, 224), not {shape!r}.")


def _check_cli_args(words: object) -> None:
    if isinstance(words, str) or not all(isinstance(word, str) for word in words):  # type: ignore[attr-defined]
        raise ConfigError(f"cli_args is a tuple of strings, not {words!r}.")
    for word in words:  # type: ignore[attr-defined]
        name = word.partition("=")[0]
        if not word.startswith("-"):
            raise ConfigError(f"cli_args holds {word!r}; trtexec takes its values as --option=value.")
        if name in _OWNED:
            raise ConfigError(f"cli_args holds {word!r}, which is decided by {_OWNED[name]}.")


def _check_least(name: str, value: object, least: int) -> None:
    if value is not None and (not isinstance(value, int | float) or value < least):
        raise ConfigError(f"{name} must be at least {least}, not {value!r}.")


def _trtexec_checks(device: Device) -> Mapping[str, Sequence[str]]:
    config = device.provider_config
    path = config.trtexec_path if isinstance(config, TrtexecConfig) else "trtexec"
    return {"trtexec": [path, "--help"]}


TRTEXEC_KIND = DeviceKind(
    TRTEXEC,
    "A board or this machine with TensorRT's trtexec.",
    TrtexecConfig,
    checks=_trtexec_checks,
    doctor=check_trtexec,
)
TENSORRT_RTX_KIND = DeviceKind(
    TENSORRT_RTX,
    "A generation of GPUs that TensorRT-RTX builds engines for, on this machine.",
    TensorRTRTXConfig,
    reached_by=(NO_RUNNER,),
    doctor=check_tensorrt_rtx,
)
