"""Which tensor of a converted model is which of its source: told by values, because converters rename and reorder."""

from __future__ import annotations

import contextlib
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import onnx

Arrays = Mapping[str, np.ndarray]
_CLOSE = 5e-4


@dataclass(frozen=True)
class Match:
    """Tensors with the same values, in whatever order, have the same number."""

    of_source: Mapping[str, int]
    of_converted: Mapping[int, int]


def match(source: onnx.ModelProto, converted: Path, sample: Arrays, feed: Mapping[int, np.ndarray]) -> Match:
    """Run both on one sample and compare.

    Args:
        source: The model that was converted.
        converted: What it became.
        sample: Data in the source's names and layouts.
        feed: The same data for the converted model, by tensor.
    """
    before, after = _source_values(source, sample), _converted_values(converted, feed)
    groups: dict[int, list[tuple[int, np.ndarray]]] = {}
    count = 0

    def number_of(values: np.ndarray) -> int:
        nonlocal count
        ordered = np.sort(np.nan_to_num(values.reshape(-1).astype(np.float32), posinf=3e38, neginf=-3e38))
        known = groups.setdefault(ordered.size, [])
        limit = _CLOSE * max(float(np.abs(ordered).max(initial=0.0)), 1e-12)
        best, least = -1, limit
        for number, other in known:
            far = float(np.abs(ordered - other).max(initial=0.0))
            if far <= least:
                best, least = number, far
        if best >= 0:
            return best
        count += 1
        known.append((count, ordered))
        return count

    of_source = {name: number_of(values) for name, values in before.items()}
    return Match(of_source, {index: number_of(values) for index, values in after.items()})


def _source_values(model: onnx.ModelProto, sample: Arrays) -> dict[str, np.ndarray]:
    """Return every float that the source computes from its inputs, and the inputs."""
    import onnxruntime

    wide = onnx.ModelProto()
    wide.CopyFrom(model)
    known = {value.name for value in wide.graph.output}
    for node in wide.graph.node:
        for name in node.output:
            if name and name not in known:
                wide.graph.output.append(onnx.ValueInfoProto(name=name))
    options = onnxruntime.SessionOptions()
    options.graph_optimization_level = onnxruntime.GraphOptimizationLevel.ORT_DISABLE_ALL
    session = onnxruntime.InferenceSession(wide.SerializeToString(), options, providers=["CPUExecutionProvider"])
    names = [value.name for value in session.get_outputs()]
    found = {**sample, **dict(zip(names, session.run(names, dict(sample)), strict=True))}
    return {name: value for name, value in found.items() if _is_told(value)}


def _is_told(value: object) -> bool:
    return isinstance(value, np.ndarray) and value.dtype == np.float32 and value.size > 0


def _converted_values(path: Path, feed: Mapping[int, np.ndarray]) -> dict[int, np.ndarray]:
    """Return every float that the converted model computes, and its inputs."""
    from ai_edge_litert.interpreter import Interpreter, OpResolverType

    interpreter = Interpreter(
        model_path=str(path), experimental_preserve_all_tensors=True, num_threads=2,
        experimental_op_resolver_type=OpResolverType.BUILTIN_WITHOUT_DEFAULT_DELEGATES,
    )  # fmt: skip
    interpreter.allocate_tensors()
    for index, value in feed.items():
        interpreter.set_tensor(index, value)
    interpreter.invoke()
    found: dict[int, np.ndarray] = {}
    for detail in interpreter.get_tensor_details():
        # Some hold nothing: what an operator needs for itself, and optional ones.
        with contextlib.suppress(ValueError):
            value = interpreter.get_tensor(detail["index"])
            if _is_told(value):
                found[int(detail["index"])] = value.copy()
    return found
