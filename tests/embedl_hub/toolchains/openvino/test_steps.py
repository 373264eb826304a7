"""Compile, profile and invoke with OpenVINO: the same here and on a board over SSH."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
import onnxruntime
import pytest
from support.models import images, residual_net, save

from embedl_hub.core.compile import CompileError, OpenVINOCompiledModel, OpenVINOCompiler
from embedl_hub.core.device import Device, SSHCommandRunner
from embedl_hub.core.invoke import InvokeError, OpenVINOInvoker
from embedl_hub.core.profile import OpenVINOPairedProfiler, OpenVINOProfiler, ProfileError
from embedl_hub.core.steps import keep_model
from embedl_hub.core.toolchain import find_toolchain
from embedl_hub.testing import check_provider, temporary_context


def wanted(model: Path, data: np.ndarray) -> np.ndarray:
    """Return what ONNX Runtime answers."""
    session = onnxruntime.InferenceSession(str(model), providers=["CPUExecutionProvider"])
    return np.concatenate([session.run(None, {"x": one[None]})[0] for one in data])


@pytest.mark.parametrize("step", ["compile", "profile", "pair", "invoke"])
def test_the_providers_conform(device: Device, model: Path, step: str) -> None:
    """Both keep every rule we ask of others."""
    kind, devices = device.provider_type, [device]
    if step == "compile":
        missing = [model.with_name("missing.onnx")]
        check_provider(OpenVINOCompiler(), kind, model, devices=devices, bad_args=missing)
        return
    with temporary_context() as ctx:
        compiled = OpenVINOCompiler().run(ctx, model)
        if step == "invoke":
            good, bad = {"x": images(1)}, {"x": images(1, size=8)}
            check_provider(OpenVINOInvoker(), kind, compiled, good, devices=devices, bad_args=[compiled, bad])
            return
        dynamic = OpenVINOCompiler().run(ctx, save(residual_net("n"), model.with_name("dynamic.onnx")))
        if step == "profile":
            check_provider(OpenVINOProfiler(), kind, compiled, devices=devices, bad_args=[dynamic])
        else:
            both = [compiled, compiled]
            check_provider(
                OpenVINOPairedProfiler(samples=10), kind, both, devices=devices, bad_args=[[compiled, dynamic]]
            )


def test_a_whole_journey(device: Device, model: Path) -> None:
    """Answers as ONNX Runtime's; samples, layers with their source, placement, memory, what it really ran in."""
    data = images(3)
    with temporary_context([device]) as ctx:
        compiled = OpenVINOCompiler().run(ctx, model)
        assert sorted(path.suffix for path in compiled.path.local().iterdir()) == [".bin", ".xml"]
        result = OpenVINOProfiler().run(ctx, compiled, require_provider="CPU")
        document = json.loads(result.output_file.local().read_text())  # type: ignore[union-attr]
        answer = OpenVINOInvoker().run(ctx, compiled, {"x": data})
        run = ctx.client.store.run(result.output_file.run_id)  # type: ignore[union-attr]
    assert np.abs(answer.output["y"] - wanted(model, data)).max() < 1e-5
    assert result.peak_memory_mb is not None
    assert document["runtime"]["name"] == "openvino"
    assert len(document["samples_us"]) == document["iterations"] >= 20
    assert document["settings"]["threads"] == 1
    assert document["ran"]["execution_devices"] == ["CPU"]
    assert document["ran"]["inference_precision"] == {"CPU": "f32"}
    by_source = {layer.source_nodes: layer for layer in result.layers}
    conv = by_source[("conv/0", "norm/0", "relu/0")]
    assert (conv.op_type, conv.compute_unit, conv.integer) == ("Convolution", "CPU", False)
    assert conv.extra["precision"] == "f32"
    assert conv.extra["kernel"]
    assert by_source[("fc", "bias")].op_type == "FullyConnected"
    assert document["source"]["nodes_without_layer"] == []
    assert {node["op_type"] for node in document["placement"]["CPU"]} >= {"Convolution", "FullyConnected"}
    assert run.params["precision"].value == "float32"


def test_calibration_data_makes_it_int8(here: Device, model: Path) -> None:
    """Convolutions and products in integers, near the float answers; the names lead back to the float source."""
    with temporary_context([here]) as ctx:
        compiled = OpenVINOCompiler().run(ctx, model, calibration_data={"x": images(16)})
        result = OpenVINOProfiler().run(ctx, compiled)
        answer = OpenVINOInvoker().run(ctx, compiled, {"x": images(4, seed=5)})
        assert answer.compare({"y": wanted(model, images(4, seed=5))}).cosine > 0.999
        found = ctx.client.store.find("params.precision = 'int8'").runs  # type: ignore[union-attr]
        assert len(found) == 3
    assert compiled.quantization["method"] == "minmax"
    integer = {node: layer.integer for layer in result.layers for node in layer.source_nodes}
    assert {node for node, value in integer.items() if value} >= {"conv/0", "conv/1", "add/1", "fc"}
    assert all(layer.integer is None for layer in result.layers if layer.added_by_runtime)


