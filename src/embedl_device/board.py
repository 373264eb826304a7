"""What the board is and how it feels: processors, clocks, governor, temperature, memory, throttling counters."""

from __future__ import annotations

import importlib
import os
import platform
import sys
from pathlib import Path
from typing import Any, Dict, List, Mapping, Optional, Sequence, Tuple

SYSFS = Path("/sys")
PROC = Path("/proc")
# What is not there when the processor itself, asked by numpy, says that it lacks the key.
_NEEDS = {
    "AVX2": ("avx2", "avx512f", "avx512_vnni", "avx_vnni", "amx_int8"),
    "AVX512F": ("avx512f", "avx512_vnni", "amx_int8"),
    "AVX512VNNI": ("avx512_vnni",),
}


def describe(sysfs: Path = SYSFS, proc: Path = PROC, cpuid: Optional[Mapping[str, bool]] = None) -> Dict[str, Any]:
    """Return what does not change during a measurement; ``cpuid`` is numpy's table when not given."""
    return {
        "system": platform.platform(),
        "architecture": platform.machine(),
        "python": platform.python_version(),
        "model": _read(proc / "device-tree" / "model"),
        "cpu": _cpu_line(proc, ("model name", "Model", "Hardware")),
        "cores_online": os.cpu_count(),
        "cores_usable": len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count(),
        "cpu_features": _cpu_features(proc, _cpuid() if cpuid is None else cpuid),
        "memory_bytes": _bytes(proc / "meminfo", "MemTotal:"),
        "max_clock_mhz": _clocks(sysfs, "cpuinfo_max_freq"),
    }


def state(sysfs: Path = SYSFS, proc: Path = PROC) -> Dict[str, Any]:
    """Return what may change during a measurement: taken before and after it."""
    return {
        "governor": sorted({text for text in _each(sysfs, "scaling_governor") if text}) or None,
        "clock_mhz": _clocks(sysfs, "scaling_cur_freq"),
        "clock_limit_mhz": _clocks(sysfs, "scaling_max_freq"),
        "temperature_c": _temperatures(sysfs),
        "throttle_counts": _throttle_counts(sysfs),
        "load_1min": _load(proc),
    }


def throttling_between(before: Dict[str, Any], after: Dict[str, Any]) -> List[str]:
    """Return what the board's own counters and limits say happened; a lower clock alone is no throttling."""
    counts_before, counts_after = before.get("throttle_counts") or {}, after.get("throttle_counts") or {}
    found = [
        "{} rose from {} to {}".format(name, counts_before[name], count)
        for name, count in counts_after.items()
        if count > counts_before.get(name, count)
    ]
    limits_before, limits_after = before.get("clock_limit_mhz"), after.get("clock_limit_mhz")
    if limits_before and limits_after and max(limits_after) < max(limits_before):
        found.append("the clock limit fell from {:.0f} to {:.0f} MHz".format(max(limits_before), max(limits_after)))
    return found


def unreadable_in(sensors: Dict[str, Any]) -> List[str]:
    """Return which sensors gave nothing."""
    keys = ("governor", "clock_mhz", "temperature_c", "throttle_counts")
    names = ("governor", "clocks", "temperature", "throttling")
    return [name for key, name in zip(keys, names) if not sensors.get(key)]


def peak_memory(proc: Path = PROC) -> Tuple[Optional[float], str]:
    """Return this process's peak resident memory in MB and the method's name."""
    peak_bytes = _bytes(proc / "self" / "status", "VmHWM:")
    if peak_bytes is not None:
        return peak_bytes / 1e6, "VmHWM of the measuring process, runtime and model included"
    try:
        import resource
    except ImportError:
        return None, "not available"
    peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    return peak * (1 if sys.platform == "darwin" else 1024) / 1e6, "ru_maxrss of the measuring process"


def _read(path: Path) -> Optional[str]:
    try:
        return path.read_text(errors="replace").strip("\0\n ")
    except OSError:
        return None


def _number(text: Optional[str]) -> Optional[int]:
    try:
        return int(text or "")
    except ValueError:
        return None


