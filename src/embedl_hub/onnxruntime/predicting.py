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
from dataclasses import asdict, dataclass
from typing import TYPE_CHECKING, Any

from embedl_hub.core.device import LocalCommandRunner
from embedl_hub.onnxruntime.place import settings
from embedl_hub.onnxruntime.probes import VERSION, ProbesRequest, write_probes
from embedl_hub.onnxruntime.quantizing import number_format, refuse_quantized
from embedl_hub.onnxruntime.workload import WorkloadRequest, has_open_sizes, workload
from embedl_hub.toolchain.program import call
from embedl_hub.toolchain.refusal import RefusedError
from embedl_hub.tracking import LoggedArtifact, hash_file
from embedl_kernels import CostTable, Gain, predict_gain, read_costs, works_of

if TYPE_CHECKING:
    from pathlib import Path

    from embedl_hub.core.context import HubContext
    from embedl_hub.core.device import ONNXRuntimeConfig
    from embedl_hub.onnxruntime.quantizing import NumberFormat
    from embedl_hub.toolchain.place import Place

COSTS_FOLDER = "kernel_costs"
OFF = "EMBEDL_HUB_PREDICTION"
_SECONDS = 6.0
_CPU = ("CPUExecutionProvider",)
_FITTING_LEVELS = ("all", "extended")
_FACTS = ("architecture", "cpu", "model", "cores_usable", "cpu_features", "memory_bytes")
_LOG = logging.getLogger("embedl_hub")


@dataclass(frozen=True)
class Prediction:
    """A gain, and the table it was read from.

    Attributes:
        gain: What INT8 gains over float.
        place: What messages call the device.
        family: Its kernel family, as its own kernels answered.
        runtime_version: The version of ONNX Runtime there.
        costs: The file with the table.
        measured_now: Whether the table was measured for this prediction.
    """

    gain: Gain
    place: str
    family: str | None
    runtime_version: str
    costs: Path
    measured_now: bool

    def to_dict(self) -> dict[str, Any]:
        """Return everything but the table as JSON-able data."""
        kept = {**asdict(self), "gain": None, "costs": None}
        return {**self.gain.to_dict(), **{name: value for name, value in kept.items() if name not in {"gain", "costs"}}}

    def __str__(self) -> str:
        return sentence(self.to_dict())


def sentence(prediction: dict[str, Any]) -> str:
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
    place: Place[ONNXRuntimeConfig],
    model: Path,
    *,
    per_channel: bool = False,
    quantize_io: bool = False,
    doctor: dict[str, Any] | None = None,
) -> Prediction:
    """Predict what INT8 gains on a place.

    Args:
        ctx: The context.
        place: Where the model is to run.
        model: The float model, with fixed shapes.
        per_channel: As for compiling.
        quantize_io: As for compiling.
        doctor: What the device program said of the place, if it was asked already.

    Raises:
        RefusedError: It cannot be predicted; the text says why.
    """
    config = place.config
    if config.execution_providers not in ((), _CPU) or config.optimization_level not in _FITTING_LEVELS:
        raise RefusedError("Predictions are for the CPU and the runtime's usual optimisation; this device has others.")
    refuse_quantized(model)
    if has_open_sizes(model):
        raise RefusedError("The model's inputs have open sizes, on which its time depends; fix them with input_shape.")
    said = doctor or call(place, "doctor", [])
    if said.get("problem"):
        raise RefusedError(f"{said['problem']} (doctor on {place.title})")
    board = said.get("board", {})
    form = number_format(place.architecture, tuple(board.get("cpu_features", ())))
    path, answer, table, measured_now = _table(ctx, place, said, form)
    is_alike = place.architecture.lower() == platform.machine().lower()
    found = workload(
        WorkloadRequest(
            str(model), form.activations, form.weights, per_channel, quantize_io,
            layouts=is_alike and config.optimization_level == "all",
        ),
        place.scratch,
    )  # fmt: skip
    try:
        gain = predict_gain(works_of(found["float"]), works_of(found["int8"]), table)
    except ValueError as error:
        raise RefusedError(f"Nothing can be predicted: {error}.") from error
    kernels = answer.get("kernels", {})
    return Prediction(gain, place.title, kernels.get("family"), str(answer["runtime_version"]), path, measured_now)


def _table(
    ctx: HubContext, place: Place[ONNXRuntimeConfig], said: dict[str, Any], form: NumberFormat
) -> tuple[Path, dict[str, Any], CostTable, bool]:
    """Return the device's table: the one that is kept, or one measured now."""
    words = settings(place.config)
    path = (ctx.home or place.scratch) / COSTS_FOLDER / f"{_key(place, said, form, words)}.json"
    try:
        answer = json.loads(path.read_bytes())
        return path, answer, read_costs(answer), False
    except FileNotFoundError:
        pass
    except (OSError, ValueError, TypeError) as error:
        _LOG.info("The kernel costs in %s are of no use and are measured again: %s", path, error)
    _LOG.info("Measuring what kernels cost on %s, once", place.title)
    archive = place.scratch / "probes.zip"
    write_probes(ProbesRequest(str(archive), form.activations, form.weights), place.scratch)
    artifact = LoggedArtifact("probes", archive.name, archive.stat().st_size, hash_file(archive), local_path=archive)
    answer = call(place, "kernel-costs", ["--models", place.send(artifact), "--seconds", f"{_SECONDS:g}", *words])
    try:
        table = read_costs(answer)
    except ValueError as error:
        raise RefusedError(f"{place.title.capitalize()} gave no kernel costs: {error}.") from error
    _keep(path, answer)
    return path, answer, table, True


def _key(place: Place[ONNXRuntimeConfig], said: dict[str, Any], form: NumberFormat, words: list[str]) -> str:
    board = said.get("board", {})
    # Machines that share a home all call themselves "this machine".
    host = socket.gethostname() if isinstance(place.runner, LocalCommandRunner) else ""
    # What the runtime answered counts, not what the processor lists: a virtual machine may hide features.
    family = (said.get("kernels") or {}).get("family")
    listed = [board.get(name) for name in _FACTS]
    facts = [place.title, host, listed, family, said.get("onnxruntime"), words, asdict(form)]
    return hashlib.sha256(json.dumps([VERSION, *facts], sort_keys=True).encode()).hexdigest()[:32]


def _keep(path: Path, answer: dict[str, Any]) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    part = path.with_name(f".{path.name}.{os.getpid()}.{secrets.token_hex(4)}")
    part.write_text(json.dumps(answer, separators=(",", ":")), encoding="utf-8")
    part.replace(path)
