"""ONNX files: read with one clear error for whatever is wrong with them, brought to an opset, written whole or not."""

import os
from collections.abc import Iterator
from pathlib import Path

import numpy as np
import onnx
from google.protobuf.message import DecodeError  # type: ignore[import-untyped]
from onnx import external_data_helper, version_converter

from embedl_deploy.dialect._dialects import PAIR
from embedl_deploy.dialect._model import NOTES, opset_of, read_entry
from embedl_deploy.errors import ModelFileError, first_line
from embedl_device.readers import check_pieces, find_piece, read_piece, telling, tensor_bytes

# Above this a file needs its weights beside it: protobuf ends at two gigabytes.
_LARGEST = 1_900_000_000


def load(source: onnx.ModelProto | str | os.PathLike[str]) -> onnx.ModelProto:
    """Read a model; one in memory passes through."""
    if isinstance(source, onnx.ModelProto):
        return source
    path = Path(source)
    if not path.is_file():
        raise ModelFileError(f"There is no file {str(path)!r}.", path=str(path))
    try:
        model = onnx.load(path, format="protobuf", load_external_data=False)
        _bring_weights(model, path.parent)
    except (DecodeError, ValueError, OSError) as exc:
        raise ModelFileError(
            f"{str(path)!r} cannot be read as an ONNX model: {first_line(exc)}", path=str(path)
        ) from exc
    if not model.graph.node:
        raise ModelFileError(f"{str(path)!r} is no ONNX model: it has no operators.", path=str(path))
    check_graph(model, str(path))
    return model


def notes_of(model: onnx.ModelProto | str | os.PathLike[str]) -> tuple[str, ...]:
    """Return what lowering gave up or left out, a line each, of a file or a model in memory.

    Raises:
        ModelFileError: The file cannot be read, or the metadata is damaged.
    """
    return tuple(map(str, read_entry(load(model), NOTES, "[]")))


def input_names(source: onnx.ModelProto | str | os.PathLike[str]) -> list[str]:
    """Return the names of a model's inputs, in order.

    Raises:
        ModelFileError: There is no file, or it is no valid ONNX model.
    """
    graph = load(source).graph
    constants = {value.name for value in graph.initializer}
    return [value.name for value in graph.input if value.name not in constants]


def _bring_weights(model: onnx.ModelProto, folder: Path) -> None:
    """Read the weights that lie beside a model's file, from inside its folder alone."""
    found = []
    with telling():
        for tensor in external_data_helper._get_all_tensors(model):  # walks subgraphs and attributes too
            if external_data_helper.uses_external_data(tensor):
                facts = {entry.key: entry.value for entry in tensor.external_data}
                dtype = np.dtype(onnx.helper.tensor_dtype_to_np_dtype(tensor.data_type))
                found.append((tensor, find_piece(folder, facts, tensor_bytes(tensor.dims, dtype))))
        check_pieces([piece for _, piece in found])
        for tensor, piece in found:
            tensor.raw_data = read_piece(piece)
            tensor.data_location = onnx.TensorProto.DEFAULT
            tensor.ClearField("external_data")


def check_graph(model: onnx.ModelProto, path: str = "") -> None:
    if _has_damaged_names(model):
        raise ModelFileError(f"{path or 'The model'!r} has names that are no text: it is damaged.", path=path)
    known = set(onnx.helper.get_all_tensor_dtypes())
    if strange := [value.name for value in _tensors(model.graph) if value.data_type not in known]:
        raise ModelFileError(f"{strange[0]!r} is of a type that this version of onnx does not know.", path=path)
    if model.ByteSize() > _LARGEST:
        return
    try:
        onnx.checker.check_model(model)
    except (onnx.checker.ValidationError, UnicodeDecodeError) as exc:
        where = f"{path!r} is not valid" if path else "The model is not valid"
        raise ModelFileError(f"{where}: {first_line(exc)}", path=path) from exc


def _tensors(graph: onnx.GraphProto) -> Iterator[onnx.TensorProto]:
    yield from graph.initializer
    for node in graph.node:
        for attribute in node.attribute:
            if attribute.HasField("t"):
                yield attribute.t


