"""Corrections work where their symptom shows, are measured, and are undone when they do not help."""

from collections.abc import Iterator
from typing import Any

import pytest
import torch
from support.quantized_nets import Mixer, residual, settled, shifted
from torch import fx, nn

from embedl_deploy import transform
from embedl_deploy.backend import Backend
from embedl_deploy.errors import QuantizationError
from embedl_deploy.onnxruntime import ONNXRUNTIME
from embedl_deploy.quantize import (
    Correction,
    MaxDrop,
    ModulesToSkip,
    Precision,
    QuantConfig,
    TensorQuantConfig,
    Trial,
    insert_qdq,
    plan_qdq,
    quantization_of,
    quantize,
    sensitivity,
)
from embedl_deploy.quantize._balance import balance, factors, sites
from embedl_deploy.tensorrt import TENSORRT

FOUR_BITS = QuantConfig(weight=TensorQuantConfig(Precision.INT4, per_channel=True))


def uneven() -> tuple[fx.GraphModule, list[torch.Tensor]]:
    """Return a mixer whose normalization has a few very large channels."""
    model = Mixer().eval()
    with torch.no_grad():
        model.norm.weight[::8] *= 40
        model.up.weight[:, ::8] /= 40
    data = [torch.randn(8, 6, 32) for _ in range(4)]
    return transform(model, (data[0],), ONNXRUNTIME).model, data


def tried(
    model: fx.GraphModule, data: list[torch.Tensor], correction: Correction, config: QuantConfig | None = None
) -> Trial:
    """Quantize with one correction and return what it did."""
    result = quantize(model, (data[0],), config, data, backend=ONNXRUNTIME, corrections=[correction])
    (trial,) = quantization_of(result).trials
    return trial


def test_smoothing_uneven_channels() -> None:
    """SmoothQuant: from the normalization into the layer that reads it, more than 6 dB."""
    model, data = uneven()
    found = tried(model, data, Correction.SMOOTH)
    assert found.layers == ("norm",)
    assert found.kept
    assert found.after_db > found.before_db + 6


def test_smoothing_is_skipped_on_request_and_without_the_symptom() -> None:
    """Nothing is done where nothing is wrong, or where the user says no."""
    model, data = uneven()
    config = QuantConfig(skip=ModulesToSkip(smooth=["norm"]))
    assert tried(model, data, Correction.SMOOTH, config).layers == ()
    even = transform(Mixer().eval(), (data[0],), ONNXRUNTIME).model
    assert tried(even, data, Correction.SMOOTH).layers == ()
    assert "no symptom" in str(
        quantization_of(quantize(even, (data[0],), None, data, backend=ONNXRUNTIME, corrections=[Correction.SMOOTH]))
    )


class Pair(nn.Module):
    """Two convolutions whose channels were spread on purpose, then depthwise."""

    def __init__(self) -> None:
        super().__init__()
        self.one, self.relu, self.deep = nn.Conv2d(16, 32, 3, padding=1), nn.ReLU(), nn.Conv2d(32, 32, 3, groups=32)
        self.two = nn.Conv2d(32, 16, 1)
        with torch.no_grad():
            spread = torch.logspace(-1.5, 1.5, 32)
            self.one.weight.mul_(spread.reshape(-1, 1, 1, 1))
            self.one.bias.mul_(spread)  # type: ignore[union-attr]
            self.deep.weight.div_(spread.reshape(-1, 1, 1, 1))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        """Run."""
        out: torch.Tensor = self.two(self.deep(self.relu(self.one(x))))
        return out


def test_equalizing_convolutions() -> None:
    """Cross-layer equalization, depthwise readers included, more than 6 dB."""
    data = [torch.randn(4, 16, 8, 8) for _ in range(4)]
    model = transform(Pair().eval(), (data[0],), ONNXRUNTIME).model
    found = tried(model, data, Correction.EQUALIZE)
    assert "one" in found.layers
    assert found.kept
    assert found.after_db > found.before_db + 6


