"""The file's operators beside the layers of the model in torch, each on the values that the model had before it.

What the operators of one layer make is compared with what the layer made, before rounding. Where both agree, the
operators after it read the model's value, so differences do not add up; where they do not, they read the file's, so a
real fault reaches the next boundary or output and a layer that only looks different does not.
"""

from collections.abc import Iterable, Mapping
from dataclasses import dataclass

import numpy as np
import onnx

from embedl_deploy.dialect._model import QdqModel, Weight, consumers
from embedl_deploy.dialect._numbers import LIMITS
from embedl_deploy.export._torch_stage import Recording, StubValue
from embedl_deploy.integer import IntegerModel

# What sums in another order may differ by, as a part of the largest value: float32 tells 6e-8 apart, sums of some
# thousand products with signs of both kinds lose two digits.
_FLOAT32, _FLOAT16 = 2e-5, 5e-3
# Values this many times the middle one are not usual; so many of a tensor are looked at for that.
_USUAL, _SOME = 100.0, 65536
# Steps that a boundary may differ by where the file's dialect has Q/DQ of its own.
_OTHER_STEPS = 1.01


@dataclass
class Difference:
    """How far one tensor of the file is from the value in torch."""

    largest: float = 0.0  # the largest difference
    at: float = 0.0  # the size it is measured by
    share: float = 0.0  # the difference as a part of `at`
    allowed: float = _FLOAT32  # what `share` may be

    @property
    def inside(self) -> bool:
        """Whether it is what another order of summation explains; a value that is not a number never is."""
        return self.share <= self.allowed


class Walk:
    """Runs the file's float graph beside a recording, sample after sample."""

    def __init__(self, integer: IntegerModel, labels: Mapping[str, str], placed: bool, outputs: Iterable[str]) -> None:
        self.integer = integer
        self.labels = labels  # the tensor that each stub of the model stands on
        self.placed = placed  # whether the file has the very Q/DQ of the model
        self.differences: dict[str, Difference] = {}  # by tensor, in the order of the file
        self.outputs = list(outputs)
        self.ends = escaping(integer.qdq.graph)
        self._precision = _FLOAT16 if has_float16(integer.qdq.model) else _FLOAT32
        self._bias = bias_steps(integer.qdq)
        self._boundaries = set(integer.qdq.tensor_of.values())

    def take(
        self, feed: Mapping[str, np.ndarray], recording: Recording, weights: Mapping[str, Weight]
    ) -> dict[str, np.ndarray]:
        """Walk over one sample; returns every tensor that the file's operators made."""
        stubs = {self.labels[label]: value for label, value in recording.stubs.items() if label in self.labels}
        quantizing = {tensor: value for tensor, value in stubs.items() if value.stub.quantizes}
        twins = {tensor: value.before for tensor, value in stubs.items()}
        for tensor, value in self._of_places(recording).items():
            twins.setdefault(tensor, value)

        def settle(tensor: str, value: np.ndarray) -> np.ndarray:
            twin, stub = twins.get(tensor), quantizing.get(tensor)
            if twin is None or value.dtype.kind != "f" or twin.ndim != value.ndim:
                return value
            if stub is None and not self.placed:
                return value  # layers between boundaries read other roundings in the model
            if twin.shape != value.shape:
                self.differences[tensor] = Difference(share=float("inf"))
                return value
            agrees = self.compare(tensor, value, twin, stub)
            if stub is not None and not self.placed and tensor not in self._boundaries:
                return stub.after  # the model rounds here, and the file's dialect does without
            return twin.astype(value.dtype) if agrees else value

        given = {tensor: value.after for tensor, value in quantizing.items()}
        return self.integer.run_float(feed, given, weights, settle)

    def _of_places(self, recording: Recording) -> dict[str, np.ndarray]:
        found: dict[str, np.ndarray] = {}
        for place, values in recording.values.items():
            tensors = self.ends.get(place, [])
            if len(tensors) == len(values):
                found.update(zip(tensors, values, strict=True))
        return found

    def compare(self, tensor: str, value: np.ndarray, twin: np.ndarray, stub: StubValue | None = None) -> bool:
        """Compare one tensor; tells whether both are the same but for the order of sums."""
        if stub is not None:
            low, high = ends_of(stub)
            value, twin = np.clip(value, low, high), np.clip(twin, low, high)  # beyond the ends both are cut off
        entry = self.differences.setdefault(tensor, Difference())
        largest, at = _largest(value, twin)
        allowed = self._precision + self._bias.get(tensor, 0.0) / at
        if stub is not None and not self.placed:
            # Some of the readers may read another rounding in the model, which both sides round again.
            allowed += _OTHER_STEPS * float(stub.stub.scale.detach().abs()) / at
        share = largest / at
        if not share <= entry.share:  # a value that is not a number is kept
            entry.share, entry.largest, entry.allowed, entry.at = share, largest, allowed, at
        return bool(share <= allowed)


