"""Lowering puts Q/DQ where each runtime wants them and keeps what it can to the bit."""

import json
from collections import Counter
from dataclasses import replace
from pathlib import Path

import ml_dtypes
import numpy as np
import onnx
import onnxruntime as ort
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from onnx import helper, numpy_helper
from support.qdq import Graph, sample, scales, tensorrt_residual

from embedl_deploy.dialect import (
    LITERT,
    ONNXRUNTIME_X86,
    Contract,
    Dialect,
    Verdict,
    check,
    dialects,
    get_dialect,
    lower,
    notes_of,
)
from embedl_deploy.dialect._model import metadata, read
from embedl_deploy.errors import DialectError, ModelFileError

NAMES = [dialect.name for dialect in dialects()]


def run(model: onnx.ModelProto, feed: dict[str, np.ndarray], *, as_written: bool = False) -> np.ndarray:
    """Run a model; as written means without fusing anything."""
    options = ort.SessionOptions()
    options.log_severity_level = 4
    if as_written:
        options.graph_optimization_level = ort.GraphOptimizationLevel.ORT_DISABLE_ALL
    session = ort.InferenceSession(model.SerializeToString(), options, providers=["CPUExecutionProvider"])
    return np.asarray(session.run(None, feed)[0])


def edges(model: onnx.ModelProto) -> set[tuple[str, int]]:
    """Return the edges that read integers."""
    return set(read(model).edges)


def test_an_unknown_dialect_names_the_known_ones() -> None:
    """The message lists them."""
    with pytest.raises(DialectError, match=r"no dialect 'tflite'; known are .*'litert'"):
        get_dialect("tflite")
    mine = replace(ONNXRUNTIME_X86, name="mine")
    assert get_dialect(mine) is mine


@pytest.mark.parametrize("name", NAMES)
def test_every_dialect_gives_a_valid_file_of_the_same_function(name: str) -> None:
    """ONNX accepts it, and its outputs are near those of the source."""
    source = tensorrt_residual()
    lowered = lower(source, name)
    onnx.checker.check_model(lowered, full_check=True)
    assert metadata(lowered)["edgeproof.dialect"] == name
    wanted = run(source, sample(5), as_written=True)
    found = run(lowered, sample(5), as_written=True)
    assert np.abs(found - wanted).max() <= 0.03 * np.abs(wanted).max()


def test_the_model_given_is_not_changed() -> None:
    """Lowering works on a copy."""
    source = tensorrt_residual()
    before = source.SerializeToString()
    lower(source, "onnxruntime-x86")
    assert source.SerializeToString() == before


def test_tensorrt_keeps_the_skip_branch_alone() -> None:
    """Between a convolution and its addition there is no Q/DQ; zero points are 0 and biases float."""
    full = lower(tensorrt_residual(), "onnxruntime-x86")
    found = lower(full, "tensorrt")
    assert {("Add:a1", 1)} == {edge for edge in edges(found) if edge[0].startswith("Add")}
    qdq = read(found)
    assert all(params.type == "int8" and not params.zero_point for params in qdq.params.values())
    assert all(weight.params.type == "int8" for weight in qdq.weights.values())


def test_a_file_of_another_tool_loses_what_tensorrt_cannot_use() -> None:
    """Q/DQ on both branches and on epilogues go; of two convolutions the shorter branch keeps its pair."""
    net = Graph()
    x = net.qdq(net.input("x", [1, 8, 8, 8]), 0.02)
    net.node("Conv", [x, net.weight("w0", (8, 8, 1, 1))], "c0")
    net.node("Relu", [net.qdq("c0", 0.05)], "r0")
    net.node("Conv", [net.qdq("r0", 0.05), net.weight("w1", (8, 8, 1, 1))], "c1")
    net.node("Conv", [x, net.weight("w2", (8, 8, 1, 1))], "down")
    net.node("Add", [net.qdq("c1", 0.05), net.qdq("down", 0.05)], "a")
    net.node("Sigmoid", [net.qdq("a", 0.1)], "y")
    found = lower(net.model("y"), "tensorrt")
    assert edges(found) == {("Conv:c0", 0), ("Conv:c1", 0), ("Conv:down", 0), ("Add:a", 1)}


