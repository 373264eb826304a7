"""Profiles by Google's ``benchmark_model``: what it prints and writes, of all its ages; boards that have nothing else.

Formats: tflite/tools/benchmark, tflite/profiling/proto/profiling_info.proto and stats_calculator.cc of the public
sources. Times are microseconds on the console and in protobuf, milliseconds in tables; sizes are MB. ``benchmark_model
--graph=M --num_runs=N --min_secs=S --max_secs=S [--num_threads=N] --use_xnnpack=BOOL …`` runs once for the times and
once more with ``--enable_op_profiling=true`` for the operators.
"""

from __future__ import annotations

import math
import re
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, NamedTuple

from embedl_device.statistics import PERCENTS, Judgement, Summary, Verdict, fewest_samples
from embedl_hub.core.document import LayerRow, LayerTable, ProfileDocument, Runtime
from embedl_hub.core.profile import ProfileError
from embedl_hub.errors import CommandError, TransferError
from embedl_hub.machine.program import refuse_until
from embedl_hub.refusal import RefusedError, refusals_as
from embedl_hub.toolchains.tflite.profile import completed, has_benchmark, keep_profile, log_model
from embedl_hub.toolchains.tflite.profile import profile_model as profile_with_program

if TYPE_CHECKING:
    from embedl_hub.core.context import HubContext
    from embedl_hub.core.device import MeasuringConfig
    from embedl_hub.machine.machine import Machine
    from embedl_hub.paths import RemotePath
    from embedl_hub.toolchains.tflite.components import TFLiteCompiledModel, TFLiteProfilingResult
    from embedl_hub.toolchains.tflite.config import EmbedlLiteRTConfig, LiteRTConfig

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
_NOT_FOUND = (126, 127)
_NO_SAMPLES = "benchmark_model gives no samples; of its own percentiles p95 is shown, from 130 inferences on"


@dataclass(frozen=True)
class Statistics:
    """One line of statistics, in microseconds."""

    count: int
    values: Mapping[str, float]


class Console(NamedTuple):
    """What the tool says about a whole benchmark: loading, the first inference, the mean, statistics and memory."""

    init_us: float | None
    first_us: float | None
    mean_us: float
    warmup: Statistics | None
    measured: Statistics | None
    memory_mb: float | None
    memory_method: str


class Row(NamedTuple):
    """One operator of a table: its mean time in one call, in microseconds, and how often it was called in all runs."""

    op_type: str
    name: str
    call_us: float
    calls: int
    is_delegated: bool


class Table(NamedTuple):
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


def layers_of(table: Table, runs: int | None) -> LayerTable:
    """Return the document's table: times of one inference, in milliseconds."""
    over = table.runs or runs or min(row.calls for row in table.rows)
    times = [row.call_us * row.calls / max(1, over) for row in table.rows]
    total = sum(times) or 1.0
    rows = tuple(
        LayerRow(
            row.name or f"{row.op_type}:{index}",
            row.op_type,
            time_ms=time_us / 1e3,
            share=time_us / total,
            provider="delegate" if row.is_delegated else "builtin",
        )
        for index, (row, time_us) in enumerate(zip(table.rows, times, strict=True))
    )
    return LayerTable(rows, {"runs": over, "mean_run_ms": total / 1e3})


def no_layers(reason: str | None = None) -> LayerTable:
    """Return an empty table; why it is empty is part of the result."""
    return LayerTable((), {"runs": 0} if reason is None else {"runs": 0, "missing_because": reason})


def document_of(console: Console, layers: LayerTable, tool: Mapping[str, object]) -> ProfileDocument:
    """Return our document for a benchmark; what the tool does not tell is left open."""
    values = console.measured.values if console.measured is not None else {}
    count = console.measured.count if console.measured is not None else 0
    return ProfileDocument(
        Summary(
            mean=console.mean_us / 1e3,
            median=_ms(values.get("median")),
            p95=_ms(values.get("p95")) if count >= fewest_samples(95) else None,
            min=_ms(values.get("min")),
            max=_ms(values.get("max")),
            std=_ms(values.get("std")),
        ),
        {
            "load_time_ms": _ms(console.init_us),
            "first_latency_ms": _ms(console.first_us),
            "iterations": count or None,
            "warmup": console.warmup.count if console.warmup is not None else None,
            "peak_memory_mb": console.memory_mb,
        },
        judgement=Judgement(
            Verdict.INDICATIVE, "benchmark_model tells means and no samples, and nothing of clocks, temperature or load"
        ),
        memory_method=console.memory_method,
        runtime=Runtime("tflite"),
        layers=layers,
        facts={
            "tool": dict(tool),
            "placement": None,
            "tails": {f"p{percent}": {"samples": count, "reason": _NO_SAMPLES} for percent in PERCENTS},
            "method": {"clock": "benchmark_model's", "percentile_rule": "benchmark_model's"},
        },
    )


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


