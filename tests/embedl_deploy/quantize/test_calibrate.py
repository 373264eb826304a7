"""One pass, six methods; files merge; bad data is answered with one clear error."""

from collections.abc import Iterator
from pathlib import Path
from typing import cast

import pytest
import torch
from support.quantized_nets import ratio_db, residual
from torch import fx, nn

from embedl_deploy.backend import Backend
from embedl_deploy.errors import CalibrationError, InputError, QuantizationError, UnknownBackendError
from embedl_deploy.nn import QuantStub, WeightQuantizer
from embedl_deploy.onnxruntime import ONNXRUNTIME
from embedl_deploy.quantize import (
    Calibration,
    CalibrationMethod,
    ModulesToSkip,
    Placement,
    Precision,
    QuantConfig,
    TensorQuantConfig,
    apply_calibration,
    calibrate,
    collect,
    insert_qdq,
    plan_qdq,
    quantization_of,
    quantize,
)
from embedl_deploy.tensorrt import TENSORRT

BACKENDS = pytest.mark.parametrize("backend", [TENSORRT, ONNXRUNTIME], ids=lambda one: one.name)


def inserted(backend: Backend = TENSORRT) -> tuple[fx.GraphModule, torch.Tensor]:
    """Return a network with pairs that are not calibrated, and a batch."""
    model, value = residual(backend)
    placement = plan_qdq(model, (value,), backend=backend)
    return insert_qdq(model, placement, symmetric=backend.symmetric_activations), value


@BACKENDS
def test_eight_bits_are_close(backend: Backend) -> None:
    """Before calibration the pairs pass values on; after it the outputs are within 30 dB."""
    model, value = residual(backend)
    quantized = insert_qdq(model, plan_qdq(model, (value,), backend=backend), symmetric=backend.symmetric_activations)
    with torch.no_grad():
        expected = model(value)
        assert ratio_db(expected, quantized(value)) > 100
        calibrate(quantized, [value])
        assert ratio_db(expected, quantized(value)) > 30


@BACKENDS
def test_scales_are_positive_and_finite(backend: Backend) -> None:
    """After every method."""
    quantized, value = inserted(backend)
    statistics = collect(quantized, [value])
    for method in CalibrationMethod:
        apply_calibration(
            quantized, statistics, config=QuantConfig(activation=TensorQuantConfig(calibration_method=method))
        )
        for part in quantized.modules():
            if isinstance(part, QuantStub | WeightQuantizer):
                assert bool(torch.isfinite(part.scale).all())
                assert bool((part.scale > 0).all())


def test_parts_merge_to_the_whole(tmp_path: Path) -> None:
    """Two machines' files, merged in either order, are one pass over all, to the bit."""
    quantized, _ = inserted()
    data = [torch.randn(4, 3, 16, 16) * size for size in (1, 3, 0.5)]
    whole = collect(quantized, data)
    first = Calibration.load(collect(quantized, data[:1]).save(tmp_path / "first.pt"))
    second = Calibration.load(collect(quantized, data[1:]).save(tmp_path / "second.pt"))
    assert first.merge(second) == second.merge(first) == whole
    assert whole.batches == 3


def test_statistics_serve_without_the_data() -> None:
    """Scales solved from a file are those of the run."""
    quantized, value = inserted()
    statistics = calibrate(quantized, [value])
    other, _ = inserted()
    calibrate(other, statistics)
    scales = {name: one for name, one in quantized.state_dict().items() if name.endswith("scale") and "stubs" in name}
    assert all(torch.equal(other.state_dict()[name], one) for name, one in scales.items())


def test_memory_does_not_grow_with_the_data() -> None:
    """Statistics of a hundred batches are as large as of one."""
    quantized, value = inserted()

    def size(count: int) -> int:
        found = collect(quantized, (value for _ in range(count)))
        return sum(one.counts.numel() for one in found.statistics.values())

    assert size(1) == size(100)


def test_the_mode_comes_back() -> None:
    """Calibration runs in eval mode: batch norm statistics stay, and train mode comes back."""
    quantized, value = inserted()
    quantized.train()
    before = quantized.get_submodule("conv1.conv.bn").running_mean.clone()  # type: ignore[operator]
    calibrate(quantized, [value])
    assert all(part.training for part in quantized.modules())
    assert torch.equal(quantized.get_submodule("conv1.conv.bn").running_mean, before)  # type: ignore[arg-type]
    assert all(stub.observer is None for stub in quantized.modules() if isinstance(stub, QuantStub))


def test_ways_to_give_data() -> None:
    """A function, tensors, pairs with labels, dictionaries."""
    quantized, value = inserted()
    whole = collect(quantized, [value])
    assert collect(quantized, lambda model: model(value)) == whole
    assert collect(quantized, [(value, torch.zeros(8))]) == whole
    assert collect(quantized, [{"x": value}]) == whole


