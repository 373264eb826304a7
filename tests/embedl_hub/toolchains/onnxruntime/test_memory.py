"""Memory in ONNX Runtime: predicted from the file, measured by the runtime, and the two held against each other."""

from __future__ import annotations

import json
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import pytest
from onnx import TensorProto, helper, numpy_helper
from support.models import images, mobilenet_v2, residual_net, save

from embedl_hub.core.compile import CompileError, ONNXRuntimeCompiledModel, ONNXRuntimeCompiler
from embedl_hub.core.device import Device, DeviceSpec
from embedl_hub.core.document import MemoryProfile
from embedl_hub.core.invoke import InvokeError, ONNXRuntimeInvoker
from embedl_hub.core.profile import ONNXRuntimeProfiler, ONNXRuntimeProfilingResult, ProfileError
from embedl_hub.models.onnx_file import fix_input_shape, read_graph
from embedl_hub.testing import temporary_context
from embedl_hub.toolchains.onnxruntime.memory.arena import Arena
from embedl_hub.toolchains.onnxruntime.memory.file import plan_file
from embedl_hub.toolchains.onnxruntime.memory.measured import measured_memory
from embedl_hub.toolchains.onnxruntime.memory.planner import plan_buffers, run_order
from embedl_hub.toolchains.onnxruntime.memory.predict import predict_memory
from embedl_hub.toolchains.onnxruntime.memory.shapes import infer_types


def _value(name: str, *shape: int) -> onnx.ValueInfoProto:
    return helper.make_tensor_value_info(name, TensorProto.FLOAT, shape)


def _weight(name: str, *shape: int) -> onnx.TensorProto:
    # Layers that read equal weights are one to the runtime.
    random = np.random.default_rng(list(name.encode()))
    return numpy_helper.from_array(random.normal(size=shape).astype(np.float32), name)


def attention() -> onnx.ModelProto:
    """Return a block of a transformer: matrix products, a softmax that works in place, a norm and views."""
    node = helper.make_node
    nodes = [
        node("MatMul", ["x", "wq"], ["q"], name="q"), node("MatMul", ["x", "wk"], ["k"], name="k"),
        node("MatMul", ["x", "wv"], ["v"], name="v"), node("Transpose", ["k"], ["kt"], name="kt", perm=[0, 2, 1]),
        node("MatMul", ["q", "kt"], ["s"], name="s"), node("Softmax", ["s"], ["p"], name="p", axis=-1),
        node("MatMul", ["p", "v"], ["o"], name="o"), node("Add", ["o", "x"], ["r"], name="r"),
        node("LayerNormalization", ["r", "g", "b"], ["n"], name="n", axis=-1),
        node("Reshape", ["n", "shape"], ["flat"], name="flat"), node("MatMul", ["flat", "head"], ["y"], name="y"),
    ]  # fmt: skip
    weights = [_weight(name, 96, 96) for name in ("wq", "wk", "wv")]
    weights += [_weight("g", 96), _weight("b", 96), _weight("head", 64 * 96, 10)]
    weights.append(numpy_helper.from_array(np.array([1, 64 * 96], np.int64), "shape"))
    graph = helper.make_graph(nodes, "net", [_value("x", 1, 64, 96)], [_value("y", 1, 10)], weights)
    return helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=8)


def upsampling() -> onnx.ModelProto:
    """Return a net whose kernels take scratch memory: a convolution of odd channels and a transposed one."""
    node = helper.make_node
    nodes = [
        node("Conv", ["x", "w"], ["a"], name="conv", pads=[1, 1, 1, 1]), node("Relu", ["a"], ["r"], name="relu"),
        node("ConvTranspose", ["r", "u"], ["t"], name="up", strides=[2, 2], kernel_shape=[2, 2]),
        node("Concat", ["t", "t"], ["y"], name="join", axis=1),
    ]  # fmt: skip
    weights = [_weight("w", 10, 3, 3, 3), _weight("u", 10, 6, 2, 2)]
    graph = helper.make_graph(nodes, "net", [_value("x", 1, 3, 40, 40)], [_value("y", 1, 12, 80, 80)], weights)
    return helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=8)


def mobilenet() -> onnx.ModelProto:
    """Return MobileNetV2 with a batch of one."""
    model = mobilenet_v2()
    fix_input_shape(model, (1, 3, 224, 224))
    return model


