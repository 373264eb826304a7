"""What OpenVINO makes of an ONNX file on this machine's CPU: every layer, with the nodes it stands for."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

from embedl_device.interpreter import python_argv
from embedl_hub.core.answer import parse_answer
from embedl_hub.core.device import LocalCommandRunner
from embedl_hub.core.document import LayerRow
from embedl_hub.errors import CommandError
from embedl_hub.machine.machine import scratch_folder
from embedl_hub.models.onnx_file import prepared_model, write_model
from embedl_hub.refusal import RefusedError
from embedl_hub.toolchains.openvino.faults import explained
from embedl_hub.toolchains.openvino.layers import led_back
from embedl_hub.toolchains.openvino.runtime import RUNTIME

_LIMIT_S = 900.0
_MARK = f"{RUNTIME.command}: error: "


def layers_of(path: Path) -> Sequence[LayerRow]:
    """Return the layers that OpenVINO runs for an ONNX file; nodes without a name are known by their first output.

    Raises:
        RefusedError: OpenVINO is not installed, or does not take the file.
    """
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
    return led_back([LayerRow.from_json(row) for row in answer["layers"]["rows"]], model)