def profile_model(
    ctx: HubContext, machine: Machine[LiteRTConfig], model: TFLiteCompiledModel, *, until: str | None
) -> TFLiteProfilingResult:
    """Measure a model with the board's own benchmark_model, or with the device program where it has none."""
    if not has_benchmark(machine):
        return profile_with_program(ctx, machine, model, until=until)
    with refusals_as(ProfileError):
        refuse_until(until, machine.config, f"benchmark_model on {machine.title}")
        graph = log_model(ctx, model)
        entry = str(machine.send(model.path))
        stdout = _call(machine, [f"--graph={entry}", *_run_flags(machine)])
        _keep(ctx, "benchmark_model.txt", stdout.encode(), "raw")
        console = parse_console(stdout)
        layers = _layers(ctx, machine, entry) if machine.config.layer_runs > 0 else no_layers()
        tool = {"name": "benchmark_model", "path": machine.config.benchmark_model_path}
        document = document_of(console, layers, tool)
    return keep_profile(ctx, model, completed(document, graph, model, machine.title))


def run_flags(config: MeasuringConfig, extra: Sequence[str], *, xnnpack: bool) -> list[str]:
    """Return the flags of a timed benchmark."""
    flags = [
        f"--num_runs={config.iterations}", f"--min_secs={config.min_seconds:g}", f"--max_secs={config.max_seconds:g}",
        f"--use_xnnpack={str(xnnpack).lower()}", "--report_peak_memory_footprint=true",
    ]  # fmt: skip
    if config.threads is not None:
        flags.append(f"--num_threads={config.threads}")
    return [*flags, *extra]


def _run_flags(machine: Machine[EmbedlLiteRTConfig]) -> list[str]:
    return run_flags(machine.config, machine.config.benchmark_args, xnnpack=machine.config.xnnpack)


def layer_flags(runs: int) -> list[str]:
    """Return the flags that measure the operators instead, over so many runs."""
    return [f"--num_runs={runs}", "--min_secs=0", "--enable_op_profiling=true", "--op_profiling_output_mode=proto"]


def _layers(ctx: HubContext, machine: Machine[EmbedlLiteRTConfig], entry: str) -> LayerTable:
    """Return the operators; a tool that knows no protobuf writes CSV, or the table comes on its console."""
    file = machine.folder / "operators.bin"
    flags = [
        *_run_flags(machine), *layer_flags(machine.config.layer_runs),
        f"--op_profiling_output_file={file}", f"--profiling_output_csv_file={file}",
    ]  # fmt: skip
    try:
        stdout = _call(machine, [f"--graph={entry}", *flags])
        contents = [_fetched(ctx, machine, file), stdout.encode()]
        _keep(ctx, "operators.txt", stdout.encode(), "operators_text")
        table = first_table(content for content in contents if content)
        measured = parse_console(stdout).measured
        return layers_of(table, measured.count if measured is not None else None)
    except RefusedError as error:
        # The times are good without the operators; why these are missing is part of the result.
        return no_layers(str(error))


def _fetched(ctx: HubContext, machine: Machine[EmbedlLiteRTConfig], file: RemotePath) -> bytes:
    here = machine.scratch / "operators.bin"
    try:
        machine.get(file, here)
    except (TransferError, CommandError, OSError):
        return b""
    content = here.read_bytes()
    _keep(ctx, "operators.bin", content, "operators")
    return content


def _keep(ctx: HubContext, file_name: str, content: bytes, name: str) -> None:
    path = ctx.artifact_dir / file_name
    path.write_bytes(content)
    ctx.client.log_artifact(path, name=name)


def _call(machine: Machine[EmbedlLiteRTConfig], flags: list[str]) -> str:
    program = str(machine.config.benchmark_model_path)
    try:
        result = machine.runner.run([program, *flags], hide=True, timeout_s=machine.config.timeout_s)
    except CommandError as error:
        if error.exit_code in _NOT_FOUND:
            raise RefusedError(
                f"{machine.title.capitalize()} has no program {program!r} that runs. Put Google's benchmark_model for "
                "its processor there, or leave benchmark_model_path out and let Python and ai-edge-litert do it."
            ) from error
        raise RefusedError(f"benchmark_model failed on {machine.title}: {error}") from error
    # The numbers go to stdout or stderr, by how the tool was built.
    return result.stdout + "\n" + result.stderr
