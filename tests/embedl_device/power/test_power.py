"""Sensors of energy and power, read from trees as real boards have them, and from files that lie.

The trees follow the kernel's documents (powercap.rst, hwmon/sysfs-interface.rst, ina3221.rst, sysfs-class-power) and
NVIDIA's Jetson Linux Developer Guides; lines of tegrastats are from the latter.
"""

from __future__ import annotations

import importlib.metadata
import os
import stat
import sys
import types
from collections.abc import Mapping
from pathlib import Path

import pytest

from embedl_device.errors import BoardError
from embedl_device.power import BOARD, CPU, GPU, MEMORY, RAIL, Found, Source, choose, find_sources, words_of
from embedl_device.power._find import GROUP
from embedl_device.power._nvml import NvmlEnergy, NvmlPower, find_gpus, find_nvml
from embedl_device.power._sysfs import find_battery, find_hwmon, find_jetson, find_powercap
from embedl_device.power._tegrastats import find_tegrastats, parse_line

_RAPL = "class/powercap/intel-rapl:0"
_LAPTOP = {
    "class/powercap/intel-rapl/enabled": "1",
    f"{_RAPL}/name": "package-0", f"{_RAPL}/energy_uj": "262143000000", f"{_RAPL}/max_energy_range_uj": "262143328850",
    f"{_RAPL}:0/name": "core", f"{_RAPL}:0/energy_uj": "5000", f"{_RAPL}:0/max_energy_range_uj": "262143328850",
    f"{_RAPL}:1/name": "uncore", f"{_RAPL}:1/energy_uj": "7", f"{_RAPL}:1/max_energy_range_uj": "262143328850",
    f"{_RAPL}:2/name": "dram", f"{_RAPL}:2/energy_uj": "1000000", f"{_RAPL}:2/max_energy_range_uj": "65712999613",
    "class/powercap/intel-rapl-mmio:0/name": "package-0", "class/powercap/intel-rapl-mmio:0/energy_uj": "99",
}  # fmt: skip
_ORIN = {
    "class/hwmon/hwmon3/name": "ina3221",
    "class/hwmon/hwmon3/in1_label": "VDD_IN", "class/hwmon/hwmon3/in1_input": "19896",
    "class/hwmon/hwmon3/curr1_input": "248",
    "class/hwmon/hwmon3/in2_label": "VDD_CPU_GPU_CV", "class/hwmon/hwmon3/in2_input": "19888",
    "class/hwmon/hwmon3/curr2_input": "24",
    "class/hwmon/hwmon3/in3_label": "VDD_SOC", "class/hwmon/hwmon3/in3_input": "19880",
    "class/hwmon/hwmon3/curr3_input": "72",
    "class/hwmon/hwmon3/in4_input": "1", "class/hwmon/hwmon3/in4_label": "sum of shunt voltages",
}  # fmt: skip


def _tree(root: Path, files: Mapping[str, str]) -> Path:
    for name, text in files.items():
        path = root / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text + "\n")
    return root


def _watts(found: Found) -> object:
    read = {source.name: (source.domain, source.read()) for source in found.sources}
    for source in found.sources:
        source.close()
    return read


def test_rapl_counts_packages_and_memory_once(tmp_path: Path) -> None:
    """Cores are inside their package, and what MMIO shows is the same package again."""
    found = find_powercap(_tree(tmp_path, _LAPTOP))
    assert [(source.name, source.domain) for source in found.sources] == [
        ("RAPL package-0", CPU),
        ("RAPL dram of package-0", MEMORY),
    ]
    assert all(source.is_counter for source in found.sources)
    assert not found.problems


def test_a_counter_goes_on_where_it_begins_again(tmp_path: Path) -> None:
    """RAPL's registers have 32 bits: at the range they begin at 0."""
    root = _tree(tmp_path, _LAPTOP)
    package = find_powercap(root).sources[0]
    assert package.read() == 0.0
    (root / _RAPL / "energy_uj").write_text("262143328000")
    assert package.read() == pytest.approx(0.328)
    (root / _RAPL / "energy_uj").write_text("1000000")
    assert package.read() == pytest.approx(0.328 + 0.00085 + 1.0)


