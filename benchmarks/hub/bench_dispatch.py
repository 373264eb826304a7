"""What does the hub add to a call, and what does importing it cost?

Three ways to call one function that does nothing, in turns within one run: directly; as a component's provider with
tracking off; as a provider with every run recorded. Then the time a fresh interpreter needs to import the core.

    python benchmarks/hub/bench_dispatch.py [--rounds 200] [--json FILE]
"""

from __future__ import annotations

import argparse
import json
import statistics
import subprocess
import sys
import tempfile
import time
from pathlib import Path

from embedl_hub.core import HubContext
from embedl_hub.core.component import Component, NoProviderError, ProviderType, RunType

sys.path.insert(0, str(Path(__file__).parents[1]))
from typing import TYPE_CHECKING

from report import machine, print_table

if TYPE_CHECKING:
    from collections.abc import Callable

LIMITS = {"tracking off": 100.0, "tracked": 5000.0}
IMPORT_LIMIT_MS = 300.0
HEAVY = ("numpy", "torch", "onnx", "onnxruntime", "rich", "boto3", "qai_hub")
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
    ):
        ways: dict[str, tuple[Callable[[], object], int]] = {
            "direct call": (lambda: _nothing(untracked, None, device=None, level=1), _CALLS),
            "tracking off": (lambda: step.run(untracked, None), _CALLS),
            "tracked": (lambda: step.run(tracked, None), 5),
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


def main() -> None:
    """Measure and report."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--rounds", type=int, default=200)
    parser.add_argument("--json", type=Path)
    arguments = parser.parse_args()
    times = measure_dispatch(arguments.rounds)
    empty, importing, heavy = measure_import(max(3, arguments.rounds // 20))
    rows = [
        (way, f"{statistics.median(values):.1f} us", f"{statistics.quantiles(values, n=10)[-1]:.1f} us",
         f"<= {LIMITS[way]:g} us" if way in LIMITS else "-")
        for way, values in times.items()
    ]  # fmt: skip
    import_ms = statistics.median(importing) - statistics.median(empty)
    rows.append(("import embedl_hub.core", f"{import_ms:.0f} ms", "-", f"<= {IMPORT_LIMIT_MS:g} ms"))
    print_table(("what", "median", "p90", "limit"), rows)
    print(f"interpreter alone {statistics.median(empty):.0f} ms, with the import {statistics.median(importing):.0f} ms")
    print(f"heavy modules that the import wakes: {', '.join(sorted(heavy)) or 'none'}")
    if arguments.json:
        result = {"machine": machine(), "dispatch_us": times, "empty_ms": empty, "import_ms": importing}
        arguments.json.write_text(json.dumps(result, indent=1))


if __name__ == "__main__":
    main()
