"""The document of a sustained run, from its journal: fresh and steady latency, the onset of throttling, energy."""

from __future__ import annotations

from typing import Any, Dict, List, NamedTuple, Optional, Sequence, Tuple

from embedl_device import DOCUMENT_FORMAT
from embedl_device.statistics import (
    Judgement,
    Ratio,
    Verdict,
    judge,
    log_error,
    ratio_of,
    relative_change,
    series_of,
    summarize,
)
from embedl_device.sustained._energy import energy_of
from embedl_device.sustained._journal import Bin, Recording
from embedl_device.sustained._onset import Onset, find_change, find_onset, mean_us, words
from embedl_device.sustained._watch import hottest

# Fresh is the first tenth, at least so long and at most so long; steady the last third.
_FRESH_SHARE, _FRESH_LEAST_S, _FRESH_MOST_S = 0.1, 5.0, 30.0
_STEADY_SHARE = 1 / 3
_MOST_POINTS = 4000


class Part(NamedTuple):
    """A stretch of the run and the mean time of one inference in it."""

    from_s: float
    until_s: float
    inferences: int
    mean_ms: float


def document_of(recording: Recording, wanted: Sequence[str] = ()) -> Dict[str, Any]:
    """Return the document of a run; a ValueError where nothing was timed.

    Args:
        recording: The journal.
        wanted: The power sources to add up; those that the run was started with when not given.
    """
    if not recording.bins:
        raise ValueError("no inference was timed before the run ended")
    recording = recording._replace(bins=whole(recording.bins))
    bins = recording.bins
    onset = find_onset(recording)
    change = None if onset is not None else find_change(bins)
    fresh_bins, steady_bins = split(bins, onset)
    ratio = _ratio(fresh_bins, steady_bins)
    chosen = list(wanted) or [str(name) for name in recording.start.get("power_sources") or ()]
    energy = energy_of(recording, chosen)
    still = relative_change([each.mean_us for each in steady_bins])
    samples = _samples(recording, _part(steady_bins).from_s)
    judgement = _judge(recording, onset, change, samples, still)
    joules = energy.get("energy") or {}
    temperatures = _temperatures(recording)
    own = ("program", "version", "power_problems", "power_sources", "plan", "before")
    return {
        **{key: value for key, value in recording.start.items() if key not in own},
        "format": DOCUMENT_FORMAT,
        "kind": "sustained",
        "tool": {"name": recording.start.get("program"), "version": recording.start.get("version")},
        "verdict": judgement.verdict.value,
        "verdict_reason": judgement.reason,
        "environment": {
            "board": (recording.end or {}).get("board") or recording.start.get("board"),
            "before": recording.start.get("before"),
            "after": (recording.end or {}).get("after"),
        },
        "peak_memory_mb": (recording.end or {}).get("peak_memory_mb"),
        "memory_method": (recording.end or {}).get("memory_method"),
        "latency_ms": summarize(samples, 1e3)._asdict() if samples else {"mean": _part(steady_bins).mean_ms},
        "samples_us": samples,
        "warmup_us": [],
        "iterations": sum(each.inferences for each in bins),
        "fresh_latency_ms": _part(fresh_bins).mean_ms,
        "steady_latency_ms": _part(steady_bins).mean_ms,
        "steady_ratio": ratio.value,
        "onset_s": None if onset is None else onset.at_s,
        "energy_mj": joules.get("value"),
        "idle_w": energy.get("idle_w"),
        "mean_w": energy.get("mean_w"),
        "temperature_start_c": temperatures[0],
        "temperature_end_c": temperatures[1],
        "sustained": {
            "plan": recording.start.get("plan"),
            "seconds": bins[-1].end_s,
            "stopped": (recording.end or {}).get("stopped", "the process ended without a word; what it wrote counts"),
            "is_complete": recording.end is not None,
            "fresh": _part(fresh_bins)._asdict(),
            "steady": dict(_part(steady_bins)._asdict(), still_changing=still),
            "ratio": vars(ratio),
            "onset": None if onset is None else onset._asdict(),
            "slowdown": None if change is None else change._asdict(),
            "energy": energy,
            "missed": (recording.end or {}).get("missed"),
            "lease": (recording.end or {}).get("lease"),
            **_columns(recording),
        },
        "method": _METHOD,
    }


_METHOD = {
    "clock": "perf_counter_ns around each run",
    "fresh": "the first tenth of the load, 5 to 30 s of it, before any onset",
    "steady": "the last third of the load",
    "onset": (
        "the board's own word (counter, cooling state, clock limit, CPU quota) in most of 3 s, or a clock that fell, "
        "together with a mean latency at least 5 % higher"
    ),
    "energy": "of the load, less idle power over the same time, by inference; interval: 95 %, from ten stretches",
}


def whole(bins: Sequence[Bin]) -> List[Bin]:
    """Return the bins with the last one, if the load ended soon after the one before, added to that."""
    if len(bins) < 2 or bins[-1].busy_us >= bins[-2].busy_us / 2:
        return list(bins)
    last, before = bins[-1], bins[-2]
    joined = before._replace(
        end_s=last.end_s, width_s=before.width_s + last.width_s, inferences=before.inferences + last.inferences,
        busy_us=before.busy_us + last.busy_us, max_us=max(before.max_us, last.max_us),
    )  # fmt: skip
    return [*bins[:-2], joined]


