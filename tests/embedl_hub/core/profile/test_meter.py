"""An external meter's CSV beside a sustained run: as meters write them, with clocks that are off, or none at all."""

from __future__ import annotations

import datetime as dt
from pathlib import Path

import pytest

from embedl_device.sustained import Recording
from embedl_device.sustained._journal import Bin, Reading
from embedl_hub.core.profile import metered, read_meter
from embedl_hub.errors import ConfigError

_CLOCK_S = 1_794_800_000.0


def _recording(seconds: float = 20.0, idle_s: float = 5.0) -> Recording:
    """Return a run with 200 inferences a second, between two rests."""
    bins = [Bin(n / 2, 0.5, 100, 5e5, 5e3, 5e3, 5e3) for n in range(1, int(2 * seconds) + 1)]
    readings = [Reading(n / 2, ()) for n in range(int(-2 * idle_s), int(2 * (seconds + idle_s)) + 1)]
    return Recording({"clock_s": _CLOCK_S}, [], bins, readings, None)


def _watts(at_s: float, seconds: float = 20.0) -> float:
    return 12.0 if 0 <= at_s <= seconds else 4.0


_MOMENTS = [n / 10 for n in range(-80, 281)]


def _written(path: Path, *lines: str) -> Path:
    path.write_text("\n".join(lines) + "\n", encoding="utf-8")
    return path


@pytest.mark.parametrize("offset_s", [0.0, 3.7, -2.2])
def test_the_meters_clock_is_found_by_the_step_of_the_power(tmp_path: Path, offset_s: float) -> None:
    """8 W above idle for 200 inferences a second are 40 mJ each, however the meter's clock is set."""
    lines = [f"{_CLOCK_S + at_s + offset_s:.3f},{_watts(at_s)}" for at_s in _MOMENTS]
    found = metered(_recording(), read_meter(_written(tmp_path / "m.csv", "timestamp,power_W", *lines)), None)
    assert found.offset_s == pytest.approx(offset_s, abs=0.15)
    assert found.energy["energy"]["value"] == pytest.approx(40, rel=0.03)
    assert found.energy["idle_w"] == pytest.approx(4, rel=0.05)


def test_an_offset_that_is_said_is_taken(tmp_path: Path) -> None:
    """And a wrong one has no step to hide behind: the numbers follow it."""
    lines = [f"{_CLOCK_S + at_s + 3:.3f},{_watts(at_s)}" for at_s in _MOMENTS]
    record = read_meter(_written(tmp_path / "m.csv", "time,power", *lines))
    assert metered(_recording(), record, 3.0).energy["mean_w"] == pytest.approx(12, rel=0.02)
    assert metered(_recording(), record, 0.0).energy["mean_w"] < 11.5


def _monsoon(at_s: float) -> str:
    return f"{(at_s + 8) * 1e3:.1f},{_watts(at_s) / 4 * 1e3:.1f},4.0"


def _joulescope(at_s: float) -> str:
    return f"{at_s + 8:.3f},{_watts(at_s) / 5:.4f},5.0,{_watts(at_s):.4f}"


def _otii(at_s: float) -> str:
    return f"{at_s + 8:.3f};{_watts(at_s) / 4:.3f};4,0".replace(".", ",")


def _dated(at_s: float) -> str:
    moment = dt.datetime.fromtimestamp(_CLOCK_S + at_s, dt.timezone(dt.timedelta(hours=1)))
    return f"{moment.replace(tzinfo=None).isoformat(sep=' ')}\t{_watts(at_s) * 1e3:.1f}"


def _counting(at_s: float) -> str:
    joules = 4 * (at_s + 8) + 8 * min(max(at_s, 0.0), 20.0)
    return f"{(_CLOCK_S + at_s) * 1e3:.0f},{joules / 3.6:.6f}"


def _current_alone(at_s: float) -> str:
    return f"{(at_s + 8) * 1e3:.1f},{_watts(at_s) / 3.7 * 1e6:.0f}"


@pytest.mark.parametrize(
    ("titles", "line", "options"),
    [
        (["Time(ms),Main(mA),Main Voltage(V)"], _monsoon, {}),
        (["# Joulescope", "time (s),current (A),voltage (V),power (W)"], _joulescope, {}),
        (["Timestamp;Main current (A);Main voltage (V)"], _otii, {}),
        (["Date\tPower [mW]"], _dated, {"time_zone": "Etc/GMT-1"}),
        (["timestamp,energy_mWh"], _counting, {}),
        (["Timestamp(ms),Current(uA)"], _current_alone, {"voltage": 3.7}),
    ],
    ids=["Monsoon", "Joulescope", "Otii", "dates and tabs", "a counter", "PPK2"],
)  # fmt: skip
def test_files_of_meters(tmp_path: Path, titles: list[str], line, options) -> None:  # type: ignore[no-untyped-def]  # noqa: ANN001
    """Their columns, units, marks and times; all of them say 40 mJ."""
    record = read_meter(_written(tmp_path / "m.csv", *titles, *map(line, _MOMENTS)), **options)
    found = metered(_recording(), record, None)
    assert found.energy["energy"]["value"] == pytest.approx(40, rel=0.04)
    if record.is_absolute:
        assert abs(found.offset_s) < 0.2


@pytest.mark.parametrize(
    ("content", "said"),
    [
        ("", "no line of titles"),
        ("hello\nworld\n", "no line of titles"),
        ("time,power\n", "fewer than three rows"),
        ("time,power\n1,2\n1,2\n3,4\n", "times go back at row 2"),
        ("time,power\n1,2\n2,x\n3,4\n", "could not convert"),
        ("time,power\n1\n2\n3\n", "has 1 cells"),
        ("time,power\n1,2\n2,nan\n3,4\n", "row 2 has 2, nan"),
        ("time,current\n1,2\n2,3\n3,4\n", "--voltage V"),
        ("time,power\nyesterday,2\ntoday,3\nnow,3\n", "yesterday"),
        ("\0\0\0", "cannot be understood"),
    ],
)
def test_a_file_that_is_none_is_one_sentence(tmp_path: Path, content: str, said: str) -> None:
    """It says what would be right."""
    path = tmp_path / "m.csv"
    path.write_text(content)
    with pytest.raises(ConfigError, match=said):
        read_meter(path)


def test_a_file_that_is_not_there(tmp_path: Path) -> None:
    """And one that is a folder."""
    for path in (tmp_path / "nowhere.csv", tmp_path):
        with pytest.raises(ConfigError, match="cannot be read"):
            read_meter(path)


def test_a_record_without_a_step_finds_no_clock(tmp_path: Path) -> None:
    """Nothing is guessed: the offset must be said."""
    flat = read_meter(_written(tmp_path / "m.csv", "time,power", *(f"{n / 10},5" for n in range(400))))
    with pytest.raises(ConfigError, match="no clear step"):
        metered(_recording(), flat, None)
    short = read_meter(_written(tmp_path / "s.csv", "time,power", *(f"{n / 10},5" for n in range(40))))
    with pytest.raises(ConfigError, match=r"recorded 3\.9 s, less than"):
        metered(_recording(), short, None)
    with pytest.raises(ConfigError, match="no rest before the load"):
        metered(_recording(idle_s=0.0), flat, None)
