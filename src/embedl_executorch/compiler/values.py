"""What flows through an ONNX graph while it becomes one of torch: numbers known beforehand, or tensors of a run."""

from __future__ import annotations

from typing import Any, Callable, Dict, List, NamedTuple, Optional, Sequence, Union

import numpy as np
import torch
import torch.ao.quantization.fx._decomposed  # the operators of quantized programs

from embedl_device.errors import BoardError

# What XNNPACK takes in: int8, per tensor with a zero point, per channel around 0.
_LOW, _HIGH = -128, 127
_EPSILON = 1.1920928955078125e-07  # the least scale


class Quantized(NamedTuple):
    """Integers that stand for numbers; ``axis`` is that of their scales, None for one scale."""

    integers: np.ndarray
    scale: np.ndarray
    zero_point: np.ndarray
    axis: Optional[int]

    def numbers(self) -> np.ndarray:
        """Return the numbers they stand for."""
        scale, zero_point = self.scale, self.zero_point
        if self.axis is not None:
            shape = [-1 if axis == self.axis else 1 for axis in range(self.integers.ndim)]
            scale, zero_point = scale.reshape(shape), zero_point.reshape(shape)
        return np.asarray((self.integers.astype(np.int32) - zero_point.astype(np.int32)) * scale, np.float32)

    def moved(self, order: Sequence[int]) -> Quantized:
        """Return them with their axes in another order."""
        axis = None if self.axis is None else list(order).index(self.axis)
        return self._replace(integers=np.ascontiguousarray(self.integers.transpose(order)), axis=axis)

    def is_plain(self) -> bool:
        """Tell whether a kernel for integers takes them as weights: int8 around 0."""
        return self.integers.dtype == np.int8 and not np.any(self.zero_point)


Known = Union[np.ndarray, Quantized]
Value = Union[np.ndarray, Quantized, torch.Tensor]


class Numbers(NamedTuple):
    """How integers of the run stand for numbers: one scale, or one for each place along an axis."""

    scale: np.ndarray
    zero_point: np.ndarray
    kind: np.dtype[Any]
    axis: int

    def covers(self, low: Optional[float], high: Optional[float]) -> bool:
        """Tell whether every integer stands for a number between two bounds, so that cutting off there does nothing."""
        least, most = np.iinfo(self.kind).min, np.iinfo(self.kind).max
        first = (least - self.zero_point) * self.scale
        last = (most - self.zero_point) * self.scale
        return bool((low is None or np.all(first >= low)) and (high is None or np.all(last <= high)))


class Node(NamedTuple):
    """A node as the file has it: its name and operator, the user's module where the file tells it."""

    name: str
    operator: str
    opset: int
    attributes: Dict[str, Any]
    outputs: int
    module: str = ""

    def refuse(self, why: str) -> BoardError:
        """Return the error that says what of this node cannot be had."""
        place = "node {!r}{}".format(self.name, ", module {!r}".format(self.module) if self.module else "")
        return BoardError(
            "{} ({}) {}. Give the exported program instead: torch.export.save(torch.export.export(model, inputs), "
            "'model.pt2').".format(self.operator, place, why)
        )


