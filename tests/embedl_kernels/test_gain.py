"""Costs and gains: arithmetic alone, on tables made up here."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from embedl_kernels import CostTable, Work, predict_gain, read_costs, work_of, works_of


def conv(channels: int, size: int, *, kernel: int = 3, op: str = "Conv", dtype: str = "float") -> Work:
    data = (dtype, (1, channels, size, size))
    return work_of(op, [data, (dtype, (channels, channels, kernel, kernel))], [data])


def add(size: int, dtype: str = "float") -> Work:
    return work_of("Add", [(dtype, (1, size)), (dtype, (1, size))], [(dtype, (1, size))])


def true_us(work: Work, per_mac: float, per_byte: float) -> float:
    return 1.0 + work.terms[1] * per_mac + (work.terms[2] + work.terms[3]) * per_byte


def table(integer_gain: float = 3.0) -> CostTable:
    samples = []
    for channels in (8, 16, 32, 64, 128):
        for size in (4, 8, 16, 32):
            plain, integer = conv(channels, size), conv(channels, size, op="QLinearConv", dtype="uint8")
            samples.append((plain, true_us(plain, 1e-4, 1e-4)))
            samples.append((integer, true_us(integer, 1e-4 / integer_gain, 1e-4 / integer_gain)))
    samples += [(add(size), true_us(add(size), 0, 1e-4)) for size in (100, 1000, 10_000, 100_000)]
    return CostTable(samples)


def test_work_counts_products_and_tells_kinds_apart() -> None:
    """Shapes alone say what a kernel does, in either layout."""
    dense = conv(16, 8)
    assert dense.kernel == "Conv|float|spatial"
    assert dense.terms[1] == 16 * 8 * 8 * 16 * 9
    depthwise = work_of("Conv", [("float", (1, 32, 8, 8)), ("float", (32, 1, 3, 3))], [("float", (1, 32, 8, 8))])
    assert depthwise.kernel.endswith("depthwise")
    last = work_of(
        "QLinearConv",
        [("uint8", (1, 14, 14, 32)), ("float", ()), ("uint8", ()), ("int8", (32, 16, 3, 3))],
        [("uint8", (1, 14, 14, 32))],
    )
    assert last.kernel == "QLinearConv|uint8|grouped"
    row = work_of("Gemm", [("float", (1, 64)), ("float", (10, 64)), ("float", (10,))], [("float", (1, 10))])
    assert row.kernel == "Gemm|float|row"
    assert row.terms[1] == 640
    assert work_of("Transpose", [("float", (1, 8, 4, 4))], [("float", (1, 4, 4, 8))]).kernel.endswith("turned")
    far = work_of("Transpose", [("float", (1, 28, 28, 2, 58))], [("float", (1, 58, 2, 28, 28))])
    assert far.kernel.endswith("scattered")


def test_a_fit_predicts_sizes_that_were_not_measured() -> None:
    """Between and a little beyond what was measured."""
    for channels, size in ((24, 12), (48, 20), (160, 24)):
        work = conv(channels, size)
        cost = table().cost(work)
        assert cost.is_known
        assert cost.us == pytest.approx(true_us(work, 1e-4, 1e-4), rel=0.1)


def test_noise_widens_the_interval() -> None:
    """What cannot be fitted cannot be predicted exactly."""
    random = np.random.default_rng(0)
    works = [conv(channels, size) for channels in (8, 16, 32, 64) for size in (4, 8, 16, 32)]
    noisy = CostTable([(work, true_us(work, 1e-4, 1e-4) * random.lognormal(0, 0.5)) for work in works])
    assert noisy.cost(works[5]).spread > 2 * table().cost(works[5]).spread


def test_a_kernel_that_nobody_measured_is_said_to_be_unknown() -> None:
    """It costs what its like cost, and the interval is wide."""
    cost = table().cost(work_of("Erf", [("float", (1, 1000))], [("float", (1, 1000))]))
    assert not cost.is_known
    assert cost.spread > 0.5
    assert 0 < cost.us < 1000


def test_a_gain_that_integers_bring() -> None:
    """Convolutions three times as fast, and the interval holds the truth."""
    plain = [conv(32, 16)] * 4
    integer = [conv(32, 16, op="QLinearConv", dtype="uint8")] * 4
    gain = predict_gain(plain, integer, table())
    assert gain.low < gain.speedup < gain.high
    assert gain.speedup == pytest.approx(3.0, rel=0.1)
    assert gain.pays
    assert gain.is_certain
    assert gain.known == 1.0
    assert str(gain) == f"{gain.speedup:.2f}x ({gain.low:.2f} to {gain.high:.2f})"


def test_float_work_that_stays_eats_the_gain() -> None:
    """It is named with its share."""
    plain = [conv(8, 4), add(100_000)]
    integer = [conv(8, 4, op="QLinearConv", dtype="uint8"), add(100_000), add(100_000)]
    gain = predict_gain(plain, integer, table())
    assert not gain.pays
    assert gain.reasons[0].startswith("Add take ")
    assert "0.5x as fast as in float" in gain.reasons[0]
    assert gain.to_dict()["reasons"] == list(gain.reasons)


def test_nothing_to_predict_from_is_refused() -> None:
    """A model without nodes has no speed."""
    with pytest.raises(ValueError, match="no kernels"):
        predict_gain([], [conv(8, 8)], table())


def answer(node_us: float = 12.0, model_us: float = 40.0) -> dict[str, Any]:
    shape = [{"float": [1, 64]}]
    node = {"op": "Relu", "inputs": shape, "outputs": shape, "us": node_us}
    return {"models": {f"m{number}": {"us": model_us, "nodes": [node] * 4} for number in range(3)}}


def test_what_the_profile_itself_costs_is_taken_off() -> None:
    """Four nodes of 12 µs in a run of 40 µs take 10 µs each, or less with a run of its own cost."""
    made = read_costs(answer())
    assert made.overhead_us < 0
    (work, *_) = works_of(answer()["models"]["m0"]["nodes"])
    assert 4 * made.cost(work).us + made.run_us == pytest.approx(40.0, rel=0.05)


@pytest.mark.parametrize(
    "broken", [{}, {"models": {}}, {"models": {"m": {}}}, {"models": []}, answer(float("nan")), {"models": {"m": 3}}]
)
def test_a_broken_answer_is_no_table(broken: dict[str, Any]) -> None:
    """Whatever is wrong with it, one error says so."""
    with pytest.raises(ValueError, match="kernel costs"):
        read_costs(broken)
