"""Compiling for TFLite: names, layouts and numbers recorded, checked against ONNX Runtime, cached, refused in words."""

from __future__ import annotations

import logging
import time
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import pytest
from onnx import TensorProto, helper, numpy_helper
from support.models import residual_net, save
from support.tflite import foreign_net, picture_net, pictures

from embedl_hub.core import HubContext
from embedl_hub.core.compile import CompileError, TFLiteCompiledModel, TFLiteCompiler
from embedl_hub.toolchains.tflite.compile import look_up
from embedl_hub.toolchains.tflite.graph import read_graph
from embedl_hub.tracking import Store


def test_a_float_model_keeps_its_answers(compiled: dict[str, TFLiteCompiledModel]) -> None:
    """The check against ONNX Runtime is part of the result."""
    model = compiled["float"]
    assert model.path.file_name == "net.tflite"
    assert model.input_name_mapping == {"x:0": "x__0"}
    assert model.output_name_mapping == {}
    by_name = {tensor["name"]: tensor for kind in ("inputs", "outputs") for tensor in model.tensors[kind]}
    assert by_name["x:0"]["axes"] == [0, 2, 3, 1]
    assert by_name["x:0"]["compiled_shape"] == [1, 8, 10, 3]
    assert by_name["map"]["axes"] == [0, 2, 3, 1]
    assert by_name["y"]["axes"] is None
    assert set(model.source_of_tensors.values()) >= {"conv", "sigmoid"}


def test_the_check_is_in_the_run(compiled: dict[str, TFLiteCompiledModel], tmp_path: Path) -> None:
    """As a number to search for and as a table per output."""
    home = compiled["float"].path.local().parents[4]
    with Store(home) as store:
        run = store.run(str(compiled["float"].path.run_id))
        error = run.metric("conversion_error")
        assert error is not None
        assert error.value < 1e-5
        table: Any = run.params["conversion_check"].value
        assert {row["name"] for row in table} == {"y", "map"}
        int8 = store.run(str(compiled["int8"].path.run_id))
        noise = int8.metric("quantization_sqnr_db")
        assert noise is not None
        assert noise.value > 20
        assert int8.params["calibration_samples"].value == 16
        assert [one.params["precision"].value for one in (run, int8)] == ["float32", "int8"]


def test_a_file_says_what_it_computes_in(compiled: dict[str, TFLiteCompiledModel]) -> None:
    """A profile or an invocation records it from there."""
    precisions = {kind: read_graph(model.path.local()).precision for kind, model in compiled.items()}
    assert (precisions["float"], precisions["int8"]) == ("float32", "int8")


@pytest.mark.parametrize(("kind", "dtype"), [("int8", "float32"), ("int8 ends", "int8")])
def test_int8_has_the_ends_that_were_asked_for(compiled: dict[str, TFLiteCompiledModel], kind: str, dtype: str) -> None:
    """With quantize_io the model takes and gives integers, else floats."""
    model = compiled[kind]
    assert model.quantization["scheme"].startswith("static INT8")
    for tensor in (*model.tensors["inputs"], *model.tensors["outputs"]):
        assert tensor["compiled_dtype"] == dtype
        assert (tensor["scale"] is not None) == (dtype == "int8")


def test_a_layout_that_shapes_leave_open_is_found_by_the_answers(cache: Path, tmp_path: Path) -> None:
    """Channels, height and width of the same size look alike either way."""
    weights = helper.make_tensor("w", TensorProto.FLOAT, [3, 3, 1, 1], np.arange(9, dtype=np.float32).tolist())
    graph = helper.make_graph(
        [helper.make_node("Conv", ["x", "w"], ["y"], name="conv")],
        "cube",
        [helper.make_tensor_value_info("x", TensorProto.FLOAT, [1, 3, 3, 3])],
        [helper.make_tensor_value_info("y", TensorProto.FLOAT, [1, 3, 3, 3])],
        [weights],
    )
    path = save(
        helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=8), tmp_path / "c.onnx"
    )
    with HubContext("cube", home=tmp_path / "home") as ctx:
        model = TFLiteCompiler().run(ctx, path)
        check = ctx.client.store.run(str(model.path.run_id)).metric("conversion_error")  # type: ignore[union-attr]
    assert check is not None
    assert check.value < 1e-5