class Call(torch.nn.Module):
    """One node: its operator as a function, and what of its inputs is known.

    A module of its own, so that all that torch makes of it carries its name.
    """

    def __init__(self, node: Node, inputs: Sequence[Optional[Known]], work: Callable[[Call], Any]) -> None:
        super().__init__()
        self.node = node
        self.operator, self.opset, self.attributes = node.operator, node.opset, node.attributes
        self.outputs = node.outputs
        self.known = list(inputs)  # None where a tensor of the run comes
        self.count = len(inputs)
        # Inputs that are integers, and how they stand for numbers. Each reader has a DQ of its own: a partitioner takes
        # operators together with theirs, and one that is shared would belong to several.
        self.integers: Dict[int, Numbers] = {}
        self.is_integer = False  # whether a kernel for integers takes it in: integers come, and integers go
        self.is_dynamic = False  # whether a linear layer rounds what comes by itself, and gives float
        self.added: Optional[Known] = None  # the bias of a product that stands in a node of its own
        self._work = work
        self._live: List[Any] = []
        self._numbers: Dict[int, torch.Tensor] = {}  # inputs that were integers, as this run has them

    def forward(self, *live: Optional[torch.Tensor]) -> Any:
        """Run the operator; ``live`` has a place for every input, empty for those that are known or left out."""
        self._live, self._numbers = list(live), {}
        try:
            return self._work(self)
        finally:
            self._live, self._numbers = [], {}

    def refuse(self, why: str) -> BoardError:
        """Return the error that says what of this node cannot be had."""
        return self.node.refuse(why)

    def text(self, name: str, default: str) -> str:
        """Return an attribute that is a word."""
        found = self.attributes.get(name, default)
        return found.decode("utf-8", "replace") if isinstance(found, bytes) else str(found)

    def sizes(self, name: str, count: int, default: int) -> List[int]:
        """Return an attribute with a number for each axis."""
        return [int(size) for size in self.attributes.get(name) or [default] * count]

    def has(self, at: int) -> bool:
        """Tell whether an input is there."""
        return at < self.count and (self.known[at] is not None or self._live[at] is not None)

    def is_known(self, at: int) -> bool:
        """Tell whether an input has its value before a run."""
        return at < self.count and self.known[at] is not None

    def array(self, at: int) -> np.ndarray:
        """Return an input that must be known."""
        value = self.known[at] if at < self.count else None
        if value is None:
            raise self.refuse("takes its input {} from the run, which a fixed program cannot".format(at))
        return value.numbers() if isinstance(value, Quantized) else value

    def ints(self, at: int) -> List[int]:
        """Return an input of known integers."""
        return [int(number) for number in np.asarray(self.array(at)).reshape(-1)]

    def listed(self, name: str, at: int) -> Optional[List[int]]:
        """Return integers that older operators have as an attribute and newer ones as an input."""
        if self.has(at):
            return self.ints(at)
        found = self.attributes.get(name)
        return None if found is None else [int(number) for number in found]

    def scalar(self, name: str, at: int) -> Optional[float]:
        """Return a number that older operators have as an attribute and newer ones as an input."""
        if self.has(at):
            return float(np.asarray(self.array(at)).reshape(-1)[0])
        found = self.attributes.get(name)
        return None if found is None else float(found)

    def x(self, at: int = 0) -> torch.Tensor:
        """Return an input as a tensor; weights that are integers come through their dequantization."""
        if at >= self.count:
            raise self.refuse("lacks its input {}".format(at))
        value = self.known[at]
        if value is None:
            tensor: Optional[torch.Tensor] = self._live[at]
            if tensor is None:
                raise self.refuse("lacks its input {}".format(at))
            if at not in self.integers:
                return tensor
            if at not in self._numbers:
                self._numbers[at] = self.converted("dequantize", tensor, self.integers[at])
            return self._numbers[at]
        return self.tensor("x{}".format(at), value)

    def maybe(self, at: int) -> Optional[torch.Tensor]:
        """Return an input as a tensor, or None when it is left out."""
        return self.x(at) if self.has(at) else None

    def bias(self, at: int) -> Optional[torch.Tensor]:
        """Return a bias in float, from which kernels for integers make their own; None when it is left out."""
        value = self.known[at] if at < self.count else None
        if value is None:
            return self.maybe(at)
        return self._kept("bias", value.numbers() if isinstance(value, Quantized) else value)

    def row_bias(self, at: int, size: int) -> torch.Tensor:
        """Return a known bias as one row."""
        return self._kept("row", np.array(np.broadcast_to(self.array(at).reshape(-1), (size,)), np.float32))

    def whole(self, at: int, shape: Sequence[int]) -> torch.Tensor:
        """Return an input in a shape that it may have to be repeated for."""
        if not self.is_known(at):
            return self.x(at).expand(list(shape))
        return self._kept("whole{}".format(at), np.array(np.broadcast_to(self.array(at), tuple(shape)), np.float32))

    def matrix(self, at: int, *, is_transposed: bool) -> torch.Tensor:
        """Return known weights as a linear layer has them: a row per output."""
        value = self.known[at]
        assert value is not None  # noqa: S101 - asked for known ones
        if not is_transposed:
            value = value.moved((1, 0)) if isinstance(value, Quantized) else np.ascontiguousarray(value.T)
        return self.tensor("matrix", value)

    def tensor(self, name: str, value: Known) -> torch.Tensor:
        """Return known numbers as a tensor of the program; they are kept under a name of this node.

        Integers stay integers where a kernel takes them in; nothing else has a kernel that turns them into numbers.
        """
        if isinstance(value, Quantized) and value.is_plain() and (self.is_integer or self.is_dynamic):
            return self._dequantized(name, value)
        numbers = value.numbers() if isinstance(value, Quantized) else value
        return self._kept(name, numbers)

    def converted(self, word: str, tensor: torch.Tensor, numbers: Numbers) -> torch.Tensor:
        """Return numbers of the run as integers, or the other way: ``quantize`` or ``dequantize``."""
        info = np.iinfo(numbers.kind)
        dtype = getattr(torch, numbers.kind.name)
        operators: Any = torch.ops.quantized_decomposed
        made: torch.Tensor
        if numbers.scale.size == 1:
            function = getattr(operators, word + "_per_tensor").default
            scale, zero_point = float(numbers.scale[0]), int(numbers.zero_point[0])
            made = function(tensor, scale, zero_point, int(info.min), int(info.max), dtype)
            return made
        raise self.refuse("has a scale for every channel of an activation, for which there is no kernel")

    def rounded(self, tensor: torch.Tensor) -> torch.Tensor:
        """Return what a linear layer takes in: rounded with a scale of the run's own, where its kernel does that."""
        if not self.is_dynamic:
            return tensor
        operators: Any = torch.ops.quantized_decomposed
        scale, zero_point = operators.choose_qparams.tensor(tensor, _LOW, _HIGH, _EPSILON, torch.int8)
        integers = operators.quantize_per_tensor.tensor(tensor, scale, zero_point, _LOW, _HIGH, torch.int8)
        made: torch.Tensor = operators.dequantize_per_tensor.tensor(
            integers, scale, zero_point, _LOW, _HIGH, torch.int8
        )
        return made

    def _dequantized(self, name: str, value: Quantized) -> torch.Tensor:
        integers = self._kept(name + "_integers", value.integers)
        operators: Any = torch.ops.quantized_decomposed
        dequantized: torch.Tensor
        if value.axis is None and self.is_dynamic:
            # Its kernels know scales per channel alone.
            value = value._replace(scale=np.repeat(value.scale.reshape(-1)[:1], value.integers.shape[0]), axis=0)
        if value.axis is None:
            scale, zero_point = float(value.scale.reshape(-1)[0]), int(value.zero_point.reshape(-1)[0])
            dequantized = operators.dequantize_per_tensor.default(integers, scale, zero_point, _LOW, _HIGH, torch.int8)
            return dequantized
        scales = self._kept(name + "_scales", value.scale.astype(np.float32))
        zero_points = self._kept(name + "_zero_points", np.zeros(value.scale.shape, np.int64))
        dequantized = operators.dequantize_per_channel.default(
            integers, scales, zero_points, value.axis, _LOW, _HIGH, torch.int8
        )
        return dequantized

    def _kept(self, name: str, array: np.ndarray) -> torch.Tensor:
        name = "known_" + name  # apart from the module's own attributes
        if name not in self._buffers:
            self.register_buffer(name, torch.from_numpy(np.array(array, order="C")))
        found = self._buffers[name]
        assert found is not None  # noqa: S101 - registered above
        return found
