"""Sensors that Linux shows as files: powercap (RAPL), hwmon, the INA drivers of older Jetsons, batteries.

Formats: Documentation/power/powercap/powercap.rst, Documentation/hwmon/sysfs-interface.rst and ina3221.rst,
Documentation/ABI/testing/sysfs-class-power of the Linux kernel; NVIDIA's Jetson Linux Developer Guide for
``ina3221x``.
"""

from __future__ import annotations

import errno
import re
from pathlib import Path
from typing import Dict, List, NamedTuple, Optional, Sequence, Tuple

from embedl_device.kernel_files import KernelFile, opened, read_text
from embedl_device.power._source import BOARD, CPU, GPU, MEMORY, RAIL, Found, Source, domain_of

# Nothing that runs a model on a desk takes more; a sensor that says so is broken.
_MOST_WATTS = 1e5
_GPUS = ("amdgpu", "nouveau", "xe", "i915")


class Counter(Source):
    """A file that counts microjoules and begins again at its range."""

    is_counter = True

    def __init__(self, name: str, domain: str, family: str, file: KernelFile, range_uj: Optional[int]) -> None:
        self.name, self.domain, self.family = name, domain, family
        self._file, self._range_uj = file, range_uj
        self._last_uj: Optional[int] = None
        self._total_uj = 0

    def read(self) -> float:
        """Return the joules since the first reading."""
        now = self._file.number()
        if now < 0:
            raise ValueError("{} counts {} uJ".format(self.name, now))
        last, self._last_uj = self._last_uj, now
        if last is None:
            return 0.0
        step = now - last
        if step < 0:
            if not self._range_uj or last > self._range_uj:
                raise ValueError("{} fell from {} to {} uJ and does not say its range".format(self.name, last, now))
            step += self._range_uj
        self._total_uj += step
        return self._total_uj / 1e6

    def close(self) -> None:
        """Close the file."""
        self._file.close()


class Power(Source):
    """Files whose product, scaled, is watts."""

    is_counter = False

    def __init__(self, name: str, domain: str, family: str, files: Sequence[KernelFile], scale: float) -> None:
        self.name, self.domain, self.family = name, domain, family
        self._files, self._scale = files, scale

    def read(self) -> float:
        """Return the watts of now."""
        watts = self._scale
        for file in self._files:
            watts *= file.number()
        # A current that flows the other way charges something; that is no use of energy.
        if not 0 <= watts < _MOST_WATTS:
            raise ValueError("{} says {:g} W".format(self.name, watts))
        return watts

    def close(self) -> None:
        """Close the files."""
        for file in self._files:
            file.close()


def find_powercap(sysfs: Path) -> Found:
    """Find RAPL's zones: packages, memory, the whole platform; cores are inside their package."""
    sources: List[Source] = []
    problems: List[str] = []
    seen: List[str] = []
    # The same package may be reachable by MSR and by MMIO: ``intel-rapl:0`` sorts before ``intel-rapl-mmio:0``.
    zones = sorted((sysfs / "class" / "powercap").glob("*:*"), key=lambda path: ("mmio" in path.name, path.name))
    for zone in zones:
        label = read_text(zone / "name")
        if label is None or label in ("core", "uncore"):
            continue
        outer = read_text(zone.parent / zone.name.rpartition(":")[0] / "name") if zone.name.count(":") > 1 else None
        name = "RAPL {}".format(label if outer is None else "{} of {}".format(label, outer))
        if name in seen:
            continue
        try:
            file = KernelFile(zone / "energy_uj")
            file.number()
        except (OSError, ValueError) as error:
            problems.append(_why(name, zone / "energy_uj", error))
            continue
        seen.append(name)
        domain = BOARD if label == "psys" else MEMORY if label == "dram" else CPU
        sources.append(Counter(name, domain, "powercap", file, _whole(zone / "max_energy_range_uj")))
    return Found(sources, problems)


def _why(name: str, path: Path, error: Exception) -> str:
    if isinstance(error, OSError) and error.errno in (errno.EACCES, errno.EPERM):
        return "{} can be read by root only; allow it with: sudo chmod a+r {}".format(name, path)
    return "{} cannot be read: {}".format(name, error)


def _whole(path: Path) -> Optional[int]:
    text = read_text(path) or ""
    return int(text) if re.fullmatch(r"[0-9]{1,18}", text) else None


def find_hwmon(sysfs: Path) -> Found:
    """Find the energy and power of hwmon chips, and current times voltage where both are of one supply."""
    sources: List[Source] = []
    problems: List[str] = []
    for chip in sorted((sysfs / "class" / "hwmon").glob("hwmon*"), key=_number_in):
        found = _of_chip(chip)
        sources += found.sources
        problems += found.problems
    return Found(_told_apart(sources), problems)


