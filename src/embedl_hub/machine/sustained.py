"""A sustained load on a device: started there so that it goes on alone, watched, brought here, kept.

What is on the device meanwhile is one folder, ``sustained/RUN`` beside the runs' folders: the journal, the progress and
a log. It is removed when its content is here.
"""

from __future__ import annotations

import json
import logging
import time
from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

from embedl_device.errors import BoardError
from embedl_device.sustained import JOURNAL, LOG, PROGRESS, document_of
from embedl_hub.core.answer import Form, check_form, parse_answer
from embedl_hub.core.document import ProfileDocument
from embedl_hub.core.profile import (
    Progress,
    SustainedProfiler,
    SustainedResult,
    log_document,
    read_journal,
    told,
)
from embedl_hub.errors import CommandError, ConnectError, DeviceError, TrackingError
from embedl_hub.machine import program
from embedl_hub.machine.driver import driven
from embedl_hub.paths import RemotePath
from embedl_hub.refusal import RefusedError

if TYPE_CHECKING:
    import numpy as np

    from embedl_hub.core.component import CompiledModel
    from embedl_hub.core.context import HubContext
    from embedl_hub.core.device import CommandRunner
    from embedl_hub.machine.machine import Machine

_LOG = logging.getLogger("embedl_hub")
JOB = "$sustained"
"""The parameter that says where on the device a run's load is."""
_POLL_S = 1.0
_QUICK_S = 60.0
_LOST_S = 15.0
# Its process may be starting, or swapped out: so long it may be silent before a first word of progress.
_FIRST_WORD_S = 60.0
_MOST_ERROR = 800

# $1 the run's folder: its progress, then whether its process is there.
_PEEK = f"""\
cat -- "$1/{PROGRESS}" || exit 3
echo
pid=$(sed -n 's/.*"pid": \\([0-9]\\{{1,9\\}}\\).*/\\1/p' "$1/{PROGRESS}")
if [ -n "$pid" ] && kill -0 "$pid" 2>/dev/null; then echo alive; else echo gone; fi
"""
# $1 the run's folder: ends its process; what it has written stays.
_STOP = f"""\
pid=$(sed -n 's/.*"pid": \\([0-9]\\{{1,9\\}}\\).*/\\1/p' "$1/{PROGRESS}")
if [ -n "$pid" ]; then kill "$pid"; fi
"""
_LABEL = "edgeproof-sustained"

_PROGRESS: Form = {
    "state": str,
    "at_s?": float,
    "seconds?": float,
    "inferences?": int,
    "latency_ms?": float,
    "temperature_c?": float,
    "error?": str,
}


def sustain(
    ctx: HubContext,
    model: CompiledModel,
    *,
    device: str | None,
    input_data: Mapping[str, np.ndarray] | None,
    collect: str | None,
    **options: Any,  # noqa: ANN401 - what the component declares
) -> SustainedResult:
    """Put a model under load on a machine, or bring what an earlier run measured, and keep it."""
    with driven(ctx, device, SustainedProfiler, [model]) as (driver, machine):
        if collect is not None:
            folder = job_folder(ctx, collect)
            ctx.client.log_param("collected_from", collect)
            program.place_models(ctx, machine, driver.runtime, [model], driver.read_inputs, input_data)
        else:
            args = program.place_models(ctx, machine, driver.runtime, [model], driver.read_inputs, input_data)
            folder = machine.cache("sustained") / ctx.client.run.id
            # Before it starts: whoever is killed right after finds it all the same.
            ctx.client.log_param(JOB, {"folder": str(folder), "place": machine.title})
            args += [*driver.settings(machine), *_arguments(options), "--folder", folder, "--detach"]
            lease_dir = None if device is None else ctx.find_device(device).lease_dir
            args += [] if lease_dir is None else ["--lease-dir", lease_dir]
            try:
                program.call_program(machine, driver.runtime, "sustain", args)
            except ConnectError as error:
                raise _left_alone(error, machine, ctx.client.run.id, "If it began, the load") from error
        try:
            _await(machine, folder, collect or ctx.client.run.id)
        except KeyboardInterrupt:
            _stop(machine, folder, collect or ctx.client.run.id)
            raise
        document = _brought(machine, folder, options.get("power_source"))
        ctx.client.log_artifact(machine.scratch / JOURNAL, name="journal")
        _keep(ctx, machine, document)
    _remove(machine.runner, folder)
    if collect is not None:
        _mark(ctx, collect)
    return SustainedResult.from_current_run(ctx)


def _arguments(options: Mapping[str, Any]) -> list[str]:
    words: list[str] = []
    for name, value in options.items():
        flag = f"--{name.replace('_', '-')}"
        if isinstance(value, bool):
            words += [flag] if value else []
        elif value is not None:
            words += [flag, str(value)]
    return words


def job_folder(ctx: HubContext, run_id: str) -> RemotePath:
    """Return where on its device a run's load is, or say that it is none."""
    if ctx.client.store is None:
        raise RefusedError("What a run left on a device is found in the store: open the context with tracking.")
    try:
        run = ctx.client.store.run(run_id)
    except TrackingError as error:
        raise RefusedError(str(error)) from error
    facts = run.params[JOB].value if JOB in run.params else None
    folder = facts.get("folder") if isinstance(facts, Mapping) else None
    if not isinstance(folder, str) or not folder.startswith("/"):
        raise RefusedError(f"Run {run.id} put nothing under load on a device, so there is nothing to collect.")
    return RemotePath(folder)


