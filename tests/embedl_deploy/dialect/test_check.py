"""The contract predicts the kernel of every operator, and the runtime agrees."""

import json

import ml_dtypes
import numpy as np
import onnx
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from onnx import helper, numpy_helper
from support.qdq import Graph, tensorrt_residual

from embedl_deploy.dialect import TENSORRT, _ask, check, lower, notes_of
from embedl_deploy.dialect._build import confirm
from embedl_deploy.errors import DialectError, ModelFileError


def test_a_tensorrt_file_in_onnxruntime() -> None:
    """Every reason that costs the speed is told, and the optimized graph agrees."""
    contract = check(lower(tensorrt_residual(), "tensorrt"), "onnxruntime-x86")
    reasons = {row.node: row.reason for row in contract.unfused}
    assert "Relu 'Relu:r0' is not absorbed: zero point 0" in reasons["Conv:c0"]
    assert "bias 'b2' is float" in reasons["Gemm:y"]
    assert contract.coverage == (0, 3)
    assert not contract.disagreements
    assert [row.node for row in contract.failures("float")] == ["Conv:c0", "Conv:c1", "Gemm:y"]
    assert contract.failures("disagreement") == ()
    with pytest.raises(DialectError, match="no demand 'slow'; known are unfused, float, rounded, disagreement"):
        contract.failures("slow")
    text = str(contract)
    assert "0 of 3 weighted operators in integers" in text
    assert "Left to run" in text
    assert json.loads(json.dumps(contract.to_dict()))["coverage"] == [0, 3]


def test_an_onnxruntime_file_in_tensorrt() -> None:
    """Unsigned types, zero points and int32 biases are named before the compiler is asked, which refuses too."""
    contract = check(lower(tensorrt_residual(), "onnxruntime-x86"), "tensorrt")
    assert all("refused: tensorrt reads no uint8" in row.reason for row in contract.unfused if row.operator == "Conv")
    assert "int32" in contract.refused.lower()


@pytest.mark.parametrize("float_type", ["float32", "float16"])
def test_the_compiler_takes_our_tensorrt_files(float_type: str) -> None:
    """TensorRT-RTX parses and builds them; no GPU is needed."""
    contract = check(lower(tensorrt_residual(), "tensorrt", float_type=float_type), "tensorrt")
    assert not contract.refused
    assert "parsed the file and built an engine" in contract.confirmed
    assert contract.coverage == (3, 3)
    assert not contract.unfused


def test_q_dq_inside_an_epilogue_is_told() -> None:
    """Between a convolution and its activation it breaks the fusion on TensorRT."""
    net = Graph()
    x = net.qdq(net.input("x", [1, 8, 6, 6]), 0.02)
    net.node("Conv", [x, net.weight("w", (8, 8, 1, 1))], "c")
    net.node("Relu", [net.qdq("c", 0.02)], "y")
    (row,) = check(net.model("y"), "tensorrt").unfused
    assert "Q/DQ between it and Relu 'Relu:y' breaks their fusion" in row.reason


