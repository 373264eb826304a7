"""ONNX files on this machine: read with care, given fixed shapes and node names, checked against data."""

from __future__ import annotations

import math
import shutil
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, TypeAlias

import numpy as np
import onnx
from google.protobuf.message import DecodeError  # type: ignore[import-untyped]
from onnx import external_data_helper, helper

from embedl_device.arrays import base_of
from embedl_device.readers import Piece, UnreadableError, check_pieces, find_piece, read_piece, telling, tensor_bytes
from embedl_hub.errors import quoted_list
from embedl_hub.refusal import RefusedError

Dimension: TypeAlias = int | str | None

# A protobuf message ends at 2 GiB; what comes near is kept with its weights beside it.
_LARGEST_FILE_BYTES = 1_900_000_000
_WEIGHTS = "weights.bin"
# Operators that work on integers, ONNX's own and those of ONNX Runtime's optimizer.
_INTEGER_OPS = ("QLinear", "QGemm", "QuantizeLinear", "DequantizeLinear", "MatMulInteger", "ConvInteger", "QAttention")
_NARROW = {
    onnx.TensorProto.FLOAT8E4M3FN: "float8", onnx.TensorProto.FLOAT8E5M2: "float8", onnx.TensorProto.INT4: "int4",
    onnx.TensorProto.UINT4: "int4",
}  # fmt: skip
_TYPES = frozenset(helper.get_all_tensor_dtypes())
_FLOATS = {
    onnx.TensorProto.FLOAT: "float32", onnx.TensorProto.FLOAT16: "float16", onnx.TensorProto.BFLOAT16: "bfloat16",
    onnx.TensorProto.DOUBLE: "float64",
}  # fmt: skip


@dataclass(frozen=True)
class Tensor:
    """An input or output as the model declares it; a size of None or a name is open."""

    name: str
    dtype: str
    shape: tuple[Dimension, ...]

    def __str__(self) -> str:
        return f"{self.name} {self.dtype}[{', '.join('?' if size is None else str(size) for size in self.shape)}]"

    @property
    def is_fixed(self) -> bool:
        """Whether every size is a number."""
        return all(isinstance(size, int) for size in self.shape)

    def takes(self, sizes: Sequence[int], start: int = 0) -> bool:
        """Tell whether sizes are what is declared from an axis on; an open one takes any."""
        own = self.shape[start:]
        return len(own) == len(sizes) and all(
            not isinstance(size, int) or size == given for size, given in zip(own, sizes, strict=True)
        )


def model_file(path: Path, suffix: str = ".onnx") -> Path:
    """Return the model's file itself: the path, or the one such file in a folder."""
    if path.is_dir():
        found = sorted(file for file in path.iterdir() if file.suffix == suffix)
        if len(found) != 1:
            names = quoted_list(file.name for file in found)
            raise RefusedError(f"The folder {path} must hold one {suffix} file, it holds: {names}.")
        return found[0]
    if not path.is_file():
        raise RefusedError(f"There is no model {path}.")
    return path


def read_graph(path: Path) -> onnx.ModelProto:
    """Return a model without the weights that lie outside its file."""
    file = model_file(path)
    try:
        # In its own format, whatever the file is called: onnx reads others by the suffix.
        model = onnx.load(file, format="protobuf", load_external_data=False)
        with telling():
            _check_fields(model)
    except (DecodeError, ValueError, OSError) as error:
        raise RefusedError(
            f"{file} is not an ONNX model: {error}. Was it copied whole? Copy or export it again."
        ) from error
    # A graph that was folded to constants has no node left, and outputs still.
    if not (model.graph.node or model.graph.output) or not model.opset_import:
        raise RefusedError(f"{file} is not an ONNX model: it holds no graph.")
    return model


