"""A program's command line: one JSON object on stdout, messages on stderr, another exit code than 0 on failure."""

from __future__ import annotations

import argparse
import functools
import importlib
import json
import os
import sys
from pathlib import Path
from typing import TYPE_CHECKING, Any, Callable, Dict, List, NamedTuple, Optional, Sequence, TextIO, Tuple, TypeVar

from embedl_device import __version__, board
from embedl_device.errors import BoardError

if TYPE_CHECKING:
    from embedl_device.arrays import Model
    from embedl_device.loader import Loaded
    from embedl_device.rounds import Plan, Turns

EXIT_FAILED = 1

Answer = Dict[str, Any]
AnyModel = TypeVar("AnyModel", bound="Model")


class Program:
    """A program's commands, each with the runtime's own settings; ``packages`` are installed when an import fails.

    The work of a command is a function, ``package.module:name``, of the arguments and the settings. It is imported when
    it is called: describing the board needs no package but this one.
    """

    def __init__(
        self,
        name: str,
        description: Optional[str],
        packages: str,
        model_help: str,
        add_settings: Callable[[argparse.ArgumentParser], None],
        read_settings: Callable[[argparse.Namespace], object],
    ) -> None:
        self._packages = packages
        self._model_help = model_help
        self._add_settings = add_settings
        self._read_settings = read_settings
        self.parser = argparse.ArgumentParser(prog=name, description=description)
        self.parser.add_argument("--version", action="version", version="{} {}".format(name, __version__))
        self._commands = self.parser.add_subparsers(dest="command", metavar="COMMAND")
        self._commands.required = True

    def command(self, name: str, work: str, help_text: str, *, models: str = "one") -> argparse.ArgumentParser:
        """Add a command that takes ``one`` model, ``several`` or ``none``."""
        parser: argparse.ArgumentParser = self._commands.add_parser(name, help=help_text)
        parser.set_defaults(work=lambda arguments: self._call(work, arguments))
        if models == "one":
            parser.add_argument("--model", type=Path, required=True, help=self._model_help)
        elif models == "several":
            each = self._model_help + ", once for each"
            parser.add_argument("--model", type=Path, required=True, action="append", help=each)
        parser.add_argument("--threads", type=positive, help="threads within an operator")
        self._add_settings(parser)
        return parser

    def _call(self, work: str, arguments: argparse.Namespace) -> object:
        return _imported(work)(arguments, self._read_settings(arguments))

    def profile(self, work: str) -> argparse.ArgumentParser:
        """Add the command that measures a model."""
        parser = self.command("profile", work, "measure latency, memory and layers of a model")
        _add_data(parser)
        _add_plan(parser)
        until = (
            "measure until the samples support the 99 %% bound of this percentile, or by MLPerf's single-stream rules"
        )
        parser.add_argument("--until", choices=("p90", "p95", "p99", "mlperf"), help=until)
        parser.add_argument("--layer-runs", type=int, default=10, help="profiled runs; 0 for no layers (%(default)s)")
        return parser

    def measurements(self, package: str) -> List[argparse.ArgumentParser]:
        """Add the commands that need of the runtime only how it loads a model, and return their parsers.

        The package has ``load(path, settings, arguments, is_alone)`` and ``runtime_facts(settings)`` in its module
        ``profile``, and ``runtime()``, which imports the runtime, in ``session``.
        """
        parsers = []
        for each in _MEASUREMENTS:
            parser = self.command(each.name, "", each.help_text, models=each.models)
            parser.set_defaults(work=functools.partial(self._measure, each.work, package))
            _add_data(parser)
            each.add_options(parser)
            parsers.append(parser)
        return parsers

    def _measure(self, work: str, package: str, arguments: argparse.Namespace) -> object:
        from embedl_device.loader import Loader

        settings, profile = self._read_settings(arguments), importlib.import_module(package + ".profile")
        session = importlib.import_module(package + ".session")

        def load(path: Path, is_alone: bool) -> Loaded:
            loaded: Loaded = profile.load(path, settings, arguments, is_alone=is_alone)
            return loaded

        loader = Loader(self.parser.prog, load, session.runtime, lambda: profile.runtime_facts(settings))
        return _imported(work)(arguments, loader)

    def run_inference(self, work: str) -> None:
        """Add the command that runs a model on data."""
        parser = self.command("run-inference", work, "run a model on data")
        data = "a folder of .npz samples, or of one .npy per input"
        parser.add_argument("--input-dir", type=Path, required=True, help=data)
        parser.add_argument("--output-dir", type=Path, required=True, help="where the outputs go")
        npz = "write one .npz per sample instead of one .npy per output"
        parser.add_argument("--use-npz", action="store_true", help=npz)

    def doctor(self, missing: Answer, ask: Callable[[], Answer]) -> None:
        """Add the command that describes the board; ``missing`` is its answer where there is no runtime to ask."""
        parser = self._commands.add_parser("doctor", help="tell what this board is and has")
        package = self.parser.prog.replace("-", "_")
        parser.set_defaults(work=lambda _: _describe(package, missing, ask))

    def run(self, argv: Optional[Sequence[str]] = None) -> int:
        """Parse, do what the chosen command's ``work`` does, and return the exit code."""
        words = sys.argv[1:] if argv is None else list(argv)
        arguments, name = self.parser.parse_args(words), self.parser.prog
        arguments.program, arguments.words = name, words
        is_child = "--child" in words
        # The result alone goes to stdout, whatever a library prints there meanwhile.
        result_stream = os.fdopen(os.dup(sys.stdout.fileno()), "w")
        arguments.answer = functools.partial(_answer, result_stream)
        os.dup2(sys.stderr.fileno(), sys.stdout.fileno())
        try:
            result = arguments.work(arguments)
        except BoardError as error:
            # A process that another one of ours started tells it: the user hears of it once.
            if is_child:
                arguments.answer({"error": str(error)})
                return EXIT_FAILED
            sys.stderr.write("{}: error: {}\n".format(name, error))
            return EXIT_FAILED
        except ImportError as error:
            sys.stderr.write(
                "{}: error: This Python ({}) lacks a package: {}. Install what is needed with: "
                "{} -m pip install {}\n".format(name, sys.executable, error, sys.executable, self._packages)
            )
            return EXIT_FAILED
        except KeyboardInterrupt:
            sys.stderr.write("{}: stopped.\n".format(name))
            return 130
        with result_stream:
            _answer(result_stream, result)
        return 0


