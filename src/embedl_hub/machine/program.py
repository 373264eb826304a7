"""Device programs: arguments there, one JSON object back, every ending in words; what every toolchain does with them.

Profiles, models in turns and inferences are kept the same way, with the same metrics and verdicts, for every runtime.
"""

from __future__ import annotations

import json
import logging
import os
from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import asdict
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from embedl_device import DOCUMENT_FORMAT
from embedl_device.arrays import base_of, spread
from embedl_device.rounds import MAX_SECONDS, UNTIL
from embedl_device.statistics import Ratio, paired_ratio, rank, without_waiting
from embedl_hub.core.answer import Form, check_form, parse_answer
from embedl_hub.core.document import ProfileDocument
from embedl_hub.core.profile import PairedModel, PairedResult, log_document
from embedl_hub.errors import CommandError, quoted_list
from embedl_hub.models.calibration import read_outputs, write_npz
from embedl_hub.models.onnx_file import check_data, gather, model_file, shape_hint
from embedl_hub.refusal import RefusedError

if TYPE_CHECKING:
    from embedl_hub.core.component import CompiledModel
    from embedl_hub.core.context import HubContext
    from embedl_hub.core.device import AnyPath, MeasuringConfig, ProviderConfig
    from embedl_hub.machine.machine import Machine, Runtime
    from embedl_hub.models.onnx_file import Tensor
    from embedl_hub.paths import RemotePath
    from embedl_hub.tracking import LoggedArtifact

_LOG = logging.getLogger("embedl_hub")
_NOT_FOUND = 127
_FAILED = 1

# What is read of every answer, and of that to "pair": a board may be in other hands than ours.
_ANSWER: Form = {
    "problem?": str,
    "runtime_version?": str,
    "warnings?": [str],
    "kernels?": {"family?": str, "u8s8?": str},
    "board?": {"architecture?": str, "cpu_features?": [str]},
    "placement?": {"*": [{"name": str, "op_type": str}]},
}
_PAIRED: Form = {
    "rounds": float,
    "loaded_at": [int],
    "models": [
        {
            "file_name": str,
            "samples_us": [float],
            "waited_us?": [float],
            "latency_ms": {"median": float},
            "data": {"inputs": {"*": {"shape": [int]}}},
        }
    ],
}


def call_program(
    machine: Machine[MeasuringConfig],
    runtime: Runtime,
    command: str,
    arguments: Sequence[AnyPath],
    *,
    may_be_silent: bool = False,
) -> dict[str, Any]:
    """Run one command of the device program and return its answer.

    A board without the program gets it; a failure is told in the program's own words. Where the files are the answer
    another program may do, one that prints no JSON: it ``may_be_silent``.
    """
    words = [command, *arguments, *getattr(machine.config, "cli_args", ())]
    while True:
        argv = [*machine.program(runtime), *words]
        try:
            result = machine.runner.run(argv, hide=True, timeout_s=machine.config.timeout_s)
        except CommandError as error:
            if error.exit_code != _NOT_FOUND or not machine.carry_program(runtime):
                raise RefusedError(_failure_message(machine, runtime, command, error)) from error
        else:
            return _answer(machine, command, result.stdout, may_be_silent=may_be_silent)


def send_model(
    machine: Machine[ProviderConfig], artifact: LoggedArtifact, local: Path, suffix: str = ".onnx"
) -> RemotePath:
    """Send a model, a file or a folder with one in it, and return the path of its file there."""
    there = machine.send(artifact)
    return there / model_file(local, suffix).name if local.is_dir() else there


def input_name(file_name: str) -> str:
    """Return what a run calls the file it works on, told from what it makes of it; a part of a long name will do."""
    return f"input_{file_name}" if len(os.fsencode(file_name)) < 240 else file_name


def log_source(ctx: HubContext, onnx_path: Path, scratch: Path, runtime: str) -> LoggedArtifact:
    """Record the model that is compiled, as the user gave it with its weights, and what for."""
    ctx.client.log_param("$runtime", runtime)
    source = gather(onnx_path, scratch)
    return ctx.client.log_artifact(source, name="input", file_name=input_name(source.name))


def log_model(ctx: HubContext, model: CompiledModel, runtime: str) -> Path:
    """Record which model is measured or run, and return where it is on this machine."""
    ctx.client.log_artifact(model.path, name="input", file_name=input_name(model.path.file_name), ctx=ctx)
    ctx.client.log_param("$runtime", runtime)
    return ctx.bring_here(model.path)


def profile_there(
    machine: Machine[MeasuringConfig],
    runtime: Runtime,
    model: AnyPath,
    arguments: Sequence[AnyPath],
    until: str | None = None,
) -> dict[str, Any]:
    """Let the device program measure a model that is there, and return its document.

    ``until`` is what it measures until, where that is not what the device says.
    """
    config = machine.config
    plan = [*_plan(config, config.iterations, 1, until or config.until), "--layer-runs", str(config.layer_runs)]
    answer = call_program(machine, runtime, "profile", ["--model", model, *arguments, *plan])
    _check_format(answer, machine)
    return answer


