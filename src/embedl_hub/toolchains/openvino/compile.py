"""Compile: fix the shape and, with calibration data, quantize on this machine; convert and load where it will run."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from embedl_hub.core.answer import Form, check_form
from embedl_hub.core.compile import CompileError
from embedl_hub.machine.machine import Machine, unlogged
from embedl_hub.machine.program import call_program, log_source, send_model
from embedl_hub.models import onnx_file
from embedl_hub.quantization.steps import Wanted, prepare, quantize_there
from embedl_hub.refusal import RefusedError, refusals_as
from embedl_hub.toolchains.openvino import pt2
from embedl_hub.toolchains.openvino.components import OpenVINOCompiledModel
from embedl_hub.toolchains.openvino.faults import check_opset, explained
from embedl_hub.toolchains.openvino.ir import read_graph
from embedl_hub.toolchains.openvino.profile import log_ran
from embedl_hub.toolchains.openvino.runtime import RUNTIME, settings

if TYPE_CHECKING:
    import onnx

    from embedl_hub.core.compile import CalibrationData
    from embedl_hub.core.context import HubContext
    from embedl_hub.core.device import AnyPath
    from embedl_hub.toolchains.openvino.config import OpenVINOConfig

# What has an integer kernel and gains by it. Integers pass through what only moves them without Q/DQ of their own.
_INT8 = ("Conv", "ConvTranspose", "MatMul", "Gemm", "Add", "Mul", "Concat", "AveragePool", "GlobalAveragePool", "Relu",
         "Clip")  # fmt: skip
_TENSORS: Form = [{"name": str, "dtype": str}]
_ANSWER: Form = {"size_bytes": int, "inputs": _TENSORS, "outputs": _TENSORS, "layers": {"rows": [{"precision": str}]}}


@dataclass(frozen=True)
class CompileOptions:
    """What the user asked of a compilation."""

    input_shape: Sequence[int] | None = None
    calibration_data: CalibrationData | None = None
    calibration_method: str | None = None


def compile_model(
    ctx: HubContext,
    machine: Machine[OpenVINOConfig],
    model_path: Path,
    **given: Any,  # noqa: ANN401 - the step's options
) -> OpenVINOCompiledModel:
    """Compile a model for a machine."""
    options = CompileOptions(**given)
    with refusals_as(CompileError):
        if model_path.suffix == pt2.SUFFIX:
            exported = pt2.exported_onnx(model_path, machine.scratch)
            ctx.client.log_artifact(model_path, name="exported_program")
            source = log_source(ctx, exported, machine.scratch, RUNTIME.name)
        else:
            source = log_source(ctx, model_path, machine.scratch, RUNTIME.name)
        model = onnx_file.prepared_model(source.local(), options.input_shape)
        check_opset(model)
        names = [tensor.name for tensor in (*onnx_file.inputs_of(model), *onnx_file.outputs_of(model))]
        prepared = onnx_file.write_model(model, machine.scratch / f"{model_path.stem}.prepared.onnx")
        quantization: Mapping[str, object] = {}
        if options.calibration_data is not None:
            wanted = Wanted(options.calibration_data, options.calibration_method, per_channel=True, op_types=_INT8)
            calibration = prepare(ctx, machine, RUNTIME, prepared, onnx_file.inputs_of(model), wanted)
            prepared, quantization = quantize_there(ctx, machine, prepared, calibration)
        elif options.calibration_method is not None:
            raise RefusedError(
                "calibration_method (--calibration-method) is for INT8, which needs calibration_data "
                "(--calibration-data); give it, or leave the method out."
            )
        answer, compiled = _convert(ctx, machine, prepared, model, model_path.stem)
        now = [tensor["name"] for tensor in (*answer["inputs"], *answer["outputs"])]
        if sorted(now) != sorted(names):
            raise RefusedError(f"The compiled model has the tensors {now}, the original {names}; they must agree.")
        graph = read_graph(compiled)
    ctx.client.log_artifact(compiled, name="path")
    params = {name: answer.get(name) for name in ("inputs", "outputs", "runtime_version")}
    rows = answer["layers"]["rows"]
    params |= {"precision": graph.precision, "layers_by_precision": Counter(row["precision"] for row in rows)}
    ctx.client.run.log_batch({**params, "$board": answer.get("board")})
    log_ran(ctx, answer)
    ctx.client.log_metric("model_size_mb", float(answer["size_bytes"]) / 1e6)
    return OpenVINOCompiledModel.from_current_run(ctx, quantization=quantization)


def _convert(
    ctx: HubContext, machine: Machine[OpenVINOConfig], prepared: Path, model: onnx.ModelProto, stem: str
) -> tuple[dict[str, Any], Path]:
    """Let OpenVINO convert a model there and load it, and bring the result here."""
    # A folder (weights beside a large model) is known by its listing, which logging makes; a file is not worth keeping.
    is_folder = prepared.is_dir()
    artifact = ctx.client.log_artifact(prepared, name="prepared") if is_folder else unlogged(prepared, "prepared")
    entry, output = send_model(machine, artifact, prepared), machine.folder / "compiled" / f"{stem}.xml"
    args: list[AnyPath] = ["--model", entry, "--output", output, *settings(machine)]
    try:
        answer = call_program(machine, RUNTIME, "compile", args)
    except RefusedError as error:
        raise explained(error, model) from error
    try:
        check_form(answer, _ANSWER, "the answer")
    except ValueError as error:
        raise RefusedError(
            f"The device program on {machine.title} answered compile as it never does: {error}. "
            "Install the same version of edgeproof-device there."
        ) from error
    compiled = ctx.artifact_dir / f"{stem}.openvino"
    machine.get(output.parent, compiled)
    return answer, compiled
