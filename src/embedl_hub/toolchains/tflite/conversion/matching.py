"""Which tensor of a converted model is which of its source: told by values, because converters rename and reorder."""

from __future__ import annotations

import contextlib
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import onnx

from .flat import Flat

Arrays = Mapping[str, np.ndarray]
_CLOSE = 5e-4
# Nodes that give back what they get, moved.
_MOVING = frozenset({"Expand", "Flatten", "Identity", "Reshape", "Squeeze", "Transpose", "Unsqueeze"})
MOVING_OPERATORS = frozenset({"EXPAND_DIMS", "RESHAPE", "SQUEEZE", "TRANSPOSE"})
"""Operators that do so."""


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
    of_converted = {index: number_of(values) for index, values in after.items()}
    return _told_apart(source, Flat(converted), Match(of_source, of_converted))


def _told_apart(source: onnx.ModelProto, flat: Flat, found: Match) -> Match:
    """Give a number of its own to what a node computes, though on this data it gives back what it gets.

    A factor of 1 does so, and a Relu of what is positive anyway. Their tensors are told by name, so only where the
    converted model has one of that name, which is computed there too.
    """
    named = _named(flat, found)
    of_source, of_converted = dict(found.of_source), dict(found.of_converted)
    fresh = max((0, *of_source.values(), *of_converted.values()))
    for node in source.graph.node:
        known = {found.of_source[name]: of_source[name] for name in node.input if name in found.of_source}
        for name in node.output:
            before = known.get(found.of_source.get(name, 0))
            if before is None:
                continue
            if name in named and node.op_type not in _MOVING:
                fresh += 1
                of_source[name] = fresh
            else:
                of_source[name] = before
    for operator in flat.operators:
        for index in map(int, operator.outputs):
            if index not in of_converted:
                continue
            name = _source_name(flat, index, found)
            if name is not None:
                of_converted[index] = of_source[name]
            else:
                inputs = [int(at) for at in operator.inputs if at >= 0]
                same = [at for at in inputs if found.of_converted.get(at) == found.of_converted[index]]
                of_converted[index] = of_converted[same[0]] if same else of_converted[index]
    return Match(of_source, of_converted)


def _named(flat: Flat, found: Match) -> set[str]:
    """Return the tensors of the source that an operator of the converted model computes, by their names."""
    makers = [operator for operator in flat.operators if flat.op_type(operator) not in MOVING_OPERATORS]
    names = (_source_name(flat, int(index), found) for operator in makers for index in operator.outputs)
    return {name for name in names if name is not None}


def _source_name(flat: Flat, index: int, found: Match) -> str | None:
    """Return the tensor of the source after which one of the converted model is called, if it has its values."""
    name = flat.name(index)
    while name and name not in found.of_source:
        name = name.rpartition("_")[0]  # what the converter put behind it
    return name if name and found.of_source[name] == found.of_converted.get(index) else None


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
