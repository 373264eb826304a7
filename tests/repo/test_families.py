"""The processors of our tests: each computes as its family does, and none outlives or stalls a test."""

import os
import signal
import time
from collections.abc import Callable

import numpy as np
import pytest
from onnx import TensorProto, helper
from support.families import FAMILIES, Emulated, FamilyError, FamilyGoneError

_SATURATED = 32 * 32767  # each pair of products is held to 16 bits
_EXACT = 64 * 255 * 127
_GET = Callable[[str], Emulated]


def _product() -> bytes:
    graph = helper.make_graph(
        [helper.make_node("MatMulInteger", ["x", "w"], ["y"])],
        "product",
        [
            helper.make_tensor_value_info("x", TensorProto.UINT8, ["rows", 64]),
            helper.make_tensor_value_info("w", TensorProto.INT8, [64, 1]),
        ],
        [helper.make_tensor_value_info("y", TensorProto.INT32, ["rows", 1])],
    )
    model = helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=8)
    return bytes(model.SerializeToString())


def _feed(rows: int = 1) -> dict[str, np.ndarray]:
    return {"x": np.full((rows, 64), 255, np.uint8), "w": np.full((64, 1), 127, np.int8)}


@pytest.mark.parametrize(
    ("name", "has", "has_not"),
    [
        ("haswell", {"AVX2", "FMA3"}, {"AVX512F", "AVX512_SPR"}),
        ("nehalem", {"SSE42"}, {"AVX", "AVX2"}),
        ("cortex-a53", {"ASIMD"}, {"ASIMDDP", "I8MM", "SVE"}),
        ("cortex-a72", {"ASIMD"}, {"ASIMDDP", "I8MM", "SVE"}),
        ("arm-max", {"ASIMDDP", "I8MM"}, set()),
    ],
)
def test_a_family_says_what_it_can_do_and_multiplies_so(
    emulated: _GET, name: str, has: set[str], has_not: set[str]
) -> None:
    family = emulated(name)
    features = set(family.features())
    assert has <= features
    assert not has_not & features
    ((product,),) = family.run(_product(), [_feed()])
    assert product.tolist() == [[_SATURATED if name == "haswell" else _EXACT]]
    started = time.monotonic()
    first, second = family.run(_product(), [_feed(2), _feed(3)], outputs=["y"])
    assert (first[0].shape, second[0].shape) == ((2, 1), (3, 1))
    assert time.monotonic() - started < 2


def test_this_machine_answers_through_the_same_worker(emulated: _GET) -> None:
    ((product,),) = emulated("host").run(_product(), [_feed()])
    assert product.item() in {_SATURATED, _EXACT}


def test_what_the_runtime_refuses_comes_back_in_its_words(emulated: _GET) -> None:
    haswell = emulated("haswell")
    assert haswell.load(_product()) == ""
    assert "INVALID_PROTOBUF" in haswell.load(b"no model").upper()
    with pytest.raises(FamilyError, match="INVALID_ARGUMENT"):
        haswell.run(_product(), [{"x": np.zeros((1, 3), np.uint8), "w": np.zeros((64, 1), np.int8)}])
    pid = haswell.pid
    haswell.run(_product(), [_feed()])
    assert haswell.pid == pid


def test_our_device_program_runs_on_a_family(emulated: _GET) -> None:
    said = emulated("cortex-a72").python("import embedl_onnxruntime, platform; print(platform.machine())")
    assert said == "aarch64\n"
    with pytest.raises(FamilyError, match="ended with 3"):
        emulated("cortex-a72").python("raise SystemExit(3)")


def test_a_worker_that_dies_is_reported_and_replaced() -> None:
    with Emulated(FAMILIES["host"]) as family:
        family.run(_product(), [_feed()])
        assert family.pid
        os.kill(family.pid, signal.SIGKILL)
        with pytest.raises(FamilyGoneError, match="ended with -9"):
            family.run(_product(), [_feed()])
        ((product,),) = family.run(_product(), [_feed()])
        assert product.shape == (1, 1)


def test_a_worker_that_hangs_is_killed_and_replaced() -> None:
    with Emulated(FAMILIES["host"]) as family:
        family.run(_product(), [_feed()])
        assert family.pid
        os.kill(family.pid, signal.SIGSTOP)
        with pytest.raises(FamilyGoneError, match=r"no answer within 0\.5 s"):
            family.run(_product(), [_feed()], timeout_s=0.5)
        assert family.features()
