"""Portable files: no input can saturate a pair, and every x86 processor gives the same bits."""

import importlib
import sys
from collections.abc import Callable
from pathlib import Path
from types import ModuleType

import numpy as np
import onnx
import pytest
from onnx import numpy_helper
from support.families import Emulated
from support.qdq import Graph, sample, tensorrt_residual
from support.qdq_random import extreme_input, random_qdq

import embedl_kernels
from embedl_deploy.dialect import RemedyRow, dialect_for, lower, relower, remedies_of
from embedl_deploy.dialect._fuse import fuse, propagated
from embedl_deploy.dialect._model import metadata, read
from embedl_deploy.dialect._portable import is_paired, to_matrix
from embedl_deploy.errors import DialectError, ModelFileError
from embedl_deploy.integer import IntegerModel
from embedl_kernels import EXACT_U8S8, can_saturate

X86 = ("haswell", "nehalem", "host")


def risky(model: onnx.ModelProto) -> dict[str, int]:
    """Count the pairs of every layer that some input saturates, by the kernels that the file lands in."""
    qdq = propagated(read(model))
    found = fuse(qdq, signed_kernels=False)
    return {
        kernel.node.name: int(can_saturate(to_matrix(kernel.node, qdq.weights[kernel.node.input[1]].values)).sum())
        for kernel in found
        if is_paired(kernel, qdq)
    }


def answers(model: onnx.ModelProto, feeds: list[dict[str, np.ndarray]], emulated: Callable[[str], Emulated]) -> None:
    """Assert that the three x86 families give the same bits, and those of integer arithmetic."""
    outputs = {name: emulated(name).run(model.SerializeToString(), feeds) for name in X86}
    integer = IntegerModel(model)
    for at, feed in enumerate(feeds):
        wanted = integer.run(feed).outputs["y"]
        for name in X86:
            assert np.array_equal(outputs[name][at][0], wanted), (name, at)


def extremes() -> list[dict[str, np.ndarray]]:
    """Return random inputs and those whose integers are all 255 or all 0."""
    shape = sample()["x"].shape
    ends = [{"x": np.full(shape, value, np.float32)} for value in (1e4, -1e4)]
    return [*(sample(seed) for seed in range(4)), *ends]


def test_no_pair_can_saturate_and_every_family_agrees(emulated: Callable[[str], Emulated]) -> None:
    """A residual network, with additions and pooling: as written, before: some pairs could; the file: none."""
    assert sum(risky(lower(tensorrt_residual(), "onnxruntime-x86-vnni")).values()) > 0
    model = lower(tensorrt_residual(), "onnxruntime-x86", samples=[sample(seed) for seed in range(4)])
    assert set(risky(model).values()) == {0}
    answers(model, extremes(), emulated)


@pytest.mark.parametrize("seed", range(4))
def test_random_graphs_agree(seed: int, emulated: Callable[[str], Emulated]) -> None:
    """Weights and inputs at the ends of their types, groups, odd shapes; judged on weights alone."""
    model = lower(random_qdq(seed), "onnxruntime-x86")
    assert set(risky(model).values()) == {0}
    exact = {kernel.name for kernel in IntegerModel(model).kernels if not kernel.integer} <= {"Reshape", "Identity"}
    assert exact
    answers(model, [extreme_input(seed), extreme_input(seed + 100)], emulated)


REMEDIES = ("scaled", "compensated", "clipped", "reduced_inputs", "unsigned", "floating")


def linear() -> onnx.ModelProto:
    """Return a linear layer behind a float operator, where every remedy applies."""
    net = Graph(seed=5)
    net.node("Tanh", [net.input("x", [1, 64])], "t")
    net.node(
        "Gemm", [net.qdq("t", 1 / 127.5, 128, "uint8"), net.weight("w", (16, 64)), net.bias("b", 16)], "y", transB=1
    )
    return net.model("y")


