"""The ONNX project's own operator tests, through compile and invoke: equal to plain ONNX Runtime, or refused in words.

A sample by default, all of them with the slow tests.
"""

import warnings
from collections import Counter
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import onnxruntime
import pytest

from embedl_device.arrays import spread
from embedl_hub.core import HubContext
from embedl_hub.core.compile import ONNXRuntimeCompiler
from embedl_hub.core.invoke import ONNXRuntimeInvoker
from embedl_hub.errors import HubError

# Kinds of values that once ended in an error of ours: nothing, text, sequences, graphs without a node.
_TRIED = (
    "test_add", "test_constant", "test_shape_start_1", "test_shape_start_greater_than_end", "test_identity_opt",
    "test_loop13_seq", "test_sequence_map_add_2_sequences_expanded", "test_split_to_sequence_2", "test_string_concat",
    "test_string_split_empty_tensor", "test_reduce_sum_empty_axes_input_noop", "test_reduce_l1_empty_set",
)  # fmt: skip


LEAST_EQUAL = 0.995


def _cases() -> Iterator[Any]:
    from onnx.backend.test.case.node import collect_testcases

    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        yield from (case for case in collect_testcases(None) if case.model is not None and case.data_sets)


def _plain(case: Any, feed: dict[str, Any]) -> list[Any] | None:
    """Return what plain ONNX Runtime answers; None where it does not pass the case."""
    try:
        options = onnxruntime.SessionOptions()
        options.log_severity_level = 4
        session = onnxruntime.InferenceSession(case.model.SerializeToString(), options, ["CPUExecutionProvider"])
        answers: list[Any] = session.run(None, feed)
    except Exception:  # noqa: BLE001 - the runtime raises a class of its own per cause
        return None
    wanted = case.data_sets[0][1]
    return answers if all(_equal(*pair) for pair in zip(answers, wanted, strict=True)) else None


def _equal(one: Any, other: Any) -> bool:
    if isinstance(one, list) or isinstance(other, list) or one is None or other is None:
        return repr(one) == repr(other)
    first, second = np.asarray(one), np.asarray(other)
    if first.dtype.kind in "UO":
        return first.shape == second.shape and first.astype(str).tolist() == second.astype(str).tolist()
    if first.dtype != second.dtype or first.shape != second.shape:
        return False
    if first.dtype.kind in "fc":
        return np.allclose(first, second, rtol=1e-3, atol=1e-5, equal_nan=True)
    return np.array_equal(first, second)


def _tried(cases: Iterator[Any], folder: Path) -> tuple[Counter[str], list[str]]:
    found: Counter[str] = Counter()
    told = []
    with HubContext("suite", home=folder / "home") as ctx:
        for case in cases:
            inputs, _ = case.data_sets[0]
            feed = dict(zip((value.name for value in case.model.graph.input), inputs, strict=False))
            plain = _plain(case, feed)
            if plain is None:
                continue
            found["passed by ONNX Runtime"] += 1
            onnx.save(case.model, folder / "case.onnx")
            try:
                compiled = ONNXRuntimeCompiler().run(ctx, folder / "case.onnx")
                output = ONNXRuntimeInvoker().run(ctx, compiled, feed).output
            except HubError as error:
                found["refused"] += 1
                told.append(f"{case.name}: {error}")
                continue
            names = [value.name for value in case.model.graph.output]
            wanted = spread(dict(zip(names, plain, strict=True)))
            right = set(output) == set(wanted) and all(_equal(output[name], value) for name, value in wanted.items())
            found["equal" if right else "wrong"] += 1
            if not right:
                told.append(f"{case.name}: wrong")
    return found, told


def test_a_sample_is_equal_or_refused(tmp_path: Path) -> None:
    """What once ended in a traceback is answered like plain ONNX Runtime, sequences and optional values too."""
    found, told = _tried((case for case in _cases() if case.name in _TRIED), tmp_path)
    assert found["equal"] == found["passed by ONNX Runtime"] >= 10, (found, told)


@pytest.mark.slow
@pytest.mark.timeout(3600)
def test_the_suite_is_equal_or_refused(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """What plain ONNX Runtime passes is equal, and what is not is refused in words."""
    found, told = _tried(_cases(), tmp_path)
    with capsys.disabled():
        print(f"\nONNX backend suite: {dict(found)}", *told, sep="\n")  # noqa: T201 - the figure, even when it passes
    assert found["equal"] + found["refused"] == found["passed by ONNX Runtime"] > 1000, (found, told)
    assert found["equal"] >= LEAST_EQUAL * found["passed by ONNX Runtime"], (found, told)
