"""ONNX files: read with one clear error for whatever is wrong with them, written whole or not at all."""

import os
from collections.abc import Iterator
from pathlib import Path

import onnx
from google.protobuf.message import DecodeError  # type: ignore[import-untyped]

from embedl_deploy.errors import ModelFileError

# Above this a file needs its weights beside it: protobuf ends at two gigabytes.
_LARGEST = 1_900_000_000


def load(source: onnx.ModelProto | str | os.PathLike[str]) -> onnx.ModelProto:
    """Read a model; one in memory passes through.

    Raises:
        ModelFileError: There is no file, or it is no valid ONNX model.
    """
    if isinstance(source, onnx.ModelProto):
        return source
    path = Path(source)
    if not path.is_file():
        raise ModelFileError(f"There is no file {str(path)!r}.", path=str(path))
    try:
        model = onnx.load(path)
    except (DecodeError, ValueError, onnx.checker.ValidationError, OSError) as exc:
        reason = str(exc).strip().splitlines()[0] if str(exc).strip() else type(exc).__name__
        raise ModelFileError(f"{str(path)!r} cannot be read as an ONNX model: {reason}", path=str(path)) from exc
    if not model.graph.node:
        raise ModelFileError(f"{str(path)!r} is no ONNX model: it has no operators.", path=str(path))
    check_graph(model, str(path))
    return model


def input_names(source: onnx.ModelProto | str | os.PathLike[str]) -> list[str]:
    """Return the names of a model's inputs, in order.

    Raises:
        ModelFileError: There is no file, or it is no valid ONNX model.
    """
    graph = load(source).graph
    constants = {value.name for value in graph.initializer}
    return [value.name for value in graph.input if value.name not in constants]


def check_graph(model: onnx.ModelProto, path: str = "") -> None:
    """Refuse a graph that breaks the rules of ONNX.

    Raises:
        ModelFileError: It breaks one.
    """
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
        reason = next((line.strip() for line in str(exc).splitlines() if line.strip()), "no message")
        where = f"{path!r} is not valid" if path else "The model is not valid"
        raise ModelFileError(f"{where}: {reason}", path=path) from exc


def _tensors(graph: onnx.GraphProto) -> Iterator[onnx.TensorProto]:
    """Yield the values that a graph holds."""
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
    """Write a model under a name of its own first; nobody sees half a file.

    Raises:
        ModelFileError: The folder is not there or cannot be written to.
    """
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