def test_open_and_fixed_shapes(here: Device, tmp_path: Path) -> None:
    """An open batch stays open and takes any; a fixed one is fixed; without data the error has the words to add."""
    source = save(residual_net("n"), tmp_path / "net.onnx")
    with temporary_context([here]) as ctx:
        dynamic = OpenVINOCompiler().run(ctx, source)
        for count in (1, 3):
            answer = OpenVINOInvoker().run(ctx, dynamic, {"x": images(count)})
            assert np.abs(answer.output["y"] - wanted(source, images(count))).max() < 1e-5
        with pytest.raises(ProfileError, match=r"no fixed shape.*input_shape=\(1, 3, 16, 16\)"):
            OpenVINOProfiler().run(ctx, dynamic)
        assert OpenVINOProfiler().run(ctx, dynamic, input_data={"x": images(2)}).layers
        fixed = OpenVINOCompiler(input_shape=(2, 3, 16, 16)).run(ctx, source)
        with pytest.raises(InvokeError, match="the model takes"):
            OpenVINOInvoker().run(ctx, fixed, {"x": images(3)})
        with pytest.raises(CompileError, match="fits no input"):
            OpenVINOCompiler(input_shape=(2, 3, 16)).run(ctx, source)


def test_a_precision_is_what_was_asked_for(make_here: Any, model: Path) -> None:
    """Bfloat16 only where the user asks; a device that cannot says what it can."""
    said = pytest.raises(CompileError, match="CPU does not compute in f16; it computes in:")
    with temporary_context([make_here(inference_precision="f16")]) as ctx, said:
        OpenVINOCompiler().run(ctx, model)
    with temporary_context([make_here(inference_precision="bf16")]) as ctx:
        try:
            compiled = OpenVINOCompiler().run(ctx, model)
        except CompileError as error:
            assert "does not compute in bf16" in str(error)  # noqa: PT017 - a processor without it
            return
        result = OpenVINOProfiler().run(ctx, compiled)
    assert "bf16" in {layer.extra["precision"] for layer in result.layers}


def test_the_model_cache(make_here: Any, model: Path, monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    """The second load is from the cache, and its layers still have the names of the model's."""
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    with temporary_context([make_here(model_cache=True)]) as ctx:
        compiled = OpenVINOCompiler().run(ctx, model)
        results = [OpenVINOProfiler().run(ctx, compiled) for _ in range(2)]
        documents = [json.loads(each.output_file.local().read_text()) for each in results]  # type: ignore[union-attr]
    assert documents[-1]["ran"]["from_cache"] is True
    assert ("conv/0", "norm/0", "relu/0") in {layer.source_nodes for layer in results[-1].layers}
    assert list((tmp_path / "cache" / "edgeproof" / "openvino").iterdir())


def test_auto_and_hetero(make_here: Any, model: Path) -> None:
    """AUTO chooses, HETERO cuts in parts; both tell where layers ran, and in the precision we pin."""
    for name in ("AUTO", "HETERO:CPU"):
        with temporary_context([make_here(openvino_device=name)]) as ctx:
            compiled = OpenVINOCompiler().run(ctx, model)
            result = OpenVINOProfiler().run(ctx, compiled, require_provider="CPU")
        assert {layer.provider for layer in result.layers} == {"CPU"}
        assert {layer.extra["precision"] for layer in result.layers} == {"f32"}


def test_a_board_without_the_program(make_board: Any, board: SSHCommandRunner, model: Path) -> None:
    """The hub carries it there."""
    import sys

    device = make_board(board, embedl_openvino_path="no-such-program", python_path=sys.executable)
    with temporary_context([device]) as ctx:
        compiled = OpenVINOCompiler().run(ctx, model)
        assert OpenVINOInvoker().run(ctx, compiled, {"x": images(1)}).output["y"].shape == (1, 10)


def test_files_of_the_users_own(here: Device, model: Path, tmp_path: Path) -> None:
    """An .xml file with its .bin is a model; without it, or of another kind, it is refused in words."""
    with temporary_context([here]) as ctx:
        made = OpenVINOCompiler().run(ctx, model)
        xml = next(path for path in made.path.local().iterdir() if path.suffix == ".xml")
        own = keep_model(ctx, OpenVINOProfiler, xml)
        assert isinstance(own, OpenVINOCompiledModel)
        result = OpenVINOProfiler().run(ctx, own)
        assert any("conv/1" in str(layer.extra["original"]) for layer in result.layers)
        alone = tmp_path / "alone.xml"
        alone.write_bytes(xml.read_bytes())
        for path, words in ((alone, "no weights beside it"), (model, "compile it first")):
            with pytest.raises(Exception, match=words):
                keep_model(ctx, OpenVINOProfiler, path)
    assert find_toolchain("openvino").suffixes == (".xml",)
