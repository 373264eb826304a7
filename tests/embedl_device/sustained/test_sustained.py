"""A sustained run: the load, what is written down, and what is concluded from it; on clocks and boards of our own."""

from __future__ import annotations

import argparse
import fcntl
import io
import json
import math
import os
import random
import signal
import time
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import pytest

from embedl_device.errors import BoardError
from embedl_device.loader import Loaded, Loader
from embedl_device.power import CPU, GPU, Source
from embedl_device.program import Program
from embedl_device.sustained import Recording, document_of, find_onset, parse_journal, sustained
from embedl_device.sustained._energy import energy_of, integrated
from embedl_device.sustained._journal import Bin, Channel, Journal, Reading
from embedl_device.sustained._lease import BoardLease
from embedl_device.sustained._load import LoadPlan, Recorder, put_under_load
from embedl_device.sustained._onset import find_change
from embedl_device.sustained._watch import Watch, quota_files

_STEP_S = 0.5
_QUOTA = Channel("counter", "throttled periods of control group /x (CPU quota)")


def _recording(
    seconds: float,
    latency_ms: Callable[[float], float],
    channels: Sequence[Channel] = (),
    values: Callable[[float], Sequence[float | None]] = lambda _: (),
    *,
    idle_s: float = 3.0,
    seed: int = 0,
) -> Recording:
    """Return what a run would have written: a bin and a reading every half second, with some scatter."""
    generator = random.Random(seed)  # noqa: S311 - no secret
    bins, readings = [], []
    steps = [number * _STEP_S for number in range(-int(idle_s / _STEP_S), int((seconds + idle_s) / _STEP_S) + 1)]
    for at_s in steps:
        readings.append(Reading(at_s, list(values(at_s))))
        if 0 < at_s <= seconds:
            mean_us = latency_ms(at_s) * 1e3 * math.exp(generator.gauss(0, 0.03))
            count = max(1, int(_STEP_S * 1e6 / mean_us))
            bins.append(Bin(at_s, _STEP_S, count, count * mean_us, mean_us, 1.1 * mean_us, 1.5 * mean_us))
    return Recording({}, list(channels), bins, readings, {"stopped": "as asked"})


def _after(start_s: float, before: float, after: float) -> Callable[[float], float]:
    return lambda at_s: before if at_s <= start_s else after


def test_an_onset_needs_the_boards_word_and_the_latency() -> None:
    """A quota that is used up again and again from second 8 on, and an inference that takes twice as long."""
    found = find_onset(_recording(20, _after(8, 5, 10), [_QUOTA], lambda at_s: [max(0.0, at_s - 8) * 10]))
    assert found is not None
    assert (found.low_s, found.high_s) == (8.0, 8.5)
    assert found.ratio == pytest.approx(2, rel=0.1)
    assert found.evidence == ("throttled periods of control group /x (CPU quota) rose",)


@pytest.mark.parametrize(
    ("latency", "throttled"),
    [
        (_after(8, 5, 10), lambda _: [0.0]),  # another job: slower, and the board says nothing
        (_after(99, 5, 5), lambda at_s: [max(0.0, at_s - 8) * 10]),  # throttled without being felt
        (_after(99, 5, 5), lambda at_s: [float(at_s >= 8)]),  # one throttled period, and then no more
        (_after(8, 5, 10), lambda at_s: [float(at_s >= 8)]),  # the same, and another job
    ],
)
def test_one_of_both_is_no_onset(
    latency: Callable[[float], float], throttled: Callable[[float], Sequence[float]]
) -> None:
    """Neither a busy machine nor a counter that nobody feels is called throttling."""
    assert find_onset(_recording(20, latency, [_QUOTA], throttled)) is None


def test_a_board_that_throttles_from_the_start_is_said() -> None:
    """There is nothing fresh to hold it against, and the ratio is not known."""
    found = find_onset(_recording(10, lambda _: 5.0, [_QUOTA], lambda at_s: [max(0.0, at_s) * 10]))
    assert found is not None
    assert (found.low_s, found.ratio) == (0.0, None)