def _answer(stream: TextIO, result: object) -> None:
    json.dump(result, stream)
    stream.write("\n")
    stream.flush()


def say(program: str, message: str) -> None:
    """Tell what is going on."""
    sys.stderr.write("{}: {}\n".format(program, message))
    sys.stderr.flush()


def _describe(package: str, missing: Answer, ask: Callable[[], Answer]) -> Answer:
    state = board.state()
    result = dict({package: __version__, "board": board.describe(), "state": state, "numpy": None}, **missing)
    result["unreadable"] = board.unreadable_in(state)
    try:
        import numpy as np

        result["numpy"] = np.__version__
        result.update(ask())
    except (ImportError, BoardError) as error:
        result["problem"] = str(error)
    return result


def plan_of(arguments: argparse.Namespace) -> Plan:
    """Return how much to measure."""
    from embedl_device.rounds import MAX_SECONDS, MAX_SECONDS_UNTIL, Plan

    until = getattr(arguments, "until", None)
    longest = MAX_SECONDS if until is None else MAX_SECONDS_UNTIL
    max_seconds = longest if arguments.max_seconds is None else arguments.max_seconds
    plan = Plan(arguments.iterations, arguments.min_seconds, max_seconds, arguments.max_warmup_seconds)
    return plan if until is None else plan.measuring_until(until)


def turns_of(arguments: argparse.Namespace) -> Turns:
    """Return how turns are taken."""
    from embedl_device.rounds import Turns

    return Turns(plan_of(arguments), arguments.lead_in, arguments.loads)


