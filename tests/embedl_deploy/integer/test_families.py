"""Integer arithmetic predicts every family's kernels, value for value, saturation included."""

from collections.abc import Callable

import numpy as np
import pytest
from support.families import Emulated
from support.qdq_random import extreme_input, random_qdq, tapped

from embedl_deploy.dialect import lower
from embedl_deploy.errors import InputError
from embedl_deploy.integer import IntegerModel

PROCESSORS = {
    "haswell": ("x86-avx2", "uint8", "onnxruntime-x86-vnni"),
    "nehalem": ("x86-sse", "uint8", "onnxruntime-x86-vnni"),
    "cortex-a53": ("arm-neon", "int8", "onnxruntime-arm"),
    "cortex-a72": ("arm-neon", "int8", "onnxruntime-arm"),
    "arm-max": ("arm-i8mm", "int8", "onnxruntime-arm"),
}


def off(runtime: Emulated, family: str, seed: int, kind: str, dialect: str) -> dict[str, int]:
    """Return the largest difference in steps at every boundary, each kernel on what the runtime had before it."""
    model = lower(random_qdq(seed, kind), dialect)
    integer = IntegerModel(model, family=family)
    names = integer.qdq.integers
    feed = extreme_input(seed)
    outputs = [value.name for value in model.graph.output]
    (found,) = runtime.run(tapped(model, list(names.values())), [feed], outputs=[*names.values(), *outputs])
    given = dict(zip(names, found, strict=False))
    made = integer.run(feed, given)
    steps = {
        boundary: int(np.abs(values.astype(np.int64) - made.boundaries[boundary].astype(np.int64)).max(initial=0))
        for boundary, values in given.items()
        if boundary in made.boundaries
    }
    floats = {kernel.boundary for kernel in integer.kernels if not kernel.integer}
    assert len(steps) > 2
    for name, values in zip(outputs, found[len(names) :], strict=True):
        assert np.array_equal(values, made.outputs[name])
    return {boundary: step for boundary, step in steps.items() if boundary not in floats}


@pytest.mark.parametrize("processor", PROCESSORS)
def test_random_graphs(processor: str, emulated: Callable[[str], Emulated]) -> None:
    """Extreme weights and inputs: no difference at any boundary."""
    family, kind, dialect = PROCESSORS[processor]
    for seed in range(12):
        assert set(off(emulated(processor), family, seed, kind, dialect).values()) == {0}, seed


@pytest.mark.slow
@pytest.mark.timeout(1800)
@pytest.mark.parametrize("processor", PROCESSORS)
def test_five_hundred_random_graphs(processor: str, emulated: Callable[[str], Emulated]) -> None:
    """A hundred of them on each of five processors."""
    family, kind, dialect = PROCESSORS[processor]
    for seed in range(100, 200):
        assert set(off(emulated(processor), family, seed, kind, dialect).values()) == {0}, seed


def test_the_file_saturates_where_it_is_predicted_to(emulated: Callable[[str], Emulated]) -> None:
    """The same graph differs from exact arithmetic on a processor without VNNI: the test above could fail."""
    model = lower(random_qdq(1), "onnxruntime-x86-vnni")
    exact, cut = (IntegerModel(model, family=name).run(extreme_input(1)) for name in ("x86-vnni", "x86-avx2"))
    assert not np.array_equal(exact.outputs["y"], cut.outputs["y"])
    ((found,),) = emulated("haswell").run(model.SerializeToString(), [extreme_input(1)])
    assert np.array_equal(found, cut.outputs["y"])


def test_an_unknown_family_is_refused() -> None:
    """With those that are known."""
    with pytest.raises(InputError, match="x86-avx2"):
        IntegerModel(lower(random_qdq(0), "onnxruntime-x86"), family="z80")