@pytest.mark.parametrize(
    ("channel", "before", "after", "word"),
    [
        (Channel("level", "cooling state of cpufreq-cpu0"), 0.0, 2.0, "cooling state of cpufreq-cpu0"),
        (Channel("clock_limit_mhz", "cpu0"), 1800.0, 1200.0, "clock limit of cpu0 fell from 1800 to 1200 MHz"),
        (Channel("clock_mhz", "cpu0"), 1800.0, 1200.0, "clock of cpu0 fell from 1800 to 1200 MHz"),
        (Channel("level", "GPU 0 slowed down"), 0.0, 1.0, "GPU 0 slowed down"),
    ],
)  # fmt: skip
def test_what_boards_say_of_throttling(channel: Channel, before: float, after: float, word: str) -> None:
    """Cooling states, clock limits, clocks and a GPU's own reasons tell it too."""
    recording = _recording(40, _after(20, 5, 7.5), [channel], lambda at_s: [before if at_s <= 20 else after])
    found = find_onset(recording)
    assert found is not None
    assert found.evidence == (word,)
    assert abs(found.at_s - 20) <= 1


@pytest.mark.parametrize("seed", range(20))
def test_a_noisy_machine_has_no_change_of_its_own(seed: int) -> None:
    """Stretches in which something else runs come and go; they are no lasting change and no throttling."""
    generator = random.Random(seed)  # noqa: S311 - no secret
    busy = [generator.random() < 0.3 for _ in range(20)]
    noisy = _recording(40, lambda at_s: 5.0 * (1.6 if busy[int(at_s / 2) % 20] else 1.0), [_QUOTA], lambda _: [0.0],
                       seed=seed)  # fmt: skip
    assert find_onset(noisy) is None
    change = find_change(noisy.bins)
    assert change is None or (change.ratio or 0) > 1.1


def test_a_lasting_change_without_a_word_is_a_slowdown_of_unknown_cause() -> None:
    """It is told, and not called throttling."""
    document = document_of(_recording(40, _after(20, 5, 8), [_QUOTA], lambda _: [0.0]))
    assert document["onset_s"] is None
    assert document["sustained"]["slowdown"]["at_s"] == pytest.approx(20, abs=1)
    assert document["verdict"] == "drifting"
    assert "nothing that the board tells says why" in document["verdict_reason"]


def test_steady_is_held_against_fresh() -> None:
    """The first seconds and the last third, their ratio with an interval, and the onset between them."""
    document = document_of(_recording(60, _after(20, 5, 8), [_QUOTA], lambda at_s: [max(0.0, at_s - 20)]))
    assert document["fresh_latency_ms"] == pytest.approx(5, rel=0.05)
    assert document["steady_latency_ms"] == pytest.approx(8, rel=0.05)
    ratio = document["sustained"]["ratio"]
    assert ratio["low"] < 1.6 < ratio["high"]
    assert ratio["high"] - ratio["low"] < 0.2
    assert document["verdict"] == "throttled"
    assert document["verdict_reason"].startswith("throttled from 20.2 s on, 1.6")


def _joules(idle_w: float, busy_w: float, seconds: float) -> Callable[[float], Sequence[float]]:
    return lambda at_s: [idle_w * (at_s + 3) + (busy_w - idle_w) * min(max(at_s, 0.0), seconds)]


def test_idle_power_is_taken_off_and_said() -> None:
    """12 W under load, 4 W idle before and after: 8 W for 200 inferences a second are 40 mJ each."""
    counter = Channel("energy_j", "RAPL package-0", CPU, "powercap")
    found = energy_of(_recording(20, lambda _: 5.0, [counter], _joules(4, 12, 20)))
    assert found["energy"]["value"] == pytest.approx(40, rel=0.02)
    assert found["energy"]["low"] < 40 < found["energy"]["high"]
    assert (found["idle_w"], found["mean_w"]) == (pytest.approx(4), pytest.approx(12))
    assert "4 W over 2.5 s before" in found["idle"]
    assert "after" in found["idle"]
    assert found["method"] == "the sensors' own counters"
    assert found["covers"] == "RAPL package-0; the rest of the board is not counted"


