"""Make the pictures in docs/images: runs, charts, a matrix, a profile, a graph, a comparison, dark ones, reports.

Nothing in them is made up: two small networks are compiled in float and INT8, profiled and invoked on this machine with
ONNX Runtime, into a store that is thrown away; the change in the chart is that of a setting. The reports are those of
two examples, the summary is a gate's. Needs what ./test installs, and Chromium:

    .venv/bin/python tools/screenshots.py
"""

from __future__ import annotations

import contextlib
import html
import io
import shutil
import subprocess
import sys
import tempfile
from pathlib import Path
from typing import TYPE_CHECKING

import nbformat
import numpy as np
from markdown_it import MarkdownIt
from nbclient import NotebookClient
from PIL import Image
from playwright.sync_api import sync_playwright

ROOT = Path(__file__).resolve().parent.parent
sys.path.insert(0, str(ROOT / "tests"))

from support.models import mobilenet_v2, residual_net, save  # noqa: E402 - found by the line above
from support.served_page import served  # noqa: E402

from embedl_hub.core import HubContext  # noqa: E402
from embedl_hub.core.compile import ONNXRuntimeCompiler  # noqa: E402
from embedl_hub.core.device import Device, ONNXRuntimeConfig  # noqa: E402
from embedl_hub.core.invoke import ONNXRuntimeInvoker  # noqa: E402
from embedl_hub.core.profile import ONNXRuntimeProfiler  # noqa: E402
from embedl_hub.fleet import read_sweep, run_sweep  # noqa: E402
from embedl_hub.tracking import Store  # noqa: E402

if TYPE_CHECKING:
    from collections.abc import Iterator

    import onnx
    from playwright.sync_api import Browser, Page

IMAGES = ROOT / "docs/images"
WIDTH = 1280
LARGEST_BYTES = 300_000
SERIES = 14
SWEEP_PLAN = """
[sweep]
name = "candidates"
toolchain = "onnxruntime"
steps = ["compile", "profile", "invoke"]
rank = true

[models.residual_net]
path = "residual_net.onnx"
data = { calibration = "residual_net.npz", test = "residual_net.npz" }

[models.mobilenet_v2]
path = "mobilenet_v2.fixed.onnx"
data = { calibration = "mobilenet_v2.npz", test = "mobilenet_v2.npz" }

[options.float]

[options.int8]
compile = { calibration_data = "$calibration" }

[options.int8-per-channel]
compile = { calibration_data = "$calibration", per_channel = true }

[devices]
names = ["this machine"]
"""


def record(folder: Path) -> None:
    """Compile, profile and invoke both networks in float and INT8."""
    here = Device("this machine", provider_type="local", provider_config=ONNXRuntimeConfig(threads=1, min_seconds=1.0))
    networks: dict[str, tuple[onnx.ModelProto, int]] = {
        "residual_net": (residual_net(size=64), 64),
        "mobilenet_v2": (mobilenet_v2(), 224),
    }
    with HubContext("edge vision", devices=[here], home=folder / "home") as ctx:
        for name, (network, size) in networks.items():
            path = save(network, folder / f"{name}.onnx")
            samples = np.random.default_rng(1).normal(size=(8, 3, size, size)).astype(np.float32)
            for data in (None, {"x": samples}):
                model = ONNXRuntimeCompiler(input_shape=(1, 3, size, size)).run(ctx, path, calibration_data=data)
                ONNXRuntimeProfiler().run(ctx, model)
                ONNXRuntimeInvoker().run(ctx, model, {"x": samples[:1]})


