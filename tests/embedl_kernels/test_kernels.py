"""Families, pairs and remedies, by themselves."""

import itertools

import numpy as np
import onnxruntime
import pytest

from embedl_kernels import (
    EXACT_U8S8,
    FAMILIES,
    PAIR_LIMIT,
    Layer,
    can_saturate,
    choose,
    families,
    family_of,
    get_family,
    kernels_here,
    mismatch,
    pair_sums,
    probe,
    remedies,
    same_family,
    saturated_sums,
    wrapped,
)
from embedl_kernels._families import Probe


def naive(values: np.ndarray, codes: np.ndarray) -> np.ndarray:
    """Add pairs one by one, as the instruction does."""
    rows, channels = values.astype(int), codes.astype(int)
    if rows.shape[1] % 2:
        rows, channels = (np.pad(one, [(0, 0), (0, 1)]) for one in (rows, channels))
    result = np.zeros((len(rows), len(channels)), int)
    for at in range(0, rows.shape[1], 2):
        pair = np.outer(rows[:, at], channels[:, at]) + np.outer(rows[:, at + 1], channels[:, at + 1])
        result += np.clip(pair, -32768, 32767)
    return result


@pytest.mark.parametrize("length", [1, 2, 3, 64, 65])
def test_saturated_sums(length: int) -> None:
    """Fast sums equal the naive ones, at the ends of both types."""
    random = np.random.default_rng(length)
    values = random.choice([0, 1, 127, 128, 254, 255], (7, length)).astype(np.uint8)
    codes = random.choice([-128, -127, -65, -1, 0, 64, 65, 127], (5, length)).astype(np.int8)
    assert np.array_equal(saturated_sums(values, codes), naive(values, codes))


def test_the_limit_is_the_limit() -> None:
    """A pair at the limit fits into 16 bits with every input, one above does not."""
    assert 255 * PAIR_LIMIT <= 32767 < 255 * (PAIR_LIMIT + 1)
    for first, second in itertools.product((-128, -127, -64, 0, 1, 64, 65, 127), repeat=2):
        codes = np.array([[first, second]], np.int8)
        worst = max(abs(x * first + y * second) for x, y in itertools.product((0, 255), repeat=2))
        assert bool(can_saturate(codes)[0, 0]) == (worst > 32767)


def test_wrapped() -> None:
    """Only two products of -128 and -128 in one pair wrap around."""
    values, codes = np.zeros((1, 16), int), np.zeros((1, 16), int)
    values[0, [0, 8]] = codes[0, [0, 8]] = -128
    assert wrapped(values, codes)[0, 0] == -65536
    codes[0, 8] = -127
    assert wrapped(values, codes)[0, 0] == 0


def layer(shape: tuple[int, int, int] = (1, 8, 33), *, data: bool = True, **options: bool) -> Layer:
    random = np.random.default_rng(0)
    weight = random.uniform(-1, 1, shape)
    scale = np.abs(weight).max(-1) / 127
    codes = np.rint(weight / scale[..., None]).astype(np.int8)
    inputs = random.normal(size=(shape[0], 200, shape[2])) if data else None
    return Layer(weight, codes, scale, inputs, 0.01, **options)


@pytest.mark.parametrize("remedy", remedies(), ids=lambda one: one.name)
@pytest.mark.parametrize("shape", [(1, 8, 33), (4, 3, 18), (1, 1, 2), (1, 5, 1)])
def test_no_remedy_leaves_a_pair(remedy: object, shape: tuple[int, int, int]) -> None:
    """Whatever the shape, with and without data."""
    for data in (True, False):
        fitted = remedy.fit(layer(shape, data=data, clippable=True))  # type: ignore[attr-defined]
        if fitted is not None and fitted.kind == "int8":
            assert not can_saturate(fitted.codes, fitted.levels).any()
            assert fitted.codes.min() >= -127 or fitted.levels < 255


