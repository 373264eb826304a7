"""What trtexec writes, read: the forms of three versions, what is broken in them, and whatever else comes."""

from __future__ import annotations

import math
import random
from collections.abc import Callable
from typing import Any

import pytest
from support import samples_trtexec as samples

from embedl_hub.refusal import RefusedError
from embedl_hub.toolchains.tensorrt.layers import (
    LayerProfile,
    Query,
    parse_layer_info,
    parse_outputs,
    parse_profile,
    parse_times,
)
from embedl_hub.toolchains.tensorrt.log import (
    Capabilities,
    errors,
    parse_facts,
    parse_help,
    parse_memory_mib,
    parse_raw_files,
    parse_seconds,
    parse_statistics,
    parse_warmups,
    unknown_options,
    warnings,
)

FUZZED = 10_000


def test_times_are_milliseconds() -> None:
    """Of each query the latency and its parts."""
    queries = parse_times(samples.TIMES)
    assert queries == (Query(1.27012, 1.21856, 0.0327148, 0.0188446), Query(1.26518, 1.21446, 0.032, 0.0187174))


def test_times_in_another_unit_are_refused() -> None:
    """Whichever column changed, the sum does not hold any more; all of them together have other keys."""
    for key in ("latencyMs", "computeMs"):
        text = samples.scaled(samples.TIMES, key, 1000)
        with pytest.raises(RefusedError, match="not the sum of its parts"):
            parse_times(text)
    with pytest.raises(RefusedError, match=r"lacks 'computeMs'.*kept with the run"):
        parse_times(samples.TIMES.replace("Ms", "Us"))


@pytest.mark.parametrize("text", ["", "[\n]\n", "[]", "{}", "[1]", "null", "[\n{ }\n]", samples.TIMES[:90]])
def test_times_that_are_not_there_are_refused(text: str) -> None:
    """Empty, cut short, or something else."""
    with pytest.raises(RefusedError, match="--exportTimes"):
        parse_times(text)


def test_a_time_that_is_no_number_is_refused() -> None:
    """It would poison every statistic."""
    with pytest.raises(RefusedError, match="not a number of ms"):
        parse_times(samples.TIMES.replace("1.21856", "nan"))


def test_names_of_layers_stand_raw() -> None:
    """A quotation mark, a backslash: what breaks JSON is still read."""
    profile = parse_profile(samples.PROFILE)
    assert profile.count == 200
    assert [layer.name for layer in profile.layers] == [
        "Reformatting CopyNode for Input Tensor 0 to conv",
        'say "hi" + C:\\new\\table',
        "never ran",
    ]
    assert [layer.average_ms for layer in profile.layers] == [0.0105, 1.05, None]


def test_a_profile_in_another_unit_is_refused() -> None:
    """The total and the average contradict each other."""
    for factor in (1000, 0.001):
        with pytest.raises(RefusedError, match="in 200 runs"):
            parse_profile(samples.scaled(samples.PROFILE, "averageMs", factor))


def test_layers_with_and_without_details() -> None:
    """Names only, unless the engine was built with them."""
    detailed = parse_layer_info(samples.LAYERS)
    assert [layer.kind for layer in detailed] == ["Reformat", "CaskConvolution"]
    assert detailed[1].formats == ("Channel major FP32 format",)
    assert detailed[1].metadata == "[ONNX Layer: conv]\x1e[ONNX Layer: relu]"
    assert [layer.name for layer in parse_layer_info('{"Layers": ["a"\n,"b"\n],\n"Bindings": ["x"\n]}')] == ["a", "b"]


def test_outputs_with_their_shapes() -> None:
    """Two tensors, numbers that are none, a scalar, integers beyond a float."""
    first, second, third, fourth = parse_outputs(samples.OUTPUTS)
    assert first.array("float32").shape == (1, 2, 2)
    assert [math.isnan(value) for value in first.array("float32").flat] == [False, True, False, False]
    assert first.array("float32")[0, 1, 0] == math.inf
    assert second.array("int64").tolist() == [9007199254740993, -1]
    assert third.shape == ()
    assert float(third.array("float32")) == 0.5
    assert fourth.values == ()


def test_an_output_of_another_size_is_refused() -> None:
    """Dimensions and values must agree."""
    with pytest.raises(RefusedError, match=r"shape \[1, 2, 3\] has 4 values"):
        parse_outputs(samples.OUTPUTS.replace("1x2x2", "1x2x3"))