def test_power_is_integrated_by_trapezoids_and_sources_are_added() -> None:
    """A counter of the processor and samples of a GPU's power; a reading that failed is bridged."""
    channels = [Channel("energy_j", "RAPL package-0", CPU, "powercap"), Channel("power_w", "GPU", GPU, "nvml")]
    counted = _joules(4, 12, 20)

    def values(at_s: float) -> list[float | None]:
        return [*counted(at_s), None if at_s == 7.0 else 10.0 if 0 < at_s <= 20 else 5.0]

    found = energy_of(_recording(20, lambda _: 5.0, channels, values))
    assert found["energy"]["value"] == pytest.approx(65, rel=0.03)
    assert found["method"] == "trapezoids over samples of power"
    assert integrated([0, 1, 3], [2, 4, 4]).joules == [0, 3, 11]


@pytest.mark.parametrize(
    ("channels", "values", "problem"),
    [
        ([], lambda _: [], "no sensor of energy or power was found"),
        ([Channel("energy_j", "a", CPU, "x")], lambda _: [None], "a gave no readings that can be used"),
        ([Channel("energy_j", "a", CPU, "x")], lambda at_s: [100 - at_s], "a gave no readings that can be used"),
        ([Channel("power_w", "a", CPU, "x")], lambda _: [3.0], "no more than the 3 W of the idle board"),
    ],
)
def test_where_there_is_no_energy_there_is_a_sentence(
    channels: list[Channel], values: Callable[[float], Sequence[float | None]], problem: str
) -> None:
    """No sensor, a broken one, one that was reset, or a load that took nothing: no number, never zero."""
    recording = _recording(20, lambda _: 5.0, channels, values)
    assert problem in energy_of(recording)["problem"]
    assert document_of(recording)["energy_mj"] is None


def test_without_idle_time_nothing_is_taken_off_and_no_number_is_given() -> None:
    """What the board takes anyway is not the model's."""
    counter = Channel("energy_j", "a", CPU, "x")
    found = energy_of(_recording(20, lambda _: 5.0, [counter], _joules(4, 12, 20), idle_s=0.0))
    assert "idle power is not known" in found["problem"]
    assert found["mean_w"] == pytest.approx(12)


def _written(recording: Recording) -> bytes:
    file = io.StringIO()
    journal = Journal(file, {"program": "x"}, recording.channels)
    bins = {each.end_s: each for each in recording.bins}
    for reading in recording.readings:
        journal.add(reading, bins.get(reading.at_s))
    journal.finish({"stopped": "as asked"})
    return file.getvalue().encode()


def test_a_journal_is_read_as_it_was_written() -> None:
    """Every bin, every reading, the first line and the last."""
    recording = _recording(10, lambda _: 5.0, [_QUOTA], lambda at_s: [at_s + 10])
    read = parse_journal(io.BytesIO(_written(recording)))
    assert [each.end_s for each in read.bins] == [each.end_s for each in recording.bins]
    assert read.readings == recording.readings
    assert read.end == {"kind": "end", "stopped": "as asked"}
    assert document_of(read)["sustained"]["is_complete"]


@pytest.mark.parametrize("lost", [1, 40, 200, 700])
def test_a_killed_run_loses_the_end_of_its_journal_and_nothing_else(lost: int) -> None:
    """Half a line is left out, and the document says that there was no end."""
    whole = _written(_recording(10, lambda _: 5.0, [_QUOTA], lambda _: [0.0]))
    read = parse_journal(io.BytesIO(whole[:-lost]))
    assert read.bins
    document = document_of(read)
    assert not document["sustained"]["is_complete"]
    assert "without a word" in document["sustained"]["stopped"]
    assert document["verdict"] == "indicative"