def refuse_until(until: str | None, config: MeasuringConfig | None, who: str) -> None:
    """Refuse a goal where somebody else's program measures, which cannot be told one."""
    goal = until or (None if config is None else config.until)
    if goal is not None:
        raise RefusedError(
            f"{who} cannot measure until {goal!r}: it knows numbers of runs and seconds, not what its samples support. "
            "Leave until out and give the device more iterations, or profile where a device program runs."
        )


def log_kernels(ctx: HubContext, answer: Mapping[str, Any], more: Sequence[str] = ()) -> None:
    """Record which integer kernels an answer was made by, and say aloud and record what is wrong with it."""
    kernels = answer.get("kernels")
    if kernels:
        ctx.client.log_param("kernel_family", kernels.get("family"))
        ctx.client.log_param("$kernels", kernels)
    warnings = [*(answer.get("warnings") or ()), *more]
    for warning in warnings:
        _LOG.warning("%s", warning)
    if warnings:
        ctx.client.log_param("warnings", warnings)


def _answer(machine: Machine[MeasuringConfig], command: str, stdout: str, *, may_be_silent: bool) -> dict[str, object]:
    last = next((line for line in reversed(stdout.splitlines()) if line.strip()), "")
    why = "it is no JSON object"
    try:
        answer = parse_answer(last)
    except ValueError as error:
        answer, why = None, str(error)
    if not isinstance(answer, dict):
        if may_be_silent:
            return {}
        raise RefusedError(
            f"The device program on {machine.title} answered {command} with {last[:200]!r}, not with a JSON object "
            f"({why:.200}). Is another program of that name installed there?"
        )
    _check_answer(answer, _ANSWER, machine, command)
    return answer


def _check_answer(answer: dict[str, Any], form: Form, machine: Machine[MeasuringConfig], command: str) -> None:
    try:
        check_form(answer, form, "the answer")
    except ValueError as error:
        raise RefusedError(
            f"The device program on {machine.title} answered {command} as it never does: {error}. "
            "Install the same version of edgeproof-device there."
        ) from error


def _failure_message(machine: Machine[MeasuringConfig], runtime: Runtime, command: str, error: CommandError) -> str:
    mark = f"{runtime.command}: error: "
    own_words = [line.removeprefix(mark) for line in error.stderr.splitlines() if line.startswith(mark)]
    if error.exit_code == _FAILED and own_words:
        return f"{own_words[-1]} ({command} on {machine.title})"
    if error.exit_code == _NOT_FOUND:
        return (
            f"{machine.title.capitalize()} has no {error.argv[0]!r}. Install Python 3.8 or newer with "
            f"{runtime.packages} there, or say where they are: {runtime.board_config}(python_path=...). "
            f"It said: {error.stderr.strip()[-300:] or 'nothing'}"
        )
    if error.exit_code is not None and error.exit_code > 128:
        return f"{runtime.title} crashed during {command} on {machine.title}: {error}\n{runtime.after_a_crash}"
    return f"{runtime.command} {command} failed on {machine.title}: {error}"


def data_arguments(
    machine: Machine[MeasuringConfig], inputs: Sequence[Tensor], data: Mapping[str, np.ndarray] | None
) -> list[str]:
    """Bring the data to measure on to the machine and return the arguments for it; none when it is made up there."""
    if data is not None:
        check_data(inputs, data, "input_data")
        path = machine.scratch / "data.npz"
        write_npz(path, data)
        return ["--input-dir", str(machine.put(path, "data/data.npz").parent)]
    for tensor in inputs:
        if not tensor.is_fixed:
            raise RefusedError(
                f"Input {tensor} has no fixed shape, so there is nothing to measure. Compile with "
                f"{shape_hint(tensor)}, or profile with input_data={{{tensor.name!r}: ...}} "
                f"(--input-data {tensor.name}=FILE.npy)."
            )
    return []


def _check_format(answer: Mapping[str, object], machine: Machine[MeasuringConfig]) -> None:
    """Refuse an answer of another version."""
    if answer.get("format") != DOCUMENT_FORMAT:
        raise RefusedError(
            f"The device program on {machine.title} writes profiles of format {answer.get('format')!r:.100}, this hub "
            f"reads {DOCUMENT_FORMAT}. Install the same version of edgeproof-device there."
        )


