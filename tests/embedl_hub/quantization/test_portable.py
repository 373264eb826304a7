"""Files of our quantizer give the same bits on every processor, and files of others are looked through."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import onnxruntime
import pytest
from onnx import TensorProto, helper, numpy_helper
from support.families import Emulated
from support.models import save

from embedl_hub.quantization.portable import requires_of, saturating_layers
from embedl_hub.quantization.quantize import Request, _quantize_here
from embedl_kernels import EXACT_U8S8

_GET = Callable[[str], Emulated]


def net(*, shared: bool = False) -> onnx.ModelProto:
    """Return convolutions of every kind and a classifier whose weights are all on one side: the worst for pairs."""
    random = np.random.default_rng(3)
    constants: list[onnx.TensorProto] = []

    def constant(name: str, *shape: int) -> str:
        values = np.abs(random.normal(size=shape)) * 0.2 + 0.2 * (len(shape) > 1)
        constants.append(numpy_helper.from_array(values.astype(np.float32), name))
        return name

    nodes = [
        helper.make_node("Conv", ["x", constant("w0", 8, 3, 3, 3), constant("b0", 8)], ["c0"], "first",
                         pads=[1, 1, 1, 1], strides=[2, 2]),
        helper.make_node("Relu", ["c0"], ["r0"]),
        helper.make_node("Conv", ["r0", constant("w1", 8, 1, 3, 3), constant("b1", 8)], ["c1"], "depthwise",
                         pads=[1, 1, 1, 1], group=8),
        helper.make_node("Relu", ["c1"], ["r1"]),
        helper.make_node("Conv", ["r1", constant("w2", 8, 4, 3, 3), constant("b2", 8)], ["c2"], "grouped",
                         pads=[2, 2, 2, 2], dilations=[2, 2], group=2),
        helper.make_node("Relu", ["c2"], ["r2"]),
        helper.make_node("Conv", ["r2", "w2", "b2"] if shared else ["r2", constant("w3", 8, 4, 3, 3), "b2"], ["c3"],
                         "again", auto_pad="SAME_UPPER", group=2),
        helper.make_node("Relu", ["c3"], ["r3"]),
        helper.make_node("GlobalAveragePool", ["r3"], ["p"]),
        helper.make_node("Flatten", ["p"], ["f"]),
        helper.make_node("Gemm", ["f", constant("w4", 10, 8), constant("b4", 10)], ["y"], "classifier", transB=1),
    ]  # fmt: skip
    graph = helper.make_graph(
        nodes,
        "net",
        [helper.make_tensor_value_info("x", TensorProto.FLOAT, [1, 3, 16, 16])],
        [helper.make_tensor_value_info("y", TensorProto.FLOAT, [1, 10])],
        constants,
    )
    return helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=8)


def quantized(
    folder: Path, source: onnx.ModelProto, *, portable: bool = True, per_channel: bool = True,
    activations: str = "uint8", quantize_io: bool = True,
) -> tuple[onnx.ModelProto, dict[str, Any]]:  # fmt: skip
    data = np.random.default_rng(1).uniform(0, 1, size=(8, 3, 16, 16)).astype(np.float32)
    np.savez(folder / "data.npz", x=data)
    answer = _quantize_here(
        Request(
            str(save(source, folder / "net.onnx")), str(folder / "out.onnx"), str(folder / "data.npz"), "minmax",
            portable, activations=activations, per_channel=per_channel, quantize_io=quantize_io,
        ),
        folder / "work",
    )  # fmt: skip
    return onnx.load(folder / "out.onnx"), answer


def extremes() -> list[dict[str, np.ndarray]]:
    random = np.random.default_rng(5)
    return [
        {"x": np.full((1, 3, 16, 16), 255, np.uint8)},
        {"x": np.zeros((1, 3, 16, 16), np.uint8)},
        {"x": random.choice(np.array([0, 255], np.uint8), (1, 3, 16, 16))},
        {"x": random.integers(0, 256, (1, 3, 16, 16)).astype(np.uint8)},
    ]


def answers(family: Emulated, model: onnx.ModelProto) -> np.ndarray:
    return np.concatenate([outputs[0] for outputs in family.run(model.SerializeToString(), extremes())])


@pytest.mark.parametrize("per_channel", [True, False])
def test_every_processor_gives_the_same_bits(emulated: _GET, per_channel: bool, tmp_path: Path) -> None:
    """Saturating, exact and this machine's kernels, on inputs as large as they get; all 8 bits differ."""
    model, answer = quantized(tmp_path, net(), per_channel=per_channel)
    assert saturating_layers(model) == []
    assert requires_of(model) == ""
    assert {row["layer"] for row in answer["remedies"]} == {"first", "grouped", "again", "classifier"}
    assert {row["remedy"] for row in answer["remedies"]} <= {"none", "scaled", "compensated", "clipped"}
    assert any(row["remedy"] != "none" for row in answer["remedies"])
    expected = answers(emulated("nehalem"), model)
    np.testing.assert_array_equal(answers(emulated("haswell"), model), expected)
    np.testing.assert_array_equal(answers(emulated("host"), model), expected)
    assert len(np.unique(expected)) > 4