def test_onnxruntime_gets_both_sides_from_observed_ranges() -> None:
    """The addition's open branch and the convolution's output get Q from the ranges in the metadata."""
    found = lower(tensorrt_residual(), "onnxruntime-x86")
    assert {("Add:a1", 0), ("Add:a1", 1)} <= edges(found)
    contract = check(found, "onnxruntime-x86")
    assert contract.coverage == (3, 3)
    assert not contract.unfused
    assert not contract.disagreements
    assert notes_of(found) == ()


def test_a_missing_range_is_told(tmp_path: Path) -> None:
    """Without ranges the layer stays float, and the note says which tensor lacks one; a file's path will do."""
    found = lower(tensorrt_residual(ranges=False), "onnxruntime-x86")
    assert any("Conv Conv:c1 stays in float" in note and "'c1'" in note for note in notes_of(found))
    onnx.save(found, tmp_path / "net.onnx")
    assert notes_of(tmp_path / "net.onnx") == notes_of(str(tmp_path / "net.onnx")) == notes_of(found)


def _stream() -> onnx.ModelProto:
    """Return a linear layer beside a float stream that it is added to, as in a transformer; no range is told."""
    net = Graph()
    x = net.input("x", [1, 4, 8])
    product = net.node("MatMul", [net.qdq(x, 0.03), net.weight("w", (8, 8), axis=1)], "product")
    net.node("ReduceMax", [net.node("Add", [x, product], "stream")], "y", axes=[2])
    return net.model("y")


def test_a_stream_that_was_simulated_in_float_stays_float() -> None:
    """LiteRT wants Q behind the layer; the addition has an integer kernel, and is left alone all the same."""
    samples = list(np.random.default_rng(0).normal(size=(4, 1, 4, 8)).astype(np.float32))
    lowered = lower(_stream(), "litert", samples=samples)
    assert edges(lowered) == {("MatMul:product", 0), ("Add:stream", 1)}
    assert check(lowered, replace(LITERT, confirm=_nobody)).coverage == (1, 1)
    rounded = lower(_stream(), replace(LITERT, keeps_float=frozenset()), samples=samples)
    assert edges(rounded) >= {("Add:stream", 0), ("Add:stream", 1), ("ReduceMax:y", 0)}


def test_what_is_rounded_once_it_is_joined_is_integer_before() -> None:
    """A product that goes into a Concat with Q behind it has no reason to be float."""
    net = Graph()
    x = net.qdq(net.input("x", [1, 4, 6, 6]), 0.03)
    joined = net.node("Concat", [net.node("Mul", [x, x], "square"), x], "joined", axis=1)
    net.node("Conv", [net.qdq(joined, 0.05), net.weight("w", (4, 8, 1, 1))], "y")
    samples = list(np.random.default_rng(0).normal(size=(4, 1, 4, 6, 6)).astype(np.float32))
    assert edges(lower(net.model("y"), "litert", samples=samples)) >= {("Mul:square", 0), ("Concat:joined", 0)}


def test_samples_tell_the_ranges_that_a_file_lacks() -> None:
    """Without them the layer stays float, and a note says so."""
    lowered = lower(_stream(), "litert")
    assert "no range was observed" in notes_of(lowered)[0]
    samples = [np.ones((1, 4, 8), np.float32)]
    assert not notes_of(lower(_stream(), "litert", samples=samples))


def _nobody(model: onnx.ModelProto, dialect: Dialect, rows: tuple[Verdict, ...]) -> Contract:
    del model
    return Contract(dialect.name, rows, "Nobody was asked.")


def test_after_relu_the_zero_point_is_the_minimum() -> None:
    """So that the runtime sees that the Relu does nothing; the scale stays to the bit."""
    source = read(tensorrt_residual())
    x86 = read(lower(tensorrt_residual(), "onnxruntime-x86-vnni"))
    arm = read(lower(tensorrt_residual(), "onnxruntime-arm"))
    assert (x86.params["r0"].type, int(x86.params["r0"].zero_point)) == ("uint8", 0)
    assert (arm.params["r0"].type, int(arm.params["r0"].zero_point)) == ("int8", -128)
    assert (x86.params["x"].type, int(x86.params["x"].zero_point)) == ("uint8", 128)
    for name in ("x", "r0", "r1"):
        assert (
            x86.params[name].scale.tobytes() == source.params[name].scale.tobytes() == arm.params[name].scale.tobytes()
        )


def test_refit_uses_all_integers() -> None:
    """A range that starts at 0 gets a step half as long."""
    found = read(lower(tensorrt_residual(), "onnxruntime-x86-vnni", scales="refit"))
    assert float(found.params["r0"].scale) == pytest.approx(found.ranges["r0"][1] / 255)