NETS: dict[str, Callable[[], onnx.ModelProto]] = {
    "residual": residual_net, "attention": attention, "upsampling": upsampling, "mobilenet": mobilenet,
}  # fmt: skip


def profiled(
    device: Device, path: Path, **options: Any
) -> tuple[ONNXRuntimeCompiledModel, ONNXRuntimeProfilingResult, dict[str, Any]]:
    """Compile and profile a file and return the document too."""
    with temporary_context([device]) as ctx:
        compiled = ONNXRuntimeCompiler().run(ctx, path, device=device.name, **options)
        result = ONNXRuntimeProfiler().run(ctx, compiled, device=device.name)
        assert result.output_file is not None
        return compiled, result, json.loads(result.output_file.local().read_text())


@pytest.mark.parametrize("name", list(NETS))
def test_what_is_predicted_is_what_the_runtime_says(name: str, here: Device, tmp_path: Path) -> None:
    """The arena within a thousandth, every layer to the byte, and the parts add up to the runtime's own arena."""
    path = save(NETS[name](), tmp_path / "net.onnx")
    _, result, document = profiled(here, path)
    measured, predicted = (MemoryProfile.from_json(document[key]) for key in ("memory", "predicted_memory"))
    assert measured.arena_bytes is not None
    assert predicted.arena_bytes == pytest.approx(measured.arena_bytes, rel=1e-3)
    assert result.arena_peak_mb is not None
    assert result.arena_peak_mb.value == measured.arena_bytes / 1e6
    assert result.predicted_memory_mb is not None
    assert result.predicted_memory_mb.value == (predicted.total_bytes or 0) / 1e6
    assert sum(part.size_bytes for part in measured.parts) == measured.arena_bytes
    assert not any("not known" in part.what for part in measured.parts)
    base = [profile.facts["packed_weights_bytes"] for profile in (measured, predicted)]
    assert [row.in_use_bytes - int(str(base[0])) for row in measured.rows] == [
        row.in_use_bytes - int(str(base[1])) for row in predicted.rows
    ]
    assert measured.peak_layer == predicted.peak_layer == result.peak_layer
    assert result.peak_memory_mb is not None, "what the whole process took stays a number of its own"


def test_int8_is_predicted_as_exactly(here: Device, tmp_path: Path) -> None:
    """Integer convolutions take scratch memory and pack their weights otherwise."""
    path = save(residual_net(size=32), tmp_path / "net.onnx")
    _, _, document = profiled(here, path, calibration_data={"x": images(2, size=32)})
    measured, predicted = document["memory"], document["predicted_memory"]
    assert predicted["arena_bytes"] == pytest.approx(measured["arena_bytes"], rel=1e-3)
    assert sum(part["bytes"] for part in measured["parts"]) == measured["arena_bytes"]


def test_what_has_no_room_is_refused_before_it_is_sent(here: Device, tmp_path: Path) -> None:
    """With the layer, the way past it, and nothing measured; unless it is allowed."""
    path = save(mobilenet(), tmp_path / "net.onnx")
    tight = replace(here, name="tight", spec=DeviceSpec(memory_bytes=80_000_000))
    assert here.provider_config is not None
    bold = replace(tight, name="bold", provider_config=replace(here.provider_config, allow_out_of_memory=True))  # type: ignore[call-arg]
    with temporary_context([here, tight, bold]) as ctx:
        compiled = ONNXRuntimeCompiler().run(ctx, path, device="here")
        with pytest.raises(ProfileError, match=r"will not fit: \d+ of 80 MB, at layer .* allow_out_of_memory"):
            ONNXRuntimeProfiler().run(ctx, compiled, device="tight")
        with pytest.raises(InvokeError, match="will not fit"):
            ONNXRuntimeInvoker().run(ctx, compiled, {"x": images(1, size=224)}, device="tight")
        assert ONNXRuntimeProfiler().run(ctx, compiled, device="bold").latency.value > 0
        assert ctx.client.store is not None
        fits = [run.params["memory_fit"].value for run in ctx.client.store.find("type = 'PROFILE'").runs]
        assert all("will not fit" in str(text) for text in fits)


