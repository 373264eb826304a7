"""The checks themselves: each says what it found and, when that is not well, what to do about it."""

from __future__ import annotations

import functools
import time
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from enum import StrEnum
from typing import TYPE_CHECKING

from embedl_hub.core.device import BOARD_LABEL, LOCAL, Board, device_kind_names, find_device_kind, remember_spec
from embedl_hub.errors import CommandError, ConfigError, HubError
from embedl_hub.tracking import now_ms

if TYPE_CHECKING:
    from embedl_hub.core import HubContext
    from embedl_hub.core.device import CommandRunner, Device
    from embedl_hub.paths import RemotePath

# $1 is the artifact root. Prints "key=value" lines; every line is optional. A process is a leftover of ours when it
# stands in a run's folder or was given one. The low bits of what vcgencmd says are about now, the high ones about ever.
_SCRIPT = """\
root=$1
echo "epoch=$(date +%s)"
part=$root/.health-$$
complaint=$({ mkdir -p -- "$root" && echo ok > "$part"; } 2>&1) && echo "writable=yes" || echo "refused=$complaint"
rm -f -- "$part"
df -Pk -- "$root" | tail -n 1 | { read -r name size used free rest; echo "free_kib=$free"; }
{ ls -l /proc/[0-9]*/cwd | grep -F -- "-> $root/runs/"; grep -lF -- "$root/runs/" /proc/[0-9]*/cmdline; } 2>/dev/null |
  sed -n 's|.*/proc/\\([0-9]*\\)/.*|\\1|p' | sort -u | while read -r pid; do
    if { read -r name < "/proc/$pid/comm"; } 2>/dev/null; then echo "process=$pid $name"; fi
  done
for zone in /sys/class/thermal/thermal_zone*; do
  if { read -r value < "$zone/temp"; } 2>/dev/null; then echo "temperature=$value"; fi
done
for cooling in /sys/class/thermal/cooling_device*; do
  if { read -r kind < "$cooling/type" && read -r state < "$cooling/cur_state"; } 2>/dev/null; then
    case $kind in *cpufreq*|*rocessor*|*devfreq*|*gpu*) echo "cooling=$state $kind" ;; esac
  fi
done
if command -v vcgencmd >/dev/null 2>&1; then echo "vc_$(vcgencmd get_throttled)"; fi
exit 0
"""
_VC_NOW = {1: "too little voltage", 2: "a capped clock", 4: "throttling", 8: "the soft temperature limit"}


class CheckOutcome(StrEnum):
    """How a check came out: ``warning`` is for what a user should know, ``failed`` takes the board out."""

    OK = "ok"
    WARNING = "warning"
    FAILED = "failed"


_OK, _WARNING, _FAILED = CheckOutcome


@dataclass(frozen=True)
class HealthLimits:
    """What a healthy board keeps, and how long a check may take."""

    free_bytes: int = 256 << 20  # space that must be left for its folder
    clock_skew_s: float = 60.0  # A clock further off is warned of
    temperature_c: float = 95.0  # hotter than this at rest is a failure
    lease_wait_s: float = 2.0  # how long to wait for a board in use
    command_s: float = 30.0  # limit of each command
    whole_s: float = 300.0  # limit of the whole check; a watch gives a board up after it

    def __post_init__(self) -> None:
        for name, value in vars(self).items():
            if not isinstance(value, int | float) or value < 0:
                raise ConfigError(f"HealthLimits.{name} is {value!r}; it must be a number of at least 0.")


@dataclass(frozen=True)
class HealthCheck:
    """One thing that was looked at: ``reachable``, ``disk``, or a check of the device's kind."""

    name: str
    outcome: CheckOutcome
    message: str
    next_step: str = ""
    metrics: Mapping[str, float] = field(default_factory=dict)

    @property
    def reason(self) -> str:
        """What was found and what to do, in one line."""
        return " ".join(f"{self.name}: {self.message} {self.next_step}".split())


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
        return _failed("reachable", error, f"Is it on and on the network? Try: embedl-hub device test {device.name}")
    answer_ms = (time.perf_counter() - connected) * 1e3
    metrics = {"connect_s": connected - started, "answer_ms": answer_ms}
    return HealthCheck("reachable", _OK, f"answers within {answer_ms:.0f} ms", metrics=metrics)


def run_checks(ctx: HubContext, device: Device, limits: HealthLimits) -> Iterator[HealthCheck]:
    """Look at a board that is leased; stop where nothing more can be learned."""
    if device.runner is None:
        return
    try:
        root = Board(device, device.runner, functools.partial(remember_spec, ctx.home, device)).root()
        facts = probe(device.runner, root, timeout_s=limits.command_s)
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
        message = f"processes of earlier runs are still there: {', '.join(facts.leftovers)}."
        next_step = f"They would disturb every measurement; end them on {device.name}: kill {pids}"
        yield HealthCheck("leftovers", _FAILED, message, next_step, {"leftovers": len(facts.leftovers)})
    else:
        yield HealthCheck("leftovers", _OK, "nothing of earlier runs is left", metrics={"leftovers": 0})
    yield _heat(facts, limits)


def _disk(facts: Facts, limits: HealthLimits) -> HealthCheck:
    metrics = {} if facts.free_bytes is None else {"free_bytes": float(facts.free_bytes)}
    clean = "Remove what is not needed there, or set artifact_root to a larger disk."
    left = "an unknown amount" if facts.free_bytes is None else f"{facts.free_bytes / 1e6:.0f} MB"
    if facts.refusal:
        message = f"nothing can be written to its folder ({left} free): {facts.refusal}."
        return HealthCheck("disk", _FAILED, message, clean, metrics)
    if facts.free_bytes is not None and facts.free_bytes < limits.free_bytes:
        message = f"{left} are free in its folder, {limits.free_bytes / 1e6:.0f} MB must be."
        return HealthCheck("disk", _FAILED, message, clean, metrics)
    return HealthCheck("disk", _OK, f"{left} free", metrics=metrics)