def peek(runner: CommandRunner, folder: RemotePath) -> tuple[Progress, str | None]:
    """Return how far a load is, and what went wrong if something did; a RefusedError where there is none."""
    try:
        said = runner.run(["sh", "-c", _PEEK, _LABEL, str(folder)], hide=True, timeout_s=_QUICK_S).stdout
    except CommandError as error:
        if error.exit_code == 3:
            raise RefusedError(
                f"There is no load in {folder} on the device: it was collected already, or removed, or the device was "
                "set up again."
            ) from error
        raise
    lines = [line for line in said.splitlines() if line.strip()]
    try:
        facts = parse_answer(lines[0] if lines else "")
        check_form(facts, _PROGRESS, "the progress")
    except ValueError as error:
        raise RefusedError(f"The progress in {folder} is none: {error}.") from error
    assert isinstance(facts, dict)  # noqa: S101 - by its form
    problem = facts.get("error")
    names = ("at_s", "seconds", "inferences", "latency_ms", "temperature_c")
    rest: dict[str, Any] = {name: facts.get(name) for name in names}
    progress = Progress(facts["state"], **rest, is_alive=lines[-1] == "alive")
    return progress, None if problem is None else str(problem)[:_MOST_ERROR]


def _left_alone(error: DeviceError, machine: Machine[Any], run_id: str, what: str) -> DeviceError:
    """Return the error with the words that bring the result of a load whose device cannot be reached any more."""
    return type(error)(
        f"{error} {what} goes on by itself on {machine.title}. Bring its result when the device can be reached again: "
        f"embedl-hub sustain --collect {run_id}"
    )


def _await(machine: Machine[Any], folder: RemotePath, run_id: str) -> None:
    """Watch a load until it is over; say how to get its result where the device cannot be reached any more."""
    lost_at: float | None = None
    while True:
        try:
            progress, problem = peek(machine.runner, folder)
            lost_at = None
        except DeviceError as error:
            lost_at = lost_at or time.monotonic()
            if isinstance(error, ConnectError) and time.monotonic() - lost_at < _LOST_S:
                time.sleep(_POLL_S)
                continue
            raise _left_alone(error, machine, run_id, "The load") from error
        told(progress)
        if progress.state == "failed":
            raise RefusedError(f"{problem or 'It does not say why.'} (sustain on {machine.title})")
        if progress.is_over:
            if progress.state != "done":
                _LOG.warning("The load on %s ended without a word; what it had written counts.", machine.title)
            return
        time.sleep(_POLL_S)


def _stop(machine: Machine[Any], folder: RemotePath, run_id: str) -> None:
    """End a load, because whoever started it said so; a lost connection does not."""
    try:
        machine.runner.run(["sh", "-c", _STOP, _LABEL, str(folder)], hide=True, timeout_s=_QUICK_S)
    except DeviceError as error:
        _LOG.warning("The load on %s could not be ended and goes on: %s", machine.title, error)
        return
    _LOG.warning(
        "The load on %s was ended. What it measured until then: embedl-hub sustain --collect %s", machine.title, run_id
    )


def _brought(machine: Machine[Any], folder: RemotePath, power_source: str | None) -> dict[str, Any]:
    """Return the document of a load whose journal is on the machine."""
    local = machine.scratch / JOURNAL
    try:
        machine.get(folder / JOURNAL, local)
    except DeviceError as error:
        raise RefusedError(f"The load on {machine.title} left no journal: {error} Its log: {folder / LOG}") from error
    try:
        return document_of(read_journal(local), () if power_source is None else (power_source,))
    except (ValueError, ArithmeticError) as error:
        raise RefusedError(f"The journal of {machine.title} cannot be used: {error}.") from error
    except BoardError as error:
        raise RefusedError(str(error)) from error


def _keep(ctx: HubContext, machine: Machine[Any], document: dict[str, Any]) -> None:
    document["place"] = machine.title
    path = ctx.artifact_dir / "sustained.json"
    path.write_text(json.dumps(document), encoding="utf-8")
    log_document(ctx, ProfileDocument.from_json(document), written=path)
    program.log_kernels(ctx, document)
    sustained = document["sustained"]
    energy = sustained["energy"]
    ends = {
        "steady_ratio_low": sustained["ratio"]["low"],
        "steady_ratio_high": sustained["ratio"]["high"],
        "missed": sustained.get("missed"),
        "energy_low": (energy.get("energy") or {}).get("low"),
        "energy_high": (energy.get("energy") or {}).get("high"),
    }
    for name, value in ends.items():
        if value is not None:
            ctx.client.log_metric(name, value)
    ctx.client.log_param("stopped", sustained["stopped"])
    for name, key in (("energy_sources", "covers"), ("energy_problem", "problem"), ("idle", "idle")):
        if energy.get(key) is not None:
            ctx.client.log_param(name, energy[key])
    lease = sustained["lease"] or {}
    if lease.get("shared_from_s") is not None:
        _LOG.warning(
            "From %.0f s on somebody else had the lease on %s: the times were not taken alone.",
            lease["shared_from_s"], machine.title,
        )  # fmt: skip


def _remove(runner: CommandRunner, folder: RemotePath) -> None:
    try:
        runner.run(["rm", "-rf", "--", str(folder)], hide=True, timeout_s=_QUICK_S)
    except DeviceError as error:
        _LOG.warning("What is now here could not be removed from the device (%s): %s", folder, error)


def _mark(ctx: HubContext, run_id: str) -> None:
    """Say at the run that was cut off which one has its result."""
    assert ctx.client.store is not None  # noqa: S101 - it was found there
    try:
        ctx.client.store.label(ctx.client.store.run(run_id).id, "collected_by", ctx.client.run.id)
    except TrackingError as error:
        _LOG.warning("Run %s could not be marked as collected: %s", run_id, error)
