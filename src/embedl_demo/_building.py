"""Deploy's part: transform, quantize, export and check, each step a run that begins with what the last one made."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

import torch

from embedl_deploy import transform
from embedl_deploy.dialect import check
from embedl_deploy.export import export_onnx, verify
from embedl_deploy.quantize import quantization_of, quantize
from embedl_hub.core.component import RunType

if TYPE_CHECKING:
    from pathlib import Path

    from torch import nn

    from embedl_demo.digits import Digits
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
class Network:
    """A network rewritten and quantized with a backend.

    Attributes:
        fused: The transformed network and its report.
        float_model: The transformed network as a run kept it.
        simulated: The network with quantize/dequantize pairs, in PyTorch.
        quantized: The same as a run kept it.
    """

    fused: TransformResult
    float_model: LoggedArtifact
    simulated: nn.Module
    quantized: LoggedArtifact


@dataclass(frozen=True)
class Built:
    """What deploy wrote for one runtime.

    Attributes:
        network: What it was written from.
        file: Its ONNX file.
        contract: Which kernel each operator of the file lands in.
        verification: The file against the models it came from, boundary by boundary.
    """

    network: Network
    file: Path
    contract: Contract
    verification: Verification


@dataclass(frozen=True)
class Builder:
    """Makes the files of a trained network, each step a run."""

    ctx: HubContext
    model: nn.Module
    weights: LoggedArtifact
    digits: Digits
    folder: Path

    @property
    def example(self) -> tuple[torch.Tensor]:
        """What the network is traced with."""
        return (self.digits.train_images[:1],)

    def quantize(self, backend: Backend) -> Network:
        """Transform the network for a backend and quantize it."""
        client = self.ctx.client
        with client.start_run(RunType.CUSTOM, f"transform for {backend.name}") as run:
            run.log_artifact(self.weights, name="input")
            fused = transform(self.model, self.example, backend)
            run.log_param("steps", fused.report.counts())
            run.log_param("refusals", len(fused.report.refusals))
            run.log_artifact(fused.report.save_html(self.folder / f"transform-{backend.name}.html"), name="report")
            float_model = keep(self.ctx, fused.model, self.folder / f"transformed-{backend.name}.pt", "model")
        with client.start_run(RunType.CUSTOM, f"quantize for {backend.name}") as run:
            run.log_artifact(float_model, name="input")
            batches = self.digits.calibration()
            simulated = quantize(fused.model, self.example, forward_loop=batches, backend=backend)
            run.log_param("calibration_samples", sum(len(batch) for batch in batches))
            run.log_param("quantized_layers", len(quantization_of(simulated).placement.quantized))
            kept = keep(self.ctx, simulated, self.folder / f"quantized-{backend.name}.pt", "model")
        return Network(fused, float_model, simulated, kept)

    def write(self, network: Network, runtime: str, dialect: str) -> Built:
        """Export a quantized network for a runtime, in its dialect, check the file and hold it against the models."""
        client = self.ctx.client
        with client.start_run(RunType.CUSTOM, f"export INT8 for {runtime}") as run:
            run.log_artifact(network.quantized, name="input")
            run.log_param("dialect", dialect)
            file = self._export(network.simulated, self.folder / f"int8-{runtime}.onnx", dialect)
            run.log_artifact(file, name="path")
        with client.start_run(RunType.EVAL, f"check the file for {runtime}") as run:
            run.log_artifact(file, name="input")
            contract = check(file, dialect)
            run.log_param("contract", contract.to_dict())
            samples = torch.split(self.digits.test_images[:VERIFIED], 1)
            found = verify(
                file, samples, original=self.model, transformed=network.fused.model, simulated=network.simulated
            )
            run.log_param("verified", found.passed)
            run.log_param("verdict", found.verdict)
            run.log_param("kernel_family", found.family)
            run.log_artifact(found.save_html(self.folder / f"verify-{runtime}.html"), name="report")
        return Built(network, file, contract, found)

    def write_float(self, network: Network) -> Path:
        """Export the transformed network as it is, in float."""
        with self.ctx.client.start_run(RunType.CUSTOM, "export float") as run:
            run.log_artifact(network.float_model, name="input")
            file = self._export(network.fused.model, self.folder / "float.onnx")
            run.log_artifact(file, name="path")
        return file

    def _export(self, model: nn.Module, path: Path, dialect: str | None = None) -> Path:
        return export_onnx(model, self.example, path, dialect=dialect, input_names=[INPUT], output_names=[OUTPUT])


def keep(ctx: HubContext, model: nn.Module, path: Path, name: str) -> LoggedArtifact:
    """Log a model's weights under a name, by which the next step is led back to this one."""
    torch.save(model.state_dict(), path)
    return ctx.client.log_artifact(path, name=name)