@pytest.mark.parametrize(
    "line",
    [
        b"", b"[]\n", b'{"kind": "start", "format": 2, "channels": []}\n', b"\xff\n",
        b'{"kind": "start", "format": 1, "channels": [["nonsense", "x"]]}\n',
        b'{"kind": "start", "format": 1, "channels": []}\n{"b": [1, 2, 3]}\n',
        b'{"kind": "start", "format": 1, "channels": []}\n{"b": [1, 1, 0, 5, 5, 5, 5]}\n',
        b'{"kind": "start", "format": 1, "channels": []}\n{"b": [1, 1, 1, NaN, 5, 5, 5]}\n',
        b'{"kind": "start", "format": 1, "channels": []}\n{"s": [1, 2]}\n',
        b'{"kind": "start", "format": 1, "channels": [["counter", "x"]]}\n{"s": [1, "2"]}\n',
        b'{"kind": "start", "format": 1, "channels": [["counter", "x"]]}\n{"s": [1, 1e400]}\n',
    ],
)  # fmt: skip
def test_a_journal_that_is_none_is_refused(line: bytes) -> None:
    """A board may be in other hands: every form that is counted on is checked."""
    with pytest.raises(ValueError, match=r"journal|JSON|line|column|encod|decod|number"):
        parse_journal(io.BytesIO(line))


class _Clock:
    """Time that passes when somebody sleeps or computes."""

    def __init__(self) -> None:
        self.now_s = 100.0

    def __call__(self) -> float:
        return self.now_s

    def ns(self) -> int:
        return int(self.now_s * 1e9)

    def sleep(self, seconds: float) -> None:
        self.now_s += seconds


def _under_load(plan: LoadPlan, run_s: float, watch: Watch, steps: int = 10**6) -> tuple[Recorder, dict[str, object]]:
    clock = _Clock()
    recorder = Recorder(Journal(None, {}, watch.channels), watch, plan, clock() + plan.idle_seconds, clock_s=clock)
    next_s = [clock()]

    def passed(seconds: float) -> None:
        clock.sleep(seconds)
        while clock() >= next_s[0]:
            recorder.tick()
            next_s[0] += plan.period_s

    ending = put_under_load(lambda: passed(run_s), recorder, clock.ns, passed)
    recorder.tick()
    return recorder, ending


@pytest.fixture
def bare(tmp_path: Path) -> Watch:
    """Return a board that tells nothing."""
    return Watch((), tmp_path / "sys", tmp_path / "proc")


def test_a_load_lasts_as_long_as_it_should(bare: Watch) -> None:
    """Inferences of 10 ms for 20 s, bins of half a second, nothing before and after."""
    recorder, ending = _under_load(LoadPlan(seconds=20, idle_seconds=2), 0.01, bare)
    bins = recorder.journal.recording.bins
    assert ending == {"stopped": "after 20 s, as asked", "missed": None}
    assert sum(each.inferences for each in bins) == pytest.approx(2000, abs=2)
    assert bins[-1].end_s == pytest.approx(20, abs=0.02)
    assert recorder.journal.recording.readings[0].at_s == pytest.approx(-2, abs=0.3)
    assert len(recorder.last()["us"]) == recorder.count


def test_a_duty_cycle_rests_between(bare: Watch) -> None:
    """A quarter of every 4 s."""
    recorder, _ = _under_load(LoadPlan(seconds=40, duty=0.25, duty_period_s=4, idle_seconds=0), 0.01, bare)
    ends = [each.end_s % 4 for each in recorder.journal.recording.bins]
    assert max(ends) <= 1.6
    assert recorder.count == pytest.approx(1000, rel=0.03)


def test_a_rate_is_kept_and_what_is_too_late_is_counted(bare: Watch) -> None:
    """Ten a second can be kept by one of 20 ms and not by one of 250 ms."""
    recorder, ending = _under_load(LoadPlan(seconds=10, rate=10, idle_seconds=0), 0.02, bare)
    assert (recorder.count, ending["missed"]) == (100, 0)
    recorder, ending = _under_load(LoadPlan(seconds=10, rate=10, idle_seconds=0), 0.25, bare)
    assert recorder.count == pytest.approx(40, abs=1)
    assert ending["missed"] == pytest.approx(60, abs=2)


