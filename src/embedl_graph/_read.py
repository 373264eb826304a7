"""Whatever file a model is in, told by what it begins with."""

from __future__ import annotations

import os
from pathlib import Path

from embedl_device.readers import PathLike, UnreadableError, open_plain
from embedl_graph._model import GraphError, ModelGraph
from embedl_graph._onnx import read_onnx
from embedl_graph._tflite import read_tflite

SUFFIXES = (".onnx", ".tflite")


def read_graph(path: PathLike) -> ModelGraph:
    """Return the graph of an ONNX or TFLite file, or of the one such file in a folder."""
    file = _file(Path(os.fspath(path)))
    try:
        with open_plain(file) as opened:
            begin = opened.read(8)
    except UnreadableError as error:
        raise GraphError("{} cannot be shown: {}.".format(file, error)) from error
    except OSError as error:
        raise GraphError("{} cannot be read: {}.".format(file, error.strerror)) from error
    return read_tflite(file) if begin[4:8] == b"TFL3" else read_onnx(file)


def _file(path: Path) -> Path:
    if not path.is_dir():
        return path
    found = sorted(each for each in path.iterdir() if each.suffix in SUFFIXES)
    if len(found) != 1:
        names = ", ".join(repr(each.name) for each in found[:10]) or "none"
        raise GraphError(
            "The folder {} must hold one model ({}); it holds {}.".format(path, " or ".join(SUFFIXES), names)
        )
    return found[0]
