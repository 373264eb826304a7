"""The checks themselves: each says what it found and, when that is not well, what to do about it."""

from __future__ import annotations

import functools
import time
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Literal

from embedl_hub.core.component import ProviderType, installed_providers
from embedl_hub.core.device import BOARD_LABEL, Board, device_kind_names, find_device_kind, remember_spec
from embedl_hub.errors import CommandError, ConfigError, HubError
from embedl_hub.health._facts import Facts, ask_facts

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Mapping, Sequence

    from embedl_hub.core import HubContext
    from embedl_hub.core.device import CommandRunner, Device

Verdict = Literal["ok", "warning", "failed"]


@dataclass(frozen=True)
class HealthLimits:
    """What a healthy board keeps, and how long a check may take.

    Attributes:
        free_bytes: Space that must be left for its folder.
        clock_skew_s: A clock further off is warned of.
        temperature_c: Hotter than this at rest is a failure.
        lease_wait_s: How long to wait for a board in use.
        command_s: Limit of each command.
        whole_s: Limit of the whole check; a watch gives a board up after it.
    """

    free_bytes: int = 256 << 20
    clock_skew_s: float = 60.0
    temperature_c: float = 95.0
    lease_wait_s: float = 2.0
    command_s: float = 30.0
    whole_s: float = 300.0

    def __post_init__(self) -> None:
        for name, value in vars(self).items():
            if not isinstance(value, int | float) or value < 0:
                raise ConfigError(f"HealthLimits.{name} is {value!r}; it must be a number of at least 0.")


@dataclass(frozen=True)
class HealthCheck:
    """One thing that was looked at.

    Attributes:
        name: What: ``reachable``, ``disk``, or the name of a check of the device's kind.
        verdict: ``ok``, ``warning`` for what a user should know, ``failed`` for what takes the board out.
        says: What was found.
        next_step: What to do about it.
        metrics: What was measured, by name.
    """

    name: str
    verdict: Verdict
    says: str
    next_step: str = ""
    metrics: Mapping[str, float] = field(default_factory=dict)

    @property
    def reason(self) -> str:
        """What was found and what to do, in one line."""
        return " ".join(f"{self.name}: {self.says} {self.next_step}".split())


def reach_device(device: Device, limits: HealthLimits) -> HealthCheck:
    """Connect to a board and have its shell answer; of a device without a runner its provider is asked."""
    if device.runner is None:
        return _provider(device)
    echo = ["sh", "-c", "echo here", BOARD_LABEL]
    started = time.perf_counter()
    try:
        device.runner.run(echo, hide=True, timeout_s=limits.command_s)
        connected = time.perf_counter()
        device.runner.run(echo, hide=True, timeout_s=limits.command_s)
    except HubError as error:
        return _failed("reachable", error, _WAYS.format(device.name))
    answer_ms = (time.perf_counter() - connected) * 1e3
    metrics = {"connect_s": connected - started, "answer_ms": answer_ms}
    return HealthCheck("reachable", "ok", f"answers within {answer_ms:.0f} ms", metrics=metrics)


def look(ctx: HubContext, device: Device, limits: HealthLimits) -> Iterator[HealthCheck]:
    """Look at a board that is leased; stop where nothing more can be learnt."""
    if device.runner is None:
        return
    try:
        root = Board(device, device.runner, functools.partial(remember_spec, ctx.home, device)).root()
        facts = ask_facts(device.runner, root, timeout_s=limits.command_s)
    except HubError as error:
        yield _failed("folder", error, f"Is {device.artifact_root or 'its cache folder'} there and writable?")
        if not isinstance(error, CommandError) or error.timeout_s is not None:
            return
    else:
        yield from judge(device, facts, limits)
    yield from _kind_checks(device, device.runner, limits)


def judge(device: Device, facts: Facts, limits: HealthLimits) -> Iterator[HealthCheck]:
    """Say what is well and what is not."""
    yield _disk(facts, limits)
    yield _clock(facts, limits)
    if facts.leftovers:
        pids = " ".join(word.partition(" ")[0] for word in facts.leftovers)
        yield HealthCheck(
            "leftovers",
            "failed",
            f"processes of earlier runs are still there: {', '.join(facts.leftovers)}.",
            f"They would disturb every measurement; end them on {device.name}: kill {pids}",
            {"leftovers": len(facts.leftovers)},
        )
    else:
        yield HealthCheck("leftovers", "ok", "nothing of earlier runs is left", metrics={"leftovers": 0})
    yield _heat(facts, limits)