def test_it_stops_when_it_is_steady(bare: Watch) -> None:
    """After a minute of the same latency at the earliest."""
    recorder, ending = _under_load(LoadPlan(seconds=600, idle_seconds=0, until_steady=True), 0.05, bare)
    assert str(ending["stopped"]).startswith("steady at 60")
    assert recorder.journal.recording.bins[-1].end_s < 62


def test_it_stops_when_it_is_too_hot(tmp_path: Path) -> None:
    """The limit is the user's; the sensor that is switched off and says 300 °C does not count."""
    zones = tmp_path / "sys/class/thermal"
    for number, text in enumerate(("71000", "300000")):
        (zones / f"thermal_zone{number}").mkdir(parents=True)
        (zones / f"thermal_zone{number}" / "temp").write_text(text)
        (zones / f"thermal_zone{number}" / "type").write_text("soc")
    watch = Watch((), tmp_path / "sys", tmp_path / "proc")
    _, ending = _under_load(LoadPlan(seconds=600, idle_seconds=0, max_temperature_c=70), 0.05, watch)
    assert str(ending["stopped"]).endswith("71.0 °C, the limit is 70 °C")
    _, ending = _under_load(LoadPlan(seconds=10, idle_seconds=0, max_temperature_c=72), 0.05, watch)
    assert ending["stopped"] == "after 10 s, as asked"
    watch.close()


def _files(root: Path, files: dict[str, str]) -> None:
    for name, text in files.items():
        (root / name).parent.mkdir(parents=True, exist_ok=True)
        (root / name).write_text(text + "\n")


def test_the_board_is_watched_with_its_files_open(tmp_path: Path) -> None:
    """Clocks once for each policy, limits, counters, cooling, temperature and a Pi's firmware."""
    policy = "sys/devices/system/cpu/cpufreq/policy0"
    _files(tmp_path, {
        f"{policy}/scaling_cur_freq": "1500000", f"{policy}/scaling_max_freq": "1800000",
        "sys/devices/system/cpu/cpu0/thermal_throttle/core_throttle_count": "3",
        "sys/devices/system/cpu/cpu1/topology/core_id": "1",
        "sys/class/thermal/thermal_zone0/temp": "52500", "sys/class/thermal/thermal_zone0/type": "cpu-thermal",
        "sys/class/thermal/cooling_device0/type": "cpufreq-cpu0", "sys/class/thermal/cooling_device0/cur_state": "1",
        "sys/class/thermal/cooling_device1/type": "pwm-fan", "sys/class/thermal/cooling_device1/cur_state": "4",
        "sys/devices/platform/soc/soc:firmware/get_throttled": "50004",
        "proc/self/cgroup": "0::/user.slice/app\n",
        "sys/fs/cgroup/user.slice/app/cpu.stat": "usage_usec 1\nnr_periods 5\nnr_throttled 2\nthrottled_usec 9",
        "sys/fs/cgroup/user.slice/cpu.stat": "usage_usec 1", "sys/fs/cgroup/cpu.stat": "usage_usec 1",
    })  # fmt: skip
    for cpu in ("cpu0", "cpu1"):
        (tmp_path / f"sys/devices/system/cpu/{cpu}/cpufreq").symlink_to(tmp_path / policy)
    watch = Watch((), tmp_path / "sys", tmp_path / "proc")
    assert {each.name: value for each, value in zip(watch.channels, watch.values(), strict=True)} == {
        "cpu0": 1800.0,  # of the two channels of this name the limit comes last
        "cpu0 core_throttle_count": 3.0,
        "0:cpu-thermal": 52.5,
        "cooling state of cpufreq-cpu0": 1.0,
        "throttled, says the firmware": 1.0,
        "throttled periods of control group /user.slice/app (CPU quota)": 2.0,
    }
    (tmp_path / policy / "scaling_cur_freq").write_text("rubbish")
    assert watch.values()[0] is None
    watch.close()


