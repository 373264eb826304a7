"""Engines by TensorRT-RTX, in a process of its own: its memory, its messages and its crashes stay there.

``python -m embedl_hub.tensorrt.rtx REQUEST.json`` prints one JSON object. No GPU is needed to build; the engine is for
the generations it was asked for, and becomes kernels on the machine that loads it.
"""

from __future__ import annotations

import importlib.metadata
import importlib.util
import sys
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from embedl_hub.toolchain.own_process import answer, ask
from embedl_hub.toolchain.refusal import RefusedError

if TYPE_CHECKING:
    from collections.abc import Mapping

    from embedl_hub.errors import CommandError

PACKAGE = "tensorrt-rtx"
_MODULE = "tensorrt_rtx"
_KILLED = 137


@dataclass(frozen=True)
class Request:
    """What to build and for what; paths are text, for the journey as JSON."""

    model: str
    output: str
    compute_capabilities: list[str]
    shapes: Mapping[str, Mapping[str, list[int]]]
    workspace_mib: int | None


def is_installed() -> bool:
    """Tell whether the builder is here, without waking it."""
    return importlib.util.find_spec(_MODULE) is not None


def version() -> str:
    """Return the builder's version."""
    return importlib.metadata.version(PACKAGE)


def build(request: Request, scratch: Path, timeout_s: float | None) -> dict[str, Any]:
    """Build in a process of its own and return what it tells about the engine."""
    return ask(__name__, asdict(request), scratch / "rtx.json", _ending, timeout_s)


def _ending(error: CommandError) -> str:
    if error.timeout_s is not None:
        return (
            f"TensorRT-RTX was stopped after {error.timeout_s:g} s; give TensorRTRTXConfig(timeout_s=...) more. "
            "Nothing was kept but the model."
        )
    if error.exit_code == _KILLED:
        return "The memory of this machine ran out while TensorRT-RTX was building; close what else runs here."
    return f"TensorRT-RTX failed: {error}"


def _build_here(request: Request) -> dict[str, Any]:
    import tensorrt_rtx as trt  # noqa: PLC0415 - only this process needs it

    said = _Messages(trt)
    logger = said.logger
    builder = trt.Builder(logger)
    network = builder.create_network(1 << int(trt.NetworkDefinitionCreationFlag.STRONGLY_TYPED))
    parser = trt.OnnxParser(network, logger)
    if not parser.parse_from_file(request.model):
        raise RefusedError(f"TensorRT-RTX cannot read the model: {_parse_errors(parser) or said.last()}")
    config = builder.create_builder_config()
    config.profiling_verbosity = trt.ProfilingVerbosity.DETAILED
    config.num_compute_capabilities = len(request.compute_capabilities)
    for index, name in enumerate(request.compute_capabilities):
        config.set_compute_capability(getattr(trt.ComputeCapability, name), index)
    if request.workspace_mib is not None:
        config.set_memory_pool_limit(trt.MemoryPoolType.WORKSPACE, request.workspace_mib << 20)
    if request.shapes.get("opt"):
        profile = builder.create_optimization_profile()
        for name in request.shapes["opt"]:
            profile.set_shape(name, *(tuple(request.shapes[key][name]) for key in ("min", "opt", "max")))
        config.add_optimization_profile(profile)
    engine = builder.build_serialized_network(network, config)
    if engine is None:
        wanted = ", ".join(request.compute_capabilities)
        raise RefusedError(f"TensorRT-RTX builds no engine of this model for {wanted}: {said.last()}")
    size = Path(request.output).write_bytes(engine)
    return {
        "version": trt.__version__,
        "size_bytes": size,
        "layers": network.num_layers,
        "warnings": said.warnings[:50],
    }


class _Messages:
    """Collects what the library says."""

    def __init__(self, trt: Any) -> None:  # noqa: ANN401 - the vendor's module has no types
        self.errors: list[str] = []
        self.warnings: list[str] = []
        messages = self

        class Logger(trt.ILogger):  # type: ignore[misc]
            def __init__(self) -> None:
                trt.ILogger.__init__(self)

            def log(self, severity: Any, text: str) -> None:  # noqa: ANN401 - the vendor's
                if severity <= trt.ILogger.ERROR:
                    messages.errors.append(text)
                elif severity == trt.ILogger.WARNING and text not in messages.warnings:
                    messages.warnings.append(text)

        self.logger = Logger()

    def last(self) -> str:
        """Return the errors in one line, the last ones if there are many."""
        return "; ".join(" ".join(text.split()) for text in self.errors[-3:])[:800] or "it does not say why"


def _parse_errors(parser: Any) -> str:  # noqa: ANN401 - the vendor's
    words = []
    for index in range(min(parser.num_errors, 3)):
        error = parser.get_error(index)
        words.append(f"node {error.node_name() or error.node()!r} ({error.node_operator()}): {error.desc()}")
    return " ".join("; ".join(words).split())[:800]


def main() -> int:
    """Build as the file on the command line asks."""
    return answer("TensorRT-RTX", lambda request, _: _build_here(Request(**request)))


if __name__ == "__main__":
    sys.exit(main())
