"""The arena in ONNX Runtime's profile files: recorded lines, and a real session whose figures must add up."""

from __future__ import annotations

import json
from pathlib import Path

import numpy as np
import onnx
import pytest
from onnx import TensorProto, helper, numpy_helper

from embedl_onnxruntime.memory import ArenaState, LayerArena, arena_state, memory_of
from embedl_onnxruntime.profile import read_trace
from embedl_onnxruntime.session import Model, Settings

CPU = "CPUExecutionProvider"
# Of onnxruntime 1.31.1, shortened: fields in any order, numbers as texts.
ARGS = (
    b'"mem_requested_in_use_delta" : "1605632","mem_arena_held" : "9355328","mem_bytes_in_use" : "9355328",'
    b'"mem_in_use_delta" : "2097152","mem_in_use_peak" : "9355328","mem_bytes_requested_in_use" : "8372288"'
)


def test_an_event_s_figures_are_read_in_any_order() -> None:
    """And an event without all of them has none."""
    assert arena_state(ARGS) == ArenaState(8_372_288, 9_355_328, 9_355_328, 9_355_328, 1_605_632, 2_097_152)
    assert arena_state(ARGS.replace(b"mem_in_use_peak", b"mem_other")) is None
    assert arena_state(b'"op_name" : "Conv"') is None


def test_a_version_that_tells_nothing_is_said_so() -> None:
    """No number where there is no evidence."""
    found = memory_of([], 0, "1.16.3", [CPU])
    assert found["arena_bytes"] is None
    assert found["missing_because"] == "not told by ONNX Runtime 1.16.3: its profile has no figures of the arena"


def test_other_providers_have_other_arenas() -> None:
    """What they take is not in the CPU's figures."""
    row = LayerArena("n", "Conv", CPU, ArenaState(1, 1, 1, 1, 1, 1))
    found = memory_of([row], 1, "1.31.1", [CPU, "CUDAExecutionProvider"])
    assert found["arena_bytes"] is None
    assert "CUDAExecutionProvider" in found["missing_because"]


def test_the_peak_is_where_it_rose_last() -> None:
    """Scratch memory that is given back before the event is written is seen in the peak alone."""
    states = [(10, 10, 10), (30, 30, 55), (40, 40, 55), (20, 20, 55)]
    rows = [
        LayerArena(f"n{number}", "Conv", CPU, ArenaState(requested, in_use, peak, 64, 0 if number else 5, 5))
        for number, (requested, in_use, peak) in enumerate(states)
    ]
    found = memory_of(rows, 128, "1.31.1", [CPU])
    assert (found["peak_layer"], found["peak_bytes"], found["arena_bytes"]) == ("n1", 55, 128)
    assert [row.get("scratch_bytes") for row in found["rows"]] == [None, 25, None, None]


def test_a_peak_of_loading_is_no_layer_s() -> None:
    """Weights that were being packed took more than any layer: then it is the fullest layer."""
    states = [(10, 10, 99), (30, 30, 99), (20, 20, 99)]
    rows = [
        LayerArena(f"n{number}", "Conv", CPU, ArenaState(requested, in_use, peak, 128, 5, 5))
        for number, (requested, in_use, peak) in enumerate(states)
    ]
    assert memory_of(rows, 128, "1.31.1", [CPU])["peak_layer"] == "n1"


def _net() -> onnx.ModelProto:
    random = np.random.default_rng(0)
    nodes, tensor = [], "x"
    weights = []
    for number in range(4):
        weights.append(numpy_helper.from_array(random.normal(size=(128, 128)).astype(np.float32), f"w{number}"))
        nodes.append(helper.make_node("MatMul", [tensor, f"w{number}"], [f"t{number}"], name=f"m{number}"))
        nodes.append(helper.make_node("Sin", [f"t{number}"], [f"s{number}"], name=f"sin{number}"))
        tensor = f"s{number}"
    nodes.append(helper.make_node("Add", [tensor, "t0"], ["y"], name="sum"))
    ends = [helper.make_tensor_value_info(name, TensorProto.FLOAT, [256, 128]) for name in ("x", "y")]
    graph = helper.make_graph(nodes, "net", ends[:1], ends[1:], weights)
    return helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=8)


def test_the_figures_of_a_real_session_add_up(tmp_path: Path) -> None:
    """What layers take, less what is given back between them, is what is in use after each, from load to the end."""
    onnx.save(_net(), tmp_path / "net.onnx")
    model = Model(tmp_path / "net.onnx", Settings(threads=1), profile_prefix=str(tmp_path / "trace"))
    run = model.runner({"x": np.zeros((256, 128), np.float32)})
    for _ in range(3):
        run()
    path = model.end_profiling()
    events = [event for event in json.loads(path.read_text()) if event.get("cat") == "Node"]
    trace = read_trace(path)
    if not trace.arena:
        pytest.fail("this ONNX Runtime tells nothing of its arena; 1.28 and newer do")
    found = memory_of(trace.arena, trace.held_bytes, "", [CPU])
    names = [node.name for node in _net().graph.node]
    assert [row["name"] for row in found["rows"]] == names
    assert found["packed_weights_requested_bytes"] == 4 * 128 * 128 * 4
    size = 256 * 128 * 4
    assert found["rows"][0]["requested_bytes"] - found["packed_weights_requested_bytes"] == size
    # t0 is read at the end again: three tensors of one size at most, and the block of later runs beside them.
    peak = max(row["requested_bytes"] for row in found["rows"]) - found["packed_weights_requested_bytes"]
    assert peak == 3 * size
    held = [int(event["args"]["mem_arena_held"]) for event in events]
    assert found["arena_bytes"] == max(held) >= found["peak_bytes"] >= found["rows"][0]["in_use_bytes"]