def infer(
    ctx: HubContext,
    machine: Machine[MeasuringConfig],
    runtime: Runtime,
    entry: AnyPath,
    data: Mapping[str, np.ndarray],
    settings: Sequence[str],
) -> tuple[dict[str, np.ndarray], dict[str, object]]:
    """Run a model that is there on data that is here; return its outputs and what the device program told."""
    path = machine.scratch / "data.npz"
    write_npz(path, data)
    source, target = machine.put(path, "input/data.npz").parent, machine.folder / "output"
    args = ["--model", entry, "--input-dir", source, "--output-dir", target, "--use-npz", *settings]
    answer = call_program(machine, runtime, "run-inference", args, may_be_silent=True)
    if (version := answer.get("runtime_version")) is not None:
        ctx.client.log_param("runtime_version", version)
    else:
        ctx.client.log_param("runtime_note", f"the program on {machine.title} does not say its version")
    fetched = machine.scratch / "fetched"
    machine.get(target, fetched)
    return read_outputs(fetched), answer


def log_input_data(ctx: HubContext, data: Mapping[str, np.ndarray]) -> None:
    """Keep the data with the run, so that another model can be compared on it later."""
    path = ctx.artifact_dir / "input_data.npz"
    write_npz(path, data)
    ctx.client.log_artifact(path, name="input_data")


def log_output(ctx: HubContext, output: Mapping[str, np.ndarray]) -> None:
    """Keep the outputs as one file."""
    path = ctx.artifact_dir / "output.npz"
    write_npz(path, output)
    ctx.client.log_artifact(path, name="output_file")


def with_elements(data: Mapping[str, Any], loose: Collection[str], mapping: Mapping[str, str]) -> dict[str, np.ndarray]:
    """Return data with an array for each element of the inputs that are sequences: ``name[0]`` and on."""
    return {
        entry: value
        for name, given in data.items()
        for entry, value in (spread({name: given}) if mapping.get(name, name) in loose else {name: given}).items()
    }


def compiled_names(data: Mapping[str, np.ndarray], mapping: Mapping[str, str]) -> dict[str, np.ndarray]:
    """Return the data under the compiled names; original and compiled ones are taken."""
    now = set(mapping.values())
    named: dict[str, np.ndarray] = {}
    for name, array in data.items():
        base, _ = (name, None) if name in mapping or name in now else base_of(name)
        if mapping and base not in mapping and base not in now:
            raise RefusedError(
                f"{name!r} is no input of the model. Its inputs were called {quoted_list(mapping)}, the compiler made "
                f"{quoted_list(now)} of them."
            )
        target = mapping.get(base, base) + name[len(base) :]
        if target in named:
            raise RefusedError(f"Input {target!r} is given twice, under its original and its compiled name.")
        try:
            named[target] = np.asarray(array)
        except ValueError:
            raise RefusedError(f"Input {name!r} is a sequence of unequal arrays; only tensors can be given.") from None
    return named


def original_names(output: Mapping[str, np.ndarray], mapping: Mapping[str, str]) -> dict[str, np.ndarray]:
    """Return the outputs under their original names."""
    back = {now: before for before, now in mapping.items()}

    def original(name: str) -> str:
        base = name if name in back else base_of(name)[0]
        return back.get(base, base) + name[len(base) :]

    return {original(name): array for name, array in output.items()}


def artifact_name(number: int) -> str:
    """Return what a run calls its models, counted from 1; the first is its input like any profile's."""
    return "input" if number == 1 else f"input_{number}"


def measure_in_turns(
    ctx: HubContext,
    machine: Machine[MeasuringConfig],
    runtime: Runtime,
    models: Sequence[CompiledModel],
    read_inputs: Callable[[Path], Sequence[Tensor]],
    args: Sequence[AnyPath],
    *,
    samples: int,
    data: Mapping[str, np.ndarray] | None = None,
) -> PairedResult:
    """Let the device program measure models in turns, and keep what it found; the others are compared to the first.

    ``read_inputs`` reads the inputs that a model declares; ``data`` is what all are run on, made up when not given.
    """
    if not isinstance(models, list | tuple) or len(models) < 2:
        raise RefusedError(
            f"Measuring in turns takes a list of two models or more, not {models!r:.100}; the first is the reference."
        )
    if samples < 1:
        raise RefusedError(f"samples must be at least 1, not {samples}.")
    placed = place_models(ctx, machine, runtime, models, read_inputs, data)
    plan = _plan(machine.config, samples, len(models))
    document = measure_there(machine, runtime, "pair", [*placed, *args, *plan], _PAIRED)
    if len(document["models"]) != len(models):
        raise RefusedError(f"The device program on {machine.title} measured other models than it was given.")
    return _keep_paired(ctx, machine, document)


