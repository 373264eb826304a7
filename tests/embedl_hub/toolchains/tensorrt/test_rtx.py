"""Real engines from the real builder of TensorRT-RTX; no GPU is needed, and none is here."""

from __future__ import annotations

from pathlib import Path

import pytest
from onnx import TensorProto, helper
from support.models import images, residual_net, save
from support.quantized import quantized_net

from embedl_hub.core import HubContext
from embedl_hub.core.compile import CompileError, TensorRTCompiledModel, TensorRTCompiler
from embedl_hub.core.device import Device, LocalCommandRunner, TensorRTRTXConfig
from embedl_hub.core.invoke import InvokeError, TensorRTInvoker
from embedl_hub.core.profile import ProfileError, TensorRTProfiler
from embedl_hub.errors import NoProviderError
from embedl_hub.testing import check_provider, temporary_context
from embedl_hub.toolchains.tensorrt import config as doctors
from embedl_hub.toolchains.tensorrt.config import check_tensorrt_rtx as doctor
from embedl_hub.toolchains.tensorrt.config import rtx_version
from embedl_hub.tracking import Run

OPEN = {"min_shapes": {"x": (1, 3, 16, 16)}, "opt_shapes": {"x": (4, 3, 16, 16)}, "max_shapes": {"x": (8, 3, 16, 16)}}


@pytest.fixture(autouse=True)
def _own_cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))


def ada(**settings: object) -> Device:
    config = TensorRTRTXConfig(("SM89",), **settings)  # type: ignore[arg-type]
    return Device("ada", provider_type="tensorrt_rtx", provider_config=config)


def last_run(ctx: HubContext) -> Run:
    assert ctx.client.store is not None
    return ctx.client.store.run(ctx.client.store.runs()[0].id)


@pytest.mark.parametrize("kind", ["float", "int8"])
@pytest.mark.parametrize("shapes", ["fixed", "open"])
def test_a_real_engine(kind: str, shapes: str, tmp_path: Path) -> None:
    """Float and QDQ, fixed and open shapes; what it was built for is known later."""
    make = residual_net if kind == "float" else quantized_net
    path = save(make(1 if shapes == "fixed" else "n"), tmp_path / "net.onnx")
    with temporary_context([ada(**(OPEN if shapes == "open" else {}))]) as ctx:
        model = TensorRTCompiler().run(ctx, path)
        content = model.path.local().read_bytes()
        assert len(content) > 1000
        # The vendor's own mark; whether a GPU would load it can only be asked of one.
        assert content[:4] == b"vtrt"
        assert model.engine["compute_capabilities"] == ["SM89"]
        assert model.engine["tensorrt_rtx_version"] == str(rtx_version())
        assert model.engine["shapes"]["max"] == ({"x": [8, 3, 16, 16]} if shapes == "open" else {})
        assert TensorRTCompiledModel.from_run(last_run(ctx)) == model


def test_the_second_time_it_is_taken_from_the_cache(tmp_path: Path) -> None:
    """For the same generation and shapes only; a damaged one is built again."""
    path = save(residual_net("n"), tmp_path / "net.onnx")

    def cached(device: Device, *, batch: int = 1) -> bool:
        with temporary_context([device]) as ctx:
            TensorRTCompiler(input_shape=(batch, 3, 16, 16)).run(ctx, path)
            return bool(last_run(ctx).params["from_cache"].value)

    assert not cached(ada())
    assert cached(ada())
    assert not cached(ada(), batch=2)
    assert not cached(Device("other", provider_type="tensorrt_rtx", provider_config=TensorRTRTXConfig(("SM86",))))
    for kept in (tmp_path / "cache").rglob("engine.plan"):
        kept.write_bytes(b"rubbish")
    assert not cached(ada())
    assert cached(ada())


def test_several_generations_in_one_engine(tmp_path: Path) -> None:
    """All of them are recorded."""
    path = save(residual_net(), tmp_path / "net.onnx")
    device = Device(
        "geforce", provider_type="tensorrt_rtx", provider_config=TensorRTRTXConfig(("SM86", "SM89", "SM120"))
    )
    with temporary_context([device]) as ctx:
        model = TensorRTCompiler().run(ctx, path)
        assert model.engine["compute_capabilities"] == ["SM86", "SM89", "SM120"]


def test_the_provider_conforms(tmp_path: Path) -> None:
    """It keeps the rules every provider must keep."""
    path = save(residual_net(), tmp_path / "net.onnx")
    check_provider(TensorRTCompiler(), "tensorrt_rtx", path, devices=[ada()], bad_args=[tmp_path / "missing.onnx"])


