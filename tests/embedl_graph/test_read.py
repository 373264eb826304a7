"""Graphs of ONNX and TFLite files: read without weights, without onnx and without the vendor's package."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path
from typing import Any

import onnx
import pytest
from ai_edge_litert import schema_py_generated as schema
from onnx import TensorProto, helper, numpy_helper
from support.fuzz import small_tflite
from support.models import mobilenet_v2, residual_net, save
from support.qdq import tensorrt_residual

from embedl_graph import GraphError, read_graph
from embedl_graph._modules import module_of_name
from embedl_graph._onnx import _TYPES
from embedl_graph._tflite import OPERATORS, TYPES
from embedl_hub.models.onnx_file import name_nodes, nodes_of

WEIGHTS = numpy_helper.from_array(__import__("numpy").ones((4, 4), "float32"), "w")


def net(nodes: list[onnx.NodeProto], **notes: Any) -> onnx.ModelProto:
    """Return a model with an input x, a weight w and these remarks."""
    x = helper.make_tensor_value_info("x", TensorProto.FLOAT, ["n", 4])
    y = helper.make_tensor_value_info(nodes[-1].output[0], TensorProto.FLOAT, None)
    model = helper.make_model(helper.make_graph(nodes, "g", [x], [y], [WEIGHTS]))
    for key, value in notes.items():
        model.metadata_props.add(key=f"edgeproof.{key}", value=value if isinstance(value, str) else json.dumps(value))
    return model


@pytest.mark.parametrize("make", [residual_net, mobilenet_v2, tensorrt_residual])
def test_a_graph_is_what_onnx_reads(make: Any, tmp_path: Path) -> None:
    """Nodes by the names that layers of a profile lead to, their operators and ends, types and shapes of weights."""
    model = make()
    graph = read_graph(save(model, tmp_path / "m.onnx"))
    name_nodes(model)
    wanted = [node for node in nodes_of(model.graph) if node.op_type != "Constant"]
    assert [(node.name, node.op_type, node.inputs, node.outputs) for node in graph.nodes] == [
        (node.name, node.op_type, tuple(node.input), tuple(node.output)) for node in wanted
    ]
    for tensor in model.graph.initializer:
        found = graph.tensors[tensor.name]
        assert (found.is_constant, found.shape) == (True, tuple(tensor.dims))
        assert found.dtype == _TYPES[tensor.data_type]
    assert graph.outputs == tuple(value.name for value in model.graph.output)


def test_the_names_of_types_are_onnx_own() -> None:
    named = {code: name.lower() for name, code in TensorProto.DataType.items() if code}
    named |= {1: "float32", 11: "float64"}
    assert {code: name.replace("_", "") for code, name in named.items()} == {
        code: _TYPES[code].replace("_", "") for code in named
    }


def test_the_operators_and_types_are_the_schemas() -> None:
    """In its order, as far as the package that is installed knows them."""
    for ours, theirs in ((OPERATORS, schema.BuiltinOperator), (TYPES, schema.TensorType)):
        known = {code: name for name, code in vars(theirs).items() if isinstance(code, int)}
        assert [name.upper() for name in ours[: len(known)]] == [known[code] for code in range(len(known))]


def test_a_tflite_file_is_what_the_schema_reads(tmp_path: Path) -> None:
    """Operators, their ends by the tensors' names, shapes, and which tensors are weights."""
    content = small_tflite()
    (tmp_path / "m.tflite").write_bytes(content)
    graph = read_graph(tmp_path / "m.tflite")
    model = schema.ModelT.InitFromPackedBuf(content, 0)
    main = model.subgraphs[0]
    names = {code: name for name, code in vars(schema.BuiltinOperator).items() if isinstance(code, int)}
    codes = [names[max(code.builtinCode, code.deprecatedBuiltinCode)] for code in model.operatorCodes]
    assert [node.op_type for node in graph.nodes] == [codes[operator.opcodeIndex] for operator in main.operators]
    tensors = [tensor.name.decode() for tensor in main.tensors]
    assert [node.outputs for node in graph.nodes] == [
        tuple(tensors[place] for place in operator.outputs) for operator in main.operators
    ]
    for tensor in main.tensors:
        found = graph.tensors[tensor.name.decode()]
        data = model.buffers[tensor.buffer].data
        assert found.is_constant == (data is not None and len(data) > 0)
        assert found.shape == tuple(tensor.shape)


def test_modules_come_from_the_files_remarks(tmp_path: Path) -> None:
    """The main one of each node, and what quantizing it costs."""
    nodes = [helper.make_node("MatMul", ["x", "w"], ["a"], name="mm"), helper.make_node("Relu", ["a"], ["y"], name="r")]
    costs = {"version": 1, "modules": {"body.mm": 1.5}, "unit": "nats"}
    model = net(nodes, modules={"mm": ["body.mm", "other"], "r": "body"}, sensitivity=costs)
    graph = read_graph(save(model, tmp_path / "m.onnx"))
    assert [node.module for node in graph.nodes] == ["body.mm", "body"]
    (coloring,) = graph.colorings
    assert (coloring.key, coloring.unit, coloring.values) == ("sensitivity", "nats", {0: 1.5})