def _disk(facts: Facts, limits: HealthLimits) -> HealthCheck:
    metrics = {} if facts.free_bytes is None else {"free_bytes": float(facts.free_bytes)}
    clean = "Remove what is not needed there, or set artifact_root to a larger disk."
    left = "an unknown amount" if facts.free_bytes is None else f"{facts.free_bytes / 1e6:.0f} MB"
    if facts.refusal:
        return HealthCheck(
            "disk", "failed", f"nothing can be written to its folder ({left} free): {facts.refusal}.", clean, metrics
        )
    if facts.free_bytes is not None and facts.free_bytes < limits.free_bytes:
        says = f"{left} are free in its folder, {limits.free_bytes / 1e6:.0f} MB must be."
        return HealthCheck("disk", "failed", says, clean, metrics)
    return HealthCheck("disk", "ok", f"{left} free", metrics=metrics)


def _clock(facts: Facts, limits: HealthLimits) -> HealthCheck:
    if facts.clock_skew_s is None:
        return HealthCheck("clock", "ok", "it does not tell the time")
    metrics = {"clock_skew_s": facts.clock_skew_s}
    if abs(facts.clock_skew_s) > limits.clock_skew_s:
        where = "ahead of" if facts.clock_skew_s > 0 else "behind"
        says = f"its clock is {abs(facts.clock_skew_s):.0f} s {where} this machine's."
        return HealthCheck("clock", "warning", says, "Measurements hold; times in its logs do not. Run NTP.", metrics)
    return HealthCheck("clock", "ok", f"within {abs(facts.clock_skew_s):.0f} s of ours", metrics=metrics)


def _heat(facts: Facts, limits: HealthLimits) -> HealthCheck:
    metrics = {} if facts.temperature_c is None else {"temperature_c": facts.temperature_c}
    says = "no sensor tells" if facts.temperature_c is None else f"{facts.temperature_c:.0f} °C"
    if facts.temperature_c is not None and facts.temperature_c > limits.temperature_c:
        says = f"{says} at rest, {limits.temperature_c:.0f} °C are allowed."
        return HealthCheck("heat", "failed", says, "Look at its cooling.", metrics)
    if facts.slowed_by:
        says = f"{says}, slowed by {', '.join(facts.slowed_by)}."
        return HealthCheck("heat", "warning", says, "Look at its cooling and its power supply.", metrics)
    return HealthCheck("heat", "ok", says, metrics=metrics)


def _kind_checks(device: Device, runner: CommandRunner, limits: HealthLimits) -> Iterator[HealthCheck]:
    # A provider of the user's own script has no kind.
    if device.provider_type not in device_kind_names():
        return
    for name, argv in find_device_kind(device.provider_type).checks(device).items():
        yield _tried(name, functools.partial(_first_line, runner, argv, limits), device)


def _tried(name: str, work: Callable[[], str], device: Device) -> HealthCheck:
    try:
        return HealthCheck(name, "ok", work() or "works")
    except HubError as error:
        return _failed(name, error, f"Its provider {device.provider_type!r} needs it.")


def _first_line(runner: CommandRunner, argv: Sequence[str], limits: HealthLimits) -> str:
    return runner.run(list(argv), hide=True, timeout_s=limits.command_s).stdout.strip().partition("\n")[0]


def _provider(device: Device) -> HealthCheck:
    """Ask the provider's own check, for devices that only its client reaches."""
    found = next((each for each in installed_providers() if each.type == device.provider_type), None)
    check = getattr(found.package, "doctor", None) if found is not None else None
    if check is None:
        return HealthCheck("provider", "ok", f"{device.provider_type} has no check of its own")
    problems = [result for result in check() if not result.is_ok]
    if problems and device.provider_type == ProviderType.LOCAL:
        # This machine serves several toolchains; one that is not set up is no reason to take it from the others.
        return HealthCheck("provider", "ok", f"not set up: {', '.join(result.title for result in problems)}")
    if problems:
        says = "; ".join(f"{result.title}: {result.says}." for result in problems)
        return HealthCheck("provider", "failed", says, " ".join(result.advice for result in problems))
    return HealthCheck("provider", "ok", "its client is ready")


_WAYS = "Is it on and on the network? Try: embedl-hub device test {}"


def _failed(name: str, error: HubError, next_step: str) -> HealthCheck:
    return HealthCheck(name, "failed", " ".join(str(error).split()).rstrip(".") + ".", next_step)
