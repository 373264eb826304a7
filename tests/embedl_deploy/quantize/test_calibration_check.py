"""Calibration data is judged by what the network keeps of its training data, and by what resampling says of it."""

import json
from collections.abc import Callable, Iterator
from functools import cache
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import nn
from torch.nn import functional

from embedl_deploy import transform
from embedl_deploy.errors import CalibrationError
from embedl_deploy.onnxruntime import ONNXRUNTIME
from embedl_deploy.quantize import (
    CalibrationVerdict,
    DataVerdict,
    _data_evidence,
    check_calibration,
    quantization_of,
    quantize,
)
from embedl_deploy.quantize._answers import surer
from embedl_deploy.quantize._batch_norm_evidence import find_norms, prefers, watch
from embedl_deploy.quantize._data_evidence import judge_data
from embedl_deploy.quantize._preprocessing import is_flat, is_noise, neighbors, order_faults, range_faults
from embedl_deploy.quantize._resampling import collect_groups, merged, paired_interval, stability, student
from embedl_deploy.quantize._rows import SpreadRows, split_rows, spread_rows

MEAN, DEVIATION = (torch.tensor(part).reshape(3, 1, 1) for part in ((0.485, 0.456, 0.406), (0.229, 0.224, 0.225)))


def pictures(count: int, seed: int) -> torch.Tensor:
    """Return smooth pictures from 0 to 1, more red than blue, that reach black and white."""
    generator = torch.Generator().manual_seed(seed)
    grey = torch.randn(count, 1, 6, 6, generator=generator)
    tint = torch.randn(count, 3, 6, 6, generator=generator)
    fine = torch.randn(count, 3, 24, 24, generator=generator)
    coarse = functional.interpolate(0.26 * grey + 0.1 * tint, (24, 24), mode="bilinear")
    bright = torch.tensor([0.6, 0.45, 0.35]).reshape(3, 1, 1)
    return (coarse + 0.02 * fine + bright).clamp(0, 1)


def normalized(count: int, seed: int) -> torch.Tensor:
    return (pictures(count, seed) - MEAN) / DEVIATION


@cache
def network(data: Callable[[int, int], torch.Tensor] = normalized) -> nn.Module:
    """Return a network whose batch norms have seen pictures, normalized ones unless told otherwise."""
    torch.manual_seed(0)
    model = nn.Sequential(
        nn.Conv2d(3, 16, 3, 2, 1, bias=False), nn.BatchNorm2d(16), nn.ReLU(),
        nn.Conv2d(16, 24, 3, 1, 1, bias=False), nn.BatchNorm2d(24), nn.ReLU(),
        nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(24, 5),
    )  # fmt: skip
    for part in model.modules():
        if isinstance(part, nn.BatchNorm2d):
            part.momentum = None
    with torch.no_grad():
        for seed in range(8):
            model.train()(data(32, 1000 + seed))
    return model.eval()


def judged(value: torch.Tensor, model: nn.Module | None = None) -> CalibrationVerdict:
    return check_calibration(model or network(), None, torch.split(value, 16), quantized=False)


@pytest.mark.parametrize("count", [8, 16, 64])
def test_right_data_fits(count: int) -> None:
    """Few samples are enough, and the line says how many layers were looked at."""
    evidence = judged(normalized(count, count)).evidence
    assert evidence.verdict is DataVerdict.FITS
    assert "2 normalization layers" in evidence.line
    assert [fit.name for fit in evidence.layers] == ["1", "4"]


FAULTS: dict[str, tuple[Callable[[torch.Tensor], torch.Tensor], str]] = {
    "BGR": (lambda x: ((x - MEAN) / DEVIATION).flip(1), "other order"),
    "not normalized": (lambda x: x, "from 0 to 1, and the network fits values normalized by ImageNet"),
    "0 to 255": (lambda x: 255 * x, "from 0 to 255, and the network fits values normalized by ImageNet"),
    "255 before the mean": (lambda x: (255 * x - MEAN) / DEVIATION, "from 0 to 255, normalized by ImageNet"),
    "twice": (lambda x: ((x - MEAN) / DEVIATION - MEAN) / DEVIATION, "ImageNet's mean and deviation twice"),
    "-1 to 1": (lambda x: 2 * x - 1, "from -1 to 1, and the network fits values normalized by"),
    "divided twice": (lambda x: (x / 255 - MEAN) / DEVIATION, "divided by 255 twice"),
    "layout": (lambda x: ((x - MEAN) / DEVIATION).permute(0, 2, 3, 1).reshape(x.shape), "read as channels, height"),
    "noise": (lambda x: torch.randn(x.shape, generator=torch.Generator().manual_seed(0)), "nothing in common"),
}