@pytest.mark.parametrize("name", ["litert", "openvino", "onnxruntime-arm"])
def test_runtimes_that_are_not_here_are_predicted(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """The contract says that nobody was asked."""
    monkeypatch.setattr(_ask, "_find", lambda runtime: None)
    contract = check(lower(tensorrt_residual(), name), name)
    assert contract.coverage == (3, 3)
    assert not contract.unfused
    assert "Predicted from rules" in contract.confirmed


def test_module_names_are_shown() -> None:
    """The table speaks of the user's modules."""
    model = lower(tensorrt_residual(), "onnxruntime-x86")
    helper.set_model_props(model, {"edgeproof.modules": json.dumps({"Conv:c0": "stem.conv"})})
    assert "stem.conv" in str(check(model, "onnxruntime-x86"))


def test_a_file_the_runtime_does_not_take() -> None:
    """One clear error with the runtime's own words."""
    net = Graph()
    net.node("Relu", [net.qdq(net.input("x", [1, 4]), 0.1)], "y")
    model = net.model("y")
    model.graph.node[-1].domain = "com.nowhere"
    model.opset_import.append(helper.make_opsetid("com.nowhere", 1))
    with pytest.raises(ModelFileError, match="ONNX Runtime does not take the model"):
        check(model, "onnxruntime-x86")
    assert confirm(onnx.ModelProto(), TENSORRT, ()).refused


@settings(max_examples=25, deadline=None)
@given(st.integers(0, 100_000))
def test_predictions_hold_on_random_graphs(seed: int) -> None:
    """Random zero points, missing pairs, several readers: the optimized graph has the kernels that were predicted."""
    random = np.random.default_rng(seed)
    net = Graph(seed=seed)

    pairs: dict[str, str] = {}

    def maybe(tensor: str) -> str:
        if tensor not in pairs:
            scale, zero = float(random.choice([0.02, 0.05])), int(random.choice([0, 128, 37]))
            pairs[tensor] = tensor if random.random() < 0.15 else net.qdq(tensor, scale, zero, "uint8")
        return pairs[tensor]

    tensors = [net.input("x", [1, 8, 8, 8])]
    for number in range(int(random.integers(2, 7))):
        source = tensors[int(random.integers(0, len(tensors)))]
        kind = random.choice(["Conv", "Add", "Relu", "MaxPool", "Concat", "Mul"])
        if kind == "Conv":
            bias = [net.bias(f"b{number}", 8)] if random.random() < 0.5 else []
            made = net.node("Conv", [maybe(source), net.weight(f"w{number}", (8, 8, 1, 1)), *bias], f"t{number}")
        elif kind in ("Add", "Mul"):
            made = net.node(str(kind), [maybe(source), maybe(tensors[-1])], f"t{number}")
        elif kind == "MaxPool":
            made = net.node("MaxPool", [maybe(source)], f"t{number}", kernel_shape=[3, 3], pads=[1, 1, 1, 1])
        elif kind == "Concat":
            both = net.node("Concat", [maybe(source), maybe(tensors[-1])], f"k{number}", axis=1)
            made = net.node("Conv", [maybe(both), net.weight(f"w{number}", (8, 16, 1, 1))], f"t{number}")
        else:
            made = net.node("Relu", [source], f"t{number}")
        tensors.append(made)
    net.node("Identity", [maybe(tensors[-1])], "y")
    contract = check(net.model("y"), "onnxruntime-x86")
    assert contract.disagreements == ()


def test_what_melts_into_a_tensorrt_kernel_is_not_called_float() -> None:
    """The Relu after an integer convolution is a part of its kernel."""
    rows = {row.node: row for row in check(lower(tensorrt_residual(), "tensorrt"), "tensorrt").rows}
    assert rows["Relu:r0"].state == "taken"
    assert rows["Relu:r0"].reason == "fused into Conv Conv:c0"


def int4_convolution() -> onnx.ModelProto:
    """Return a convolution with a weight in int4."""
    net = Graph(opset=21)
    x = net.qdq(net.input("x", [1, 8, 6, 6]), 0.02)
    net.constants.append(numpy_helper.from_array(np.ones((8, 8, 1, 1), ml_dtypes.int4), "w"))
    weight = net.node("DequantizeLinear", ["w", net.constant("w.s", 0.1)], "w.d")
    net.node("Conv", [x, weight], "y")
    return net.model("y")


def test_int4_convolutions_are_refused_for_tensorrt() -> None:
    """The prediction, the compiler's own words, and lowering say so; when asked, the layer becomes float."""
    contract = check(int4_convolution(), "tensorrt")
    assert "refused: tensorrt reads no int4 in a convolution ('w" in contract.unfused[0].reason
    assert "no engine could be built: " in contract.refused
    assert "Error Code" in contract.refused
    with pytest.raises(DialectError, match=r"tensorrt cannot express 'w.*' \(int4 weights in convolutions\)"):
        lower(int4_convolution(), "tensorrt")
    found = lower(int4_convolution(), "tensorrt", fallback=True)
    assert any("no int4 weights in convolutions" in note for note in notes_of(found))
    assert not any(node.op_type == "QuantizeLinear" for node in found.graph.node)
    assert not check(found, "tensorrt").refused
