"""TFLite files on this machine: their inputs, outputs and operators, read without running anything."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from pathlib import Path
from typing import Any, NamedTuple

from embedl_device.readers import UnreadableError, read_plain, telling
from embedl_hub.models.onnx_file import Tensor
from embedl_hub.refusal import RefusedError

MAGIC = b"TFL3"
LARGEST_BYTES = 2 << 30  # where the format ends
# Parts of a file may be used many times; a whole that takes more items than the file has bytes is made to burst.
_FEWEST_ITEMS = 100_000


class Operator(NamedTuple):
    """One operator: what it computes, and the tensors it writes with their types."""

    op_type: str
    outputs: tuple[str, ...]
    types: tuple[str, ...] = ()


class Graph(NamedTuple):
    """What a TFLite model declares; ``numbers`` are scale and zero point of integer ends by their names."""

    inputs: tuple[Tensor, ...]
    outputs: tuple[Tensor, ...]
    operators: tuple[Operator, ...]
    numbers: Mapping[str, tuple[float, int]]
    precision: str = "float32"


def read_graph(path: Path) -> Graph:
    """Return what a TFLite file declares."""
    if not path.is_file():
        raise RefusedError(f"There is no model {path}.")
    try:
        content = read_plain(path, LARGEST_BYTES)
        if content[4:8] != MAGIC:
            raise RefusedError(f"{path} is not a TFLite model: it does not begin as one.")
        with telling():
            return Reader(content).graph()
    except (OSError, UnreadableError) as error:
        raise RefusedError(f"{path} is not a TFLite model, or it was cut short: {error}.") from error


class Reader:
    """Reads the tables that are needed, in place; the schema's own objects would copy all that any of them names."""

    def __init__(self, content: bytes) -> None:
        from ai_edge_litert import schema_py_generated as schema  # noqa: PLC0415 - the vendor's package on use

        self.schema: Any = schema
        self._types = {code: name.lower() for name, code in vars(schema.TensorType).items() if isinstance(code, int)}
        self._names = {code: name for name, code in vars(schema.BuiltinOperator).items() if isinstance(code, int)}
        self.model = schema.Model.GetRootAs(content, 0)
        self._left = max(_FEWEST_ITEMS, len(content))
        main = self.model.Subgraphs(0)
        if main is None:
            raise UnreadableError("it holds no graph")
        self.main = main
        self._known: dict[int, str] = {}

    def graph(self) -> Graph:
        """Return what the file declares."""
        main = self.main
        inputs = self.numbers_in(main.InputsAsNumpy, main.InputsLength())
        outputs = self.numbers_in(main.OutputsAsNumpy, main.OutputsLength())
        operators, computed = [], set()
        for operator in self.all(main.Operators, main.OperatorsLength()):
            written = self.numbers_in(operator.OutputsAsNumpy, operator.OutputsLength())
            types = tuple(self.type_name(self.tensor(index).Type()) for index in written)
            operators.append(Operator(self.op_type(operator), tuple(map(self.name, written)), types))
            computed |= set(types)
        # The integers of quantized models before floats.
        precision = next((name for name in ("int8", "uint8", "float16") if name in computed), "float32")
        return Graph(
            tuple(map(self._declared, inputs)), tuple(map(self._declared, outputs)), tuple(operators),
            dict(self._numbers((*inputs, *outputs))), precision,
        )  # fmt: skip

    def all(self, item: Any, count: int) -> Iterator[Any]:  # noqa: ANN401 - the schema's objects have no types
        """Yield the items of a vector, as long as the whole stays within bounds."""
        for index in range(count):
            self._take(1)
            yield item(index)

    def numbers_in(self, as_array: Any, count: int) -> list[int]:  # noqa: ANN401 - likewise
        """Return a vector of numbers."""
        self._take(count)
        return [int(number) for number in as_array()] if count else []

    def _take(self, count: int) -> None:
        self._left -= count
        if self._left < 0:
            raise UnreadableError("it names the same parts so often that it would burst")

    def tensor(self, index: int) -> Any:  # noqa: ANN401 - likewise
        """Return a tensor of the main graph."""
        if not 0 <= index < self.main.TensorsLength():
            raise UnreadableError(f"it names tensor {index}, and has {self.main.TensorsLength()}")
        return self.main.Tensors(index)

    def name(self, index: int) -> str:
        """Return a tensor's name."""
        if index not in self._known:
            name = self.tensor(index).Name() or b""
            self._take(len(name))
            self._known[index] = str(name.decode("utf-8", "replace"))
        return self._known[index]

    def type_name(self, code: int) -> str:
        """Return the name of an element type."""
        return str(self._types.get(code, code))

    def _declared(self, index: int) -> Tensor:
        value = self.tensor(index)
        as_array, count = value.ShapeSignatureAsNumpy, value.ShapeSignatureLength()
        if value.ShapeSignatureIsNone():
            as_array, count = value.ShapeAsNumpy, value.ShapeLength()
        shape = tuple(None if size < 0 else size for size in self.numbers_in(as_array, count))
        return Tensor(self.name(index), self.type_name(value.Type()), shape)

    def op_type(self, operator: Any) -> str:  # noqa: ANN401 - likewise
        """Return what an operator computes."""
        index = operator.OpcodeIndex()
        if index >= self.model.OperatorCodesLength():
            raise UnreadableError(f"it names operator {index}, and has {self.model.OperatorCodesLength()}")
        code = self.model.OperatorCodes(index)
        return str(self._names.get(max(code.BuiltinCode(), code.DeprecatedBuiltinCode()), "UNKNOWN"))

    def _numbers(self, ends: Iterable[int]) -> Iterator[tuple[str, tuple[float, int]]]:
        for index in ends:
            scheme = self.tensor(index).Quantization()
            if scheme is not None and scheme.ScaleLength() == 1 and scheme.ZeroPointLength():
                yield self.name(index), (float(scheme.Scale(0)), int(scheme.ZeroPoint(0)))
