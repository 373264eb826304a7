"""ONNX Runtime's profile files, of every age and health.

The lines are those of onnxruntime 1.16.3, 1.18.1 and 1.31.1, recorded and shortened.
"""

from __future__ import annotations

import json
from array import array
from pathlib import Path

import numpy as np
from hypothesis import given
from hypothesis import strategies as st

from embedl_onnxruntime.profile import Layer, read_trace
from embedl_onnxruntime.session import Model, Settings

SESSION = '{"cat" : "Session","pid" :1,"tid" :1,"dur" :%d,"ts" :2,"ph" : "X","name" :"%s","args" : {}}'
NODE = (
    '{"cat" : "Node","pid" :1,"tid" :1,"dur" :%d,"ts" :5,"ph" : "X","name" :"%s_kernel_time","args" : {'
    '"thread_scheduling_stats" : {"main_thread": {"thread_pool_name": "session-1-intra-op", "block_size": [1]}},'
    '"output_type_shape" : [{"float":[1,16,32,32]}],"node_index" : "%d","provider" : "%s","op_name" : "%s"}}'
)
FENCE = (
    '{"cat" : "Node","pid" :1,"tid" :1,"dur" :0,"ts" :4,"ph" : "X",'
    '"name" :"%s_fence_before","args" : {"op_name" : "Conv"}}'
)


def write(path: Path, lines: list[str]) -> Path:
    path.write_bytes(("[\n" + ",\n".join(lines) + "\n]\n").encode("utf-8", "surrogateescape"))
    return path


def test_layers_are_summed_in_the_order_they_first_ran(tmp_path: Path) -> None:
    """Fences of old versions are no layers; two nodes of one name stay apart by their index."""
    lines = [
        SESSION % (300, "model_loading_uri"),
        *[
            line
            for _ in range(2)
            for line in (
                FENCE % "r0_nchwc",
                NODE % (78, "r0_nchwc", 14, "CPUExecutionProvider", "Conv"),
                NODE % (10, "same", 3, "CPUExecutionProvider", "Add"),
                NODE % (5, "same", 4, "CUDAExecutionProvider", "Add"),
                SESSION % (100, "model_run"),
            )
        ],
    ]
    trace = read_trace(write(tmp_path / "t.json", lines))
    assert trace.layers == [
        Layer("r0_nchwc", "Conv", "CPUExecutionProvider", 156.0, 2, array("d", [78.0, 78.0])),
        Layer("same", "Add", "CPUExecutionProvider", 20.0, 2, array("d", [10.0, 10.0])),
        Layer("same", "Add", "CUDAExecutionProvider", 10.0, 2, array("d", [5.0, 5.0])),
    ]
    assert (trace.runs, trace.run_us, trace.unreadable_lines) == (2, 200.0, 0)


def test_names_are_read_escaped_and_raw(tmp_path: Path) -> None:
    """1.31 escapes a quote, 1.18 writes it as it is and breaks the JSON; both give the node's name."""
    for written in ('soft\\"max\\\\q', 'soft"max\\q'):
        trace = read_trace(write(tmp_path / "t.json", [NODE % (7, written, 1, "CPUExecutionProvider", "Softmax")]))
        assert trace.layers == [Layer('soft"max\\q', "Softmax", "CPUExecutionProvider", 7.0, 1, array("d", [7.0]))]


def test_another_order_of_fields_is_read_as_json(tmp_path: Path) -> None:
    """As a later version may write it."""
    event = {"name": "n_kernel_time", "cat": "Node", "dur": 4, "args": {"op_name": "Relu", "provider": "P"}}
    trace = read_trace(write(tmp_path / "t.json", [json.dumps(event), '{"name": "x_kernel_time", "dur": broken}']))
    assert trace.layers == [Layer("n", "Relu", "P", 4.0, 1, array("d", [4.0]))]
    assert trace.unreadable_lines == 1


