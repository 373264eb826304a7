"""Compiling for ExecuTorch: what became of each operator is told, and what cannot be had is refused in words."""

from __future__ import annotations

import json
import logging
from pathlib import Path

import numpy as np
import pytest
import torch
from support.executorch import SHAPE, one_node, quantized_net
from support.models import save

from embedl_hub.core import HubContext
from embedl_hub.core.compile import CompileError, ExecuTorchCompiledModel, ExecuTorchCompiler
from embedl_hub.core.device import Device, ExecuTorchConfig
from embedl_hub.core.invoke import ExecuTorchInvoker
from embedl_hub.core.profile import ExecuTorchProfiler
from embedl_hub.toolchains.executorch.compile import _sentence
from embedl_hub.toolchains.executorch.layers import Operator, heavy_left, read_operators


def test_a_quantized_model_is_delegated_and_told(compiled: ExecuTorchCompiledModel) -> None:
    """Every operator is there, with its nodes and modules; all of them were taken, and seven are integers."""
    assert compiled.path.file_name == "net.pte"
    assert compiled.path.local().read_bytes()[4:8] == b"ET12"
    assert compiled.left == 0
    assert compiled.delegation is not None
    report = json.loads(compiled.delegation.local().read_text())
    assert report["backend"] == "xnnpack"
    operators = read_operators(report["operators"])
    computing = {each.operator: each for each in operators if each.integer is not None}
    assert {name for name, each in computing.items() if not each.integer} == {"aten._softmax.default"}
    assert computing["aten.linear.default"].nodes == ("product_node", "scores_node")
    assert computing["aten.linear.default"].modules == ("head",)
    convolution = next(each for each in operators if each.operator == "aten.convolution.default")
    assert convolution.nodes == ("conv_node", "relu_node")
    assert convolution.title == "stem.conv conv_node"
    assert all(each.delegated and each.instruction == 0 for each in operators)


def test_the_run_has_numbers_to_search_for(compiled: ExecuTorchCompiledModel) -> None:
    """Precision, what was left, and how far the program is from torch."""
    home = compiled.path.local().parents[4]
    with HubContext("compiled", home=home) as ctx:
        assert ctx.client.store is not None
        query = "params.precision = 'int8' and params.backend = 'xnnpack' and metrics.conversion_error < 0.02"
        assert ctx.client.store.find(query).runs
    assert compiled.delegated > 8


def test_heavy_operators_that_are_left_are_said() -> None:
    """With the module, the node and the reason; light ones are not worth a warning."""
    operators = [
        Operator("aten.convolution.default", ("c/Conv",), ("net.c",), delegated=False, reason="only 1D + 2D"),
        Operator("aten.native_layer_norm.default", ("n",), (), delegated=False, reason="no kernel"),
        Operator("aten.linear.default", ("l",), (), delegated=True),
    ]
    heavy = heavy_left(operators)
    assert [each.nodes for each in heavy] == [("c/Conv",)]
    said = _sentence(heavy, "xnnpack")
    assert said.startswith("1 heavy operators were not given to xnnpack")
    assert "net.c c/Conv (aten.convolution.default: only 1D + 2D)" in said


@pytest.mark.parametrize(
    ("name", "shape", "words"),
    [
        ("nothing.onnx", None, "There is no model .*nothing.onnx"),
        ("nothing.pt2", None, "There is no model .*nothing.pt2"),
        (
            "open.onnx",
            None,
            r"Input x float32\[n, 3\] has no fixed shape, which a program needs; give input_shape=\(1, 3\)",
        ),
        ("text.onnx", None, "is not an ONNX model"),
        ("some.pt2", (1, 3), r"input_shape .*is for ONNX models.*Export it anew"),
    ],
)
def test_a_bad_source_is_refused_before_anything_is_started(
    name: str, shape: tuple[int, ...] | None, words: str, tmp_path: Path
) -> None:
    """One sentence each."""
    (tmp_path / "text.onnx").write_text("no model")
    (tmp_path / "some.pt2").write_text("no model")
    open_net = one_node("Relu", {"x": np.zeros((1, 3), np.float32)}, {})
    open_net.graph.input[0].type.tensor_type.shape.dim[0].dim_param = "n"
    save(open_net, tmp_path / "open.onnx")
    with HubContext("bad", home=tmp_path / "home") as ctx, pytest.raises(CompileError, match=words):
        ExecuTorchCompiler().run(ctx, tmp_path / name, input_shape=shape)