def _check_fields(model: onnx.ModelProto) -> None:
    """Refuse names that are no text and types that nobody knows: protobuf takes any bytes and any number."""
    graphs = list(_graphs(model.graph))
    values = [value for graph in graphs for value in (*graph.input, *graph.output, *graph.value_info)]
    tensors = [tensor for graph in graphs for tensor in graph.initializer]
    names = [text for entry in model.metadata_props for text in (entry.key, entry.value)]
    names += [named.name for named in (*values, *tensors, *graphs)]
    names += [dim.dim_param for value in values for dim in value.type.tensor_type.shape.dim]
    for graph in graphs:
        for node in graph.node:
            names += [node.name, node.op_type, node.domain, *node.input, *node.output]
    if not all(isinstance(name, str) for name in names):
        raise UnreadableError("a name in it is no text")
    types = {value.type.tensor_type.elem_type for value in values} | {tensor.data_type for tensor in tensors}
    if unknown := types - _TYPES - {onnx.TensorProto.UNDEFINED}:
        raise UnreadableError(f"this version of onnx does not know the type {min(unknown)}")


def _graphs(graph: onnx.GraphProto) -> Iterator[onnx.GraphProto]:
    yield graph
    for node in graph.node:
        for attribute in node.attribute:
            for inner in (*((attribute.g,) if attribute.HasField("g") else ()), *attribute.graphs):
                yield from _graphs(inner)


def read_model(path: Path) -> onnx.ModelProto:
    """Return a model with all its weights."""
    model = read_graph(path)
    # Not by onnx's own function: it takes the store's hard links for an attack.
    for tensor, piece in _pieces(model, model_file(path).parent):
        tensor.raw_data = read_piece(piece)
        tensor.data_location = onnx.TensorProto.DEFAULT
        tensor.ClearField("external_data")
    return model


def prepared_model(path: Path, input_shape: Sequence[int] | None) -> onnx.ModelProto:
    """Return a model with all its weights, its input's shape fixed, and a name on every node to lead layers back to."""
    model = read_model(path)
    if input_shape is not None:
        fix_input_shape(model, input_shape)
    name_nodes(model)
    return model


def external_files(model: onnx.ModelProto, folder: Path) -> list[str]:
    """Return the files a model's weights lie in, or refuse names that lead out of its folder and files cut short."""
    return list(dict.fromkeys(str(piece.path.relative_to(folder)) for _, piece in _pieces(model, folder)))


def _pieces(model: onnx.ModelProto, folder: Path) -> list[tuple[onnx.TensorProto, Piece]]:
    """Return the tensors whose numbers are not in the model's file, and where they are."""
    found = []
    for tensor in _tensors_outside(model):
        try:
            with telling():
                facts = {entry.key: entry.value for entry in tensor.external_data}
                found.append((tensor, find_piece(folder, facts, tensor_bytes(tensor.dims, _dtype(tensor)))))
        except UnreadableError as error:
            raise RefusedError(f"The weights of tensor {tensor.name!r} cannot be read: {error}.") from error
    try:
        check_pieces([piece for _, piece in found])
    except UnreadableError as error:
        raise RefusedError(f"The model is refused: {error}.") from error
    return found


def _dtype(tensor: onnx.TensorProto) -> np.dtype[Any]:
    return np.dtype(helper.tensor_dtype_to_np_dtype(tensor.data_type))


def _tensors_outside(model: onnx.ModelProto) -> Iterator[onnx.TensorProto]:
    for tensor in external_data_helper._get_all_tensors(model):  # noqa: SLF001 - walks subgraphs and attributes too
        if external_data_helper.uses_external_data(tensor):
            yield tensor


def gather(path: Path, scratch: Path) -> Path:
    """Return what has to be kept of a model: its file, or a folder with the file and its weights alone."""
    file = model_file(path)
    outside = external_files(read_graph(path), file.parent)
    if not outside:
        return file
    folder = scratch / f"{file.stem}_model"
    for name in (file.name, *outside):
        target = folder / name
        target.parent.mkdir(parents=True, exist_ok=True)
        shutil.copyfile(file.parent / name, target)
    return folder


