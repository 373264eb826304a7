"""What Google's ``benchmark_model`` prints and writes: text, CSV and protobuf, of all its ages, read by name.

Formats: tflite/tools/benchmark, tflite/profiling/proto/profiling_info.proto and stats_calculator.cc of the public
sources. Times are microseconds on the console and in protobuf, milliseconds in tables; sizes are MB.
"""

from __future__ import annotations

import math
import re
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from embedl_hub.toolchain.refusal import RefusedError

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping

_NUMBER = r"[-+]?(?:\d+\.?\d*|\.\d+)(?:[eE][-+]?\d+)?"
_STATISTICS = re.compile(r"^.*?\bcount=(\d+)\s+(.*)$")
_PAIR = re.compile(rf"\b(first|curr|min|max|avg|std|p5|median|p95)=\s*({_NUMBER})")
_TIMINGS = re.compile(
    rf"Inference timings in us:\s*Init:\s*({_NUMBER}),\s*First inference:\s*({_NUMBER}),"
    rf"\s*Warmup \(avg\):\s*({_NUMBER}),\s*Inference \(avg\):\s*({_NUMBER})"
)
_OLD_TIMINGS = re.compile(
    rf"Average inference timings in us:\s*Warmup:\s*({_NUMBER}),\s*Init:\s*({_NUMBER}),"
    rf"\s*(?:Inference|no stats):\s*({_NUMBER})"
)
_PEAK = re.compile(rf"Overall peak memory footprint \(MB\)[^:]*:\s*({_NUMBER})")
_OVERALL = re.compile(rf"[Mm]emory footprint[^:]*\(MB\):\s*init=\s*{_NUMBER}\s+overall=\s*({_NUMBER})")
# What a node does may hold commas and blanks; the numbers after it may not.
_TEXT_ROW = re.compile(
    r"^\s*(\S.*?)\s+" + rf"({_NUMBER})\s+" * 3 + rf"({_NUMBER})%\s+({_NUMBER})%\s+({_NUMBER})\s+(\d+)\s+(\[.*)$"
)
_CSV_ROW = re.compile(
    r"^\s*(\S.*?)," + rf"\s*({_NUMBER})," * 3 + rf"\s*({_NUMBER})%?,\s*({_NUMBER})%?,\s*({_NUMBER}),\s*(\d+),\s*(.*)$"
)
_LONGEST_LINE = 4096
_RUNS = re.compile(r"Timings \(microseconds\):\s*count=(\d+)")
_REGULAR = "Operator-wise Profiling Info for Regular Benchmark Runs"
_INTERNAL = "Delegate internal"


@dataclass(frozen=True)
class Statistics:
    """One line of statistics, in microseconds."""

    count: int
    values: Mapping[str, float]


@dataclass(frozen=True)
class Console:
    """What the tool says about a whole benchmark.

    Attributes:
        init_us: Loading the model.
        first_us: The first inference.
        mean_us: The mean of the measured ones.
        warmup: The warm-up's statistics, when they were printed.
        measured: Those of the measured inferences.
        memory_mb: The most memory, and
        memory_method: how it was found.
    """

    init_us: float | None
    first_us: float | None
    mean_us: float
    warmup: Statistics | None
    measured: Statistics | None
    memory_mb: float | None
    memory_method: str


@dataclass(frozen=True)
class Row:
    """One operator of a table: its mean time in one call, in microseconds, and how often it was called in all runs."""

    op_type: str
    name: str
    call_us: float
    calls: int
    is_delegated: bool


@dataclass(frozen=True)
class Table:
    """The operators in the order they ran, and the inferences they were counted over."""

    rows: tuple[Row, ...]
    runs: int | None


