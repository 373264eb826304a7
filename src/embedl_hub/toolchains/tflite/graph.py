"""TFLite files on this machine: their inputs, outputs and operators, read without running anything."""

from __future__ import annotations

import struct
from collections.abc import Mapping
from pathlib import Path
from typing import Any, NamedTuple

from embedl_hub.models.onnx_file import Tensor
from embedl_hub.refusal import RefusedError

_MAGIC = b"TFL3"


class Operator(NamedTuple):
    """One operator: what it computes and the tensors it writes."""

    op_type: str
    outputs: tuple[str, ...]


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
    content = path.read_bytes()
    if content[4:8] != _MAGIC:
        raise RefusedError(f"{path} is not a TFLite model: it does not begin as one.")
    from ai_edge_litert import schema_py_generated as schema  # noqa: PLC0415 - the vendor's package on use

    try:
        model = schema.ModelT.InitFromPackedBuf(content, 0)
        types = {code: name.lower() for name, code in vars(schema.TensorType).items() if isinstance(code, int)}
        names = {code: name for name, code in vars(schema.BuiltinOperator).items() if isinstance(code, int)}
        return _graph(model, types, names)
    except (struct.error, IndexError, TypeError, ValueError, AttributeError) as error:
        raise RefusedError(f"{path} is not a TFLite model, or it was cut short: {error}.") from error


def _graph(model: Any, types: dict[int, str], names: dict[int, str]) -> Graph:  # noqa: ANN401 - the schema's object
    main = model.subgraphs[0]

    def name(index: int) -> str:
        return str(main.tensors[index].name.decode("utf-8", "replace"))

    def tensor(index: int) -> Tensor:
        value = main.tensors[index]
        sizes = value.shapeSignature if value.shapeSignature is not None else value.shape
        shape = tuple(None if size < 0 else int(size) for size in ([] if sizes is None else sizes))
        return Tensor(name(index), types.get(value.type, str(value.type)), shape)

    operators = []
    for operator in main.operators:
        code = model.operatorCodes[operator.opcodeIndex]
        op_type = names.get(max(code.builtinCode, code.deprecatedBuiltinCode), "UNKNOWN")
        operators.append(Operator(op_type, tuple(name(index) for index in operator.outputs)))
    numbers = {}
    for index in (*main.inputs, *main.outputs):
        scheme = main.tensors[index].quantization
        if scheme is not None and scheme.scale is not None and len(scheme.scale) == 1:
            numbers[name(index)] = float(scheme.scale[0]), int(scheme.zeroPoint[0])
    computed = {types.get(main.tensors[index].type, "") for operator in main.operators for index in operator.outputs}
    # The integers of quantized models before floats.
    precision = next((name for name in ("int8", "uint8", "float16") if name in computed), "float32")
    return Graph(
        tuple(map(tensor, main.inputs)), tuple(map(tensor, main.outputs)), tuple(operators), numbers, precision
    )
