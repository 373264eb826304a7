"""What is left open is chosen on data that no range was taken from, and the report has the evidence."""

import math
from collections.abc import Iterator
from typing import Any

import pytest
import torch
from support.quantized_nets import ratio_db, residual, settled, shifted
from torch import fx, nn

from embedl_deploy import transform
from embedl_deploy.errors import CalibrationError
from embedl_deploy.onnxruntime import ONNXRUNTIME
from embedl_deploy.quantize import (
    CalibrationMethod,
    Correction,
    MaxDrop,
    Precision,
    QuantConfig,
    TensorQuantConfig,
    quantization_of,
    quantize,
)
from embedl_deploy.quantize._held_out import Split, gain
from embedl_deploy.tensorrt import TENSORRT

MINMAX = QuantConfig(activation=TensorQuantConfig(calibration_method=CalibrationMethod.MINMAX))
FOUR_BITS = QuantConfig(weight=TensorQuantConfig(Precision.INT4, per_channel=True))


def small(value: torch.Tensor) -> fx.GraphModule:
    """Return two layers, transformed."""
    torch.manual_seed(1)
    model = nn.Sequential(nn.Linear(value.shape[1], 32), nn.ReLU(), nn.Linear(32, 8)).eval()
    return transform(model, (value,), ONNXRUNTIME).model


def noise(rows: int, seed: int) -> torch.Tensor:
    return torch.randn(rows, 16, generator=torch.Generator().manual_seed(seed))


def tailed(rows: int, seed: int) -> torch.Tensor:
    """Return noise in which one value of a thousand is thirty times as large."""
    generator = torch.Generator().manual_seed(seed)
    far = torch.rand(rows, 16, generator=generator) < 0.001
    return torch.randn(rows, 16, generator=generator) * torch.where(far, 30.0, 1.0)


def test_every_fourth_batch_is_held_out() -> None:
    """An iterator will do: it is gone through once."""
    split = Split((torch.full((2, 3), float(number)) for number in range(1, 10)), 1, lambda _: True)
    assert [float(batch[0, 0]) for batch in split] == [1, 2, 3, 5, 6, 7, 9]
    assert [float(args[0][0, 0]) for args, _ in split.held] == [4, 8]


def test_rows_of_few_batches_are_held_out() -> None:
    """The last quarter of each; none where there are too few, or where the model wants whole batches."""
    batches = [torch.arange(16.0).reshape(16, 1), torch.arange(8.0).reshape(8, 1)]
    split = Split(batches, 1, lambda _: True)
    assert [len(args[0]) for args in [(batch,) for batch in split]] == [1, 1]
    assert [args[0].flatten().tolist() for args, _ in split.held] == [[12, 13, 14, 15], [6, 7]]
    for whole, given in (
        (Split(batches[1:], 1, lambda _: True), batches[1:]),
        (Split(batches, 1, lambda _: False), batches),
    ):
        assert [len(batch) for batch in whole] == [len(batch) for batch in given]
        assert not whole.held


def test_too_little_data_is_calibrated_on_as_a_whole() -> None:
    """Statistics are those of a method that was named, to the bit, and the report says why nothing was compared."""
    data = [noise(1, seed) for seed in range(7)]
    model = small(data[0])
    found = quantization_of(quantize(model, (data[0],), None, data, backend=ONNXRUNTIME))
    plain = quantization_of(quantize(model, (data[0],), MINMAX, data, backend=ONNXRUNTIME))
    assert found.calibration == plain.calibration
    assert found.ranges is not None
    assert found.ranges.method is CalibrationMethod.MINMAX
    assert "Ranges: min-max, as there are 1 unseen samples to compare methods on and 4 are needed" in str(found)
    assert plain.ranges is None
    assert plain.outputs == ()


def test_a_method_is_chosen_on_unseen_samples() -> None:
    """Long tails: another method than min-max, better by a decibel on data that nobody has seen."""
    data = [tailed(64, seed) for seed in range(8)]
    model = small(data[0])
    chosen = quantize(model, (data[0],), None, data, backend=ONNXRUNTIME)
    record = quantization_of(chosen)
    assert record.ranges is not None
    assert record.ranges.method is not CalibrationMethod.MINMAX
    assert record.config.activation.calibration_method is record.ranges.method
    assert record.calibration.batches == 7
    assert record.ranges.samples == record.outputs[0].samples == 64
    (best,) = [trial for trial in record.ranges.trials if trial.method is record.ranges.method]
    assert best.gain is not None
    assert best.gain.is_real
    assert f"Ranges: {record.ranges.method.value}, chosen on 64 unseen samples" in str(record)
    assert "output: " in str(record)
    plain = quantize(model, (data[0],), MINMAX, data, backend=ONNXRUNTIME)
    unseen = noise(256, 99)
    with torch.no_grad():
        wanted = model(unseen)
        assert ratio_db(wanted, chosen(unseen)) > ratio_db(wanted, plain(unseen)) + 1