def _clock(facts: Facts, limits: HealthLimits) -> HealthCheck:
    if facts.clock_skew_s is None:
        return HealthCheck("clock", _OK, "it does not tell the time")
    metrics = {"clock_skew_s": facts.clock_skew_s}
    if abs(facts.clock_skew_s) > limits.clock_skew_s:
        where = "ahead of" if facts.clock_skew_s > 0 else "behind"
        message = f"its clock is {abs(facts.clock_skew_s):.0f} s {where} this machine's."
        next_step = "Measurements hold; times in its logs do not. Run NTP."
        return HealthCheck("clock", _WARNING, message, next_step, metrics)
    return HealthCheck("clock", _OK, f"within {abs(facts.clock_skew_s):.0f} s of ours", metrics=metrics)


def _heat(facts: Facts, limits: HealthLimits) -> HealthCheck:
    metrics = {} if facts.temperature_c is None else {"temperature_c": facts.temperature_c}
    message = "no sensor tells" if facts.temperature_c is None else f"{facts.temperature_c:.0f} °C"
    if facts.temperature_c is not None and facts.temperature_c > limits.temperature_c:
        message = f"{message} at rest, {limits.temperature_c:.0f} °C are allowed."
        return HealthCheck("heat", _FAILED, message, "Look at its cooling.", metrics)
    if facts.slowed_by:
        message = f"{message}, slowed by {', '.join(facts.slowed_by)}."
        return HealthCheck("heat", _WARNING, message, "Look at its cooling and its power supply.", metrics)
    return HealthCheck("heat", _OK, message, metrics=metrics)


def _kind_checks(device: Device, runner: CommandRunner, limits: HealthLimits) -> Iterator[HealthCheck]:
    # A provider of the user's own script has no kind.
    if device.provider_type not in device_kind_names():
        return
    for name, argv in find_device_kind(device.provider_type).checks(device).items():
        try:
            output = runner.run(list(argv), hide=True, timeout_s=limits.command_s).stdout
            yield HealthCheck(name, _OK, output.strip().partition("\n")[0] or "works")
        except HubError as error:
            yield _failed(name, error, f"Its provider {device.provider_type!r} needs it.")


def _provider(device: Device) -> HealthCheck:
    """Ask the provider's own check, for devices that only its client reaches."""
    if device.provider_type not in device_kind_names():
        return HealthCheck("provider", _OK, f"{device.provider_type} has no check of its own")
    problems = [result for result in find_device_kind(device.provider_type).doctor() if not result.is_ok]
    if problems and device.provider_type == LOCAL:
        # This machine serves several toolchains; one that is not set up is no reason to take it from the others.
        return HealthCheck("provider", _OK, f"not set up: {', '.join(result.title for result in problems)}")
    if problems:
        message = "; ".join(f"{result.title}: {result.message}." for result in problems)
        return HealthCheck("provider", _FAILED, message, " ".join(result.advice for result in problems))
    return HealthCheck("provider", _OK, "its client is ready")


def _failed(name: str, error: HubError, next_step: str) -> HealthCheck:
    return HealthCheck(name, _FAILED, " ".join(str(error).split()).rstrip(".") + ".", next_step)


@dataclass(frozen=True)
class Facts:
    """A board at this moment; None is what it does not say."""

    refusal: str  # why nothing can be written to its folder; empty when it can
    free_bytes: int | None
    clock_skew_s: float | None
    leftovers: tuple[str, ...]  # processes of earlier runs that still live there, as "pid name"
    temperature_c: float | None
    slowed_by: tuple[str, ...]


def probe(runner: CommandRunner, root: RemotePath, *, timeout_s: float) -> Facts:
    """Ask a board how it is."""
    before_ms = now_ms()
    output = runner.run(["sh", "-c", _SCRIPT, BOARD_LABEL, str(root)], hide=True, timeout_s=timeout_s).stdout
    return read_facts(output, here_s=(before_ms + now_ms()) / 2000)


def read_facts(text: str, *, here_s: float) -> Facts:
    """Return what a board's lines say; ``here_s`` is our own clock when they were written."""
    lines: dict[str, list[str]] = {}
    for line in text.splitlines():
        key, _, value = line.partition("=")
        lines.setdefault(key, []).append(value.strip())
    epoch, free = _whole(lines.get("epoch", ())), _whole(lines.get("free_kib", ()))
    # Zones that are switched off report absurd values.
    heat = [value / 1e3 for value in _whole(lines.get("temperature", ())) if -40_000 < value < 200_000]
    return Facts(
        refusal="" if "writable" in lines else next(iter(lines.get("refused", ())), "it did not say why"),
        free_bytes=free[0] * 1024 if free else None,
        clock_skew_s=epoch[0] - here_s if epoch else None,
        leftovers=tuple(lines.get("process", ())),
        temperature_c=max(heat, default=None),
        slowed_by=(*_cooling(lines.get("cooling", ())), *_vc(lines.get("vc_throttled", ()))),
    )


def _whole(words: Sequence[str]) -> list[int]:
    return [int(word) for word in words if word.lstrip("-").isdecimal()]


def _cooling(words: Sequence[str]) -> list[str]:
    split = [word.partition(" ") for word in words]
    return [f"{kind} at step {state}" for state, _, kind in split if state.isdecimal() and int(state) > 0]


def _vc(words: Sequence[str]) -> list[str]:
    try:
        flags = int(words[0], 16) if words else 0
    except ValueError:
        return []
    return [meaning for bit, meaning in _VC_NOW.items() if flags & bit]
