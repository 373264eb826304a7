"""A TFLite model as objects that can be changed, and written again."""

from __future__ import annotations

from collections.abc import Iterator
from functools import cached_property
from pathlib import Path
from typing import Any, Protocol

import numpy as np

_ARRAYS: dict[int, np.dtype[Any]] = {
    0: np.dtype(np.float32), 1: np.dtype(np.float16), 2: np.dtype(np.int32), 3: np.dtype(np.uint8),
    4: np.dtype(np.int64), 6: np.dtype(np.bool_), 7: np.dtype(np.int16), 9: np.dtype(np.int8),
}  # fmt: skip
FLOAT32, INT32, INT8 = 0, 2, 9
_TYPES = {np.dtype(np.int8): INT8, np.dtype(np.int32): INT32, np.dtype(np.float32): FLOAT32}


class Operator(Protocol):
    """An operator as the schema has it."""

    opcodeIndex: int  # noqa: N815 - the schema's names
    inputs: list[int]
    outputs: list[int]
    builtinOptions: Any  # noqa: N815
    builtinOptionsType: int  # noqa: N815


class Flat:
    """The main graph of a model; operators are the schema's own objects."""

    def __init__(self, path: Path) -> None:
        from ai_edge_litert import schema_py_generated as schema

        self.schema: Any = schema
        self.model: Any = schema.ModelT.InitFromPackedBuf(path.read_bytes(), 0)
        self.graph: Any = self.model.subgraphs[0]

    @cached_property
    def _names(self) -> dict[int, str]:
        return {code: name for name, code in vars(self.schema.BuiltinOperator).items() if isinstance(code, int)}

    @property
    def operators(self) -> list[Operator]:
        """The operators, in the order they run."""
        return list(self.graph.operators)

    @property
    def inputs(self) -> list[int]:
        """The tensors that go in."""
        return [int(index) for index in self.graph.inputs]

    @property
    def outputs(self) -> list[int]:
        """The tensors that come out."""
        return [int(index) for index in self.graph.outputs]

    def op_type(self, operator: Operator) -> str:
        """Return an operator's name in the schema."""
        code = self.model.operatorCodes[operator.opcodeIndex]
        return self._names.get(max(code.builtinCode, code.deprecatedBuiltinCode), "UNKNOWN")

    def name(self, index: int) -> str:
        """Return a tensor's name."""
        return str(self.graph.tensors[index].name.decode("utf-8", "replace"))

    def shape(self, index: int) -> tuple[int, ...]:
        """Return a tensor's sizes."""
        shape = self.graph.tensors[index].shape
        return () if shape is None else tuple(int(size) for size in shape)

    def is_float(self, index: int) -> bool:
        """Tell whether a tensor holds float32."""
        return bool(self.graph.tensors[index].type == FLOAT32)

    def is_constant(self, index: int) -> bool:
        """Tell whether a tensor is in the file."""
        data = self.model.buffers[self.graph.tensors[index].buffer].data
        return data is not None and len(data) > 0

    def constant(self, index: int) -> np.ndarray | None:
        """Return a constant's values; None for what is computed."""
        tensor = self.graph.tensors[index]
        if not self.is_constant(index) or tensor.type not in _ARRAYS:
            return None
        raw = np.asarray(self.model.buffers[tensor.buffer].data, np.uint8).tobytes()
        return np.frombuffer(raw, _ARRAYS[tensor.type]).reshape(self.shape(index))

    def data_inputs(self, operator: Operator) -> Iterator[tuple[int, int]]:
        """Yield the inputs that carry computed floats: their place and their tensor."""
        for at, index in enumerate(operator.inputs):
            if index >= 0 and self.is_float(index) and not self.is_constant(index):
                yield at, int(index)

    def readers(self) -> dict[int, list[tuple[int, int]]]:
        """Return which operators read each tensor, and where."""
        found: dict[int, list[tuple[int, int]]] = {}
        for number, operator in enumerate(self.graph.operators):
            for at, index in enumerate(operator.inputs):
                if index >= 0:
                    found.setdefault(int(index), []).append((number, at))
        return found

    def add_tensor(self, like: int, name: str, scale: np.ndarray, zero_point: np.ndarray, axis: int = 0) -> int:
        """Add an int8 tensor of another's shape."""
        tensor = self.schema.TensorT()
        old = self.graph.tensors[like]
        tensor.shape, tensor.shapeSignature, tensor.hasRank = old.shape, old.shapeSignature, True
        tensor.type, tensor.name, tensor.buffer = INT8, name.encode(), 0
        tensor.quantization = self._scheme(scale, zero_point, axis)
        self.graph.tensors.append(tensor)
        return len(self.graph.tensors) - 1

    def add_float(self, like: int, name: str) -> int:
        """Add a float tensor of another's shape."""
        tensor = self.schema.TensorT()
        old = self.graph.tensors[like]
        tensor.shape, tensor.shapeSignature, tensor.hasRank = old.shape, old.shapeSignature, True
        tensor.type, tensor.name, tensor.buffer = FLOAT32, name.encode(), 0
        self.graph.tensors.append(tensor)
        return len(self.graph.tensors) - 1

    def add_constant(
        self, name: str, values: np.ndarray, scale: np.ndarray | None = None, axis: int = 0, zero_point: int = 0
    ) -> int:
        """Add a constant, of integers where it has scales."""
        buffer = self.schema.BufferT()
        buffer.data = np.frombuffer(np.ascontiguousarray(values).tobytes(), np.uint8)
        self.model.buffers.append(buffer)
        tensor = self.schema.TensorT()
        tensor.shape, tensor.hasRank = [int(size) for size in values.shape], True
        tensor.type, tensor.name, tensor.buffer = _TYPES[values.dtype], name.encode(), len(self.model.buffers) - 1
        if scale is not None:
            tensor.quantization = self._scheme(scale, np.full(scale.size, zero_point, np.int64), axis)
        self.graph.tensors.append(tensor)
        return len(self.graph.tensors) - 1

    def hold(self, index: int, values: np.ndarray) -> None:
        """Make a constant of a tensor."""
        buffer = self.schema.BufferT()
        buffer.data = np.frombuffer(np.ascontiguousarray(values).tobytes(), np.uint8)
        self.model.buffers.append(buffer)
        self.graph.tensors[index].buffer = len(self.model.buffers) - 1

    def _scheme(self, scale: np.ndarray, zero_point: np.ndarray, axis: int) -> Any:  # noqa: ANN401 - likewise
        scheme = self.schema.QuantizationParametersT()
        scheme.scale = [float(value) for value in np.asarray(scale, np.float32).reshape(-1)]
        scheme.zeroPoint = [int(value) for value in np.asarray(zero_point).reshape(-1)]
        scheme.quantizedDimension = axis
        return scheme

    def make(self, op_type: str, inputs: list[int], outputs: list[int]) -> Operator:
        """Return a new operator without options."""
        operator: Operator = self.schema.OperatorT()
        operator.opcodeIndex = self.code(op_type)
        operator.inputs, operator.outputs = inputs, outputs
        return operator

    def code(self, op_type: str) -> int:
        """Return the number under which a model lists an operator, listing it if need be; versions are raised."""
        wanted = getattr(self.schema.BuiltinOperator, op_type)
        for number, code in enumerate(self.model.operatorCodes):
            if max(code.builtinCode, code.deprecatedBuiltinCode) == wanted:
                return number
        code = self.schema.OperatorCodeT()
        code.builtinCode, code.deprecatedBuiltinCode, code.version = wanted, min(wanted, 127), 1
        self.model.operatorCodes.append(code)
        return len(self.model.operatorCodes) - 1

    def drop_unread(self) -> None:
        """Empty the constants that no operator reads: the floats that became integers."""
        used = {*self.inputs, *self.outputs}
        for operator in self.graph.operators:
            used |= {int(index) for index in (*operator.inputs, *operator.outputs) if index >= 0}
        kept = {self.graph.tensors[index].buffer for index in used}
        kept |= {entry.buffer for entry in self.model.metadata or []}
        for index, tensor in enumerate(self.graph.tensors):
            if index not in used:
                tensor.buffer = 0
        for number, buffer in enumerate(self.model.buffers):
            if number not in kept:
                buffer.data = None

    def write(self, path: Path) -> None:
        """Write the model."""
        import flatbuffers  # type: ignore[import-untyped]

        builder = flatbuffers.Builder(1 << 20)
        builder.Finish(self.model.Pack(builder), b"TFL3")
        path.write_bytes(bytes(builder.Output()))