def test_the_log_is_read_by_name() -> None:
    """Numbers with their units, whatever stands between them."""
    text = samples.LOG
    assert parse_statistics(text, "Latency")["mean"] == (1.2676, "ms")
    assert parse_statistics(text, "GPU Compute Time")["percentile(90%)"] == (1.22, "ms")
    assert parse_statistics(text, "Absent") == {}
    assert parse_seconds(text, "Engine deserialized") == 0.0214
    assert parse_seconds(text, "Engine built") is None
    assert parse_warmups(text) == 163
    assert parse_memory_mib(text) == 113
    assert parse_facts(text) == {
        "gpu": "Orin",
        "compute_capability": "8.7",
        "memory_mib": "62841",
        "tensorrt": "10.3.0",
    }
    assert warnings(text) == ["* Throughput may be bound by Enqueue Time rather than GPU Compute"]
    assert errors(text) == ["Unknown option: --magic 3"]
    assert unknown_options(text) == ["--magic"]
    (raw,) = parse_raw_files(text)
    assert (raw.name, raw.dtype, raw.shape, raw.file) == ("out/y", "fp32", (1, 10), "out_y.output.1.10.fp32.raw")


@pytest.mark.parametrize(
    ("line", "version", "build"),
    [
        ("&&&& RUNNING TensorRT.trtexec [TensorRT v8601] # trtexec", (8, 6, 1), None),
        ("&&&& RUNNING TensorRT.trtexec [TensorRT v101600] [b72] # trtexec", (10, 16, 0), 72),
        ("&&&& RUNNING TensorRT.trtexec [TensorRT v110100] [b106] # trtexec", (11, 1, 0), 106),
    ],
)
def test_the_help_says_what_it_is(line: str, version: tuple[int, int, int], build: int | None) -> None:
    """Version, build and options."""
    found = parse_help(
        f"{line}\n=== Model Options ===\n  --onnx=<file>   ONNX model\n  --versionCompatible, --vc  Mark\n"
    )
    assert found == Capabilities(version, build, frozenset({"--onnx", "--versionCompatible", "--vc"}))
    assert parse_help("usage: other [--onnx]") is None


PARSERS: dict[str, tuple[Callable[[str], Any], str]] = {
    "times": (parse_times, samples.TIMES),
    "profile": (parse_profile, samples.PROFILE),
    "layers": (parse_layer_info, samples.LAYERS),
    "outputs": (parse_outputs, samples.OUTPUTS),
}


@pytest.mark.parametrize("version", ["8.6.1", "10.16.0", "11.1.0"])
def test_whatever_comes_is_read_or_refused(version: str, written: dict[str, dict[str, str]]) -> None:
    """10,000 broken files of each version: a value or one clear error, never a crash, never another unit."""
    rng = random.Random(version)  # noqa: S311 - the same inputs each time
    texts = {**{name: text for name, (_, text) in PARSERS.items()}, **written[version]}
    read, unclear = 0, list[str]()
    for number in range(FUZZED):
        name = rng.choice(list(PARSERS))
        text = samples.broken(rng, texts[name] if number % 2 else PARSERS[name][1])
        try:
            value = PARSERS[name][0](text)
        except RefusedError as error:
            unclear.extend([str(error)] if "kept with the run" not in str(error) else [])
            continue
        read += 1
        _check_units(value)
    assert not unclear
    assert read > FUZZED / 100


def _check_units(value: Any) -> None:
    """What was read must hold together: no time is a thousand times another that it contains."""
    if isinstance(value, LayerProfile):
        assert value.count >= 1
        assert all(layer.average_ms is None or layer.average_ms >= 0 for layer in value.layers)
    for each in value if isinstance(value, tuple) else ():
        if isinstance(each, Query):
            assert 0 < each.latency_ms < math.inf
            assert each.latency_ms == pytest.approx(each.compute_ms + each.h2d_ms + each.d2h_ms, rel=1e-3, abs=1e-4)


def test_the_log_of_a_broken_run_is_read_or_not(written: dict[str, dict[str, str]]) -> None:
    """Nothing in it can stop us."""
    rng = random.Random(1)  # noqa: S311 - the same inputs each time
    readers = (
        parse_facts,
        parse_help,
        parse_memory_mib,
        parse_raw_files,
        parse_warmups,
        warnings,
        errors,
        unknown_options,
    )
    for number in range(2_000):
        text = samples.broken(rng, samples.LOG if number % 2 else written["11.1.0"]["log"])
        for reader in readers:
            reader(text)
        for value, unit in parse_statistics(text, "Latency").values():
            assert isinstance(value, float)
            assert unit
        seconds = parse_seconds(text, "Engine deserialized")
        assert seconds is None or seconds >= 0