def test_progress(capsys: pytest.CaptureFixture[str]) -> None:
    """Batches are counted on the error stream."""
    quantized, value = inserted()
    calibrate(quantized, [value, value], progress=True)
    assert "batch 2 of 2" in capsys.readouterr().err


def empty() -> Iterator[torch.Tensor]:
    """Yield nothing."""
    yield from ()


BAD = [
    ([], "no calibration batch was seen"),
    (empty(), "no calibration batch was seen"),
    (lambda _model: None, "forward_loop never called the model"),
    ([torch.randn(2, 3, 16, 16), torch.randn(2, 5, 16, 16)], r"does not take batch 2 \(shape \(2, 5, 16, 16\)"),
    ([torch.full((1, 3, 16, 16), torch.nan)], "'x' is not finite in batch 1"),
    ([torch.randn(1, 3, 16, 16), torch.full((1, 3, 16, 16), torch.inf)], "'x' is not finite in batch 2"),
    ([torch.randn(0, 3, 16, 16)], "is empty"),
    (torch.randn(2, 3, 16, 16), r"forward_loop is one Tensor; .* give \[batch\]"),
    ({"x": torch.randn(2, 3, 16, 16)}, "forward_loop is one dict"),
]


@pytest.mark.parametrize(("data", "message"), BAD, ids=[message for _, message in BAD])
def test_bad_data(data: object, message: str) -> None:
    """One clear error, and the model is as it was."""
    quantized, value = inserted()
    with pytest.raises(CalibrationError, match=message):
        calibrate(quantized, data)  # type: ignore[arg-type]
    assert not any(stub.calibrated or stub.observer for stub in quantized.modules() if isinstance(stub, QuantStub))
    calibrate(quantized, [value])


def test_a_constant_activation_and_a_channel_of_zeros() -> None:
    """A range of nothing and a channel of nothing get the scale 1, and outputs stay finite."""
    model, value = residual(TENSORRT)
    with torch.no_grad():
        model.get_submodule("conv1.conv").weight[3] = 0  # type: ignore[operator]
    quantized = insert_qdq(model, plan_qdq(model, (value,), backend=TENSORRT))
    calibrate(quantized, [torch.zeros(2, 3, 16, 16)])
    stub = quantized.get_submodule("stubs.x")
    weight = quantized.get_submodule("conv1.conv.weight_quantizer")
    assert isinstance(stub, QuantStub)
    assert isinstance(weight, WeightQuantizer)
    assert float(stub.scale) == 1.0
    assert float(weight.scale[3]) == 1.0
    assert bool(torch.isfinite(quantized(value)).all())


def test_statistics_of_another_model() -> None:
    """They are refused, by name."""
    quantized, value = inserted()
    other, _ = inserted(ONNXRUNTIME)
    with pytest.raises(CalibrationError, match="of another model or another placement"):
        calibrate(other, collect(quantized, [value]))
    with pytest.raises(CalibrationError, match="different models"):
        collect(quantized, [value]).merge(collect(other, [value]))


def test_a_file_that_is_none(tmp_path: Path) -> None:
    """Missing and foreign files are named."""
    with pytest.raises(CalibrationError, match="there is no calibration file"):
        Calibration.load(tmp_path / "none.pt")
    for text in ("hello", "e"):
        (tmp_path / "text.pt").write_text(text)
        with pytest.raises(CalibrationError, match=r"text.pt' is no calibration file, or a damaged one; "):
            Calibration.load(tmp_path / "text.pt")


def test_arrays_are_batches() -> None:
    """NumPy's arrays, bare, in tuples and in dictionaries, count as the tensors of their values."""
    quantized, value = inserted()
    array = value.numpy()
    assert collect(quantized, [array, (array, [1]), {"x": array}]) == collect(quantized, [value] * 3)


def test_a_calibration_is_printed_in_a_line() -> None:
    """Histograms are for files."""
    quantized, value = inserted()
    found = collect(quantized, [value])
    assert repr(found) == f"<Calibration: {len(found.statistics)} tensors, 1 batches>"


def test_the_example_as_data_is_said() -> None:
    """Ranges of one example are no ranges of real data."""
    model, value = residual(TENSORRT)
    warning = "Warning: calibrated on the example inputs alone"
    assert warning in str(quantization_of(quantize(model, (value,), backend=TENSORRT)))
    assert warning not in str(quantization_of(quantize(model, (value,), forward_loop=[value], backend=TENSORRT)))


