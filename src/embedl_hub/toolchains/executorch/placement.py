"""What ExecuTorch makes of an ONNX file on this machine: every layer that ran, with the nodes it stands for."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

from embedl_hub.core.context import HubContext
from embedl_hub.core.document import LayerRow, ProfileDocument
from embedl_hub.machine import program
from embedl_hub.machine.machine import open_machine
from embedl_hub.toolchains.executorch.compile import lowered, prepared_onnx
from embedl_hub.toolchains.executorch.components import ExecuTorchProfiler
from embedl_hub.toolchains.executorch.config import ExecuTorchConfig
from embedl_hub.toolchains.executorch.layers import led_back, read_operators
from embedl_hub.toolchains.executorch.runtime import RUNTIME

# One traced run tells what ran; times are nobody's concern here.
_ONCE = ExecuTorchConfig(iterations=1, min_seconds=0.0, max_warmup_seconds=0.01, layer_runs=1)


def layers_of(path: Path) -> Sequence[LayerRow]:
    """Return the layers that ExecuTorch runs for an ONNX file; nodes without a name are known by their first output.

    Raises:
        RefusedError: ExecuTorch does not take the file.
    """
    with (
        HubContext("placement", tracking=False) as ctx,
        open_machine(ctx, None, ExecuTorchProfiler, ExecuTorchConfig) as machine,
    ):
        machine.config = _ONCE
        answer, made = lowered(machine, prepared_onnx(path, None, machine.scratch), "xnnpack")
        document = ProfileDocument.from_json(program.profile_there(machine, RUNTIME, str(made), []))
    return led_back(document.rows, read_operators(answer["nodes"]))