@pytest.mark.parametrize("name", FAULTS)
def test_a_fault_is_told_by_its_name(name: str) -> None:
    """The repaired data fits, and the reason says what to do."""
    spoil, words = FAULTS[name]
    verdict = judged(spoil(pictures(64, 5)))
    assert verdict.evidence.verdict is DataVerdict.FAULTY
    assert words in verdict.evidence.fault
    assert not verdict.passed
    assert verdict.evidence.advice in str(verdict)


def caffe(x: torch.Tensor) -> torch.Tensor:
    """Prepare pictures as Caffe's networks are fed: blue first, 0 to 255, less the mean."""
    return 255 * (x - MEAN).flip(1)


@cache
def caffe_network() -> nn.Module:
    torch.manual_seed(1)
    model = nn.Sequential(nn.Conv2d(3, 16, 3, 2, 1, bias=False), nn.BatchNorm2d(16, momentum=None))
    with torch.no_grad():
        for seed in range(8):
            model.train()(caffe(pictures(32, 2000 + seed)))
    return model.eval()


@pytest.mark.parametrize("scale", [1 / 255, 1 / 255**2], ids=["0 to 1", "divided twice"])
def test_a_mean_taken_off_blue_first_is_known(scale: float) -> None:
    """The mean of Caffe's networks stands in the order of their channels."""
    assert judged(caffe(pictures(64, 9)), caffe_network()).passed
    mean = 255 * MEAN.flip(0)
    found = judged(255 * scale * pictures(64, 9).flip(1) - mean, caffe_network()).evidence
    assert found.verdict is DataVerdict.FAULTY
    assert "less ImageNet's mean of 0 to 255, blue first" in found.fault


def test_the_mean_that_caffe_takes_off_is_known() -> None:
    """It is half a step of 255 from ImageNet's: for values from 0 to 1 that is half their range."""
    mean = torch.tensor([103.939, 116.779, 123.68]).reshape(3, 1, 1)
    found = judged(pictures(64, 9).flip(1) - mean, caffe_network()).evidence
    assert found.verdict is DataVerdict.FAULTY
    assert "values from 0 to 1 less Caffe's mean of 0 to 255, blue first" in found.fault


@pytest.mark.parametrize("mean", [(120.0, 110.0, 100.0), (300.0, -300.0, 300.0)])
def test_pictures_of_one_color_are_a_fault(mean: tuple[float, ...]) -> None:
    """Whatever constants are taken off values from 0 to 1: padding keeps the distance small, yet nothing shows."""
    value = pictures(32, 9) - torch.tensor(mean).reshape(3, 1, 1)
    assert is_flat(value)
    assert judged(value, caffe_network()).evidence.verdict is DataVerdict.FAULTY
    for right in (pictures(32, 9), 0.1 * pictures(32, 9), normalized(32, 9), caffe(pictures(32, 9))):
        assert not is_flat(right)


def test_a_layout_is_doubted_only_where_rows_have_more_in_common_then() -> None:
    """Right pictures that are mixed up may meet the statistics of other ones by chance."""

    def doubted(value: torch.Tensor) -> bool:
        return any("in memory" in each.fault for each in (*order_faults(value), *range_faults(value)))

    right, motion = pictures(16, 3), torch.randn(16, 6, 64, generator=torch.Generator().manual_seed(0)).cumsum(2)
    assert not doubted(right)
    assert doubted(right.permute(0, 2, 3, 1).reshape(right.shape))
    assert not doubted(motion)
    assert doubted(motion.transpose(1, 2).reshape(motion.shape))


@pytest.mark.parametrize(("tends", "sure", "verdict"), [
    (0.1, 3.0, DataVerdict.FAULTY), (0.1, 1.0, DataVerdict.FITS), (0.01, 9.0, DataVerdict.FITS),
    (0.6, -3.0, DataVerdict.FAULTY),
])  # fmt: skip
def test_answers_are_a_second_witness(
    tends: float, sure: float, verdict: DataVerdict, monkeypatch: pytest.MonkeyPatch
) -> None:
    """BGR is told where statistics tend to it and the answers are surer of the other order, or by clear statistics."""
    monkeypatch.setattr(_data_evidence, "prefers", lambda *_: tends)
    monkeypatch.setattr(_data_evidence, "surer", lambda *_: sure)
    assert judged(normalized(32, 5).flip(1)).evidence.verdict in (verdict, DataVerdict.DIFFERS)
    assert judged(normalized(32, 5).flip(1)).passed is (verdict is not DataVerdict.FAULTY)