def record_series(folder: Path) -> None:
    """Profile a network again and again, in float and INT8; from the middle on ONNX Runtime does not optimize."""
    for level in ("all", "disable"):
        config = ONNXRuntimeConfig(threads=1, min_seconds=0.3, layer_runs=0, optimization_level=level)
        here = Device("this machine", provider_type="local", provider_config=config)
        with HubContext("nightly", devices=[here], home=folder / "home") as ctx:
            samples = np.random.default_rng(1).normal(size=(8, 3, 64, 64)).astype(np.float32)
            for data in (None, {"x": samples}):
                compiler = ONNXRuntimeCompiler(input_shape=(1, 3, 64, 64))
                model = compiler.run(ctx, folder / "residual_net.onnx", calibration_data=data)
                for _ in range(SERIES):
                    ONNXRuntimeProfiler().run(ctx, model)


def record_sweep(folder: Path) -> str:
    """Sweep both networks over three options on this machine, measured in turns too, and return the sweep's run."""
    for name, size in (("residual_net", 64), ("mobilenet_v2", 224)):
        np.savez(folder / f"{name}.npz", x=np.random.default_rng(2).normal(size=(8, 3, size, size)).astype(np.float32))
    # A sweep compiles each model as it is: what it is measured with must have a size.
    fixed = mobilenet_v2()
    fixed.graph.input[0].type.tensor_type.shape.dim[0].dim_value = 1
    save(fixed, folder / "mobilenet_v2.fixed.onnx")
    (folder / "plan.toml").write_text(SWEEP_PLAN)
    here = Device("this machine", provider_type="local", provider_config=ONNXRuntimeConfig(threads=1, min_seconds=1.0))
    with HubContext("sweeps", devices=[here], home=folder / "home") as ctx:
        return run_sweep(ctx, read_sweep(folder / "plan.toml")).id


def photograph(tab: Page, address: str, name: str, height: int, width: int = WIDTH) -> None:
    """Keep a picture of a page, with few enough colors to be small."""
    tab.set_viewport_size({"width": width, "height": height})
    tab.goto(address)
    tab.wait_for_load_state("networkidle")
    if tab.locator("#graph").count() and "/graph" in address:
        tab.locator("#graph[data-drawn=yes]").wait_for()
    for chart in tab.locator("figure.chart").all():
        chart.locator(".main-svg").first.wait_for()
    picture = Image.open(io.BytesIO(tab.screenshot()))
    target = IMAGES / f"{name}.png"
    picture.convert("RGB").quantize(128).save(target, optimize=True)
    if target.stat().st_size > LARGEST_BYTES:
        sys.exit(f"{target} has {target.stat().st_size} bytes; at most {LARGEST_BYTES} are wanted.")
    print(f"{target.relative_to(ROOT)}: {target.stat().st_size} bytes")


def write_reports(folder: Path) -> dict[str, Path]:
    """Run the examples that write reports; return these by the name of their picture."""
    reports = {}
    for picture, example in (("transform", "transform"), ("verification", "own_pytorch")):
        script = ROOT / "examples" / example / "main.py"
        subprocess.run([sys.executable, script, folder / example], check=True, timeout=300, stdout=subprocess.DEVNULL)
        reports[picture] = folder / example / "report.html"
    return reports


def write_notebook(folder: Path) -> Path:
    """Run the example's notebook in a kernel and return it as a page: its cells, and what each shows."""
    notebook = nbformat.read(ROOT / "examples/notebook/first_look.ipynb", 4)  # type: ignore[no-untyped-call]
    NotebookClient(notebook, timeout=200, resources={"metadata": {"path": str(folder)}}).execute()
    parts = ["<meta charset=utf-8><body style='font:14px sans-serif;max-width:1100px'>"]
    for cell in notebook.cells:
        style = "background:#f5f5f5;padding:6px" if cell.cell_type == "code" else "white-space:pre-wrap;font:inherit"
        parts.append(f"<pre style='{style}'>{html.escape(cell.source)}</pre>")
        parts += [output.data["text/html"] for output in cell.get("outputs", ()) if "data" in output]
    path = folder / "notebook.html"
    path.write_text("".join(parts))
    return path


