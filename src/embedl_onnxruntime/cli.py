"""The command line: one JSON object on stdout, messages on stderr, another exit code than 0 on failure."""

from __future__ import annotations

import argparse
import json
import os
import sys
from pathlib import Path
from typing import Any, Dict, List, Optional, Sequence, Tuple

from embedl_onnxruntime import __version__, board
from embedl_onnxruntime.errors import BoardError

EXIT_FAILED = 1


def main(argv: Optional[Sequence[str]] = None) -> int:
    """Run the command line and return its exit code."""
    arguments = _parser().parse_args(argv)
    # The result alone goes to stdout, whatever a library prints there meanwhile.
    result_stream = os.fdopen(os.dup(sys.stdout.fileno()), "w")
    os.dup2(sys.stderr.fileno(), sys.stdout.fileno())
    try:
        result = arguments.work(arguments)
    except BoardError as error:
        sys.stderr.write("embedl-onnxruntime: error: {}\n".format(error))
        return EXIT_FAILED
    except ImportError as error:
        sys.stderr.write(
            "embedl-onnxruntime: error: This Python ({}) lacks a package: {}. Install what is needed with: "
            "{} -m pip install numpy onnxruntime\n".format(sys.executable, error, sys.executable)
        )
        return EXIT_FAILED
    except KeyboardInterrupt:
        sys.stderr.write("embedl-onnxruntime: stopped.\n")
        return 130
    with result_stream:
        json.dump(result, result_stream)
        result_stream.write("\n")
    return 0


def _compile(arguments: argparse.Namespace) -> Dict[str, Any]:
    from embedl_onnxruntime.session import Model, runtime

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
    }


def _profile(arguments: argparse.Namespace) -> Dict[str, Any]:
    from embedl_onnxruntime.measure import Plan
    from embedl_onnxruntime.profile import Request, profile

    plan = Plan(arguments.iterations, arguments.min_seconds, arguments.max_seconds, arguments.max_warmup_seconds)
    return profile(
        Request(
            arguments.model,
            _settings(arguments),
            plan,
            arguments.shape,
            arguments.input_dir,
            arguments.layer_runs,
            arguments.require_provider,
            arguments.keep_trace,
        )
    )


def _run_inference(arguments: argparse.Namespace) -> Dict[str, Any]:
    from embedl_onnxruntime.arrays import load_samples, save_npy, save_npz
    from embedl_onnxruntime.infer import infer
    from embedl_onnxruntime.session import Model, runtime

    samples = load_samples(arguments.input_dir)
    if len(samples) > 1 and not arguments.use_npz:
        raise BoardError("{} samples need one .npz each; use --use-npz.".format(len(samples)))
    model = Model(arguments.model, _settings(arguments))
    arguments.output_dir.mkdir(parents=True, exist_ok=True)
    written: List[str] = []
    shapes: Dict[str, Any] = {}
    for name, feed in samples:
        outputs = infer(model, feed)
        if arguments.use_npz:
            save_npz(arguments.output_dir / (name + ".npz"), outputs)
            written.append(name + ".npz")
        else:
            save_npy(arguments.output_dir, outputs)
            written.extend(output + ".npy" for output in outputs)
        shapes = {key: {"dtype": array.dtype.name, "shape": list(array.shape)} for key, array in outputs.items()}
    return {"files": written, "outputs": shapes, "providers": model.providers, "runtime_version": runtime().__version__}


def _doctor(_: argparse.Namespace) -> Dict[str, Any]:
    result: Dict[str, Any] = {
        "embedl_onnxruntime": __version__,
        "board": board.describe(),
        "state": board.state(),
        "numpy": None,
        "onnxruntime": None,
        "execution_providers": [],
    }
    result["unreadable"] = board.unreadable_in(result["state"])
    try:
        import numpy as np

        result["numpy"] = np.__version__
        from embedl_onnxruntime.session import runtime

        ort = runtime()
        result["onnxruntime"] = ort.__version__
        result["execution_providers"] = ort.get_available_providers()
    except (ImportError, BoardError) as error:
        result["problem"] = str(error)
    return result


def _settings(arguments: argparse.Namespace) -> Any:
    from embedl_onnxruntime.session import CPU, Settings

    providers = tuple(arguments.execution_provider or (CPU,))
    return Settings(providers, arguments.threads, arguments.optimization_level, arguments.allow_fallback)


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(prog="embedl-onnxruntime", description=sys.modules["embedl_onnxruntime"].__doc__)
    parser.add_argument("--version", action="version", version="embedl-onnxruntime {}".format(__version__))
    commands = parser.add_subparsers(dest="command", metavar="COMMAND")
    commands.required = True

    compile_ = _command(commands, "compile", _compile, "optimise a model for this board")
    compile_.add_argument("--output", type=Path, required=True, help="the optimised model")

    profile = _command(commands, "profile", _profile, "measure latency, memory and layers of a model")
    profile.add_argument("--input-dir", type=Path, help="data to run on (.npz or .npy); made up when not given")
    profile.add_argument("--shape", type=_shape, action="append", default=[], metavar="NAME=1,3,224,224")
    profile.add_argument("--iterations", type=_positive, default=100, help="at least so many samples (%(default)s)")
    profile.add_argument("--min-seconds", type=float, default=1.0, help="at least so long (%(default)s)")
    profile.add_argument("--max-seconds", type=float, default=30.0, help="at most so long (%(default)s)")
    profile.add_argument("--max-warmup-seconds", type=float, default=5.0, help="end of the warm-up (%(default)s)")
    profile.add_argument("--layer-runs", type=int, default=10, help="profiled runs; 0 for no layers (%(default)s)")
    profile.add_argument("--require-provider", help="fail if a node runs on another execution provider")
    profile.add_argument("--keep-trace", type=Path, help="where to keep the runtime's own profile file")

    infer = _command(commands, "run-inference", _run_inference, "run a model on data")
    infer.add_argument(
        "--input-dir", type=Path, required=True, help="a folder of .npz samples, or of one .npy per input"
    )
    infer.add_argument("--output-dir", type=Path, required=True, help="where the outputs go")
    infer.add_argument(
        "--use-npz", action="store_true", help="write one .npz per sample instead of one .npy per output"
    )

    doctor = commands.add_parser("doctor", help="tell what this board is and has")
    doctor.set_defaults(work=_doctor)
    return parser


def _command(commands: Any, name: str, work: Any, help_text: str) -> argparse.ArgumentParser:
    parser: argparse.ArgumentParser = commands.add_parser(name, help=help_text)
    parser.set_defaults(work=work)
    parser.add_argument("--model", type=Path, required=True, help="the ONNX file")
    parser.add_argument(
        "--execution-provider", action="append", metavar="NAME", help="in order of preference; CPU if none"
    )
    parser.add_argument("--allow-fallback", action="store_true", help="go on if one of them cannot be used at all")
    parser.add_argument("--threads", type=_positive, help="threads within an operator")
    parser.add_argument("--optimization-level", choices=("disable", "basic", "extended", "all"), default="all")
    return parser


def _shape(text: str) -> Tuple[str, Tuple[int, ...]]:
    name, _, sizes = text.rpartition("=")
    try:
        shape = tuple(int(size) for size in sizes.split(",")) if sizes else ()
    except ValueError:
        shape = ()
    if not name or not shape or min(shape) < 0:
        raise argparse.ArgumentTypeError("expected NAME=1,3,224,224, not {!r}".format(text))
    return name, shape


def _positive(text: str) -> int:
    number = int(text)
    if number < 1:
        raise argparse.ArgumentTypeError("must be at least 1, not {}".format(number))
    return number
