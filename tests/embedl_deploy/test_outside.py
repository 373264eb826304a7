"""A pattern, a backend, a dialect and a target, each from one file outside the tree: nothing of ours is edited."""

import json
import os
import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from types import ModuleType

import numpy as np
import onnx
import pytest
import torch
from torch import nn

from embedl_deploy import transform
from embedl_deploy.backend import Backend, register_backend, reset_backends
from embedl_deploy.dialect import ONNXRUNTIME_X86, Contract, _dialects, check, dialects, register_dialect
from embedl_deploy.errors import DialectError, PluginWarning, TargetError
from embedl_deploy.export import export_onnx, verify
from embedl_deploy.nn import QuantizedConv
from embedl_deploy.onnxruntime import ONNXRUNTIME, ONNXRUNTIME_FUSIONS, ONNXRUNTIME_QUANTIZED
from embedl_deploy.quantize import Correction, quantization_of, quantize
from embedl_deploy.target import Target, _registry, get_target, register_target, targets

PATTERN = '''
"""A convolution and a hard-tanh as one kernel, which says itself how it is quantized."""

import torch
from torch import nn

from embedl_deploy.nn import Grid, QuantizableModule, QuantizedConv
from embedl_deploy.pattern import Chain, Op, Pattern, Phase, Point


class FusedConvHardtanh(QuantizableModule):
    """Convolution, hard-tanh."""

    watched = (Point.OUTPUT,)

    def __init__(self, conv, act):
        super().__init__()
        self.conv, self.act, self.training = conv, act, conv.training

    def forward(self, value):
        return self.act(self.conv(value))

    def quantize(self, spec):
        self.conv = spec.conv(self.conv, output=spec.stub("conv", quantizes=Point.OUTPUT in spec.points))

    def attach_stubs(self, inputs, output):
        if isinstance(self.conv, QuantizedConv) and self.conv.output.quantizes:
            self.conv.grid = Grid(inputs, self.conv.output)
        return self

    def input_layer(self):
        return self.conv if isinstance(self.conv, QuantizedConv) else None


class ConvHardtanhPattern(Pattern):
    """Convolution, hard-tanh."""

    phase = Phase.FUSION
    tree = Chain(Op(nn.Conv2d, name="conv"), Op(nn.Hardtanh, name="act"))

    def replace(self, match):
        return FusedConvHardtanh(match.module("conv"), match.module("act"))


class QuantizedConvHardtanhPattern(Pattern):
    """Input, weight and both results of a convolution with a hard-tanh."""

    phase = Phase.QUANTIZED
    tree = Op(FusedConvHardtanh, name="layer")
    qdq_points = (Point.INPUT, Point.WEIGHT, Point.OUTPUT)


def net():
    torch.manual_seed(0)
    return nn.Sequential(nn.Conv2d(3, 8, 3), nn.ReLU(), nn.Conv2d(8, 16, 3), nn.Hardtanh(), nn.Conv2d(16, 4, 3)).eval()
'''
BACKEND = """
from embedl_deploy.backend import Backend
from embedl_deploy.onnxruntime import ONNXRUNTIME_CONVERSIONS, ONNXRUNTIME_FUSIONS, ONNXRUNTIME_QUANTIZED
from own_pattern import ConvHardtanhPattern, QuantizedConvHardtanhPattern

BACKEND = Backend(
    "own-backend",
    conversion_patterns=ONNXRUNTIME_CONVERSIONS,
    fusion_patterns=(ConvHardtanhPattern, *ONNXRUNTIME_FUSIONS),
    quantized_patterns=(QuantizedConvHardtanhPattern, *ONNXRUNTIME_QUANTIZED),
    symmetric_activations=False,
    integer_kernels=True,
)
"""
DIALECT = """
from dataclasses import replace

from embedl_deploy.dialect import ONNXRUNTIME_X86, TENSORRT, Contract

DIALECT = replace(ONNXRUNTIME_X86, name="own-dialect", backend="own-backend")


def ask(model, dialect, rows):
    return Contract(dialect.name, rows, f"Asked my own runtime about {len(rows)} operators.")


ASKED = replace(TENSORRT, name="own-asked", confirm=ask)
"""
TARGET = """
from embedl_deploy.target import Target

TARGET = Target("own-board", backend="own-backend", dialect="own-dialect", family="x86-vnni", runtime_version="0.1")
"""
POINTS = {
    "embedl_deploy.backends": "own-backend = own_backend:BACKEND",
    "embedl_deploy.dialects": "own-dialect = own_dialect:DIALECT\nown-asked = own_dialect:ASKED",
    "embedl_deploy.targets": "own-board = own_target:TARGET",
}
EXAMPLE = (torch.randn(2, 3, 12, 12, generator=torch.Generator().manual_seed(0)),)