def test_compensation_pays() -> None:
    """On correlated inputs its noise is well below that of plain rounding with the same scales."""
    random = np.random.default_rng(1)
    one = layer((1, 16, 64))
    inputs = random.normal(size=(1, 500, 8)) @ random.normal(size=(8, 64)) + 0.1 * random.normal(size=(1, 500, 64))
    given = Layer(one.weight, one.codes, one.scale, inputs, 0.0)
    assert choose(given).remedy == "compensated"
    noise = {
        remedy.name: given.noise(fitted.real)
        for remedy in remedies()
        if remedy.name in ("scaled", "compensated") and (fitted := remedy.fit(given)) is not None
    }
    assert noise["compensated"] < noise["scaled"] / 2


def test_weights_that_cannot_saturate_stay() -> None:
    """Nothing is done to them."""
    small = layer()
    quiet = Layer(small.weight / 2, small.codes // 2, small.scale, small.inputs, 0.01)
    found = choose(quiet)
    assert found.remedy == "none"
    codes = found.fitted.codes
    assert codes is not None
    assert np.array_equal(codes, quiet.codes)


def test_a_shared_scale_stays_shared() -> None:
    """One scale for all channels where the file can hold no more."""
    found = choose(layer(shared=True))
    assert len(np.unique(found.fitted.scale)) == 1


def test_a_remedy_that_fails_is_not_quiet() -> None:
    """One that leaves a pair to saturate is an error, not a file."""
    from embedl_kernels import Fitted, Remedy

    with pytest.raises(AssertionError, match="'lazy'"):
        choose(layer(), [Remedy("lazy", "", lambda one: Fitted(one.codes, one.scale))])


@pytest.mark.parametrize(
    ("architecture", "features", "name"),
    [
        ("x86_64", ("avx2", "avx512f", "avx512_vnni"), "x86-vnni"),
        ("AMD64", ("avx2", "avx_vnni"), "x86-vnni"),
        ("x86_64", ("avx2", "amx_int8"), "x86-vnni"),
        ("x86_64", ("avx2", "avx512f"), "x86-avx2"),
        ("x86_64", ("sse4_1",), "x86-sse"),
        ("aarch64", ("asimd", "asimddp", "i8mm"), "arm-i8mm"),
        ("arm64", ("asimddp",), "arm-dotprod"),
        ("armv7l", (), "arm-neon"),
        ("riscv64", (), None),
    ],
)
def test_families_by_features(architecture: str, features: tuple[str, ...], name: str | None) -> None:
    """The first that fits."""
    found = family_of(architecture, features)
    assert (found.name if found else None) == name


def test_families_of_other_runtimes() -> None:
    """OpenVINO saturates where ONNX Runtime does; LiteRT nowhere."""
    assert family_of("x86_64", ["avx2"], "openvino") == get_family("openvino-x86-avx2")
    assert not any(one.saturates for one in families("litert"))
    assert len({one.name for one in FAMILIES}) == len(FAMILIES)


def test_the_probe_asks_the_runtime() -> None:
    """It answers in milliseconds, and what it answers is one of the two."""
    found = probe(lambda model: onnxruntime.InferenceSession(model, providers=["CPUExecutionProvider"]))
    assert found.u8s8 in ("exact", "saturating")
    record = kernels_here(onnxruntime.InferenceSession, "x86_64", ["avx2"])
    assert record["by_features"] == "x86-avx2"
    assert record["u8s8"] == found.u8s8


def test_the_probe_is_believed() -> None:
    """A virtual machine hides features: the runtime's answer decides."""
    vnni, avx2 = get_family("x86-vnni"), get_family("x86-avx2")
    assert same_family(vnni, Probe(1048544, "saturating", 1.0)) == avx2
    assert same_family(avx2, Probe(2072640, "exact", 1.0)) == vnni
    assert same_family(avx2, Probe(7, "7", 1.0)) == avx2


def test_pair_sums_of_an_odd_row() -> None:
    """The last one is alone."""
    up, down = pair_sums(np.array([[100, 100, -5]], np.int8))
    assert up.tolist() == [[200, 0]]
    assert down.tolist() == [[0, 5]]


def test_a_mismatch_names_the_cure() -> None:
    """And is empty where there is none."""
    assert "relower" in mismatch(EXACT_U8S8, get_family("x86-avx2"))
    assert mismatch(EXACT_U8S8, get_family("x86-vnni")) == mismatch("", get_family("x86-avx2")) == ""