@pytest.mark.slow
def test_an_operator_without_counterpart_and_an_unknown_backend_are_told(tmp_path: Path) -> None:
    """The node and the user's module; the backends that there are, here and in the runtime."""
    net = one_node("Det", {"x": np.zeros((2, 2), np.float32)}, {})
    path = save(net, tmp_path / "net.onnx")
    with HubContext("bad", home=tmp_path / "home") as ctx:
        with pytest.raises(CompileError, match=r"Det \(node 'it'\) is an operator that has no counterpart.*model\.pt2"):
            ExecuTorchCompiler().run(ctx, path)
        with pytest.raises(CompileError, match=r"no backend 'npu' here; .*portable, xnnpack\. .* has .*XnnpackBackend"):
            ExecuTorchCompiler().run(ctx, path, backend="npu")


def test_a_python_without_executorch_is_told(tmp_path: Path) -> None:
    """A device of this machine may name the Python; one that lacks the packages says which."""
    path = save(quantized_net(), tmp_path / "net.onnx")
    config = ExecuTorchConfig(executorch_python="/usr/bin/env")
    device = Device("here", provider_type="local", provider_config=config)
    with (
        HubContext("bad", [device], home=tmp_path / "home") as ctx,
        pytest.raises(CompileError, match="embedl-executorch compile failed on this machine"),
    ):
        ExecuTorchCompiler().run(ctx, path, device="here")


class _Net(torch.nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.conv = torch.nn.Conv2d(3, 4, 3, padding=1)
        self.norm = torch.nn.LayerNorm(12)
        self.head = torch.nn.Linear(12, 5)

    def forward(self, picture: torch.Tensor) -> torch.Tensor:
        scores: torch.Tensor = self.head(self.norm(torch.relu(self.conv(picture))))
        return scores


@pytest.mark.slow
def test_an_exported_program_becomes_one_that_answers_the_same(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    """Names of inputs are those of the module's forward; the layers carry the user's modules."""
    torch.manual_seed(0)
    net, picture = _Net().eval(), torch.randn(*SHAPE)
    torch.export.save(torch.export.export(net, (picture,)), tmp_path / "net.pt2")
    with caplog.at_level(logging.WARNING), HubContext("pt2", home=tmp_path / "home") as ctx:
        model = ExecuTorchCompiler().run(ctx, tmp_path / "net.pt2")
        found = ExecuTorchInvoker().run(ctx, model, {"picture": picture.numpy()}).output
        profile = ExecuTorchProfiler().run(ctx, model)
    np.testing.assert_allclose(next(iter(found.values())), net(picture).detach().numpy(), atol=1e-5)
    assert model.left == 1
    modules = {layer.modules for layer in profile.layers}
    assert {("conv",), ("norm",), ("head",)} <= modules
    assert not [record for record in caplog.records if record.name == "embedl_hub"]


@pytest.mark.slow
def test_without_a_backend_the_runtimes_own_kernels_run(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    """Asked for, so nothing is warned of."""
    x = np.random.default_rng(0).normal(size=(1, 3, 6, 6)).astype(np.float32)
    path = save(one_node("Conv", {"x": x}, {"w": np.ones((2, 3, 3, 3), np.float32)}), tmp_path / "net.onnx")
    with caplog.at_level(logging.WARNING), HubContext("portable", home=tmp_path / "home") as ctx:
        model = ExecuTorchCompiler().run(ctx, path, backend="portable")
        profile = ExecuTorchProfiler().run(ctx, model)
    assert (model.delegated, model.left) == (0, 1)
    assert [layer.provider for layer in profile.layers] == ["portable"]
    assert profile.layers[0].source_nodes == ("it",)
    assert not [record for record in caplog.records if record.name == "embedl_hub"]


@pytest.mark.slow
def test_a_program_with_code_in_it_is_refused(tmp_path: Path) -> None:
    """A pickle in place of weights runs nothing."""
    (tmp_path / "bad.pt2").write_bytes(b"PK\x05\x06" + bytes(18))
    with (
        HubContext("bad", home=tmp_path / "home") as ctx,
        pytest.raises(CompileError, match=r"bad\.pt2' (is refused|cannot be loaded)"),
    ):
        ExecuTorchCompiler().run(ctx, tmp_path / "bad.pt2")
