"""The command line: one JSON object on stdout, messages on stderr, another exit code than 0 on failure."""

from __future__ import annotations

import argparse
import sys
from typing import Any, Dict, Optional, Sequence

from embedl_device.program import Program


def main(argv: Optional[Sequence[str]] = None) -> int:
    """Run the command line and return its exit code."""
    return _program().run(argv)


def _program() -> Program:
    description, packages = sys.modules["embedl_litert"].__doc__, "numpy ai-edge-litert"
    program = Program("embedl-litert", description, packages, "the TFLite file", _add_settings, _read_settings)
    program.profile("embedl_litert.profile:profile")
    program.measurements("embedl_litert")
    program.run_inference("embedl_litert.profile:run_inference")
    program.doctor({"litert": None, "layers": None}, _ask_runtime)
    return program


def _add_settings(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("--no-xnnpack", action="store_true", help="run the runtime's own kernels")


def _read_settings(arguments: argparse.Namespace) -> object:
    from embedl_litert.session import Settings

    return Settings(arguments.threads, not arguments.no_xnnpack)


def _ask_runtime() -> Dict[str, Any]:
    from embedl_litert.profiler import KNOWN_VERSIONS
    from embedl_litert.session import runtime, runtime_version

    runtime()
    return {"litert": runtime_version(), "layers": runtime_version() in KNOWN_VERSIONS}
