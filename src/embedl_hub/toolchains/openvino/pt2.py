"""A .pt2 file as ONNX, by ``embedl-deploy`` in a process of its own.

OpenVINO's own reader of such files has torch load them first, which runs what a stranger put into one: pickled objects,
expressions, names of modules. ``embedl-deploy`` reads them as data or refuses them, and writes down which module of the
network each node comes from. The hub itself reads no more than the shapes of the inputs.
"""

from __future__ import annotations

import importlib.util
import math
from dataclasses import dataclass
from pathlib import Path
from typing import Any
from zipfile import ZipFile

import numpy as np

from embedl_device.interpreter import python_argv
from embedl_device.readers import UnreadableError, open_zip, parse_json, telling
from embedl_hub.core.device import LocalCommandRunner
from embedl_hub.errors import CommandError
from embedl_hub.models.calibration import write_npz
from embedl_hub.refusal import RefusedError

SUFFIX = ".pt2"
_PROGRAM = "models/model.json"
_LIMIT_S = 1800.0
_MOST_NUMBERS = 1 << 28
# As torch numbers them in these files.
_DTYPES = {1: "uint8", 2: "int8", 3: "int16", 4: "int32", 5: "int64", 6: "float16", 7: "float32", 8: "float64",
           12: "bool"}  # fmt: skip
_MARK = "embedl-deploy: "


@dataclass(frozen=True)
class _Input:
    """An input of an exported program; an open size has the one that it was exported with."""

    name: str
    dtype: str
    shape: tuple[int, ...]
    is_batch_open: bool


def exported_onnx(path: Path, scratch: Path) -> Path:
    """Return an ONNX file made of a .pt2 file."""
    inputs = _inputs(path)
    if importlib.util.find_spec("embedl_deploy") is None:
        raise RefusedError(
            f"{path.name} has to become ONNX first, and embedl-deploy, which does that without running what is in the "
            "file, is not installed here. Install it with: pip install edgeproof-deploy edgeproof-deploy-onnxruntime; "
            "or export the network yourself: torch.onnx.export(model, inputs, 'net.onnx', dynamo=True)."
        )
    generator = np.random.default_rng(0)
    arrays = {}
    for at, tensor in enumerate(inputs):
        is_float = tensor.dtype.startswith("float")
        array = generator.standard_normal(tensor.shape) if is_float else np.ones(tensor.shape)
        arrays[f"arr_{at}"] = array.astype(tensor.dtype)
    write_npz(scratch / "example.npz", arrays)
    output = scratch / f"{path.stem}.onnx"
    words = ["export", str(path.resolve()), "--float", "--data", str(scratch / "example.npz"), "--dialect", "openvino",
             "--backend", "onnxruntime", "--output", str(output)]  # fmt: skip
    if all(tensor.is_batch_open for tensor in inputs):
        words.append("--dynamic-batch")
    try:
        LocalCommandRunner().run([*python_argv(module="embedl_deploy"), *words], hide=True, timeout_s=_LIMIT_S)
    except CommandError as error:
        own = [line.removeprefix(_MARK) for line in error.stderr.splitlines() if line.startswith(_MARK)]
        raise RefusedError(f"{path.name} cannot become ONNX: {own[-1] if own else error}") from error
    return output


def _inputs(path: Path) -> list[_Input]:
    try:
        with open_zip(path) as archive, telling():
            program = parse_json(archive.read(_program_in(archive)))["graph_module"]
            values = program["graph"]["tensor_values"]
            given = [spec["user_input"]["arg"] for spec in program["signature"]["input_specs"] if "user_input" in spec]
            found = [_input(arg["as_tensor"]["name"], values) for arg in given]
    except FileNotFoundError as error:
        raise RefusedError(f"There is no model {path}.") from error
    except (OSError, UnreadableError) as error:
        raise RefusedError(
            f"{path} is no file of torch.export.save, or one with inputs that are no tensors: {error}. "
            "Write it with torch.export.save of torch 2.8 or newer."
        ) from error
    if sum(math.prod(tensor.shape) for tensor in found) > _MOST_NUMBERS:
        raise RefusedError(f"The inputs of {path} are too large: {', '.join(str(tensor.shape) for tensor in found)}.")
    return found


def _program_in(archive: ZipFile) -> str:
    for name in archive.namelist():
        if name.partition("/")[2] == _PROGRAM:
            return name
    raise UnreadableError(f"it has no {_PROGRAM}")


def _input(name: str, values: dict[str, Any]) -> _Input:
    facts = values[name]
    sizes = [int(size["as_int"] if "as_int" in size else size["as_expr"]["hint"]["as_int"]) for size in facts["sizes"]]
    if min(sizes, default=0) < 0:
        raise UnreadableError(f"input {name[:60]!r} has a negative size")
    is_open = bool(sizes) and "as_int" not in facts["sizes"][0]
    return _Input(str(name), _DTYPES[facts["dtype"]], tuple(sizes), is_open)
