"""TFLite profiles on AWS Device Farm's phones."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Any

from embedl_hub.core.component import ProviderType
from embedl_hub.core.device import AWSConfig
from embedl_hub.core.profile import ProfileError, TFLiteProfiler, TFLiteProfilingResult
from embedl_hub.providers.aws import package
from embedl_hub.providers.aws.service import TOOLS, Farm, vendor
from embedl_hub.toolchain.refusal import RefusedError, needed_packages, refusals_as

if TYPE_CHECKING:
    from collections.abc import Mapping

    from embedl_hub.core.compile import TFLiteCompiledModel
    from embedl_hub.core.context import HubContext

_REASON = (
    "measured by benchmark_model on a phone of AWS Device Farm: means without samples, on hardware that others used "
    "before, with clocks and temperature unknown"
)


@TFLiteProfiler.provider(ProviderType.AWS, tools=TOOLS)
def _profile_tflite(ctx: HubContext, model: TFLiteCompiledModel, *, device: str | None = None) -> TFLiteProfilingResult:
    """Measure on a phone of the service; costs money by the minute."""
    vendor()
    with needed_packages("TFLite models", "tflite"):
        from embedl_hub.tflite.benchmarking import layer_flags, run_flags  # noqa: PLC0415 - vendor packages on use
        from embedl_hub.tflite.profiling import completed, log_model  # noqa: PLC0415
        from embedl_hub.toolchain.modules import source_of, with_modules  # noqa: PLC0415
        from embedl_hub.toolchain.profiles import log_document  # noqa: PLC0415
    with refusals_as(ProfileError):
        found = ctx.find_device(device or "")
        config = found.get_provider_config(AWSConfig, TFLiteProfiler) or AWSConfig()
        graph = log_model(ctx, model)
        packed = package.packed(model.path.to_local(ctx).local(), Path(config.benchmark_model).expanduser())
        spec = package.test_spec(run_flags(config), layer_flags(config.layer_runs) if config.layer_runs > 0 else [])
        farm = Farm(ctx, config)
        arns = farm.upload_package(packed, spec)
        ctx.client.log_param("aws_uploads", list(arns))
        with farm.pool(found.spec.device_name) as pool:
            run = farm.run(pool, *arns)
        _log_costs(ctx, run, config)
        phone, archive = farm.artifacts(run)
        ctx.client.log_param("aws_device", {key: str(phone.get(key)) for key in ("name", "model", "os", "arn")})
        files = {} if archive is None else package.unpacked(archive)
        for name, content in files.items():
            (ctx.artifact_dir / name).write_bytes(content)
            ctx.client.log_artifact(ctx.artifact_dir / name, name="raw" if name == package.CONSOLE else name)
        document = _document(files, run, phone)
    place = str(phone.get("name") or "AWS Device Farm")
    document = completed(document, graph, model.source_of_tensors, place)
    log_document(ctx, with_modules(document, source_of(ctx, model)))
    return TFLiteProfilingResult.from_current_run(ctx)


def _log_costs(ctx: HubContext, run: Mapping[str, Any], config: AWSConfig) -> None:
    minutes = run.get("deviceMinutes") or {}
    ctx.client.log_param("aws_result", {key: run.get(key) for key in ("status", "result", "message")})
    ctx.client.log_metric("device_minutes", float(minutes.get("total") or 0.0))
    ctx.client.log_metric("cost_usd", float(minutes.get("metered") or 0.0) * config.price_per_minute_usd)


def _document(files: Mapping[str, bytes], run: Mapping[str, Any], phone: Mapping[str, Any]) -> dict[str, Any]:
    from embedl_hub.tflite.benchmark import (  # noqa: PLC0415 - vendor packages on use
        document_of,
        first_table,
        layers_of,
        parse_console,
    )

    if package.CONSOLE not in files:
        raise RefusedError(
            f"AWS Device Farm: run {run['arn']} ended {run.get('result')} ({run.get('message') or 'no reason given'}) "
            "and left no output of benchmark_model."
        )
    console = parse_console(files[package.CONSOLE].decode("utf-8", "replace"))
    tables = [files[name] for name in (package.OPERATORS, package.OPERATORS_CONSOLE) if files.get(name)]
    try:
        layers = layers_of(first_table(tables), None)
    except RefusedError as error:
        layers = {"rows": [], "runs": 0, "missing_because": str(error)}
    document = document_of(console, layers, {"name": "benchmark_model", "run": run["arn"]})
    board = {"model": phone.get("name"), "system": phone.get("os"), "architecture": phone.get("cpu", {})}
    return {**document, "verdict_reason": _REASON, "environment": {"board": board}}
