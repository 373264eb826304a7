"""Google's benchmark_model: console, text, CSV and protobuf of several ages, and ten thousand damaged ones of each."""

from __future__ import annotations

import math
import random

import pytest
from ai_edge_litert import profiling_info_pb2 as messages

from embedl_hub.refusal import RefusedError
from embedl_hub.toolchains.tflite.benchmark import (
    document_of,
    first_table,
    layers_of,
    no_layers,
    parse_console,
    parse_proto,
    parse_table,
)

# As printed in tensorflow/tensorflow#42507 (2020).
OLD = """STARTING!
Loaded model /data/local/tmp/espcn.tflite
Initialized session in 0.855ms.
Running benchmark for at least 1 iterations and at least 0.5 seconds but terminate if exceeding 150 seconds.
count=15 first=49060 curr=33682 min=32825 max=49060 avg=34825.1 std=3930

Running benchmark for at least 50 iterations and at least 1 seconds but terminate if exceeding 150 seconds.
count=50 first=32891 curr=33978 min=32641 max=34005 avg=33209.4 std=450

Inference timings in us: Init: 855, First inference: 49060, Warmup (avg): 34825.1, Inference (avg): 33209.4
Peak memory footprint (MB): init=0 overall=12.8672
"""
# As printed in larq/compute-engine#69 (2019), with the line that other builds of that year print.
OLDEST = "Average inference timings in us: Warmup: 420198, Init: 63227, no stats: 422959\n"
NEW = """INFO: count=9 first=64791 curr=56295 min=54873 max=65831 avg=57758.2 std=4065 p5=54873 median=57000 p95=65831
INFO: count=50 curr=500(all same)
INFO: Inference timings in us: Init: 18777, First inference: 64791, Warmup (avg): 57758.2, Inference (avg): 500
INFO: Memory footprint delta from the start of the tool (MB): init=8.97656 overall=18.7227
INFO: Overall peak memory footprint (MB) via periodic monitoring: 21.5
"""
# As LiteRT 2.3.0 prints it.
TEXT = """Operator-wise Profiling Info for Regular Benchmark Runs:
===================================================================== Run Order ================================
                                  [node type]    [start]    [first]   [avg ms]        [%]     [cdf%]   [mem KB] [times called]   [Name]
                                      CONV_2D      0.000      0.011      0.006    65.517%    65.517%      0.000              3   [Builtin]:0
       Delegate/Convolution (NHWC, F32) IGEMM      0.000      0.189      0.179     0.227%    18.637%      0.000              6   [Delegate]:2

============================================================== Top by Computation Time =========================
                                  [node type]    [start]    [first]   [avg ms]        [%]     [cdf%]   [mem KB] [times called]   [Name]
                                      CONV_2D      0.000      0.011      0.006    65.517%    65.517%      0.000              3   [Builtin]:0

Number of nodes executed: 2
Timings (microseconds): count=3 first=25 curr=20 min=20 max=25 avg=22 std=2

Delegate internal:
===================================================================== Run Order ================================
                                      INTERNAL     0.000      0.011      9.006    65.517%    65.517%      0.000              3   [x]:0
"""  # noqa: E501 - the tool's own width
CSV = """Operator-wise Profiling Info for Regular Benchmark Runs:
============================== Run Order ==============================
node type, start, first, avg_ms, %, cdf%, mem KB, times called, name
CONV_2D, 0.000, 0.300, 0.200, 66.6%, 66.6%, 0.0, 50, [a, b]:0
Timings (microseconds): count=50 first=300 curr=300 min=300 max=301 avg=300 std=0
"""


def message() -> bytes:
    """Return a profile as the tool serializes it: a delegate's node and the delegate's own operators."""
    data = messages.BenchmarkProfilingData(model_name="m")  # type: ignore[attr-defined, unused-ignore]
    graph = data.runtime_profile.subgraph_profiles.add(subgraph_name="main")
    for order, (kind, total) in enumerate((("TfLiteXNNPackDelegate", 900), ("SOFTMAX", 100))):
        row = graph.per_op_profiles.add(node_type=kind, name=f"n{order}", times_called=10, run_order=order)
        row.inference_microseconds.sum, row.inference_microseconds.count = total, 10
    inner = data.runtime_profile.delegate_profiles.add(delegate_name="XNNPACK").per_op_profiles
    row = inner.add(node_type="Convolution (NHWC, F32)", name="d0", times_called=10)
    row.inference_microseconds.sum, row.inference_microseconds.count = 900, 10
    content: bytes = data.SerializeToString()
    return content