def test_control_groups_of_both_versions(tmp_path: Path) -> None:
    """Version 1 has a tree for each controller, and the groups around ours may have a quota too."""
    _files(tmp_path, {"proc/self/cgroup": "4:memory:/m\n1:cpu,cpuacct:/outer/inner\n0::/\n"})
    (tmp_path / "sys/fs/cgroup/cpu,cpuacct").mkdir(parents=True)
    root = tmp_path / "sys/fs/cgroup"
    assert quota_files(tmp_path / "sys", tmp_path / "proc") == [
        ("/outer/inner", root / "cpu,cpuacct/outer/inner/cpu.stat"),
        ("/outer", root / "cpu,cpuacct/outer/cpu.stat"),
        ("/", root / "cpu,cpuacct/cpu.stat"),
        ("/", root / "cpu.stat"),
    ]


class _Failing(Source):
    name, domain, family, is_counter = "flaky", CPU, "x", False

    def read(self) -> float:
        raise OSError("gone")


def test_a_source_that_fails_leaves_a_gap(tmp_path: Path) -> None:
    """The others are read all the same."""
    watch = Watch([_Failing()], tmp_path / "sys", tmp_path / "proc")
    assert watch.values() == [None]
    watch.close()


def _models(run: Callable[[], object]) -> Loader:
    def load(path: Path, is_alone: bool) -> Loaded:
        assert is_alone
        if path.read_text() != "model":
            raise BoardError("This is no model.")
        return Loaded(run, 1000.0, {"data": {"source": "made up", "inputs": {}}})

    return Loader("embedl-test", load, lambda: None, lambda: {"runtime": {"name": "test"}})


def _arguments(model: Path, *more: str) -> argparse.Namespace:
    program = Program("embedl-test", None, "", "", lambda _: None, lambda _: None)
    program.measurements("embedl_test")
    return program.parser.parse_args(["sustain", "--model", str(model), *more])


@pytest.fixture
def model(tmp_path: Path) -> Path:
    """Return a file that passes for a model."""
    path = tmp_path / "model.x"
    path.write_text("model")
    return path


_SHORT = ("--seconds", "1.2", "--idle-seconds", "0.2", "--period", "0.1", "--max-warmup-seconds", "0.1")


def test_the_command_measures_and_writes_as_it_goes(model: Path, tmp_path: Path) -> None:
    """The document that it returns is the one that the journal gives."""
    arguments = _arguments(model, "--folder", str(tmp_path / "out"), *_SHORT)
    document = sustained(arguments, _models(lambda: time.sleep(0.005)))
    assert document["kind"] == "sustained"
    assert document["steady_latency_ms"] >= 5
    assert document["runtime"] == {"name": "test"}
    with (tmp_path / "out" / "journal.jsonl").open("rb") as file:
        again = document_of(parse_journal(file))
    assert again["iterations"] == document["iterations"]
    assert len(again["samples_us"]) == len(document["samples_us"]) > 10


@pytest.mark.parametrize(
    ("words", "said"),
    [
        (("--seconds", "0"), "--seconds is 0; it must be from 1 to 1e+06"),
        (("--duty", "1.5"), "--duty is 1.5"),
        (("--rate", "0"), "--rate is 0"),
        (("--detach",), "--detach needs --folder"),
        (("--power-source", "nothing"), "There is no power source nothing"),
    ],
)
def test_what_cannot_be_is_said_before_the_load(model: Path, words: tuple[str, ...], said: str) -> None:
    """One sentence with what would be right."""
    with pytest.raises(BoardError, match=said.replace("+", r"\+")):
        sustained(_arguments(model, *_SHORT, *words), _models(lambda: None))


def _progress(folder: Path) -> dict[str, Any]:
    content: dict[str, Any] = json.loads((folder / "progress.json").read_text())
    return content


