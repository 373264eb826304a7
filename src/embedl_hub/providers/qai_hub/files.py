"""Arrays and archives as the vendor's client gives and takes them."""

from __future__ import annotations

import shutil
import zipfile
from pathlib import Path, PurePosixPath
from typing import TYPE_CHECKING, Any

import numpy as np

from embedl_hub.toolchain.calibration import on_disk, open_calibration
from embedl_hub.toolchain.model import check_data
from embedl_hub.toolchain.refusal import RefusedError

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from embedl_hub.core.compile import CalibrationData
    from embedl_hub.toolchain.model import Tensor

Entries = dict[str, list[np.ndarray]]


def calibration_entries(data: CalibrationData, inputs: Sequence[Tensor], scratch: Path) -> Entries:
    """Return calibration data as lists of batches; the vendor's client wants them all at once."""
    path = on_disk(data, scratch)
    entries: Entries = {tensor.name: [] for tensor in inputs}
    for batch in open_calibration(path, inputs).batches():
        for name, array in batch.items():
            entries[name].append(array)
    return entries


def data_entries(data: Mapping[str, np.ndarray], inputs: Sequence[Tensor]) -> Entries:
    """Return checked data as lists of what the model takes at once, in the order of its inputs."""
    check_data(inputs, data, "input_data")
    entries: Entries = {}
    for tensor in inputs:
        array = np.asarray(data[tensor.name])
        first = tensor.shape[0] if tensor.shape else None
        pieces = array.shape[0] // first if isinstance(first, int) else 1
        entries[tensor.name] = list(np.split(array, pieces)) if pieces > 1 else [array]
    return entries


def joined(answer: Mapping[str, object]) -> dict[str, np.ndarray]:
    """Return outputs as one array each, batches one after the other."""
    output = {}
    for name, parts in answer.items():
        arrays = [np.asarray(part) for part in parts] if isinstance(parts, list) else [np.asarray(parts)]
        output[name] = np.concatenate(arrays) if len(arrays) > 1 else arrays[0]
    return output


def unpacked(fetched: Path, target: Path) -> Path:
    """Return a downloaded model at its place: a file, or a folder when it came as an archive."""
    if not zipfile.is_zipfile(fetched):
        shutil.move(fetched, target)
        return target
    folder = target.with_suffix("")
    with zipfile.ZipFile(fetched) as archive:
        for entry in archive.infolist():
            name = PurePosixPath(entry.filename)
            if name.is_absolute() or ".." in name.parts:
                raise RefusedError(f"The compiled model's archive holds {entry.filename!r}, which leads out of it.")
            if entry.is_dir():
                continue
            # Archives hold the model in one folder, which is no part of it.
            place = folder / (PurePosixPath(*name.parts[1:]) if len(name.parts) > 1 else name)
            place.parent.mkdir(parents=True, exist_ok=True)
            with archive.open(entry) as source, place.open("wb") as copy:
                shutil.copyfileobj(source, copy)
    return folder


def input_specs(inputs: Sequence[Tensor]) -> dict[str, tuple[tuple[Any, ...], str]]:
    """Return shapes and types as the vendor wants them, or refuse an open one."""
    for tensor in inputs:
        if not tensor.is_fixed:
            raise RefusedError(f"Input {tensor} has no fixed shape, which Qualcomm AI Hub needs; give input_shape.")
    return {tensor.name: (tensor.shape, tensor.dtype) for tensor in inputs}


def renamed(before: Sequence[Tensor], after: Sequence[Tensor]) -> dict[str, str]:
    """Return the compiled names by the original ones, where a name changed; the order of tensors stays."""
    if len(before) != len(after):
        raise RefusedError(
            f"The compiled model has the tensors {[tensor.name for tensor in after]}, the original "
            f"{[tensor.name for tensor in before]}; they cannot be matched."
        )
    pairs = {one.name: two.name for one, two in zip(before, after, strict=True)}
    return pairs if any(one != two for one, two in pairs.items()) else {}