def test_the_second_time_comes_from_the_cache(
    cache: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    """It is said, it is quick, and other options are another conversion."""
    path = save(picture_net(), tmp_path / "net.onnx")
    with HubContext("cached", home=tmp_path / "home") as ctx, caplog.at_level(logging.INFO, "embedl_hub"):
        first = TFLiteCompiler().run(ctx, path)
        assert not first.from_cache
        calls: list[Any] = []
        monkeypatch.setattr("embedl_hub.toolchains.tflite.compile.call_converter", lambda *_: calls.append(1))
        start = time.perf_counter()
        second = TFLiteCompiler().run(ctx, path)
        seconds = time.perf_counter() - start
        assert second.from_cache
        assert second.path.sha256 == first.path.sha256
        assert second.tensors == first.tensors
        assert seconds < 5
        assert "comes from the cache" in caplog.text
        with pytest.raises(TypeError):
            TFLiteCompiler().run(ctx, path, calibration_data={"x:0": pictures(4)})
        assert calls == [1]
    (entry,) = (cache / "compiled" / "tflite").iterdir()
    (entry / "model.tflite").write_bytes(b"damaged")
    assert look_up(entry.name) is None


def test_an_operator_that_tflite_lacks_is_named_with_its_node(cache: Path, tmp_path: Path) -> None:
    """Nothing is compiled to a custom operator that no runtime has."""
    path = save(foreign_net(), tmp_path / "foreign.onnx")
    with HubContext("foreign", home=tmp_path / "home") as ctx, pytest.raises(CompileError) as caught:
        TFLiteCompiler().run(ctx, path)
    assert "Swizzle" in str(caught.value)
    assert "'my swizzle'" in str(caught.value)


@pytest.mark.parametrize(
    ("model", "options", "words"),
    [
        (residual_net("n"), {}, r"x float32\[n, 3, 16, 16\] has no fixed shape.*--input-shape 1,3,16,16"),
        (residual_net(), {"quantize_io": True}, "quantize_io is for INT8"),
        (residual_net(), {"calibration_data": "no/such/folder"}, "no calibration data no/such/folder"),
        (residual_net(), {"calibration_data": {"z": np.zeros((2, 3))}}, "'z'.*inputs are 'x'"),
        (residual_net(), {"input_shape": (1, 2)}, "fits no input"),
    ],
)
def test_what_cannot_be_compiled_is_said(
    cache: Path, tmp_path: Path, model: onnx.ModelProto, options: dict[str, Any], words: str
) -> None:
    """Before the converter starts."""
    path = save(model, tmp_path / "net.onnx")
    with HubContext("bad", home=tmp_path / "home") as ctx, pytest.raises(CompileError, match=words):
        TFLiteCompiler().run(ctx, path, **options)


def test_an_open_shape_can_be_fixed(cache: Path, tmp_path: Path) -> None:
    """By input_shape, as for every toolchain."""
    path = save(residual_net("n"), tmp_path / "net.onnx")
    with HubContext("open", home=tmp_path / "home") as ctx:
        model = TFLiteCompiler().run(ctx, path, input_shape=(2, 3, 16, 16))
    assert model.tensors["inputs"][0]["compiled_shape"] == [2, 16, 16, 3]


def test_int8_that_the_runtime_refuses_to_run_is_made_with_less(cache: Path, tmp_path: Path) -> None:
    """A divisor that INT8 makes 0: the division stays float, and the product does not."""
    weights = numpy_helper.from_array(np.random.default_rng(0).normal(size=(8, 8)).astype(np.float32), "w")
    nodes = [
        helper.make_node("MatMul", ["x", "w"], ["m"], name="product"),
        helper.make_node("ReduceMax", ["a"], ["d"], name="largest", axes=[1], keepdims=1),
        helper.make_node("Div", ["m", "d"], ["y"], name="division"),
    ]
    nodes.insert(1, helper.make_node("Abs", ["m"], ["a"], name="size"))
    ends = [helper.make_tensor_value_info(name, TensorProto.FLOAT, [1, 8]) for name in ("x", "y")]
    graph = helper.make_graph(nodes, "net", ends[:1], ends[1:], [weights])
    path = save(
        helper.make_model(graph, opset_imports=[helper.make_opsetid("", 13)], ir_version=8), tmp_path / "n.onnx"
    )
    samples = np.random.default_rng(1).normal(size=(4, 8)).astype(np.float32)
    samples *= np.array([[1e-4], [10.0], [10.0], [10.0]], np.float32)
    with HubContext("div", home=tmp_path / "home") as ctx:
        model = TFLiteCompiler().run(ctx, path, calibration_data={"x": samples})
    assert "DIV" in model.quantization["left_float"]
    assert read_graph(model.path.local()).precision == "int8"
