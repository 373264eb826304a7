"""A layer with float weights between quantized neighbors stays float in ONNX Runtime."""

from collections import Counter
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import numpy as np
import onnx
import onnxruntime as ort
import pytest
from support.qdq import Graph

from embedl_deploy.dialect import ONNXRUNTIME_ARM, ONNXRUNTIME_X86, Dialect, check, lower, notes_of

ROUNDER = "WeightBiasQuantization"
EXPOSED = replace(ONNXRUNTIME_X86, rounds_float_weights=False)
Move = Callable[[Graph, str], str]


def uneven(net: Graph, shape: tuple[int, ...], axis: int) -> str:
    """Make a float weight whose channels differ widely: one scale for all of them ruins it."""
    sizes = [shape[axis] if place == axis else 1 for place in range(len(shape))]
    return net.constant("w", net.random.normal(size=shape) * 0.1 * np.exp(2 * net.random.normal(size=sizes)))


def convolutional(
    *,
    before: Move | None = None,
    after: str = "Relu",
    transposed: bool = False,
    groups: int = 1,
    channels: int = 8,
    side: bool = False,
) -> onnx.ModelProto:
    """Return three convolutions, the second (``c``) with float weights."""
    net = Graph(seed=2)
    x = net.qdq(net.input("x", [2, 8, 6, 6]), 0.02)
    net.node("Conv", [x, net.weight("w0", (channels, 8, 1, 1)), net.bias("b0", channels)], "a")
    data = net.qdq(net.node("Relu", ["a"], "ar"), 0.02, -128)
    data = before(net, data) if before else data
    if side:
        net.node("Conv", [data, net.weight("w3", (8, 8, 1, 1)), net.bias("b3", 8)], "side")
    if transposed:
        net.node("ConvTranspose", [data, uneven(net, (channels, 8, 3, 3), 1), net.bias("b", 8)], "c", strides=[2, 2])
    else:
        weight = uneven(net, (8, channels // groups, 1, 1), 0)
        net.node("Conv", [data, weight, net.bias("b", 8)], "c", group=groups)
    result = net.node(after, ["c"], "cr") if after else "c"
    net.node("Conv", [net.qdq(result, 0.05, -128), net.weight("w2", (8, 8, 1, 1)), net.bias("b2", 8)], "y")
    outputs = ("y", "side") if side else ("y",)
    return net.model(*outputs, ranges={name: [-4.0, 4.0] for name in outputs})


def linear(kind: str, shape: list[int | str], *, relu: bool = True) -> onnx.ModelProto:
    """Return two linear layers, the first (``c``) with float weights."""
    net = Graph()
    x, weight, bias = net.qdq(net.input("x", shape), 0.02), uneven(net, (16, 16), 1), net.bias("b", 16)
    if kind == "Gemm":
        last = net.node("Gemm", [x, weight, bias], "c")
    else:
        last = net.node("Add", [net.node("MatMul", [x, weight], "c"), bias], "sum")
    last = net.node("Relu", [last], "cr") if relu else last
    net.node("MatMul", [net.qdq(last, 0.05, -128), net.weight("w2", (16, 16), None)], "y")
    return net.model("y")


def moved(op_type: str, **options: object) -> Move:
    """Put an operator that only moves values between the pair and the layer."""
    return lambda net, data: net.node(op_type, [data], "moved", **options)


def reshaped(net: Graph, data: str) -> str:
    """Put a Reshape there."""
    return net.node("Reshape", [data, net.constant("shape", [2, 8, 36, 1], np.int64)], "moved")


CASES = {
    "conv": convolutional(),
    "no activation": convolutional(after=""),
    "depthwise": convolutional(groups=8),
    "transposed": convolutional(transposed=True),
    "one channel": convolutional(channels=1),
    "behind MaxPool": convolutional(before=moved("MaxPool", kernel_shape=[2, 2], strides=[2, 2])),
    "behind Transpose": convolutional(before=moved("Transpose", perm=[0, 1, 3, 2])),
    "behind Reshape": convolutional(before=reshaped),
    "gemm": linear("Gemm", [4, 16]),
    "matmul": linear("MatMul", [4, 16]),
    "matmul of three dimensions": linear("MatMul", [2, 5, 16], relu=False),
}


def run(model: onnx.ModelProto, folder: Path, *disabled: str) -> tuple[np.ndarray, Counter[str]]:
    """Run a model with default options, but for optimizers that are switched off; return answers and kernels."""
    options = ort.SessionOptions()
    options.optimized_model_filepath = str(folder / "optimized.onnx")
    options.log_severity_level = 3
    session = ort.InferenceSession(
        model.SerializeToString(), options, providers=["CPUExecutionProvider"], disabled_optimizers=list(disabled)
    )
    entry = session.get_inputs()[0]
    sizes = [size if isinstance(size, int) else 3 for size in entry.shape]
    feed = np.random.default_rng(1).normal(size=sizes).astype(np.float32)
    (found,) = session.run(["y"], {entry.name: feed})
    return np.asarray(found), Counter(node.op_type for node in onnx.load(options.optimized_model_filepath).graph.node)


def assert_float(model: onnx.ModelProto, folder: Path) -> None:
    """Check that the optimizer which rounds float weights makes no difference, and that one layer is float."""
    answers, kernels = run(model, folder)
    untouched, wanted = run(model, folder, ROUNDER)
    assert np.array_equal(answers, untouched)
    assert kernels == wanted
    assert kernels & Counter(["Conv", "ConvTranspose", "Gemm", "FusedConv", "FusedGemm"])


def assert_same_file(one: onnx.ModelProto, other: onnx.ModelProto) -> None:
    """Check nodes and constants to the bit; the order of constants says nothing."""
    assert [str(node) for node in one.graph.node] == [str(node) for node in other.graph.node]
    constants = [{value.name: value.SerializeToString() for value in graph.graph.initializer} for graph in (one, other)]
    assert constants[0] == constants[1]


@pytest.mark.parametrize("dialect", [ONNXRUNTIME_X86, ONNXRUNTIME_ARM], ids=lambda one: one.name)
@pytest.mark.parametrize("name", CASES)
def test_a_float_layer_stays_float(name: str, dialect: Dialect, tmp_path: Path) -> None:
    """With default options the answers are, to the bit, those without the optimizer that rounds float weights."""
    model = lower(CASES[name], dialect)
    assert_float(model, tmp_path)
    assert not notes_of(model)
    contract = check(model, "onnxruntime-x86")
    assert not contract.rounded
    assert not contract.disagreements
    if dialect is ONNXRUNTIME_X86:
        assert not contract.unfused
        row = next(row for row in contract.rows if row.node.endswith(":c"))
        assert (row.state, "the DQ before it keeps it so" in row.reason) == ("float", True)


@pytest.mark.parametrize("name", CASES)
def test_it_would_be_rounded_otherwise(name: str, tmp_path: Path) -> None:
    """The same file with one scale in every DQ gives other answers, and `check` says why."""
    model = lower(CASES[name], EXPOSED)
    assert not np.array_equal(run(model, tmp_path)[0], run(model, tmp_path, ROUNDER)[0])
    contract = check(model, "onnxruntime-x86")
    (row,) = contract.failures("rounded")
    assert row.node.endswith(":c")
    assert "ONNX Runtime rounds it to int8" in row.reason
    assert not contract.disagreements
    assert "ROUNDED: float weights of 1 operators." in str(contract)


def test_other_readers_keep_their_pair() -> None:
    """An integer layer on the same tensor reads one scale and fuses; the Q is written once."""
    model = lower(convolutional(side=True), "onnxruntime-x86")
    readers = [node for node in model.graph.node if node.op_type == "DequantizeLinear" and node.input[0] == "ar/q"]
    assert len(readers) == 2
    contract = check(model, "onnxruntime-x86")
    assert {row.node: row.kernel for row in contract.rows if row.operator == "Conv"} == {
        "Conv:a": "QLinearConv", "Conv:side": "QLinearConv", "Conv:c": "Conv", "Conv:y": "QLinearConv",
    }  # fmt: skip
    assert not contract.disagreements


def test_an_open_batch(tmp_path: Path) -> None:
    """Sizes come from the weight: a file for any batch is as safe."""
    assert_float(lower(linear("MatMul", ["n", 16]), "onnxruntime-x86"), tmp_path)


def test_nowhere_to_repeat_a_scale() -> None:
    """One number per sample and an open batch: there is no axis, and a note and `check` say so."""
    net = Graph()
    data = net.qdq(net.input("x", ["n", 1]), 0.02)
    net.node("Gemm", [data, net.constant("w", np.ones((1, 4))), net.bias("b", 4)], "c")
    net.node("MatMul", [net.qdq("c", 0.05), net.weight("w2", (4, 4), None)], "y")
    model = lower(net.model("y"), "onnxruntime-x86")
    (note,) = notes_of(model)
    assert "no axis of 'x' is known to be longer than 1" in note
    assert [row.node for row in check(model, "onnxruntime-x86").rounded] == ["Gemm:c"]


@pytest.mark.parametrize("dialect", ["tensorrt", "litert", "openvino"])
def test_other_dialects_are_as_they_were(dialect: str) -> None:
    """One scale in every DQ on a value; the way over ONNX Runtime's dialect and back gives the same file."""
    straight = lower(CASES["conv"], dialect)
    constants = {value.name: value for value in straight.graph.initializer}
    pairs = [
        node for node in straight.graph.node if node.op_type == "DequantizeLinear" and node.input[0] not in constants
    ]
    assert all(not constants[node.input[1]].dims for node in pairs)
    assert_same_file(lower(lower(CASES["conv"], "onnxruntime-x86"), dialect), straight)


@pytest.mark.parametrize("name", CASES)
def test_lowering_again_changes_nothing(name: str) -> None:
    """A DQ that repeats its scale is read as what it means."""
    once = lower(CASES[name], "onnxruntime-x86")
    assert_same_file(lower(once, "onnxruntime-x86"), once)