def parse_console(text: str) -> Console:
    """Read what the tool printed; refuse what is not its output."""
    statistics = [found for line in text.splitlines() if (found := _statistics(line)) is not None]
    init, first, mean = _timings(text)
    if mean is None and statistics:
        mean = statistics[-1].values.get("avg")
    if mean is None or not math.isfinite(mean) or mean <= 0:
        raise RefusedError(
            "benchmark_model printed no inference times that this hub can read; a new format, or it failed. "
            f"Its last words: {' '.join(text.split())[-300:] or 'none'}"
        )
    measured = statistics[-1] if statistics else None
    if first is None and statistics:
        first = statistics[0].values.get("first")
    peak, overall = _PEAK.search(text), _OVERALL.search(text)
    memory = float(peak[1]) if peak else float(overall[1]) if overall else None
    method = "benchmark_model, peak by periodic monitoring" if peak else "benchmark_model, growth since its start"
    return Console(
        init, first, mean, statistics[-2] if len(statistics) > 1 else None, measured,
        memory if memory is not None and math.isfinite(memory) and memory >= 0 else None, method,
    )  # fmt: skip


def _timings(text: str) -> tuple[float | None, float | None, float | None]:
    if (found := _TIMINGS.search(text)) is not None:
        return float(found[1]), float(found[2]), float(found[4])
    if (found := _OLD_TIMINGS.search(text)) is not None:
        return float(found[2]), None, float(found[3])
    return None, None, None


def _statistics(line: str) -> Statistics | None:
    found = _STATISTICS.match(line)
    # Tables end with lines that begin alike; theirs are not the inferences' times.
    if found is None or "microseconds" in line or "Memory" in line:
        return None
    values = {name: float(number) for name, number in _PAIR.findall(found[2])}
    if "curr" in values and "(all same)" in line:
        same = values["curr"]
        values = {"first": same, "min": same, "max": same, "avg": same, "std": 0.0}
    return Statistics(int(found[1]), values) if "avg" in values and int(found[1]) > 0 else None


def parse_table(text: str) -> Table:
    """Read a table of operators, as text or CSV; the delegates' own section would count the same time twice."""
    part = text.partition(_REGULAR)[2] or text
    rows: list[Row] = []
    is_order = False
    for line in part.splitlines():
        if "=====" in line:
            is_order = "Run Order" in line and not rows
        elif _INTERNAL in line:
            break
        elif is_order and (row := _row(line)) is not None:
            rows.append(row)
    found = _RUNS.search(part)
    if not rows:
        raise RefusedError(
            "benchmark_model's table of operators cannot be read; a new format, or profiling is off. "
            f"It begins: {' '.join(text.split())[:200] or 'empty'}"
        )
    return Table(tuple(rows), int(found[1]) if found and int(found[1]) > 0 else None)


def _row(line: str) -> Row | None:
    short = line[:_LONGEST_LINE]
    found = _CSV_ROW.match(short) or _TEXT_ROW.match(short)
    if found is None:
        return None
    op_type, name = found[1].strip(), found[9].strip()
    call_ms, calls = float(found[4]), int(found[8])
    if not math.isfinite(call_ms) or call_ms < 0:
        return None
    is_delegated = op_type.startswith("Delegate/") or name.startswith("[Delegate]")
    return Row(op_type.removeprefix("Delegate/"), _unbracketed(name), call_ms * 1e3, calls, is_delegated)


def _unbracketed(name: str) -> str:
    found = re.fullmatch(r"\[(.*)\](:\d+)?", name)
    return f"{found[1]}{found[2] or ''}" if found else name


