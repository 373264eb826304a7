"""Deploy's part: transform, quantize, export and check, each step a run that begins with what the last one made."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

import torch

from embedl_deploy import transform
from embedl_deploy.dialect import check, dialect_for
from embedl_deploy.export import export_onnx, verify
from embedl_deploy.onnxruntime import ONNXRUNTIME
from embedl_deploy.quantize import quantization_of, quantize
from embedl_deploy.tensorrt import TENSORRT
from embedl_hub.core.component import RunType

if TYPE_CHECKING:
    from pathlib import Path

    from digits import Digits
    from torch import nn

    from embedl_deploy import TransformResult
    from embedl_deploy.backend import Backend
    from embedl_deploy.dialect import Contract
    from embedl_deploy.export import Verification
    from embedl_hub.core import HubContext
    from embedl_hub.tracking import LoggedArtifact

INPUT, OUTPUT = "image", "scores"
VERIFIED = 16
"""Test digits on which every quantized boundary is judged; the whole test set goes through the compiled files."""


@dataclass(frozen=True)
class Target:
    """Whom a model is built for."""

    name: str
    backend: Backend
    dialect: str


def targets() -> tuple[Target, Target]:
    """Return ONNX Runtime in the dialect of this machine's integer kernels, and TensorRT."""
    return Target("onnxruntime", ONNXRUNTIME, dialect_for("here").name), Target("tensorrt", TENSORRT, "tensorrt")


@dataclass(frozen=True)
class Built:
    """What deploy made for one target.

    Attributes:
        fused: The transformed network and its report.
        float_model: The transformed network as a run kept it.
        simulated: The network with quantize/dequantize pairs, in PyTorch.
        file: Its ONNX file.
        contract: Which kernel each operator of the file lands in.
        verification: The file against the models it came from, boundary by boundary.
    """

    fused: TransformResult
    float_model: LoggedArtifact
    simulated: nn.Module
    file: Path
    contract: Contract
    verification: Verification


def keep(ctx: HubContext, model: nn.Module, path: Path, name: str) -> LoggedArtifact:
    """Log a model's weights under a name, by which the next step is led back to this one."""
    torch.save(model.state_dict(), path)
    return ctx.client.log_artifact(path, name=name)


def build(
    ctx: HubContext, model: nn.Module, weights: LoggedArtifact, digits: Digits, target: Target, folder: Path
) -> Built:
    """Transform, quantize, export and check a model for one target."""
    example = (digits.train_images[:1],)
    with ctx.client.start_run(RunType.CUSTOM, f"transform for {target.name}") as run:
        run.log_artifact(weights, name="input")
        fused = transform(model, example, target.backend)
        run.log_param("steps", fused.report.counts())
        run.log_param("refusals", len(fused.report.refusals))
        run.log_artifact(fused.report.save_html(folder / f"transform-{target.name}.html"), name="report")
        float_model = keep(ctx, fused.model, folder / f"transformed-{target.name}.pt", "model")
    with ctx.client.start_run(RunType.CUSTOM, f"quantize for {target.name}") as run:
        run.log_artifact(float_model, name="input")
        batches = digits.calibration()
        simulated = quantize(fused.model, example, forward_loop=batches, backend=target.backend)
        run.log_param("calibration_samples", sum(len(batch) for batch in batches))
        run.log_param("quantized_layers", len(quantization_of(simulated).placement.quantized))
        kept = keep(ctx, simulated, folder / f"quantized-{target.name}.pt", "model")
    with ctx.client.start_run(RunType.CUSTOM, f"export INT8 for {target.name}") as run:
        run.log_artifact(kept, name="input")
        run.log_param("dialect", target.dialect)
        file = _export(simulated, example, folder / f"int8-{target.name}.onnx", target.dialect)
        run.log_artifact(file, name="path")
    with ctx.client.start_run(RunType.EVAL, f"check the file for {target.name}") as run:
        run.log_artifact(file, name="input")
        contract = check(file, target.dialect)
        run.log_param("contract", contract.to_dict())
        samples = torch.split(digits.test_images[:VERIFIED], 1)
        found = verify(file, samples, original=model, transformed=fused.model, simulated=simulated)
        run.log_param("verified", found.passed)
        run.log_param("verdict", found.verdict)
        run.log_param("kernel_family", found.family)
        run.log_artifact(found.save_html(folder / f"verify-{target.name}.html"), name="report")
    return Built(fused, float_model, simulated, file, contract, found)


def export_float(ctx: HubContext, built: Built, digits: Digits, path: Path) -> Path:
    """Export the transformed network as it is, in float."""
    with ctx.client.start_run(RunType.CUSTOM, "export float") as run:
        run.log_artifact(built.float_model, name="input")
        run.log_artifact(_export(built.fused.model, (digits.train_images[:1],), path), name="path")
    return path


def _export(model: nn.Module, example: tuple[torch.Tensor], path: Path, dialect: str | None = None) -> Path:
    return export_onnx(model, example, path, dialect=dialect, input_names=[INPUT], output_names=[OUTPUT])