def place_models(
    ctx: HubContext,
    machine: Machine[MeasuringConfig],
    runtime: Runtime,
    models: Sequence[CompiledModel],
    read_inputs: Callable[[Path], Sequence[Tensor]],
    data: Mapping[str, np.ndarray] | None,
) -> list[AnyPath]:
    """Record which models are measured, bring them and the data to the machine, and return the arguments for them."""
    for number, model in enumerate(models, 1):
        file_name = input_name(model.path.file_name)
        ctx.client.log_artifact(model.path, name=artifact_name(number), file_name=file_name, ctx=ctx)
    ctx.client.log_param("$runtime", runtime.name)
    local = [ctx.bring_here(model.path) for model in models]
    # That each can take the data is checked before any of them is sent.
    data_args = [data_arguments(machine, read_inputs(path), data) for path in local][-1]
    pairs = zip(models, local, strict=True)
    files = [send_model(machine, model.path, path, runtime.model_suffix) for model, path in pairs]
    return [*(arg for file in files for arg in ("--model", file)), *data_args]


def measure_there(
    machine: Machine[MeasuringConfig], runtime: Runtime, command: str, arguments: Sequence[AnyPath], form: Form
) -> dict[str, Any]:
    """Let the device program measure, and return its document, checked for its form."""
    document = call_program(machine, runtime, command, arguments)
    _check_format(document, machine)
    _check_answer(document, form, machine, command)
    return document


def _keep_paired(ctx: HubContext, machine: Machine[MeasuringConfig], document: dict[str, Any]) -> PairedResult:
    rows = document["models"]
    _log_shapes(ctx, rows)
    times = [without_waiting(row["samples_us"], row.get("waited_us")) for row in rows]
    loaded_at = document["loaded_at"]
    try:
        ratios = [Ratio(1.0), *(paired_ratio(each, times[0], loaded_at) for each in times[1:])]
        ranking = rank(times, loaded_at)
    except (ValueError, IndexError, ArithmeticError) as error:
        raise RefusedError(f"The device program on {machine.title} gave times that are none: {error}") from error
    document |= {"place": machine.title, "waiting_share": _waiting_share(rows)}
    document["ranking"] = [
        {"model": each.number, "to_next": None if each.to_next is None else asdict(each.to_next)} for each in ranking
    ]
    measured = []
    for number, (row, ratio) in enumerate(zip(rows, ratios, strict=True), 1):
        row |= {"artifact": artifact_name(number), "ratio": asdict(ratio)}
        median = row["latency_ms"]["median"]
        measured.append(PairedModel(row["artifact"], row["file_name"], median, ratio))
        ends = {} if number == 1 else {"": ratio.value, "_low": ratio.low, "_high": ratio.high}
        _log_metrics(ctx, {f"latency_median_{number}": median})
        _log_metrics(ctx, {f"ratio_{number}{end}": value for end, value in ends.items()})
    _log_metrics(ctx, {"waiting_share": document["waiting_share"]})
    path = ctx.artifact_dir / "paired.json"
    path.write_text(json.dumps(document, indent=1), encoding="utf-8")
    log_document(ctx, ProfileDocument.from_json(document), written=path)
    log_kernels(ctx, document)
    return PairedResult.from_current_run(ctx, models=tuple(measured), ranking=ranking)


def _log_metrics(ctx: HubContext, values: Mapping[str, float | None]) -> None:
    for name, value in values.items():
        if value is not None:
            ctx.client.log_metric(name, value)


def _log_shapes(ctx: HubContext, rows: Sequence[Mapping[str, Any]]) -> None:
    """Record what each model read, and say so where it is not as much: a batch of eight takes longer than one."""
    shapes = [[tensor["shape"] for tensor in row["data"]["inputs"].values()] for row in rows]
    ctx.client.log_param("input_shapes", shapes)
    if any(each != shapes[0] for each in shapes):
        words = "; ".join(f"model {number} {json.dumps(each)}" for number, each in enumerate(shapes, 1))
        _LOG.warning("The models read inputs of different shapes, and a ratio of them is of that too: %s.", words)


def _plan(config: MeasuringConfig, samples: int, models: int, until: str | None = None) -> list[str]:
    """Return how much to measure; the config's longest time is for each model."""
    plan = ["--iterations", str(samples), "--min-seconds", str(config.min_seconds)]
    plan += ["--max-warmup-seconds", str(config.max_warmup_seconds)]
    if until is not None:
        if until not in UNTIL:
            raise RefusedError(f"until is one of {quoted_list(UNTIL)}, not {until!r:.50}.")
        plan += ["--until", until]
    # For a goal the program allows longer, unless the device says how long.
    if until is None or config.max_seconds != MAX_SECONDS:
        plan += ["--max-seconds", str(config.max_seconds * models)]
    return plan


def _waiting_share(rows: Sequence[Mapping[str, Any]]) -> float | None:
    """Return how much of all times was waiting: how busy the processors were with other things."""
    if any(row.get("waited_us") is None for row in rows):
        return None
    total = sum(sum(row["samples_us"]) for row in rows)
    return sum(sum(row["waited_us"]) for row in rows) / total if total else None