def test_a_counter_that_falls_without_a_range_is_no_reading(tmp_path: Path) -> None:
    """How much went by cannot be known; a guess would be joules that nobody measured."""
    root = _tree(tmp_path, {**_LAPTOP, f"{_RAPL}/max_energy_range_uj": "unknown"})
    package = find_powercap(root).sources[0]
    package.read()
    (root / _RAPL / "energy_uj").write_text("5")
    with pytest.raises(ValueError, match="does not say its range"):
        package.read()


def test_a_counter_that_may_not_be_read_is_said(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The kernel's refusal becomes a sentence with the command that helps."""
    root, real = _tree(tmp_path, _LAPTOP), os.open

    def refusing(path: str, *args: int) -> int:
        if path.endswith("intel-rapl:0/energy_uj"):
            raise PermissionError(13, "Permission denied", path)
        return real(path, *args)

    monkeypatch.setattr(os, "open", refusing)
    found = find_powercap(root)
    assert "root only; allow it with: sudo chmod a+r" in found.problems[0]
    # MMIO shows the same package to whoever may read that.
    assert [source.name for source in found.sources] == ["RAPL dram of package-0", "RAPL package-0"]


@pytest.mark.parametrize("text", ["", "text", "-5", "1" * 400, "0x10", "1.5", "9" * 19 + "9" * 19, "\0\0", "nan"])
def test_what_is_no_number_is_no_reading(tmp_path: Path, text: str) -> None:
    """A sensor that says anything else is left out with a sentence, or refused when it is read; never 0."""
    found = find_powercap(_tree(tmp_path, {f"{_RAPL}/name": "package-0", f"{_RAPL}/energy_uj": text}))
    if not found.sources:
        assert "RAPL package-0 cannot be read" in found.problems[0]
        return
    with pytest.raises(ValueError, match="counts -5"):
        found.sources[0].read()


def test_a_sensor_that_disappears_is_an_error_of_that_reading(tmp_path: Path) -> None:
    """An unplugged device's file answers ENODEV; the reading is left out and the others go on."""
    root = _tree(tmp_path, _ORIN)
    source = find_hwmon(root).sources[0]
    source.close()
    with pytest.raises(OSError, match="Bad file descriptor"):
        source.read()


def test_a_pipe_or_folder_in_a_sensors_place_does_not_hang(tmp_path: Path) -> None:
    """Neither is waited for."""
    root = _tree(tmp_path, {f"{_RAPL}/name": "package-0", "class/hwmon/hwmon0/name": "ina219"})
    os.mkfifo(root / _RAPL / "energy_uj")
    (root / "class/hwmon/hwmon0/power1_input").mkdir()
    assert not find_powercap(root).sources
    assert not find_hwmon(root).sources


def test_an_orin_multiplies_current_and_voltage_of_each_supply(tmp_path: Path) -> None:
    """Its driver tells mA and mV; the sum of shunt voltages is no supply."""
    assert _watts(find_hwmon(_tree(tmp_path, _ORIN))) == {
        "ina3221 VDD_IN": (BOARD, pytest.approx(4.934, abs=0.001)),
        "ina3221 VDD_CPU_GPU_CV": (RAIL, pytest.approx(0.477, abs=0.001)),
        "ina3221 VDD_SOC": (RAIL, pytest.approx(1.431, abs=0.001)),
    }


def test_ina219_and_ina226_tell_power_themselves(tmp_path: Path) -> None:
    """Power is taken before current times voltage; two chips of a kind are told apart."""
    chip = {"name": "ina219", "in0_input": "3", "in1_input": "5100", "curr1_input": "400", "power1_input": "2040000"}
    files = {f"class/hwmon/hwmon{number}/{name}": text for number in (1, 2) for name, text in chip.items()}
    assert _watts(find_hwmon(_tree(tmp_path, files))) == {
        "ina219 supply 1": (RAIL, pytest.approx(2.04)),
        "ina219 supply 1 #2": (RAIL, pytest.approx(2.04)),
    }


def test_channels_of_other_chips_are_not_multiplied_by_number(tmp_path: Path) -> None:
    """Only the INA drivers document that curr1 and in1 are one supply; elsewhere their labels must say so."""
    chip = {"name": "pmbus", "in1_input": "12000", "in1_label": "vin", "curr1_input": "900", "curr1_label": "iout1"}
    files = {f"class/hwmon/hwmon0/{name}": text for name, text in chip.items()}
    assert not find_hwmon(_tree(tmp_path, files)).sources


def test_a_graphics_card_and_an_epyc(tmp_path: Path) -> None:
    """Amdgpu tells an average; amd_energy counts cores and sockets, and the sockets hold the cores."""
    files = {
        "class/hwmon/hwmon0/name": "amdgpu", "class/hwmon/hwmon0/power1_average": "31000000",
        "class/hwmon/hwmon0/power1_label": "PPT",
        "class/hwmon/hwmon1/name": "amd_energy",
        "class/hwmon/hwmon1/energy1_label": "Ecore000", "class/hwmon/hwmon1/energy1_input": "5",
        "class/hwmon/hwmon1/energy2_label": "Esocket0", "class/hwmon/hwmon1/energy2_input": "77000000",
    }  # fmt: skip
    found = find_hwmon(_tree(tmp_path, files))
    assert [(source.name, source.domain, source.is_counter) for source in found.sources] == [
        ("amdgpu PPT", GPU, False),
        ("amd_energy Esocket0", CPU, True),
    ]


def test_a_sensor_that_says_too_much_or_less_than_nothing_is_no_reading(tmp_path: Path) -> None:
    """A current into the board, or a thousand kilowatts, is no use of energy."""
    root = _tree(tmp_path, {"class/hwmon/hwmon0/name": "ina226", "class/hwmon/hwmon0/power1_input": "1000000"})
    source = find_hwmon(root).sources[0]
    for text in ("-200000", "9000000000000000"):
        (root / "class/hwmon/hwmon0/power1_input").write_text(text)
        with pytest.raises(ValueError, match="says"):
            source.read()


def test_an_older_jetson_names_its_supplies(tmp_path: Path) -> None:
    """JetPack 4: the driver ina3221x below iio, milliwatts."""
    folder = "bus/i2c/drivers/ina3221x/6-0040/iio:device0"
    files = {
        f"{folder}/rail_name_0": "POM_5V_IN", f"{folder}/in_power0_input": "1532",
        f"{folder}/rail_name_1": "POM_5V_GPU", f"{folder}/in_power1_input": "0",
        f"{folder}/rail_name_2": "POM_5V_CPU", f"{folder}/in_power2_input": "161",
    }  # fmt: skip
    assert _watts(find_jetson(_tree(tmp_path, files))) == {
        "ina3221x POM_5V_IN": (BOARD, 1.532),
        "ina3221x POM_5V_GPU": (GPU, 0.0),
        "ina3221x POM_5V_CPU": (CPU, 0.161),
    }


def test_a_battery_counts_only_while_it_feeds_the_board(tmp_path: Path) -> None:
    """On mains its current is what charges it."""
    folder = "class/power_supply/BAT0"
    files = {f"{folder}/type": "Battery", f"{folder}/current_now": "1500000", f"{folder}/voltage_now": "12000000"}
    assert not find_battery(_tree(tmp_path, {**files, f"{folder}/status": "Charging"})).sources
    assert _watts(find_battery(_tree(tmp_path, {**files, f"{folder}/status": "Discharging"}))) == {
        "battery BAT0": (BOARD, 18.0)
    }


@pytest.mark.parametrize(
    ("line", "expected"),
    [
        (  # Nano, JetPack 4.6
            ("RAM 1938/3964MB (lfb 2x4MB) SWAP 0/1982MB (cached 0MB) IRAM 0/252kB(lfb 252kB) CPU [2%@102,0%@102] "
            "EMC_FREQ 0% GR3D_FREQ 0% PLL@36C CPU@38.5C POM_5V_IN 1532/1616 POM_5V_GPU 0/0 POM_5V_CPU 161/181"),
            {"POM_5V_IN": 1.532, "POM_5V_GPU": 0.0, "POM_5V_CPU": 0.161},
        ),
        (  # AGX Xavier, JetPack 4
            ("RAM 2316/31919MB (lfb 6950x4MB) CPU [0%@1190,0%@1190] GPU 0mW/0mW CPU 310mW/310mW SOC 930mW/930mW "
            "CV 0mW/0mW VDDRQ 155mW/155mW SYS5V 1609mW/1609mW"),
            {"GPU": 0.0, "CPU": 0.31, "SOC": 0.93, "CV": 0.0, "VDDRQ": 0.155, "SYS5V": 1.609},
        ),
        (  # Orin Nano, JetPack 6
            ("11-16-2026 10:00:00 RAM 2448/7620MB (lfb 1x1MB) CPU [1%@729,off] GR3D_FREQ 0% cpu@47.5C tj@48.9C "
            "VDD_IN 4280mW/4350mW VDD_CPU_GPU_CV 480mW/481mW VDD_SOC 1400mW/1401mW"),
            {"VDD_IN": 4.28, "VDD_CPU_GPU_CV": 0.48, "VDD_SOC": 1.4},
        ),
        ("rubbish 99999999999999999999mW/1mW \x1b[0m VDD_IN 1", {}),
    ],
)  # fmt: skip
def test_lines_of_tegrastats(line: str, expected: dict[str, float]) -> None:
    """The form changed with the generations; memory looks alike and is none."""
    assert parse_line(line) == expected


def _program(path: Path, script: str) -> str:
    path.write_text("#!/bin/sh\n" + script)
    path.chmod(path.stat().st_mode | stat.S_IXUSR)
    return str(path)


def test_tegrastats_is_read_as_it_prints_and_ended(tmp_path: Path) -> None:
    """A child of ours, whose newest line counts; it goes when the last supply is let go of."""
    script = f'echo $$ > {tmp_path}/pid; while echo "VDD_IN 4280mW/1mW VDD_SOC 100mW/1mW"; do sleep 0.05; done\n'
    found = find_tegrastats(_program(tmp_path / "tegrastats", script))
    assert _watts(found) == {"tegrastats VDD_IN": (BOARD, 4.28), "tegrastats VDD_SOC": (RAIL, 0.1)}
    with pytest.raises(ProcessLookupError):
        os.kill(int((tmp_path / "pid").read_text()), 0)


def test_a_tegrastats_without_supplies_is_said(tmp_path: Path) -> None:
    """One that ends, or is something else of that name."""
    assert "told no supply" in find_tegrastats(_program(tmp_path / "tegrastats", "echo hello\n")).problems[0]


class _Nvml(types.ModuleType):
    """NVML as nvidia-ml-py shows it, of one GPU; with or without an energy counter, which came with Volta."""

    class NVMLError(Exception):
        """What every failed call raises."""

    def __init__(self, *, has_counter: bool = True, is_working: bool = True) -> None:
        super().__init__("pynvml")
        self._has_counter, self._is_working = has_counter, is_working

    def nvmlInit(self) -> None:  # noqa: N802 - NVML's names
        if not self._is_working:
            raise self.NVMLError("Driver Not Loaded")

    def nvmlDeviceGetCount(self) -> int:  # noqa: N802
        return 1

    def nvmlDeviceGetHandleByIndex(self, number: int) -> int:  # noqa: N802
        return number

    def nvmlDeviceGetName(self, _: int) -> bytes:  # noqa: N802
        return b"Tesla"

    def nvmlDeviceGetTotalEnergyConsumption(self, _: int) -> int:  # noqa: N802
        if not self._has_counter:
            raise self.NVMLError("Not Supported")
        return 12_345

    def nvmlDeviceGetPowerUsage(self, _: int) -> int:  # noqa: N802
        return 70_500

    def nvmlDeviceGetClockInfo(self, _: int, __: int) -> int:  # noqa: N802
        return 1980

    def nvmlDeviceGetTemperature(self, _: int, __: int) -> int:  # noqa: N802
        return 61

    def nvmlDeviceGetCurrentClocksThrottleReasons(self, _: int) -> int:  # noqa: N802
        return 0x20 | 0x1


@pytest.mark.parametrize(("has_counter", "kind", "value"), [(True, NvmlEnergy, 12.345), (False, NvmlPower, 70.5)])
def test_a_gpus_counter_goes_before_its_power(
    monkeypatch: pytest.MonkeyPatch, has_counter: bool, kind: type, value: float
) -> None:
    """An older GPU has power alone."""
    monkeypatch.setitem(sys.modules, "pynvml", _Nvml(has_counter=has_counter))
    (source,) = find_nvml().sources
    assert isinstance(source, kind)
    assert (source.name, source.domain, source.read()) == ("NVML GPU 0 (Tesla)", GPU, value)
    (gpu,) = find_gpus()
    assert (gpu.clock_mhz(), gpu.temperature_c(), gpu.slowed()) == (1980.0, 61.0, 1.0)


def test_nvml_without_a_driver_is_said(monkeypatch: pytest.MonkeyPatch) -> None:
    """The package may be installed where no GPU is."""
    monkeypatch.setitem(sys.modules, "pynvml", _Nvml(is_working=False))
    assert find_nvml().problems == ["NVML cannot be used: Driver Not Loaded"]


class _Meter(Source):
    name, domain, family, is_counter = "my meter", BOARD, "mine", False

    def read(self) -> float:
        return 3.5


def test_sources_come_by_entry_point_and_a_broken_one_stops_nothing(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A meter of somebody's own is found beside the built-in ones."""

    class Entry(types.SimpleNamespace):
        def load(self) -> object:
            if self.name == "broken":
                raise ImportError("no such meter")
            return lambda: Found([_Meter()], ["channel 2 is not connected"])

    class Entries:
        def select(self, group: str) -> list[Entry]:
            return [Entry(name="mine"), Entry(name="broken")] if group == GROUP else []

    monkeypatch.setattr(importlib.metadata, "entry_points", Entries)
    found = find_sources(_tree(tmp_path, _LAPTOP))
    assert [source.name for source in found.sources] == ["RAPL package-0", "RAPL dram of package-0", "my meter"]
    assert "channel 2 is not connected" in found.problems
    assert any("'broken' failed: no such meter" in problem for problem in found.problems)


@pytest.mark.parametrize(
    ("known", "expected"),
    [
        ([("RAPL package-0", CPU, "powercap"), ("ina3221 VDD_IN", BOARD, "hwmon")], ["ina3221 VDD_IN"]),
        (
            [("RAPL package-0", CPU, "powercap"), ("RAPL package-1", CPU, "powercap"), ("GPU", GPU, "nvml"),
             ("amd_energy Esocket0", CPU, "hwmon")],
            ["RAPL package-0", "RAPL package-1", "GPU"],
        ),
        ([("ina219 supply 1", RAIL, "hwmon")], ["ina219 supply 1"]),
    ],
)  # fmt: skip
def test_nothing_is_counted_twice(known: list[tuple[str, str, str]], expected: list[str]) -> None:
    """The board before its parts, one kind of sensor for each part."""
    assert choose(known) == (expected, None)


def test_where_it_cannot_be_known_what_to_add_nothing_is() -> None:
    """Two supplies of unknown use, or none at all, give a sentence; a name that the user gives decides."""
    rails = [("a", RAIL, "hwmon"), ("b", RAIL, "hwmon")]
    assert choose(rails)[0] == []
    assert "--power-source" in str(choose(rails)[1])
    assert choose(rails, ["b"]) == (["b"], None)
    assert choose([]) == ([], "no sensor of energy or power was found")
    with pytest.raises(BoardError, match="There is no power source c; this board has: a, b"):
        choose(rails, ["c"])
    assert words_of(["a", "b"], [CPU, GPU]) == "a + b; the rest of the board is not counted"