def models_of(arguments: argparse.Namespace) -> List[Path]:
    """Return the models to measure in turns."""
    models: List[Path] = arguments.model
    if len(models) < 2:
        raise BoardError("Give two models or more, each with its own --model; one alone has nothing to compare with.")
    return models


def _imported(work: str) -> Callable[..., object]:
    module, _, name = work.partition(":")
    function: Callable[..., object] = getattr(importlib.import_module(module), name)
    return function


class _Measurement(NamedTuple):
    """A command that is the same for every runtime; ``work`` takes the arguments and the `Loader`."""

    name: str
    work: str
    help_text: str
    models: str
    add_options: Callable[[argparse.ArgumentParser], None]


def _add_turns(parser: argparse.ArgumentParser) -> None:
    _add_plan(parser)
    lead_in = "runs right before each timed one, of the same model (%(default)s)"
    parser.add_argument("--lead-in", type=int, default=1, help=lead_in)
    parser.add_argument("--loads", type=positive, default=10, help="load all models anew so often (%(default)s)")


def _add_starts(parser: argparse.ArgumentParser) -> None:
    starts = "so many starts with the files in the page cache, and as many without (%(default)s)"
    parser.add_argument("--starts", type=positive, default=20, help=starts)
    parser.add_argument("--child", action="store_true", help=argparse.SUPPRESS)


def _add_concurrent(parser: argparse.ArgumentParser) -> None:
    rounds = "so many rounds, each of every model alone and of all at once (%(default)s)"
    parser.add_argument("--rounds", type=positive, default=20, help=rounds)
    window = "run so long in each part of a round (%(default)s)"
    parser.add_argument("--window-seconds", type=float, default=0.5, help=window)
    parser.add_argument("--max-seconds", type=float, default=120.0, help="at most so long (%(default)s)")
    idle = "so many further processes that do nothing, to see that those change nothing (%(default)s)"
    parser.add_argument("--idle", type=int, default=0, help=idle)
    parser.add_argument("--child", type=int, help=argparse.SUPPRESS)


def _add_variants(parser: argparse.ArgumentParser) -> None:
    variants = "a JSON list of what to measure: name, words and, for another Python, python"
    parser.add_argument("--variants", type=Path, metavar="FILE", help=variants)
    parser.add_argument("--program-file", type=Path, metavar="FILE", help="this program in one file, for other Pythons")
    parser.add_argument("--sittings", type=positive, default=4, help="load all models so often (%(default)s)")
    restart = "start the processes anew after so many sittings (%(default)s)"
    parser.add_argument("--restart-every", type=positive, default=1, help=restart)
    one = "keep all variants on the same processor, each start on the next; for variants with one thread each"
    parser.add_argument("--one-processor", action="store_true", help=one)
    parser.add_argument("--sitting-seconds", type=float, default=0.2, help="turns for so long, each time (%(default)s)")
    parser.add_argument(
        "--first-sitting", type=int, default=0, help="go on after so many, in other orders (%(default)s)"
    )
    parser.add_argument("--model", type=Path, help=argparse.SUPPRESS)
    parser.add_argument("--child", action="store_true", help=argparse.SUPPRESS)