def _has_damaged_names(model: onnx.ModelProto) -> bool:
    """Tell whether a name is no text: protobuf then gives bytes."""
    names: list[object] = [text for entry in model.metadata_props for text in (entry.key, entry.value)]
    for node in model.graph.node:
        names += [node.name, node.op_type, node.domain, *node.input, *node.output]
        names += [entry.name for entry in node.attribute]
    values = (*model.graph.initializer, *model.graph.input, *model.graph.output, *model.graph.value_info)
    return not all(isinstance(name, str) for name in (*names, *(value.name for value in values)))


def save(model: onnx.ModelProto, path: str | os.PathLike[str]) -> Path:
    """Write a model under a name of its own first; nobody sees half a file."""
    target = Path(path)
    if not target.parent.is_dir():
        raise ModelFileError(
            f"There is no folder {str(target.parent)!r} to write {target.name!r} to.", path=str(target)
        )
    if model.ByteSize() > _LARGEST:
        onnx.save(model, target, save_as_external_data=True, location=f"{target.name}.data")
        return target
    draft = target.with_name(f".{target.name}.{os.getpid()}")
    try:
        draft.write_bytes(model.SerializeToString())
        draft.replace(target)
    except OSError as exc:
        draft.unlink(missing_ok=True)
        raise ModelFileError(f"{str(target)!r} cannot be written: {exc.strerror}.", path=str(target)) from exc
    return target


_TYPED = 21
_OLDEST_SAID = 18
_CHANGED = frozenset({"GroupNormalization", "Scan", "If", "Loop"})
_NEW_TYPES = frozenset({
    onnx.TensorProto.INT4, onnx.TensorProto.UINT4, onnx.TensorProto.INT16, onnx.TensorProto.UINT16,
})  # fmt: skip
_IR_VERSIONS = {13: 7, 14: 7, 15: 8, 16: 8, 17: 8, 18: 8, 19: 9, 20: 9, 21: 10}


def raise_opset(model: onnx.ModelProto, version: int) -> onnx.ModelProto:
    """Return a model of at least this version; the one given if it has it."""
    old = opset_of(model)
    if old >= version:
        return model
    try:
        raised = version_converter.convert_version(model, version)
    except Exception as exc:
        raise ModelFileError(
            f"The model has opset {old}, this needs {version}, and it could not be converted: {first_line(exc)} "
            f"Export it again with opset {version}."
        ) from exc
    raised.ir_version = max(raised.ir_version, model.ir_version, _IR_VERSIONS.get(version, 10))
    if not raised.metadata_props:
        raised.metadata_props.extend(model.metadata_props)
    return raised


def relax_opset(model: onnx.ModelProto, newest: int = _TYPED) -> None:
    """Say opset 20 instead of 21 where the file needs nothing of 21, and an older one where none newer is read.

    The two differ in the types that operators take, and in GroupNormalization. ONNX Runtime carries pairs of opset 21
    across other operators with a type that it forgets to change with the zero point's, and then refuses the model: seen
    on x86 with signed activations, in 1.30 and 1.31.

    Raises:
        onnx.checker.ValidationError: The file needs more than the newest opset that is read.
    """
    if opset_of(model) == _TYPED and not _needs_typed(model):
        _say_opset(model, _TYPED - 1)
    if newest < opset_of(model):
        # Since opset 18 operators only gained types and settings; whoever needs those is refused.
        draft = onnx.ModelProto()
        draft.CopyFrom(model)
        _say_opset(draft, newest)
        if newest < _OLDEST_SAID:
            raise onnx.checker.ValidationError(f"opset {newest} differs in more than types and settings")
        onnx.checker.check_model(draft)
        _say_opset(model, newest)


def _needs_typed(model: onnx.ModelProto) -> bool:
    """Tell whether a file has something that opset 21 brought."""
    pairs = [node for node in model.graph.node if node.op_type in PAIR]
    return (
        any(node.op_type in _CHANGED for node in model.graph.node)
        or any(entry.name in ("block_size", "output_dtype") for node in pairs for entry in node.attribute)
        or any(value.data_type in _NEW_TYPES for value in model.graph.initializer)
    )


def _say_opset(model: onnx.ModelProto, version: int) -> None:
    for entry in model.opset_import:
        if entry.domain in ("", "ai.onnx"):
            entry.version = version
    model.ir_version = min(model.ir_version, _IR_VERSIONS.get(version, 10))