def test_measuring_and_running_are_refused(tmp_path: Path) -> None:
    """They need a GPU of that generation; the engine stays."""
    with temporary_context([ada()]) as ctx:
        model = TensorRTCompiler().run(ctx, save(residual_net(), tmp_path / "net.onnx"))
        with pytest.raises(ProfileError, match=r"only a builder here.*GPU of SM89.*'trtexec'"):
            TensorRTProfiler().run(ctx, model)
        with pytest.raises(InvokeError, match="need a GPU of SM89"):
            TensorRTInvoker().run(ctx, model, {"x": images()})


def test_its_engine_is_not_for_trtexec(tmp_path: Path) -> None:
    """Said before anything is sent."""
    runner = LocalCommandRunner()
    board = Device("board", runner, provider_type="trtexec", artifact_root=tmp_path / "root", lease_dir=None)
    with temporary_context([ada(), board]) as ctx:
        model = TensorRTCompiler().run(ctx, save(residual_net(), tmp_path / "net.onnx"), device="ada")
        with pytest.raises(ProfileError, match="built by TensorRT-RTX"):
            TensorRTProfiler().run(ctx, model, device="board")
        with pytest.raises(InvokeError, match="built by TensorRT-RTX"):
            TensorRTInvoker().run(ctx, model, {"x": images()}, device="board")


def test_an_operator_it_lacks_is_named(tmp_path: Path) -> None:
    """With its node, from the parser's own errors."""
    kinds = [helper.make_tensor_value_info(name, TensorProto.FLOAT, [1, 4]) for name in "xy"]
    graph = helper.make_graph(
        [helper.make_node("Mystery", ["x"], ["y"], name="riddle", domain="nobody")], "odd", kinds[:1], kinds[1:]
    )
    opsets = [helper.make_opsetid("", 17), helper.make_opsetid("nobody", 1)]
    path = save(helper.make_model(graph, opset_imports=opsets, ir_version=8), tmp_path / "odd.onnx")
    with (
        temporary_context([ada()]) as ctx,
        pytest.raises(CompileError, match=r"cannot read the model.*riddle.*Mystery"),
    ):
        TensorRTCompiler().run(ctx, path)


def test_a_generation_that_cannot_run_the_model_says_why(tmp_path: Path) -> None:
    """Turing has no float32 products in TensorRT-RTX."""
    device = Device("turing", provider_type="tensorrt_rtx", provider_config=TensorRTRTXConfig(("SM75",)))
    with (
        temporary_context([device]) as ctx,
        pytest.raises(CompileError, match="builds no engine of this model for SM75"),
    ):
        TensorRTCompiler().run(ctx, save(residual_net(), tmp_path / "net.onnx"))


def test_open_shapes_need_a_range(tmp_path: Path) -> None:
    """As with trtexec."""
    path = save(residual_net("n"), tmp_path / "open.onnx")
    with temporary_context([ada()]) as ctx:
        with pytest.raises(CompileError, match="opt_shapes="):
            TensorRTCompiler().run(ctx, path)
        assert TensorRTCompiler().run(ctx, path, input_shape=(2, 3, 16, 16)).engine["shapes"]["opt"] == {}


def test_a_builder_that_takes_too_long_is_stopped(tmp_path: Path) -> None:
    """With the setting that gives it more."""
    device = ada(timeout_s=0.01)
    with temporary_context([device]) as ctx, pytest.raises(CompileError, match=r"stopped after 0.01 s.*timeout_s"):
        TensorRTCompiler().run(ctx, save(residual_net(), tmp_path / "net.onnx"))


def test_a_missing_builder_is_one_line_to_type(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """For the step and for doctor."""
    monkeypatch.setattr(doctors, "RTX_PACKAGE", "no-such-package")
    message = r"pip install 'edgeproof-hub\[tensorrt-rtx\]'"
    with temporary_context([ada()]) as ctx, pytest.raises(NoProviderError, match=message):
        TensorRTCompiler().run(ctx, save(residual_net(), tmp_path / "net.onnx"))
    (result,) = doctor()
    assert result.is_ok is None
    assert "tensorrt-rtx" in result.advice


def test_doctor_knows_the_builder() -> None:
    """Its version, without waking it."""
    (result,) = doctor()
    assert result.is_ok
    assert result.message.startswith(str(rtx_version()))