def _largest(value: np.ndarray, twin: np.ndarray) -> tuple[float, float]:
    """Return the largest difference and the size it is measured by: of the value itself, or of usual ones.

    A mask of -10,000 is not usual: measured by the largest value, everything beside it would agree.
    """
    if not twin.size:
        return 0.0, 1.0
    sizes = np.abs(twin.astype(np.float64)).ravel()
    some = sizes[:: max(1, sizes.size // _SOME)]
    some = some[(some > 0) & np.isfinite(some)]
    usual = float(some[some <= _USUAL * np.median(some)].max()) if some.size else 0.0
    measure = np.maximum(sizes, max(usual, 1e-30))
    with np.errstate(invalid="ignore", over="ignore"):
        differences = np.where(value == twin, 0.0, np.abs(value.astype(np.float64) - twin)).ravel()
        worst = int(np.argmax(differences / measure))  # one that is not a number counts as the largest
    return float(differences[worst]), float(min(measure[worst], np.finfo(np.float64).max))


def ends_of(value: StubValue) -> tuple[float, float]:
    """Return the smallest and the largest number of a stub's format."""
    scale, zero = float(value.stub.scale.detach().abs()), float(value.stub.zero_point)
    if value.stub.form.name not in LIMITS:
        return -np.inf, np.inf
    low, high = LIMITS[value.stub.form.name]
    return (low - zero) * scale, (high - zero) * scale


def escaping(graph: onnx.GraphProto) -> dict[str, list[str]]:
    """Return by place the tensors that other places read: what its layer gives.

    Of a layer that gives several, only what one node makes: else nobody knows their order (an LSTM's states come from
    one node, its result from a later one).
    """
    readers = consumers(graph)
    outputs = {value.name for value in graph.output}
    found: dict[str, list[str]] = {}
    makers: dict[str, set[str]] = {}
    for node in graph.node:
        place = place_of(node)
        for name in node.output:
            outside = any(place_of(reader) != place for reader, _ in readers.get(name, ()))
            if name and place and (outside or name in outputs):
                found.setdefault(place, []).append(name)
                makers.setdefault(place, set()).add(node.name)
    return {place: names for place, names in found.items() if len(makers[place]) == 1}


def place_of(node: onnx.NodeProto) -> str:
    """Return the layer that a node was exported from, as the exporter wrote it into the name."""
    return node.name.rpartition("/")[0]


def has_float16(model: onnx.ModelProto) -> bool:
    return any(value.data_type == onnx.TensorProto.FLOAT16 for value in model.graph.initializer)


def bias_steps(qdq: QdqModel) -> dict[str, float]:
    """Return what rounding a layer's bias to an integer may change of each tensor that the layer makes."""
    found: dict[str, float] = {}
    by_place: dict[str, float] = {}
    for node in qdq.graph.node:
        held = [qdq.weights[name].params for name in node.input if name in qdq.weights]
        step = max((float(np.max(params.scale)) / 2 for params in held if params.type == "int32"), default=0.0)
        # An activation behind the bias in the same layer makes of a difference at most a little more.
        place = place_of(node) or node.name
        by_place[place] = max(by_place.get(place, 0.0), 1.2 * step)
        for name in node.output:
            found[name] = by_place[place]
    return found
