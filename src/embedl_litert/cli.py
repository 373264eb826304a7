"""The command line: one JSON object on stdout, messages on stderr, another exit code than 0 on failure."""

from __future__ import annotations

import argparse
import sys
from typing import Any, Dict, Optional, Sequence

from embedl_device import __version__, board, program
from embedl_device.errors import BoardError


def main(argv: Optional[Sequence[str]] = None) -> int:
    """Run the command line and return its exit code."""
    return program.run(_parser(), "numpy ai-edge-litert", argv)


def _profile(arguments: argparse.Namespace) -> Dict[str, Any]:
    from embedl_litert.profile import Request, profile

    return profile(
        Request(
            arguments.model,
            _settings(arguments),
            program.plan_of(arguments),
            arguments.shape,
            arguments.input_dir,
            arguments.layer_runs,
        )
    )


def _pair(arguments: argparse.Namespace) -> Dict[str, Any]:
    from embedl_litert.pair import Request, pair

    return pair(
        Request(
            program.models_of(arguments),
            _settings(arguments),
            program.turns_of(arguments),
            arguments.shape,
            arguments.input_dir,
        )
    )


def _run_inference(arguments: argparse.Namespace) -> Dict[str, Any]:
    from embedl_litert.session import Model, runtime_version

    samples = program.check_data(arguments)
    model = Model(arguments.model, _settings(arguments))
    return dict(program.answer_samples(arguments, model, samples), runtime_version=runtime_version())


def _doctor(_: argparse.Namespace) -> Dict[str, Any]:
    result: Dict[str, Any] = {
        "embedl_litert": __version__,
        "board": board.describe(),
        "state": board.state(),
        "numpy": None,
        "litert": None,
        "layers": None,
    }
    result["unreadable"] = board.unreadable_in(result["state"])
    try:
        import numpy as np

        result["numpy"] = np.__version__
        from embedl_litert.profiler import KNOWN_VERSIONS
        from embedl_litert.session import runtime, runtime_version

        runtime()
        result["litert"] = runtime_version()
        result["layers"] = runtime_version() in KNOWN_VERSIONS
    except (ImportError, BoardError) as error:
        result["problem"] = str(error)
    return result


def _settings(arguments: argparse.Namespace) -> Any:
    from embedl_litert.session import Settings

    return Settings(arguments.threads, not arguments.no_xnnpack)


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(prog="embedl-litert", description=sys.modules["embedl_litert"].__doc__)
    parser.add_argument("--version", action="version", version="embedl-litert {}".format(__version__))
    commands = parser.add_subparsers(dest="command", metavar="COMMAND")
    commands.required = True
    profile = _command(commands, "profile", _profile, "measure latency, memory and layers of a model")
    program.add_plan(profile)
    program.add_turns(_command(commands, "pair", _pair, "measure two or more models in turns", several=True))
    program.add_data(_command(commands, "run-inference", _run_inference, "run a model on data"))
    doctor = commands.add_parser("doctor", help="tell what this board is and has")
    doctor.set_defaults(work=_doctor)
    return parser


def _command(commands: Any, name: str, work: Any, help_text: str, *, several: bool = False) -> argparse.ArgumentParser:
    parser: argparse.ArgumentParser = commands.add_parser(name, help=help_text)
    parser.set_defaults(work=work)
    program.add_model(parser, "the TFLite file", several=several)
    parser.add_argument("--threads", type=program.positive, help="threads within an operator")
    parser.add_argument("--no-xnnpack", action="store_true", help="run the runtime's own kernels")
    return parser
