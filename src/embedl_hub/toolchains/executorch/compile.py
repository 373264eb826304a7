"""Compile: an exported program or an ONNX model to an ExecuTorch program, where ExecuTorch's packages are; checked."""

from __future__ import annotations

import json
import logging
from collections import Counter
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from embedl_hub.core.answer import Form, check_form
from embedl_hub.core.compile import CompileError
from embedl_hub.core.device import LOCAL
from embedl_hub.errors import ConfigError
from embedl_hub.machine.machine import Machine, open_machine
from embedl_hub.machine.program import call_program, input_name, log_source
from embedl_hub.models.onnx_file import inputs_of, prepared_model, shape_hint, write_model
from embedl_hub.refusal import RefusedError, refusals_as
from embedl_hub.toolchains.executorch.components import ExecuTorchCompiledModel, ExecuTorchCompiler
from embedl_hub.toolchains.executorch.config import ExecuTorchConfig
from embedl_hub.toolchains.executorch.layers import Operator, heavy_left, read_operators
from embedl_hub.toolchains.executorch.runtime import RUNTIME

if TYPE_CHECKING:
    from embedl_hub.core.context import HubContext

_LOG = logging.getLogger("embedl_hub")
_PROGRAM = ".pt2"
# Float against float: rounding alone stays far below this share of an output's range.
_GOOD_SHARE = 1e-3
# Integers against the same integers as torch computes them: a step or two of the last layer.
_POOR_DB = 20.0
_TENSOR: Form = {"name": str, "dtype": str, "shape": [int]}
_ANSWER: Form = {
    "size_bytes": int,
    "inputs": [_TENSOR],
    "output_names": [str],
    "versions": {"*": str},
    "check": [{"name": str, "share_of_range": float, "sqnr_db?": float}],
    "nodes": [{"operator": str, "nodes": [str], "kinds": [str], "modules": [str], "delegated": bool, "reason": str}],
}


def compile_model(
    ctx: HubContext,
    model_path: Path,
    *,
    device: str | None,
    input_shape: Sequence[int] | None,
    backend: str,
) -> ExecuTorchCompiledModel:
    """Compile a model on this machine; the result runs on any."""
    # A board has no say in where models are made; a device of this machine may name the Python.
    is_here = device is not None and ctx.find_device(device).provider_type == LOCAL
    with (
        refusals_as(CompileError),
        open_machine(ctx, device if is_here else None, ExecuTorchCompiler, ExecuTorchConfig) as machine,
    ):
        prepared = _prepared(ctx, machine, model_path, input_shape)
        answer, made = lowered(machine, prepared, backend)
        target = ctx.artifact_dir / f"{model_path.stem}.pte"
        target.write_bytes(made.read_bytes())
    ctx.client.log_artifact(target, name="path")
    _log_answer(ctx, answer, backend)
    return ExecuTorchCompiledModel.from_current_run(ctx)


def lowered(machine: Machine[ExecuTorchConfig], prepared: Path, backend: str) -> tuple[dict[str, Any], Path]:
    """Let the device program make a program of a file, and return what it told and where the program is."""
    made = Path(machine.folder / "made.pte")
    args = ["--model", str(prepared), "--output", str(made), "--backend", backend]
    try:
        answer = call_program(machine, RUNTIME, "compile", args)
    except ConfigError as error:
        raise RefusedError(str(error)) from error
    try:
        check_form(answer, _ANSWER, "the answer")
    except ValueError as error:
        raise RefusedError(f"The device program answered compile as it never does: {error}.") from error
    return answer, made


def _prepared(
    ctx: HubContext, machine: Machine[ExecuTorchConfig], path: Path, input_shape: Sequence[int] | None
) -> Path:
    """Record the source and return the file to lower: the exported program, or the ONNX model with fixed shapes."""
    if path.suffix != _PROGRAM:
        source = log_source(ctx, path, machine.scratch, RUNTIME.name)
        return prepared_onnx(source.local(), input_shape, machine.scratch)
    if not path.is_file():
        raise RefusedError(f"There is no model {path}.")
    if input_shape is not None:
        raise RefusedError(
            "input_shape (--input-shape) is for ONNX models; an exported program has the shapes it was exported with. "
            "Export it anew with inputs of the shape you want."
        )
    ctx.client.log_param("$runtime", RUNTIME.name)
    return ctx.client.log_artifact(path, name="input", file_name=input_name(path.name)).local()


def prepared_onnx(path: Path, input_shape: Sequence[int] | None, scratch: Path) -> Path:
    """Return an ONNX file with fixed shapes and a name on every node."""
    model = prepared_model(path, input_shape)
    for tensor in inputs_of(model):
        if not tensor.is_fixed:
            raise RefusedError(f"Input {tensor} has no fixed shape, which a program needs; give {shape_hint(tensor)}.")
    prepared = write_model(model, scratch / "prepared.onnx")
    return prepared / "prepared.onnx" if prepared.is_dir() else prepared


def _log_answer(ctx: HubContext, answer: Mapping[str, Any], backend: str) -> None:
    operators = read_operators(answer["nodes"])
    path = ctx.artifact_dir / "delegation.json"
    path.write_text(json.dumps({"backend": backend, "operators": answer["nodes"]}, indent=1), encoding="utf-8")
    ctx.client.log_artifact(path, name="delegation")
    left = [each for each in operators if not each.delegated]
    is_int8 = any(each.integer for each in operators)
    params: dict[str, object] = {
        "backend": backend,
        "delegated": len(operators) - len(left),
        "left": len(left),
        "left_operators": dict(Counter(each.operator for each in left)),
        "precision": "int8" if is_int8 else "float32",
        "inputs": answer["inputs"],
        "outputs": answer["output_names"],
        "conversion_check": answer["check"],
        "runtime_version": answer["versions"].get("executorch"),
        "converter": answer["versions"],
        "converter_seconds": answer.get("seconds"),
    }
    ctx.client.run.log_batch(params)
    ctx.client.log_metric("model_size_mb", answer["size_bytes"] / 1e6)
    _log_difference(ctx, answer["check"], is_int8=is_int8)
    if backend != "portable" and (heavy := heavy_left(operators)):
        _LOG.warning("%s", _sentence(heavy, backend))


def _sentence(heavy: Sequence[Operator], backend: str) -> str:
    words = [f"{each.title} ({each.operator}: {each.reason})" for each in heavy[:5]]
    more = f" and {len(heavy) - 5} more" if len(heavy) > 5 else ""
    return (
        f"{len(heavy)} heavy operators were not given to {backend} and run in the runtime's own kernels, which are "
        f"slow: {'; '.join(words)}{more}."
    )


def _log_difference(ctx: HubContext, check: Sequence[Mapping[str, Any]], *, is_int8: bool) -> None:
    """Record how far the program is from torch on made-up data, and say aloud what no user would want."""
    worst = max(check, key=lambda output: float(output["share_of_range"]), default=None)
    if worst is None:
        return
    ctx.client.log_metric("conversion_error", worst["share_of_range"])
    sqnr = worst.get("sqnr_db")
    is_poor = sqnr is not None and sqnr < _POOR_DB if is_int8 else worst["share_of_range"] > _GOOD_SHARE
    if is_poor:
        _LOG.warning(
            "The program differs from torch by %.2g of the range of output %r; that is more than rounding.",
            worst["share_of_range"], worst["name"],
        )  # fmt: skip
