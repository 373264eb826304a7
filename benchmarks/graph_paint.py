"""How long does a browser show nothing of a graph of 2,000 nodes, and when is all of it there?

Files as ``embedl-deploy show`` writes them are opened in Chromium, in turns, each in a tab of its own. A network of
blocks begins folded where modules are known and flat where they are not; the tangled one has branches of any length and
hardly a box that all paths go through, which is the worst for the layout.
"""

from __future__ import annotations

import random
import shutil
import sys
from typing import TYPE_CHECKING

from playwright.sync_api import sync_playwright

from embedl_graph import Coloring, ModelGraph, Node, Tensor, graph_html, shown

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path

    from playwright.sync_api import Browser

NODES = 2000
_WAIT_MS = 25
_LONGEST_MS = 60_000
# Told by the page itself, one frame after the graph says that it is drawn.
_WATCH = """
window.at = {};
new MutationObserver(() => {
  const drawn = document.getElementById("graph")?.dataset.drawn;
  for (const name of drawn === "yes" ? ["first", "whole"] : drawn ? ["first"] : []) {
    if (name in at) continue;
    at[name] = 0;
    requestAnimationFrame(() => setTimeout(() => (at[name] = performance.now())));
  }
}).observe(document, { subtree: true, attributes: true, attributeFilter: ["data-drawn"] });
"""


class _Net:
    """A graph that grows node by node."""

    def __init__(self) -> None:
        self.nodes: list[Node] = []
        self.tensors = {"x": Tensor("x", "float32", (1, 3, 224, 224))}

    def add(self, op_type: str, inputs: list[str], module: str = "") -> str:
        """Add a node and return the tensor that it makes."""
        number = len(self.nodes)
        made = f"t{number}"
        self.nodes.append(Node(f"{op_type}_{number}", op_type, tuple(inputs), (made,), module, "float32"))
        self.tensors[made] = Tensor(made, "float32", (1, 64, 56, 56))
        return made

    def graph(self, title: str) -> ModelGraph:
        """Return it whole."""
        last = self.nodes[-1].outputs[0]
        return ModelGraph(title, "ONNX", tuple(self.nodes), self.tensors, ("x",), (last,))


def blocks(*, modules: bool) -> ModelGraph:
    """Return a transformer, with the modules of its nodes or without."""
    net, x, number = _Net(), "x", 0
    while len(net.nodes) < NODES:

        def at(name: str, number: int = number) -> str:
            return f"layers.{number}.{name}" if modules else ""

        query, key, value = (net.add("MatMul", [x], at("attention")) for _ in range(3))
        scores = net.add("MatMul", [net.add("Reshape", [query], at("attention")),
                                    net.add("Transpose", [key], at("attention"))], at("attention"))  # fmt: skip
        mixed = net.add("MatMul", [net.add("Softmax", [scores], at("attention")), value], at("attention"))
        first = net.add("Add", [mixed, x], at("add"))
        inner = net.add("Gemm", [net.add("LayerNormalization", [first], at("norm"))], at("mlp"))
        x = net.add("Add", [net.add("Gemm", [net.add("Gelu", [inner], at("mlp"))], at("mlp")), first], at("add"))
        number += 1
    return net.graph("blocks")


def tangled() -> ModelGraph:
    """Return a network of branches of any length."""
    net, made, drawn = _Net(), ["x"], random.Random(1)  # noqa: S311 - a network
    while len(net.nodes) < NODES:
        count = 1 if drawn.random() < 0.6 else 2
        inputs = [made[max(0, len(made) - 1 - int(drawn.expovariate(0.25)))] for _ in range(count)]
        if drawn.random() < 0.01:
            inputs.append(drawn.choice(made))
        made.append(net.add(drawn.choice(("Conv", "Add", "Mul", "Relu", "Concat")), inputs))
    return net.graph("tangled")


GRAPHS: dict[str, Callable[[], ModelGraph]] = {
    "folded by module": lambda: blocks(modules=True),
    "flat": lambda: blocks(modules=False),
    "flat and tangled": tangled,
}


def measure(folder: Path, rounds: int) -> dict[str, dict[str, list[float]]]:
    """Open every graph in turns; return when something, and when all of it was painted, in ms from the opening."""
    chromium = shutil.which("chromium") or sys.exit("Chromium is needed: apt-get install chromium")
    for name, make in GRAPHS.items():
        graph = make()
        times = Coloring("time", "Time", {number: number * 7919 % 1000 / 100 for number in range(NODES)}, "ms")
        (folder / f"{name}.html").write_text(graph_html(shown(graph, [times])))
    found: dict[str, dict[str, list[float]]] = {name: {"first": [], "whole": []} for name in GRAPHS}
    with sync_playwright() as playwright:
        browser = playwright.chromium.launch(executable_path=chromium, args=["--no-sandbox", "--disable-gpu"])
        for _ in range(rounds):
            for name, times_ms in found.items():
                for when, taken_ms in _open(browser, (folder / f"{name}.html").as_uri()).items():
                    times_ms[when].append(taken_ms)
        browser.close()
    return found


def _open(browser: Browser, address: str) -> dict[str, float]:
    tab = browser.new_page(viewport={"width": 1280, "height": 900})
    tab.add_init_script(_WATCH)
    tab.goto(address, timeout=_LONGEST_MS)
    for _ in range(_LONGEST_MS // _WAIT_MS):
        told: dict[str, float] = tab.evaluate("at")
        if told.get("whole"):
            break
        tab.wait_for_timeout(_WAIT_MS)
    tab.close()
    return told
