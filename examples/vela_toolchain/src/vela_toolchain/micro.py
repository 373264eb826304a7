"""Runs a TFLite model in tflite-micro: ``python -m vela_toolchain.micro MODEL INPUTS.npz OUTPUTS.npz [--raw]``.

A program of its own: the interpreter ends its process where a model is not as it expects.
Several samples may stand one after the other along the first axis. Floats for integer inputs are quantized as the model
says, and integer outputs become floats; with ``--raw`` both are taken and given as they are.
"""

from __future__ import annotations

import sys
import zipfile
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np

MARK = "vela_toolchain: error: "
_LEAST_ARENA_BYTES = 1 << 20


def main(model_path: str, input_path: str, output_path: str, *words: str) -> None:
    """Run a model once for each sample."""
    from tflite_micro.python.tflite_micro import runtime  # noqa: PLC0415 - the vendor's package

    content = Path(model_path).read_bytes()
    names_in, names_out, tensor_bytes = _declared(content)
    with np.load(input_path, allow_pickle=False) as arrays:
        data = dict(arrays)
    if set(data) != set(names_in):
        _refuse(f"The model's inputs are {_listed(names_in)}, not {_listed(data)}.")
    # The interpreter's own guess follows the weights; feature maps may be much larger.
    interpreter = runtime.Interpreter.from_bytes(content, arena_size=max(_LEAST_ARENA_BYTES, 2 * tensor_bytes))
    is_raw = "--raw" in words
    details = [interpreter.get_input_details(place) for place in range(len(names_in))]
    parts = [_parts(name, data[name], detail, is_raw=is_raw) for name, detail in zip(names_in, details, strict=True)]
    if len({len(each) for each in parts}) > 1:
        _refuse(f"The inputs hold different numbers of samples: {', '.join(str(len(each)) for each in parts)}.")
    answers: dict[str, list[np.ndarray]] = {name: [] for name in names_out}
    for sample in zip(*parts, strict=True):
        for place, array in enumerate(sample):
            interpreter.set_input(array, place)
        interpreter.invoke()
        for place, name in enumerate(names_out):
            array = np.array(interpreter.get_output(place))
            answers[name].append(array if is_raw else _as_float(array, interpreter.get_output_details(place)))
    write_npz(Path(output_path), {name: np.concatenate(arrays) for name, arrays in answers.items()})


def write_npz(path: Path, arrays: Mapping[str, np.ndarray]) -> None:
    """Write arrays; ``np.savez`` takes names as keywords and fails on one that is its own, such as ``file``."""
    with zipfile.ZipFile(path, "w") as archive:
        for name, array in arrays.items():
            with archive.open(f"{name}.npy", "w", force_zip64=True) as entry:
                np.lib.format.write_array(entry, np.asarray(array), allow_pickle=False)


def _declared(content: bytes) -> tuple[list[str], list[str], int]:
    """Return the names of inputs and outputs, which the interpreter does not tell, and the size of all tensors."""
    from ethosu.vela.tflite.Model import Model  # noqa: PLC0415 - the schema that comes with Vela

    graph = Model.GetRootAs(content, 0).Subgraphs(0)
    sizes = [graph.Tensors(place).ShapeAsNumpy() for place in range(graph.TensorsLength())]
    names = [
        [graph.Tensors(place).Name().decode() for place in places]
        for places in (graph.InputsAsNumpy(), graph.OutputsAsNumpy())
    ]
    return names[0], names[1], sum(4 * int(np.prod(size, dtype=np.int64)) for size in sizes)


def _parts(name: str, array: np.ndarray, detail: dict[str, Any], *, is_raw: bool) -> list[np.ndarray]:
    """Return the samples of one input as the model takes them."""
    shape, dtype = tuple(int(size) for size in detail["shape"]), np.dtype(detail["dtype"])
    if array.ndim != len(shape) or array.shape[1:] != shape[1:] or array.shape[0] % shape[0] or not array.size:
        _refuse(f"Input {name!r} has the shape {list(array.shape)}; the model takes {list(shape)}, or several of them.")
    if array.dtype != dtype and not is_raw and array.dtype.kind == "f" and dtype.kind in "iu":
        array = _as_integers(array, detail, dtype)
    elif array.dtype != dtype and not is_raw and array.dtype.kind == dtype.kind == "f":
        array = array.astype(dtype)
    if array.dtype != dtype:
        _refuse(f"Input {name!r} is {array.dtype}; the model takes {dtype}.")
    return np.split(np.ascontiguousarray(array), array.shape[0] // shape[0])


def _numbers(detail: dict[str, Any]) -> tuple[float, int] | None:
    given = detail["quantization_parameters"]
    return (float(given["scales"][0]), int(given["zero_points"][0])) if len(given["scales"]) == 1 else None


def _as_integers(array: np.ndarray, detail: dict[str, Any], dtype: np.dtype[Any]) -> np.ndarray:
    numbers, limits = _numbers(detail), np.iinfo(dtype)
    if numbers is None:
        return array
    return np.clip(np.round(array / numbers[0]) + numbers[1], limits.min, limits.max).astype(dtype)


def _as_float(array: np.ndarray, detail: dict[str, Any]) -> np.ndarray:
    numbers = _numbers(detail)
    if numbers is None or array.dtype.kind not in "iu":
        return array
    return ((array.astype(np.float32) - numbers[1]) * numbers[0]).astype(np.float32)


def _listed(names: object) -> str:
    return ", ".join(sorted(map(repr, names))) or "none"  # type: ignore[call-overload]


def _refuse(text: str) -> None:
    sys.stderr.write(f"{MARK}{text}\n")
    sys.exit(1)


if __name__ == "__main__":
    main(*sys.argv[1:])
