"""The command line: one JSON object on stdout, messages on stderr, another exit code than 0 on failure."""

from __future__ import annotations

import argparse
import sys
from pathlib import Path
from typing import Any, Dict, Optional, Sequence

from embedl_device.program import Program


def main(argv: Optional[Sequence[str]] = None) -> int:
    """Run the command line and return its exit code."""
    return _program().run(argv)


def _program() -> Program:
    description, packages = sys.modules["embedl_onnxruntime"].__doc__, "numpy onnxruntime"
    program = Program("embedl-onnxruntime", description, packages, "the ONNX file", _add_settings, _read_settings)
    module = "embedl_onnxruntime.profile"
    compiling = program.command("compile", module + ":compile_model", "optimize a model for this board")
    compiling.add_argument("--output", type=Path, required=True, help="the optimized model")
    profiling = program.profile(module + ":profile")
    profiling.add_argument("--keep-trace", type=Path, help="where to keep the runtime's own profile file")
    for parser in (profiling, *program.measurements("embedl_onnxruntime")):
        parser.add_argument("--require-provider", help="fail if a node runs on another execution provider")
    program.run_inference(module + ":run_inference")
    work, help_text = "embedl_onnxruntime.costs:kernel_costs", "time the kernels of small models"
    costs = program.command("kernel-costs", work, help_text, models="none")
    costs.add_argument("--models", type=Path, required=True, help="a folder or a .zip file of ONNX files")
    costs.add_argument("--seconds", type=float, default=8.0, help="at most so long, loading included (%(default)s)")
    program.doctor({"onnxruntime": None, "execution_providers": [], "kernels": None}, _ask_runtime)
    return program


def _add_settings(parser: argparse.ArgumentParser) -> None:
    providers = "in order of preference; CPU if none"
    parser.add_argument("--execution-provider", action="append", metavar="NAME", help=providers)
    parser.add_argument("--allow-fallback", action="store_true", help="go on if one of them cannot be used at all")
    saturation = "go on if the file needs exact integer kernels and this processor has none"
    parser.add_argument("--allow-saturation", action="store_true", help=saturation)
    levels, level = ("disable", "basic", "extended", "all"), "what the runtime may do to the graph (%(default)s)"
    parser.add_argument("--optimization-level", choices=levels, default="all", help=level)


def _read_settings(arguments: argparse.Namespace) -> object:
    from embedl_onnxruntime.session import CPU, Settings

    return Settings(
        tuple(arguments.execution_provider or (CPU,)),
        arguments.threads,
        arguments.optimization_level,
        arguments.allow_fallback,
        arguments.allow_saturation,
    )


def _ask_runtime() -> Dict[str, Any]:
    from embedl_onnxruntime.session import kernels, runtime

    ort = runtime()
    providers = ort.get_available_providers()
    return {"onnxruntime": ort.__version__, "execution_providers": providers, "kernels": kernels()}