def _until(folder: Path, states: set[str], limit_s: float = 30.0) -> dict[str, Any]:
    deadline = time.monotonic() + limit_s
    while (found := _progress(folder))["state"] not in states and time.monotonic() < deadline:
        time.sleep(0.05)
    return found


def test_a_detached_run_goes_on_alone(model: Path, tmp_path: Path) -> None:
    """It is in a session of its own, tells how far it is, and leaves its journal."""
    folder = tmp_path / "out"
    answer = sustained(
        _arguments(model, "--folder", str(folder), "--detach", *_SHORT), _models(lambda: time.sleep(0.005))
    )
    assert os.getsid(answer["pid"]) != os.getsid(0)
    assert _until(folder, {"done", "failed"}) == {"state": "done", "pid": answer["pid"]}
    with (folder / "journal.jsonl").open("rb") as file:
        assert parse_journal(file).end is not None


def test_a_detached_run_that_fails_says_why(model: Path, tmp_path: Path) -> None:
    """Where nobody listens any more, the sentence is in the progress."""
    model.write_text("none")
    folder = tmp_path / "out"
    sustained(_arguments(model, "--folder", str(folder), "--detach", *_SHORT), _models(lambda: None))
    assert _until(folder, {"done", "failed"})["error"] == "This is no model."


def test_a_detached_run_that_is_asked_to_end_keeps_what_it_has(model: Path, tmp_path: Path) -> None:
    """SIGTERM ends the load, not the record."""
    folder = tmp_path / "out"
    words = ("--seconds", "600", "--idle-seconds", "0", "--period", "0.1", "--max-warmup-seconds", "0")
    answer = sustained(
        _arguments(model, "--folder", str(folder), "--detach", *words), _models(lambda: time.sleep(0.005))
    )
    while not (found := _until(folder, {"under load", "failed"})).get("inferences"):
        assert found["state"] == "under load"
        time.sleep(0.05)
    os.kill(answer["pid"], signal.SIGTERM)
    assert _until(folder, {"done", "failed"})["state"] == "done"
    with (folder / "journal.jsonl").open("rb") as file:
        assert "signal 15" in str((parse_journal(file).end or {}).get("stopped"))


def test_a_run_takes_the_lease_when_its_hub_lets_go(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """While the hub has the lock the run waits; afterwards it has the lock itself, and says who it is."""
    monkeypatch.setattr("embedl_device.sustained._lease._EVERY_S", 0.0)
    hub = os.open(tmp_path, os.O_RDONLY)
    fcntl.flock(hub, fcntl.LOCK_EX)
    (tmp_path / "holder.7").write_text("me@hub since 10:00")
    lease = BoardLease(str(tmp_path), "a sustained run")
    lease.look(1.0)
    assert lease.taken_at_s is None
    (tmp_path / "holder.7").write_text("somebody else since 10:01")
    lease.look(2.0)
    assert lease.facts() == {"own_from_s": None, "shared_from_s": 2.0}
    os.close(hub)
    lease.look(3.0)
    assert lease.facts()["own_from_s"] == 3.0
    assert (tmp_path / f"holder.{os.geteuid()}").read_text().startswith("a sustained run since")
    other = os.open(tmp_path, os.O_RDONLY)
    with pytest.raises(BlockingIOError):
        fcntl.flock(other, fcntl.LOCK_EX | fcntl.LOCK_NB)
    lease.close()
    fcntl.flock(other, fcntl.LOCK_EX | fcntl.LOCK_NB)
    os.close(other)
    assert not (tmp_path / f"holder.{os.geteuid()}").exists()


def test_no_lease_folder_is_no_lease(tmp_path: Path) -> None:
    """A board that leases nothing, or one whose folder is gone."""
    lease = BoardLease(str(tmp_path / "nowhere"), "x")
    lease.look(1.0)
    assert lease.facts() == {"own_from_s": None, "shared_from_s": None}
    lease.close()