def test_sureness_is_in_standard_errors() -> None:
    """Scores and shares of classes say the same; what is no table of classes says nothing."""
    value = torch.randn(32, 4, generator=torch.Generator().manual_seed(0))
    weak: list[Any] = [((value,), {})]
    strong: list[Any] = [((3 * value,), {})]
    assert surer(nn.Identity(), weak, strong) > 5
    assert surer(nn.Identity(), strong, weak) == pytest.approx(-surer(nn.Identity(), weak, strong))
    assert surer(nn.Softmax(1), weak, strong) == pytest.approx(surer(nn.Identity(), weak, strong), rel=1e-3)
    assert surer(nn.Flatten(0), weak, strong) == 0
    assert surer(nn.Identity(), weak, weak) == 0


def test_a_second_fault_is_not_added_for_little() -> None:
    """Where a range alone explains the data, the order of channels is left out of it."""
    assert "BGR" not in judged(pictures(64, 5)).evidence.fault


def alike(count: int, seed: int) -> torch.Tensor:
    """Return pictures from 0 to 1 whose channels have the same statistics."""
    generator = torch.Generator().manual_seed(seed)
    coarse = functional.interpolate(torch.randn(count, 3, 6, 6, generator=generator), (24, 24), mode="bilinear")
    return (0.2 * coarse + 0.02 * torch.randn(count, 3, 24, 24, generator=generator) + 0.5).clamp(0, 1)


def signed(count: int, seed: int) -> torch.Tensor:
    return 2 * alike(count, seed) - 1


def test_a_second_fault_is_not_added_where_the_first_leaves_next_to_nothing() -> None:
    """A share of it is an accident: channels that are alike were told to be in the other order."""
    for seed in range(6):
        fault = judged(alike(64, seed), network(signed)).evidence.fault
        assert "from -1 to 1" in fault
        assert "BGR" not in fault


def test_the_stored_statistics_take_the_version_they_are_of() -> None:
    """Which of two versions is given changes the sign alone."""
    norms, _ = find_norms(network())
    right, wrong = (watch(network(), norms, [((x,), {})]) for x in (normalized(64, 5), normalized(64, 5).flip(1)))
    assert prefers(norms, wrong, right) == pytest.approx(-prefers(norms, right, wrong))
    assert prefers(norms, wrong, right) > 0.5


def test_constants_of_the_data_itself_are_marked() -> None:
    """Mean 0 and deviation 1 by the data's own constants fits much that is no fault: the judge asks more of it."""
    value = torch.randn(16, 6, 32).cumsum(2) * torch.tensor([3.0, 1, 1, 1, 1, 1]).reshape(6, 1)
    free = [each for each in range_faults(value) if each.free]
    assert len(free) == 1
    torch.testing.assert_close(free[0].repair(value).mean((0, 2)), torch.zeros(6), atol=1e-5, rtol=0)


@pytest.mark.parametrize(
    "other",
    [
        lambda x: x.mean(1, keepdim=True).expand(-1, 3, -1, -1),
        lambda x: 0.4 * x,
        lambda x: 0.6 * x + 0.4,
        lambda x: functional.avg_pool2d(x, 5, 1, 2),
    ],
    ids=["grey", "dark", "pale", "blurred"],
)
def test_other_pictures_are_no_fault(other: Callable[[torch.Tensor], torch.Tensor]) -> None:
    """What pictures show may differ from the training data; no preparation explains it."""
    found = judged((other(pictures(64, 6)) - MEAN) / DEVIATION).evidence
    assert found.verdict in (DataVerdict.FITS, DataVerdict.DIFFERS)


@pytest.mark.parametrize(
    ("model", "words"),
    [
        (nn.Sequential(nn.Flatten(), nn.Linear(1728, 8), nn.LayerNorm(8)), "keeps no statistics"),
        (nn.Sequential(nn.Conv2d(3, 8, 3), nn.BatchNorm2d(8)), "never set"),
        (nn.Sequential(nn.Conv2d(3, 8, 3), nn.GroupNorm(2, 8)), "keeps no statistics"),
    ],
)
def test_a_network_without_evidence_says_so(model: nn.Module, words: str) -> None:
    """Silence is no approval: the verdict is neither that it fits nor that it is faulty."""
    found = judged(normalized(16, 1), model.eval()).evidence
    assert found.verdict is DataVerdict.NO_EVIDENCE
    assert "no evidence" in found.line
    assert words in found.line


