"""What kernels cost here: small models run in turns with the runtime's own profile on, each kernel's times summed up.

Other work on the machine only ever adds time, so a kernel's cost is the mean of the fastest quarter of its times.
"""

from __future__ import annotations

import shutil
import tempfile
import time
import zipfile
from argparse import Namespace
from pathlib import Path
from typing import Any, Callable, Dict, Iterator, List, NamedTuple, Sequence, Tuple

from embedl_device import board
from embedl_device.arrays import made_up_feed
from embedl_device.errors import BoardError
from embedl_device.program import say
from embedl_device.readers import parse_json
from embedl_device.rounds import queue_clock
from embedl_onnxruntime.session import PROGRAM, Model, Settings, kernels, runtime

_KERNEL = "_kernel_time"
_FEWEST_ROUNDS = 6
_MOST_ROUNDS = 60
_MOST_BYTES = 1 << 28
_MOST_REPEATS = 5
_TURN_US = 600

_Key = Tuple[str, str]


class _Loaded(NamedTuple):
    """One model, loaded plainly and with the runtime's profile on."""

    name: str
    plain: Callable[[], object]
    profiled: Callable[[], object]
    model: Model
    facts: Dict[_Key, Dict[str, Any]]
    times_us: List[float]


def kernel_costs(arguments: Namespace, settings: Settings) -> Dict[str, Any]:
    """Time the kernels of all models of a folder or a .zip file, at most so long; a few rounds are always taken."""
    start = time.perf_counter()
    folder = Path(tempfile.mkdtemp(prefix="embedl-onnxruntime-"))
    try:
        files = _files(arguments.models, folder)
        say(PROGRAM, "timing the kernels of {} models".format(len(files)))
        loaded = [_load(path, settings, folder) for path in files]
        rounds = _take_turns(loaded, start + arguments.seconds)
        return {
            "models": {network.name: _summary(network) for network in loaded},
            "rounds": rounds,
            "seconds": round(time.perf_counter() - start, 3),
            "kernels": kernels(),
            "runtime_version": runtime().__version__,
            "settings": dict(settings._asdict(), providers=list(settings.providers)),
            "board": board.describe(),
        }
    finally:
        shutil.rmtree(str(folder), ignore_errors=True)


def _files(models: Path, folder: Path) -> List[Path]:
    if models.is_file():
        try:
            with zipfile.ZipFile(str(models)) as archive:
                if sum(entry.file_size for entry in archive.infolist()) > _MOST_BYTES:
                    raise BoardError("{} holds more than {} MiB.".format(models, _MOST_BYTES >> 20))
                # extractall leaves out what would lead out of the folder.
                archive.extractall(str(folder / "models"))
        except zipfile.BadZipFile as error:
            raise BoardError("{} is not a .zip file: {}".format(models, error)) from error
        models = folder / "models"
    found = sorted(models.glob("*.onnx"))
    if not found:
        raise BoardError("There are no .onnx files in {}.".format(models))
    return found


def _load(path: Path, settings: Settings, folder: Path) -> _Loaded:
    shapes = Model(path, settings, profile_prefix=str(folder / "shapes"), is_alone=False, keeps_weights=True)
    feed = made_up_feed(shapes.inputs, {})
    shapes.runner(feed)()
    facts = {key: facts for key, _, facts in _events(shapes)}
    plain = Model(path, settings, is_alone=False)
    profiled = Model(path, settings, profile_prefix=str(folder / path.stem), is_alone=False)
    return _Loaded(path.stem, plain.runner(feed), profiled.runner(feed), profiled, facts, [])


def _events(model: Model) -> Iterator[Tuple[_Key, float, Dict[str, Any]]]:
    """Yield each run of each node: which, its time, and what the runtime says of it."""
    trace = model.end_profiling()
    try:
        events = parse_json(trace.read_text(encoding="utf-8", errors="replace"))
    except ValueError as error:
        raise BoardError("The runtime's profile cannot be read: {}".format(error)) from error
    for event in events:
        name = str(event.get("name", ""))
        if event.get("cat") == "Node" and name.endswith(_KERNEL):
            facts = event.get("args") or {}
            yield (name, str(facts.get("node_index", ""))), float(event["dur"]), facts


def _take_turns(loaded: Sequence[_Loaded], deadline: float) -> int:
    rounds = 0
    with queue_clock() as clock:
        queue_ns = clock or (lambda: 0)
        while rounds < _FEWEST_ROUNDS or (rounds < _MOST_ROUNDS and time.perf_counter() < deadline):
            for network in loaded:
                for _ in range(_repeats(network)):
                    network.profiled()
                for _ in range(_repeats(network)):
                    queued, start = queue_ns(), time.perf_counter_ns()
                    network.plain()
                    network.times_us.append((time.perf_counter_ns() - start - queue_ns() + queued) / 1e3)
            rounds += 1
    return rounds


def _repeats(network: _Loaded) -> int:
    """Return how often a model runs in its turn: a short one more often, until its data is where a loop has it."""
    return 1 if not network.times_us else max(1, min(_MOST_REPEATS, int(_TURN_US / max(min(network.times_us), 1.0))))


def _summary(network: _Loaded) -> Dict[str, Any]:
    """Return the model's time without the profile on, and each of its nodes."""
    times: Dict[_Key, List[float]] = {}
    for key, time_us, _ in _events(network.model):
        times.setdefault(key, []).append(time_us)
    facts = network.facts
    nodes = [
        {
            "op": facts[key].get("op_name", ""),
            "inputs": facts[key].get("input_type_shape", []),
            "outputs": facts[key].get("output_type_shape", []),
            "us": round(fastest_quarter(each[1:] or each), 3),
        }
        for key, each in times.items()
        if key in facts
    ]
    return {"us": round(fastest_quarter(network.times_us[1:] or network.times_us), 3), "nodes": nodes}


def fastest_quarter(times: Sequence[float]) -> float:
    """Return the mean of the fastest quarter; the least alone would be short: times are whole microseconds."""
    best = sorted(times)[: max((len(times) + 3) // 4, 1)]
    return sum(best) / len(best)
