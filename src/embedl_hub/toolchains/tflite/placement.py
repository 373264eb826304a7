"""What LiteRT runs for an ONNX file on this machine: every operator, with the nodes it stands for."""

from __future__ import annotations

import importlib.util
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from embedl_device.interpreter import python_argv
from embedl_hub.core.answer import parse_answer
from embedl_hub.core.device import LocalCommandRunner
from embedl_hub.core.document import LayerRow
from embedl_hub.errors import CommandError
from embedl_hub.machine.machine import scratch_folder
from embedl_hub.refusal import RefusedError
from embedl_hub.toolchains.tflite.compile import convert_file
from embedl_hub.toolchains.tflite.graph import Graph, Operator, read_graph
from embedl_hub.toolchains.tflite.profile import RUNTIME

_LIMIT_S = 900.0
_ONCE = ("--threads", "1", "--iterations", "1", "--min-seconds", "0", "--max-warmup-seconds", "0", "--layer-runs", "1")
# Operators that only move or convert numbers.
_MOVERS = frozenset({
    "RESHAPE", "TRANSPOSE", "SLICE", "STRIDED_SLICE", "GATHER", "GATHER_ND", "SPLIT", "SPLIT_V", "CONCATENATION", "PAD",
    "PADV2", "MIRROR_PAD", "EXPAND_DIMS", "SQUEEZE", "TILE", "BROADCAST_TO", "PACK", "UNPACK", "SPACE_TO_DEPTH",
    "DEPTH_TO_SPACE", "SPACE_TO_BATCH_ND", "BATCH_TO_SPACE_ND", "QUANTIZE", "DEQUANTIZE", "CAST", "SHAPE",
})  # fmt: skip
_INTEGERS = frozenset({"int8", "uint8", "int16", "int4"})


def layers_of(path: Path) -> Sequence[LayerRow]:
    """Return the operators that LiteRT runs for an ONNX file, which is compiled and run once with and without XNNPACK.

    What the delegate takes is not told per operator; what it leaves to the runtime's own kernels is.

    Raises:
        ImportError: LiteRT is not installed.
        RefusedError: The file cannot be compiled, or LiteRT does not run it or does not tell its operators.
    """
    if importlib.util.find_spec("ai_edge_litert") is None:
        raise ImportError(f"LiteRT is not installed. Install it with: {RUNTIME.install}")
    with scratch_folder() as scratch:
        model, answer = convert_file(path, scratch)
        graph = read_graph(model)
        own, delegated = _ran(model, "--no-xnnpack"), _ran(model)
    # With the delegate on, only what it left has a number of the graph's.
    left = {row["node"] for row in delegated if row["provider"] == "builtin"}
    nodes = answer["nodes_of_tensors"] or {name: [node] for name, node in answer["source_of_tensors"].items()}
    return [_row(graph, int(row["node"]), nodes, is_left=row["node"] in left) for row in own if _is_known(row, graph)]


def _ran(model: Path, *arguments: str) -> list[dict[str, Any]]:
    """Run a model once by the device program, and return the operators that its profiler saw."""
    argv = [*python_argv(module=RUNTIME.module), "profile", "--model", str(model), *_ONCE, *arguments]
    mark = f"{RUNTIME.command}: error: "
    try:
        said = LocalCommandRunner().run(argv, hide=True, timeout_s=_LIMIT_S).stdout
    except CommandError as error:
        words = [line.removeprefix(mark) for line in error.stderr.splitlines() if line.startswith(mark)]
        raise RefusedError(words[-1] if words else f"LiteRT does not run the model: {error}") from error
    layers: Any = parse_answer(said.splitlines()[-1])
    rows: list[dict[str, Any]] = layers["layers"]["rows"]
    if not rows:
        raise RefusedError(f"LiteRT does not tell which operators it ran: {layers['layers'].get('missing_because')}.")
    return rows


def _is_known(row: dict[str, Any], graph: Graph) -> bool:
    return isinstance(row["node"], int) and 0 <= row["node"] < len(graph.operators)


def _row(graph: Graph, number: int, nodes: dict[str, list[str]], *, is_left: bool) -> LayerRow:
    operator = graph.operators[number]
    source = tuple(dict.fromkeys(node for tensor in operator.outputs for node in nodes.get(tensor, ())))
    return LayerRow(
        f"{operator.op_type}:{number}", operator.op_type, "CPU", source_nodes=source, added_by_runtime=not source,
        provider="builtin" if is_left else "XNNPACK", integer=_integer(operator),
    )  # fmt: skip


def _integer(operator: Operator) -> bool | None:
    """Tell whether an operator computes on integers: its tensors' types choose the kernel."""
    if operator.op_type in _MOVERS:
        return None
    return all(kind in _INTEGERS for kind in operator.types)