@pytest.mark.parametrize("remarks", ["[", '{"mm": []}', '{"mm": 3}', "null", '{"mm": {"a": 1}}', '["mm"]'])
def test_remarks_that_cannot_be_read_are_said(remarks: str, tmp_path: Path) -> None:
    """And the graph is shown all the same."""
    model = net([helper.make_node("MatMul", ["x", "w"], ["y"], name="mm")], modules=remarks)
    graph = read_graph(save(model, tmp_path / "m.onnx"))
    assert len(graph.nodes) == 1
    assert graph.notes == ("What the file says of its modules cannot be read.",)


def test_modules_come_from_names_of_torch(tmp_path: Path) -> None:
    """Of the scopes that the newer exporter writes on nodes, or of the names that the older one gives them."""
    newer = helper.make_node("MatMul", ["x", "w"], ["y"], name="node_1")
    newer.metadata_props.add(key="pkg.torch.onnx.name_scopes", value="['', 'layer1', 'layer1.0', 'matmul']")
    older = helper.make_node("MatMul", ["x", "w"], ["y"], name="/layer1/layer1.0/fc/MatMul")
    for node, module in ((newer, "layer1.0"), (older, "layer1.0.fc")):
        graph = read_graph(save(net([node]), tmp_path / "m.onnx"))
        assert graph.nodes[0].module == module
        assert graph.notes == ("Modules are taken from the names that the exporter gave the nodes.",)


@pytest.mark.parametrize(
    ("name", "module"),
    [("/a/a.0/conv/Conv", "a.0.conv"), ("model/block/conv/Conv2D", "model.block.conv"), ("conv", ""), ("/x", "")],
)
def test_the_module_of_a_name(name: str, module: str) -> None:
    assert module_of_name(name) == module


def test_precision_is_what_the_file_asks_for(tmp_path: Path) -> None:
    """An operator between dequantizing and quantizing computes in integers; conversions are told apart."""
    graph = read_graph(save(tensorrt_residual(), tmp_path / "m.onnx"))
    of_op: dict[str, set[str]] = {}
    for node in graph.nodes:
        of_op.setdefault(node.op_type, set()).add(node.precision)
    assert of_op["QuantizeLinear"] == {"conversion"}
    assert "int8" in of_op["Conv"]
    assert {node.precision for node in read_graph(save(residual_net(), tmp_path / "f.onnx")).nodes} == {"float32"}


def test_what_is_computed_from_weights_alone_is_told_apart(tmp_path: Path) -> None:
    nodes = [
        helper.make_node("Relu", ["w"], ["v"], name="of weights"),
        helper.make_node("MatMul", ["x", "v"], ["y"], name="mm"),
    ]
    graph = read_graph(save(net(nodes), tmp_path / "m.onnx"))
    assert [node.is_constant for node in graph.nodes] == [True, False]


def test_weights_are_not_read(tmp_path: Path) -> None:
    """Nor those beside the file, which need not be there."""
    model = net([helper.make_node("MatMul", ["x", "w"], ["y"], name="mm")])
    onnx.save(model, tmp_path / "m.onnx", save_as_external_data=True, location="gone.bin", size_threshold=0)
    (tmp_path / "gone.bin").unlink()
    assert str(read_graph(tmp_path / "m.onnx").tensors["w"]) == "float32 [4, 4]"


def test_a_folder_with_one_model_is_that_model(tmp_path: Path) -> None:
    with pytest.raises(GraphError, match="must hold one model"):
        read_graph(tmp_path)
    save(residual_net(), tmp_path / "m.onnx")
    assert len(read_graph(tmp_path).nodes) == 10


@pytest.mark.parametrize(
    ("content", "reason"),
    [
        (b"", "it holds no graph"),
        (b"hello, this is text", "is not an ONNX model"),
        (b"\x3a\xff\xff\xff\xff\x0f", "a field ends behind its message"),
        (b"\x3a\xff", "it was cut short"),
        (b"\xff" * 30, "a number has no end"),
        (b"\x1c\x00\x00\x00TFL3", "is not a TFLite model, or it was cut short"),
    ],
)
def test_what_is_no_model_is_refused(content: bytes, reason: str, tmp_path: Path) -> None:
    (tmp_path / "m.onnx").write_bytes(content)
    with pytest.raises(GraphError, match=reason):
        read_graph(tmp_path / "m.onnx")


def test_what_is_not_there_is_said(tmp_path: Path) -> None:
    with pytest.raises(GraphError, match="cannot be read: No such file"):
        read_graph(tmp_path / "none.onnx")


def test_reading_needs_neither_onnx_nor_a_runtime(tmp_path: Path) -> None:
    """So that every installation of the hub's page, and of deploy, shows any model."""
    save(residual_net(), tmp_path / "m.onnx")
    (tmp_path / "m.tflite").write_bytes(small_tflite())
    code = (
        "import sys, embedl_graph\n"
        "for name in sys.argv[1:]: embedl_graph.graph_html(embedl_graph.shown(embedl_graph.read_graph(name)))\n"
        "print(sorted({'numpy', 'onnx', 'torch', 'ai_edge_litert'} & set(sys.modules)))"
    )
    argv = [sys.executable, "-c", code, str(tmp_path / "m.onnx"), str(tmp_path / "m.tflite")]
    assert subprocess.run(argv, capture_output=True, text=True, check=True, timeout=60).stdout == "[]\n"