def test_a_model_that_names_its_normalization_is_believed() -> None:
    """A network without batch norm whose file names mean and deviation: values that they cannot give are a fault."""
    model = nn.Sequential(nn.Flatten(), nn.Linear(1728, 8), nn.LayerNorm(8)).eval()
    model.pretrained_cfg = {"mean": (0.485, 0.456, 0.406), "std": (0.229, 0.224, 0.225)}  # type: ignore[assignment]
    assert judged(normalized(16, 1), model).evidence.verdict is DataVerdict.FITS
    assert judged(pictures(16, 1), model).evidence.verdict is DataVerdict.FAULTY
    assert judged(255 * pictures(16, 1), model).evidence.verdict is DataVerdict.FAULTY


def test_too_few_samples_are_no_evidence() -> None:
    """Two pictures may be anything."""
    assert judged(normalized(2, 1)).evidence.verdict is DataVerdict.NO_EVIDENCE


def test_statistics_are_found_after_transform() -> None:
    """The fused modules keep their batch norms, so the verdict is the same."""
    fused = transform(network(), (normalized(2, 0),), ONNXRUNTIME).model
    right, wrong = judged(normalized(32, 3), fused), judged(pictures(32, 3), fused)
    assert (right.evidence.verdict, wrong.evidence.verdict) == (DataVerdict.FITS, DataVerdict.FAULTY)


def test_statistics_are_found_in_an_exported_program() -> None:
    """There batch norm is a call of a function."""
    batch = torch.export.Dim("batch", min=2, max=256)
    program = torch.export.export(network(), (normalized(4, 0),), dynamic_shapes=({0: batch},))
    found = judged(pictures(32, 3), program.module()).evidence
    assert found.verdict is DataVerdict.FAULTY
    assert len(found.layers) == 2


class Two(nn.Module):
    """Takes numbers of a word beside the pictures."""

    def __init__(self) -> None:
        super().__init__()
        self.eye, self.words = network(), nn.Embedding(10, 5)

    def forward(self, picture: torch.Tensor, word: torch.Tensor) -> torch.Tensor:
        """Add both."""
        return self.eye(picture) + self.words(word)  # type: ignore[no-any-return]


def test_integer_inputs_are_left_alone() -> None:
    """The fault of the pictures is found beside an input that no preparation can be tried on."""
    words = torch.arange(16) % 10
    batches = [(part, words) for part in torch.split(pictures(64, 2), 16)]
    found = check_calibration(Two().eval(), batches[0], batches, quantized=False).evidence
    assert "normalized by ImageNet" in found.fault


def test_damaged_data_is_refused() -> None:
    """One NaN would make every statistic one; the batch is named."""
    value = normalized(32, 1)
    value[20, 0, 3, 3] = torch.nan
    with pytest.raises(CalibrationError, match="batch 2 has values that are not finite"):
        judged(value)


def test_no_data_is_refused() -> None:
    """An empty loader is an error of its own."""
    with pytest.raises(CalibrationError, match="the loader is empty"):
        check_calibration(network(), None, [])


def test_a_batch_of_another_shape_is_refused() -> None:
    """The error names the shape."""
    with pytest.raises(CalibrationError, match=r"does not take batch 1 \(shape \(4, 5\)"):
        check_calibration(network(), None, [torch.zeros(4, 5)])


@pytest.mark.parametrize(
    ("other", "words"),
    [
        (torch.zeros(2, 5, 16, 16), r"batch 3 \(shape \(2, 5, 16, 16\)"),
        (torch.zeros(0, 3, 16, 16), r"batch 3 \(shape \(0, 3, 16, 16\).*it has no samples"),
        (torch.zeros(2, 16, 16, 3), r"batch 3 .*channels seem to come last.*transpose\(0, 3, 1, 2\)"),
        (torch.zeros(3, 16, 16), r"batch 3 .*one sample.*batch\[None\]"),
        (torch.zeros(2, 3, 16, 16, dtype=torch.uint8), r"batch 3 .*values are integers"),
        (torch.full((2, 3, 16, 16), torch.nan), "batch 3 has values that are not finite"),
    ],
)
def test_one_batch_that_differs_is_named(other: torch.Tensor, words: str) -> None:
    """Wherever it stands, with the likely reason."""
    batches = [normalized(2, 1), normalized(2, 2), other, normalized(2, 3)]
    with pytest.raises(CalibrationError, match=words) as told:
        check_calibration(network(), None, batches)
    assert told.value.batch == 3


