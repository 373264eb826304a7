"""OpenVINO's dialect: what melts into a kernel has no Q/DQ inside, and OpenVINO itself confirms it."""

from __future__ import annotations

import numpy as np
import onnx
import pytest
from onnx import TensorProto, helper, numpy_helper
from support.qdq import Graph

from embedl_deploy.dialect import check, lower


def pair(tensor: str, scale: float, zero: int) -> tuple[list[onnx.NodeProto], list[onnx.TensorProto]]:
    """Return Q and DQ of a tensor, and their constants."""
    constants = [
        numpy_helper.from_array(np.asarray(scale, np.float32), f"{tensor}/s"),
        numpy_helper.from_array(np.asarray(zero, np.uint8), f"{tensor}/z"),
    ]
    ends = [f"{tensor}/s", f"{tensor}/z"]
    nodes = [
        helper.make_node("QuantizeLinear", [tensor, *ends], [f"{tensor}/q"], name=f"{tensor}/q"),
        helper.make_node("DequantizeLinear", [f"{tensor}/q", *ends], [f"{tensor}/dq"], name=f"{tensor}/dq"),
    ]
    return nodes, constants


def gated(activation: str) -> onnx.ModelProto:
    """Return conv → activation · its input → conv, rounded before and after everything, as for kernels of integers."""
    codes = np.random.default_rng(0).integers(-100, 100, (8, 8, 3, 3)).astype(np.int8)
    constants = [numpy_helper.from_array(codes, "w"), numpy_helper.from_array(np.asarray(0.01, np.float32), "w/s")]
    nodes = [helper.make_node("DequantizeLinear", ["w", "w/s"], ["w/dq"], name="w/dq")]
    steps = [
        ("x", 0.02, 128, None),
        ("c", 0.05, 128, helper.make_node("Conv", ["x/dq", "w/dq"], ["c"], name="conv1", pads=[1] * 4)),
        ("g", 1 / 255, 0, helper.make_node(activation, ["c/dq"], ["g"], name="gate")),
        ("m", 0.03, 20, helper.make_node("Mul", ["c/dq", "g/dq"], ["m"], name="product")),
    ]
    for tensor, scale, zero, node in steps:
        made, more = pair(tensor, scale, zero)
        nodes += [*([node] if node is not None else []), *made]
        constants += more
    nodes.append(helper.make_node("Conv", ["m/dq", "w/dq"], ["y"], name="conv2", pads=[1] * 4))
    shape = [1, 8, 12, 12]
    graph = helper.make_graph(
        nodes, "net", [helper.make_tensor_value_info("x", TensorProto.FLOAT, shape)],
        [helper.make_tensor_value_info("y", TensorProto.FLOAT, shape)], constants,
    )  # fmt: skip
    return helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=8)


def test_silu_melts_into_the_convolution() -> None:
    """Q/DQ inside it go; the prediction says who takes it, and OpenVINO's own layers agree."""
    before, after = (check(model, "openvino") for model in (gated("Sigmoid"), lower(gated("Sigmoid"), "openvino")))
    states = {row.node: row.state for row in after.rows if row.operator in {"Conv", "Sigmoid", "Mul"}}
    assert states == {"conv1": "integer", "gate": "taken", "product": "taken", "conv2": "integer"}
    assert {row.node: row.state for row in before.rows}["gate"] != "taken"
    assert after.disagreements == ()
    assert "Confirmed by the layers that openvino ran" in after.confirmed


@pytest.mark.parametrize("activation", ["HardSwish", "Gelu", "LeakyRelu", "Elu", "Tanh", "Sigmoid", "Relu"])
def test_activations_melt(activation: str) -> None:
    """One that nobody rounds before is part of the convolution."""
    model = gated("Sigmoid")
    gate, product = (next(node for node in model.graph.node if node.name == name) for name in ("gate", "product"))
    gate.op_type = activation
    gate.input[0] = "c"
    if activation == "Gelu":
        model.opset_import[0].version = 20
    for name in ("c/q", "c/dq", "g/q", "g/dq"):
        model.graph.node.remove(next(node for node in model.graph.node if node.name == name))
    product.op_type = "Identity"
    del product.input[:]
    product.input.append("g")
    contract = check(model, "openvino")
    assert {row.node: row.state for row in contract.rows}["gate"] == "taken"
    assert contract.disagreements == ()


