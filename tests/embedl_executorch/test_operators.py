"""ONNX operators as torch computes them: each against ONNX Runtime, on numbers that tell wrong axes and signs apart."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import onnxruntime
import pytest
import torch
from support.executorch import one_node, quantized_net
from support.quantized import as_written

from embedl_device.errors import BoardError
from embedl_executorch.compiler.graph import Imported, import_onnx
from embedl_executorch.compiler.operators import OPERATORS

_RANDOM = np.random.default_rng(0)


def _floats(*shape: int) -> np.ndarray:
    return _RANDOM.normal(size=shape).astype(np.float32)


def _ints(*numbers: int) -> np.ndarray:
    return np.array(numbers, np.int64)


@dataclass(frozen=True)
class Case:
    kind: str
    inputs: dict[str, np.ndarray]
    known: dict[str, np.ndarray] = field(default_factory=dict)
    attributes: dict[str, Any] = field(default_factory=dict)
    opset: int = 21
    outputs: int = 1


_X, _PICTURE, _LINE = _floats(2, 3, 4), _floats(1, 4, 7, 9), _floats(2, 4, 11)
_POSITIVE = np.abs(_X) + 0.1
_ONE = [
    "Abs", "Ceil", "Cos", "Erf", "Exp", "Floor", "Identity", "Neg", "Reciprocal", "Relu", "Round", "Sigmoid", "Sign",
    "Sin", "Softplus", "Softsign", "Tanh", "HardSwish", "Mish", "Elu", "Celu", "Selu", "LeakyRelu", "HardSigmoid",
    "Gelu", "Softmax", "LogSoftmax", "Flatten", "Transpose", "GlobalAveragePool", "GlobalMaxPool", "Atan",
    "ThresholdedRelu",
]  # fmt: skip
_TWO = ["Add", "Sub", "Mul", "Div", "Min", "Max", "Sum", "Mean", "Equal", "Greater", "GreaterOrEqual", "Less",
        "LessOrEqual"]  # fmt: skip
_REDUCTIONS = ["ReduceMean", "ReduceSum", "ReduceMax", "ReduceMin", "ReduceProd", "ReduceL1", "ReduceL2",
               "ReduceSumSquare"]  # fmt: skip

CASES = [
    *(Case(kind, {"x": _PICTURE if "Pool" in kind else _X}) for kind in _ONE),
    *(Case(kind, {"a": _X, "b": _floats(3, 1)}) for kind in _TWO),
    *(Case(kind, {"x": _X}, {"axes": _ints(0, -1)}, {"keepdims": keep}) for kind in _REDUCTIONS for keep in (0, 1)),
    Case("ReduceMean", {"x": _X}, {}, {"axes": [1], "keepdims": 0}, opset=13),
    Case("ReduceSum", {"x": _X}, {}, {"keepdims": 0}),
    Case("Sqrt", {"x": _POSITIVE}),
    Case("Log", {"x": _POSITIVE}),
    Case("Pow", {"x": _POSITIVE}, {"p": np.array(0.5, np.float32)}),
    Case("Pow", {"x": _X}, {"p": np.array(2.0, np.float32)}),
    Case("Pow", {"x": _POSITIVE, "p": np.abs(_X)}),
    Case("Div", {"x": _X}, {"d": _floats(4)}),
    Case("Div", {"x": _ints(7, -7, 5), "d": _ints(2, 2, 3)}),
    Case("Mod", {"x": _ints(7, -7, 5), "d": _ints(2, 3, 3)}),
    Case("Clip", {"x": _X}, {"low": np.array(0.0, np.float32), "high": np.array(0.5, np.float32)}),
    Case("Clip", {"x": _X}, {"low": np.array(0.0, np.float32)}),
    Case("Clip", {"x": _X}, {}, {"min": -0.3, "max": 0.4}, opset=6),
    Case("PRelu", {"x": _PICTURE}, {"slope": _floats(4, 1, 1)}),
    Case("Gelu", {"x": _X}, {}, {"approximate": "tanh"}),
    Case("Softmax", {"x": _X}, {}, {"axis": 1}, opset=11),
    Case("Where", {"c": _X > 0, "a": _X, "b": _floats(4)}),
    Case("Cast", {"x": _X * 5}, {}, {"to": onnx.TensorProto.INT32}),
    Case("Conv", {"x": _PICTURE}, {"w": _floats(6, 2, 3, 3), "b": _floats(6)},
         {"group": 2, "strides": [2, 1], "pads": [1, 0, 1, 2], "dilations": [1, 2]}),
    Case("Conv", {"x": _PICTURE}, {"w": _floats(6, 4, 3, 3)}, {"auto_pad": "SAME_UPPER", "strides": [2, 2]}),
    Case("Conv", {"x": _LINE}, {"w": _floats(5, 4, 3)}, {"pads": [2, 2]}),
    Case("Conv", {"x": _PICTURE, "w": _floats(2, 4, 2, 2)}),
    Case("ConvTranspose", {"x": _PICTURE}, {"w": _floats(4, 3, 3, 3), "b": _floats(3)},
         {"strides": [2, 2], "pads": [1, 1, 1, 1], "output_padding": [1, 0]}),
    Case("ConvTranspose", {"x": _PICTURE}, {"w": _floats(4, 3, 3, 3)}, {"strides": [2, 2], "pads": [0, 1, 1, 0]}),
    Case("ConvTranspose", {"x": _PICTURE}, {"w": _floats(4, 3, 3, 3)}, {"strides": [2, 2], "auto_pad": "SAME_LOWER"}),
    Case("Gemm", {"x": _floats(3, 4)}, {"w": _floats(5, 4), "b": _floats(5)}, {"transB": 1}),
    Case("Gemm", {"x": _floats(4, 3)}, {"w": _floats(4, 5), "b": _floats(3, 5)}, {"transA": 1}),
    Case("Gemm", {"x": _floats(3, 4), "w": _floats(4, 5), "b": _floats(5)}, {}, {"alpha": 0.5, "beta": 2.0}),
    Case("MatMul", {"x": _X}, {"w": _floats(4, 5)}),
    Case("MatMul", {"a": _X, "b": _floats(2, 4, 3)}),
    Case("BatchNormalization", {"x": _PICTURE},
         {"s": _floats(4), "b": _floats(4), "m": _floats(4), "v": np.abs(_floats(4)) + 0.5}),
    Case("LayerNormalization", {"x": _X}, {"s": _floats(3, 4), "b": _floats(4)}, {"axis": 1}),
    Case("InstanceNormalization", {"x": _PICTURE}, {"s": _floats(4), "b": _floats(4)}),
    Case("GroupNormalization", {"x": _PICTURE}, {"s": _floats(4), "b": _floats(4)}, {"num_groups": 2}),
    Case("LpNormalization", {"x": _X}, {}, {"axis": 1}),
    Case("MaxPool", {"x": _PICTURE}, {}, {"kernel_shape": [3, 2], "strides": [2, 1], "pads": [1, 0, 1, 1]}),
    Case("MaxPool", {"x": _PICTURE}, {}, {"kernel_shape": [2, 2], "strides": [2, 2], "ceil_mode": 1}),
    Case("MaxPool", {"x": _LINE}, {}, {"kernel_shape": [3]}),
    Case("AveragePool", {"x": _PICTURE}, {}, {"kernel_shape": [3, 3], "pads": [1, 1, 1, 1]}),
    Case("AveragePool", {"x": _PICTURE}, {}, {"kernel_shape": [3, 3], "pads": [1, 1, 1, 1], "count_include_pad": 1}),
    Case("ArgMax", {"x": _X}, {}, {"axis": 1, "keepdims": 0}),
    Case("ArgMin", {"x": _X}),
    Case("TopK", {"x": _X}, {"k": _ints(2)}, {"axis": -1}, outputs=2),
    Case("CumSum", {"x": _X}, {"axis": np.array(1, np.int64)}),
    Case("Reshape", {"x": _X}, {"shape": _ints(0, -1)}),
    Case("Flatten", {"x": _X}, {}, {"axis": -1}),
    Case("Transpose", {"x": _X}, {}, {"perm": [1, 2, 0]}),
    Case("Squeeze", {"x": _floats(2, 1, 3, 1)}, {"axes": _ints(-1)}),
    Case("Squeeze", {"x": _floats(2, 1, 3, 1)}),
    Case("Unsqueeze", {"x": _X}, {"axes": _ints(0, -1)}),
    Case("Concat", {"a": _X, "b": _floats(2, 5, 4)}, {"c": _floats(2, 1, 4)}, {"axis": 1}),
    Case("Split", {"x": _floats(2, 7)}, {"sizes": _ints(3, 4)}, {"axis": 1}, outputs=2),
    Case("Split", {"x": _floats(2, 7)}, {}, {"axis": 1, "num_outputs": 2}, outputs=2),
    Case("Slice", {"x": _floats(6, 7)}, {"s": _ints(1, -3), "e": _ints(100, -1), "a": _ints(0, 1), "t": _ints(2, 1)}),
    Case("Slice", {"x": _floats(6, 7)}, {"s": _ints(-1), "e": _ints(-100), "a": _ints(1), "t": _ints(-2)}),
    Case("Gather", {"x": _X}, {"i": _ints(2, 0, -1)}, {"axis": 1}),
    Case("Gather", {"x": _X}, {"i": np.array(1, np.int64)}, {"axis": 2}),
    Case("Gather", {"x": _floats(9, 4), "i": np.array([[1, 8], [0, -1]])}),
    Case("Gather", {"x": _X, "i": _ints(1, 0)}, {}, {"axis": 2}),
    Case("GatherElements", {"x": _X, "i": np.zeros((2, 3, 4), np.int64) + 1}, {}, {"axis": 2}),
    Case("Expand", {"x": _floats(3, 1)}, {"s": _ints(2, 1, 4)}),
    Case("Tile", {"x": _X}, {"n": _ints(1, 2, 3)}),
    Case("Pad", {"x": _PICTURE}, {"p": _ints(0, 0, 1, 2, 0, 0, 0, 1), "v": np.array(0.5, np.float32)}),
    Case("Pad", {"x": _PICTURE}, {"p": _ints(0, 0, 1, 2, 0, 0, 0, 1)}, {"mode": "reflect"}),
    Case("Pad", {"x": _PICTURE}, {"p": _ints(0, 0, 1, 2, 0, 0, 0, 1)}, {"mode": "edge"}),
    Case("Resize", {"x": _PICTURE}, {"-r": _ints(), "s": np.array([1, 1, 2, 2], np.float32)}),
    Case("Resize", {"x": _PICTURE}, {"-r": _ints(), "-s": _ints(), "z": _ints(1, 4, 11, 5)}, {"mode": "linear"}),
    Case("Resize", {"x": _PICTURE}, {"-r": _ints(), "-s": _ints(), "z": _ints(1, 4, 11, 15)},
         {"mode": "linear", "coordinate_transformation_mode": "align_corners"}),
    Case("DepthToSpace", {"x": _PICTURE}, {}, {"blocksize": 2}),
    Case("DepthToSpace", {"x": _PICTURE}, {}, {"blocksize": 2, "mode": "CRD"}),
    Case("SpaceToDepth", {"x": _floats(1, 2, 4, 6)}, {}, {"blocksize": 2}),
    Case("Trilu", {"x": _floats(4, 4)}, {"k": np.array(1, np.int64)}),
    Case("Einsum", {"a": _floats(2, 3), "b": _floats(3, 4)}, {}, {"equation": "ij,jk->ki"}),
    Case("LSTM", {"x": _floats(5, 2, 3)}, {"w": _floats(2, 16, 3), "r": _floats(2, 16, 4), "b": _floats(2, 32)},
         {"hidden_size": 4, "direction": "bidirectional"}, outputs=3),
    Case("GRU", {"x": _floats(5, 2, 3)}, {"w": _floats(1, 12, 3), "r": _floats(1, 12, 4), "b": _floats(1, 24)},
         {"hidden_size": 4, "linear_before_reset": 1}, outputs=2),
    Case("GRU", {"x": _floats(5, 2, 3)}, {"w": _floats(1, 12, 3), "r": _floats(1, 12, 4)},
         {"hidden_size": 4, "direction": "reverse"}, outputs=2),
    Case("QuantizeLinear", {"x": _X}, {"s": np.array(0.02, np.float32), "z": np.array(3, np.int8)}),
]  # fmt: skip


def _imported(model: onnx.ModelProto, folder: Path) -> Imported:
    path = folder / "m.onnx"
    onnx.save(model, path)
    return import_onnx(path)


def _answers(imported: Imported, feed: dict[str, np.ndarray]) -> Sequence[np.ndarray]:
    with torch.no_grad():
        found = imported.graph(*[torch.from_numpy(feed[name].copy()) for name in imported.graph.input_names])
    return [value.numpy() for value in found]


def _id(case: Case) -> str:
    return f"{case.kind}-{len(case.inputs)}-{'-'.join(map(str, case.attributes.values()))}"


@pytest.mark.parametrize("case", CASES, ids=_id)
def test_an_operator_gives_what_onnx_runtime_gives(case: Case, tmp_path: Path) -> None:
    """Within rounding."""
    model = one_node(case.kind, case.inputs, case.known, opset=case.opset, outputs=case.outputs, **case.attributes)
    expected = onnxruntime.InferenceSession(model.SerializeToString()).run(None, case.inputs)
    found = _answers(_imported(model, tmp_path), case.inputs)
    for ours, theirs in zip(found, expected, strict=True):
        assert ours.shape == theirs.shape
        np.testing.assert_allclose(ours, theirs, rtol=2e-4, atol=2e-5)


def test_every_operator_is_tried_against_onnx_runtime() -> None:
    """What is left has no counterpart there, or no numbers to compare."""
    tried = {case.kind for case in CASES}
    assert set(OPERATORS) - tried == {
        "And", "CastLike", "DequantizeLinear", "Dropout", "IsNaN", "Not", "Or", "RMSNormalization",
        "SimplifiedLayerNormalization", "Swish", "Upsample", "Xor",
    }  # fmt: skip


def test_q_and_dq_become_those_of_torch_and_give_the_same_numbers(tmp_path: Path) -> None:
    """A step of the last scale at most: torch multiplies by a reciprocal, ONNX Runtime divides."""
    model = quantized_net()
    feed = {"x": _floats(1, 3, 12, 12)}
    expected = as_written(model).run(None, feed)[0]
    imported = _imported(model, tmp_path)
    np.testing.assert_allclose(_answers(imported, feed)[0], expected, atol=0.01)
    program = torch.export.export(imported.graph, imported.examples)
    names = [str(node.target) for node in program.graph.nodes if node.op == "call_function"]
    assert sum("dequantize_per_channel" in name for name in names) == 3
    # Each reader has a DQ of its own: the addition's two inputs and the second convolution's are three.
    assert sum("dequantize_per_tensor" in name for name in names) == 9
    assert "aten.relu.default" not in names  # the zero point at the minimum does it
    assert not [name for name in names if "bias" in name]
    product = next(name for name, nodes in imported.graph.sources.items() if nodes[0].operator == "MatMul")
    assert [node.name for node in imported.graph.sources[product]] == ["product_node", "scores_node"]


@pytest.mark.parametrize(
    ("model", "words"),
    [
        (one_node("Det", {"x": _floats(2, 2)}, {}), r"Det \(node 'it'\) is an operator that has no counterpart here"),
        (one_node("Reshape", {"x": _floats(4), "s": _ints(2, 2)}, {}), "takes its input 1 from the run"),
        (one_node("Conv", {"x": _floats(1, 3)}, {"w": _floats(1, 3, 1, 1)}), "has -?[0-9] spatial axes"),
        (one_node("MatMul", {"x": _floats(2, 3)}, {"w": _floats(4, 5)}), "cannot be computed: .*2x3 and 4x5"),
        (one_node("Resize", {"x": _PICTURE}, {"-r": _ints(), "-s": _ints(), "z": _ints(1, 4, 11, 9)}), "whole factors"),
    ],
)
def test_what_cannot_be_had_is_said_with_the_node_and_the_way_out(
    model: onnx.ModelProto, words: str, tmp_path: Path
) -> None:
    """One sentence and the next step."""
    with pytest.raises(BoardError, match=words) as caught:
        _imported(model, tmp_path)
    assert str(caught.value).endswith("torch.export.save(torch.export.export(model, inputs), 'model.pt2').")


def test_the_module_is_named_where_the_file_tells_it(tmp_path: Path) -> None:
    """The user's own name for what failed."""
    model = one_node("Det", {"x": _floats(2, 2)}, {})
    onnx.helper.set_model_props(model, {"edgeproof.modules": '{"it": ["net.head"]}'})
    with pytest.raises(BoardError, match=r"Det \(node 'it', module 'net\.head'\)"):
        _imported(model, tmp_path)


def test_what_is_no_model_is_said(tmp_path: Path) -> None:
    """In words."""
    path = tmp_path / "m.onnx"
    path.write_bytes(b"nothing")
    with pytest.raises(BoardError, match="is not an ONNX model"):
        import_onnx(path)