def test_equalizing_below_the_top_of_relu6() -> None:
    """Channels that ReLU6 cuts stay, the others grow as far as it allows: more than 2 dB, and the same function."""
    torch.manual_seed(0)
    data = [torch.randn(8, 16, 8, 8) for _ in range(4)]
    net = Pair()
    net.relu = nn.ReLU6()  # type: ignore[assignment]
    model = transform(net.eval(), (data[0],), ONNXRUNTIME).model
    found = tried(model, data, Correction.EQUALIZE)
    assert "one" in found.layers
    assert found.kept
    assert found.after_db > found.before_db + 2
    network = insert_qdq(model, plan_qdq(model, (data[0],), backend=ONNXRUNTIME))
    (site,) = [each for each in sites(network) if each.place == "one"]
    assert site.top == 6.0
    with torch.no_grad():
        expected = network(data[0])
        peaks = nn.functional.relu6(net.one(data[0])).amax((0, 2, 3))
        assert 0 < int((peaks == 6).sum()) < 32
        scale = factors(site, peaks)
        assert bool((scale[peaks == 6] == 1).all())
        assert bool((peaks / scale <= 6).all())
        balance(site, scale)
        torch.testing.assert_close(network(data[0]), expected, rtol=1e-3, atol=1e-4)


@pytest.mark.parametrize("backend", [TENSORRT, ONNXRUNTIME], ids=lambda one: one.name)
def test_balancing_keeps_the_function(backend: Backend) -> None:
    """Every site of a residual network with batch norm, with arbitrary factors."""
    model, value = residual(backend)
    network = insert_qdq(model, plan_qdq(model, (value,), backend=backend))
    found = list(sites(network))
    assert found
    with torch.no_grad():
        expected = network(value)
        for site in found:
            width = factors(site, torch.rand(_width(site.readers[0].folded()[0], site.readers[0]))).numel()
            balance(site, torch.rand(width) + 0.5)
        torch.testing.assert_close(network(value), expected, rtol=1e-3, atol=1e-4)


def _width(weight: torch.Tensor, reader: nn.Module) -> int:
    """Return how many channels a layer reads."""
    conv = getattr(reader, "conv", None)
    return weight.shape[1] * (1 if conv is None else conv.groups)


def test_weight_ranges() -> None:
    """Four bits and weights with long tails: clipping pays, by 1 dB at least."""
    layer = nn.Linear(256, 64)
    with torch.no_grad():
        layer.weight.copy_(torch.distributions.StudentT(3.0).sample(layer.weight.shape))
    data = [torch.randn(64, 256) for _ in range(4)]
    model = transform(nn.Sequential(layer).eval(), (data[0],), ONNXRUNTIME).model
    found = tried(model, data, Correction.WEIGHT_RANGES, FOUR_BITS)
    assert found.layers == ("0.linear",)
    assert found.kept
    assert found.after_db > found.before_db + 1


def test_learned_rounding() -> None:
    """Four bits: choosing up or down pays, by 1 dB at least, on data it was not learned from."""
    model, value = residual(ONNXRUNTIME)
    found = tried(model, [value, torch.randn(8, 3, 16, 16)], Correction.ROUNDING, FOUR_BITS)
    assert found.layers
    assert found.kept
    assert found.after_db > found.before_db + 1


def test_bias_correction() -> None:
    """A shift that rounding makes on purpose (weights all rounded down) is given back."""
    model = shifted()
    data = [torch.rand(8, 16, 8, 8) + 1 for _ in range(2)]
    network = transform(model, (data[0],), ONNXRUNTIME).model
    found = tried(network, data, Correction.BIAS, FOUR_BITS)
    assert found.kept
    assert found.after_db > found.before_db + 6


