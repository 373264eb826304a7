"""A program's command line: one JSON object on stdout, messages on stderr, another exit code than 0 on failure."""

from __future__ import annotations

import argparse
import json
import os
import sys
from pathlib import Path
from typing import TYPE_CHECKING, Any, Dict, List, Optional, Sequence, Tuple

from embedl_device.errors import BoardError
from embedl_device.measure import Plan
from embedl_device.rounds import Turns

if TYPE_CHECKING:
    from embedl_device.infer import Model

EXIT_FAILED = 1


def run(parser: argparse.ArgumentParser, packages: str, argv: Optional[Sequence[str]] = None) -> int:
    """Parse, do what the chosen command's ``work`` does, and return the exit code.

    Args:
        parser: Of the whole command line; its ``prog`` starts every message.
        packages: What to install when an import fails.
        argv: The words, without the program's name.
    """
    arguments = parser.parse_args(argv)
    # The result alone goes to stdout, whatever a library prints there meanwhile.
    result_stream = os.fdopen(os.dup(sys.stdout.fileno()), "w")
    os.dup2(sys.stderr.fileno(), sys.stdout.fileno())
    try:
        result = arguments.work(arguments)
    except BoardError as error:
        sys.stderr.write("{}: error: {}\n".format(parser.prog, error))
        return EXIT_FAILED
    except ImportError as error:
        sys.stderr.write(
            "{}: error: This Python ({}) lacks a package: {}. Install what is needed with: "
            "{} -m pip install {}\n".format(parser.prog, sys.executable, error, sys.executable, packages)
        )
        return EXIT_FAILED
    except KeyboardInterrupt:
        sys.stderr.write("{}: stopped.\n".format(parser.prog))
        return 130
    with result_stream:
        json.dump(result, result_stream)
        result_stream.write("\n")
    return 0


def say(program: str, message: str) -> None:
    """Tell what is going on."""
    sys.stderr.write("{}: {}\n".format(program, message))
    sys.stderr.flush()


def add_plan(parser: argparse.ArgumentParser) -> None:
    """Add what every profile command takes."""
    add_measuring(parser)
    parser.add_argument("--layer-runs", type=int, default=10, help="profiled runs; 0 for no layers (%(default)s)")


def add_turns(parser: argparse.ArgumentParser) -> None:
    """Add what every pair command takes; its ``--model`` is given once for each model."""
    add_measuring(parser)
    parser.add_argument(
        "--lead-in", type=int, default=1, help="runs right before each timed one, of the same model (%(default)s)"
    )
    parser.add_argument("--loads", type=positive, default=10, help="load all models anew so often (%(default)s)")


def turns_of(arguments: argparse.Namespace) -> Turns:
    """Return how turns are taken."""
    return Turns(plan_of(arguments), arguments.lead_in, arguments.loads)


def add_model(parser: argparse.ArgumentParser, help_text: str, *, several: bool) -> None:
    """Add the model, or the models."""
    if several:
        parser.add_argument("--model", type=Path, required=True, action="append", help=help_text + ", once for each")
    else:
        parser.add_argument("--model", type=Path, required=True, help=help_text)


def models_of(arguments: argparse.Namespace) -> List[Path]:
    """Return the models to measure in turns."""
    models: List[Path] = arguments.model
    if len(models) < 2:
        raise BoardError(
            "Give two models or more, each with its own --model; one alone has nothing to be held against."
        )
    return models


def add_measuring(parser: argparse.ArgumentParser) -> None:
    """Add how much to measure, and on what."""
    parser.add_argument("--input-dir", type=Path, help="data to run on (.npz or .npy); made up when not given")
    parser.add_argument("--shape", type=shape, action="append", default=[], metavar="NAME=1,3,224,224")
    parser.add_argument("--iterations", type=positive, default=100, help="at least so many samples (%(default)s)")
    parser.add_argument("--min-seconds", type=float, default=1.0, help="at least so long (%(default)s)")
    parser.add_argument("--max-seconds", type=float, default=30.0, help="at most so long (%(default)s)")
    parser.add_argument("--max-warmup-seconds", type=float, default=5.0, help="end of the warm-up (%(default)s)")


def plan_of(arguments: argparse.Namespace) -> Plan:
    """Return how much to measure."""
    return Plan(arguments.iterations, arguments.min_seconds, arguments.max_seconds, arguments.max_warmup_seconds)


def add_data(parser: argparse.ArgumentParser) -> None:
    """Add what every run-inference command takes."""
    parser.add_argument(
        "--input-dir", type=Path, required=True, help="a folder of .npz samples, or of one .npy per input"
    )
    parser.add_argument("--output-dir", type=Path, required=True, help="where the outputs go")
    parser.add_argument(
        "--use-npz", action="store_true", help="write one .npz per sample instead of one .npy per output"
    )


def check_data(arguments: argparse.Namespace) -> List[Tuple[str, Dict[str, Any]]]:
    """Return the samples of the input folder, before anything is loaded."""
    from embedl_device.arrays import load_samples

    samples = load_samples(arguments.input_dir)
    if len(samples) > 1 and not arguments.use_npz:
        raise BoardError("{} samples need one .npz each; use --use-npz.".format(len(samples)))
    return samples


def answer_samples(
    arguments: argparse.Namespace, model: Model, samples: Sequence[Tuple[str, Dict[str, Any]]]
) -> Dict[str, Any]:
    """Run a model on samples, write its outputs and return what was written."""
    from embedl_device.arrays import save_npy, save_npz
    from embedl_device.infer import infer

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
    return {"files": written, "outputs": shapes}


def shape(text: str) -> Tuple[str, Tuple[int, ...]]:
    """Read ``NAME=1,3,224,224``."""
    name, _, sizes = text.rpartition("=")
    try:
        found = tuple(int(size) for size in sizes.split(",")) if sizes else ()
    except ValueError:
        found = ()
    if not name or not found or min(found) < 0:
        raise argparse.ArgumentTypeError("expected NAME=1,3,224,224, not {!r}".format(text))
    return name, found


def positive(text: str) -> int:
    """Read a number of at least 1."""
    number = int(text)
    if number < 1:
        raise argparse.ArgumentTypeError("must be at least 1, not {}".format(number))
    return number