def squeezed(*, both_rounded: bool) -> onnx.ModelProto:
    """Return conv · Sigmoid(conv of its mean) → conv, the mean and the product behind one rounding or behind none."""
    model = gated("Sigmoid")
    gate, product = (next(node for node in model.graph.node if node.name == name) for name in ("gate", "product"))
    mean = helper.make_node("GlobalAveragePool", ["c/dq" if both_rounded else "c"], ["p"], name="mean")
    inner = helper.make_node("Conv", ["p/dq", "w1/dq"], ["e"], name="inner")
    made, constants = pair("p", 0.04, 128)
    more, others = pair("e", 0.05, 128)
    codes = np.random.default_rng(1).integers(-100, 100, (8, 8, 1, 1)).astype(np.int8)
    weight = helper.make_node("DequantizeLinear", ["w1", "w/s"], ["w1/dq"], name="w1/dq")
    gate.input[0] = "e/dq"
    nodes = list(model.graph.node)
    at = nodes.index(gate)
    nodes[at:at] = [weight, mean, *made, inner, *more]
    del model.graph.node[:]
    model.graph.node.extend(nodes)
    model.graph.initializer.extend([*constants, *others, numpy_helper.from_array(codes, "w1")])
    assert product.input[0] == "c/dq"
    return model


@pytest.mark.parametrize("both_rounded", [True, False])
def test_what_a_product_computes_in_follows_from_who_else_reads(both_rounded: bool) -> None:
    """A rounding that a reduction takes as well stays an integer; one that only the product reads is a float."""
    contract = check(squeezed(both_rounded=both_rounded), "openvino")
    rows = {row.node: row for row in contract.rows}
    assert rows["mean"].state == ("integer" if both_rounded else "float")
    assert rows["product"].is_integer
    assert contract.disagreements == ()


def test_a_sum_melts_into_one_of_its_convolutions() -> None:
    """The convolution that only the sum reads does it; a second sum behind it is a kernel of its own."""
    model = gated("Sigmoid")
    nodes = {node.name: node for node in model.graph.node}
    nodes["gate"].CopyFrom(helper.make_node("Conv", ["c/dq", "w/dq"], ["g"], name="gate", pads=[1] * 4))
    nodes["product"].op_type = "Add"
    contract = check(model, "openvino")
    assert {row.node: row.state for row in contract.rows}["product"] == "taken"
    assert contract.disagreements == ()


def test_a_product_of_two_activations_is_float() -> None:
    """Its operands have a zero point, which the kernel for integers does not take on both sides."""
    shape = [1, 8, 12, 12]
    first, constants = pair("x", 0.02, 128)
    second, more = pair("z", 0.03, 100)
    product = helper.make_node("MatMul", ["x/dq", "z/dq"], ["y"], name="product")
    ends = [helper.make_tensor_value_info(name, TensorProto.FLOAT, shape) for name in ("x", "z", "y")]
    graph = helper.make_graph([*first, *second, product], "net", ends[:2], ends[2:], [*constants, *more])
    model = helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=8)
    contract = check(model, "openvino")
    assert {row.node: row.is_integer for row in contract.rows}["product"] is False
    assert contract.disagreements == ()


def test_openvino_reads_an_int32_bias() -> None:
    """Files of other tools have one; it is no reason to refuse a convolution."""
    model = gated("Sigmoid")
    conv = next(node for node in model.graph.node if node.name == "conv1")
    bias = helper.make_node("DequantizeLinear", ["b", "b/s"], ["b/dq"], name="b/dq")
    conv.input.append("b/dq")
    model.graph.node.insert(0, bias)
    model.graph.initializer.extend(
        [
            numpy_helper.from_array(np.arange(8, dtype=np.int32), "b"),
            numpy_helper.from_array(np.asarray(0.02 * 0.01, np.float32), "b/s"),
        ]
    )
    contract = check(model, "openvino")
    assert {row.node: row.state for row in contract.rows}["conv1"] == "integer"
    assert contract.disagreements == ()


def integers(model: onnx.ModelProto) -> set[str]:
    """Return the operators that compute in integers, as predicted and as OpenVINO says."""
    contract = check(model, "openvino")
    assert contract.disagreements == (), str(contract)
    assert "Confirmed by the layers that openvino ran" in contract.confirmed
    return {row.node for row in contract.rows if row.is_integer}


