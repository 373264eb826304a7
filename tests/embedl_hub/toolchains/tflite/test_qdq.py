"""Q/DQ files to INT8 TFLite: the file's own integers and scales, and a name for whatever stays float."""

from __future__ import annotations

import importlib.util
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import onnx
import pytest
from ai_edge_litert import schema_py_generated as schema
from onnx import numpy_helper
from support.litert_parity import BOUNDS, Row, parity
from support.qdq import Graph
from support.quantized import as_written

from embedl_deploy.dialect import check
from embedl_hub.core import HubContext
from embedl_hub.core.compile import CompileError, TFLiteCompiledModel, TFLiteCompiler
from embedl_hub.core.device import Device
from embedl_hub.core.invoke import TFLiteInvoker
from embedl_hub.machine.environment import CACHE_VARIABLE
from embedl_hub.toolchains.tflite.compile import _warn_of_floats
from embedl_hub.toolchains.tflite.graph import read_graph
from embedl_hub.toolchains.tflite.placement import layers_of


def _with_bias(net: Graph, weight: str, scale: float, name: str, size: int) -> str:
    """Add an int32 bias in the scale of input times weight."""
    scales = next(numpy_helper.to_array(held) for held in net.constants if held.name == f"{weight}.s")
    net.constant(name, net.random.integers(-3000, 3000, size), np.int32)
    net.constant(f"{name}.s", (scales.astype(np.float64) * scale).astype(np.float32))
    net.constant(f"{name}.z", np.zeros(size), np.int32)
    return net.node("DequantizeLinear", [name, f"{name}.s", f"{name}.z"], f"{name}.d", axis=0)


def branching_net() -> onnx.ModelProto:
    """Return a net of the litert dialect: convolutions, an addition, a pool, a sigmoid; its head ends in floats."""
    net = Graph()
    x = net.qdq(net.input("x", [1, 3, 12, 12]), 0.03, 5)
    weights = [net.weight("w1", (8, 3, 3, 3)), _with_bias(net, "w1", 0.03, "b1", 8)]
    first = net.node("Relu", [net.node("Conv", [x, *weights], "c1", pads=[1, 1, 1, 1])], "r1")
    first = net.qdq(first, 0.05, -128)
    weights = [net.weight("w2", (8, 1, 3, 3)), _with_bias(net, "w2", 0.05, "b2", 8)]
    second = net.qdq(net.node("Conv", [first, *weights], "c2", pads=[1, 1, 1, 1], group=8), 0.06, 3)
    added = net.qdq(net.node("Add", [first, second], "sum"), 0.08, -10)
    pooled = net.qdq(net.node("MaxPool", [added], "max", kernel_shape=[2, 2], strides=[2, 2]), 0.08, -10)
    gate = net.qdq(net.node("Sigmoid", [pooled], "gate"), 1 / 256, -128)
    net.node("Identity", [gate], "map")
    mean = net.qdq(net.node("GlobalAveragePool", [pooled], "mean"), 0.04, -20)
    net.constant("shape", [1, 8], np.int64)
    flat = net.qdq(net.node("Reshape", [mean, "shape"], "flat"), 0.04, -20)
    product = net.node("MatMul", [flat, net.weight("w3", (8, 5), axis=1)], "product")
    net.node("Add", [product, _with_bias(net, "w3", 0.04, "b3", 5)], "y")
    return net.model("y", "map")


class Compiled(NamedTuple):
    """A net, its file and what became of it."""

    net: onnx.ModelProto
    model: TFLiteCompiledModel
    ends: TFLiteCompiledModel
    home: Path


@pytest.fixture(scope="module")
def branching(converter: Path, tmp_path_factory: pytest.TempPathFactory) -> Compiled:
    """The net above, with float and with integer ends; really converted."""
    folder = tmp_path_factory.mktemp("qdq")
    (folder / "converters").symlink_to(converter)
    net = branching_net()
    onnx.save(net, folder / "net.onnx")
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv(CACHE_VARIABLE, str(folder))
        with HubContext("qdq", home=folder / "home") as ctx:
            made = [TFLiteCompiler().run(ctx, folder / "net.onnx", quantize_io=ends) for ends in (False, True)]
    return Compiled(net, made[0], made[1], folder / "home")


