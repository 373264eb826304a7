"""Compiling: shapes fixed, the graph optimized where it will run, INT8 with calibration data."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import onnx
import pytest
from support.models import images, residual_net, save, two_input_net, weights

from embedl_hub.core.compile import CompileError, ONNXRuntimeCompiledModel, ONNXRuntimeCompiler
from embedl_hub.core.device import Device, DeviceSpec, EmbedlONNXRuntimeConfig, ONNXRuntimeConfig, SSHCommandRunner
from embedl_hub.core.invoke import ONNXRuntimeInvoker
from embedl_hub.errors import ConfigError
from embedl_hub.testing import check_provider, temporary_context
from embedl_hub.tracking import RunStatus, Store


def ops_of(compiled: ONNXRuntimeCompiledModel) -> set[str]:
    return {node.op_type for node in onnx.load(compiled.path.local()).graph.node}


def shape_of(compiled: ONNXRuntimeCompiledModel) -> list[int]:
    value = onnx.load(compiled.path.local()).graph.input[0]
    return [dim.dim_value for dim in value.type.tensor_type.shape.dim]


def test_the_providers_conform(device: Device, model: Path) -> None:
    """Both keep every rule we ask of others."""
    check_provider(
        ONNXRuntimeCompiler(),
        device.provider_type,
        model,
        devices=[device],
        bad_args=[model.with_name("missing.onnx")],
        input_shape=(1, 3, 16, 16),
    )


def test_the_graph_is_optimized_and_the_shape_fixed(device: Device, tmp_path: Path) -> None:
    """Norm and activation are gone into the convolution; names stay."""
    source = save(residual_net("n"), tmp_path / "net.onnx")
    with temporary_context([device]) as ctx:
        compiled = ONNXRuntimeCompiler().run(ctx, source, input_shape=(2, 3, 16, 16))
        assert shape_of(compiled) == [2, 3, 16, 16]
        assert not {"BatchNormalization", "Relu"} & ops_of(compiled)
        assert compiled.input is not None
        assert compiled.input.local().read_bytes() == source.read_bytes()
        assert compiled.input_name_mapping == {}
        run = ctx.client.store.run(compiled.path.run_id)  # type: ignore[union-attr]
        assert run.params["runtime_version"].value
        assert run.params["outputs"].value[0]["name"] == "y"  # type: ignore[index, call-overload]


def test_a_level_and_threads_come_from_the_config(model: Path) -> None:
    """Disabled means: every node of the source is still there."""
    device = Device("here", provider_type="local", provider_config=ONNXRuntimeConfig(optimization_level="disable"))
    with temporary_context([device]) as ctx:
        assert "BatchNormalization" in ops_of(ONNXRuntimeCompiler().run(ctx, model))


def test_weights_beside_the_model_come_along(device: Device, tmp_path: Path) -> None:
    """A file with external data is kept as a folder, without its neighbors, and compiles."""
    (tmp_path / "m").mkdir()
    (tmp_path / "m" / "neighbor.txt").write_text("not ours")
    source = tmp_path / "m" / "net.onnx"
    onnx.save(residual_net(), source, save_as_external_data=True, location="w.bin", size_threshold=0)
    with temporary_context([device]) as ctx:
        compiled = ONNXRuntimeCompiler().run(ctx, source)
        again = ONNXRuntimeCompiler().run(ctx, tmp_path / "m")
        assert compiled.input is not None
        assert compiled.input.is_folder
        assert {path.name for path in compiled.input.local().iterdir()} == {"net.onnx", "w.bin"}
        assert again.path.sha256 == compiled.path.sha256


def test_sizes_that_inputs_share_are_fixed_together(here: Device, tmp_path: Path) -> None:
    """One shape is enough for two inputs of one batch."""
    source = save(two_input_net(), tmp_path / "two.onnx")
    with temporary_context([here]) as ctx:
        compiled = ONNXRuntimeCompiler().run(ctx, source, input_shape=(3, 4))
        values = onnx.load(compiled.path.local()).graph.input
        assert [[d.dim_value for d in v.type.tensor_type.shape.dim] for v in values] == [[3, 4], [3, 8]]
        with pytest.raises(CompileError, match=r"input_shape \[3, 5\] fits no input.*a float32\[n, 4\]; b float32"):
            ONNXRuntimeCompiler().run(ctx, source, input_shape=(3, 5))


@pytest.mark.parametrize("method", ["minmax", "entropy", "percentile"])
def test_int8_is_close_to_float(method: str, here: Device, model: Path) -> None:
    """Every method; the number format is this processor's, and what was done is recorded."""
    with temporary_context([here]) as ctx:
        compiled = ONNXRuntimeCompiler(calibration_method=method, per_channel=True).run(
            ctx, model, calibration_data={"x": images(8)}
        )
        assert {"QLinearConv", "QLinearAdd"} & ops_of(compiled)
        assert compiled.quantization["method"] == method
        result = ONNXRuntimeInvoker().run(ctx, compiled, {"x": images(4, seed=9)})
        drift = result.compare(model)
        assert drift.cosine > 0.98
        run = ctx.client.store.run(compiled.path.run_id)  # type: ignore[union-attr]
        assert run.params["calibration_samples"].value == 8
        assert run.metric("calibration_cosine").value > 0.98  # type: ignore[union-attr]
        rebuilt = ONNXRuntimeCompiledModel.from_run(run)
        assert rebuilt.quantization == compiled.quantization


