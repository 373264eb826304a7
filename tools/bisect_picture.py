"""Make the picture of a bisection in the docs: a real slowdown between two released versions of ONNX Runtime.

ONNX Runtime 1.21 sums over a short first axis more slowly than 1.20 does. A network that begins with the sum of two
views is profiled with both, beside other harmless differences, and bisected. It needs two Pythons, each with numpy and
one of the versions, and Chromium; with --folder it goes on where it was stopped.

    .venv/bin/python tools/bisect_picture.py 1.20.1=DIR/bin/python 1.21.1=DIR/bin/python [--folder DIR]
"""

from __future__ import annotations

import argparse
import contextlib
import json
import sys
import tempfile
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
sys.path[:0] = [str(ROOT / "tools"), str(ROOT / "tests"), str(ROOT / "benchmarks"), str(ROOT / "benchmarks/hub")]

from hub.bisect_trial import Net  # noqa: E402 - found by the line above
from screenshots import browsing, photograph  # noqa: E402
from support.models import save  # noqa: E402
from support.served_page import served  # noqa: E402

from embedl_hub.bisection import BisectionResult, bisect, plan_bisection  # noqa: E402
from embedl_hub.core import HubContext  # noqa: E402
from embedl_hub.core.device import Device, EmbedlONNXRuntimeConfig, LocalCommandRunner  # noqa: E402
from embedl_hub.core.profile import ONNXRuntimeProfiler  # noqa: E402
from embedl_hub.core.steps import keep_model, run_of  # noqa: E402
from embedl_hub.tracking import Store  # noqa: E402


def _device(name: str, python: str, folder: Path, *, is_bad: bool) -> Device:
    config = EmbedlONNXRuntimeConfig(
        "not-installed", python_path=python, threads=1, iterations=50, min_seconds=0.5, allow_saturation=is_bad,
        allow_fallback=is_bad, optimization_level="extended" if is_bad else "all",
    )  # fmt: skip
    return Device(name, LocalCommandRunner(), provider_type="embedl_onnxruntime", provider_config=config,
                  lease_dir=None, artifact_root=str(folder / "board"))  # fmt: skip


def bisected(folder: Path, pythons: list[tuple[str, str]], *, again: bool) -> BisectionResult:
    """Profile the network with both versions, unless that was done before, and find out why one is slower."""
    devices = [
        _device(f"ort-{version}", python, folder, is_bad=place == 1) for place, (version, python) in enumerate(pythons)
    ]
    nets = Net("mobile", sums=True), Net("mobile", sums=True, other=frozenset({2, 5}), weights={1: 1e-3, 4: 1e-3})
    with HubContext("stereo", devices, home=folder / "home") as ctx:
        store = ctx.client.store
        if store is None:
            sys.exit("A bisection needs a store.")
        ids = []
        for device, net in zip(devices, nets, strict=True):
            found = [
                run.id for run in store.runs(f"type = 'PROFILE' and device = '{device.name}' and status = 'FINISHED'")
            ]
            if not found:
                path = save(net.model(), folder / f"stereo-{device.name}.onnx")
                model = keep_model(ctx, ONNXRuntimeProfiler, path)
                run = run_of(ctx, ONNXRuntimeProfiler(name="stereo").run(ctx, model, device=device.name))  # type: ignore[arg-type]
                found = [run.id]
            ids.append(found[0])
        return bisect(ctx, plan_bisection(ctx, *ids), told=lambda line: print(line, flush=True), again=again)


def main() -> None:
    """Bisect, serve and photograph."""
    options = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    options.add_argument("pythons", nargs=2, metavar="VERSION=PYTHON")
    options.add_argument("--folder", type=Path)
    options.add_argument("--again", action="store_true", help="search anew although it was answered before")
    arguments = options.parse_args()
    pythons = [tuple(word.split("=", 1)) for word in arguments.pythons]
    with tempfile.TemporaryDirectory() as temporary, contextlib.ExitStack() as closing:
        folder = arguments.folder or Path(temporary)
        folder.mkdir(parents=True, exist_ok=True)
        result = bisected(folder, pythons, again=arguments.again)
        print(json.dumps(result.as_dict()["sentence"]))
        store = closing.enter_context(Store(folder / "home"))
        site = closing.enter_context(served(store))
        tab = closing.enter_context(browsing()).new_page(color_scheme="light")
        photograph(tab, f"{site}/bisections/{result.run_id}", "bisect", 1000)


if __name__ == "__main__":
    main()
