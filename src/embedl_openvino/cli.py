"""The command line: one JSON object on stdout, messages on stderr, another exit code than 0 on failure."""

from __future__ import annotations

import argparse
import sys
from pathlib import Path
from typing import Any, Dict, Optional, Sequence

from embedl_device.program import Program, shape


def main(argv: Optional[Sequence[str]] = None) -> int:
    """Run the command line and return its exit code."""
    return _program().run(argv)


def _program() -> Program:
    description, packages = sys.modules["embedl_openvino"].__doc__, "numpy openvino"
    help_text = "the .xml file with its .bin beside it, or an ONNX file"
    program = Program("embedl-openvino", description, packages, help_text, _add_settings, _read_settings)
    module = "embedl_openvino.profile"
    compiling = program.command("compile", module + ":compile_model", "convert a model and load it on this board")
    compiling.add_argument("--output", type=Path, required=True, help="the .xml file to write; its .bin goes beside it")
    compiling.add_argument("--shape", type=shape, action="append", default=[], metavar="NAME=1,3,224,224",
                           help="fix the shape of an input")  # fmt: skip
    for parser in (program.profile(module + ":profile"), *program.measurements("embedl_openvino")):
        parser.add_argument("--require-provider", metavar="DEVICE", help="fail if a layer runs on another device")
    program.run_inference(module + ":run_inference")
    program.doctor({"openvino": None, "devices": []}, _ask_runtime)
    return program


def _add_settings(parser: argparse.ArgumentParser) -> None:
    device = "a device as OpenVINO names it: CPU, GPU, GPU.1, NPU, AUTO, HETERO:GPU,CPU (%(default)s)"
    parser.add_argument("--device", default="CPU", help=device)
    precision = "what floats are computed in; f32 where the device can when not given"
    parser.add_argument("--precision", choices=("f32", "f16", "bf16"), help=precision)
    parser.add_argument("--cache-dir", type=Path, help="keep there what the device compiled, for the next load")
    limit = "drop the oldest of it beyond so many bytes (%(default)s)"
    parser.add_argument("--cache-cap-bytes", type=int, default=4 << 30, help=limit)


def _read_settings(arguments: argparse.Namespace) -> object:
    from embedl_openvino.session import Settings

    return Settings(
        arguments.device, arguments.threads, arguments.precision, arguments.cache_dir, arguments.cache_cap_bytes
    )


def _ask_runtime() -> Dict[str, Any]:
    from embedl_openvino.session import devices, runtime_version

    return {"openvino": runtime_version(), "devices": devices()}
