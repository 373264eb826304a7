"""Models whose weights lie beside them, with something wrong about the place."""

from __future__ import annotations

import os
from pathlib import Path

import onnx
from onnx import external_data_helper

from support.models import residual_net

# What is said of the first tensor's weights, and words of the refusal.
HOSTILE = {
    "negative": ({"offset": "-5"}, "its offset is '-5', which is no number of bytes"),
    "no number": ({"offset": "abc"}, "its offset is 'abc', which is no number of bytes"),
    "huge": ({"offset": "9" * 40}, "which is no number of bytes"),
    "far": ({"offset": "999999999999"}, "it was cut short"),
    "long": ({"length": "999999999"}, "it was cut short"),
    "short": ({"length": "4"}, "takes 1728 bytes and 4 are given"),
    "absolute": ({"location": "/proc/self/environ"}, "outside the model's folder"),
    "above": ({"location": "../secret"}, "outside the model's folder"),
    "link": ({"location": "environ"}, "a link out of the model's folder"),
    "device": ({"location": "zero"}, "a link out of the model's folder"),
    "pipe": ({"location": "pipe"}, "no plain file"),
    "folder": ({"location": "sub"}, "no plain file"),
    "missing": ({"location": "none.bin"}, "copy it beside the model"),
}


def write_hostile(folder: Path, facts: dict[str, str]) -> Path:
    """Write a model that says these facts, among places that it must not read; return its file."""
    folder.mkdir()
    path = folder / "net.onnx"
    onnx.save(residual_net(), path, save_as_external_data=True, location="w.bin", size_threshold=0)
    model = onnx.load(path, load_external_data=False)
    tensors = external_data_helper._get_all_tensors(model)
    tensor = next(tensor for tensor in tensors if external_data_helper.uses_external_data(tensor))
    for entry in tensor.external_data:
        entry.value = facts.get(entry.key, entry.value)
    path.write_bytes(model.SerializeToString())
    (folder.parent / "secret").write_bytes(bytes(4096))
    (folder / "environ").symlink_to("/proc/self/environ")
    (folder / "zero").symlink_to("/dev/zero")
    (folder / "sub").mkdir()
    os.mkfifo(folder / "pipe")
    return path