@pytest.mark.parametrize("middle", [name for name in NAMES if name != "tensorrt"])
def test_the_way_back_gives_the_same_bits(middle: str) -> None:
    """From tensorrt over any dialect and back: scales, zero points, weights and biases are equal."""
    first = lower(tensorrt_residual(), "tensorrt")
    back = lower(lower(first, middle), "tensorrt")
    assert scales(first) == scales(back)
    values = [{v.name: v.SerializeToString() for v in model.graph.initializer} for model in (first, back)]
    assert values[0] == values[1]
    assert [node.SerializeToString() for node in first.graph.node] == [n.SerializeToString() for n in back.graph.node]


def test_an_origin_that_no_longer_fits_is_not_used() -> None:
    """Somebody changed a scale after lowering: the file's own scale counts, and the note says so."""
    lowered = lower(tensorrt_residual(), "onnxruntime-x86")
    for value in lowered.graph.initializer:
        if value.name == "r0/scale":
            value.CopyFrom(numpy_helper.from_array(np.asarray(0.125, np.float32), value.name))
    back = lower(lowered, "tensorrt")
    assert any("origin is not used" in note for note in notes_of(back))
    kept = {round(float(params.scale), 6) for params in read(back).params.values()}
    assert round(255 * 0.125 / 127, 6) in kept or 0.125 in kept


def test_a_broken_origin_is_one_clear_error() -> None:
    """Metadata can be edited by hand."""
    lowered = lower(tensorrt_residual(), "onnxruntime-x86")
    helper.set_model_props(lowered, {**metadata(lowered), "edgeproof.origin": '{"boundaries": 3}'})
    with pytest.raises(ModelFileError, match=r"'edgeproof.origin' cannot be read"):
        lower(lowered, "tensorrt")


def test_a_relu_in_the_zero_point_is_spelled_out() -> None:
    """Tools drop the Relu where uint8 0 does its work; int8 needs it back, and the way back drops it again."""
    net = Graph()
    x = net.qdq(net.input("x", [1, 8, 6, 6]), 0.02, 128, "uint8")
    net.node("Conv", [x, net.weight("w0", (8, 8, 1, 1))], "c0")
    net.node("Conv", [net.qdq("c0", 0.02, 0, "uint8"), net.weight("w1", (8, 8, 1, 1))], "y")
    source = net.model("y")
    found = lower(source, "tensorrt")
    assert Counter(node.op_type for node in found.graph.node)["Relu"] == 1
    feed = sample(2, (1, 8, 6, 6))
    wanted = run(source, feed, as_written=True)
    assert np.abs(run(found, feed, as_written=True) - wanted).max() < 0.05 * np.abs(wanted).max()
    back = lower(found, "onnxruntime-x86")
    assert Counter(node.op_type for node in back.graph.node)["Relu"] == 0
    assert scales(back) == scales(lower(source, "onnxruntime-x86"))


def test_an_output_gets_its_pair_and_keeps_its_name() -> None:
    """A convolution that makes the output fuses too; the way back restores the graph."""
    net = Graph()
    x = net.qdq(net.input("x", [1, 8, 6, 6]), 0.02)
    net.node("Conv", [x, net.weight("w", (8, 8, 1, 1)), net.bias("b", 8)], "y")
    source = net.model("y", ranges={"y": [-4.0, 4.0]})
    found = lower(source, "onnxruntime-x86")
    assert [value.name for value in found.graph.output] == ["y"]
    assert check(found, "onnxruntime-x86").coverage == (1, 1)
    assert scales(lower(found, "tensorrt")) == scales(lower(source, "tensorrt"))


def test_a_bias_that_does_not_fit_int32_widens_its_channel() -> None:
    """A dead channel has a tiny scale; the bias still comes out right."""
    net = Graph()
    x = net.qdq(net.input("x", [1, 4]), 0.02)
    net.constant("w", np.zeros((3, 4)), np.int8)
    net.constant("w.s", [0.01, 1e-20, 0.01])
    net.constant("w.z", np.zeros(3), np.int8)
    weight = net.node("DequantizeLinear", ["w", "w.s", "w.z"], "w.d", axis=0)
    net.node("Gemm", [x, weight, net.constant("b", [0.5, 2.0, -0.5])], "y", transB=1)
    found = lower(net.model("y"), "onnxruntime-x86")
    assert any("too small for their bias" in note for note in notes_of(found))
    assert run(found, {"x": np.ones((1, 4), np.float32)})[0] == pytest.approx([0.5, 2.0, -0.5], rel=1e-3)