def test_a_correction_that_hurts_is_undone(monkeypatch: pytest.MonkeyPatch) -> None:
    """Weights and scales are put back, and the report says so."""
    from embedl_deploy.quantize import _corrections

    def harm(state: _corrections.QuantState) -> list[str]:
        with torch.no_grad():
            for one in state.model.parameters():
                one.mul_(1.5)
        return ["conv1"]

    monkeypatch.setitem(_corrections._CORRECTIONS, Correction.BIAS, harm)
    model, value = residual(ONNXRUNTIME)
    data = [value] * 4
    plain = quantize(model, (value,), None, data, backend=ONNXRUNTIME)
    result = quantize(model, (value,), None, data, backend=ONNXRUNTIME, corrections=[Correction.BIAS])
    (trial,) = quantization_of(result).trials
    assert not trial.kept
    assert "undone" in str(quantization_of(result))
    with torch.no_grad():
        assert torch.equal(plain(value), result(value))


def test_corrections_need_data_that_can_run_twice() -> None:
    """An iterator and statistics alone are refused."""
    model, value = residual(ONNXRUNTIME)

    def once() -> Iterator[torch.Tensor]:
        yield value

    with pytest.raises(QuantizationError, match="an iterator, which runs only once"):
        quantize(model, (value,), None, once(), backend=ONNXRUNTIME, corrections=[Correction.BIAS])
    statistics = quantization_of(quantize(model, (value,), None, [value], backend=ONNXRUNTIME)).calibration
    with pytest.raises(QuantizationError, match="statistics of an earlier run"):
        quantize(model, (value,), None, statistics, backend=ONNXRUNTIME, corrections=[Correction.BIAS])


def fragile() -> tuple[fx.GraphModule, torch.Tensor]:
    """Return a network one layer of which cannot stand quantization: its weights span five decades in a row."""
    parts = [nn.Conv2d(16, 16, 1), nn.ReLU(), nn.Conv2d(16, 16, 1), nn.ReLU(), nn.Conv2d(16, 16, 1)]
    model = settled(nn.Sequential(*parts), 2, 16, 4, 4)
    with torch.no_grad():
        model.get_submodule("2").weight[:, 0] *= 3000  # type: ignore[operator, index]
        model.get_submodule("0").weight[0] /= 3000  # type: ignore[operator, index]
        model.get_submodule("0").bias[0] /= 3000  # type: ignore[operator, index]
    value = torch.randn(8, 16, 6, 6)
    return transform(model, (value,), TENSORRT).model, value


def test_sensitivity_names_the_fragile_layer() -> None:
    """The estimate of the dearest layer is within 3 dB of leaving all others float."""
    model, value = fragile()
    quantized = quantize(model, (value,), None, [value], backend=TENSORRT)
    found = sensitivity(quantized, (value,), probes=64)
    assert found.layers[0].place == "2"
    assert found.layers[0].share > 0.5
    assert str(found).splitlines()[2].startswith("2 ")
    alone = quantize(model, (value,), QuantConfig(skip=ModulesToSkip.layers("0", "4")), [value], backend=TENSORRT)
    with torch.no_grad():
        expected = model(value)
        real = float((alone(value) - expected).pow(2).sum() / expected.pow(2).sum())
    assert 0.5 < found.layers[0].noise / real < 2


def test_islands_meet_a_goal() -> None:
    """The one fragile layer stays float, the others are quantized, and no data is run again."""
    model, value = fragile()
    with torch.no_grad():
        expected = model(value)

    def metric(candidate: nn.Module) -> float:
        with torch.no_grad():
            return -float((candidate(value) - expected).pow(2).sum() / expected.pow(2).sum())

    runs = []

    def loop(candidate: nn.Module) -> None:
        runs.append(candidate(value))

    plain = metric(quantize(model, (value,), None, [value], backend=TENSORRT))
    result = quantize(model, (value,), None, loop, backend=TENSORRT, goal=MaxDrop(metric, -plain / 4))
    search = quantization_of(result).search
    assert search is not None
    assert search.met
    assert search.islands == ("2",)
    assert len(runs) == 1
    assert {one.place for one in quantization_of(result).placement.quantized} == {"0", "4"}
    assert "Goal met" in str(quantization_of(result))
    rules = {one.place: one.rule for one in quantization_of(result).placement.layers}
    assert rules["2"] == "left float to meet the target"