@pytest.mark.parametrize(("middle", "expected"), [(128, True), (100, False)])
def test_a_product_of_two_activations_wants_its_zeros_at_zero(middle: int, expected: bool) -> None:
    """The first from 0 on, the second signed with its zero in the middle: then OpenVINO multiplies integers."""
    net = Graph()
    first = net.qdq(net.input("a", [1, 8, 12, 12]), 0.01, 0, "uint8")
    second = net.qdq(net.input("b", [1, 8, 12, 12]), 0.02, middle, "uint8")
    product = net.qdq(net.node("MatMul", [first, second], "m"), 0.05, 120, "uint8")
    assert ("MatMul:m" in integers(net.model(product))) is expected


@pytest.mark.parametrize(
    ("scale", "zero", "expected"),
    [(0.0035, -128, False), (0.012, -128, True), (0.0039, 0, False), (0.0041, 0, True), (0.0075, -64, False)],
)
def test_a_join_in_int8_is_kept_as_integers_from_a_range_on(scale: float, zero: int, expected: bool) -> None:
    """Found by measurement: where its rounded ends are not two apart the convolution behind it is float."""
    net = Graph()
    value = net.qdq(net.input("x", [1, 8, 12, 12]), 0.02, 3)
    first = net.qdq(net.node("Conv", [value, net.weight("w", (8, 8, 1, 1))], "c"), scale, zero)
    second = net.qdq(net.node("Conv", [first, net.weight("v", (8, 8, 1, 1))], "d"), 0.9 * scale, zero)
    joined = net.qdq(net.node("Concat", [first, second], "j", axis=1), scale, zero)
    last = net.qdq(net.node("Conv", [joined, net.weight("u", (8, 16, 1, 1))], "e"), 0.1, 3)
    assert ("Conv:e" in integers(net.model(last))) is expected


@pytest.mark.parametrize("named", ["as operators", "as their results"])
def test_the_operand_of_a_sum_that_no_convolution_made_stays_an_integer(named: str) -> None:
    """Of two roundings that only a sum reads one takes both scales, the convolution's; whatever nodes are called."""
    net = Graph()
    value, other = (net.qdq(net.input(name, [1, 8, 12, 12]), 0.02, 10, "uint8") for name in ("x", "z"))
    first = net.qdq(net.node("Conv", [value, net.weight("w", (8, 8, 1, 1))], "d"), 0.06, 130, "uint8")
    taken = net.node("Conv", [first, net.weight("v", (8, 8, 1, 1))], "taker")
    second = net.qdq(net.node("Conv", [other, net.weight("u", (8, 8, 1, 1))], "c"), 0.05, 120, "uint8")
    gate = net.qdq(net.node("Sigmoid", [first], "g"), 1 / 255, 0, "uint8")
    gated = net.qdq(net.node("Mul", [first, gate], "m"), 0.02, 0, "uint8")
    total = net.qdq(net.node("Add", [gated, second], "a"), 0.05, 110, "uint8")
    model = net.model(net.node("Conv", [total, net.weight("t", (8, 8, 1, 1))], "e"), taken)
    if named == "as their results":
        for node in model.graph.node:
            node.name = node.output[0]
    assert {"m", "Mul:m"} & integers(model)


@pytest.mark.parametrize("ceils", [0, 1])
def test_an_average_that_rounds_its_size_up_is_float(ceils: int) -> None:
    """Whether there is anything to round up or not."""
    net = Graph()
    value = net.qdq(net.input("x", [1, 8, 12, 12]), 0.02, 10, "uint8")
    first = net.qdq(net.node("Conv", [value, net.weight("w", (8, 8, 1, 1))], "c"), 0.05, 120, "uint8")
    pool = net.node("AveragePool", [first], "p", kernel_shape=[2, 2], strides=[2, 2], ceil_mode=ceils)
    last = net.node("Conv", [net.qdq(pool, 0.05, 120, "uint8"), net.weight("v", (8, 8, 1, 1))], "e")
    assert ("AveragePool:p" in integers(net.model(last))) is (ceils == 0)


