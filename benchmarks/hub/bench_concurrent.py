"""Models at once: does a process that does nothing change nothing, and is a model that shares the processor told apart?

- A real model beside an idle process, again and again: how many answers are "no significant difference"?
- The same model beside itself, each on all processors: how many answers are "slower beside the others"?
- Cold starts of the same model: the page cache emptied against full, in turns.

    python benchmarks/hub/bench_concurrent.py [--repeats 20] [--shared 5] [--rounds 20] [--starts 20] [--json FILE]
"""

from __future__ import annotations

import os
import sys
import tempfile
from pathlib import Path
from typing import TYPE_CHECKING, Any

from embedl_device.readers import read_json
from embedl_hub.core import HubContext
from embedl_hub.core.compile import ONNXRuntimeCompiler
from embedl_hub.core.device import Device, ONNXRuntimeConfig
from embedl_hub.core.profile import ColdStartProfiler, ConcurrentProfiler

sys.path.insert(0, str(Path(__file__).parents[1]))
sys.path.insert(0, str(Path(__file__).parents[2] / "tests"))
from figures import Figure, against, alone, rate
from report import Session, parser
from support.real_models import REAL_MODELS

if TYPE_CHECKING:
    from embedl_hub.core.compile import ONNXRuntimeCompiledModel

MODEL = "page orientation"
SHAPE = (1, 3, 224, 224)


def interference(
    ctx: HubContext, models: list[ONNXRuntimeCompiledModel], repeats: int, rounds: int, idle: int
) -> list[dict[str, Any]]:
    """Measure models at once, again and again; return what was said of the first."""
    rows = []
    for number in range(1, repeats + 1):
        result = ConcurrentProfiler().run(ctx, models, rounds=rounds, idle_processes=idle)
        first = result.models[0]
        ratio = first.interference
        rows.append({"value": ratio.value, "low": ratio.low, "high": ratio.high, "said": first.conclusion})
        print(f"{number} of {repeats}: {ratio.value:.3f} {first.conclusion}", file=sys.stderr, flush=True)
    return rows


def figures(data: dict[str, Any]) -> list[Figure]:
    """Return what the rows add up to."""
    idle, shared, cold = data["idle"], data["shared"], data["cold"]
    same = sum(row["said"] == "no significant difference" for row in idle)
    slower = sum(row["said"] == "slower beside the others" for row in shared)
    found = [
        rate('beside an idle process: "no significant difference"', same, len(idle))
        .required("all", same == len(idle))
        .in_short(),
        alone("beside an idle process: ratio", "", [row["value"] for row in idle]),
        rate('beside itself, both on all processors: "slower"', slower, len(shared))
        .required("all", slower == len(shared))
        .in_short(),
        alone("beside itself: ratio", "", [row["value"] for row in shared]),
    ]
    if cold["cold_ms"]:
        files = "files read from storage"
        found.append(
            against(f"start to first answer, {files}", "ms", cold["cold_ms"], "in the cache", cold["cached_ms"])
        )
    return found


def starts(ctx: HubContext, model: ONNXRuntimeCompiledModel, count: int) -> dict[str, Any]:
    """Start the model anew and anew; the starts without the page cache beside those with it."""
    document = read_json(ColdStartProfiler().run(ctx, model, starts=count).output_file.local())
    totals = {
        kind: [sum(parts) / 1e3 for parts in zip(*document[kind]["samples_us"].values(), strict=True)]
        for kind in ("cached", "cold")
        if document[kind] is not None
    }
    return {"cached_ms": totals["cached"], "cold_ms": totals.get("cold", []), "problem": document["cold_problem"]}


def main() -> None:
    """Measure and report."""
    options = parser(__doc__)
    options.add_argument("--repeats", type=int, default=20, help="beside an idle process so often (default 20)")
    options.add_argument("--shared", type=int, default=5, help="beside itself so often (default 5)")
    options.add_argument("--rounds", type=int, default=20, help="rounds of each (default 20)")
    options.add_argument("--starts", type=int, default=20, help="starts of each kind (default 20)")
    arguments = options.parse_args()
    session = Session("concurrent", options, arguments)
    one = Device("one", provider_type="local", provider_config=ONNXRuntimeConfig(threads=1, max_seconds=60))
    every = Device("every", provider_type="local", provider_config=ONNXRuntimeConfig(threads=os.cpu_count()))
    with tempfile.TemporaryDirectory(prefix="bench-concurrent-") as place:
        source = REAL_MODELS[MODEL].fetch(Path(place))
        with HubContext("bench", [one], home=Path(place) / "home") as ctx:
            model = ONNXRuntimeCompiler().run(ctx, source, input_shape=SHAPE)
            data: dict[str, Any] = {"idle": interference(ctx, [model], arguments.repeats, arguments.rounds, 1)}
            data["cold"] = starts(ctx, model, arguments.starts)
        with HubContext("bench", [every], home=Path(place) / "home") as ctx:
            data["shared"] = interference(ctx, [model, model], arguments.shared, arguments.rounds, 0)
    session.finish(data, figures(data), packages=("onnxruntime",), facts={"model": MODEL})


if __name__ == "__main__":
    main()