def write_model(model: onnx.ModelProto, path: Path) -> Path:
    """Write a model as one file, or with its weights beside it in a folder when it is too large for one."""
    if model.ByteSize() < _LARGEST_FILE_BYTES:
        onnx.save(model, path)
        return path
    folder = path.with_suffix("")
    folder.mkdir()
    onnx.save(model, folder / path.name, save_as_external_data=True, location=_WEIGHTS)
    return folder


def inputs_of(model: onnx.ModelProto) -> list[Tensor]:
    """Return the inputs a user must give: those without a value of their own."""
    given = {value.name for value in model.graph.initializer} | {
        value.values.name for value in model.graph.sparse_initializer
    }
    return [_tensor(value) for value in model.graph.input if value.name not in given]


def shape_hint(tensor: Tensor) -> str:
    """Return how to ask for a fixed shape, in Python and on the command line."""
    sizes = [str(size) if isinstance(size, int) else "1" for size in tensor.shape]
    return f"input_shape=({', '.join(sizes)}) (--input-shape {','.join(sizes)})"


def precision_of(model: onnx.ModelProto) -> str:
    """Return the numbers a model mostly computes in: int8 if it is quantized, else the float of most of its weights."""
    if narrow := {_NARROW[value.data_type] for value in model.graph.initializer if value.data_type in _NARROW}:
        return min(narrow)
    if quantized_layer(model) is not None:
        return "int8"
    counts: Counter[str] = Counter()
    for weights in model.graph.initializer:
        if weights.data_type in _FLOATS:
            counts[_FLOATS[weights.data_type]] += math.prod(weights.dims)
    ends = (_FLOATS.get(value.type.tensor_type.elem_type) for value in (*model.graph.input, *model.graph.output))
    return counts.most_common(1)[0][0] if counts else next(filter(None, ends), "float32")


def quantized_layer(model: onnx.ModelProto) -> str | None:
    """Return the first operator that computes in integers or converts to them; None for a float model."""
    return next((node.op_type for node in nodes_of(model.graph) if node.op_type.startswith(_INTEGER_OPS)), None)


def outputs_of(model: onnx.ModelProto) -> list[Tensor]:
    """Return the outputs."""
    return [_tensor(value) for value in model.graph.output]


def _tensor(value: onnx.ValueInfoProto) -> Tensor:
    kind = value.type.tensor_type
    if not value.type.HasField("tensor_type"):
        return Tensor(value.name, value.type.WhichOneof("value") or "unknown", ())
    if kind.elem_type == onnx.TensorProto.STRING:
        dtype = "string"
    else:
        dtype = np.dtype(helper.tensor_dtype_to_np_dtype(kind.elem_type)).name if kind.elem_type else "unknown"
    return Tensor(value.name, dtype, tuple(_size(dim) for dim in kind.shape.dim))


def _size(dim: onnx.TensorShapeProto.Dimension) -> Dimension:
    if dim.HasField("dim_value") and dim.dim_value >= 0:
        return int(dim.dim_value)
    return dim.dim_param or None


def name_nodes(model: onnx.ModelProto) -> None:
    """Give every node a name of its own, the same each time, so that what ran can be led back to it."""
    taken: set[str] = set()
    for node in nodes_of(model.graph):
        name = node.name or next((output for output in node.output if output), node.op_type)
        base, number = name, 1
        while name in taken:
            name, number = f"{base}#{number}", number + 1
        taken.add(name)
        node.name = name


def replace_items(field: Any, items: Iterable[object]) -> None:  # noqa: ANN401 - protobuf's lists have no types
    """Give a repeated field of a model other items."""
    wanted = list(items)
    del field[:]
    field.extend(wanted)


def nodes_of(graph: onnx.GraphProto) -> Iterator[onnx.NodeProto]:
    """Yield the nodes of a graph, those of its branches and loops included."""
    for node in graph.node:
        yield node
        for attribute in node.attribute:
            for inner in (attribute.g, *attribute.graphs):
                yield from nodes_of(inner)


