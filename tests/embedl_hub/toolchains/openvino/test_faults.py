"""What OpenVINO cannot do is told in one sentence, with the node and the module of the user's network."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import onnx
import pytest
from onnx import TensorProto, helper
from support.models import residual_net, save

from embedl_hub.core.compile import CompileError, OpenVINOCompiler
from embedl_hub.core.device import Device, OpenVINOConfig
from embedl_hub.core.profile import OpenVINOProfiler, ProfileError
from embedl_hub.core.steps import keep_model
from embedl_hub.errors import ComponentError, ConfigError
from embedl_hub.refusal import RefusedError
from embedl_hub.testing import temporary_context
from embedl_hub.toolchains.openvino.ir import read_graph


def refusal(device: Device, source: Path, **options: Any) -> str:
    """Return what compiling says."""
    with temporary_context([device]) as ctx, pytest.raises(CompileError) as caught:
        OpenVINOCompiler().run(ctx, source, **options)
    text = str(caught.value)
    assert "Traceback" not in text
    assert "src/" not in text
    return text


def strange_net(**props: str) -> onnx.ModelProto:
    """Return a net with an operator that nobody has."""
    graph = helper.make_graph(
        [
            helper.make_node("Relu", ["x"], ["a"], name="relu"),
            helper.make_node("Wobble", ["a"], ["y"], name="encoder/wobble", domain="com.me"),
        ],
        "net",
        [helper.make_tensor_value_info("x", TensorProto.FLOAT, [1, 4])],
        [helper.make_tensor_value_info("y", TensorProto.FLOAT, [1, 4])],
    )
    opsets = [helper.make_opsetid("", 17), helper.make_opsetid("com.me", 1)]
    model = helper.make_model(graph, opset_imports=opsets, ir_version=8)
    helper.set_model_props(model, props)
    return model


def test_an_operator_that_openvino_lacks(here: Device, tmp_path: Path) -> None:
    """Its node and its module are named."""
    modules = json.dumps({"encoder/wobble": ["encoder.wobble"]})
    model = strange_net(**{"edgeproof.format": "1", "edgeproof.modules": modules})
    said = refusal(here, save(model, tmp_path / "net.onnx"))
    assert "com.me.Wobble" in said
    assert "It is about Wobble 'encoder/wobble' of module 'encoder.wobble', in a model of opset 17" in said


# No machine has ten of them; the plugins that OpenVINO ships are asked all the same.
@pytest.mark.parametrize("name", ["GPU.9", "NPU.9", "HETERO:GPU.9,CPU", "TOASTER"])
def test_a_device_that_is_not_there(make_here: Any, model: Path, name: str) -> None:
    """Those that are there are named, whatever the plugin's library says."""
    said = refusal(make_here(openvino_device=name), model)
    assert "has no device" in said
    assert "it has: CPU" in said


def test_a_required_device(here: Device, model: Path) -> None:
    """One that is not there is refused before anything is measured."""
    with temporary_context([here]) as ctx:
        compiled = OpenVINOCompiler().run(ctx, model)
        with pytest.raises(ProfileError, match=r"has no device 'GPU\.9' here; it has: CPU"):
            OpenVINOProfiler().run(ctx, compiled, require_provider="GPU.9")


def test_a_model_of_another_opset(here: Device, tmp_path: Path) -> None:
    """OpenVINO would read it as the newest that it knows."""
    model = residual_net()
    model.opset_import[0].version = 99
    assert "has opset 99; onnx" in refusal(here, save(model, tmp_path / "net.onnx"))


def test_a_shape_that_does_not_fit_inside(here: Device, tmp_path: Path) -> None:
    """The node where it goes wrong is named."""
    graph = helper.make_graph(
        [helper.make_node("MatMul", ["x", "w"], ["h"], name="head/product"),
         helper.make_node("Relu", ["h"], ["y"], name="relu")],
        "net",
        [helper.make_tensor_value_info("x", TensorProto.FLOAT, ["n", "width"])],
        [helper.make_tensor_value_info("y", TensorProto.FLOAT, ["n", 3])],
        [helper.make_tensor("w", TensorProto.FLOAT, [4, 3], [0.5] * 12)],
    )  # fmt: skip
    model = helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=8)
    said = refusal(here, save(model, tmp_path / "net.onnx"), input_shape=(1, 5))
    assert "It is about MatMul 'head/product'" in said


