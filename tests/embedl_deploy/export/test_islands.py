"""Float layers in a quantized file: what was simulated is what ONNX Runtime computes, with default options."""

from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import numpy as np
import onnx
import pytest
import torch
from support.families import exact_outputs
from support.quantized_nets import ratio_db, settled
from support.sampled import sampled
from torch import fx, nn

from embedl_deploy import transform
from embedl_deploy.dialect import ONNXRUNTIME_X86, ONNXRUNTIME_X86_VNNI, check, lower
from embedl_deploy.export import export_onnx, verify
from embedl_deploy.nn import QuantStub
from embedl_deploy.onnxruntime import ONNXRUNTIME
from embedl_deploy.quantize import (
    CalibrationMethod,
    MaxDrop,
    ModulesToSkip,
    QuantConfig,
    TensorQuantConfig,
    quantization_of,
    quantize,
)

EXPOSED = replace(ONNXRUNTIME_X86, rounds_float_weights=False)
EXPOSED_VNNI = replace(ONNXRUNTIME_X86_VNNI, rounds_float_weights=False)


class Net(nn.Module):
    """Three convolutions, the second of a kind to choose, and two linear layers."""

    def __init__(self, middle: nn.Module) -> None:
        super().__init__()
        self.first, self.norm = nn.Conv2d(3, 16, 3, padding=1), nn.BatchNorm2d(16)
        self.middle, self.last = middle, nn.Conv2d(16, 16, 3, padding=1)
        self.pool, self.up, self.head = nn.AdaptiveAvgPool2d(1), nn.Linear(16, 32), nn.Linear(32, 10)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        """Classify."""
        x = torch.relu(self.middle(torch.relu(self.norm(self.first(x)))))
        x = self.pool(torch.relu(self.last(x))).flatten(1)
        out: torch.Tensor = self.head(torch.relu(self.up(x)))
        return out


MIDDLES: dict[str, Callable[[], nn.Module]] = {
    "convolution": lambda: nn.Conv2d(16, 16, 3, padding=1),
    "depthwise": lambda: nn.Conv2d(16, 16, 3, padding=1, groups=16),
    "transposed": lambda: nn.ConvTranspose2d(16, 16, 3, stride=2),
}


def uneven(net: Net) -> Net:
    """Give layers output channels of widely different size, so that one scale for all of them is far off."""
    with torch.no_grad():
        for layer, axis in ((net.middle, int(isinstance(net.middle, nn.ConvTranspose2d))), (net.up, 0)):
            weight = layer.weight
            assert isinstance(weight, torch.Tensor)
            sizes = torch.exp(2 * torch.randn(weight.shape[axis]))
            weight.mul_(sizes.reshape([-1 if place == axis else 1 for place in range(weight.ndim)]))
    return net


MINMAX = TensorQuantConfig(calibration_method=CalibrationMethod.MINMAX)


def transformed(kind: str) -> tuple[fx.GraphModule, torch.Tensor]:
    """Return a network for ONNX Runtime and a batch."""
    net = settled(uneven(Net(MIDDLES[kind]())), 8, 3, 12, 12)
    value = torch.randn(64, 3, 12, 12)
    return transform(net, (value[:2],), ONNXRUNTIME).model, value


def run(model: onnx.ModelProto, value: torch.Tensor) -> torch.Tensor:
    """Run a file with default options, on a processor whose kernels add up exactly."""
    return torch.from_numpy(exact_outputs(model, [{model.graph.input[0].name: value.numpy()}])[0][0])


def export(model: fx.GraphModule, value: torch.Tensor, folder: Path) -> onnx.ModelProto:
    """Return a model's file in the canonical form."""
    return onnx.load(export_onnx(model, (value[:2],), folder / "net.onnx", dynamic_batch=True))


@pytest.mark.parametrize("kind", sampled(MIDDLES, "convolution"))
def test_a_float_layer_is_what_was_simulated(kind: str, tmp_path: Path) -> None:
    """Two float layers between integers; with one scale in every DQ the file is far off, and `verify` tells."""
    model, value = transformed(kind)
    skip = QuantConfig(MINMAX, skip=ModulesToSkip.layers("middle", "up"))
    quantized = quantize(model, (value[:2],), skip, [value], backend=ONNXRUNTIME)
    canonical = export(quantized, value, tmp_path)
    with torch.no_grad():
        wanted = quantized(value)
    file = lower(canonical, "onnxruntime-x86-vnni")
    found = run(file, value)
    assert ratio_db(wanted, found) > 60
    assert float((wanted == found).float().mean()) > 0.99
    portable = lower(canonical, "onnxruntime-x86")
    assert verify(portable, [value[:8]], transformed=model, simulated=quantized).passed
    contract = check(file, "onnxruntime-x86-vnni")
    floats = {row.module for row in contract.rows if row.state == "float" and "its weight" in row.reason}
    assert floats == {"middle", "up"}
    assert not contract.disagreements
    exposed = lower(canonical, EXPOSED)
    assert ratio_db(wanted, run(exposed, value)) < 45
    judged = verify(exposed, [value[:8]], transformed=model, simulated=quantized)
    assert judged.first_outside is not None
    assert judged.first_outside.module == "middle"


def test_equal_to_the_bit_where_float_sums_are_exact(tmp_path: Path) -> None:
    """Scales and float weights that are short binary fractions leave nothing to the order of a sum."""
    model, value = transformed("convolution")
    with torch.no_grad():
        for name in ("middle.conv", "up.linear"):
            layer = model.get_submodule(name)
            for one in layer.parameters():
                one.copy_((one * 16).round().clamp(-64, 64) / 16)
    skip = QuantConfig(MINMAX, skip=ModulesToSkip.layers("middle", "up"))
    quantized = quantize(model, (value[:2],), skip, [value], backend=ONNXRUNTIME)
    for stub in quantized.modules():
        if isinstance(stub, QuantStub):
            step = float(2 ** torch.ceil(torch.log2(stub.scale)))
            low = float(torch.round(stub.bounds[0] / step)) * step
            stub.set_range(low, low + 255 * step)
    file = lower(export(quantized, value, tmp_path), "onnxruntime-x86-vnni")
    with torch.no_grad():
        assert np.array_equal(quantized(value).numpy(), run(file, value).numpy())


@pytest.mark.slow
def test_a_goal_holds_in_the_file(tmp_path: Path) -> None:
    """The metric of the file is the one of the search; with weights rounded by the runtime the goal is missed."""
    model, value = transformed("convolution")
    with torch.no_grad():
        wanted = model(value)

    def quality(found: torch.Tensor) -> float:
        return min(ratio_db(wanted, found), 100.0)

    def metric(candidate: nn.Module) -> float:
        with torch.no_grad():
            return quality(candidate(value))

    config = QuantConfig(MINMAX)
    plain = metric(quantize(model, (value[:2],), config, [value], backend=ONNXRUNTIME))
    goal = MaxDrop(metric, 100.0 - plain - 1.0)
    quantized = quantize(model, (value[:2],), config, [value], backend=ONNXRUNTIME, goal=goal, corrections=())
    search = quantization_of(quantized).search
    assert search is not None
    assert search.islands
    assert search.met
    canonical = export(quantized, value, tmp_path)
    assert quality(run(lower(canonical, "onnxruntime-x86-vnni"), value)) == pytest.approx(search.metric, abs=0.01)
    assert quality(run(lower(canonical, EXPOSED_VNNI), value)) < search.allowed - 6