def test_clip_ends_where_the_format_ends() -> None:
    """A ReLU6 is absorbed only if no integer lies beyond 6."""
    net = Graph()
    x = net.qdq(net.input("x", [1, 8, 6, 6]), 0.02)
    net.node("Conv", [x, net.weight("w0", (8, 8, 1, 1)), net.bias("b0", 8)], "c0")
    net.node("Clip", ["c0", net.constant("zero", 0.0), net.constant("six", 6.0)], "r0")
    net.node("Conv", [net.qdq("r0", 6 / 127), net.weight("w1", (8, 8, 1, 1))], "y")
    found = lower(net.model("y", ranges={"y": [-9, 9]}), "onnxruntime-x86")
    assert read(found).params["r0"].bounds[1] <= 6.0
    assert check(found, "onnxruntime-x86").coverage == (2, 2)
    assert not check(found, "onnxruntime-x86").disagreements


def test_concat_gets_one_scale() -> None:
    """TensorRT copies without rounding again; the widest range wins and the note names the tensors."""
    net = Graph()
    net.input("x", [1, 4, 6, 6])
    net.input("z", [1, 4, 6, 6])
    net.node("Concat", [net.qdq("x", 0.02), net.qdq("z", 0.05)], "c", axis=1)
    net.node("Conv", [net.qdq("c", 0.05), net.weight("w", (8, 8, 1, 1))], "y")
    found = lower(net.model("y"), "tensorrt")
    assert {float(params.scale) for params in read(found).params.values()} == {np.float32(0.05)}
    assert any("One scale for c, x, z" in note for note in notes_of(found))


def int4_net(*, block: bool = True) -> onnx.ModelProto:
    """Return a matrix product whose weight is int4."""
    net = Graph(opset=21)
    net.input("x", [2, 32])
    values = np.random.default_rng(0).integers(-8, 8, (32, 8)).astype(ml_dtypes.int4)
    net.constants.append(numpy_helper.from_array(values, "w"))
    net.constant("w.s", np.full((2, 8), 0.1) if block else np.full(8, 0.1))
    options = {"axis": 0, "block_size": 16} if block else {"axis": 1}
    weight = net.node("DequantizeLinear", ["w", "w.s"], "w.d", **options)
    net.node("MatMul", ["x", weight], "y")
    return net.model("y")


def test_int4_weights_go_where_they_can() -> None:
    """TensorRT and ONNX Runtime read them; LiteRT refuses, or leaves them float with a note when asked to."""
    feed = {"x": np.random.default_rng(1).normal(size=(2, 32)).astype(np.float32)}
    wanted = run(int4_net(), feed, as_written=True)
    for name in ("tensorrt", "onnxruntime-x86", "openvino"):
        found = lower(int4_net(), name)
        onnx.checker.check_model(found, full_check=True)
        assert np.allclose(run(found, feed, as_written=True), wanted, atol=1e-5)
    with pytest.raises(DialectError, match=r"litert cannot express 'w' \(int4 weights\).*fallback=True") as caught:
        lower(int4_net(), "litert")
    assert caught.value.places == ("w",)
    found = lower(int4_net(), "litert", fallback=True)
    assert any("no int4 weights" in note for note in notes_of(found))
    assert np.allclose(run(found, feed), wanted, atol=1e-5)


def fp8_net() -> onnx.ModelProto:
    """Return a matrix product in FP8."""
    net = Graph(opset=19)
    net.input("x", [2, 16])
    for name in ("x", "w"):
        net.constant(f"{name}.s", 0.02)
        net.constants.append(numpy_helper.from_array(np.zeros((), ml_dtypes.float8_e4m3fn), f"{name}.z"))
    net.node("QuantizeLinear", ["x", "x.s", "x.z"], "x.q")
    net.node("DequantizeLinear", ["x.q", "x.s", "x.z"], "x.d")
    values = np.random.default_rng(0).normal(size=(16, 4)).astype(ml_dtypes.float8_e4m3fn)
    net.constants.append(numpy_helper.from_array(values, "w"))
    net.node("DequantizeLinear", ["w", "w.s", "w.z"], "w.d")
    net.node("MatMul", ["x.d", "w.d"], "y")
    return net.model("y")