def test_a_goal_out_of_reach() -> None:
    """The best that was found comes back, and the report says that it is not enough."""
    model, value = fragile()
    result = quantize(
        model, (value,), None, [value], backend=TENSORRT,
        goal=MaxDrop(lambda candidate: float(candidate is model), 0.5, most_islands=1),
    )  # fmt: skip
    search = quantization_of(result).search
    assert search is not None
    assert not search.met
    assert "Goal not met" in str(search)


@pytest.mark.parametrize("corrections", [Correction.BIAS, "bias", ("BIAS",), ["bias correction"]])
def test_corrections_by_name(corrections: Any) -> None:
    """One or several, as values or as names."""
    model, value = residual(TENSORRT)
    result = quantize(model, (value,), None, [value], backend=TENSORRT, corrections=corrections)
    assert [one.correction for one in quantization_of(result).trials] == [Correction.BIAS]


@pytest.mark.parametrize("corrections", ["bais", ("bais",), 3])
def test_no_such_correction(corrections: Any) -> None:
    """The known ones are named."""
    model, value = residual(TENSORRT)
    with pytest.raises(QuantizationError, match=r"is no correction; they are 'BIAS', 'EQUALIZE'"):
        quantize(model, (value,), None, [value], backend=TENSORRT, corrections=corrections)


def test_bad_goals() -> None:
    """A metric that is none, a negative drop, a metric that gives NaN."""
    with pytest.raises(QuantizationError, match="metric is a function"):
        MaxDrop(3, 0.1)  # type: ignore[arg-type]
    with pytest.raises(QuantizationError, match="drop is -1"):
        MaxDrop(float, -1)  # type: ignore[arg-type]
    model, value = fragile()
    with pytest.raises(QuantizationError, match="returned NaN"):
        quantize(model, (value,), None, [value], backend=TENSORRT, goal=MaxDrop(lambda _: float("nan"), 0.5))


class Trunk(nn.Module):
    """Two blocks that write to one trunk by adding, and a layer that reads it; its channels were spread on purpose."""

    def __init__(self) -> None:
        super().__init__()
        self.stem, self.last = nn.Conv2d(3, 16, 3, padding=1), nn.Conv2d(16, 8, 1)
        self.wide = nn.ModuleList(nn.Conv2d(16, 32, 1) for _ in range(2))
        self.acts = nn.ModuleList(nn.Hardswish() for _ in range(2))
        self.narrow = nn.ModuleList(nn.Conv2d(32, 16, 1) for _ in range(2))
        self.spread(torch.logspace(-1.2, 1.2, 16))

    def spread(self, spread: torch.Tensor) -> None:
        """Scale what writes to the trunk up and what reads it down."""
        writer: Any
        reader: Any
        with torch.no_grad():
            for writer in (self.stem, *self.narrow):
                writer.weight.mul_(spread.reshape(-1, 1, 1, 1))
                writer.bias.mul_(spread)
            for reader in (self.last, *self.wide):
                reader.weight.div_(spread.reshape(1, -1, 1, 1))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        """Run."""
        x = self.stem(x)
        for wide, act, narrow in zip(self.wide, self.acts, self.narrow, strict=True):
            x = x + narrow(act(wide(x)))
        out: torch.Tensor = self.last(x)
        return out


def test_equalizing_a_trunk() -> None:
    """All that write to a residual trunk and all that read it take one set of factors, more than 6 dB."""
    data = [torch.randn(4, 3, 8, 8) for _ in range(4)]
    model = transform(Trunk().eval(), (data[0],), ONNXRUNTIME).model
    (site,) = sites(insert_qdq(model, plan_qdq(model, (data[0],), backend=ONNXRUNTIME)))
    assert (len(site.makers), len(site.readers)) == (3, 3)
    found = tried(model, data, Correction.EQUALIZE)
    assert found.layers == ("stem",)
    assert found.kept
    assert found.after_db > found.before_db + 6