@pytest.mark.parametrize(("zero", "expected"), [(0, True), (120, False)])
def test_a_transposed_convolution_wants_its_zero_at_zero(zero: int, expected: bool) -> None:
    """Its kernel makes no correction for another zero point, as those of other convolutions do."""
    net = Graph()
    value = net.qdq(net.input("x", [1, 8, 12, 12]), 0.02, zero, "uint8")
    up = net.node("ConvTranspose", [value, net.weight("w", (8, 4, 2, 2), axis=None)], "up", strides=[2, 2])
    last = net.node("Conv", [net.qdq(up, 0.05, 120, "uint8"), net.weight("v", (8, 4, 1, 1))], "e")
    assert ("ConvTranspose:up" in integers(net.model(last))) is expected


@pytest.mark.parametrize(("mode", "expected"), [("nearest", True), ("linear", False), ("cubic", False)])
def test_only_the_nearest_value_is_resized_in_integers(mode: str, expected: bool) -> None:
    """Others are computed in floats, and rounded behind."""
    net = Graph()
    value = net.qdq(net.input("x", [1, 8, 12, 12]), 0.02, 10, "uint8")
    first = net.qdq(net.node("Conv", [value, net.weight("w", (8, 8, 1, 1))], "c"), 0.05, 120, "uint8")
    net.constant("sizes", [1, 1, 2, 2])
    resized = net.node("Resize", [first, "", "sizes"], "r", mode=mode)
    last = net.node("Conv", [net.qdq(resized, 0.05, 120, "uint8"), net.weight("v", (8, 8, 1, 1))], "e")
    assert ("Resize:r" in integers(net.model(last))) is expected


def _moved(net: Graph, value: str, moves: str, name: str) -> str:
    """Move a value of 1 x 8 x 12 x 12, by the first letters of the moves."""
    for number, move in enumerate(moves):
        result = f"{name}{move}{number}"
        if move == "T":
            value = net.node("Transpose", [value], result, perm=[0, 1, 3, 2])
        elif move == "R":
            net.constant(f"{result}.s", [1, 8, 24, 6], np.int64)
            value = net.node("Reshape", [value, f"{result}.s"], result)
        elif move == "S":
            for end, at in (("b", 0), ("e", 6), ("a", 2)):
                net.constant(f"{result}.{end}", [at], np.int64)
            value = net.node("Slice", [value, *(f"{result}.{end}" for end in "bea")], result)
        elif move == "M":
            value = net.node("MaxPool", [value], result, kernel_shape=[2, 2], strides=[2, 2])
        else:
            net.constant(f"{result}.p", [0, 0, 1, 1, 0, 0, 1, 1], np.int64)
            value = net.node("Pad", [value, f"{result}.p"], result)
    return value


# Behind which moves an operator still computes in integers, with its input's zero at zero and elsewhere.
_MOVED = {
    "Mul": ({"T", "R", "S", "M", "P", "TR", "RT", "ST"}, {"T", "R", "S", "M", "TR", "RT", "ST"}),
    "Neg": ({"T", "R", "S", "P", "TR", "RT", "ST"}, {"T", "R", "S", "TR", "RT", "ST"}),
    "Add": ({"T", "R", "S", "M", "TR", "RT", "ST"}, {"T", "RT"}),
    "Relu": ({"T", "R", "S", "M", "P", "TR", "RT", "ST"}, {"T", "RT"}),
    "Sigmoid": ({"T", "RT"}, {"T", "RT"}),
}


@pytest.mark.parametrize("zero", [0, 120])
def test_a_rounding_behind_moves_is_done_before_a_transpose_alone(zero: int) -> None:
    """And what only scales integers waits for it behind any move."""
    net, ends, wanted = Graph(), [], set()
    for kind, (unshifted, shifted) in _MOVED.items():
        for moves in sorted(unshifted | shifted | {"T", "R", "S", "M", "P", "TR", "RT", "ST"}):
            name = f"{kind}{moves}"
            value = net.qdq(net.input(f"x{name}", [1, 8, 12, 12]), 0.05, 127, "uint8")
            value = net.node("MaxPool", [value], f"p{name}", kernel_shape=[1, 1])
            value = net.qdq(net.node("Transpose", [value], f"t{name}", perm=[0, 1, 3, 2]), 0.05, zero, "uint8")
            more = [net.constant(f"f{name}", 0.7)] if kind in ("Add", "Mul") else []
            value = _moved(net, net.node(kind, [value, *more], name), moves, name)
            value = net.qdq(value, 0.05, 120, "uint8")
            ends.append(net.node("Conv", [value, net.weight(f"w{name}", (4, 8, 1, 1))], f"e{name}"))
            if moves in (shifted if zero else unshifted):
                wanted.add(f"{kind}:{name}")
    assert {name for name in integers(net.model(*ends)) if name.partition(":")[0] in _MOVED} == wanted