@pytest.mark.parametrize("name", REMEDIES)
def test_every_remedy_is_exact(name: str, monkeypatch: pytest.MonkeyPatch, emulated: Callable[[str], Emulated]) -> None:
    """Each alone makes a file that answers alike on a processor that saturates and on one that does not."""
    remedy = importlib.import_module(f"embedl_kernels.remedies.{name}").REMEDY
    monkeypatch.setattr("embedl_kernels._choose.remedies", lambda: (remedy,))
    feeds = [{"x": np.random.default_rng(seed).normal(size=(1, 64)).astype(np.float32) * 9} for seed in range(3)]
    feeds += [{"x": np.full((1, 64), value, np.float32)} for value in (99.0, -99.0)]
    source = linear()
    model = lower(source, "onnxruntime-x86", samples=feeds)
    (row,) = remedies_of(model)
    assert row.remedy == remedy.name
    assert row.measured
    found = {family: emulated(family).run(model.SerializeToString(), feeds) for family in ("haswell", "host")}
    before = emulated("haswell").run(lower(source, "onnxruntime-x86-vnni").SerializeToString(), feeds)
    exact = [IntegerModel(lower(source, "onnxruntime-x86-vnni")).run(feed).outputs["y"] for feed in feeds]
    for one, other, wanted in zip(found["haswell"], found["host"], exact, strict=True):
        assert np.array_equal(one[0], other[0]) or name == "floating"
        # Clipping is the remedy for few pairs; here they are many.
        assert np.abs(one[0] - wanted).max() < (0.5 if name == "clipped" else 0.3) * np.abs(wanted).max()
    assert max(np.abs(one[0] - wanted).max() for one, wanted in zip(before, exact, strict=True)) > 0.1


