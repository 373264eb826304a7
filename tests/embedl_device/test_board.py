"""What the board tells of itself, read from made-up system folders."""

from __future__ import annotations

from pathlib import Path

import pytest

from embedl_device import board


@pytest.fixture
def system(tmp_path: Path) -> Path:
    """Return the root of a board with two cores, a thermal zone and a cooling device."""
    files = {
        "sys/devices/system/cpu/cpu0/cpufreq/scaling_governor": "performance\n",
        "sys/devices/system/cpu/cpu0/cpufreq/scaling_cur_freq": "1500000\n",
        "sys/devices/system/cpu/cpu0/cpufreq/scaling_max_freq": "1800000\n",
        "sys/devices/system/cpu/cpu0/cpufreq/cpuinfo_max_freq": "1800000\n",
        "sys/devices/system/cpu/cpu0/thermal_throttle/core_throttle_count": "3\n",
        "sys/devices/system/cpu/cpu1/cpufreq/scaling_governor": "performance\n",
        "sys/devices/system/cpu/cpu1/cpufreq/scaling_cur_freq": "rubbish\n",
        "sys/class/thermal/thermal_zone0/temp": "52500\n",
        "sys/class/thermal/thermal_zone0/type": "cpu-thermal\n",
        "sys/class/thermal/thermal_zone1/temp": "-274000\n",
        "sys/class/thermal/cooling_device0/type": "cpufreq-cpu0\n",
        "sys/class/thermal/cooling_device0/cur_state": "0\n",
        "sys/class/thermal/cooling_device1/type": "pwm-fan\n",
        "sys/class/thermal/cooling_device1/cur_state": "2\n",
        "proc/cpuinfo": "processor : 0\nmodel name : Made Up\nFeatures : fp asimd asimddp i8mm\n",
        "proc/meminfo": "MemTotal:       4000000 kB\n",
        "proc/loadavg": "0.50 0.40 0.30 1/100 1234\n",
        "proc/device-tree/model": "Test Board 4\0",
        "proc/self/status": "Name: x\nVmHWM:    2000 kB\n",
    }
    for name, text in files.items():
        path = tmp_path / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text)
    return tmp_path


def test_a_board_is_described(system: Path) -> None:
    """Name, processor, its number formats, memory, clocks."""
    facts = board.describe(system / "sys", system / "proc")
    assert (facts["model"], facts["cpu"]) == ("Test Board 4", "Made Up")
    assert facts["cpu_features"] == ["asimddp", "i8mm"]
    assert facts["memory_bytes"] == 4_096_000_000
    assert facts["max_clock_mhz"] == [1800.0]


@pytest.mark.parametrize(
    ("cpuid", "expected"),
    [
        ({}, ["avx2", "avx512f", "avx512_vnni", "avx_vnni", "amx_int8"]),
        ({"AVX2": True, "AVX512F": True, "AVX512VNNI": False}, ["avx2", "avx512f", "avx_vnni", "amx_int8"]),
        ({"AVX2": True, "AVX512F": False}, ["avx2", "avx_vnni"]),
        ({"AVX2": False}, []),
    ],
)
def test_the_processor_is_believed_over_the_kernel(system: Path, cpuid: dict[str, bool], expected: list[str]) -> None:
    """An emulator shows the host's list and runs programs on another processor."""
    (system / "proc/cpuinfo").write_text("flags : fpu avx2 avx512f avx512_vnni avx_vnni amx_int8\n")
    assert board.describe(system / "sys", system / "proc", cpuid)["cpu_features"] == expected


def test_a_state_is_read_as_far_as_it_can_be(system: Path) -> None:
    """Rubbish and absurd values are left out, not guessed."""
    state = board.state(system / "sys", system / "proc")
    assert state == {
        "governor": ["performance"],
        "clock_mhz": [1500.0],
        "clock_limit_mhz": [1800.0],
        "temperature_c": {"0:cpu-thermal": 52.5},
        "throttle_counts": {"cpu0 core_throttle_count": 3, "cooling state of cpufreq-cpu0": 0},
        "load_1min": 0.5,
    }
    assert board.unreadable_in(state) == []


def test_throttling_is_what_the_counters_say(system: Path) -> None:
    """A lower clock alone is an idle processor; a counter, a cooling state or a lower limit is throttling."""
    before = board.state(system / "sys", system / "proc")
    cpu = system / "sys/devices/system/cpu/cpu0"
    (cpu / "cpufreq/scaling_cur_freq").write_text("600000\n")
    assert board.throttling_between(before, board.state(system / "sys", system / "proc")) == []
    (cpu / "thermal_throttle/core_throttle_count").write_text("5\n")
    (cpu / "cpufreq/scaling_max_freq").write_text("1000000\n")
    (system / "sys/class/thermal/cooling_device0/cur_state").write_text("1\n")
    assert board.throttling_between(before, board.state(system / "sys", system / "proc")) == [
        "cpu0 core_throttle_count rose from 3 to 5",
        "cooling state of cpufreq-cpu0 rose from 0 to 1",
        "the clock limit fell from 1800 to 1000 MHz",
    ]


def test_a_board_without_sensors_says_which(tmp_path: Path) -> None:
    """Nothing is made up."""
    state = board.state(tmp_path, tmp_path)
    assert board.unreadable_in(state) == ["governor", "clocks", "temperature", "throttling"]
    assert board.throttling_between(state, state) == []


def test_peak_memory_names_its_method(system: Path) -> None:
    """From the kernel's high-water mark, or from the C library."""
    assert board.peak_memory(system / "proc") == (2.048, "VmHWM of the measuring process, runtime and model included")
    value, method = board.peak_memory(system / "nothing")
    assert value is not None
    assert value > 1
    assert "ru_maxrss" in method
