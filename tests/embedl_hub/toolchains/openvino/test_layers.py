"""Layers of OpenVINO led back to nodes and modules, on files of deploy's dialect and on hand-made rows."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import onnx
import pytest
import torch
from onnx import load
from support.models import residual_net, save
from support.named_net import NamedNet

from embedl_deploy import transform
from embedl_deploy.dialect import lower
from embedl_deploy.export import export_onnx
from embedl_deploy.onnxruntime import ONNXRUNTIME
from embedl_deploy.quantize import quantize
from embedl_hub.core.compile import OpenVINOCompiler
from embedl_hub.core.device import Device
from embedl_hub.core.document import LayerRow
from embedl_hub.core.profile import OpenVINOProfiler
from embedl_hub.testing import temporary_context
from embedl_hub.toolchains.openvino.layers import MOVING_NODES, led_back
from embedl_hub.toolchains.openvino.placement import layers_of

VALUE = torch.randn(1, 3, 16, 16, generator=torch.Generator().manual_seed(0))


@pytest.mark.slow
def test_a_dialect_file_leads_back_to_modules(here: Device, tmp_path: Path) -> None:
    """From the torch network through the Q/DQ file to what ran in integers."""
    torch.manual_seed(0)
    network = NamedNet().eval()
    fused = transform(network, (VALUE,), ONNXRUNTIME).model
    simulated = quantize(fused, (VALUE,), forward_loop=[VALUE], backend=ONNXRUNTIME)
    canonical = load(export_onnx(simulated, (VALUE,), tmp_path / "canonical.onnx"))
    source = save(lower(canonical, "openvino"), tmp_path / "net.onnx")
    with temporary_context([here]) as ctx:
        result = OpenVINOProfiler().run(ctx, OpenVINOCompiler().run(ctx, source))
    integer = {layer.modules[0] for layer in result.layers if layer.integer and layer.modules}
    assert {"stem.0", "features.0.conv", "features.1.conv", "shared", "head"} <= integer
    modules = {name for layer in result.layers for name in layer.modules}
    assert modules <= {name for name, _ in network.named_modules()}
    asked = {node: row.integer for row in layers_of(source) for node in row.source_nodes}
    ran = {node: row.integer for row in result.layers for node in row.source_nodes}
    assert asked.keys() == ran.keys()
    assert {node for node, integer in asked.items() if integer != ran[node]} <= {
        node.name for node in load(source).graph.node if node.op_type in MOVING_NODES
    }


def row(name: str, op_type: str, original: str, *reads: str, precision: str = "f32") -> LayerRow:
    """Return a row as the device program writes it."""
    extra = {"original": original, "reads": list(reads), "precision": precision}
    return LayerRow(name, op_type, provider="CPU", extra=extra)


def test_names_lead_back_in_every_form() -> None:
    """By node, by tensor, with an ending, with commas inside, and not at all."""
    model = residual_net()
    model.graph.node[0].name = "conv,0"
    rows = [
        row("r", "Reorder", ""),
        row("a", "Convolution", "conv,0/WithoutBiases,norm/0,r0", "r", precision="u8"),
        row("b", "Convolution", "conv/1,Multiply_7", "a"),
        row("c", "Eltwise", "relu/1", "b", precision="u8"),
        row("d", "Reduce", "pool", "c"),
        row("e", "FullyConnected", "y", "d", precision="i8"),
        row("f", "Convert", "Convert_1", "e"),
    ]
    found = led_back(rows, model)
    assert [each.source_nodes for each in found] == [
        (), ("conv,0", "norm/0", "relu/0"), ("conv/1", "add/1"), ("relu/1",), ("pool", "flat"), ("fc", "bias"), (),
    ]  # fmt: skip
    assert [each.integer for each in found] == [None, True, False, True, False, True, None]
    assert [each.added_by_runtime for each in found] == [True, False, False, False, False, False, True]


def test_what_turns_integers_into_floats_computes_in_floats() -> None:
    """A pointwise kernel counts as one of integers if it writes them too."""
    rows = [row(kind, kind, "a", precision="u8") for kind in ("Subgraph", "FullyConnected")]
    for written, wanted in (
        ("f32", [False, True]),
        ("u8", [True, True]),
        ("u8,f32", [False, True]),
        ("i8,u8", [True, True]),
    ):
        told = [replace(each, extra={**each.extra, "output_precision": written}) for each in rows]
        assert [each.integer for each in led_back(told, None)] == wanted


def test_an_operator_taken_apart_is_one_node() -> None:
    """Parts without a name of the model's have the node of who reads them."""
    model = residual_net()
    del model.graph.node[1:]
    model.graph.node[0].op_type = "LayerNormalization"
    model.graph.node[0].name = "norm"
    found = led_back([row("MVN_1", "MVN", "MVN_1"), row("Multiply_2", "Eltwise", "norm", "MVN_1")], model)
    assert [each.source_nodes for each in found] == [("norm",), ("norm",)]


def test_a_part_of_a_normalization_is_not_what_melted_into_its_end() -> None:
    """The kernel behind it also does the sum: the part in floats is none of the sum's."""
    model = residual_net()
    del model.graph.node[2:]
    first, second = model.graph.node
    first.op_type, first.name = "LayerNormalization", "norm"
    second.CopyFrom(onnx.helper.make_node("Add", [first.output[0], first.input[0]], ["sum"], name="sum"))
    found = led_back([row("MVN_1", "MVN", "MVN_1"), row("s", "Subgraph", "norm,sum", "MVN_1", precision="u8")], model)
    assert [each.source_nodes for each in found] == [("norm",), ("norm", "sum")]


def test_without_a_source_rows_stand_for_themselves() -> None:
    """A file of the user's own: what came from the model is told from what OpenVINO added."""
    found = led_back([row("a", "Reorder", ""), row("b", "Convolution", "conv", precision="u8")], None)
    assert [each.added_by_runtime for each in found] == [True, False]
    assert [each.integer for each in found] == [None, True]
    assert all(not each.source_nodes for each in found)


def test_a_model_without_node_names(tmp_path: Path) -> None:
    """Nodes are known by what they write."""
    rows = layers_of(save(residual_net(named=False), tmp_path / "net.onnx"))
    named = {name for each in rows for name in each.source_nodes}
    assert named == {output for node in residual_net().graph.node for output in node.output}