def test_weights_alone_are_refused_before_compiling(here: Device, tmp_path: Path) -> None:
    """A board is not sent what it cannot even load."""
    path = save(mobilenet(), tmp_path / "net.onnx")
    tiny = replace(here, spec=DeviceSpec(memory_bytes=66_000_000))
    with (
        temporary_context([tiny]) as ctx,
        pytest.raises(CompileError, match="weights of the model alone: will not fit"),
    ):
        ONNXRuntimeCompiler().run(ctx, path, device=tiny.name)


def test_an_operator_that_nobody_knows_is_no_number() -> None:
    """And it is named."""
    node = helper.make_node("Mystery", ["x"], ["y"], name="odd", domain="com.example")
    graph = helper.make_graph([node], "net", [_value("x", 1, 4)], [_value("y", 1, 4)])
    opsets = [helper.make_opsetid("", 17), helper.make_opsetid("com.example", 1)]
    found = predict_memory(helper.make_model(graph, opset_imports=opsets))
    assert found.total_bytes is None
    assert found.problem == "the shapes of these are not known: Mystery (odd)"


def test_open_sizes_are_known_from_the_data() -> None:
    """Without them there is no number."""
    model = residual_net("n")
    assert predict_memory(model).total_bytes is None
    one, four = (predict_memory(model, shapes={"x": (batch, 3, 16, 16)}) for batch in (1, 4))
    assert one.total_bytes is not None
    assert four.rows[0].in_use_bytes > one.rows[0].in_use_bytes


def test_a_source_is_optimized_before_it_is_planned(tmp_path: Path) -> None:
    """Fused layers keep nothing in between."""
    path = save(residual_net(), tmp_path / "net.onnx")
    found = plan_file(path)
    assert found.total_bytes is not None
    assert len(found.rows) < len(read_graph(path).graph.node)
    assert not any(row.op_type == "BatchNormalization" for row in found.rows)


def test_a_view_shares_and_an_activation_works_in_place() -> None:
    """Neither takes memory; a second reader forbids the latter."""
    model = upsampling()
    types, unknown = infer_types(model)
    assert not unknown
    steps = {step.name: step for step in plan_buffers(run_order(model.graph.node), model.graph, types).steps}
    assert steps["conv"].takes == ("a",)
    assert steps["relu"].takes == ()
    assert steps["up"].returns == ("a",)
    model.graph.node.append(helper.make_node("Neg", ["a"], ["also"], name="also"))
    model.graph.output.append(_value("also", 1, 10, 40, 40))
    types, _ = infer_types(model)
    steps = {step.name: step for step in plan_buffers(model.graph.node, model.graph, types).steps}
    assert steps["relu"].takes == ("r",)


def test_the_arena_rounds_splits_and_grows_as_the_runtime_s() -> None:
    """Figures of a real trace: 1605632 bytes asked for take a region of 2 MB whole, 802816 split one."""
    arena = Arena()
    arena.reserve(5_161_024)
    first = arena.take(1_605_632)
    assert (arena.in_use, arena.held) == (7_258_176, 7_258_176)
    arena.take(1_605_632)
    assert (arena.requested, arena.in_use, arena.held) == (8_372_288, 9_355_328, 9_355_328)
    arena.give(first)
    arena.take(802_816)
    assert (arena.requested, arena.in_use, arena.held) == (7_569_472, 8_060_992, 9_355_328)
    assert arena.peak == 9_355_328
    assert arena.take(0) is None


def test_names_are_left_out_where_they_would_be_a_guess() -> None:
    """The runtime's sum stays, and says that its layers are not known."""
    model = upsampling()
    rows = [
        {"name": node.name, "op_type": node.op_type, "in_use_bytes": 4096, "requested_bytes": 4000}
        for node in model.graph.node
    ]
    told = {"method": "told", "arena_bytes": 8192, "peak_layer": "conv", "packed_weights_bytes": 1024, "rows": rows}
    found = measured_memory(told, model)
    assert sum(part.size_bytes for part in found.parts) == 8192
    assert any("which of them is not known" in part.what for part in found.parts)
    silent = measured_memory({"method": "told", "rows": [], "missing_because": "not told by 1.16"}, model)
    assert (silent.arena_bytes, silent.problem) == (None, "not told by 1.16")