def forget() -> None:
    """Make backends, dialects and targets be looked for again."""
    reset_backends()
    for registry in (_dialects._registry, _registry):
        registry.clear()


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    """The files, importable and not installed; what is registered is forgotten before, for other tests, and after."""
    for name, source in {"pattern": PATTERN, "backend": BACKEND, "dialect": DIALECT, "target": TARGET}.items():
        (tmp_path / f"own_{name}.py").write_text(source)
    monkeypatch.syspath_prepend(str(tmp_path))
    monkeypatch.chdir(tmp_path)
    forget()
    yield tmp_path
    forget()
    for name in [name for name in sys.modules if name.startswith("own_")]:
        del sys.modules[name]


def own(name: str) -> ModuleType:
    """Import one of the files."""
    return __import__(f"own_{name}")


@pytest.fixture
def install(folder: Path) -> Callable[..., None]:
    """Return a function that makes the files an installed package, as pip would."""

    def write(points: dict[str, str]) -> None:
        info = folder / "own-1.0.dist-info"
        info.mkdir()
        (info / "METADATA").write_text("Metadata-Version: 2.1\nName: own\nVersion: 1.0\n")
        text = "".join(f"[{group}]\n{line}\n" for group, line in points.items())
        (info / "entry_points.txt").write_text(text)

    return write


@pytest.mark.usefixtures("folder")
def test_a_pattern_quantizes_its_own_fused_module(tmp_path: Path) -> None:
    """Placed, calibrated, corrected, computed on integers, exported and verified, with a module we never saw."""
    pattern = own("pattern")
    backend = Backend(
        "own",
        fusion_patterns=(pattern.ConvHardtanhPattern, *ONNXRUNTIME_FUSIONS),
        quantized_patterns=(pattern.QuantizedConvHardtanhPattern, *ONNXRUNTIME_QUANTIZED),
        symmetric_activations=False,
        integer_kernels=True,
    )
    result = transform(pattern.net(), EXAMPLE, backend)
    assert result.report.counts()["ConvHardtanhPattern"] == 1
    model = quantize(result.model, EXAMPLE, None, [EXAMPLE[0]], backend=backend, corrections=tuple(Correction))
    (decision,) = [row for row in quantization_of(model).placement.layers if row.layer == "FusedConvHardtanh"]
    assert decision.quantized
    conv = model.get_submodule("2").conv
    assert isinstance(conv, QuantizedConv)
    assert conv.weight_quantizer is not None
    assert conv.weight_quantizer.calibrated
    assert conv.grid is not None
    path = export_onnx(model, EXAMPLE, tmp_path / "own.onnx", dialect="onnxruntime-x86")
    contract = check(path, "onnxruntime-x86")
    assert contract.coverage == (3, 3)
    assert not contract.disagreements
    assert verify(path, [EXAMPLE[0]], original=pattern.net(), simulated=model).passed


@pytest.mark.usefixtures("folder")
def test_a_fused_module_of_others_is_one_step_when_it_is_traced() -> None:
    """A model that holds one is not looked into: the kernel stays a kernel."""
    pattern = own("pattern")
    fused = pattern.FusedConvHardtanh(nn.Conv2d(3, 8, 3), nn.Hardtanh())
    result = transform(nn.Sequential(fused, nn.ReLU()).eval(), EXAMPLE, ONNXRUNTIME)
    assert [type(module).__name__ for module in result.model.children()] == ["FusedConvHardtanh", "ReLU"]


@pytest.mark.usefixtures("folder")
def test_a_dialect_is_confirmed_like_ours(tmp_path: Path) -> None:
    """By name once registered: ONNX Runtime is asked where it runs the file, a function of one's own elsewhere."""
    file = own("dialect")
    network = transform(own("pattern").net(), EXAMPLE, ONNXRUNTIME).model
    model = quantize(network, EXAMPLE, backend=ONNXRUNTIME)
    with pytest.raises(DialectError, match="no dialect 'own-dialect'"):
        export_onnx(model, EXAMPLE, tmp_path / "x.onnx", dialect="own-dialect")
    register_dialect(file.DIALECT)
    register_dialect(file.ASKED)
    path = export_onnx(model, EXAMPLE, tmp_path / "x.onnx", dialect="own-dialect")
    assert check(path, "own-dialect").confirmed == check(path, ONNXRUNTIME_X86).confirmed
    assert "Confirmed by ONNX Runtime" in check(path, "own-dialect").confirmed
    asked: Contract = check(path, "own-asked")
    assert asked.confirmed == f"Asked my own runtime about {len(asked.rows)} operators."
    found = verify(path, [EXAMPLE[0]])
    assert found.passed
    assert found.dialect == "own-dialect"
    assert not found.notes