def test_the_target_decides_the_number_format(board: SSHCommandRunner, make_board, model: Path) -> None:  # type: ignore[no-untyped-def]  # noqa: ANN001
    """An ARM board gets int8 activations; the file is made here, whatever runs it."""
    arm = make_board(board)
    object.__setattr__(arm, "spec", DeviceSpec(architecture="aarch64"))
    with temporary_context([arm]) as ctx:
        compiled = ONNXRuntimeCompiler().run(ctx, model, calibration_data={"x": images(4)})
        assert compiled.quantization["format"] == {"activations": "int8", "weights": "int8", "portable": False}
        odd = make_board(board)
    object.__setattr__(odd, "spec", DeviceSpec(architecture="riscv64"))
    with temporary_context([odd]) as ctx, pytest.raises(CompileError, match="which INT8 format 'riscv64' runs fast"):
        ONNXRuntimeCompiler().run(ctx, model, calibration_data={"x": images(4)})


def test_integers_at_the_edges(here: Device, model: Path) -> None:
    """quantize_io: integers in and out, with the scales to convert them by."""
    data = images(4, seed=5)
    with temporary_context([here]) as ctx:
        compiled = ONNXRuntimeCompiler().run(ctx, model, calibration_data={"x": images(16)}, quantize_io=True)
        into, out = compiled.quantization["inputs"]["x"], compiled.quantization["outputs"]["y"]
        assert into["dtype"] == out["dtype"] == "uint8"
        steps = np.clip(np.round(data / into["scale"]) + into["zero_point"], 0, 255).astype(np.uint8)
        answer = ONNXRuntimeInvoker().run(ctx, compiled, {"x": steps}).output["y"]
        assert answer.dtype == np.uint8
        value = (answer.astype(np.float32) - out["zero_point"]) * out["scale"]
        plain = ONNXRuntimeInvoker().run(ctx, ONNXRuntimeCompiler().run(ctx, model), {"x": data})
        np.testing.assert_allclose(value, plain.output["y"], atol=0.1 * np.abs(plain.output["y"]).max())


def test_an_old_opset_is_raised_for_int8(here: Device, tmp_path: Path) -> None:
    """Per-channel scales do not exist before opset 13."""
    source = save(residual_net(opset=11), tmp_path / "old.onnx")
    with temporary_context([here]) as ctx:
        compiled = ONNXRuntimeCompiler(per_channel=True).run(ctx, source, calibration_data={"x": images(4)})
        assert "QLinearConv" in ops_of(compiled)


def test_a_bias_that_is_a_row_is_quantized(here: Device, tmp_path: Path) -> None:
    """As MatMul and Add of many exporters become; the quantizer itself stumbles over it."""
    model = residual_net()
    bias = next(value for value in model.graph.initializer if value.name == "b2")
    bias.dims[:] = [1, 10]
    # Old exporters declare weights as inputs too.
    model.graph.input.append(onnx.helper.make_tensor_value_info("b2", onnx.TensorProto.FLOAT, [1, 10]))
    source = save(model, tmp_path / "row.onnx")
    with temporary_context([here]) as ctx:
        compiled = ONNXRuntimeCompiler(per_channel=True).run(ctx, source, calibration_data={"x": images(4)})
        assert "QGemm" in ops_of(compiled)
        assert ONNXRuntimeInvoker().run(ctx, compiled, {"x": images(2)}).compare(source).cosine > 0.98


def test_a_model_the_quantizer_cannot_take_is_told_in_one_line(here: Device, tmp_path: Path) -> None:
    """Not in a traceback of another process."""
    model = residual_net()
    model.graph.node[0].attribute[0].ints[:] = [1, 1]
    with temporary_context([here]) as ctx, pytest.raises(CompileError) as caught:
        ONNXRuntimeCompiler().run(ctx, save(model, tmp_path / "odd.onnx"), calibration_data={"x": images(2)})
    assert "Traceback" not in str(caught.value)
    assert "\n" not in str(caught.value)


def test_options_of_int8_without_data_are_refused(here: Device, model: Path) -> None:
    """Silence would be a lie about the result."""
    with temporary_context([here]) as ctx:
        for options in ({"per_channel": True}, {"quantize_io": True}, {"calibration_method": "minmax"}):
            with pytest.raises(CompileError, match=r"--per-channel.* which needs .*\(--calibration-data\)"):
                ONNXRuntimeCompiler().run(ctx, model, **options)
        with pytest.raises(CompileError, match="one of minmax, entropy, percentile, not 'magic'"):
            ONNXRuntimeCompiler().run(ctx, model, calibration_data={"x": images(2)}, calibration_method="magic")


