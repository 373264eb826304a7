"""Integer arithmetic equals ONNX Runtime's kernels, value for value."""

from typing import Any

import numpy as np
import onnx
import onnxruntime as ort
import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st
from onnx import helper
from support.qdq import Graph, sample, tensorrt_residual

from embedl_deploy.dialect import lower
from embedl_deploy.errors import InputError, ModelFileError
from embedl_deploy.integer import IntegerModel


def differences(model: onnx.ModelProto, feed: dict[str, np.ndarray]) -> dict[str, int]:
    """Return the largest difference in steps at every boundary, ONNX Runtime against the integer model."""
    integer = IntegerModel(model)
    made = integer.run(feed).boundaries
    names = integer.qdq.integers
    tapped = onnx.ModelProto()
    tapped.CopyFrom(model)
    tapped.graph.output.extend(helper.make_empty_tensor_value_info(name) for name in names.values())
    options = ort.SessionOptions()
    options.log_severity_level = 4
    session = ort.InferenceSession(tapped.SerializeToString(), options, providers=["CPUExecutionProvider"])
    found = session.run(list(names.values()), feed)
    return {
        boundary: int(np.abs(values.astype(np.int64) - made[boundary].astype(np.int64)).max())
        for boundary, values in zip(names, found, strict=True)
        if boundary in made
    }


def one_operator(operator: str, count: int, shape: tuple[int, ...], seed: int, **options: Any) -> onnx.ModelProto:
    """Return an operator between Q/DQ of random uint8 formats."""
    random = np.random.default_rng(seed)
    net = Graph()

    def pair(tensor: str) -> str:
        return net.qdq(tensor, float(random.uniform(0.004, 0.05)), int(random.integers(0, 256)), "uint8")

    inputs = [pair(net.input(f"x{index}", list(shape))) for index in range(count)]
    net.node(operator, inputs, "o", **options)
    net.node("Identity", [pair("o")], "y")
    return net.model("y")


def values(count: int, shape: tuple[int, ...], seed: int) -> dict[str, np.ndarray]:
    random = np.random.default_rng(seed)
    return {f"x{index}": (random.normal(size=shape) * 2).astype(np.float32) for index in range(count)}


PICTURE = (1, 5, 13, 11)
OPERATORS: list[tuple[str, int, tuple[int, ...], dict[str, Any]]] = [
    ("Add", 2, PICTURE, {}),
    ("Mul", 2, PICTURE, {}),
    ("Concat", 3, PICTURE, {"axis": 1}),
    ("AveragePool", 1, PICTURE, {"kernel_shape": [3, 3], "strides": [2, 2], "pads": [1, 1, 1, 1]}),
    ("AveragePool", 1, PICTURE, {"kernel_shape": [2, 3], "count_include_pad": 1, "pads": [0, 1, 1, 1]}),
    ("GlobalAveragePool", 1, (2, 33, 7, 7), {}),
    ("LeakyRelu", 1, PICTURE, {"alpha": 0.1}),
    ("Sigmoid", 1, PICTURE, {}),
]


@pytest.mark.parametrize(("operator", "count", "shape", "options"), OPERATORS)
@settings(max_examples=12, deadline=None)
@given(seed=st.integers(0, 1_000_000))
def test_one_operator(operator: str, count: int, shape: tuple[int, ...], options: dict[str, Any], seed: int) -> None:
    """Random formats and values: no difference."""
    model = lower(one_operator(operator, count, shape, seed, **options), "onnxruntime-x86")
    integer = IntegerModel(model)
    assert any(kernel.name == f"QLinear{operator}" for kernel in integer.kernels)
    assert integer.inexact == ()
    assert set(differences(model, values(count, shape, seed)).values()) == {0}


