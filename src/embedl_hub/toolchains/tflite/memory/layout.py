"""What a TFLite file says that its memory follows from: sizes of tensors, who reads and writes them, and windows."""

from __future__ import annotations

import math
from pathlib import Path
from typing import NamedTuple

import numpy as np

from embedl_device.readers import UnreadableError, read_plain, telling
from embedl_hub.refusal import RefusedError
from embedl_hub.toolchains.tflite.graph import LARGEST_BYTES, MAGIC, Reader

_DTYPES = {"bool": "bool", "string": "S1", "bfloat16": "float16"}


class Value(NamedTuple):
    """A tensor: its shape, its element's bytes and whether the file holds its numbers."""

    name: str
    shape: tuple[int, ...]
    element_bytes: float
    is_constant: bool
    is_variable: bool
    dtype: str

    @property
    def size_bytes(self) -> int:
        """What its elements take."""
        return math.ceil(math.prod(self.shape) * self.element_bytes)


class Node(NamedTuple):
    """An operator; ``window`` says whether it strides or dilates, which decides what it unfolds."""

    op_type: str
    inputs: tuple[int, ...]
    outputs: tuple[int, ...]
    moves: bool = False


class Layout(NamedTuple):
    """A file's main graph by numbers of tensors, and the bytes of its constants."""

    values: tuple[Value, ...]
    nodes: tuple[Node, ...]
    inputs: tuple[int, ...]
    outputs: tuple[int, ...]
    graphs: int


def read_layout(path: Path) -> Layout:
    """Read a file's main graph."""
    try:
        content = read_plain(path, LARGEST_BYTES)
        if content[4:8] != MAGIC:
            raise RefusedError(f"{path} is not a TFLite model: it does not begin as one.")
        with telling():
            return _LayoutReader(content).layout()
    except (OSError, UnreadableError) as error:
        raise RefusedError(f"{path} is not a TFLite model, or it was cut short: {error}.") from error


class _LayoutReader(Reader):
    def layout(self) -> Layout:
        main = self.main
        values = tuple(self._value(index) for index in range(main.TensorsLength()))
        nodes = []
        for operator in self.all(main.Operators, main.OperatorsLength()):
            inputs = self.numbers_in(operator.InputsAsNumpy, operator.InputsLength())
            outputs = self.numbers_in(operator.OutputsAsNumpy, operator.OutputsLength())
            for index in (*inputs, *outputs):
                if index >= len(values):
                    raise UnreadableError(f"it names tensor {index}, and has {len(values)}")
            op_type = self.op_type(operator)
            nodes.append(Node(op_type, tuple(inputs), tuple(outputs), self._moves(op_type, operator)))
        ends = [
            tuple(self.numbers_in(main.InputsAsNumpy, main.InputsLength())),
            tuple(self.numbers_in(main.OutputsAsNumpy, main.OutputsLength())),
        ]
        return Layout(values, tuple(nodes), ends[0], ends[1], self.model.SubgraphsLength())

    def _value(self, index: int) -> Value:
        tensor = self.tensor(index)
        shape = tuple(max(size, 0) for size in self.numbers_in(tensor.ShapeAsNumpy, tensor.ShapeLength()))
        kind = self.type_name(tensor.Type())
        buffer = self.model.Buffers(tensor.Buffer()) if tensor.Buffer() < self.model.BuffersLength() else None
        is_constant = buffer is not None and bool(buffer.DataLength() or buffer.Size())
        return Value(self.name(index), shape, _element_bytes(kind), is_constant, bool(tensor.IsVariable()), kind)

    def _moves(self, op_type: str, operator: object) -> bool:
        """Say whether a convolution strides or dilates."""
        if op_type != "CONV_2D":
            return False
        options = self.schema.Conv2DOptions()
        table = operator.BuiltinOptions()  # type: ignore[attr-defined]
        if table is None:
            return False
        options.Init(table.Bytes, table.Pos)
        steps = (options.StrideW(), options.StrideH(), options.DilationWFactor(), options.DilationHFactor())
        return any(step != 1 for step in steps)


def _element_bytes(kind: str) -> float:
    if kind in {"int4", "uint4"}:
        return 0.5
    if kind == "int2":
        return 0.25
    try:
        return np.dtype(_DTYPES.get(kind, kind)).itemsize
    except TypeError:
        raise UnreadableError(f"it has tensors of type {kind}, whose size is not known") from None