def _cpus(sysfs: Path) -> List[Path]:
    return sorted((sysfs / "devices" / "system" / "cpu").glob("cpu[0-9]*"))


def _each(sysfs: Path, name: str) -> List[Optional[str]]:
    return [_read(cpu / "cpufreq" / name) for cpu in _cpus(sysfs)]


def _clocks(sysfs: Path, name: str) -> Optional[List[float]]:
    found = [value / 1e3 for value in map(_number, _each(sysfs, name)) if value is not None]
    return found or None


def fastest_processors(sysfs: Path = SYSFS) -> List[int]:
    """Return the processors that this process may use, of several kinds the fastest; none where it cannot choose."""
    if not hasattr(os, "sched_setaffinity"):
        return []
    usable = sorted(os.sched_getaffinity(0))
    folder = sysfs / "devices" / "system" / "cpu"
    clocks = {number: _number(_read(folder / "cpu{}".format(number) / "cpufreq" / "cpuinfo_max_freq")) or 0.0
              for number in usable}  # fmt: skip
    return [number for number in usable if clocks[number] >= max(clocks.values())]


def _temperatures(sysfs: Path) -> Optional[Dict[str, float]]:
    found = {}
    for zone in sorted((sysfs / "class" / "thermal").glob("thermal_zone*")):
        value = _number(_read(zone / "temp"))
        # Zones that are switched off report absurd values.
        if value is not None and -40_000 < value < 200_000:
            found["{}:{}".format(zone.name[len("thermal_zone") :], _read(zone / "type") or "")] = value / 1e3
    return found or None


def _throttle_counts(sysfs: Path) -> Optional[Dict[str, int]]:
    found = {}
    for cpu in _cpus(sysfs):
        for name in ("core_throttle_count", "package_throttle_count"):
            value = _number(_read(cpu / "thermal_throttle" / name))
            if value is not None:
                found["{} {}".format(cpu.name, name)] = value
    for device in sorted((sysfs / "class" / "thermal").glob("cooling_device*")):
        kind = _read(device / "type") or ""
        value = _number(_read(device / "cur_state"))
        # Fans and displays are cooling devices too; only those that slow a processor down count.
        if value is not None and any(word in kind.lower() for word in ("cpufreq", "processor", "devfreq", "gpu")):
            found["cooling state of {}".format(kind)] = value
    return found or None


def _load(proc: Path) -> Optional[float]:
    try:
        return float((_read(proc / "loadavg") or "").split()[0])
    except (ValueError, IndexError):
        return None


def _cpu_line(proc: Path, names: Sequence[str]) -> Optional[str]:
    for line in (_read(proc / "cpuinfo") or "").splitlines():
        key, _, value = line.partition(":")
        if key.strip() in names:
            return value.strip()
    return None


def _cpu_features(proc: Path, cpuid: Mapping[str, bool]) -> List[str]:
    """Return the instruction sets that decide which number format is fast."""
    flags = set((_cpu_line(proc, ("flags", "Features")) or "").split())
    # The kernel's list is the host's under an emulator, which runs programs on less.
    for name, needing in _NEEDS.items():
        if cpuid.get(name) is False:
            flags.difference_update(needing)
    wanted = ("avx2", "avx512f", "avx512_vnni", "avx_vnni", "amx_int8", "asimddp", "i8mm", "asimdhp", "sve", "bf16")
    return [name for name in wanted if name in flags]


def _cpuid() -> Mapping[str, bool]:
    """Return numpy's table of the processor's features; empty where there is none."""
    for name in ("numpy._core._multiarray_umath", "numpy.core._multiarray_umath"):
        try:
            found = getattr(importlib.import_module(name), "__cpu_features__", None)
        except ImportError:
            continue
        if isinstance(found, dict):
            return found
    return {}


def _bytes(path: Path, name: str) -> Optional[int]:
    """Return a size of one of the kernel's tables in kB."""
    lines = (_read(path) or "").splitlines()
    return next((int(line.split()[1]) * 1024 for line in lines if line.startswith(name)), None)