def test_fp8_is_for_tensorrt() -> None:
    """ONNX Runtime on a CPU has no kernels for it: one error, or float with notes."""
    found = lower(fp8_net(), "tensorrt")
    onnx.checker.check_model(found, full_check=True)
    assert {params.type for params in read(found).params.values()} == {"float8e4m3fn"}
    assert not check(found, "tensorrt").refused
    with pytest.raises(DialectError, match="onnxruntime-x86 cannot express 'w'"):
        lower(fp8_net(), "onnxruntime-x86")
    assert len(notes_of(lower(fp8_net(), "onnxruntime-x86", fallback=True))) == 2


def test_int16_activations_are_refused_by_tensorrt() -> None:
    """And pass through ONNX Runtime's dialect, at the opset that has them."""
    net = Graph(opset=21)
    net.node("Gemm", [net.qdq(net.input("x", [1, 4]), 0.001, 0, "int16"), net.weight("w", (4, 4))], "y", transB=1)
    source = net.model("y")
    with pytest.raises(DialectError, match="int16 activations"):
        lower(source, "tensorrt")
    assert read(lower(source, "litert")).params["x"].type == "int16"


def test_float16_casts_at_the_edges_only() -> None:
    """Inputs and outputs stay float32, scales and constants become float16, and the engine builder takes it."""
    found = lower(tensorrt_residual(), "tensorrt", float_type="float16")
    onnx.checker.check_model(found, full_check=True)
    assert Counter(node.op_type for node in found.graph.node)["Cast"] == 2
    kinds = {value.data_type for value in found.graph.initializer}
    assert onnx.TensorProto.FLOAT not in kinds
    wanted = run(tensorrt_residual(), sample(1), as_written=True)
    assert np.abs(run(found, sample(1), as_written=True) - wanted).max() < 0.02 * np.abs(wanted).max()
    assert not check(found, "tensorrt").refused
    with pytest.raises(DialectError, match="takes the rest of the graph in 'float32'"):
        lower(tensorrt_residual(), "litert", float_type="float16")


def test_a_norm_in_steps_stays_float32() -> None:
    """Its squares overflow float16: 300 squared is above 65504."""
    net = Graph(opset=18)
    net.input("x", [1, 64])
    axes = net.constant("axes", [-1], np.int64)
    net.node("ReduceMean", ["x", axes], "mean")
    net.node("Sub", ["x", "mean"], "d")
    net.node("Pow", ["d", net.constant("two", 2.0)], "sq")
    net.node("ReduceMean", ["sq", axes], "var")
    net.node("Add", ["var", net.constant("eps", 1e-5)], "ve")
    net.node("Sqrt", ["ve"], "sd")
    net.node("Div", ["d", "sd"], "n")
    net.node("Gemm", [net.qdq("n", 0.02), net.weight("w", (4, 64))], "y", transB=1)
    source = net.model("y")
    feed = {"x": (np.random.default_rng(0).normal(size=(1, 64)) * 400).astype(np.float32)}
    found = lower(source, "tensorrt", float_type="float16")
    onnx.checker.check_model(found, full_check=True)
    assert any("squares overflow" in note for note in notes_of(found))
    wanted = run(source, feed, as_written=True)
    assert np.abs(run(found, feed, as_written=True) - wanted).max() < 0.02 * np.abs(wanted).max()


@pytest.mark.parametrize("opset", [11, 12])
def test_old_opsets_are_raised(opset: int) -> None:
    """Per-channel scales need opset 13."""
    net = Graph(opset=opset)
    net.node("Relu", [net.qdq(net.input("x", [1, 4]), 0.02)], "y")
    found = lower(net.model("y"), "onnxruntime-x86")
    assert found.opset_import[0].version >= 13


def test_an_opset_that_cannot_be_raised_is_refused() -> None:
    """The message says from where to where."""
    net = Graph(opset=8)
    net.node(
        "Scan", ["", net.input("x", [1, 1, 4, 4])], "y", num_scan_inputs=1, body=helper.make_graph([], "b", [], [])
    )
    with pytest.raises(ModelFileError, match=r"opset 8, this needs 13, and it could not be converted|not valid"):
        lower(net.model("y"), "tensorrt")


