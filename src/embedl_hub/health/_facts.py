"""What a board says about itself at the moment, in one question: disk, clock, processes, heat.

The kernel's own files say it on every board; no program of ours is needed there.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

from embedl_hub.core.device import BOARD_LABEL
from embedl_hub.tracking import now_ms

if TYPE_CHECKING:
    from collections.abc import Sequence

    from embedl_hub.core.device import CommandRunner
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


@dataclass(frozen=True)
class Facts:
    """A board at this moment; None is what it does not say.

    Attributes:
        refusal: Why nothing can be written to its folder; empty when it can.
        free_bytes: Space left for its folder.
        clock_skew_s: How far its clock is ahead of ours.
        leftovers: Processes of earlier runs that still live there, as "pid name".
        temperature_c: Its hottest sensor.
        slowed_by: What slows its processors down now.
    """

    refusal: str
    free_bytes: int | None
    clock_skew_s: float | None
    leftovers: tuple[str, ...]
    temperature_c: float | None
    slowed_by: tuple[str, ...]


def ask_facts(runner: CommandRunner, root: RemotePath, *, timeout_s: float) -> Facts:
    """Ask a board how it is."""
    before_ms = now_ms()
    said = runner.run(["sh", "-c", _SCRIPT, BOARD_LABEL, str(root)], hide=True, timeout_s=timeout_s).stdout
    return read_facts(said, here_s=(before_ms + now_ms()) / 2000)


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