def test_all_bits_are_for_exact_kernels_and_say_so(emulated: _GET, tmp_path: Path) -> None:
    """The control: what the remedies prevent does happen."""
    model, answer = quantized(tmp_path, net(), portable=False)
    assert answer["remedies"] == []
    assert requires_of(model) == EXACT_U8S8
    assert {"first", "grouped", "again"} <= set(saturating_layers(model))
    assert (answers(emulated("haswell"), model) != answers(emulated("nehalem"), model)).any()


def test_accuracy_is_kept(tmp_path: Path) -> None:
    """Weights of 7 bits would have twice the steps everywhere; the remedies know where none is needed."""
    (tmp_path / "a").mkdir()
    (tmp_path / "b").mkdir()
    _, full = quantized(tmp_path / "a", net(), portable=False, quantize_io=False)
    _, safe = quantized(tmp_path / "b", net(), quantize_io=False)
    assert full["drift"][0]["cosine"] > 0.99
    assert safe["drift"][0]["cosine"] > 0.99
    assert all(row["cost_db"] < 9 for row in safe["remedies"])


def test_weights_and_biases_that_layers_share_become_their_own(tmp_path: Path) -> None:
    """Two layers with other inputs need other integers of the same weights."""
    model, answer = quantized(tmp_path, net(shared=True), quantize_io=False)
    assert saturating_layers(model) == []
    assert answer["drift"][0]["cosine"] > 0.99


def test_biases_follow_the_scales(tmp_path: Path) -> None:
    """An int32 bias is in steps of the input's scale times the weight's."""
    source = net()
    model, _ = quantized(tmp_path, source, quantize_io=False)
    floats = {value.name: numpy_helper.to_array(value) for value in source.graph.initializer}
    values = {value.name: numpy_helper.to_array(value) for value in model.graph.initializer}
    makers = {node.output[0]: node for node in model.graph.node}
    first = next(node for node in model.graph.node if node.name == "first")
    step, weight, bias = (makers[name] for name in first.input)
    np.testing.assert_allclose(values[bias.input[1]], values[step.input[1]] * values[weight.input[1]], rtol=1e-6)
    np.testing.assert_allclose(
        values[bias.input[0]] * values[bias.input[1]], floats["b0"], atol=values[bias.input[1]].max()
    )


@pytest.mark.parametrize(("activations", "portable"), [("int8", False), ("uint8", True)])
def test_weights_stay_off_the_lowest_integer(activations: str, portable: bool, tmp_path: Path) -> None:
    model, _ = quantized(tmp_path, net(), activations=activations, portable=portable, quantize_io=False)
    arrays = [numpy_helper.to_array(value) for value in model.graph.initializer]
    assert min(array.min() for array in arrays if array.dtype == np.int8 and array.ndim > 1) >= -127


def fused(model: onnx.ModelProto, folder: Path) -> onnx.ModelProto:
    options = onnxruntime.SessionOptions()
    options.graph_optimization_level = onnxruntime.GraphOptimizationLevel.ORT_ENABLE_EXTENDED
    options.optimized_model_filepath = str(folder / "fused.onnx")
    onnxruntime.InferenceSession(model.SerializeToString(), options, providers=["CPUExecutionProvider"])
    return onnx.load(folder / "fused.onnx")


