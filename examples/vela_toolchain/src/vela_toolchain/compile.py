"""Compile: an INT8 TFLite file to one with a command stream, by Vela in a process of its own.

python -P -m ethosu.vela model.tflite --output-dir out --accelerator-config ethos-u55-128 --optimise Performance
       --verbose-performance --show-cpu-operations
"""

from __future__ import annotations

import logging
import sys
import tempfile
from collections import Counter
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING

from embedl_hub.core.device import LocalCommandRunner
from embedl_hub.errors import CommandError, CompileError, quoted_list
from vela_toolchain.components import VelaCompiledModel, VelaCompiler
from vela_toolchain.config import EthosUConfig, check_accelerator, check_names, need_package
from vela_toolchain.report import Estimate, read_estimate, read_reasons

if TYPE_CHECKING:
    from embedl_hub.core import HubContext

_LOG = logging.getLogger(__name__)
_TIMEOUT_S = 1800.0
_LARGEST_BYTES = 256 << 20  # far beyond any memory that an Ethos-U works with
_OPTIMIZE = ("Performance", "Size")


def compile_model(
    ctx: HubContext,
    tflite_path: Path,
    *,
    device: str | None = None,
    accelerator: str | None = None,
    system_config: str | None = None,
    memory_mode: str | None = None,
    optimize: str | None = None,
) -> VelaCompiledModel:
    """Compile a model for the device's accelerator, or for the one that is named."""
    path = Path(tflite_path)
    config = _config(ctx, device, accelerator, system_config, memory_mode)
    if optimize is not None and optimize not in _OPTIMIZE:
        raise CompileError(f"optimize is {optimize!r}; it is one of {quoted_list(_OPTIMIZE)}.")
    content = _read(path)
    version = need_package("ethos-u-vela")
    ctx.client.log_artifact(path, name="input")
    with tempfile.TemporaryDirectory(prefix="vela-") as scratch:
        # A plain name: Vela makes those of its files from it.
        source, made = Path(scratch) / "model.tflite", Path(scratch) / "made"
        source.write_bytes(content)
        printed = _call_vela(path, source, made, config, optimize or _OPTIMIZE[0])
        layers, summary = made / "model_per-layer.csv", next(made.glob("model_summary_*.csv"))
        estimate, reasons = read_estimate(layers.read_text(), summary.read_text()), read_reasons(printed)
        _check_split(path, config, estimate, reasons)
        report = made / "vela.txt"
        report.write_text(printed)
        for name, file, file_name in (
            ("path", made / "model_vela.tflite", f"{path.stem}_vela.tflite"),
            ("layers", layers, "layers.csv"),
            ("summary", summary, "summary.csv"),
            ("report", report, "vela.txt"),
        ):
            target = ctx.artifact_dir / file_name
            target.write_bytes(file.read_bytes())
            ctx.client.log_artifact(target, name=name)
    _log(ctx, config, estimate, reasons, version)
    return VelaCompiledModel.from_current_run(ctx)


def _config(
    ctx: HubContext, device: str | None, accelerator: str | None, system_config: str | None, memory_mode: str | None
) -> EthosUConfig:
    """Return what to compile for: the device's settings, with what was asked for instead."""
    own = None if device is None else ctx.find_device(device).get_provider_config(EthosUConfig, VelaCompiler)
    if accelerator is not None:
        check_accelerator(accelerator)
        if own is not None and accelerator != own.accelerator:
            raise CompileError(
                f"Device {device!r} has an {own.accelerator}; what is compiled for an {accelerator} does not run on "
                "it. Leave accelerator out, or compile on this machine (--here)."
            )
    given = {"accelerator": accelerator, "system_config": system_config, "memory_mode": memory_mode}
    config = replace(own or EthosUConfig(), **{name: value for name, value in given.items() if value is not None})
    check_names(config)
    return config


