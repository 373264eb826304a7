"""What OpenVINO makes of an ONNX file on this machine's CPU: every layer, with the nodes it stands for."""

from __future__ import annotations

import importlib.util
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

from embedl_device.interpreter import python_argv
from embedl_hub.core.answer import parse_answer
from embedl_hub.core.device import LocalCommandRunner
from embedl_hub.core.document import LayerRow
from embedl_hub.errors import CommandError
from embedl_hub.machine.machine import scratch_folder
from embedl_hub.models.onnx_file import nodes_of, prepared_model, write_model
from embedl_hub.refusal import RefusedError
from embedl_hub.toolchains.openvino.faults import explained
from embedl_hub.toolchains.openvino.layers import MOVING_NODES, led_back
from embedl_hub.toolchains.openvino.runtime import RUNTIME

_LIMIT_S = 900.0
_MARK = f"{RUNTIME.command}: error: "


def layers_of(path: Path) -> Sequence[LayerRow]:
    """Return the layers that OpenVINO runs for an ONNX file; nodes without a name are known by their first output.

    Nodes that only move what a layer computed stand apart from it: they compute in nothing.

    Raises:
        ImportError: OpenVINO is not installed.
        RefusedError: It does not take the file.
    """
    if importlib.util.find_spec("openvino") is None:
        raise ImportError(f"OpenVINO is not installed here; install it with: {RUNTIME.install}")
    model = prepared_model(path, None)
    with scratch_folder() as scratch:
        file = write_model(model, scratch / "model.onnx")
        entry = file / "model.onnx" if file.is_dir() else file
        files = ["--model", str(entry), "--output", str(scratch / "model.xml")]
        try:
            said = (
                LocalCommandRunner()
                .run([*python_argv(module=RUNTIME.module), "compile", *files], hide=True, timeout_s=_LIMIT_S)
                .stdout
            )
        except CommandError as error:
            own = [line.removeprefix(_MARK) for line in error.stderr.splitlines() if line.startswith(_MARK)]
            raise explained(RefusedError(own[-1] if own else str(error)), model) from error
    answer: Any = parse_answer(said.splitlines()[-1])
    rows = led_back([LayerRow.from_json(row) for row in answer["layers"]["rows"]], model)
    moving = {node.name for node in nodes_of(model.graph) if node.op_type in MOVING_NODES}
    return [part for row in rows for part in _apart(row, moving)]


def _apart(row: LayerRow, moving: set[str]) -> list[LayerRow]:
    """Return a layer in two parts: what computes, and what only moves; in one where it is all of a kind."""
    computing = tuple(name for name in row.source_nodes if name not in moving)
    if row.integer is None or computing == row.source_nodes:
        return [row]
    others = tuple(name for name in row.source_nodes if name in moving)
    return [replace(row, source_nodes=computing), replace(row, source_nodes=others, integer=None)]
