"""Layers led back to the source, on graphs as the runtime really makes them."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import onnxruntime
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from onnx import TensorProto, helper
from support.models import residual_net, save, weights

from embedl_hub.core.document import LayerRow
from embedl_hub.models.onnx_file import name_nodes
from embedl_hub.toolchains.onnxruntime.layers import map_layers
from embedl_hub.toolchains.onnxruntime.profile import compute_unit


def run_layers(source: onnx.ModelProto, folder: Path, feed: dict[str, Any], level: str) -> tuple[list[Any], Any]:
    """Return the layers of one profiled run of the optimized file, and the file."""
    options = onnxruntime.SessionOptions()
    options.graph_optimization_level = getattr(onnxruntime.GraphOptimizationLevel, level)
    options.optimized_model_filepath = str(folder / "optimized.onnx")
    options.log_severity_level = 3
    onnxruntime.InferenceSession(save(source, folder / "source.onnx"), options)
    options = onnxruntime.SessionOptions()
    options.graph_optimization_level = getattr(onnxruntime.GraphOptimizationLevel, level)
    options.enable_profiling = True
    options.profile_file_prefix = str(folder / "trace")
    session = onnxruntime.InferenceSession(folder / "optimized.onnx", options)
    session.run(None, feed)
    events = json.loads(Path(session.end_profiling()).read_text())
    rows = [
        {"name": event["name"].removesuffix("_kernel_time"), "op_type": event["args"]["op_name"]}
        for event in events
        if event["cat"] == "Node" and event["name"].endswith("_kernel_time")
    ]
    return rows, onnx.load(folder / "optimized.onnx")


@pytest.mark.parametrize("named", [True, False])
@pytest.mark.parametrize("level", ["ORT_DISABLE_ALL", "ORT_ENABLE_BASIC", "ORT_ENABLE_EXTENDED", "ORT_ENABLE_ALL"])
def test_every_node_of_the_source_has_one_layer(level: str, named: bool, tmp_path: Path) -> None:
    """At each level of fusion, with and without names of the nodes' own."""
    source = residual_net(named=named)
    name_nodes(source)
    rows, compiled = run_layers(source, tmp_path, {"x": np.zeros((1, 3, 16, 16), np.float32)}, level)
    mapped = map_layers([*map(LayerRow.from_json, rows)], compiled, source)
    names = [name for layer in mapped for name in layer]
    assert sorted(names) == sorted(node.name for node in source.graph.node)
    first = {node.name for node in source.graph.node[:3]}
    if level == "ORT_DISABLE_ALL":
        assert all(len(layer) == 1 for layer in mapped)
    if level == "ORT_ENABLE_ALL":
        assert set(mapped[0]) == first
        assert [row["op_type"] for row, layer in zip(rows, mapped, strict=True) if not layer] == ["ReorderOutput"]


def test_a_fused_norm_takes_in_what_leads_to_it(tmp_path: Path) -> None:
    """A layer norm written out as eight nodes is one layer, and only that."""

    def node(op: str, inputs: list[str], output: str, **attributes: Any) -> onnx.NodeProto:
        return helper.make_node(op, inputs, [output], name=f"n_{output}", **attributes)

    nodes = [
        node("MatMul", ["x", "w"], "h"),
        node("ReduceMean", ["h"], "mean", axes=[-1]),
        node("Sub", ["h", "mean"], "d"),
        node("Pow", ["d", "two"], "sq"),
        node("ReduceMean", ["sq"], "var", axes=[-1]),
        node("Add", ["var", "eps"], "ve"),
        node("Sqrt", ["ve"], "sd"),
        node("Div", ["d", "sd"], "q"),
        node("Mul", ["q", "g"], "qg"),
        node("Add", ["qg", "o"], "ln"),
        node("MatMul", ["ln", "w"], "y"),
    ]
    constants = [weights("w", 32, 32), weights("g", 32), weights("o", 32)]
    constants += [onnx.numpy_helper.from_array(np.array(v, np.float32), k) for k, v in (("two", 2.0), ("eps", 1e-5))]
    graph = helper.make_graph(
        nodes, "norm",
        [helper.make_tensor_value_info("x", TensorProto.FLOAT, [4, 32])],
        [helper.make_tensor_value_info("y", TensorProto.FLOAT, [4, 32])],
        constants,
    )  # fmt: skip
    source = helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=8)
    rows, compiled = run_layers(source, tmp_path, {"x": np.ones((4, 32), np.float32)}, "ORT_ENABLE_ALL")
    mapped = dict(
        zip(
            (row["op_type"] for row in rows),
            map_layers([*map(LayerRow.from_json, rows)], compiled, source),
            strict=True,
        )
    )
    assert set(mapped["LayerNormalization"]) == {node.name for node in nodes[1:-1]}


def test_what_is_folded_or_without_work_belongs_to_no_layer(tmp_path: Path) -> None:
    """Constants computed at load time and identities cost nothing at run time."""
    nodes = [
        helper.make_node("Constant", [], ["k"], name="constant", value=weights("k", 4)),
        helper.make_node("Neg", ["k"], ["nk"], name="folded"),
        helper.make_node("Identity", ["x"], ["i"], name="identity"),
        helper.make_node("Add", ["i", "nk"], ["y"], name="add"),
    ]
    graph = helper.make_graph(
        nodes, "g",
        [helper.make_tensor_value_info("x", TensorProto.FLOAT, [4])],
        [helper.make_tensor_value_info("y", TensorProto.FLOAT, [4])],
    )  # fmt: skip
    source = helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=8)
    rows, compiled = run_layers(source, tmp_path, {"x": np.ones(4, np.float32)}, "ORT_ENABLE_ALL")
    assert map_layers([*map(LayerRow.from_json, rows)], compiled, source) == [("add",)]


@settings(max_examples=50, deadline=None)
@given(st.lists(st.tuples(st.text(max_size=12), st.sampled_from(["Conv", "Relu", "Transpose", "Odd"])), max_size=8))
def test_any_names_give_each_node_to_one_layer_at_most(rows: list[tuple[str, str]]) -> None:
    """Whatever a runtime calls its layers."""
    source = residual_net()
    mapped = map_layers([LayerRow(name, op) for name, op in rows], source, source)
    names = [name for layer in mapped for name in layer]
    assert len(mapped) == len(rows)
    assert len(names) == len(set(names))


def test_compute_units_are_told_where_the_name_tells() -> None:
    """Otherwise the provider's own name stands."""
    assert [compute_unit(name + "ExecutionProvider") for name in ("CPU", "CUDA", "QNN", "OpenVINO")] == [
        "CPU", "GPU", "NPU", "OpenVINO",
    ]  # fmt: skip
    assert compute_unit("") == "unknown"
