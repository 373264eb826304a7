"""Every dialect's file of every benchmark network is loaded and run by its runtime, and answers as was simulated."""

from __future__ import annotations

import functools
from collections.abc import Callable
from pathlib import Path

import numpy as np
import onnx
import pytest
import torch
from deploy import nets
from support.families import Emulated, exact_outputs
from torch import nn

from embedl_deploy import transform
from embedl_deploy.dialect import check, dialects, lower
from embedl_deploy.export import export_onnx
from embedl_deploy.onnxruntime import ONNXRUNTIME
from embedl_deploy.quantize import quantize
from embedl_hub.core import HubContext
from embedl_hub.core.compile import ExecuTorchCompiler, TFLiteCompiler
from embedl_hub.core.device import Device
from embedl_hub.core.invoke import ExecuTorchInvoker, TFLiteInvoker

SMALL: dict[str, tuple[Callable[[], nn.Module], int]] = {
    "resnet": (nets.ResNet20, 32),
    "mobilenet": (nets.MobileNet, 32),
    "vit": (lambda: nets.ViT(32, 8, 64, 2, 2, 10), 32),
    "small_unet": (lambda: nets.UNet(8, 3, 5), 32),
}
LARGE = {name: (functools.partial(nets.timed, name), nets.SIZES[name]) for name in nets.TIMED}
QUICK = ("resnet", "vit")
NETWORKS = [name if name in QUICK else pytest.param(name, marks=pytest.mark.slow) for name in SMALL | LARGE]
# What a runtime of its own arithmetic may lose against the simulation; a broken file loses all.
LOSS_DB = 4.0


class Case:
    """A network, quantized once: its canonical file and what it should answer."""

    def __init__(self, name: str, folder: Path) -> None:
        make, size = (SMALL | LARGE)[name]
        torch.manual_seed(0)
        model = make().eval()
        if name in SMALL and any(isinstance(part, nn.BatchNorm2d) for part in model.modules()):
            nets.settle(model, size)
            model.eval()
        pictures = nets.pictures(8, size)
        self.seen = nets.pictures(2, size, seed=77)
        example = (pictures[:1],)
        fused = transform(model, example, ONNXRUNTIME).model
        simulated = quantize(fused, example, forward_loop=[pictures], backend=ONNXRUNTIME)
        with torch.no_grad():
            self.wanted, self.simulated = (one(self.seen).numpy() for one in (model, simulated))
        self.samples = [one[None].numpy() for one in pictures[:4]]
        self.canonical = onnx.load(export_onnx(simulated, example, folder / f"{name}.onnx"))
        self.input = self.canonical.graph.input[0].name
        self.feeds = [{self.input: one[None].numpy()} for one in self.seen]

    def lowered(self, dialect: str) -> onnx.ModelProto:
        """Return the file of a dialect."""
        return lower(self.canonical, dialect, samples=self.samples)

    def judge(self, outputs: list[list[np.ndarray]]) -> None:
        """Assert that answers are nearly as good as the simulated ones."""
        found = np.concatenate([one[0] for one in outputs])
        assert self.decibels(found) > self.decibels(self.simulated) - LOSS_DB

    def decibels(self, found: np.ndarray) -> float:
        return float(10 * np.log10(np.sum(self.wanted**2) / np.sum((found - self.wanted) ** 2)))


@pytest.fixture(scope="module")
def case(tmp_path_factory: pytest.TempPathFactory) -> Callable[[str], Case]:
    """Quantize a network when it is first asked for."""
    return functools.cache(lambda name: Case(name, tmp_path_factory.mktemp("runtimes")))


@pytest.mark.timeout(900)
@pytest.mark.parametrize("name", NETWORKS)
def test_onnxruntime_x86(name: str, case: Callable[[str], Case], emulated: Callable[[str], Emulated]) -> None:
    """The portable file, here and on a processor that saturates: the same answers."""
    one = case(name)
    file = one.lowered("onnxruntime-x86").SerializeToString()
    here, there = (emulated(family).run(file, one.feeds, timeout_s=600) for family in ("host", "haswell"))
    one.judge(here)
    one.judge(there)
    first, second = (np.concatenate([answer[0] for answer in outputs]) for outputs in (here, there))
    # Float operators between the integers may sum in another order, and a tie then rounds the other way. A network
    # of convolutions has few of them; attention many, which move it by less than quantization itself does.
    if not name.startswith("vit"):
        assert np.abs(first - second).max() <= 0.02 * np.abs(first).max()
    assert np.sum((first - second) ** 2) <= np.sum((one.wanted - first) ** 2) / 2