def _graph(model: TFLiteCompiledModel) -> tuple[Any, Any]:
    whole = schema.ModelT.InitFromPackedBuf(model.path.local().read_bytes(), 0)
    return whole, whole.subgraphs[0]


def _bytes_of(whole: Any, tensor: Any) -> int:
    data = whole.buffers[tensor.buffer].data
    return 0 if data is None else len(data)


def _constants(model: TFLiteCompiledModel) -> dict[str, tuple[np.ndarray, Any]]:
    whole, graph = _graph(model)
    kinds = {9: np.int8, 2: np.int32}
    found = {}
    for tensor in graph.tensors:
        data = whole.buffers[tensor.buffer].data
        if data is not None and len(data) and tensor.type in kinds and tensor.quantization is not None:
            values = np.frombuffer(np.asarray(data, np.uint8).tobytes(), kinds[tensor.type]).reshape(tensor.shape)
            found[tensor.name.decode()] = values, tensor.quantization
    return found


def test_integers_and_scales_are_the_files_own(branching: Compiled) -> None:
    """To the bit: weights, biases and their scales, and scale and zero point of every activation."""
    held = {value.name: numpy_helper.to_array(value) for value in branching.net.graph.initializer}
    constants = list(_constants(branching.model).values())
    for weight, order, bias in (("w1", (0, 2, 3, 1), "b1"), ("w2", (1, 2, 3, 0), "b2")):
        wanted = np.transpose(held[weight], order)
        (scheme,) = [found[1] for found in constants if np.array_equal(found[0], wanted)]
        np.testing.assert_array_equal(np.asarray(scheme.scale, np.float32), held[f"{weight}.s"].astype(np.float32))
        assert not np.any(scheme.zeroPoint)
        assert any(np.array_equal(found[0], held[bias]) for found in constants)
    _, graph = _graph(branching.model)
    schemes = (tensor.quantization for tensor in graph.tensors if tensor.type == 9)
    numbers = {
        (np.float32(one.scale[0]), one.zeroPoint[0]) for one in schemes if one is not None and len(one.scale) == 1
    }
    formats = {(0.03, 5), (0.05, -128), (0.06, 3), (0.08, -10), (1 / 256, -128), (0.04, -20)}
    assert numbers == {(np.float32(scale), zero) for scale, zero in formats}