def test_an_example_that_does_not_fit() -> None:
    """It is refused, though the data fits."""
    model, value = residual(TENSORRT)
    with pytest.raises(InputError, match=r"does not take the example inputs .*shape \(1, 5, 16, 16\)"):
        quantize(model, (torch.randn(1, 5, 16, 16),), forward_loop=[value], backend=TENSORRT)


def test_a_backend_by_name() -> None:
    """As everywhere; a name that is none is answered with those there are."""
    model, value = residual(ONNXRUNTIME)
    named = quantize(model, (value,), forward_loop=[value], backend="onnxruntime")
    with torch.no_grad():
        assert torch.equal(named(value), quantize(model, (value,), forward_loop=[value], backend=ONNXRUNTIME)(value))
    with pytest.raises(UnknownBackendError, match="no backend is called 'onnx'"):
        plan_qdq(model, (value,), backend="onnx")


def test_matches_that_are_no_placement() -> None:
    """The error says where one comes from."""
    model, _ = residual(TENSORRT)
    with pytest.raises(QuantizationError, match=r"matches is a list; it is the Placement that plan_qdq"):
        insert_qdq(model, cast("Placement", []))


def test_bad_models() -> None:
    """A model that was not transformed, one without pairs, one with pairs already."""
    model, value = residual(TENSORRT)
    plain = nn.Sequential(nn.Conv2d(3, 8, 3))
    with pytest.raises(QuantizationError, match=r"was not transformed.*call transform"):
        quantize(plain, (value,), backend=TENSORRT)
    with pytest.raises(QuantizationError, match="all transform"):
        quantize(fx.symbolic_trace(plain), (value,), backend=TENSORRT)
    with pytest.raises(QuantizationError, match=r"no quantize/dequantize pairs; call quantize"):
        calibrate(model, [value])
    quantized = quantize(model, (value,), backend=TENSORRT)
    with pytest.raises(QuantizationError, match="has quantize/dequantize pairs already"):
        insert_qdq(quantized, plan_qdq(model, (value,), backend=TENSORRT))
    with pytest.raises(QuantizationError, match="nothing to calibrate with"):
        quantize(model, backend=TENSORRT)
    with pytest.raises(QuantizationError, match="has no quantized patterns"):
        quantize(model, (value,), backend=Backend("none"))


def test_skips_that_mean_nothing() -> None:
    """The nearest names are offered."""
    model, value = residual(TENSORRT)
    for skip, message in (
        (ModulesToSkip(stub=["conv9"]), r"^'conv9' was to be skipped.*did you mean .*'conv1'"),
        (ModulesToSkip(weight=["zzz"]), "layers are called, for example"),
        (ModulesToSkip(smooth=[nn.LSTM]), "has the type LSTM, which is no part"),
        (ModulesToSkip(stub=[nn.Linear(3, 3)]), "has a Linear, which is no part"),
        (ModulesToSkip(stub="conv1"), "give a list"),
    ):
        with pytest.raises(QuantizationError, match=message):
            plan_qdq(model, (value,), QuantConfig(skip=skip), backend=TENSORRT)


@pytest.mark.parametrize(
    ("make", "message"),
    [
        (
            lambda: TensorQuantConfig(precision=cast("Precision", "int8")),
            "precision is 'int8'; it is one of 'FP8'",
        ),
        (lambda: TensorQuantConfig(calibration_method=cast("CalibrationMethod", "max")), "calibration_method is 'max'"),
        (lambda: TensorQuantConfig(percentile=10), "percentile is 10"),
        (lambda: TensorQuantConfig(block_size=7), "block_size is 7"),
        (lambda: QuantConfig(activation=TensorQuantConfig(per_channel=True)), "one scale per tensor"),
        (lambda: QuantConfig(activation=TensorQuantConfig(block_size=16)), "blocks are for INT4 weights"),
        (lambda: QuantConfig(skip=cast("ModulesToSkip", "c1")), r"skip is 'c1'; .* ModulesToSkip.layers\('c1'\)"),
        (lambda: QuantConfig(weight=cast("TensorQuantConfig", 8)), "weight is 8; it is a TensorQuantConfig"),
        (lambda: QuantConfig(activation=TensorQuantConfig(Precision.INT4)), "INT4 is for weights"),
        (lambda: QuantConfig(weight=TensorQuantConfig(Precision.INT16)), "no target has INT16 weights"),
        (lambda: QuantConfig(weight=TensorQuantConfig(symmetric=False)), "weights are symmetric"),
        (
            lambda: QuantConfig(weight=TensorQuantConfig(calibration_method=CalibrationMethod.ENTROPY)),
            "by MINMAX or MSE, not ENTROPY",
        ),
    ],
)
def test_choices_that_cannot_be_met(make: object, message: str) -> None:
    """They are refused when they are made."""
    with pytest.raises(QuantizationError, match=message):
        make()  # type: ignore[operator]