def fix_input_shape(model: onnx.ModelProto, shape: Sequence[int]) -> None:
    """Fix the shape of the model's input; sizes that other inputs share by name are fixed with it."""
    sizes = tuple(int(size) for size in shape)
    inputs = inputs_of(model)
    text = "; ".join(map(str, inputs))
    if not sizes or min(sizes) < 1:
        raise RefusedError(f"input_shape must be sizes of at least 1, not {tuple(shape)!r}. The inputs are: {text}.")
    fitting = [tensor for tensor in inputs if tensor.takes(sizes)]
    if not fitting:
        raise RefusedError(f"input_shape {list(sizes)} fits no input of the model; they are: {text}.")
    chosen = next((tensor for tensor in fitting if not tensor.is_fixed), fitting[0])
    names = {dim: size for dim, size in zip(chosen.shape, sizes, strict=True) if isinstance(dim, str)}
    for value in (*model.graph.input, *model.graph.output, *model.graph.value_info):
        dims = value.type.tensor_type.shape.dim
        for index, dim in enumerate(dims):
            if value.name == chosen.name:
                dim.dim_value = sizes[index]
            elif dim.dim_param in names:
                dim.dim_value = names[dim.dim_param]


_NO_TENSORS = frozenset({"map_type", "sparse_tensor_type"})
_LOOSE = frozenset({"sequence_type", "optional_type"})


def loose_inputs(inputs: Sequence[Tensor]) -> frozenset[str]:
    """Return the names of inputs that are sequences or may be nothing: a list, or None, is given for these."""
    return frozenset(tensor.name for tensor in inputs if tensor.dtype in _LOOSE)


def check_data(inputs: Sequence[Tensor], data: Mapping[str, np.ndarray], what: str) -> None:
    """Refuse names, types and shapes that do not fit, all at once; whole batches more than the model takes may come."""
    own = {tensor.name: tensor for tensor in inputs}
    loose = loose_inputs(inputs)
    faults = [f"{name!r} is not an input" for name in data if name not in own and base_of(name)[0] not in loose]
    faults += [f"{name!r} is missing" for name in own if name not in data and name not in loose]
    batches: set[int] = set()
    for name in (own.keys() & data.keys()) - loose:
        if own[name].dtype in _NO_TENSORS:
            kind = own[name].dtype.removesuffix("_type")
            faults.append(f"{name!r} is of the kind {kind} in the model; only tensors can be given")
            continue
        faults += _faults(own[name], np.asarray(data[name]), batches)
    if len(batches) > 1:
        faults.append(f"the inputs hold different numbers of batches: {sorted(batches)}")
    if faults:
        raise RefusedError(
            f"The {what} does not fit the model: {'; '.join(sorted(faults))}. "
            f"Its inputs are: {'; '.join(map(str, inputs))}."
        )


def _faults(tensor: Tensor, array: np.ndarray, batches: set[int]) -> list[str]:
    faults = []
    is_text = tensor.dtype == "string" and array.dtype.kind in "UO"
    if array.dtype.name != tensor.dtype and not is_text:
        faults.append(f"{tensor.name!r} is {array.dtype.name}, the model takes {tensor.dtype}")
    sizes = tensor.shape
    is_fit = array.ndim == len(sizes) and tensor.takes(array.shape[1:], 1)
    first = sizes[0] if sizes else None
    if is_fit and first == 0:
        is_fit = array.shape[0] == 0  # nothing is no batch that could come more than once
    elif is_fit and isinstance(first, int):
        is_fit = array.shape[0] >= first and array.shape[0] % first == 0
        batches.add(array.shape[0] // first)
    if not is_fit:
        taken = f"[{', '.join('?' if size is None else str(size) for size in sizes)}]"
        faults.append(f"{tensor.name!r} has shape {list(array.shape)}, the model takes {taken}")
    return faults