def test_floats_that_became_integers_are_gone(branching: Compiled) -> None:
    """The model holds each weight once: floats are those of the head alone."""
    whole, graph = _graph(branching.model)
    sizes = [_bytes_of(whole, tensor) // 4 for tensor in graph.tensors if tensor.type == 0]
    assert sorted(size for size in sizes if size) == [5, 40]


def test_what_stays_float_is_named_with_its_nodes(branching: Compiled) -> None:
    """The head has no Q behind it, and nothing else is left."""
    (left,) = branching.model.quantization["left_float"]
    assert left["node"] == "MatMul:product, Add:y"
    assert "no Q on its output" in left["reason"]
    assert branching.model.quantization["integer_operators"] == 7
    assert branching.model.quantization["float_operators"] == 1


def test_layers_lead_back_to_the_file(branching: Compiled) -> None:
    """A layer that stands for several nodes has the first one's name."""
    assert {"Conv:c1", "Conv:c2", "Add:sum", "MaxPool:max", "Sigmoid:gate", "MatMul:product"} <= set(
        branching.model.source_of_tensors.values()
    )


def test_the_runtime_tells_what_ran_in_integers(branching: Compiled, monkeypatch: pytest.MonkeyPatch) -> None:
    """For every node of the file; what moves or converts numbers is neither."""
    monkeypatch.setenv(CACHE_VARIABLE, str(branching.home.parent))
    rows = layers_of(branching.home.parent / "net.onnx")
    ran = {node: row.integer for row in rows for node in row.source_nodes if row.integer is not None}
    integers = ("Conv:c1", "Relu:r1", "Conv:c2", "Add:sum", "MaxPool:max", "Sigmoid:gate", "GlobalAveragePool:mean")
    assert ran == {**dict.fromkeys(integers, True), "MatMul:product": False, "Add:y": False}
    assert {row.op_type for row in rows if row.integer is None} == {"QUANTIZE", "DEQUANTIZE", "RESHAPE"}
    assert {row.provider for row in rows} == {"XNNPACK"}


def _gelu_of_five(net: Graph, x: str) -> str:
    for name, value in (("root", 2**0.5), ("one", 1.0), ("a.half", 0.5)):
        net.constant(name, value)
    curve = net.node("Erf", [net.node("Div", [x, "root"], "narrow")], "curve")
    product = net.node("Mul", [x, net.node("Add", [curve, "one"], "above")], "product")
    return net.node("Mul", [product, "a.half"], "half")


def test_what_deploy_predicts_is_what_runs() -> None:
    """What a kernel prescribes, and what runs in integers between Q/DQ though ours have none there."""
    net = Graph()
    x = net.qdq(net.input("x", [1, 8, 12, 12]), 0.05, -128)
    free, fixed = (net.qdq(net.node("Sigmoid", [x], f"s{size}"), 1 / size, -128) for size in (255, 256))
    odd, same, valid = (
        net.qdq(net.node("MaxPool", [x], name, kernel_shape=[3, 3], strides=[stride] * 2, pads=[pad] * 4), 0.05, -128)
        for name, stride, pad in (("odd", 2, 1), ("same", 1, 1), ("valid", 3, 0))
    )
    less = net.qdq(net.node("Sub", [same, fixed], "less"), 0.06, -100)
    net.constant("two", 2.0)
    square = net.qdq(net.node("Pow", [less, "two"], "square"), 0.2, -128)
    even = net.qdq(
        net.node("AveragePool", [square], "even", kernel_shape=[2, 2], strides=[2, 2], ceil_mode=1), 0.2, -128
    )
    mean = net.qdq(net.node("ReduceMean", [even], "mean", axes=[2, 3]), 0.15, -120)
    smooth = net.qdq(_gelu_of_five(net, less), 0.05, -120)
    net.constant("term", 72, np.int8)
    net.constant("term.s", 0.01)
    net.constant("term.z", -28, np.int8)
    term = net.node("DequantizeLinear", ["term", "term.s", "term.z"], "term.d")
    more = net.qdq(net.node("Add", [smooth, term], "more"), 0.06, -120)
    deep = net.qdq(net.node("SpaceToDepth", [same], "deep", blocksize=2), 0.05, -128)
    contract = check(net.model(free, odd, valid, mean, more, deep), "litert")
    assert contract.disagreements == (), str(contract)
    assert {row.node for row in contract.rows if row.is_integer} == {
        "Sigmoid:s256", "MaxPool:same", "MaxPool:valid", "Sub:less", "Pow:square", "AveragePool:even",
        "ReduceMean:mean", "Erf:curve", "Add:more", "SpaceToDepth:deep",
    }  # fmt: skip
    assert {row.state for row in contract.rows if row.node in ("Div:narrow", "Mul:half")} == {"taken"}
    reasons = {row.node: row.reason for row in contract.rows}
    assert "writes scale 0.00390625 and zero point -128 alone" in reasons["Sigmoid:s255"]
    assert "VALID or SAME" in reasons["MaxPool:odd"]


def test_without_the_runtime_nobody_is_asked(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Whoever asks learns how to install it."""
    monkeypatch.setattr(importlib.util, "find_spec", lambda name: None)
    with pytest.raises(ImportError, match="edgeproof-hub\\[tflite\\]"):
        layers_of(tmp_path / "net.onnx")


def test_answers_are_those_of_the_file(branching: Compiled, here: Device) -> None:
    """Within what one step of the addition, where kernels round differently, is worth behind it."""
    by_name = {row["name"]: row for row in branching.model.quantization["difference"]}
    worth = 0.08 / 4 + 1 / 256  # a sigmoid's slope is at most a quarter
    assert by_name["map"]["steps"] <= worth * 256
    assert by_name["y"]["steps"] is None
    data = np.random.default_rng(5).normal(size=(1, 3, 12, 12)).astype(np.float32)
    session = as_written(branching.net)
    expected = dict(zip(("y", "map"), session.run(["y", "map"], {"x": data}), strict=True))
    with HubContext("qdq", devices=[here], home=branching.home) as ctx:
        answer = TFLiteInvoker().run(ctx, branching.model, {"x": data}).output
    assert np.abs(answer["map"] - expected["map"]).max() <= worth
    # A step of the pool's output in each channel would be worth more than this.
    assert np.abs(answer["y"] - expected["y"]).max() <= 0.04 * 127 * 0.01


def test_ends_are_integers_on_demand(branching: Compiled) -> None:
    """Where the file rounds them."""
    ends = branching.ends.tensors
    (entry,) = ends["inputs"]
    assert (entry["compiled_dtype"], entry["scale"], entry["zero_point"]) == ("int8", np.float32(0.03), 5)
    by_name = {tensor["name"]: tensor for tensor in ends["outputs"]}
    assert by_name["map"]["compiled_dtype"] == "int8"
    assert by_name["y"]["compiled_dtype"] == "float32"
    assert by_name["map"]["axes"] == [0, 2, 3, 1]


def _one_layer(kind: str = "int8", zero: int = 0) -> onnx.ModelProto:
    net = Graph()
    low = {"uint8": 128}.get(kind, 0)
    x = net.qdq(net.input("x", [1, 6]), 0.03, zero + low, kind)
    gate = net.qdq(net.node("Sigmoid", [x], "gate"), 0.01, 0, "int8")
    net.node("Identity", [gate], "y")
    return net.model("y")


def test_a_foreign_file_is_taken_where_its_numbers_fit(cache: Path, tmp_path: Path) -> None:
    """Unsigned integers are the same numbers; a scale that LiteRT prescribes otherwise is named, not replaced."""
    onnx.save(_one_layer("uint8"), tmp_path / "net.onnx")
    with HubContext("qdq", home=tmp_path / "home") as ctx:
        model = TFLiteCompiler().run(ctx, tmp_path / "net.onnx")
    (left,) = model.quantization["left_float"]
    assert left["node"] == "Sigmoid:gate"
    assert "prescribes scale 0.00390625 and zero point -128" in left["reason"]
    (row,) = model.quantization["difference"]
    assert row["steps"] <= 1


def test_calibration_data_for_a_quantized_file_is_refused(cache: Path, tmp_path: Path) -> None:
    """Its numbers are its own."""
    onnx.save(_one_layer(), tmp_path / "net.onnx")
    data = {"x": np.zeros((2, 6), np.float32)}
    with HubContext("qdq", home=tmp_path / "home") as ctx, pytest.raises(CompileError, match="Q/DQ of its own"):
        TFLiteCompiler().run(ctx, tmp_path / "net.onnx", calibration_data=data)


def test_a_file_whose_ends_are_integers_is_refused_in_words(cache: Path, tmp_path: Path) -> None:
    """With the node, and what to do instead."""
    net = _one_layer()
    first = next(node for node in net.graph.node if node.op_type == "QuantizeLinear")
    reader = next(node for node in net.graph.node if node.input[0] == first.output[0])
    reader.input[0] = "x"
    net.graph.node.remove(first)
    net.graph.input[0].type.tensor_type.elem_type = onnx.TensorProto.INT8
    onnx.save(net, tmp_path / "net.onnx")
    with (
        HubContext("qdq", home=tmp_path / "home") as ctx,
        pytest.raises(CompileError, match=r"'x' is integers in the file \(node .*quantize_io"),
    ):
        TFLiteCompiler().run(ctx, tmp_path / "net.onnx")


def operators_net() -> onnx.ModelProto:
    """Return a net with every integer operator that the net above has not, each behind its own boundary."""
    net = Graph(opset=20)
    x = net.qdq(net.input("x", [1, 8, 12]), 0.03, 3)
    for name, (kind, scale, zero) in {
        "leaky": ("LeakyRelu", 0.025, -80), "swish": ("HardSwish", 0.02, -110), "gelu": ("Gelu", 0.02, -115),
        "tanh": ("Tanh", 1 / 128, 0), "soft": ("Softmax", 1 / 256, -128),
    }.items():  # fmt: skip
        net.node("Identity", [net.qdq(net.node(kind, [x], name), scale, zero)], f"{name}.y")
    turned = net.qdq(net.node("Transpose", [x], "turned", perm=[0, 2, 1]), 0.03, 3)
    net.node("Identity", [net.qdq(net.node("MatMul", [x, turned], "square"), 0.2, -20)], "square.y")
    net.node("Identity", [net.qdq(net.node("Mul", [x, "leaky.y"], "times"), 0.07, 10)], "times.y")
    weights = [net.weight("w", (12, 6), axis=1)]
    net.node("Identity", [net.qdq(net.node("MatMul", [x, *weights], "linear"), 0.05, 2)], "linear.y")
    names = ("leaky", "swish", "gelu", "tanh", "soft", "square", "times", "linear")
    return net.model(*[f"{name}.y" for name in names])


def factors_net() -> onnx.ModelProto:
    """Return a net that rounds where a converter would carry a factor into the weights before it."""
    net = Graph()
    x = net.qdq(net.input("x", [1, 3, 12, 12]), 0.03, 5)
    first = net.node("Relu", [net.node("Conv", [x, net.weight("w1", (8, 3, 3, 3))], "c1", pads=[1, 1, 1, 1])], "r1")
    lows = {"scale": 0.5, "shift": -1.0, "middle": -1.0, "variance": 0.5}
    numbers = [net.constant(name, net.random.uniform(low, 2.0, 8)) for name, low in lows.items()]
    normed = net.node("BatchNormalization", [net.qdq(first, 0.05, -128), *numbers], "norm")
    second = net.qdq(net.node("Conv", [net.qdq(normed, 0.04, -20), net.weight("w2", (8, 8, 1, 1))], "c2"), 0.06, 3)
    mean = net.qdq(net.node("GlobalAveragePool", [second], "mean"), 0.06, 3)
    squeezed = net.qdq(net.node("Conv", [mean, net.weight("w3", (8, 8, 1, 1))], "c3"), 0.05, 2)
    gate = net.qdq(net.node("HardSigmoid", [squeezed], "gate", alpha=1 / 6, beta=0.5), 1 / 256, -128)
    gated = net.qdq(net.node("Mul", [second, gate], "gated"), 0.05, 4)
    last = net.node("Conv", [gated, net.weight("w4", (6, 8, 1, 1))], "c4")
    net.node("Identity", [net.qdq(last, 0.07, -3)], "y")
    return net.model("y")


def test_factors_stay_behind_a_rounding(cache: Path, tmp_path: Path) -> None:
    """Every weight is the file's own, though a constant factor stands behind each; nothing is left of the fences."""
    net = factors_net()
    onnx.save(net, tmp_path / "net.onnx")
    with HubContext("qdq", home=tmp_path / "home") as ctx:
        model = TFLiteCompiler().run(ctx, tmp_path / "net.onnx")
    assert not [row for row in model.quantization["left_float"] if "Conv" in row["node"]]
    held = {value.name: numpy_helper.to_array(value) for value in net.graph.initializer}
    integers = [values for values, _ in _constants(model).values()]
    for weight in ("w1", "w2", "w3", "w4"):
        wanted = np.transpose(held[weight], (0, 2, 3, 1))
        assert any(np.array_equal(wanted, values) for values in integers), weight
    assert "LEAKY_RELU" not in {layer.op_type for layer in read_graph(model.path.local()).operators}
    (row,) = model.quantization["difference"]
    assert row["steps"] <= 2


def test_what_changes_nothing_on_this_data_is_still_an_operator(cache: Path, tmp_path: Path) -> None:
    """A factor of 1 is told by name, as its values are its operand's; a transposed convolution keeps its bias."""
    net = Graph()
    x = net.qdq(net.input("x", [1, 8, 6, 6]), 0.03, 5)
    weights = [net.weight("w1", (8, 4, 2, 2), axis=1), _with_bias(net, "w1", 0.03, "b1", 4)]
    wide = net.qdq(net.node("ConvTranspose", [x, *weights], "wide", strides=[2, 2]), 0.06, 3)
    net.constant("ones", np.full((4, 1, 1), 100), np.int8)
    net.constant("ones.s", 0.01)
    net.constant("ones.z", 0, np.int8)
    ones = net.node("DequantizeLinear", ["ones", "ones.s", "ones.z"], "ones.d")
    same = net.qdq(net.node("Mul", [wide, ones], "same"), 0.05, 2)
    net.node("Identity", [net.qdq(net.node("Conv", [same, net.weight("w2", (4, 4, 1, 1))], "last"), 0.07, -3)], "y")
    onnx.save(net.model("y"), tmp_path / "net.onnx")
    with HubContext("qdq", home=tmp_path / "home") as ctx:
        model = TFLiteCompiler().run(ctx, tmp_path / "net.onnx")
    assert model.quantization["left_float"] == []
    kinds = [layer.op_type for layer in read_graph(model.path.local()).operators]
    assert sorted({"MUL", "TRANSPOSE_CONV", "ADD"} & set(kinds)) == ["MUL", "TRANSPOSE_CONV"]
    (row,) = model.quantization["difference"]
    assert row["steps"] <= 2


def test_channels_before_a_pixel_shuffle_are_ordered_in_the_weights(cache: Path, tmp_path: Path) -> None:
    """ONNX counts them otherwise than TFLite: the convolution writes them so, and no GATHER is left."""
    net = Graph()
    x = net.qdq(net.input("x", [1, 8, 6, 6]), 0.03, 5)
    weights = [net.weight("w1", (16, 8, 1, 1)), _with_bias(net, "w1", 0.03, "b1", 16)]
    first = net.qdq(net.node("Relu", [net.node("Conv", [x, *weights], "c1")], "r1"), 0.05, -128)
    up = net.qdq(net.node("DepthToSpace", [first], "up", blocksize=2, mode="CRD"), 0.05, -128)
    net.node("Identity", [net.qdq(net.node("Conv", [up, net.weight("w2", (4, 4, 1, 1))], "c2"), 0.06, 3)], "y")
    onnx.save(net.model("y"), tmp_path / "net.onnx")
    with HubContext("qdq", home=tmp_path / "home") as ctx:
        model = TFLiteCompiler().run(ctx, tmp_path / "net.onnx")
    kinds = [layer.op_type for layer in read_graph(model.path.local()).operators]
    assert kinds == ["QUANTIZE", "CONV_2D", "DEPTH_TO_SPACE", "CONV_2D", "DEQUANTIZE"]
    assert model.quantization["left_float"] == []
    (row,) = model.quantization["difference"]
    assert row["steps"] <= 1


def _parities(model: TFLiteCompiledModel, shape: tuple[int, ...]) -> list[Row]:
    (entry,) = model.tensors["inputs"]
    random = np.random.default_rng(3)
    feeds = [{entry["compiled_name"]: random.normal(size=shape).astype(np.float32) * 1.5} for _ in range(3)]
    return parity(model.path.local(), feeds)


def test_kernels_differ_from_the_file_by_what_is_written_down(branching: Compiled) -> None:
    """Each on the same integers, by XNNPACK and by the runtime's own kernels; what moves integers moves them all."""
    rows = _parities(branching.model, (1, 12, 12, 3))
    assert {"CONV_2D", "DEPTHWISE_CONV_2D", "ADD", "MEAN", "LOGISTIC", "MAX_POOL_2D"} <= {row.op_type for row in rows}
    for row in rows:
        allowed = BOUNDS.get(row.op_type, (0, 0))
        assert row.xnnpack <= allowed[0], row
        assert row.builtin <= allowed[1], row


def test_tables_and_products_differ_by_what_is_written_down(cache: Path, tmp_path: Path) -> None:
    """The operators of transformers and activations."""
    onnx.save(operators_net(), tmp_path / "net.onnx")
    with HubContext("qdq", home=tmp_path / "home") as ctx:
        model = TFLiteCompiler().run(ctx, tmp_path / "net.onnx")
    assert model.quantization["left_float"] == []
    rows = _parities(model, tuple(model.tensors["inputs"][0]["compiled_shape"]))
    kinds = {"LEAKY_RELU", "HARD_SWISH", "GELU", "TANH", "SOFTMAX", "BATCH_MATMUL", "MUL", "FULLY_CONNECTED"}
    assert kinds <= {row.op_type for row in rows}
    for row in rows:
        allowed = BOUNDS.get(row.op_type, (0, 0))
        assert row.xnnpack <= allowed[0], row
        assert row.builtin <= allowed[1], row


def test_operators_that_lose_their_integers_are_named(caplog: pytest.LogCaptureFixture) -> None:
    """Those that cost time, three of them by name; what only moves data is in the record alone."""
    rows = [{"node": f"conv{at}", "op_type": "CONV_2D", "reason": "no Q on its output"} for at in range(4)]
    _warn_of_floats({"left_float": [*rows, {"node": "flat", "op_type": "RESHAPE", "reason": "two scales"}]})
    (record,) = caplog.records
    assert record.getMessage() == (
        "4 of the file's INT8 operators run in float in LiteRT: conv0 (no Q on its output), "
        "conv1 (no Q on its output), conv2 (no Q on its output) and 1 more."
    )
    caplog.clear()
    _warn_of_floats({"left_float": ["SOFTMAX"]})
    assert caplog.records == []