@pytest.mark.parametrize(
    ("text", "mean", "first", "load", "memory", "count"),
    [
        (OLD, 33.2094, 49.06, 0.855, 12.8672, 50),
        (OLDEST, 422.959, None, 63.227, None, None),
        (NEW, 0.5, 64.791, 18.777, 21.5, 50),
    ],
)
def test_a_console_of_any_age(
    text: str, mean: float, first: float | None, load: float, memory: float | None, count: int | None
) -> None:
    """Microseconds become milliseconds once."""
    document = document_of(parse_console(text), no_layers(), {"name": "benchmark_model"})
    assert document.latency_ms.mean == pytest.approx(mean)
    assert document.numbers["first_latency_ms"] == (None if first is None else pytest.approx(first))
    assert document.numbers["load_time_ms"] == pytest.approx(load)
    assert document.numbers["peak_memory_mb"] == memory
    assert document.numbers["iterations"] == count


@pytest.mark.parametrize("content", [TEXT.encode(), CSV.encode(), message()])
def test_operators_are_read_once_in_any_form(content: bytes) -> None:
    """The first table alone, delegates by their own operators, times of one inference."""
    rows = layers_of(first_table([content]), 10).rows
    wanted = {
        TEXT.encode(): [
            ("CONV_2D", "builtin", 0.006),
            # Called twice in a run: its time in a run is twice that of a call.
            ("Convolution (NHWC, F32) IGEMM", "delegate", 0.358),
        ],
        CSV.encode(): [("CONV_2D", "builtin", 0.2)],
        message(): [("SOFTMAX", "builtin", 0.01), ("Convolution (NHWC, F32)", "delegate", 0.09)],
    }
    types, providers, times = zip(*wanted[content], strict=True)
    assert [row.op_type for row in rows] == list(types)
    assert [row.provider for row in rows] == list(providers)
    assert [row.time_ms for row in rows] == pytest.approx(list(times))
    assert sum(row.share or 0 for row in rows) == pytest.approx(1)


def _damaged(random_: random.Random, content: bytes) -> bytes:
    data = bytearray(content)
    for _ in range(random_.randint(1, 12)):
        at = random_.randrange(len(data)) if data else 0
        choice = random_.randrange(5)
        if choice == 0:
            del data[at : at + random_.randint(1, 40)]
        elif choice == 1:
            data[at:at] = random_.randbytes(random_.randint(1, 8))
        elif choice == 2:
            data[at:at] = random_.choice([b"nan", b"inf", b"-1", b"1e999", b",", b"\n", b"=====", b"count=0 "])
        elif choice == 3 and data:
            data[at] = random_.randrange(256)
        else:
            data = data[:at]
    return bytes(data)


@pytest.mark.parametrize("form", ["console", "text", "csv", "proto"])
def test_ten_thousand_damaged_ones_are_read_or_refused(form: str) -> None:
    """Never a crash, never a number that is none."""
    random_ = random.Random(7)  # noqa: S311 - for a test
    samples = {"console": (OLD, NEW), "text": (TEXT,), "csv": (CSV,)}
    contents = [text.encode() for text in samples.get(form, ())] or [message()]
    read = 0
    for _ in range(10_000):
        content = _damaged(random_, random_.choice(contents))
        try:
            if form == "console":
                console = parse_console(content.decode("utf-8", "replace"))
                assert math.isfinite(console.mean_us)
                assert console.mean_us > 0
            else:
                table = parse_proto(content) if form == "proto" else parse_table(content.decode("utf-8", "replace"))
                rows = layers_of(table, 10).rows
                assert all(row.time_ms is not None and math.isfinite(row.time_ms) and row.time_ms >= 0 for row in rows)
            read += 1
        except RefusedError:
            continue
    assert read > 100