# What GitHub's pages look like, near enough: its own style sheets are not ours to ship.
_SUMMARY_STYLE = """body{font:14px/1.5 system-ui,sans-serif;margin:24px;max-width:980px;color:#1f2328}
table{border-collapse:collapse;margin:0 0 16px}td,th{border:1px solid #d1d9e0;padding:6px 13px}
tr:nth-child(2n){background:#f6f8fa}thead:not(:has(th:not(:empty))){display:none}
pre{background:#f6f8fa;padding:16px;border-radius:6px}
code{background:#818b981f;padding:.2em .4em;border-radius:6px}pre code{background:none;padding:0}"""


def write_summary(folder: Path) -> Path:
    """Let a real gate fail, and return the summary that it wrote as a page."""
    home = folder / "gate"
    for name, size in (("main", 48), ("branch", 64)):
        (folder / name).mkdir()
        save(residual_net(size=size), folder / name / "detector.onnx")
        words = ["--baseline", "stage=main", f"--home={home}", f"--summary={folder / name}.md"]
        words += ["--record"] if name == "main" else [f"--bundle={folder / 'runs.zip'}"]
        command = [sys.executable, "-m", "embedl_hub", "gate", str(folder / name / "detector.onnx"), *words]
        done = subprocess.run(command, check=False, timeout=300, stdout=subprocess.DEVNULL)
        if done.returncode != (name == "branch"):
            sys.exit(f"The gate of {name} ended with {done.returncode}.")
    shown = MarkdownIt("gfm-like", {"linkify": False}).render((folder / "branch.md").read_text())
    path = folder / "summary.html"
    path.write_text(f"<meta charset=utf-8><style>{_SUMMARY_STYLE}</style>{shown}")
    return path


@contextlib.contextmanager
def browsing() -> Iterator[Browser]:
    """Open a browser."""
    chromium = shutil.which("chromium") or sys.exit("Chromium is needed: apt-get install chromium")
    with sync_playwright() as playwright:
        browser = playwright.chromium.launch(executable_path=chromium, args=["--no-sandbox", "--disable-gpu"])
        yield browser
        browser.close()


def main() -> None:
    """Record, serve, photograph."""
    IMAGES.mkdir(exist_ok=True)
    with tempfile.TemporaryDirectory() as name, contextlib.ExitStack() as closing:
        folder = Path(name)
        (folder / "transform").mkdir()
        reports = write_reports(folder)
        record(folder)
        record_series(folder)
        sweep = record_sweep(folder)
        store = closing.enter_context(Store(folder / "home"))
        site = closing.enter_context(served(store))
        browser = closing.enter_context(browsing())
        tab = browser.new_page(color_scheme="light")
        wanted = "type = 'PROFILE' and artifacts.input = 'input_mobilenet_v2.compiled.onnx'"
        int8, float32 = (run.id for run in store.runs(f"project = 'edge vision' and {wanted}"))
        photograph(tab, f"{site}/runs?project=edge%20vision", "runs", 640)
        photograph(tab, f"{site}/charts?metric=latency_median&project=nightly", "charts", 900)
        photograph(tab, f"{site}/sweeps/{sweep}?y=cosine", "matrix", 1100)
        photograph(tab, f"{site}/runs/{int8}", "profile", 1180)
        photograph(tab, f"{site}/compare?run={float32}&run={int8}", "compare", 1120)
        photograph(tab, f"{site}/runs/{float32}/graph", "graph", 900)
        dark = browser.new_page(color_scheme="dark")
        photograph(dark, f"{site}/runs?project=edge%20vision", "phone", 844, 390)
        photograph(dark, f"{site}/charts?metric=latency_median&project=nightly", "dark", 800)
        photograph(tab, reports["transform"].as_uri(), "transform", 1000)
        photograph(tab, reports["verification"].as_uri(), "verification", 690)
        photograph(tab, write_notebook(folder).as_uri(), "notebook", 2600)
        photograph(tab, write_summary(folder).as_uri(), "gate-summary", 650, 1020)


if __name__ == "__main__":
    main()
