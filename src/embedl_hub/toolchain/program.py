"""A device program's command line: arguments there, one JSON object back, every ending in words."""

from __future__ import annotations

import json
import logging
from typing import TYPE_CHECKING, Any

from embedl_hub.errors import CommandError
from embedl_hub.toolchain.refusal import RefusedError

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from embedl_hub.core.context import HubContext
    from embedl_hub.core.device import AnyPath, MeasuringConfig
    from embedl_hub.toolchain.place import Place

_LOG = logging.getLogger("embedl_hub")
_NOT_FOUND = 127
_FAILED = 1


def call(place: Place[MeasuringConfig], command: str, arguments: Sequence[AnyPath]) -> dict[str, Any]:
    """Run one command of the device program and return its answer.

    A board without the program gets it; a failure is told in the program's own words.
    """
    extra = getattr(place.config, "cli_args", ())
    try:
        result = _run(place, [*place.program(), command, *arguments, *extra])
    except CommandError as error:
        if error.exit_code != _NOT_FOUND or not place.carry_program():
            raise RefusedError(_ending(place, command, error)) from error
        try:
            result = _run(place, [*place.program(), command, *arguments, *extra])
        except CommandError as second:
            raise RefusedError(_ending(place, command, second)) from second
    return _answer(place, command, result)


def plan_arguments(config: MeasuringConfig) -> list[str]:
    """Return how much a profile command is to measure."""
    return [
        "--iterations", str(config.iterations), "--min-seconds", str(config.min_seconds),
        "--max-seconds", str(config.max_seconds), "--max-warmup-seconds", str(config.max_warmup_seconds),
        "--layer-runs", str(config.layer_runs),
    ]  # fmt: skip


def log_kernels(ctx: HubContext, answer: Mapping[str, Any], more: Sequence[str] = ()) -> None:
    """Record which integer kernels an answer was made by, and say aloud and record what is wrong with it."""
    kernels = answer.get("kernels")
    if kernels:
        ctx.client.log_param("kernel_family", kernels.get("family"))
        ctx.client.log_param("$kernels", kernels)
    warnings = [*answer.get("warnings", ()), *more]
    for warning in warnings:
        _LOG.warning("%s", warning)
    if warnings:
        ctx.client.log_param("warnings", warnings)


def _run(place: Place[MeasuringConfig], argv: Sequence[AnyPath]) -> str:
    return place.runner.run(argv, hide=True, timeout_s=place.config.timeout_s).stdout


def _answer(place: Place[MeasuringConfig], command: str, stdout: str) -> dict[str, Any]:
    last = next((line for line in reversed(stdout.splitlines()) if line.strip()), "")
    try:
        answer = json.loads(last)
    except ValueError:
        answer = None
    if not isinstance(answer, dict):
        raise RefusedError(
            f"The device program on {place.title} answered {command} with {last[:200]!r}, not with a JSON object. "
            "Is another program of that name installed there?"
        )
    return answer


def _ending(place: Place[MeasuringConfig], command: str, error: CommandError) -> str:
    mark = f"{place.runtime.command}: error: "
    own_words = [line.removeprefix(mark) for line in error.stderr.splitlines() if line.startswith(mark)]
    if error.exit_code == _FAILED and own_words:
        return f"{own_words[-1]} ({command} on {place.title})"
    if error.exit_code == _NOT_FOUND:
        return (
            f"{place.title.capitalize()} has no {error.argv[0]!r}. Install Python 3.8 or newer with "
            f"{place.runtime.packages} there, or say where they are: {place.runtime.board_config}(python_path=...). "
            f"It said: {error.stderr.strip()[-300:] or 'nothing'}"
        )
    if error.exit_code is not None and error.exit_code > 128:
        return (
            f"{place.runtime.title} crashed during {command} on {place.title}: {error}\n{place.runtime.after_a_crash}"
        )
    return f"The device program failed during {command} on {place.title}: {error}"