def test_min_max_stays_where_nothing_is_better() -> None:
    """Values that fill their range evenly."""
    generator = torch.Generator().manual_seed(0)
    data = [torch.rand(32, 16, generator=generator) for _ in range(8)]
    record = quantization_of(quantize(small(data[0]), (data[0],), None, data, backend=ONNXRUNTIME))
    assert record.ranges is not None
    assert record.ranges.method is CalibrationMethod.MINMAX
    assert len(record.ranges.trials) == 5


@pytest.mark.parametrize("kind", ["function", "statistics", "example"])
def test_why_nothing_could_be_held_out(kind: str) -> None:
    """The report says it; batches that are given for the purpose mend it."""
    data = [tailed(64, seed) for seed in range(8)]
    model = small(data[0])

    def loop(candidate: nn.Module) -> None:
        for batch in data:
            candidate(batch)

    first = quantize(model, (data[0],), None, loop, backend=ONNXRUNTIME)
    sources: dict[str, Any] = {"function": loop, "statistics": quantization_of(first).calibration, "example": None}
    given = sources[kind]
    said = {"function": "forward_loop is a function", "statistics": "statistics alone", "example": "the only data"}
    assert said[kind] in str(quantization_of(quantize(model, (data[0],), None, given, backend=ONNXRUNTIME)))
    if given is not None:
        held = [tailed(64, 50)]
        judged = quantization_of(quantize(model, (data[0],), None, given, backend=ONNXRUNTIME, held_out=held))
        assert judged.ranges is not None
        assert judged.ranges.samples == 64
        assert judged.ranges.method is not CalibrationMethod.MINMAX


def test_an_iterator_serves() -> None:
    """Data that runs once is split on the way."""
    data = [tailed(64, seed) for seed in range(8)]

    def once() -> Iterator[torch.Tensor]:
        yield from data

    model = small(data[0])
    assert quantization_of(quantize(model, (data[0],), None, once(), backend=ONNXRUNTIME)).outputs[0].samples == 64


def test_a_gain_is_compared_sample_by_sample() -> None:
    """The same for all samples: real. Large for one and a loss for the others: not."""
    before = torch.full((8, 1), 20.0)
    assert gain(before, before + 0.5).is_real
    one = before - 0.5
    one[0] = 60.0
    assert gain(before, one).mean_db > 3
    assert not gain(before, one).is_real
    assert not gain(before, before + 0.01).is_real


def test_a_correction_that_harms_unseen_samples_is_undone() -> None:
    """A bias that fits the calibration data, and is far too much for the rest."""
    torch.manual_seed(0)
    model = shifted()
    data = [torch.rand(8, 16, 4, 4) + 1 for _ in range(4)]
    network = transform(model, (data[0],), ONNXRUNTIME).model
    for held, kept in ((torch.rand(16, 16, 4, 4) + 1, True), (torch.rand(16, 16, 4, 4) / 10, False)):
        result = quantize(
            network, (data[0],), FOUR_BITS, data, backend=ONNXRUNTIME, corrections="bias", held_out=[held]
        )
        record = quantization_of(result)
        (trial,) = record.trials
        assert trial.kept is kept
        assert trial.gain is not None
        assert trial.gain.samples == 16
        assert ("dB on 16 unseen samples" if kept else "undone: no improvement on 16 unseen samples") in str(record)


def test_an_outlier_in_the_data_is_told_and_cut() -> None:
    """One value of a million among values of one: the batch and the input are named, and the model is usable."""
    model, _ = residual(ONNXRUNTIME)
    data = [torch.randn(8, 3, 16, 16, generator=torch.Generator().manual_seed(seed)) for seed in range(4)]
    data[1][2, 0, 3, 3] = 1e6
    result = quantize(model, (data[0],), None, data, backend=ONNXRUNTIME)
    assert "Warning: calibration batch 2 has a value of 1e+06 in input 'x'" in str(quantization_of(result))
    plain = quantize(model, (data[0],), MINMAX, data, backend=ONNXRUNTIME)
    assert "ranges reach as far" in str(quantization_of(plain))
    unseen = torch.randn(8, 3, 16, 16)
    with torch.no_grad():
        assert ratio_db(model(unseen), result(unseen)) > 25
        assert ratio_db(model(unseen), plain(unseen)) < 10


def test_data_of_zeros_is_refused_and_one_number_is_told() -> None:
    """There is nothing to take a range from."""
    model, _ = residual(ONNXRUNTIME)
    with pytest.raises(CalibrationError, match=r"all zeros in input 'x'.*give batches of real data"):
        quantize(model, (torch.zeros(2, 3, 16, 16),), None, [torch.zeros(2, 3, 16, 16)], backend=ONNXRUNTIME)
    found = quantize(model, (torch.ones(2, 3, 16, 16),), None, [torch.ones(2, 3, 16, 16)], backend=ONNXRUNTIME)
    assert "input 'x' is 1 everywhere in the calibration data" in str(quantization_of(found))