def _number_in(path: Path) -> Tuple[int, str]:
    digits = re.search(r"[0-9]{1,9}", path.name)
    return (int(digits.group()) if digits else 0, path.name)


class _Channel(NamedTuple):
    """One supply of a chip: the files that are multiplied, or the one that counts."""

    number: str
    files: Sequence[Path]
    is_counter: bool = False


def _of_chip(chip: Path) -> Found:
    kind = read_text(chip / "name") or chip.name
    sources: List[Source] = []
    problems: List[str] = []
    for channel in _channels(chip, kind):
        label = _label(chip, channel.number, channel.files[0].name)
        name = "{} {}".format(kind, label or "supply {}".format(channel.number))
        domain = domain_of(label) if label else GPU if kind in _GPUS else RAIL
        try:
            files = [KernelFile(path) for path in channel.files]
            for file in files:
                file.number()
        except (OSError, ValueError) as error:
            problems.append(_why(name, channel.files[0], error))
            continue
        if channel.is_counter:
            sources.append(Counter(name, domain, "hwmon", files[0], None))
        else:
            sources.append(Power(name, domain, "hwmon", files, 1e-6))
    return Found(sources, problems)


def _channels(chip: Path, kind: str) -> List[_Channel]:
    """Return the supplies of a chip, each once: what counts, else power, else current times voltage."""
    counters = sorted(chip.glob("energy*_input"), key=_number_in)
    # The AMD driver counts each core and each socket; the cores are inside the socket.
    sockets = [path for path in counters if _label(chip, _digits(path), path.name).startswith("Esocket")]
    if counters:
        return [_Channel(_digits(path), [path], is_counter=True) for path in sockets or counters]
    found: Dict[str, _Channel] = {}
    for pattern in ("power*_input", "power*_average", "curr*_input"):
        for path in sorted(chip.glob(pattern), key=_number_in):
            number = _digits(path)
            volts = _volts_of(chip, number, kind)
            files = [path] if path.name.startswith("power") else [path, volts] if volts is not None else []
            if files:
                found.setdefault(number, _Channel(number, files))
    return list(found.values())


def _digits(path: Path) -> str:
    return str(_number_in(path)[0])


def _label(chip: Path, number: str, file_name: str) -> str:
    """Return what a channel is called; a current's name may stand at its voltage."""
    own = re.sub(r"_(input|average)$", "_label", file_name)
    for name in (own, "in{}_label".format(number), "curr{}_label".format(number)):
        text = read_text(chip / name)
        if text and text.isprintable():
            return text[:60]
    return ""


def _volts_of(chip: Path, number: str, kind: str) -> Optional[Path]:
    """Return the voltage of the supply whose current has this number; None where that is not sure."""
    volts = chip / "in{}_input".format(number)
    if not volts.exists():
        return None
    current_label = read_text(chip / "curr{}_label".format(number))
    is_same = current_label is not None and current_label == read_text(chip / "in{}_label".format(number))
    # Of the INA chips it is documented; other chips number their channels as they like.
    return volts if is_same or kind.startswith("ina") else None


def find_jetson(sysfs: Path) -> Found:
    """Find the INA3221 of Jetsons before Linux 5, whose driver gives milliwatts by supply."""
    sources: List[Source] = []
    for device in sorted((sysfs / "bus" / "i2c" / "drivers" / "ina3221x").glob("*/iio*device*")):
        for path in sorted(device.glob("in_power*_input"), key=_number_in):
            label = read_text(device / "rail_name_{}".format(_digits(path))) or ""
            file = opened(path)
            if file is None or not label.isprintable():
                continue
            name = "ina3221x {}".format(label[:60] or path.name)
            sources.append(Power(name, domain_of(label), "ina3221x", [file], 1e-3))
    return Found(_told_apart(sources))


def find_battery(sysfs: Path) -> Found:
    """Find batteries that are being emptied: only then they feed all of the board."""
    sources: List[Source] = []
    for battery in sorted((sysfs / "class" / "power_supply").glob("*")):
        if (read_text(battery / "type"), read_text(battery / "status")) != ("Battery", "Discharging"):
            continue
        name = "battery {}".format(battery.name)
        power = opened(battery / "power_now")
        current, volts = opened(battery / "current_now"), opened(battery / "voltage_now")
        if power is not None:
            sources.append(Power(name, BOARD, "battery", [power], 1e-6))
        elif current is not None and volts is not None:
            sources.append(Power(name, BOARD, "battery", [current, volts], 1e-12))
    return Found(sources)


def _told_apart(sources: Sequence[Source]) -> List[Source]:
    """Number sources of the same name, as two chips of a kind have."""
    seen: Dict[str, int] = {}
    for source in sources:
        count = seen[source.name] = seen.get(source.name, 0) + 1
        if count > 1:
            source.name = "{} #{}".format(source.name, count)
    return list(sources)
