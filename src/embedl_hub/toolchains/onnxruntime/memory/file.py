"""Predict the memory of an ONNX file, for ``embedl-hub memory``; the runtime of this machine optimizes it first."""

from __future__ import annotations

import importlib.util
import subprocess
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING

from embedl_device.interpreter import python_argv
from embedl_hub.core.document import MemoryProfile
from embedl_hub.machine.machine import scratch_folder
from embedl_hub.models.onnx_file import model_file, read_graph
from embedl_hub.toolchains.onnxruntime.config import ONNXRuntimeConfig
from embedl_hub.toolchains.onnxruntime.memory.predict import METHOD, predict_memory

if TYPE_CHECKING:
    import onnx

    from embedl_hub.core.device import ProviderConfig
    from embedl_hub.machine.machine import Machine
    from embedl_hub.toolchains.onnxruntime.memory.shapes import Shapes

_CPU = ("CPUExecutionProvider",)
_SECONDS = 300


def plan_file(path: Path, config: ProviderConfig | None = None) -> MemoryProfile:
    """Predict what a file takes in ONNX Runtime on a CPU."""
    settings = config if isinstance(config, ONNXRuntimeConfig) else ONNXRuntimeConfig()
    if settings.execution_providers not in ((), _CPU):
        names = ", ".join(settings.execution_providers)
        return MemoryProfile(METHOD, problem=f"predictions are for the CPU, and this device has {names}")
    file = model_file(path) if path.is_dir() else path
    with scratch_folder() as scratch:
        optimized = _optimized(file, scratch / "optimized.onnx", settings)
        predicted = predict_memory(read_graph(optimized or file), settings.threads)
    if optimized is not None or predicted.total_bytes is None:
        return predicted
    note = "the file as it is, because ONNX Runtime is not installed here to optimize it"
    return replace(predicted, method=f"{predicted.method}; {note}")


def predicted_memory(
    machine: Machine[ONNXRuntimeConfig], compiled: onnx.ModelProto, shapes: Shapes, unoptimized: Path | None = None
) -> MemoryProfile:
    """Predict what a model takes on a machine; one that came as a file is optimized first, as the runtime will."""
    if machine.config.execution_providers[:1] not in ((), ("CPUExecutionProvider",)):
        names = ", ".join(machine.config.execution_providers)
        return MemoryProfile(METHOD, problem=f"predictions are for the CPU, and the model runs on {names}")
    with scratch_folder() as scratch:
        file = None
        if unoptimized is not None:
            source = model_file(unoptimized) if unoptimized.is_dir() else unoptimized
            file = _optimized(source, scratch / "optimized.onnx", machine.config)
        graph = compiled if file is None else read_graph(file)
        return predict_memory(graph, machine.config.threads, shapes)


def _optimized(path: Path, output: Path, settings: ONNXRuntimeConfig) -> Path | None:
    """Let the runtime of this machine optimize a model, in a process of its own; None where it cannot."""
    if importlib.util.find_spec("onnxruntime") is None or importlib.util.find_spec("embedl_onnxruntime") is None:
        return None
    argv = [*python_argv(module="embedl_onnxruntime"), "compile", "--model", str(path), "--output", str(output)]
    argv += ["--allow-saturation", "--optimization-level", settings.optimization_level]
    done = subprocess.run(argv, capture_output=True, check=False, timeout=_SECONDS)
    return output if done.returncode == 0 and output.is_file() else None