def test_a_node_without_args_is_kept(tmp_path: Path) -> None:
    """Some execution providers leave them out."""
    line = '{"cat" : "Node","pid" :1,"tid" :1,"dur" :9,"ts" :5,"ph" : "X","name" :"n_kernel_time","args" : {}}'
    assert read_trace(write(tmp_path / "t.json", [line])).layers == [Layer("n", "", "", 9.0, 1, array("d", [9.0]))]


def test_a_file_that_was_cut_off_gives_what_it_has(tmp_path: Path) -> None:
    """A runtime that crashed leaves such a file."""
    path = write(tmp_path / "t.json", [NODE % (7, "a", 1, "P", "Conv"), NODE % (8, "b", 2, "P", "Conv")])
    path.write_bytes(path.read_bytes()[:-40])
    assert [layer.name for layer in read_trace(path).layers] == ["a", "b"]


@given(st.binary(max_size=2000))
def test_any_bytes_are_read_or_counted(tmp_path_factory, data: bytes) -> None:  # type: ignore[no-untyped-def]  # noqa: ANN001
    """Never a crash."""
    path = tmp_path_factory.mktemp("fuzz") / "t.json"
    path.write_bytes(data + b'\n{"name": "_kernel_time' + data)
    read_trace(path)


def test_a_real_file_of_the_installed_runtime(make_model, tmp_path: Path) -> None:  # type: ignore[no-untyped-def]  # noqa: ANN001
    """Every layer that ran is there, with its name as the model has it."""
    model = Model(make_model(1), Settings(level="disable"), profile_prefix=str(tmp_path / "trace"))
    for _ in range(3):
        model.run({"x": np.zeros((1, 3, 8, 8), np.float32)})
    trace = read_trace(model.end_profiling())
    assert [(layer.name, layer.op_type, layer.calls) for layer in trace.layers] == [
        ("conv/0", "Conv", 3),
        ("relu/0", "Relu", 3),
        ('po"ol\\q', "GlobalAveragePool", 3),
        ("flat", "Flatten", 3),
    ]
    assert trace.runs == 3
    assert trace.run_us >= sum(layer.total_us for layer in trace.layers)


def test_the_cold_first_run_is_left_out_of_the_table(tmp_path: Path) -> None:
    """Ten warm runs of 10 us and a first of 1000: the layer takes 10, not 100."""
    from embedl_onnxruntime.profile import _as_rows

    lines = []
    for number in range(11):
        lines += [
            NODE % (1000 if number == 0 else 10, "a", 1, "P", "Conv"),
            NODE % (30, "b", 2, "P", "Relu"),
            SESSION % (2000 if number == 0 else 50, "model_run"),
        ]
    table = _as_rows(read_trace(write(tmp_path / "t.json", lines)))
    assert [(row["time_ms"], row["share"]) for row in table["rows"]] == [(0.01, 0.25), (0.03, 0.75)]
    assert (table["runs"], table["mean_run_ms"], table["first_run_ms"]) == (10, 0.05, 2.0)
    alone = _as_rows(read_trace(write(tmp_path / "t.json", lines[:3])))
    assert (alone["runs"], alone["rows"][0]["time_ms"], alone["mean_run_ms"]) == (1, 1.0, 2.0)


def test_one_slow_run_does_not_change_the_table(tmp_path: Path) -> None:
    """A layer that was interrupted once, and one that a loop calls twice in a run: what it takes in the usual run."""
    from embedl_onnxruntime.profile import _as_rows

    lines = []
    for number in range(11):
        lines += [
            NODE % (12000 if number == 5 else 10, "a", 1, "P", "Gemm"),
            *[NODE % (15, "in a loop", 2, "P", "Relu")] * 2,
            SESSION % (50, "model_run"),
        ]
    table = _as_rows(read_trace(write(tmp_path / "t.json", lines)))
    assert [(row["time_ms"], row["share"]) for row in table["rows"]] == [(0.01, 0.25), (0.03, 0.75)]
