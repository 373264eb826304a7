"""Models between two files: the ends are the files, every choice runs, and what cannot be cut is refused."""

from __future__ import annotations

import itertools
import random

import numpy as np
import onnx
import onnxruntime as ort
import pytest
from onnx import TensorProto, helper, numpy_helper
from support.models import residual_net

from embedl_hub.models.hybrid import Hybrids, one_operator
from embedl_hub.refusal import RefusedError


def _net(
    quantized: tuple[int, ...] = (), *, scales: dict[int, float] | None = None, opset: int = 17
) -> onnx.ModelProto:
    nodes, weights, tensor = [], [], "x"

    def add(op: str, inputs: list[str], output: str, **attributes: object) -> str:
        nodes.append(helper.make_node(op, inputs, [output], f"/{output}", **attributes))  # type: ignore[arg-type]
        return output

    def keep(name: str, values: np.ndarray) -> str:
        weights.append(numpy_helper.from_array(values, name))
        return name

    for number in range(4):
        kernel = np.random.default_rng(number).normal(size=(4, 4, 3, 3)).astype(np.float32) * 0.2
        source, name = tensor, f"w{number}"
        if number in quantized:
            scale = keep(f"s{number}", np.array((scales or {}).get(number, 0.05), np.float32))
            zero = keep(f"z{number}", np.array(128, np.uint8))
            source = add("DequantizeLinear", [add("QuantizeLinear", [tensor, scale, zero], f"q{number}"), scale, zero],
                         f"d{number}")  # fmt: skip
            step = keep(f"ws{number}", np.array(0.01, np.float32))
            integers = keep(f"wq{number}", np.clip(np.round(kernel / 0.01), -127, 127).astype(np.int8))
            name = add("DequantizeLinear", [integers, step], f"wd{number}")
        else:
            keep(name, kernel)
        made = add("Relu", [add("Conv", [source, name], f"c{number}", pads=[1] * 4)], f"r{number}")
        tensor = add("Add", [made, tensor], f"a{number}") if number % 2 else made
    graph = helper.make_graph(
        nodes, "net", [helper.make_tensor_value_info("x", TensorProto.FLOAT, [1, 4, 8, 8])],
        [helper.make_tensor_value_info(tensor, TensorProto.FLOAT, [1, 4, 8, 8])], weights,
    )  # fmt: skip
    return helper.make_model(graph, opset_imports=[helper.make_opsetid("", opset)], ir_version=8)


def _answer(model: onnx.ModelProto) -> np.ndarray:
    onnx.checker.check_model(model)
    options = ort.SessionOptions()
    options.intra_op_num_threads = 1
    session = ort.InferenceSession(model.SerializeToString(), options, providers=["CPUExecutionProvider"])
    data = np.random.default_rng(9).normal(size=(1, 4, 8, 8)).astype(np.float32)
    answer: np.ndarray = session.run(None, {"x": data})[0]
    return answer


def test_every_choice_of_quantized_layers_runs_and_the_ends_are_the_files() -> None:
    """Sixteen hybrids of a float and a quantized net: each is a valid graph with as many quantized layers as chosen."""
    good, bad = _net(), _net((0, 1, 2, 3))
    hybrids = Hybrids(good, bad)
    names = [part.name for part in hybrids.parts]

    assert [part.kind for part in hybrids.parts] == ["wiring"] * 4
    for count in range(5):
        for chosen in itertools.combinations(names, count):
            made = hybrids.build(chosen)
            assert sum(node.op_type == "QuantizeLinear" for node in made.graph.node) == count
            assert np.isfinite(_answer(made)).all()
    assert np.array_equal(_answer(hybrids.build(())), _answer(good))
    assert np.array_equal(_answer(hybrids.build(names)), _answer(bad))


def test_a_scale_is_one_part_on_both_sides_of_the_integers() -> None:
    """What quantizes with it and what dequantizes with it are switched together."""
    good, bad = _net((0, 1, 2, 3)), _net((0, 1, 2, 3), scales={2: 0.001, 1: 0.0501})
    hybrids = Hybrids(good, bad)

    assert [(part.name, part.kind) for part in hybrids.parts] == [("s1", "scale"), ("s2", "scale")]
    assert hybrids.parts[1].bad == "0.001"
    assert np.array_equal(_answer(hybrids.build(["s1", "s2"])), _answer(bad))
    assert np.array_equal(_answer(hybrids.build(["s2"])), _answer(_net((0, 1, 2, 3), scales={2: 0.001})))


def test_random_mixtures_of_layers_and_scales_are_what_they_say() -> None:
    """A hybrid answers as the net that was made with the same choice."""
    draws = random.Random(3)  # noqa: S311 - no secret
    hybrids = Hybrids(_net((0, 2)), _net((0, 1, 2), scales={0: 0.02}))
    parts = {part.name: part for part in hybrids.parts}
    assert set(parts) == {"s0", "/c1"}
    for _ in range(4):
        chosen = {name for name in parts if draws.random() < 0.5}
        scales = {0: 0.02} if "s0" in chosen else {}
        wanted = _net((0, 1, 2) if "/c1" in chosen else (0, 2), scales=scales)
        assert np.array_equal(_answer(hybrids.build(chosen)), _answer(wanted))


def test_files_that_cannot_be_cut_say_why() -> None:
    """Other operator sets, other ends, no difference, and an unknown part are refused in words."""
    with pytest.raises(RefusedError, match="operator sets"):
        Hybrids(_net(), _net(opset=16))
    with pytest.raises(RefusedError, match="other inputs"):
        Hybrids(_net(), residual_net())
    with pytest.raises(RefusedError, match="nothing that can be cut"):
        Hybrids(_net(), _net())
    with pytest.raises(RefusedError, match="no part"):
        Hybrids(_net(), _net((1,))).build(["nothing"])


def test_an_operator_alone_has_its_weights_and_its_shapes() -> None:
    """One convolution of a net, with its input as the model's; a name that the file lacks is refused."""
    alone = one_operator(_net(), "/c2", "Conv")

    assert [node.op_type for node in alone.graph.node] == ["Conv"]
    assert [each.dim_value for each in alone.graph.input[0].type.tensor_type.shape.dim] == [1, 4, 8, 8]
    onnx.checker.check_model(alone)
    assert one_operator(_net(), "/c2_nchwc", "Conv").graph.node[0].name == "/c2"
    with pytest.raises(RefusedError, match="made it of others"):
        one_operator(_net(), "fused", "Conv")
