"""What the board says of itself again and again: files opened once, each reading a few system calls."""

from __future__ import annotations

import functools
from pathlib import Path
from typing import Any, Callable, List, NamedTuple, Optional, Sequence, Tuple

from embedl_device.kernel_files import KernelFile, opened, read_text
from embedl_device.power import Source
from embedl_device.power._nvml import GpuState, find_gpus
from embedl_device.sustained._journal import CLOCK, COUNTER, ENERGY, LEVEL, LIMIT, POWER, TEMPERATURE, Channel

SYSFS, PROC = Path("/sys"), Path("/proc")
_COOLED = ("cpufreq", "processor", "devfreq", "gpu")


class _Read(NamedTuple):
    channel: Channel
    read: Callable[[], Optional[float]]


class Watch:
    """All channels of a board; `values` reads them now."""

    def __init__(self, sources: Sequence[Source] = (), sysfs: Path = SYSFS, proc: Path = PROC) -> None:
        self._files: List[KernelFile] = []
        self._reads: List[_Read] = []
        self._sources = sources
        self._add_processors(sysfs)
        self._add_thermal(sysfs)
        self._add_quota(sysfs, proc)
        for gpu in find_gpus() if sysfs == SYSFS else []:
            self._add_gpu(gpu)
        for source in sources:
            kind = ENERGY if source.is_counter else POWER
            self._reads.append(_Read(Channel(kind, source.name, source.domain, source.family), source.read))

    @property
    def channels(self) -> List[Channel]:
        """What is read, in order."""
        return [each.channel for each in self._reads]

    def values(self) -> List[Optional[float]]:
        """Return what each says now; None for one that says nothing."""
        return [_value(each.read) for each in self._reads]

    def close(self) -> None:
        """Close all files and let go of the power sources."""
        for file in self._files:
            file.close()
        for source in self._sources:
            source.close()

    def _add(self, kind: str, name: str, path: Path, scale: float = 1.0) -> None:
        file = opened(path)
        if file is not None:
            self._files.append(file)
            self._reads.append(_Read(Channel(kind, name), lambda: file.number() * scale))

    def _add_processors(self, sysfs: Path) -> None:
        processors = sorted((sysfs / "devices" / "system" / "cpu").glob("cpu[0-9]*"), key=lambda path: path.name)
        shared = set()
        for cpu in processors:
            # Processors that share a clock have links to one policy; each is read once.
            policy = (cpu / "cpufreq").resolve()
            if policy not in shared:
                shared.add(policy)
                self._add(CLOCK, cpu.name, policy / "scaling_cur_freq", 1e-3)
                self._add(LIMIT, cpu.name, policy / "scaling_max_freq", 1e-3)
            for name in ("core_throttle_count", "package_throttle_count"):
                self._add(COUNTER, "{} {}".format(cpu.name, name), cpu / "thermal_throttle" / name)

    def _add_thermal(self, sysfs: Path) -> None:
        for zone in sorted((sysfs / "class" / "thermal").glob("thermal_zone*")):
            number = zone.name[len("thermal_zone") :]
            self._add(TEMPERATURE, "{}:{}".format(number, read_text(zone / "type") or ""), zone / "temp", 1e-3)
        for device in sorted((sysfs / "class" / "thermal").glob("cooling_device*")):
            kind = read_text(device / "type") or ""
            if any(word in kind.lower() for word in _COOLED):
                self._add(LEVEL, "cooling state of {}".format(kind), device / "cur_state")
        # The firmware of a Raspberry Pi says it in bits: 0x4 is throttled now, 0x8 the soft limit, 0x2 a capped clock.
        flags = opened(sysfs / "devices" / "platform" / "soc" / "soc:firmware" / "get_throttled")
        if flags is not None:
            self._files.append(flags)
            name = "throttled, says the firmware"
            self._reads.append(_Read(Channel(LEVEL, name), lambda: float(bool(int(flags.text(), 16) & 0xE))))

    def _add_quota(self, sysfs: Path, proc: Path) -> None:
        for group, path in quota_files(sysfs, proc):
            file = opened(path)
            if file is not None and _throttled(file) is not None:
                self._files.append(file)
                name = "throttled periods of control group {} (CPU quota)".format(group)
                self._reads.append(_Read(Channel(COUNTER, name), functools.partial(_throttled, file)))

    def _add_gpu(self, gpu: GpuState) -> None:
        self._reads += [
            _Read(Channel(CLOCK, gpu.name), gpu.clock_mhz),
            _Read(Channel(TEMPERATURE, gpu.name), gpu.temperature_c),
            _Read(Channel(LEVEL, "{} slowed down".format(gpu.name)), gpu.slowed),
        ]


def _value(read: Callable[[], Any]) -> Optional[float]:
    try:
        value = read()
    except (OSError, ValueError):
        return None
    return None if value is None else float(value)


def _throttled(file: KernelFile) -> Optional[float]:
    """Return in how many periods the quota was used up, from a group's ``cpu.stat``."""
    for line in file.text().splitlines():
        name, _, number = line.partition(" ")
        if name == "nr_throttled" and number.strip().isdigit():
            return float(number)
    return None


def quota_files(sysfs: Path, proc: Path) -> List[Tuple[str, Path]]:
    """Return the ``cpu.stat`` of this process's control group and of those around it, by the group's name.

    Version 2 has one tree, version 1 one for each controller; a container may see its own group as the root.
    """
    root = sysfs / "fs" / "cgroup"
    found: List[Tuple[str, Path]] = []
    for line in (read_text(proc / "self" / "cgroup") or "").splitlines():
        _, _, rest = line.partition(":")
        controllers, _, group = rest.partition(":")
        if controllers and "cpu" not in controllers.split(","):
            continue
        bases = [root / name for name in (controllers, "cpu", "cpu,cpuacct")] if controllers else [root]
        base = next((each for each in bases if each.is_dir()), root)
        names = [name for name in group.split("/") if name not in ("", ".", "..")]
        inner = [names[:depth] for depth in range(len(names), -1, -1)]
        found += [("/" + "/".join(part), base.joinpath(*part, "cpu.stat")) for part in inner]
    return found


def hottest(channels: Sequence[Channel], values: Sequence[Optional[float]]) -> Optional[float]:
    """Return the highest temperature; None where none was told. Zones that are switched off say absurd things."""
    told = [
        value
        for channel, value in zip(channels, values)
        if channel.kind == TEMPERATURE and value is not None and -40 < value < 200
    ]
    return max(told) if told else None