@pytest.mark.parametrize("sizes", [[1, 8, 24], [1, 16, 12]])
def test_what_a_concat_joined_is_taken_apart_as_floats(sizes: list[int]) -> None:
    """It has scales along its axis, which a Reshape across that axis cannot keep."""
    net = Graph()
    made = []
    for number in range(2):
        value = net.qdq(net.input(f"x{number}", [1, 8, 12, 1]), 0.05, 127, "uint8")
        made.append(net.qdq(net.node("Neg", [value], f"n{number}"), 0.05, 100 + number, "uint8"))
    joined = net.qdq(net.node("Concat", made, "j", axis=3), 0.05, 110, "uint8")
    net.constant("sizes", sizes, np.int64)
    taken = net.qdq(net.node("Reshape", [joined, "sizes"], "r"), 0.05, 90, "uint8")
    product = net.qdq(net.node("Mul", [taken, net.constant("c", 0.7)], "m"), 0.05, 80, "uint8")
    last = net.node("MatMul", [product, net.weight("w", (sizes[-1], 4), axis=None)], "e")
    assert "Mul:m" not in integers(net.model(last))


def _rounded_convolution(net: Graph, value: str, name: str) -> str:
    """Add a convolution whose result is rounded for two readers, one of them another convolution."""
    made = net.node("Conv", [value, net.weight(f"{name}.w", (8, 8, 1, 1))], name)
    rounded = net.qdq(net.node("Relu", [made], f"{name}.relu"), 0.02, 0, "uint8")
    net.node("Conv", [rounded, net.weight(f"{name}.w2", (8, 8, 1, 1))], f"{name}.side")
    return rounded


@pytest.mark.parametrize(("count", "expected"), [(9, True), (10, False)])
def test_a_kernel_has_room_for_eleven_tensors_and_constants_by_channel(count: int, expected: bool) -> None:
    """What it reads, what it writes and nine factors; the tenth begins another one, and floats go between the two."""
    net = Graph()
    value = _rounded_convolution(net, net.qdq(net.input("x", [1, 8, 12, 12]), 0.02, 128, "uint8"), "first")
    for at in range(count):
        factor = net.constant(f"f{at}", net.random.uniform(0.5, 1.5, (1, 8, 1, 1)))
        value = net.node("Tanh", [net.node("Mul", [value, factor], f"m{at}")], f"t{at}")
    value = net.qdq(value, 0.01, 128, "uint8")
    contract = check(net.model(net.node("Conv", [value, net.weight("w", (8, 8, 1, 1))], "y"), "first.side"), "openvino")
    assert contract.disagreements == (), str(contract)
    assert {row.in_integers for row in contract.rows if row.operator == "Mul"} == {expected}


def test_a_product_without_a_zero_point_takes_over_the_scale() -> None:
    """So whoever makes its operand hands on integers, though a reduction reads them too."""
    net = Graph()
    x = net.qdq(net.input("x", [1, 8, 12, 12]), 0.02, 128, "uint8")
    operands = [_rounded_convolution(net, x, name) for name in ("left", "right")]
    first = net.qdq(net.node("Mul", operands, "first"), 0.01, 0, "uint8")
    mean = net.qdq(net.node("ReduceMean", [first], "mean", axes=[2, 3]), 0.005, 0, "uint8")
    squeezed = net.node("Conv", [mean, net.weight("w1", (8, 8, 1, 1))], "squeezed")
    gate = net.qdq(net.node("HardSigmoid", [squeezed], "gate"), 1 / 255, 0, "uint8")
    second = net.qdq(net.node("Mul", [first, gate], "second"), 0.01, 0, "uint8")
    end = net.node("Conv", [second, net.weight("w2", (8, 8, 1, 1))], "y")
    contract = check(net.model(end, "left.side", "right.side"), "openvino")
    assert contract.disagreements == (), str(contract)
    assert "Mul:first" in {row.node for row in contract.rows if row.in_integers}