def test_what_cannot_be_lowered_is_one_clear_error() -> None:
    """No operators, integer operators, a broken scale, an unknown option."""
    with pytest.raises(ModelFileError, match="no operators"):
        lower(onnx.ModelProto(), "tensorrt")
    net = Graph()
    net.node("QLinearMatMul", [net.input("x", [1])] * 8, "y")
    with pytest.raises(ModelFileError, match=r"integer operators .*only Q/DQ models"):
        lower(net.model("y"), "tensorrt")
    net = Graph()
    net.node("Relu", [net.qdq(net.input("x", [1, 4]), float("nan"))], "y")
    with pytest.raises(ModelFileError, match="negative or not finite"):
        lower(net.model("y"), "tensorrt")
    with pytest.raises(DialectError, match="scales='other' is not known"):
        lower(tensorrt_residual(), "tensorrt", scales="other")  # type: ignore[arg-type]
    bad = tensorrt_residual()
    helper.set_model_props(bad, {"edgeproof.ranges": "[1, 2]"})
    with pytest.raises(ModelFileError, match=r"'edgeproof.ranges' is not JSON of the form"):
        lower(bad, "tensorrt")


@settings(max_examples=25, deadline=None)
@given(st.integers(0, 10_000), st.sampled_from(["int8", "uint8"]))
def test_any_chain_comes_back_with_its_scales(seed: int, kind: str) -> None:
    """Random networks, random formats: tensorrt, onnxruntime-x86, tensorrt gives equal bits."""
    random = np.random.default_rng(seed)
    net = Graph(seed=seed)
    tensor = net.input("x", [1, 8, 8, 8])
    ranges = {"x": [-1.0, 1.0]}
    for number in range(int(random.integers(1, 5))):
        zero = int(random.integers(0, 256)) if kind == "uint8" else int(random.integers(-128, 128))
        read_as = net.qdq(tensor, float(random.uniform(0.001, 0.1)), zero, kind)
        made = net.node(
            "Conv", [read_as, net.weight(f"w{number}", (8, 8, 1, 1)), net.bias(f"b{number}", 8)], f"c{number}"
        )
        if random.random() < 0.6:
            made = net.node("Relu", [made], f"r{number}")
        elif random.random() < 0.5:
            made = net.node("Add", [made, read_as], f"a{number}")
        ranges |= {f"c{number}": [-3.0, 3.0], made: [-4.0, 4.0]}
        tensor = made
    source = net.model(tensor, ranges=ranges)
    first = lower(source, "tensorrt")
    second = lower(lower(first, "onnxruntime-x86"), "tensorrt")
    assert scales(first) == scales(second)
    assert json.loads(metadata(first)["edgeproof.origin"]) == json.loads(metadata(second)["edgeproof.origin"])


@pytest.mark.parametrize("dialect", ["onnxruntime-x86", "openvino", "litert"])
def test_a_table_of_constants_gets_no_pair_of_its_own(dialect: str) -> None:
    """A Gather from quantized constants whose result is rounded too: the file is valid and gives the same numbers."""
    net = Graph(seed=4)
    net.input("x", [1, 16])
    index = net.constant("rows", [0, 2, 1], np.int64)
    net.node("Gather", [net.weight("words", (6, 16), axis=None), index], "g")
    net.node("Add", [net.qdq("g", 0.008), net.qdq("x", 0.02)], "a")
    net.node("Gemm", [net.qdq("a", 0.03), net.weight("w", (10, 16)), net.bias("b", 10)], "y", transB=1)
    model = net.model("y")
    lowered = lower(model, dialect)
    onnx.checker.check_model(lowered, full_check=True)
    feed = sample(1, (1, 16))
    before, after = (ort.InferenceSession(each.SerializeToString()).run(None, feed)[0] for each in (model, lowered))
    assert np.abs(before - after).max() < 0.1 * np.abs(before).max()


def test_a_transposed_convolution_is_lowered_with_samples() -> None:
    """Its weight runs otherwise than a convolution's, and no pairs are looked for in it."""
    net = Graph(seed=5)
    x = net.qdq(net.input("x", [1, 8, 6, 6]), 0.03)
    net.node("ConvTranspose", [x, net.weight("w", (8, 4, 2, 2), axis=1), net.bias("b", 4)], "t", strides=[2, 2])
    net.node("Relu", ["t"], "y")
    lowered = lower(net.model("y"), "openvino", samples=[sample(seed, (1, 8, 6, 6)) for seed in range(2)])
    onnx.checker.check_model(lowered, full_check=True)
    assert any(node.op_type == "ConvTranspose" for node in lowered.graph.node)