@pytest.mark.parametrize("portable", [False, True])
def test_fused_files_are_read_as_well(portable: bool, tmp_path: Path) -> None:
    """Integer operators keep the order of the weights."""
    model, _ = quantized(tmp_path, net(), portable=portable)
    optimized = fused(model, tmp_path)
    assert {"QLinearConv", "QGemm"} <= {node.op_type for node in optimized.graph.node}
    assert len(saturating_layers(optimized)) == len(saturating_layers(model))
    assert bool(saturating_layers(optimized)) != portable


def test_signed_activations_between_float_operators_saturate_too(emulated: _GET, tmp_path: Path) -> None:
    """On x86 the runtime makes them unsigned, so such a file is no way out."""
    model, _ = quantized(tmp_path, net(), portable=False, activations="int8")
    assert saturating_layers(model)
    feeds = [{"x": (feed["x"].astype(np.int16) - 128).astype(np.int8)} for feed in extremes()]
    data = model.SerializeToString()
    haswell, nehalem = (emulated(name).run(data, feeds) for name in ("haswell", "nehalem"))
    assert any((one[0] != other[0]).any() for one, other in zip(haswell, nehalem, strict=True))


def product(op_type: str, weight: np.ndarray, x_type: int, **attributes: Any) -> onnx.ModelProto:
    """Return one integer operator as other tools write it."""
    x = helper.make_tensor_value_info("x", x_type, None)
    y = helper.make_tensor_value_info("y", TensorProto.INT32, None)
    domain = {"domain": "com.microsoft"} if op_type == "DynamicQuantizeMatMul" else {}
    node = helper.make_node(op_type, ["x", "w"], ["y"], "one", **domain, **attributes)
    return helper.make_model(helper.make_graph([node], "g", [x], [y], [numpy_helper.from_array(weight, "w")]))


@pytest.mark.parametrize(
    ("op_type", "shape", "x_type", "attributes", "expected"),
    [
        ("MatMulInteger", (8, 4), TensorProto.UINT8, {}, ["one"]),
        ("MatMulInteger", (8, 4), TensorProto.INT8, {}, []),
        ("DynamicQuantizeMatMul", (8, 4), TensorProto.FLOAT, {}, ["one"]),
        ("ConvInteger", (4, 2, 3, 3), TensorProto.UINT8, {"group": 2}, ["one"]),
        ("ConvInteger", (4, 1, 3, 3), TensorProto.UINT8, {"group": 4}, []),
        ("ConvInteger", (8, 1, 3, 3), TensorProto.UINT8, {"group": 4}, ["one"]),
    ],
)
def test_operators_of_other_tools(
    op_type: str, shape: tuple[int, ...], x_type: int, attributes: dict[str, Any], expected: list[str]
) -> None:
    """Signed activations and depthwise convolutions are exact."""
    assert saturating_layers(product(op_type, np.full(shape, 100, np.int8), x_type, **attributes)) == expected
    assert saturating_layers(product(op_type, np.full(shape, 64, np.int8), x_type, **attributes)) == []


def test_what_is_a_pair_is_the_kernels_order(emulated: _GET) -> None:
    """Large weights that never meet are safe: neighbors are columns' neighbors, and channels' neighbors."""
    rows = np.zeros((8, 4), np.int8)
    rows[::2] = 127
    for weight, expected in ((rows, []), (rows.T.repeat(2, 0).copy(), ["one"])):
        model = product("MatMulInteger", weight, TensorProto.UINT8)
        model.opset_import[0].version, model.ir_version = 17, 8
        assert saturating_layers(model) == expected
        x = np.full((1, 8), 255, np.uint8)
        ((found,),) = emulated("haswell").run(model.SerializeToString(), [{"x": x}])
        assert (found == x.astype(int) @ weight.astype(int)).all() == (not expected)
    kernel = np.zeros((1, 2, 3, 3), np.int8)
    kernel[:, 0] = 127
    assert saturating_layers(product("ConvInteger", kernel, TensorProto.UINT8)) == []
    kernel = np.zeros((1, 2, 3, 3), np.int8)
    kernel[:, :, 0, 0] = 127
    assert saturating_layers(product("ConvInteger", kernel, TensorProto.UINT8)) == ["one"]