@pytest.mark.timeout(900)
@pytest.mark.parametrize("name", NETWORKS)
def test_onnxruntime_x86_vnni(name: str, case: Callable[[str], Case]) -> None:
    """All 8 bits, where they are exact."""
    one = case(name)
    one.judge(exact_outputs(one.lowered("onnxruntime-x86-vnni"), one.feeds))


@pytest.mark.timeout(900)
@pytest.mark.parametrize("name", NETWORKS)
def test_onnxruntime_arm(name: str, case: Callable[[str], Case], emulated: Callable[[str], Emulated]) -> None:
    """Loads here too, where people look at it first, and runs on ARM without dot products."""
    one = case(name)
    file = one.lowered("onnxruntime-arm").SerializeToString()
    assert emulated("host").load(file) == ""
    one.judge(emulated("cortex-a72").run(file, one.feeds, timeout_s=600))


@pytest.mark.timeout(900)
@pytest.mark.parametrize("name", NETWORKS)
def test_openvino(name: str, case: Callable[[str], Case], tmp_path: Path) -> None:
    """OpenVINO on this machine's processor, whatever that is."""
    import openvino

    one = case(name)
    onnx.save(one.lowered("openvino"), tmp_path / "net.onnx")
    # By default it computes in bfloat16 where the processor can.
    model = openvino.Core().compile_model(str(tmp_path / "net.onnx"), "CPU", {"INFERENCE_PRECISION_HINT": "f32"})
    one.judge([[next(iter(model([feed[one.input]]).values()))] for feed in one.feeds])


@pytest.mark.timeout(900)
@pytest.mark.parametrize("name", NETWORKS)
def test_tensorrt(name: str, case: Callable[[str], Case]) -> None:
    """TensorRT-RTX parses the file and builds an engine; running it needs a GPU."""
    contract = check(case(name).lowered("tensorrt"), "tensorrt")
    assert contract.refused == ""
    assert "built an engine" in contract.confirmed


@pytest.mark.slow
@pytest.mark.timeout(900)
@pytest.mark.parametrize("name", SMALL)
@pytest.mark.usefixtures("converter")
def test_litert(name: str, case: Callable[[str], Case], tmp_path: Path) -> None:
    """Converted by the hub and run by LiteRT."""
    one = case(name)
    onnx.save(one.lowered("litert"), tmp_path / "net.onnx")
    with HubContext("litert", [Device("here", provider_type="local")], home=tmp_path / "home") as ctx:
        compiled = TFLiteCompiler(device="here").run(ctx, tmp_path / "net.onnx")
        invoker = TFLiteInvoker(device="here")
        answers = [[next(iter(invoker.run(ctx, compiled, feed).output.values()))] for feed in one.feeds]
    found = np.concatenate([each[0] for each in answers])
    # Its kernels round more often than the simulation does.
    assert one.decibels(found) > one.decibels(one.simulated) - 3 * LOSS_DB


@pytest.mark.slow
@pytest.mark.timeout(900)
@pytest.mark.parametrize("name", SMALL)
def test_executorch(name: str, case: Callable[[str], Case], tmp_path: Path) -> None:
    """Compiled by the hub and run by ExecuTorch; what was predicted is what it ran."""
    one = case(name)
    onnx.save(one.lowered("executorch"), tmp_path / "net.onnx")
    with HubContext("executorch", [Device("here", provider_type="local")], home=tmp_path / "home") as ctx:
        compiled = ExecuTorchCompiler(device="here").run(ctx, tmp_path / "net.onnx")
        invoker = ExecuTorchInvoker(device="here")
        answers = [[next(iter(invoker.run(ctx, compiled, feed).output.values()))] for feed in one.feeds]
    found = np.concatenate([each[0] for each in answers])
    assert one.decibels(found) > one.decibels(one.simulated) - LOSS_DB
    contract = check(tmp_path / "net.onnx", "executorch")
    assert "Confirmed by the layers that executorch ran" in contract.confirmed
    known = [row.agrees for row in contract.rows if row.in_integers is not None]
    assert sum(known) >= 0.99 * len(known)


def test_no_dialect_is_left_out() -> None:
    """A new dialect needs a test here."""
    tested = {name.removeprefix("test_").replace("_", "-") for name in globals() if name.startswith("test_")}
    assert {one.name for one in dialects()} <= tested