def parse_proto(content: bytes) -> Table:
    """Read a ``BenchmarkProfilingData`` message."""
    from ai_edge_litert import profiling_info_pb2 as messages  # noqa: PLC0415 - the vendor's package on use
    from google.protobuf.message import DecodeError  # type: ignore[import-untyped]  # noqa: PLC0415

    message: Any = messages.BenchmarkProfilingData()  # type: ignore[attr-defined, unused-ignore]
    try:
        message.ParseFromString(content)
    except (DecodeError, RuntimeError, ValueError) as error:
        raise RefusedError(f"benchmark_model's profile is no message of its kind: {error}.") from error
    profile = message.runtime_profile
    own = [(row, False) for graph in profile.subgraph_profiles for row in graph.per_op_profiles]
    inner = [(row, True) for delegate in profile.delegate_profiles for row in delegate.per_op_profiles]
    # A delegate that tells about its operators also stands for them as one node of the graph.
    if inner:
        own = [pair for pair in own if "delegate" not in _word(pair[0].node_type).lower()]
    rows = [
        Row(_word(row.node_type).removeprefix("Delegate/"), _word(row.name), _mean(row), int(row.times_called), inside)
        for row, inside in sorted(own, key=lambda pair: pair[0].run_order) + inner
        if row.node_type and row.times_called > 0
    ]
    if not rows:
        raise RefusedError("benchmark_model's profile holds no operators.")
    return Table(tuple(rows), None)


def _word(text: str | bytes) -> str:
    """Return a field's text; the library gives bytes for what is no UTF-8."""
    return text.decode("utf-8", "replace") if isinstance(text, bytes) else text


def _mean(row: Any) -> float:  # noqa: ANN401 - a message without types
    statistic = row.inference_microseconds
    mean = statistic.sum / statistic.count if statistic.count > 0 and statistic.sum >= 0 else float(statistic.avg)
    return max(0.0, mean)


def layers_of(table: Table, runs: int | None) -> dict[str, Any]:
    """Return the document's table: times of one inference, in milliseconds."""
    over = table.runs or runs or min(row.calls for row in table.rows)
    times = [row.call_us * row.calls / max(1, over) for row in table.rows]
    total = sum(times) or 1.0
    return {
        "runs": over,
        "mean_run_ms": total / 1e3,
        "rows": [
            {
                "name": row.name or f"{row.op_type}:{index}", "op_type": row.op_type,
                "provider": "delegate" if row.is_delegated else "builtin", "node": None,
                "time_ms": time_us / 1e3, "share": time_us / total,
            }
            for index, (row, time_us) in enumerate(zip(table.rows, times, strict=True))
        ],
    }  # fmt: skip


def document_of(console: Console, layers: Mapping[str, Any], tool: Mapping[str, Any]) -> dict[str, Any]:
    """Return our document for a benchmark; what the tool does not tell is left open."""
    values = console.measured.values if console.measured is not None else {}
    return {
        "format": 1,
        "tool": dict(tool),
        "runtime": {"name": "tflite", "version": None, "available": []},
        "latency_ms": {
            "mean": console.mean_us / 1e3, "median": _ms(values.get("median")), "p90": None, "p99": None,
            "min": _ms(values.get("min")), "max": _ms(values.get("max")), "std": _ms(values.get("std")),
        },
        "load_time_ms": _ms(console.init_us),
        "first_latency_ms": _ms(console.first_us),
        "samples_us": [],
        "warmup_us": [],
        "iterations": console.measured.count if console.measured is not None else None,
        "warmup": console.warmup.count if console.warmup is not None else None,
        "verdict": "indicative",
        "verdict_reason": "benchmark_model tells means and no samples, and nothing of clocks, temperature or load",
        "peak_memory_mb": console.memory_mb,
        "memory_method": console.memory_method,
        "layers": dict(layers),
        "placement": None,
        "method": {"clock": "benchmark_model's", "percentile_rule": "benchmark_model's"},
    }  # fmt: skip


def _ms(value_us: float | None) -> float | None:
    return None if value_us is None or not math.isfinite(value_us) else value_us / 1e3


def first_table(contents: Iterable[bytes]) -> Table:
    """Return the first of several contents that is a table, whichever form it has."""
    problems = []
    for content in contents:
        text = content.decode("utf-8", "replace")
        try:
            return parse_table(text) if "=====" in text else parse_proto(content)
        except RefusedError as error:
            problems.append(str(error))
    raise RefusedError(" ".join(problems) or "benchmark_model wrote no profile.")
