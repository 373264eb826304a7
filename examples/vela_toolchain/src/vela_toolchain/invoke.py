"""Invoke: the model that was compiled, run by tflite-micro in a process of its own.

No CPU runs the command stream of an Ethos-U. What is run is the INT8 model before it; whether an NPU answers the same
to the bit is for the board to show.
"""

from __future__ import annotations

import sys
import tempfile
from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np

from embedl_hub.core.device import LocalCommandRunner
from embedl_hub.errors import CommandError, InvokeError
from vela_toolchain import micro
from vela_toolchain.components import VelaCompiledModel, VelaInvocationResult
from vela_toolchain.config import need_package

if TYPE_CHECKING:
    from embedl_hub.core import HubContext

_TIMEOUT_S = 1800.0


def invoke_model(
    ctx: HubContext,
    model: VelaCompiledModel,
    input_data: Mapping[str, np.ndarray],
    *,
    device: str | None = None,
    use_compiled_names: bool = False,
) -> VelaInvocationResult:
    """Run the source of a compiled model; with ``use_compiled_names`` integers go in and come out as they are."""
    ctx.client.log_artifact(model.path, name="input", ctx=ctx)
    if model.input is None:
        raise InvokeError(
            "No CPU runs the command stream, and this model comes without the run that compiled it, which has its "
            "source. Give the run of embedl-hub compile vela in place of the file."
        )
    version = need_package("tflite-micro")
    need_package("ethos-u-vela")
    source = ctx.client.log_artifact(model.input, name="source", ctx=ctx)
    ctx.client.log_param("ran", "the INT8 model before Vela compiled it, on this machine's CPU; not the command stream")
    ctx.client.log_param("runtime_version", f"tflite-micro {version}")
    given, answers = ctx.artifact_dir / "input_data.npz", ctx.artifact_dir / "output.npz"
    try:
        micro.write_npz(given, input_data)
    except ValueError as error:
        raise InvokeError(f"input_data holds what is no array of numbers: {error}.") from error
    ctx.client.log_artifact(given, name="input_data")
    argv = [sys.executable, "-P", micro.__file__, str(source.to_local(ctx).local()), str(given), str(answers)]
    with tempfile.TemporaryDirectory(prefix="vela-") as scratch:
        try:
            LocalCommandRunner().run(
                [*argv, *(["--raw"] if use_compiled_names else [])], cwd=Path(scratch), hide=True, timeout_s=_TIMEOUT_S
            )
        except CommandError as error:
            raise InvokeError(_reason(error)) from error
    ctx.client.log_artifact(answers, name="output_file")
    with np.load(answers, allow_pickle=False) as arrays:
        output = dict(arrays)
    return VelaInvocationResult.from_current_run(ctx, output=output)


def _reason(error: CommandError) -> str:
    if error.exit_code is None:
        return f"tflite-micro was stopped after {_TIMEOUT_S:g} s."
    own = [line.removeprefix(micro.MARK) for line in error.stderr.splitlines() if line.startswith(micro.MARK)]
    if own:
        return own[-1]
    said = [line for line in error.stderr.splitlines() if line.strip()]
    return f"tflite-micro failed (exit code {error.exit_code}): {said[-1][:500] if said else 'it said nothing'}"