def _add_load(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("--seconds", type=float, default=300.0, help="how long the load lasts (%(default)s)")
    parser.add_argument("--duty", type=float, default=1.0, help="the busy share of each --duty-period (%(default)s)")
    parser.add_argument(
        "--duty-period", type=float, default=10.0, help="busy and idle time together, in s (%(default)s)"
    )
    parser.add_argument("--rate", type=float, help="inferences a second; as fast as it can when not given")
    idle = "s of rest before and after, for the idle power (%(default)s)"
    parser.add_argument("--idle-seconds", type=float, default=5.0, help=idle)
    parser.add_argument("--period", type=float, default=0.5, help="s between two readings of the board (%(default)s)")
    parser.add_argument("--max-warmup-seconds", type=float, default=5.0, help="end of the warm-up (%(default)s)")
    steady = "end as soon as latency and temperature have stopped to change, after a minute at least"
    parser.add_argument("--until-steady", action="store_true", help=steady)
    parser.add_argument("--max-temperature", type=float, help="end when a sensor of the board says so many °C")
    power = "add up this source of power; chosen by itself when not given"
    parser.add_argument("--power-source", action="append", default=[], metavar="NAME", help=power)
    parser.add_argument("--folder", type=Path, help="write the journal and the progress there as it goes")
    parser.add_argument("--detach", action="store_true", help="go on alone; print the process and return at once")
    parser.add_argument("--lease-dir", help="keep the board by this folder's lock once whoever started it is gone")


_MEASUREMENTS = (
    _Measurement(
        "pair", "embedl_device.document:measured_in_turns", "measure two or more models in turns", "several", _add_turns
    ),
    _Measurement(
        "cold-start", "embedl_device.cold_start:cold_starts", "measure what a fresh process takes to answer", "one",
        _add_starts,
    ),
    _Measurement(
        "concurrent", "embedl_device.concurrent:run_concurrently", "measure models alone and at once", "several",
        _add_concurrent,
    ),
    _Measurement(
        "variants", "embedl_device.variants:run_variants", "measure models, settings or runtimes in turns", "none",
        _add_variants,
    ),
    _Measurement(
        "sustain", "embedl_device.sustained:sustained", "measure a model under load for minutes to hours", "one",
        _add_load,
    ),
)  # fmt: skip


def _add_data(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("--input-dir", type=Path, help="data to run on (.npz or .npy); made up when not given")
    parser.add_argument(
        "--shape", type=shape, action="append", default=[], metavar="NAME=1,3,224,224", help="shape of an open input"
    )


def _add_plan(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("--iterations", type=positive, default=100, help="at least so many samples (%(default)s)")
    parser.add_argument("--min-seconds", type=float, default=1.0, help="at least so long (%(default)s)")
    parser.add_argument("--max-seconds", type=float, help="at most so long (30; 600 with --until)")
    parser.add_argument("--max-warmup-seconds", type=float, default=5.0, help="end of the warm-up (%(default)s)")


def run_on_samples(arguments: argparse.Namespace, load: Callable[[], AnyModel]) -> Tuple[AnyModel, Answer]:
    """Run a model on the samples of the input folder, write its outputs, and return it with what was written."""
    from embedl_device.arrays import infer, load_samples, save_npy, save_npz

    samples = load_samples(arguments.input_dir)
    if len(samples) > 1 and not arguments.use_npz:
        raise BoardError("{} samples need one .npz each; use --use-npz.".format(len(samples)))
    model = load()
    written: List[str] = []
    shapes: Answer = {}
    for name, feed in samples:
        outputs = infer(model, feed)
        if arguments.use_npz:
            save_npz(arguments.output_dir / (name + ".npz"), outputs)
            written.append(name + ".npz")
        else:
            save_npy(arguments.output_dir, outputs)
            written.extend(output + ".npy" for output in outputs)
        shapes = {key: {"dtype": array.dtype.name, "shape": list(array.shape)} for key, array in outputs.items()}
    return model, {"files": written, "outputs": shapes}


def shape(text: str) -> Tuple[str, Tuple[int, ...]]:
    """Read ``NAME=1,3,224,224``."""
    name, _, sizes = text.rpartition("=")
    try:
        numbers = tuple(int(size) for size in sizes.split(",")) if sizes else ()
    except ValueError:
        numbers = ()
    if not name or not numbers or min(numbers) < 0:
        raise argparse.ArgumentTypeError("expected NAME=1,3,224,224, not {!r}".format(text))
    return name, numbers


def positive(text: str) -> int:
    """Read a number of at least 1."""
    number = int(text)
    if number < 1:
        raise argparse.ArgumentTypeError("must be at least 1, not {}".format(number))
    return number
