"""What INT8 will gain, before it is made: kernels of this very model, costs measured on this very device.

The table of costs is measured once for a device, a version of ONNX Runtime and its settings, and kept in the home.
"""

from __future__ import annotations

import hashlib
import json
import logging
import os
import platform
import secrets
import socket
from collections.abc import Mapping
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from embedl_device.readers import read_json
from embedl_hub.core.device import LocalCommandRunner
from embedl_hub.machine.machine import Machine, open_machine, unlogged
from embedl_hub.machine.program import call_program
from embedl_hub.models.onnx_file import fix_input_shape, read_model, write_model
from embedl_hub.quantization.quantize import number_format, refuse_quantized
from embedl_hub.refusal import RefusedError
from embedl_hub.toolchains.onnxruntime.components import ONNXRuntimeCompiler
from embedl_hub.toolchains.onnxruntime.config import EmbedlONNXRuntimeConfig, ONNXRuntimeConfig
from embedl_hub.toolchains.onnxruntime.probes import VERSION, ProbesRequest, write_probes
from embedl_hub.toolchains.onnxruntime.runtime import RUNTIME, settings
from embedl_hub.toolchains.onnxruntime.workload import WorkloadRequest, has_open_sizes, workload
from embedl_kernels import CostTable, Gain, predict_gain, read_costs, works_of

if TYPE_CHECKING:
    from embedl_hub.core.context import HubContext
    from embedl_hub.core.device import AnyPath
    from embedl_hub.quantization.quantize import NumberFormat

COSTS_FOLDER = "kernel_costs"
OFF = "EMBEDL_HUB_PREDICTION"
_SECONDS = 6.0
_CPU = ("CPUExecutionProvider",)
_FITTING_LEVELS = ("all", "extended")
_FACTS = ("architecture", "cpu", "model", "cores_usable", "cpu_features", "memory_bytes")
_LOG = logging.getLogger("embedl_hub")


@dataclass(frozen=True)
class Prediction:
    """A gain of INT8 over float, and what it was read from; ``family`` is the kernels' as they answered themselves."""

    gain: Gain
    place: str
    family: str | None
    runtime_version: str
    costs: Path
    measured_now: bool

    def to_dict(self) -> dict[str, object]:
        """Return everything but the table as JSON-able data."""
        own = {name: value for name, value in vars(self).items() if name not in {"gain", "costs"}}
        return {**self.gain.to_dict(), **own}

    def __str__(self) -> str:
        return sentence(self.to_dict())


def sentence(prediction: Mapping[str, Any]) -> str:
    """Say a recorded prediction in words."""
    figures = f"{prediction['speedup']:.2f}x ({prediction['low']:.2f} to {prediction['high']:.2f})"
    if prediction["speedup"] > 1:
        return f"INT8 predicted {figures} as fast as float on {prediction['place']}"
    reasons = "; ".join(prediction["reasons"]) or "the kernels are too short"
    return (
        f"INT8 does not pay on {prediction['place']}: predicted {figures} as fast as float: {reasons}. "
        "Compile without --calibration-data to keep float."
    )


def is_wanted(ctx: HubContext, config: ONNXRuntimeConfig) -> bool:
    """Tell whether a compilation is to be preceded by a prediction."""
    is_off = os.environ.get(OFF, "").lower() in {"0", "off", "no", "false"}
    return config.prediction and not is_off and ctx.home is not None