def test_what_is_no_model(here: Device, tmp_path: Path) -> None:
    """Neither ONNX nor anything else."""
    path = tmp_path / "net.onnx"
    path.write_bytes(b"hello")
    assert "is not an ONNX model" in refusal(here, path)
    said = refusal(here, save(residual_net(), path), calibration_method="minmax")
    assert "needs calibration_data" in said


IR = '<?xml version="1.0"?>\n<net name="a" version="11"><layers>{}</layers></net>'
INPUT = (
    '<layer id="0" name="{0}" type="Parameter" version="opset1"><data shape="{1}" element_type="f32"/>'
    '<output><port id="0" precision="FP32" names="{2}"/></output></layer>'
)


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ("hello", "is no model of OpenVINO: "),
        (IR.format(""), "it holds no layers"),
        (IR.format(INPUT.format("x", "1,4", "x"))[:-9], "is no model of OpenVINO: "),
        ('<!DOCTYPE a [<!ENTITY b "c">]>' + IR.format("&b;"), "is no model of OpenVINO: "),
        ('<?xml version="1.0"?><!DOCTYPE a [<!ENTITY b "c">]><net>&b;</net>', "declares a document type"),
        (IR.format(INPUT.format("x", "...", "x")), "open number of axes"),
        (IR.format('<layer type="Const"><data element_type="f32" size="many"/></layer>'), "is no model of OpenVINO: "),
    ],
)
def test_a_broken_file_of_openvinos_own(text: str, words: str, tmp_path: Path) -> None:
    """Is refused by our reader, before OpenVINO sees it."""
    path = tmp_path / "net.xml"
    path.write_text(text)
    with pytest.raises(RefusedError, match=words):
        read_graph(path)


def test_inputs_are_read(tmp_path: Path) -> None:
    """Under the name that the model gives them; open sizes stay open; layers inside others do not count."""
    path = tmp_path / "net.xml"
    inner = '<layer type="If"><body><layers>' + INPUT.format("inner", "9", "inner") + "</layers></body></layer>"
    inputs = INPUT.format("x", "1,?,3..5", "b,x") + INPUT.format("y_0", "2", "z,b")
    path.write_text(IR.format(inputs + inner))
    graph = read_graph(path)
    assert [str(tensor) for tensor in graph.inputs] == ["x float32[1, ?, ?]", "b float32[2]"]
    assert graph.precision == "float32"


def test_broken_weights(here: Device, model: Path) -> None:
    """A .bin file cut short is told by OpenVINO, in one sentence."""
    with temporary_context([here]) as ctx:
        compiled = OpenVINOCompiler().run(ctx, model)
        folder = model.parent / "cut"
        folder.mkdir()
        for path in compiled.path.local().iterdir():
            (folder / path.name).write_bytes(b"" if path.suffix == ".bin" else path.read_bytes())
        cut = keep_model(ctx, OpenVINOProfiler, folder)
        with pytest.raises(ProfileError, match=r"cannot read .*weights"):
            OpenVINOProfiler().run(ctx, cut)  # type: ignore[arg-type]
        (folder / "second.xml").write_text("")
        with pytest.raises(ComponentError, match=r"must hold one \.xml file"):
            keep_model(ctx, OpenVINOProfiler, folder)


def test_settings_are_checked() -> None:
    """When they are made."""
    with pytest.raises(ConfigError, match="one of f32, f16, bf16, not 'int8'"):
        OpenVINOConfig(inference_precision="int8")
    with pytest.raises(ConfigError, match="openvino_device is a name"):
        OpenVINOConfig(openvino_device="")
