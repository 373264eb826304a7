"""OpenVINO's own files: an .xml file with the graph, a .bin file of the same name with the weights.

Read without OpenVINO, as text that a stranger may have written: no document types, no entities, nothing beyond bounds.
"""

from __future__ import annotations

import shutil
from collections import Counter
from dataclasses import dataclass
from pathlib import Path
from typing import Any
from xml.parsers import expat

from embedl_device.readers import UnreadableError, read_plain, telling
from embedl_hub.models import onnx_file
from embedl_hub.models.onnx_file import Tensor
from embedl_hub.refusal import RefusedError

SUFFIX = ".xml"
_WEIGHTS = ".bin"
_LAYER = ["net", "layers", "layer"]
_DTYPES = {
    "f16": "float16", "f32": "float32", "f64": "float64", "bf16": "bfloat16", "i8": "int8", "u8": "uint8",
    "i16": "int16", "u16": "uint16", "i32": "int32", "u32": "uint32", "i64": "int64", "u64": "uint64",
    "boolean": "bool", "string": "string",
}  # fmt: skip
_NARROW = {"i4": "int4", "u4": "int4", "nf4": "int4", "f8e4m3": "float8", "f8e5m2": "float8"}
_FLOATS = ("f16", "f32", "f64", "bf16")


@dataclass(frozen=True)
class Graph:
    """What a file declares: its inputs, and the numbers that it mostly computes in."""

    inputs: tuple[Tensor, ...]
    precision: str


def model_file(path: Path) -> Path:
    """Return the .xml file itself: the path, or the one .xml file in a folder."""
    file = onnx_file.model_file(path, SUFFIX)
    if file.suffix != SUFFIX:
        raise RefusedError(f"{file} is no {SUFFIX} file of OpenVINO; compile it first: embedl-hub compile openvino.")
    return file


def gather(path: Path, scratch: Path) -> Path:
    """Return a folder with an .xml file and its weights alone, known by what is in it."""
    file = model_file(path)
    read_graph(file)
    weights = file.with_suffix(_WEIGHTS)
    if not weights.is_file():
        raise RefusedError(f"{file} has no weights beside it; {weights.name} is needed in the same folder.")
    folder = scratch / f"{file.stem}.openvino"
    folder.mkdir()
    for each in (file, weights):
        shutil.copyfile(each, folder / each.name)
    return folder


def read_graph(path: Path) -> Graph:
    """Return what a file declares."""
    file = model_file(path)
    reader = _Reader()
    try:
        with telling():
            reader.read(read_plain(file))
    except (OSError, UnreadableError) as error:
        raise RefusedError(f"{file} is no model of OpenVINO: {error}.") from error
    if not reader.layers:
        raise RefusedError(f"{file} is no model of OpenVINO: it holds no layers.")
    return Graph(tuple(map(_tensor, reader.inputs)), _precision(reader.layers, reader.constants))


@dataclass
class _Input:
    name: str
    dtype: str = ""
    shape: str = ""
    names: str = ""


class _Reader:
    """Picks out of an .xml file the layers of the model itself, not those inside its branches and loops."""

    def __init__(self) -> None:
        self.inputs: list[_Input] = []
        self.layers: Counter[str] = Counter()
        self.constants: Counter[str] = Counter()
        self._path: list[str] = []
        self._kind = ""

    def read(self, data: bytes) -> None:
        parser = expat.ParserCreate()
        parser.StartElementHandler = self._start
        parser.EndElementHandler = self._end
        parser.StartDoctypeDeclHandler = self._refuse
        try:
            parser.Parse(data, True)
        except expat.ExpatError as error:
            raise UnreadableError(str(error)) from error

    def _refuse(self, *_: object) -> None:
        raise UnreadableError("it declares a document type, which none of OpenVINO's files does")

    def _start(self, tag: str, given: dict[str, Any]) -> None:
        self._path.append(tag)
        if self._path == _LAYER:
            self._kind = given.get("type", "")
            self.layers[self._kind] += 1
            if self._kind == "Parameter":
                self.inputs.append(_Input(given.get("name", "")))
        elif self._path == [*_LAYER, "data"]:
            if self._kind == "Parameter":
                self.inputs[-1].dtype = given.get("element_type", "")
                self.inputs[-1].shape = given.get("shape", "")
            elif self._kind == "Const":
                self.constants[given.get("element_type", "")] += int(given.get("size", "0"))
        elif self._path == [*_LAYER, "output", "port"] and self._kind == "Parameter":
            self.inputs[-1].names = given.get("names", "")

    def _end(self, _: str) -> None:
        self._path.pop()


def _tensor(found: _Input) -> Tensor:
    """Return an input under the name that the device program chooses too."""
    names = {name for name in found.names.split(",") if name}
    title = found.name if found.name in names or not names else min(names)
    if found.shape == "...":
        raise RefusedError(f"Input {title!r} has an open number of axes; compile the model with input_shape.")
    sizes = [size.strip() for size in found.shape.split(",") if size.strip()]
    shape = tuple(int(size) if size.isdecimal() else None for size in sizes)
    return Tensor(title, _DTYPES.get(found.dtype, found.dtype or "unknown"), shape)


def _precision(layers: Counter[str], constants: Counter[str]) -> str:
    if narrow := {_NARROW[kind] for kind in constants if kind in _NARROW}:
        return min(narrow)
    if layers["FakeQuantize"] or constants["i8"] > max((constants[kind] for kind in _FLOATS), default=0):
        return "int8"
    most = max(_FLOATS, key=lambda kind: constants[kind])
    return _DTYPES[most] if constants[most] else "float32"