def predict(
    ctx: HubContext,
    machine: Machine[ONNXRuntimeConfig],
    model: Path,
    *,
    per_channel: bool = False,
    quantize_io: bool = False,
    doctor: Mapping[str, Any] | None = None,
) -> Prediction:
    """Predict what INT8 gains on a machine for a float model with fixed shapes; the options are as for compiling.

    ``doctor`` is what the device program said of the machine, if it was asked already.

    Raises:
        RefusedError: It cannot be predicted; the text says why.
    """
    config = machine.config
    if config.execution_providers not in ((), _CPU) or config.optimization_level not in _FITTING_LEVELS:
        raise RefusedError("Predictions are for the CPU and the runtime's usual optimization; this device has others.")
    refuse_quantized(model)
    if has_open_sizes(model):
        raise RefusedError("The model's inputs have open sizes, on which its time depends; fix them with input_shape.")
    described = doctor or call_program(machine, RUNTIME, "doctor", [])
    if described.get("problem"):
        raise RefusedError(f"{described['problem']} (doctor on {machine.title})")
    board = described.get("board") or {}
    form = number_format(machine.architecture, tuple(board.get("cpu_features") or ()))
    path, answer, table, measured_now = _table(ctx, machine, described, form)
    is_alike = machine.architecture.lower() == platform.machine().lower()
    found = workload(
        WorkloadRequest(
            str(model), is_alike and config.optimization_level == "all", activations=form.activations,
            weights=form.weights, per_channel=per_channel, quantize_io=quantize_io,
        ),
        machine.scratch,
    )  # fmt: skip
    try:
        gain = predict_gain(works_of(found["float"]), works_of(found["int8"]), table)
    except ValueError as error:
        raise RefusedError(f"Nothing can be predicted: {error}.") from error
    kernels = answer.get("kernels") or {}
    return Prediction(
        gain, machine.title, kernels.get("family"), str(answer.get("runtime_version")), path, measured_now
    )


def predict_on_device(
    ctx: HubContext,
    device: str | None,
    model: Path,
    *,
    input_shape: tuple[int, ...] | None,
    per_channel: bool,
    quantize_io: bool,
) -> Prediction:
    """Predict what INT8 gains on a device, None for this machine; the input's shape is fixed where one is given."""
    with open_machine(ctx, device, ONNXRuntimeCompiler, ONNXRuntimeConfig, EmbedlONNXRuntimeConfig) as machine:
        if input_shape is not None:
            float_model = read_model(model)
            fix_input_shape(float_model, input_shape)
            model = write_model(float_model, machine.scratch / "fixed.onnx")
        return predict(ctx, machine, model, per_channel=per_channel, quantize_io=quantize_io)


def _table(
    ctx: HubContext, machine: Machine[ONNXRuntimeConfig], described: Mapping[str, Any], form: NumberFormat
) -> tuple[Path, Mapping[str, Any], CostTable, bool]:
    """Return the device's table: the one that is kept, or one measured now."""
    words = settings(machine.config)
    path = (ctx.home or machine.scratch) / COSTS_FOLDER / f"{_key(machine, described, form, words)}.json"
    try:
        answer = read_json(path)
        return path, answer, read_costs(answer), False
    except FileNotFoundError:
        pass
    except (OSError, ValueError, TypeError) as error:
        _LOG.info("The kernel costs in %s are of no use and are measured again: %s", path, error)
    _LOG.info("Measuring what kernels cost on %s, once", machine.title)
    archive = machine.scratch / "probes.zip"
    write_probes(ProbesRequest(str(archive), activations=form.activations, weights=form.weights), machine.scratch)
    args: list[AnyPath] = ["--models", machine.send(unlogged(archive, "probes")), "--seconds", f"{_SECONDS:g}", *words]
    answer = call_program(machine, RUNTIME, "kernel-costs", args)
    try:
        table = read_costs(answer)
    except ValueError as error:
        raise RefusedError(f"{machine.title.capitalize()} gave no kernel costs: {error}.") from error
    _keep(path, answer)
    return path, answer, table, True


def _key(
    machine: Machine[ONNXRuntimeConfig], described: Mapping[str, Any], form: NumberFormat, words: list[str]
) -> str:
    board = described.get("board") or {}
    # Machines that share a home all call themselves "this machine".
    host = socket.gethostname() if isinstance(machine.runner, LocalCommandRunner) else ""
    # What the runtime answered counts, not what the processor lists: a virtual machine may hide features.
    family = (described.get("kernels") or {}).get("family")
    listed = [board.get(name) for name in _FACTS]
    facts = [machine.title, host, listed, family, described.get("onnxruntime"), words, asdict(form)]
    return hashlib.sha256(json.dumps([VERSION, *facts], sort_keys=True).encode()).hexdigest()[:32]


def _keep(path: Path, answer: Mapping[str, object]) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    part = path.with_name(f".{path.name}.{os.getpid()}.{secrets.token_hex(4)}")
    part.write_text(json.dumps(answer, separators=(",", ":")), encoding="utf-8")
    part.replace(path)