def labeled(count: int, seed: int) -> Iterator[tuple[torch.Tensor, torch.Tensor]]:
    """Yield batches with what the float network answers for classes; no length is known."""
    for part in torch.split(normalized(count, seed), 16):
        yield part, network()(part).argmax(1)


def test_a_loader_without_a_length_will_do() -> None:
    """Data that runs once gives evidence, scales and the drop in points, as classes stand behind the inputs."""
    verdict = check_calibration(network(), (normalized(2, 0),), labeled(128, 4), backend=ONNXRUNTIME)
    assert verdict.passed
    assert verdict.scales is not None
    assert verdict.scales.changes
    assert verdict.drop is not None
    assert (verdict.drop.metric, verdict.drop.samples, verdict.drop.calibrations) == ("accuracy", 32, 5)
    assert verdict.drop.low <= verdict.drop.value <= verdict.drop.high
    assert "99%" in str(verdict)


def test_without_classes_the_ratio_is_measured() -> None:
    """One large batch is cut into parts, of which every fourth is held out."""
    verdict = check_calibration(network(), None, [normalized(128, 4)], backend=ONNXRUNTIME)
    assert verdict.drop is not None
    assert verdict.drop.metric == "SQNR"
    assert verdict.drop.samples == 32
    assert verdict.drop.low < verdict.drop.value < verdict.drop.high


def test_too_few_unseen_samples_say_what_is_missing() -> None:
    """Eight samples leave two to measure on."""
    verdict = check_calibration(network(), None, [normalized(8, 4)], backend=ONNXRUNTIME)
    assert verdict.drop is None
    assert "16 are needed" in str(verdict)


def test_the_verdict_goes_to_a_page_and_to_json(tmp_path: Path) -> None:
    """Names from a model are escaped, and the data round-trips."""
    verdict = judged(pictures(32, 1))
    page = verdict.save_html(tmp_path / "verdict.html").read_text(encoding="utf-8")
    assert "Explanations that were tried" in page
    assert "ImageNet&#x27;s" in page
    document = json.loads(json.dumps(verdict.to_dict()))
    assert document["evidence"]["verdict"] == "faulty"
    assert repr(verdict).startswith("<CalibrationVerdict: Calibration data: looks faulty")


def test_every_report_of_a_quantization_has_the_line() -> None:
    """It costs no second pass over the data, works with a function, and can be switched off."""
    example = (normalized(2, 0),)
    fused = transform(network(), example, ONNXRUNTIME).model

    def run(model: nn.Module) -> None:
        for part in torch.split(pictures(64, 9), 16):
            model(part)

    found = quantization_of(quantize(fused, example, forward_loop=run, backend=ONNXRUNTIME))
    assert found.evidence is not None
    assert found.evidence.samples == 64
    assert "Calibration data: looks faulty" in str(found)
    off = quantize(fused, example, forward_loop=run, backend=ONNXRUNTIME, check_data=False)
    assert quantization_of(off).evidence is None
    again = quantize(fused, example, forward_loop=found.calibration, backend=ONNXRUNTIME)
    assert "it was given as statistics" in str(quantization_of(again))


def test_the_judged_model_is_left_as_it_was() -> None:
    """No hook stays behind, and training mode comes back."""
    model = network().train()
    try:
        judge_data(model, [((normalized(16, 1),), {})])
        assert model.training
        assert not any(part._forward_pre_hooks for part in model.modules())
    finally:
        model.eval()


def test_noise_is_told_by_its_neighbors() -> None:
    """Smooth pictures have much in common, noise has nothing, a vector has no neighbors."""
    assert not is_noise(pictures(8, 0))
    assert is_noise(torch.randn(8, 3, 24, 24, generator=torch.Generator().manual_seed(0)))
    assert neighbors(torch.rand(8, 3)) is None


def test_scales_settle_with_more_data() -> None:
    """Tails that grow with every batch are unsettled; a bounded value is settled."""
    fused = transform(network(), (normalized(2, 0),), ONNXRUNTIME).model
    from embedl_deploy.quantize import QuantConfig, insert_qdq, plan_qdq

    placed = insert_qdq(fused, plan_qdq(fused, (normalized(2, 0),), backend=ONNXRUNTIME))
    config = QuantConfig().activation
    form = config.format(symmetric=quantization_of(placed).symmetric)
    wild: list[Any] = [((normalized(2, seed) * 1.5**seed,), {}) for seed in range(12)]
    tame: list[Any] = [((normalized(16, seed),), {}) for seed in range(12)]
    unsettled = stability(collect_groups(placed, wild), config, form, {})
    settled = stability(collect_groups(placed, tame), config, form, {})
    assert len(unsettled.unsettled) > len(settled.unsettled)
    assert "give more" in str(unsettled)
    assert stability(collect_groups(placed, tame[:2]), config, form, {}).reason


