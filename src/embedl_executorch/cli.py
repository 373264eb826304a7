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
    description, packages = sys.modules["embedl_executorch"].__doc__, "numpy executorch"
    program = Program("embedl-executorch", description, packages, "the model", _add_settings, _read_settings)
    program.profile("embedl_executorch.profile:profile")
    program.measurements("embedl_executorch")
    program.run_inference("embedl_executorch.profile:run_inference")
    compile_ = program.command("compile", "embedl_executorch.compiler.lower:compile_file", "make a .pte of a model")
    compile_.add_argument("--output", type=Path, required=True, help="where the .pte goes")
    compile_.add_argument("--backend", default="xnnpack", help="what takes the operators it can (%(default)s)")
    program.doctor({"executorch": None, "torch": None, "backends": []}, _ask_runtime)
    return program


def _add_settings(_: argparse.ArgumentParser) -> None:
    """Threads are all that the runtime can be told."""


def _read_settings(arguments: argparse.Namespace) -> object:
    from embedl_executorch.session import Settings

    return Settings(arguments.threads)


def _ask_runtime() -> Dict[str, Any]:
    from embedl_executorch.session import backends, runtime_version, torch_version

    return {"backends": backends(), "executorch": runtime_version(), "torch": torch_version()}