@settings(max_examples=15, deadline=None)
@example(seed=12098, kernel=3, stride=1, dilation=1, group=2, pad=0, same="")
@given(
    seed=st.integers(0, 1_000_000), kernel=st.integers(1, 4), stride=st.integers(1, 3), dilation=st.integers(1, 2),
    group=st.sampled_from([1, 2, 8]), pad=st.integers(0, 2), same=st.sampled_from(["", "SAME_UPPER", "SAME_LOWER"]),
)  # fmt: skip
def test_convolutions(*, seed: int, kernel: int, stride: int, dilation: int, group: int, pad: int, same: str) -> None:
    """Every geometry, grouped and depthwise, with the Relu taken in: no difference."""
    random = np.random.default_rng(seed)
    net = Graph(seed=seed)
    x = net.qdq(
        net.input("x", [1, 8, 12, 12]), float(random.uniform(0.01, 0.05)), int(random.integers(0, 256)), "uint8"
    )
    options: dict[str, Any] = {"auto_pad": same} if same else {"pads": [pad, pad, pad + 1, pad]}
    if not same:
        options["dilations"] = [dilation, dilation]
    weight = net.weight("w", (8, 8 // group, kernel, kernel))
    net.node("Conv", [x, weight, net.bias("b", 8)], "c", strides=[stride, stride], group=group, **options)
    net.node("Relu", ["c"], "r")
    net.node("Identity", [net.qdq("r", float(random.uniform(0.01, 0.1)), 0, "uint8")], "y")
    model = lower(net.model("y"), "onnxruntime-x86")
    # A remedy may reduce the inputs first.
    assert "QLinearConv" in {kernel.name for kernel in IntegerModel(model).kernels}
    assert set(differences(model, sample(seed, (1, 8, 12, 12))).values()) == {0}


@settings(max_examples=15, deadline=None)
@given(seed=st.integers(0, 1_000_000), to_integers=st.booleans(), form=st.sampled_from(["Gemm", "MatMul", "both"]))
def test_linears(*, seed: int, to_integers: bool, form: str) -> None:
    """Weights and bias, weights alone, two activations; integers or floats out: no difference."""
    random = np.random.default_rng(seed)
    net = Graph(seed=seed)
    zero = int(random.integers(0, 256))
    x = net.qdq(net.input("x", [6, 32]), float(random.uniform(0.01, 0.05)), zero, "uint8")
    if form == "Gemm":
        bias, alpha = ([net.bias("b", 16)], 1.0) if seed % 2 else ([], 0.5)
        net.node("Gemm", [x, net.weight("w", (16, 32)), *bias], "o", transB=1, alpha=alpha)
    elif form == "MatMul":
        net.node("MatMul", [x, net.weight("w", (32, 16), axis=1)], "o")
    else:
        net.node("Transpose", [net.input("z", [16, 32])], "t", perm=[1, 0])
        net.node("MatMul", [x, net.qdq("t", 0.02, 100, "uint8")], "o")
    last = net.qdq("o", float(random.uniform(0.02, 0.2)), 120, "uint8") if to_integers else "o"
    net.node("Identity", [last], "y")
    model = lower(net.model("y"), "onnxruntime-x86")
    feed = sample(seed, (6, 32)) | ({"z": sample(seed + 1, (16, 32))["x"]} if form == "both" else {})
    assert set(differences(model, feed).values()) == {0}
    options = ort.SessionOptions()
    options.log_severity_level = 4
    session = ort.InferenceSession(model.SerializeToString(), options, providers=["CPUExecutionProvider"])
    assert np.array_equal(session.run(None, feed)[0], IntegerModel(model).run(feed).outputs["y"])


def test_a_network_to_the_bit() -> None:
    """The whole residual net, outputs included, on several samples."""
    model = lower(tensorrt_residual(), "onnxruntime-x86")
    integer = IntegerModel(model)
    assert integer.inexact == ()
    session = ort.InferenceSession(model.SerializeToString(), providers=["CPUExecutionProvider"])
    for seed in range(6):
        assert set(differences(model, sample(seed)).values()) == {0}
        assert np.array_equal(session.run(None, sample(seed))[0], integer.run(sample(seed)).outputs["y"])


@pytest.mark.parametrize("length", [2, 50, 197, 1000])
def test_softmax_is_exact(length: int) -> None:
    """It is computed by the runtime's own table, summed in its order."""
    model = lower(one_operator("Softmax", 1, (4, length), 3, axis=-1), "onnxruntime-x86")
    assert IntegerModel(model).inexact == ()
    assert max(differences(model, values(1, (4, length), 3)).values()) == 0


def test_wrong_inputs_are_named() -> None:
    """What is wanted and what came."""
    integer = IntegerModel(lower(tensorrt_residual(), "onnxruntime-x86"))
    with pytest.raises(InputError, match=r"wants the inputs \['x'\], got \['z'\]"):
        integer.run({"z": np.zeros(1)})


@pytest.mark.parametrize("constant", [True, False])
def test_an_operator_whose_sizes_the_runtime_asks_for(*, constant: bool) -> None:
    """F.interpolate(size=...): ONNX Runtime opens a Resize only if it knows how many sizes there are."""
    net = Graph()
    x = net.qdq(net.input("x", [1, 2, 4, 4]), 0.02, 128, "uint8")
    sizes = net.constant("sizes", [1, 2, 7, 7], np.int64)
    if not constant:
        net.node("Shape", [net.input("like", [1, 2, 7, 7])], "shape")
        sizes = "shape"
    net.node("Resize", [x, "", "", sizes], "y", mode="linear")
    model = net.model("y")
    feed = sample(0, (1, 2, 4, 4)) | ({} if constant else {"like": np.zeros((1, 2, 7, 7), np.float32)})
    session = ort.InferenceSession(model.SerializeToString(), providers=["CPUExecutionProvider"])
    found = IntegerModel(model).run(feed).outputs["y"]
    assert np.array_equal(session.run(None, feed)[0], found)


def test_an_operator_that_the_runtime_lacks() -> None:
    """Onnx's reference evaluator runs it; an operator that nobody knows is one clear error."""
    net = Graph(opset=22)
    net.node("Cast", [net.input("x", [2, 3, 3])], "c", to=onnx.TensorProto.DOUBLE)
    net.node("Det", ["c"], "y")
    feed = sample(0, (2, 3, 3))
    model = net.model("y")
    with pytest.raises(Exception, match="Det"):
        ort.InferenceSession(model.SerializeToString(), providers=["CPUExecutionProvider"])
    wanted = np.linalg.det(feed["x"].astype(np.float64))
    assert np.allclose(IntegerModel(model).run(feed).outputs["y"], wanted, rtol=1e-12)
    model.graph.node[1].domain = "of.somebody"
    model.opset_import.append(helper.make_opsetid("of.somebody", 1))
    with pytest.raises(ModelFileError, match="The operator Det of 'Det:y' can be run alone neither by"):
        IntegerModel(model).run(feed)


def test_a_constant_of_no_dimension_stays_one() -> None:
    """A Clip's bounds are scalars, and ONNX Runtime takes nothing else."""
    net = Graph()
    net.node("Clip", [net.input("x", [2, 3]), net.constant("low", -0.5), net.constant("high", 0.5)], "y")
    feed = sample(0, (2, 3))
    integer = IntegerModel(net.model("y"))
    assert np.array_equal(integer.run(feed).outputs["y"], np.clip(feed["x"], -0.5, 0.5))
    (operator,) = integer._operators.values()
    assert not operator.refusals