class TwoHeads(nn.Module):
    """Scores that stand quantization, and boxes from a layer whose weights span four decades in a row."""

    def __init__(self) -> None:
        super().__init__()
        self.body = nn.Sequential(nn.Conv2d(3, 16, 3, padding=1), nn.ReLU(), nn.Conv2d(16, 16, 3, padding=1), nn.ReLU())
        self.scores = nn.Sequential(nn.Conv2d(16, 16, 1), nn.ReLU(), nn.Conv2d(16, 16, 1))
        self.boxes = nn.Sequential(nn.Conv2d(16, 16, 1), nn.ReLU(), nn.Conv2d(16, 16, 1))

    def forward(self, x: torch.Tensor) -> dict[str, torch.Tensor]:
        """Run."""
        x = self.body(x)
        return {"scores": self.scores(x), "boxes": self.boxes(x)}


def two_heads() -> tuple[fx.GraphModule, list[torch.Tensor]]:
    """Return the network, transformed, and data."""
    torch.manual_seed(3)
    model = settled(TwoHeads(), 2, 3, 8, 8)
    with torch.no_grad():
        model.get_submodule("boxes.2").weight[:, 0] *= 3000  # type: ignore[operator, index]
        model.get_submodule("boxes.0").weight[0] /= 3000  # type: ignore[operator, index]
        model.get_submodule("boxes.0").bias[0] /= 3000  # type: ignore[operator, index]
    data = [torch.randn(8, 3, 8, 8, generator=torch.Generator().manual_seed(seed)) for seed in range(8)]
    return transform(model, (data[0],), TENSORRT).model, data


def test_the_layers_of_a_poor_output_stay_float() -> None:
    """Nobody names them: the boxes come above 20 dB, the scores stay quantized, and the report says it."""
    model, data = two_heads()
    plain = quantize(model, (data[0],), MINMAX, data, backend=TENSORRT)
    result = quantize(model, (data[0],), None, data, backend=TENSORRT, corrections=())
    record = quantization_of(result)
    rows = {output.name: output for output in record.outputs}
    assert rows["boxes"].kept
    assert all(place.startswith("boxes") for place in rows["boxes"].kept)
    assert rows["boxes"].before_db is not None
    assert rows["boxes"].db > 20 > rows["boxes"].before_db
    assert not rows["scores"].kept
    assert "kept in float for it: boxes" in str(record)
    assert {"left float to keep an output"} == {
        one.rule for one in record.placement.layers if one.place in rows["boxes"].kept
    }
    unseen = torch.randn(16, 3, 8, 8)
    with torch.no_grad():
        wanted = model(unseen)["boxes"]
        assert ratio_db(wanted, result(unseen)["boxes"]) > ratio_db(wanted, plain(unseen)["boxes"]) + 6


def test_corrections_come_before_float_layers() -> None:
    """An output below 20 dB is corrected where that is enough, without being asked."""
    model, data = two_heads()
    record = quantization_of(quantize(model, (data[0],), None, data, backend=TENSORRT))
    kept = [trial for trial in record.trials if trial.kept]
    assert kept[0].correction is Correction.EQUALIZE
    assert {output.name: output.kept for output in record.outputs} == {"scores": (), "boxes": ()}
    assert min(output.db for output in record.outputs) > 20
    assert "kept: +" in str(record)


def test_a_goal_is_searched_for_in_order_and_told(capsys: pytest.CaptureFixture[str]) -> None:
    """Methods, corrections, islands: each with its metric, and all of it costs what the report says."""
    model, data = two_heads()
    unseen = torch.randn(16, 3, 8, 8)
    with torch.no_grad():
        wanted = model(unseen)["boxes"]
    measured = []

    def metric(candidate: nn.Module) -> float:
        with torch.no_grad():
            measured.append(candidate)
            return min(ratio_db(wanted, candidate(unseen)["boxes"]), 100.0)

    goal = MaxDrop(metric, 75.0)
    result = quantize(
        model, (data[0],), None, data, backend=TENSORRT, goal=goal, corrections=Correction.BIAS, progress=True
    )
    search = quantization_of(result).search
    assert search is not None
    assert search.met
    assert search.islands
    assert search.tried == len(search.steps) == len(measured) - 1
    kinds = [next(kind for kind in ("ranges", "bias", "float:") if kind in step.what) for step in search.steps]
    assert kinds == sorted(kinds, key=["ranges", "bias", "float:"].index)
    assert kinds.count("ranges") == 5
    assert math.isclose(metric(result), search.metric)
    assert f"{search.tried} models measured in" in str(search)
    told = capsys.readouterr().err
    assert "goal: float 100" in told
    assert f"goal: {search.steps[-1].what}: " in told


def test_a_goal_that_is_met_at_once_stops() -> None:
    """One model is measured."""
    model, data = two_heads()
    result = quantize(model, (data[0],), None, data, backend=TENSORRT, goal=MaxDrop(lambda _: 1.0, 0.0))
    search = quantization_of(result).search
    assert search is not None
    assert (search.met, search.tried, search.islands) == (True, 1, ())
