"""What does the hub add to a call, and what does importing it cost?

Four ways to call one function that does nothing, in turns within one run: directly; as a component's provider with
tracking off; as a provider with every run recorded; and the same for a board that is off, which the function does not
use. Then the time a fresh interpreter needs to import the core.

    python benchmarks/hub/bench_dispatch.py [--rounds 200] [--json FILE]
"""

from __future__ import annotations

import subprocess
import sys
import tempfile
import time
from pathlib import Path
from typing import TYPE_CHECKING, Any

from embedl_hub.core import HubContext
from embedl_hub.core.component import Component, NoProviderError, ProviderType, RunType
from embedl_hub.core.device import Device, SSHCommandRunner, SSHConfig

sys.path.insert(0, str(Path(__file__).parents[1]))
from figures import Figure, against, alone, declared
from report import Session, parser

if TYPE_CHECKING:
    from collections.abc import Callable

HEAVY = ("numpy", "torch", "onnx", "onnxruntime", "rich", "boto3", "qai_hub")
OFF = Device("off", SSHCommandRunner(SSHConfig("127.0.0.1", port=1)), provider_type="board_that_is_off")
_CALLS = 50


class NoOp(Component):
    """Does nothing, so that only the way there is measured."""

    run_type = RunType.CUSTOM

    def __init__(self, *, name: str | None = None, device: str | None = None, level: int = 1) -> None:
        """Set defaults for run."""
        super().__init__(name=name, device=device, level=level)

    def run(self, ctx: HubContext, model: object, *, device: str | None = None, level: int = 1) -> None:  # noqa: ARG002
        """Do nothing."""
        raise NoProviderError


@NoOp.provider("board_that_is_off")
@NoOp.provider(ProviderType.LOCAL)
def _nothing(ctx: HubContext, model: object, *, device: str | None = None, level: int = 1) -> None:
    """Do nothing."""


def time_us(call: Callable[[], object], calls: int) -> float:
    """Return the mean time of one call in a short burst."""
    start = time.perf_counter_ns()
    for _ in range(calls):
        call()
    return (time.perf_counter_ns() - start) / calls / 1e3


def measure_dispatch(rounds: int) -> dict[str, list[float]]:
    """Return the times of each way, measured in turns."""
    step = NoOp()
    with (
        tempfile.TemporaryDirectory() as home,
        HubContext("bench", tracking=False) as untracked,
        HubContext("bench", home=home) as tracked,
        HubContext("bench", [OFF], home=home) as off,
    ):
        ways: dict[str, tuple[Callable[[], object], int]] = {
            "direct call": (lambda: _nothing(untracked, None, device=None, level=1), _CALLS),
            "tracking off": (lambda: step.run(untracked, None), _CALLS),
            "tracked": (lambda: step.run(tracked, None), 5),
            "board off": (lambda: step.run(off, None), 5),
        }
        for call, _ in ways.values():
            call()
        times: dict[str, list[float]] = {way: [] for way in ways}
        for _ in range(rounds):
            for way, (call, calls) in ways.items():
                times[way].append(time_us(call, calls))
    return times


def measure_import(rounds: int) -> tuple[list[float], list[float], set[str]]:
    """Return the times of an empty and an importing interpreter in ms, in turns, and the heavy modules that woke."""
    empty: list[float] = []
    importing: list[float] = []
    loaded: set[str] = set()
    code = "import embedl_hub.core, sys; print(' '.join(sys.modules))"
    for _ in range(rounds):
        for program, times in (("import sys; print()", empty), (code, importing)):
            start = time.perf_counter_ns()
            done = subprocess.run(
                [sys.executable, "-c", program], capture_output=True, text=True, check=True, timeout=60
            )
            times.append((time.perf_counter_ns() - start) / 1e6)
            loaded |= set(done.stdout.split())
    return empty, importing, loaded & set(HEAVY)


def figures(data: dict[str, Any]) -> list[Figure]:
    """Return what is quoted."""
    imports = [with_it - without for with_it, without in zip(data["import_ms"], data["empty_ms"], strict=True)]
    times = data["dispatch_us"]
    return [
        alone("a component that does nothing, not recorded", "µs", times["tracking off"]).at_most(100).in_short(),
        alone("the same, recorded", "µs", times["tracked"]).at_most(5000).in_short(),
        against("the same for a board that is off and not used", "µs", times["board off"], "here", times["tracked"]),
        alone("the function itself", "µs", times["direct call"]),
        alone("`import embedl_hub.core`", "ms", imports).at_most(300).in_short(),
        against("a Python that imports it, start to end", "ms", data["import_ms"], "an empty Python", data["empty_ms"]),
        declared("heavy modules that the import wakes", "", len(data["heavy"]), 0).at_most(0),
    ]


def main() -> None:
    """Measure and report."""
    options = parser(__doc__)
    options.add_argument("--rounds", type=int, default=200)
    arguments = options.parse_args()
    session = Session("dispatch", options, arguments)
    times = measure_dispatch(arguments.rounds)
    empty, importing, heavy = measure_import(max(3, arguments.rounds // 20))
    data = {"dispatch_us": times, "empty_ms": empty, "import_ms": importing, "heavy": sorted(heavy)}
    session.finish(data, figures(data))


if __name__ == "__main__":
    main()