def test_a_remedy_is_one_file(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A module with a REMEDY in the folder is tried with the others, and nothing else is edited."""
    text = (
        "from embedl_kernels import Fitted, Remedy\n"
        "import numpy as np\n"
        "def fit(layer):\n"
        "    return Fitted(np.zeros_like(layer.codes), layer.scale)\n"
        "REMEDY = Remedy('zero', 'no weights at all', fit)\n"
    )
    (tmp_path / "zero.py").write_text(text)
    folder: ModuleType = importlib.import_module("embedl_kernels.remedies")
    monkeypatch.setattr(folder, "__path__", [*folder.__path__, str(tmp_path)])
    embedl_kernels.remedies.cache_clear()
    try:
        (row,) = remedies_of(lower(linear(), "onnxruntime-x86"))
        assert "zero" in row.tried
        assert row.remedy != "zero"
    finally:
        embedl_kernels.remedies.cache_clear()
        sys.modules.pop("embedl_kernels.remedies.zero", None)


def test_samples_decide_and_the_report_says_so() -> None:
    """With samples the layer's noise is measured on them; without, on the weights alone."""
    samples = [{"x": np.random.default_rng(seed).normal(size=(1, 64)).astype(np.float32)} for seed in range(8)]
    (judged,), (blind,) = (remedies_of(lower(linear(), "onnxruntime-x86", samples=one)) for one in (samples, None))
    assert judged.measured
    assert not blind.measured
    assert isinstance(judged, RemedyRow)
    assert "compensated" in judged.tried
    assert "compensated" not in blind.tried
    assert judged.sqnr_db > 20


def test_depthwise_layers_keep_all_bits() -> None:
    """Their kernels are exact: weights, scales and integers stay."""
    net = Graph(seed=1)
    x = net.qdq(net.input("x", [1, 8, 12, 12]), 0.02, 128, "uint8")
    net.node("Conv", [x, net.weight("w", (8, 1, 3, 3))], "c", group=8)
    net.node("Identity", [net.qdq("c", 0.05, 128, "uint8")], "y")
    source = net.model("y")
    before, after = read(source).weights["w"], read(lower(source, "onnxruntime-x86")).weights["w"]
    assert np.array_equal(np.maximum(before.values, -127), after.values)
    assert after.params.same(before.params)


def test_the_requirement_is_in_the_file() -> None:
    """All 8 bits are right on some processors only, and the file says so; the portable one says nothing."""
    assert metadata(lower(tensorrt_residual(), "onnxruntime-x86-vnni"))["edgeproof.requires"] == EXACT_U8S8
    assert "edgeproof.requires" not in metadata(lower(tensorrt_residual(), "onnxruntime-x86"))


def test_a_portable_file_becomes_one_of_all_bits_again() -> None:
    """Its origin is kept: the way back gives the bits of the direct way."""
    straight = lower(tensorrt_residual(), "onnxruntime-x86-vnni")
    back = lower(lower(tensorrt_residual(), "onnxruntime-x86", samples=[sample()]), "onnxruntime-x86-vnni")
    values = [{one.name: one.SerializeToString() for one in model.graph.initializer} for model in (straight, back)]
    assert values[0] == values[1]


@pytest.mark.parametrize("per_channel", [True, False])
def test_files_of_another_tool(per_channel: bool, tmp_path: Path, emulated: Callable[[str], Emulated]) -> None:
    """ONNX Runtime's own u8s8 file saturates on a processor without VNNI; relowered it does not."""
    from onnxruntime.quantization import CalibrationDataReader, QuantFormat, QuantType, quantize_static

    class Reader(CalibrationDataReader):  # type: ignore[misc]
        def __init__(self) -> None:
            self.left = [sample(seed) for seed in range(4)]

        def get_next(self) -> dict[str, np.ndarray] | None:
            return self.left.pop() if self.left else None

    net = Graph(seed=2)
    random = np.random.default_rng(3)
    net.input("x", [1, 8, 12, 12])
    net.node("Conv", ["x", net.constant("w", random.uniform(-1, 1, (16, 8, 3, 3)))], "c")
    net.node("Relu", ["c"], "r")
    net.node("Conv", ["r", net.constant("v", random.uniform(-1, 1, (8, 16, 3, 3)))], "y")
    onnx.save(net.model("y"), tmp_path / "float.onnx")
    quantize_static(
        tmp_path / "float.onnx", tmp_path / "theirs.onnx", Reader(), quant_format=QuantFormat.QDQ,
        activation_type=QuantType.QUInt8, weight_type=QuantType.QInt8, per_channel=per_channel,
    )  # fmt: skip
    done = relower(
        tmp_path / "theirs.onnx",
        tmp_path / "ours.onnx",
        dialect="onnxruntime-x86",
        samples=[sample(n) for n in range(4)],
    )
    theirs, ours = onnx.load(tmp_path / "theirs.onnx"), onnx.load(done.path)
    assert sum(risky(theirs).values()) > 0
    assert set(risky(ours).values()) == {0}
    feeds = [sample(seed) for seed in range(10, 14)]
    wanted = [one[0] for one in emulated("host").run((tmp_path / "float.onnx").read_bytes(), feeds)]

    def noise(model: onnx.ModelProto) -> float:
        found = emulated("haswell").run(model.SerializeToString(), feeds)
        return float(sum(np.sum((one[0] - exact) ** 2) for one, exact in zip(found, wanted, strict=True)))

    assert noise(ours) < noise(theirs) / 2
    answers(ours, feeds, emulated)


def test_real_weights_are_rounded_once() -> None:
    """A float weight behind Q and DQ is rounded from the float, not from its integers."""
    net = Graph(seed=4)
    x = net.qdq(net.input("x", [1, 64]), 0.02, 128, "uint8")
    real = np.random.default_rng(4).uniform(-1, 1, (64, 16)).astype(np.float32)
    net.node("MatMul", [x, net.qdq(net.constant("w", real), 1 / 127)], "y")
    source = net.model("y")
    qdq = read(lower(source, "onnxruntime-x86"))
    twice = onnx.ModelProto()
    twice.CopyFrom(source)
    held = read(source).weights["w"]
    for value in twice.graph.initializer:
        if value.name == "w":
            value.CopyFrom(numpy_helper.from_array(held.real, "w"))
    once, again = (np.abs(one.weights["w"].real - real).mean() for one in (qdq, read(lower(twice, "onnxruntime-x86"))))
    assert once < again


@pytest.mark.parametrize("axis", [None, 0, 1])
def test_weights_with_zero_points_and_scales_along_either_axis(
    axis: int | None, emulated: Callable[[str], Emulated]
) -> None:
    """Pairs are of stored integers: a zero point moves them, and a scale along K belongs to no channel."""
    net = Graph(seed=7)
    x = net.qdq(net.input("x", [1, 32]), 0.02, 128, "uint8")
    size = () if axis is None else ((32, 16)[axis],)
    net.constant("w", net.random.integers(0, 256, (32, 16)), np.uint8)
    net.constant("w.s", net.random.uniform(0.002, 0.01, size))
    net.constant("w.z", net.random.integers(60, 200, size), np.uint8)
    options = {} if axis is None else {"axis": axis}
    net.node("DequantizeLinear", ["w", "w.s", "w.z"], "w.d", **options)
    net.node("MatMul", [x, "w.d"], "y")
    model = lower(net.model("y"), "onnxruntime-x86")
    assert not any(risky(model).values())
    feeds = [{"x": np.full((1, 32), value, np.float32)} for value in (99.0, -99.0, 1.1)]
    here, there = (emulated(name).run(model.SerializeToString(), feeds) for name in ("host", "haswell"))
    for one, other in zip(here, there, strict=True):
        assert np.array_equal(one[0], other[0])


class Spec:
    """What a hub knows of a device."""

    def __init__(self, architecture: str | None, *features: str) -> None:
        self.architecture, self.features = architecture, features


@pytest.mark.parametrize(
    ("device", "dialect"),
    [
        ("x86-vnni", "onnxruntime-x86-vnni"),
        ("x86-avx2", "onnxruntime-x86"),
        ("x86-sse", "onnxruntime-x86"),
        ("arm-neon", "onnxruntime-arm"),
        (Spec("x86_64", "avx2", "avx512_vnni"), "onnxruntime-x86-vnni"),
        (Spec("x86_64", "avx2"), "onnxruntime-x86"),
        (Spec("x86_64"), "onnxruntime-x86"),
        (Spec("aarch64", "asimddp"), "onnxruntime-arm"),
    ],
    ids=lambda one: str(getattr(one, "features", one)),
)
def test_a_device_picks_its_dialect(device: object, dialect: str) -> None:
    """By the family of its kernels."""
    assert dialect_for(device).name == dialect


def test_here_is_a_device() -> None:
    """The runtime itself is asked."""
    assert dialect_for("here").name.startswith("onnxruntime")


@pytest.mark.parametrize("device", ["toaster", Spec(None), Spec("riscv64")], ids=["name", "empty", "riscv64"])
def test_devices_that_say_too_little(device: object) -> None:
    """Are refused with what is known."""
    with pytest.raises(DialectError, match="x86"):
        dialect_for(device)


@pytest.mark.parametrize("key", ["edgeproof.remedies", "edgeproof.remainders", "edgeproof.origin"])
@pytest.mark.parametrize("text", ["{", "7", '[{"node": 1}]', '{"x": "!!"}', "[" * 100_000])
def test_damaged_metadata_is_one_clear_error(key: str, text: str) -> None:
    """A file from elsewhere may say anything of itself."""
    model = lower(tensorrt_residual(), "onnxruntime-x86", samples=[sample()])
    entry = next((one for one in model.metadata_props if one.key == key), None) or model.metadata_props.add()
    entry.key, entry.value = key, text
    with pytest.raises(ModelFileError, match=key):
        (remedies_of if key == "edgeproof.remedies" else lambda one: lower(one, "onnxruntime-x86-vnni"))(model)


def test_a_weight_read_along_two_axes(emulated: Callable[[str], Emulated]) -> None:
    """No order of pairs serves both readers: it becomes unsigned, once, and answers alike everywhere."""
    net = Graph(seed=6)
    x = net.qdq(net.input("x", [1, 16]), 0.02, 128, "uint8")
    weight = net.weight("w", (16, 16), axis=None)
    made = [net.node("Gemm", [x, weight], f"g{turn}", transB=turn % 2) for turn in range(3)]
    net.node("Sum", made, "y")
    model = lower(net.model("y"), "onnxruntime-x86")
    assert read(model).weights["w"].params.type == "uint8"
    feeds = [{"x": np.full((1, 16), value, np.float32)} for value in (99.0, -99.0, 0.7)]
    here, there = (emulated(name).run(model.SerializeToString(), feeds) for name in ("host", "haswell"))
    exact = emulated("nehalem").run(lower(net.model("y"), "onnxruntime-x86-vnni").SerializeToString(), feeds)
    for one, other, wanted in zip(here, there, exact, strict=True):
        assert np.array_equal(one[0], other[0])
        assert np.allclose(one[0], wanted[0], rtol=1e-5)