def not_onnx(folder: Path) -> Path:
    path = folder / "text.onnx"
    path.write_text("this is not a model")
    return path


def empty_file(folder: Path) -> Path:
    path = folder / "empty.onnx"
    path.write_bytes(b"")
    return path


def future_opset(folder: Path) -> Path:
    model = residual_net()
    model.opset_import[0].version = 99
    return save(model, folder / "future.onnx")


def weights_missing(folder: Path) -> Path:
    path = folder / "split.onnx"
    onnx.save(residual_net(), path, save_as_external_data=True, location="w.bin", size_threshold=0)
    (folder / "w.bin").unlink()
    return path


def weights_cut_short(folder: Path) -> Path:
    path = folder / "short.onnx"
    onnx.save(residual_net(), path, save_as_external_data=True, location="w.bin", size_threshold=0)
    data = (folder / "w.bin").read_bytes()
    (folder / "w.bin").write_bytes(data[: len(data) // 2])
    return path


def weights_outside(location: str) -> object:
    def make(folder: Path) -> Path:
        model = residual_net()
        tensor = weights("w0", 16, 3, 3, 3)
        tensor.ClearField("raw_data")
        tensor.data_location = onnx.TensorProto.EXTERNAL
        entry = tensor.external_data.add()
        entry.key, entry.value = "location", location
        model.graph.initializer[0].CopyFrom(tensor)
        path = folder / "outside.onnx"
        path.write_bytes(model.SerializeToString())
        return path

    return make


def weights_behind_a_link(folder: Path) -> Path:
    path = weights_missing(folder)
    (folder / "w.bin").symlink_to("/etc/passwd")
    return path


@pytest.mark.parametrize(
    ("make", "words"),
    [
        (not_onnx, "text.onnx is not an ONNX model"),
        (empty_file, "is not an ONNX model: it holds no graph"),
        (future_opset, "99"),
        (weights_missing, "there is no .*w.bin to read; copy it beside the model"),
        (weights_cut_short, "ends before byte"),
        (weights_outside("../../etc/passwd"), "'../../etc/passwd' is outside the model's folder"),
        (weights_outside("/etc/passwd"), "'/etc/passwd' is outside the model's folder"),
        (weights_behind_a_link, "'w.bin' is a link out of the model's folder"),
    ],
)
def test_bad_models_are_refused(make, words: str, device: Device, tmp_path: Path) -> None:  # type: ignore[no-untyped-def]  # noqa: ANN001
    """One clear error each; the run is kept as FAILED, the board is left clean."""
    path = make(tmp_path)
    home = tmp_path / "home"
    from embedl_hub.core import HubContext

    with HubContext("bad", [device], home=home) as ctx, pytest.raises(CompileError, match=words) as caught:
        ONNXRuntimeCompiler().run(ctx, path)
    assert "Traceback" not in str(caught.value)
    with Store(home) as store:
        (run,) = store.runs()
        assert store.run(run.id).status is RunStatus.FAILED
        assert store.run(run.id).error
    if device.runner is not None:
        assert list((tmp_path / "board").glob("runs/*")) == []


@pytest.mark.parametrize(
    ("data", "words"),
    [
        ({"x": images(0)}, "holds 0 samples; at least 1"),
        ({"x": np.full((2, 3, 16, 16), np.nan, np.float32)}, "Sample 0 .* holds NaN or infinity in 'x'"),
        ({"x": np.concatenate([images(1), np.full((1, 3, 16, 16), np.inf, np.float32)])}, "Sample 1 "),
        ({"z": images(2)}, "has arrays for 'z', the model's inputs are 'x'"),
        ({"x": images(2).astype(np.float64)}, r"is float64\[2, 3, 16, 16\], but the input is x float32"),
        ({"x": images(2, size=8)}, r"is float32\[2, 3, 8, 8\], but the input is x"),
        ("nowhere", "There is no calibration data nowhere"),
        (__file__, r"test_compile\.py is no calibration data: give a folder"),
    ],
)
def test_bad_calibration_data_is_refused(data: object, words: str, here: Device, model: Path) -> None:
    """Before anything is quantized from it."""
    with temporary_context([here]) as ctx, pytest.raises(CompileError, match=words):
        ONNXRuntimeCompiler().run(ctx, model, calibration_data=data)  # type: ignore[arg-type]


def test_a_config_is_checked_when_it_is_made() -> None:
    """Not when the board is busy."""
    with pytest.raises(ConfigError, match="optimization_level is one of disable, basic"):
        ONNXRuntimeConfig(optimization_level="maximum")
    with pytest.raises(ConfigError, match="threads must be at least 1"):
        ONNXRuntimeConfig(threads=0)
    with pytest.raises(ConfigError, match="cli_args is a tuple of strings"):
        EmbedlONNXRuntimeConfig("embedl-onnxruntime", "--threads 1")  # type: ignore[arg-type]
    assert EmbedlONNXRuntimeConfig("/opt/ort", ("--threads", "1")).cli_args == ("--threads", "1")
