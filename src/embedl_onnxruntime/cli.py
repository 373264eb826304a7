"""The command line: one JSON object on stdout, messages on stderr, another exit code than 0 on failure."""

from __future__ import annotations

import argparse
import sys
from pathlib import Path
from typing import Any, Dict, Optional, Sequence

from embedl_device import __version__, board, program
from embedl_device.errors import BoardError


def main(argv: Optional[Sequence[str]] = None) -> int:
    """Run the command line and return its exit code."""
    return program.run(_parser(), "numpy onnxruntime", argv)


def _compile(arguments: argparse.Namespace) -> Dict[str, Any]:
    from embedl_onnxruntime.session import Model, kernels, runtime

    output = arguments.output
    output.parent.mkdir(parents=True, exist_ok=True)
    part = output.with_name(output.name + ".part")
    try:
        model = Model(arguments.model, _settings(arguments), optimized_path=part)
        inputs, outputs = model.inputs, model.outputs
        part.replace(output)
    finally:
        if part.exists():
            part.unlink()
    return {
        "output": str(output),
        "size_bytes": output.stat().st_size,
        "inputs": [tensor._asdict() for tensor in inputs],
        "outputs": [tensor._asdict() for tensor in outputs],
        "placement": model.placement(),
        "runtime_version": runtime().__version__,
        "board": board.describe(),
        "kernels": kernels(),
        "warnings": model.warnings,
    }


def _profile(arguments: argparse.Namespace) -> Dict[str, Any]:
    from embedl_onnxruntime.profile import Request, profile

    return profile(
        Request(
            arguments.model,
            _settings(arguments),
            program.plan_of(arguments),
            arguments.shape,
            arguments.input_dir,
            arguments.layer_runs,
            arguments.require_provider,
            arguments.keep_trace,
        )
    )


def _pair(arguments: argparse.Namespace) -> Dict[str, Any]:
    from embedl_onnxruntime.pair import Request, pair

    return pair(
        Request(
            program.models_of(arguments),
            _settings(arguments),
            program.turns_of(arguments),
            arguments.shape,
            arguments.input_dir,
            arguments.require_provider,
        )
    )


def _kernel_costs(arguments: argparse.Namespace) -> Dict[str, Any]:
    from embedl_onnxruntime.costs import kernel_costs

    return kernel_costs(arguments.models, _settings(arguments), arguments.seconds)


def _run_inference(arguments: argparse.Namespace) -> Dict[str, Any]:
    from embedl_onnxruntime.session import Model, kernels, runtime

    samples = program.check_data(arguments)
    model = Model(arguments.model, _settings(arguments))
    answer = program.answer_samples(arguments, model, samples)
    return dict(
        answer,
        providers=model.providers,
        runtime_version=runtime().__version__,
        kernels=kernels(),
        warnings=model.warnings,
    )


def _doctor(_: argparse.Namespace) -> Dict[str, Any]:
    result: Dict[str, Any] = {
        "embedl_onnxruntime": __version__,
        "board": board.describe(),
        "state": board.state(),
        "numpy": None,
        "onnxruntime": None,
        "execution_providers": [],
        "kernels": None,
    }
    result["unreadable"] = board.unreadable_in(result["state"])
    try:
        import numpy as np

        result["numpy"] = np.__version__
        from embedl_onnxruntime.session import kernels, runtime

        ort = runtime()
        result["onnxruntime"] = ort.__version__
        result["execution_providers"] = ort.get_available_providers()
        result["kernels"] = kernels()
    except (ImportError, BoardError) as error:
        result["problem"] = str(error)
    return result


def _settings(arguments: argparse.Namespace) -> Any:
    from embedl_onnxruntime.session import CPU, Settings

    providers = tuple(arguments.execution_provider or (CPU,))
    return Settings(
        providers,
        arguments.threads,
        arguments.optimization_level,
        arguments.allow_fallback,
        arguments.allow_saturation,
    )


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(prog="embedl-onnxruntime", description=sys.modules["embedl_onnxruntime"].__doc__)
    parser.add_argument("--version", action="version", version="embedl-onnxruntime {}".format(__version__))
    commands = parser.add_subparsers(dest="command", metavar="COMMAND")
    commands.required = True

    compile_ = _command(commands, "compile", _compile, "optimise a model for this board")
    compile_.add_argument("--output", type=Path, required=True, help="the optimised model")

    profile = _command(commands, "profile", _profile, "measure latency, memory and layers of a model")
    program.add_plan(profile)
    profile.add_argument("--require-provider", help="fail if a node runs on another execution provider")
    profile.add_argument("--keep-trace", type=Path, help="where to keep the runtime's own profile file")

    pair = _command(commands, "pair", _pair, "measure two or more models in turns", several=True)
    program.add_turns(pair)
    pair.add_argument("--require-provider", help="fail if a node runs on another execution provider")

    infer = _command(commands, "run-inference", _run_inference, "run a model on data")
    program.add_data(infer)

    costs = _command(commands, "kernel-costs", _kernel_costs, "time the kernels of small models", with_model=False)
    costs.add_argument("--models", type=Path, required=True, help="a folder or a .zip file of ONNX files")
    costs.add_argument("--seconds", type=float, default=8.0, help="at most so long, loading included (%(default)s)")

    doctor = commands.add_parser("doctor", help="tell what this board is and has")
    doctor.set_defaults(work=_doctor)
    return parser


def _command(
    commands: Any, name: str, work: Any, help_text: str, *, several: bool = False, with_model: bool = True
) -> argparse.ArgumentParser:
    parser: argparse.ArgumentParser = commands.add_parser(name, help=help_text)
    parser.set_defaults(work=work)
    if with_model:
        program.add_model(parser, "the ONNX file", several=several)
    parser.add_argument(
        "--execution-provider", action="append", metavar="NAME", help="in order of preference; CPU if none"
    )
    parser.add_argument("--allow-fallback", action="store_true", help="go on if one of them cannot be used at all")
    parser.add_argument(
        "--allow-saturation",
        action="store_true",
        help="go on if the file needs exact integer kernels and this processor has none",
    )
    parser.add_argument("--threads", type=program.positive, help="threads within an operator")
    parser.add_argument(
        "--optimization-level",
        choices=("disable", "basic", "extended", "all"),
        default="all",
        help="what the runtime may do to the graph (%(default)s)",
    )
    return parser