@pytest.mark.usefixtures("folder")
def test_a_target_names_everything(tmp_path: Path) -> None:
    """One name across transform, quantize, export and verify; what it names already is refused beside it."""
    register_backend(own("backend").BACKEND)
    register_dialect(own("dialect").DIALECT)
    register_target(own("target").TARGET)
    result = transform(own("pattern").net(), EXAMPLE, target="own-board")
    assert result.report.counts()["ConvHardtanhPattern"] == 1
    model = quantize(result.model, EXAMPLE, target="own-board")
    path = export_onnx(model, EXAMPLE, tmp_path / "own.onnx", target="own-board")
    assert {entry.key: entry.value for entry in onnx.load(path).metadata_props}["edgeproof.dialect"] == "own-dialect"
    found = verify(path, [EXAMPLE[0]], target="own-board")
    assert found.passed
    assert [row.family for row in found.families] == ["x86-vnni"]
    assert any("own-board has 0.1" in note for note in found.notes)
    with pytest.raises(TargetError, match="patterns or target, not both"):
        transform(own("pattern").net(), EXAMPLE, ONNXRUNTIME, target="own-board")
    with pytest.raises(TargetError, match="backend or target, not both"):
        quantize(result.model, EXAMPLE, backend=ONNXRUNTIME, target="own-board")
    with pytest.raises(TargetError, match="dialect or target, not both"):
        export_onnx(model, EXAMPLE, path, dialect="tensorrt", target="own-board")
    with pytest.raises(ValueError, match=r"dialect 'own-dialect', and the target 'tensorrt' takes 'tensorrt'"):
        verify(path, [EXAMPLE[0]], target="tensorrt")


def test_targets_by_name_and_by_device() -> None:
    """A dialect, a backend, a kernel family, this machine, a device; anything else is one clear error."""
    assert {"onnxruntime-x86", "tensorrt", "litert", "lattice"} <= {target.name for target in targets()}
    assert get_target("onnxruntime-arm") == Target("onnxruntime-arm", "onnxruntime", "onnxruntime-arm")
    assert get_target("lattice") == Target("lattice", "lattice")
    assert get_target("x86-avx2") == Target("x86-avx2", "onnxruntime", "onnxruntime-x86", "x86-avx2")
    here = get_target("here")
    assert here.family
    assert here.runtime_version

    class Board:
        architecture = "aarch64"
        features = ("asimd", "asimddp")
        versions = {"onnxruntime": "1.22.0"}  # noqa: RUF012 - a double

    assert get_target(Board()) == Target("arm-dotprod", "onnxruntime", "onnxruntime-arm", "arm-dotprod", "1.22.0")
    with pytest.raises(TargetError, match=r"no target 'x87'; known are .*'here'.*'onnxruntime-x86'"):
        get_target("x87")
    with pytest.raises(TargetError, match="'lattice' names no dialect"):
        export_onnx(nn.Identity(), EXAMPLE, "x.onnx", target="lattice")


def run(*arguments: str, code: int = 0) -> str:
    """Run the command line in a process of its own."""
    path = os.pathsep.join([str(Path.cwd()), os.environ.get("PYTHONPATH", "")])
    done = subprocess.run(
        [sys.executable, "-m", "embedl_deploy", *arguments],
        env={**os.environ, "PYTHONPATH": path}, capture_output=True, text=True, check=False, timeout=200,
    )  # fmt: skip
    assert done.returncode == code, done.stderr
    return done.stdout + done.stderr


@pytest.mark.slow
def test_the_command_line_finds_them_by_entry_point(folder: Path, install: Callable[..., None]) -> None:
    """plan, export, check and verify know a target, a backend, a pattern and a dialect that a package brings."""
    install(POINTS)
    np.save(folder / "data.npy", EXAMPLE[0].numpy())
    assert "ConvHardtanhPattern" in run("plan", "own_pattern:net", "--shape", "2x3x12x12", "--target", "own-board")
    told = run("export", "own_pattern:net", "--data", "data.npy", "--target", "own-board", "-o", "own.onnx", "--json")
    assert json.loads(told)["backend"] == "own-backend"
    assert "Confirmed by ONNX Runtime" in run("check", "own.onnx", "--dialect", "own-dialect", "--fail-on", "float")
    assert "Asked my own runtime" in run("check", "own.onnx", "--dialect", "own-asked")
    assert "PASS" in run("verify", "own.onnx", "--data", "data.npy", "--target", "own-board")
    assert "'own-dialect'" in run("check", "own.onnx", "--dialect", "none", code=2)


@pytest.mark.usefixtures("folder")
def test_one_that_does_not_load_does_not_take_the_others_down(install: Callable[..., None]) -> None:
    """It is left out with a warning that says why."""
    install({"embedl_deploy.dialects": "bad = own_dialect:ask\ngood = own_dialect:DIALECT"})
    with pytest.warns(PluginWarning, match="dialect 'bad' could not be loaded.*is a function, not a Dialect"):
        names = [dialect.name for dialect in dialects()]
    assert "own-dialect" in names