def split(bins: Sequence[Bin], onset: Optional[Onset]) -> Tuple[List[Bin], List[Bin]]:
    """Return the bins of the fresh part and of the steady part; of a very short run they may overlap."""
    end_s = bins[-1].end_s
    fresh_s = min(max(_FRESH_SHARE * end_s, _FRESH_LEAST_S), _FRESH_MOST_S)
    if onset is not None and onset.low_s > 0:
        fresh_s = min(fresh_s, onset.low_s)
    fresh = [each for each in bins if each.end_s <= fresh_s] or list(bins[:1])
    steady = [each for each in bins if each.end_s > (1 - _STEADY_SHARE) * end_s] or list(bins[-1:])
    return fresh, steady


def _part(bins: Sequence[Bin]) -> Part:
    return Part(bins[0].end_s - bins[0].width_s, bins[-1].end_s, sum(b.inferences for b in bins), mean_us(bins) / 1e3)


def _ratio(fresh: Sequence[Bin], steady: Sequence[Bin]) -> Ratio:
    """Return the steady latency over the fresh one; its interval is from the means of the bins."""
    errors = [log_error(series_of([each.mean_us for each in part]), None) for part in (steady, fresh)]
    return ratio_of(mean_us(steady), mean_us(fresh), errors[0], errors[1])


def _samples(recording: Recording, from_s: float) -> List[float]:
    """Return single times of the steady part, as many as were kept."""
    rows = (recording.end or {}).get("last")
    if not isinstance(rows, dict):
        return []
    ends, times = rows.get("end_s"), rows.get("us")
    if not isinstance(ends, list) or not isinstance(times, list):
        return []
    pairs = [(end, time) for end, time in zip(ends, times) if _is_time(end) and _is_time(time)]
    return [time for end, time in pairs if end >= from_s and time > 0]


def _is_time(value: object) -> bool:
    return isinstance(value, (int, float)) and not isinstance(value, bool) and 0 <= value < 1e15


def _judge(
    recording: Recording,
    onset: Optional[Onset],
    change: Optional[Onset],
    samples: Sequence[float],
    still: Optional[float],
) -> Judgement:
    if onset is not None:
        slower = "" if onset.ratio is None else ", {:.2f} times as long".format(onset.ratio)
        return Judgement(
            Verdict.THROTTLED, "throttled from {:.1f} s on{}: {}".format(onset.at_s, slower, "; ".join(onset.evidence))
        )
    if change is not None:
        return Judgement(
            Verdict.DRIFTING,
            "from {:.1f} s on {:.2f} times as long, and nothing that the board tells says why; is something else "
            "running?".format(change.at_s, change.ratio or 1.0),
        )
    if still is not None:
        return Judgement(Verdict.DRIFTING, "still {:+.1%} within the last third; measure longer".format(still))
    if not samples:
        return Judgement(Verdict.INDICATIVE, "the process ended without a word, so that single times are not kept")
    told = {channel.kind for channel in recording.channels}
    names = {"clock_mhz": "clocks", "temperature_c": "temperature", "counter": "throttling counters"}
    return judge(samples, (), [name for kind, name in names.items() if kind not in told])


def _temperatures(recording: Recording) -> Tuple[Optional[float], Optional[float]]:
    """Return the highest temperature before the load and at its end."""
    end_s = recording.bins[-1].end_s
    before = [each for each in recording.readings if each.at_s <= 0.5] or recording.readings[:1]
    during = [each for each in recording.readings if each.at_s <= end_s + 0.5]
    ends = [hottest(recording.channels, part[-1].values) if part else None for part in (before, during)]
    return ends[0], ends[1]


def _columns(recording: Recording) -> Dict[str, Any]:
    """Return what is drawn: bins and readings as columns, thinned out where there are very many."""
    bins = recording.bins[:: len(recording.bins) // _MOST_POINTS + 1]
    readings = recording.readings[:: len(recording.readings) // _MOST_POINTS + 1]
    said = [word for word in words(recording) if word.what]
    return {
        "bins": {
            "end_s": [each.end_s for each in bins],
            "count": [each.inferences for each in bins],
            "mean_ms": [each.mean_us / 1e3 for each in bins],
            "median_ms": [each.median_us / 1e3 for each in bins],
            "p90_ms": [each.p90_us / 1e3 for each in bins],
            "max_ms": [each.max_us / 1e3 for each in bins],
        },
        "readings": {
            "at_s": [each.at_s for each in readings],
            "channels": [
                {"kind": channel.kind, "name": channel.name, "values": [each.values[number] for each in readings]}
                for number, channel in enumerate(recording.channels)
            ],
        },
        "throttled": {
            "at_s": [word.high_s for word in said][:_MOST_POINTS],
            "what": sorted({text.partition(" fell ")[0] for word in said for text in word.what})[:100],
        },
    }