def _read(path: Path) -> bytes:
    """Return a file that Vela can be given; it crashes on others, or takes its own output for a model."""
    try:
        with path.open("rb") as file:
            content = file.read(_LARGEST_BYTES + 1)
    except OSError as error:
        raise CompileError(f"The model {path} cannot be read: {error}.") from error
    if len(content) > _LARGEST_BYTES:
        raise CompileError(f"{path} has more than {_LARGEST_BYTES >> 20} MiB, more than an Ethos-U can work with.")
    if content[4:8] != b"TFL3":
        raise CompileError(
            f"{path} is no TFLite model. Vela takes INT8 TFLite files: embedl-hub compile tflite MODEL.onnx "
            "--calibration-data DATA --output MODEL.tflite makes one."
        )
    if b"ethos-u" in content:
        raise CompileError(f"{path} was compiled by Vela already; give the model it was made from.")
    return content


def _call_vela(path: Path, source: Path, made: Path, config: EthosUConfig, optimize: str) -> str:
    # -P: nothing is imported from the folder that it runs in.
    argv = [sys.executable, "-P", "-m", "ethosu.vela", str(source), "--output-dir", str(made)]
    argv += ["--accelerator-config", config.accelerator, "--optimise", optimize]
    argv += ["--verbose-performance", "--show-cpu-operations"]
    for flag, value in (
        ("--config", config.vela_ini_path),
        ("--system-config", config.system_config),
        ("--memory-mode", config.memory_mode),
    ):
        argv += [] if value is None else [flag, value]
    try:
        return LocalCommandRunner().run(argv, cwd=source.parent, hide=True, timeout_s=_TIMEOUT_S).stdout
    except CommandError as error:
        raise CompileError(f"Vela could not compile {path}: {_reason(error)}") from error


def _reason(error: CommandError) -> str:
    if error.exit_code is None:
        return f"it was stopped after {_TIMEOUT_S:g} s."
    if error.exit_code > 128:
        return f"it crashed (exit code {error.exit_code}); the file may be damaged. Does another TFLite tool read it?"
    said = [line for line in error.stderr.splitlines() if line.strip()]
    return said[-1][:500] if said else f"it ended with code {error.exit_code}."


def _check_split(path: Path, config: EthosUConfig, estimate: Estimate, reasons: dict[str, str]) -> None:
    """Refuse a model of which nothing goes to the NPU, and say aloud what stays on the CPU."""
    on_cpu = estimate.on_cpu
    if not on_cpu:
        return
    why = Counter(reasons[each.name] for each in on_cpu if each.name in reasons).most_common(1)
    told = f" Most often: {why[0][0]}." if why else ""
    if len(on_cpu) == len(estimate.operators):
        raise CompileError(
            f"Nothing of {path} goes to the NPU: all {len(on_cpu)} operators would stay on the CPU.{told} An "
            f"{config.accelerator} computes in integers: quantize the model first (embedl-hub compile tflite "
            "MODEL.onnx --calibration-data DATA)."
        )
    _LOG.warning(
        "%d of %d operators stay on the CPU: %s.%s",
        len(on_cpu), len(estimate.operators), _counted(each.source_op for each in on_cpu), told,
    )  # fmt: skip


def _counted(names: object) -> str:
    return ", ".join(f"{count} {name}" for name, count in sorted(Counter(names).items()))  # type: ignore[call-overload]


def _log(ctx: HubContext, config: EthosUConfig, estimate: Estimate, reasons: dict[str, str], version: str) -> None:
    client, on_cpu = ctx.client, estimate.on_cpu
    client.log_param("accelerator", config.accelerator)
    client.log_param("vela_version", version)
    client.log_param("precision", "int8")
    client.log_param("vela_system_config", estimate.system_config)
    client.log_param("vela_memory_mode", estimate.memory_mode)
    client.log_param("cpu_reasons", {each.name: reasons.get(each.name, "Vela does not say why") for each in on_cpu})
    client.log_metric("npu_operators", len(estimate.operators) - len(on_cpu))
    client.log_metric("cpu_operators", len(on_cpu))
    client.log_metric("sram_kib", estimate.sram_kib)
    client.log_metric("estimated_cycles", estimate.cycles)