def test_groups_are_bounded_and_lose_nothing() -> None:
    """A hundred batches leave at most 64 groups, and merged they equal one pass to the last bit."""
    fused = transform(network(), (normalized(2, 0),), ONNXRUNTIME).model
    from embedl_deploy.quantize import collect, insert_qdq, plan_qdq

    placed = insert_qdq(fused, plan_qdq(fused, (normalized(2, 0),), backend=ONNXRUNTIME))
    batches = [normalized(2, seed) for seed in range(100)]
    groups = collect_groups(placed, [((batch,), {}) for batch in batches])
    assert len(groups) <= 64
    assert merged(groups).statistics == collect(placed, batches).statistics


@pytest.mark.parametrize(("lost", "gained", "count"), [(0, 0, 500), (3, 1, 500), (20, 20, 400), (500, 0, 500)])
def test_the_paired_interval_holds_what_was_measured(lost: int, gained: int, count: int) -> None:
    """Nothing lost in 500 samples still leaves one point, by the rule of minus log of the tail over the count."""
    low, high = paired_interval(lost, gained, count, 0.99)
    assert low <= (lost - gained) / count <= high
    if lost == gained == 0:
        assert high == pytest.approx(1 - 0.005 ** (1 / 500), rel=1e-6)
        assert low == pytest.approx(-high)


def test_the_paired_interval_covers() -> None:
    """Over all outcomes of 60 samples with rare disagreements, 99 % and more of the probability is covered."""
    count, lost_rate, gained_rate = 60, 0.03, 0.01
    outcomes = torch.cartesian_prod(torch.arange(15), torch.arange(10)).double()
    lost, gained = outcomes.unbind(1)
    rest = count - lost - gained
    logs = torch.lgamma(torch.tensor(count + 1.0).double()) - sum(
        torch.lgamma(part + 1) for part in (lost, gained, rest)
    )
    logs += lost * torch.tensor(lost_rate).log() + gained * torch.tensor(gained_rate).log()
    weights = (logs + rest * torch.tensor(1 - lost_rate - gained_rate).log()).exp()
    covered = 0.0
    for (one, other), weight in zip(outcomes.int().tolist(), weights.tolist(), strict=True):
        low, high = paired_interval(one, other, count, 0.99)
        covered += weight * (low <= lost_rate - gained_rate <= high)
    assert covered >= 0.99


def test_students_quantile() -> None:
    """The values of the printed tables."""
    assert student(0.99, 15) == pytest.approx(2.947, abs=0.001)
    assert student(0.95, 30) == pytest.approx(2.042, abs=0.001)


def test_rows_are_spread_over_all_batches() -> None:
    """The last batch counts as much as the first; single rows come back in calls of several."""
    calls: list[Any] = [((torch.full((10, 1), float(number)),), {}) for number in range(10)]
    found = spread_rows(calls, 20, lambda _: True)
    assert [float(args[0][0]) for args, _ in found] == list(range(10))
    for count in range(1, 400, 7):
        single: list[Any] = [((torch.full((1, 1), float(number)),), {}) for number in range(count)]
        chosen = [float(args[0][0]) for args, _ in spread_rows(single, 128, lambda _: True)]
        assert min(count, 64) <= len(chosen) <= 128
        assert chosen == sorted(chosen)
    kept = SpreadRows(16)
    for call in calls:
        kept.add(call)
    rows = torch.cat([args[0] for args, _ in kept.calls()])
    assert len(rows) <= 16
    assert set(rows.flatten().tolist()) >= {0.0, 4.0, 9.0}


def test_a_model_with_a_fixed_batch_keeps_its_batches() -> None:
    """Then whole calls are taken, and none is cut."""
    calls: list[Any] = [((torch.full((10, 1), float(number)),), {}) for number in range(10)]
    assert all(len(args[0]) == 10 for args, _ in spread_rows(calls, 20, lambda _: False))
    assert len(split_rows(calls[:2], lambda _: False)) == 2
    assert len(split_rows(calls[:2], lambda _: True)) >= 8
