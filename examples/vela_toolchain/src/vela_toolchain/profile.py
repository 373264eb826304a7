"""Profile: Vela's own estimate, which it made when it compiled, as a profile document. Nothing is run."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from typing import TYPE_CHECKING

from embedl_device.statistics import Judgement, Summary, Verdict
from embedl_hub.core.document import LayerRow, LayerTable, ProfileDocument, Runtime
from embedl_hub.core.profile import ProfileError, log_document
from vela_toolchain.components import VelaCompiledModel, VelaProfiler, VelaProfilingResult
from vela_toolchain.config import EthosUConfig
from vela_toolchain.report import Estimate, Operator, read_estimate, source_tensors

if TYPE_CHECKING:
    from embedl_hub.core import HubContext


def profile_model(ctx: HubContext, model: VelaCompiledModel, *, device: str | None = None) -> VelaProfilingResult:
    """Tell what Vela estimates for a model that it compiled."""
    ctx.client.log_artifact(model.path, name="input", ctx=ctx)
    if model.layers is None or model.summary is None or model.accelerator is None:
        raise ProfileError(
            "Vela estimates while it compiles, and this model comes without that run. Give the run of "
            "embedl-hub compile vela in place of the file."
        )
    own = None if device is None else ctx.find_device(device).get_provider_config(EthosUConfig, VelaProfiler)
    if own is not None and own.accelerator != model.accelerator:
        raise ProfileError(
            f"The model was compiled for an {model.accelerator}, and device {device!r} has an {own.accelerator}. "
            "Compile it for that device."
        )
    texts = (artifact.to_local(ctx).local().read_text() for artifact in (model.layers, model.summary))
    estimate = read_estimate(*texts)
    document = _document(ctx, model, estimate)
    log_document(ctx, document)
    ctx.client.log_param("precision", "int8")
    ctx.client.log_param("accelerator", model.accelerator)
    ctx.client.log_metric("estimated_cycles", estimate.cycles)
    ctx.client.log_metric("sram_kib", estimate.sram_kib)
    ctx.client.log_metric("npu_operators", len(estimate.operators) - len(estimate.on_cpu))
    ctx.client.log_metric("cpu_operators", len(estimate.on_cpu))
    return VelaProfilingResult.from_document(ctx, document)


def _document(ctx: HubContext, model: VelaCompiledModel, estimate: Estimate) -> ProfileDocument:
    version = model.vela_version or "of an unknown version"
    time_ms, clock_mhz, on_cpu = estimate.latency_ms, estimate.clock_hz / 1e6, estimate.on_cpu
    reason = f"by Vela {version} for an {model.accelerator} at {clock_mhz:g} MHz; nothing was run"
    if on_cpu:
        names = ", ".join(sorted({operator.source_op for operator in on_cpu}))
        reason += f", and the time of {len(on_cpu)} operators on the CPU ({names}) is not in it"
    return ProfileDocument(
        Summary(mean=time_ms, median=time_ms),
        {"peak_memory_mb": estimate.sram_kib * 1024 / 1e6},
        judgement=Judgement(Verdict.ESTIMATED, reason),
        memory_method="SRAM that Vela lays out for the NPU's part",
        runtime=Runtime("Vela", version),
        place=f"an {model.accelerator}, as Vela models it",
        layers=LayerTable(tuple(_rows(ctx, model, estimate))),
        facts={
            "tool": {"name": "Vela", "version": version},
            "settings": {
                "accelerator": model.accelerator, "system_config": estimate.system_config,
                "memory_mode": estimate.memory_mode, "clock_mhz": clock_mhz,
            },
            "memory_kib": {"sram": estimate.sram_kib, "flash": estimate.flash_kib, "dram": estimate.dram_kib},
            "method": {"clock": "none: cycles are computed from Vela's model of the accelerator and its memories"},
        },
    )  # fmt: skip


def _rows(ctx: HubContext, model: VelaCompiledModel, estimate: Estimate) -> Iterator[LayerRow]:
    content = b"" if model.input is None else model.input.to_local(ctx).local().read_bytes()
    for operator, tensor in zip(estimate.operators, source_tensors(estimate.operators, content), strict=True):
        row = _row(operator, model, estimate)
        yield row if tensor is None else replace(row, source_nodes=(tensor,))


def _row(operator: Operator, model: VelaCompiledModel, estimate: Estimate) -> LayerRow:
    told: dict[str, object] = {"source_op": operator.source_op}
    if operator.is_on_npu:
        told |= {"cycles": operator.cycles, "macs": operator.macs}
    else:
        told["reason"] = model.cpu_reasons.get(operator.name, "")
    return LayerRow(
        operator.name,
        operator.op_type if operator.is_on_npu else operator.source_op,
        "NPU" if operator.is_on_npu else "CPU",
        operator.cycles / estimate.clock_hz * 1e3 if operator.is_on_npu else None,
        operator.cycles / estimate.cycles if operator.is_on_npu and estimate.cycles else None,
        integer=True if operator.is_on_npu else None,
        extra=told,
    )
