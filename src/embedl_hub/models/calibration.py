"""Arrays in files: a model's outputs, and calibration data. Nothing is ever unpickled, equal arrays give equal files.

Of calibration data, whatever its size, no more than one batch is in memory. A mapping or an .npz file holds arrays by
input name with samples on axis 0; an input without axes has one number per sample. A folder holds .npz files of that
kind; or one .npy per input, named after it; or, for a model with one input, .npy files of samples in any number.
"""

from __future__ import annotations

import contextlib
import zipfile
import zlib
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import IO, TYPE_CHECKING

import numpy as np

from embedl_device.readers import (
    Header,
    UnreadableError,
    array_entries,
    open_plain,
    open_zip,
    read_header,
    read_npy,
    read_npz,
    size_of,
)
from embedl_hub.errors import quoted_list
from embedl_hub.refusal import RefusedError

if TYPE_CHECKING:
    from embedl_hub.core.compile import CalibrationData
    from embedl_hub.models.onnx_file import Tensor

Sample = dict[str, np.ndarray]

_SAMPLE_BYTES = 1 << 16
_WORTH_IT = 0.8
_SUSPICIOUS = 1 / 32
_LARGE_BYTES = 64 << 20


def read_outputs(folder: Path) -> dict[str, np.ndarray]:
    """Return the arrays of all .npz files of a folder, else of its .npy files by their stems."""
    output: dict[str, np.ndarray] = {}
    try:
        for path in sorted(folder.glob("*.npz")):
            output.update(read_npz(path))
        if not output:
            output = {path.stem: read_npy(path) for path in sorted(folder.glob("*.npy"))}
    except (OSError, UnreadableError) as error:
        raise RefusedError(f"The device program's outputs cannot be read: {error}.") from error
    if not output:
        raise RefusedError("The device program wrote no outputs (.npz or .npy).")
    return output


def write_npz(path: Path, arrays: Mapping[str, np.ndarray]) -> None:
    """Write arrays as .npz; equal arrays give equal bytes, and any tensor name will do.

    An array is compressed where a part of it shows that this pays: measured floats hardly shrink, and take long.
    """
    with zipfile.ZipFile(path, "w", zipfile.ZIP_STORED, allowZip64=True) as archive:
        for name, array in arrays.items():
            plain = np.asarray(array)
            if plain.dtype == object:
                plain = plain.astype(np.str_)
            if plain.dtype.kind == "U" and not plain.dtype.itemsize:
                plain = plain.astype("<U1")  # readers refuse an item of no bytes
            info = zipfile.ZipInfo(f"{name}.npy", (1980, 1, 1, 0, 0, 0))
            sample = plain.reshape(-1)[: _SAMPLE_BYTES // max(1, plain.itemsize)].tobytes()
            share = len(zlib.compress(sample, 1)) / max(1, len(sample))
            # What is large and shrinks to next to nothing would be taken for an archive made to burst.
            if share < _WORTH_IT and (share > _SUSPICIOUS or plain.nbytes < _LARGE_BYTES):
                info.compress_type = zipfile.ZIP_DEFLATED
            with archive.open(info, "w", force_zip64=True) as entry:
                np.lib.format.write_array(entry, plain, allow_pickle=False)


@dataclass(frozen=True)
class _Part:
    """One array in a file; ``entry`` is its name in an archive."""

    file: Path
    entry: str | None = None

    def __str__(self) -> str:
        return f"{self.file.name}[{self.entry!r}]" if self.entry is not None else self.file.name

    @contextlib.contextmanager
    def open(self) -> Iterator[tuple[IO[bytes], Header]]:
        """Yield the numbers of the array, and what it is."""
        try:
            if self.entry is None:
                with open_plain(self.file) as stream:
                    yield stream, read_header(stream, size_of(stream))
            else:
                with open_zip(self.file) as archive:
                    entry = array_entries(archive)[self.entry]
                    with archive.open(entry) as stream:
                        yield stream, read_header(stream, entry.file_size)
        except (OSError, UnreadableError) as error:
            raise RefusedError(f"The calibration data {self.file} cannot be read: {error}.") from error


@dataclass(frozen=True)
class CalibrationSet:
    """Where the samples are, checked against the model's inputs: groups of parts by input name."""

    inputs: tuple[Tensor, ...]
    groups: tuple[dict[str, _Part], ...]
    count: int

    @property
    def batch(self) -> int:
        """How many samples the model takes at once."""
        sizes = [tensor.shape[0] for tensor in self.inputs if tensor.shape and isinstance(tensor.shape[0], int)]
        return max(sizes, default=1)

    def batches(self) -> Iterator[Sample]:
        """Yield what the model is to be run on; a rest that fills no batch is left out."""
        waiting: list[Sample] = []
        for sample in self._samples():
            waiting.append(sample)
            if len(waiting) == self.batch:
                scalars = {tensor.name for tensor in self.inputs if not tensor.shape}
                yield {
                    name: waiting[0][name] if name in scalars else np.stack([one[name] for one in waiting])
                    for name in waiting[0]
                }
                waiting = []

    def _samples(self) -> Iterator[Sample]:
        number = 0
        for group in self.groups:
            with contextlib.ExitStack() as stack:
                streams = {
                    tensor.name: _rows(stack.enter_context(group[tensor.name].open()), group[tensor.name], tensor)
                    for tensor in self.inputs
                }
                for rows in zip(*streams.values(), strict=True):
                    sample = dict(zip(streams, rows, strict=True))
                    _check_finite(sample, number, group)
                    number += 1
                    yield sample


def on_disk(data: CalibrationData | None, scratch: Path) -> Path:
    """Return the path of calibration data; arrays of this process are written down."""
    if not isinstance(data, Mapping):
        return Path(data or "").expanduser()
    path = scratch / "calibration.npz"
    write_npz(path, {name: np.asarray(array) for name, array in data.items()})
    return path


def open_calibration(path: Path, inputs: Sequence[Tensor]) -> CalibrationSet:
    """Find the samples and check every file's header; no sample is read yet."""
    groups = _groups(path, inputs)
    count = 0
    for group in groups:
        names = {tensor.name for tensor in inputs}
        if set(group) != names:
            raise RefusedError(
                f"The calibration data {path} has arrays for {quoted_list(group)}, the model's inputs are "
                f"{quoted_list(names)}."
            )
        counts = {str(part): _check_part(part, tensor) for tensor in inputs for part in (group[tensor.name],)}
        if len(set(counts.values())) != 1:
            raise RefusedError(f"The calibration data has different numbers of samples: {counts}.")
        count += next(iter(counts.values()))
    found = CalibrationSet(tuple(inputs), tuple(groups), count)
    if count < found.batch or count == 0:
        raise RefusedError(
            f"The calibration data {path} holds {count} samples; at least {max(1, found.batch)} are needed, "
            "some hundred are good."
        )
    return found


def _groups(path: Path, inputs: Sequence[Tensor]) -> list[dict[str, _Part]]:
    if path.is_file() and path.suffix == ".npz":
        return [_archive(path)]
    if not path.is_dir():
        what = f"{path} is no calibration data" if path.exists() else f"There is no calibration data {path}"
        raise RefusedError(f"{what}: give a folder of .npy or .npz files, or one .npz.")
    archives, files = sorted(path.glob("*.npz")), sorted(path.glob("*.npy"))
    if archives and files:
        raise RefusedError(f"The calibration folder {path} holds both .npz and .npy files; keep one kind.")
    if archives:
        return [_archive(file) for file in archives]
    if {file.stem for file in files} == {tensor.name for tensor in inputs}:
        return [{file.stem: _Part(file) for file in files}]
    if len(inputs) == 1:
        return [{inputs[0].name: _Part(file)} for file in files]
    if not files:
        return []
    raise RefusedError(
        f"The calibration folder {path} holds {quoted_list(file.name for file in files)}; a model with several inputs "
        f"needs one .npy per input ({quoted_list(tensor.name for tensor in inputs)}) or .npz files."
    )


def _archive(path: Path) -> dict[str, _Part]:
    try:
        with open_zip(path) as archive:
            return {name: _Part(path, name) for name in array_entries(archive)}
    except (OSError, UnreadableError) as error:
        raise RefusedError(f"The calibration data {path} is not an .npz file: {error}.") from error


def _check_part(part: _Part, tensor: Tensor) -> int:
    """Return how many samples an array holds, or refuse one that does not fit the input."""
    with part.open() as (_, header):
        shape, _, dtype = header
    # An input without axes, a setting, has one number per sample.
    own = shape[1:] if len(shape) == max(1, len(tensor.shape)) else shape
    if not shape or dtype.name != tensor.dtype or not tensor.takes(own, 1):
        raise RefusedError(
            f"The calibration data {part} is {dtype.name}{list(shape)}, but the input is {tensor}; "
            "samples are stacked on the first axis."
        )
    return shape[0] if len(shape) == max(1, len(tensor.shape)) else 1


def _rows(opened: tuple[IO[bytes], Header], part: _Part, tensor: Tensor) -> Iterator[np.ndarray]:
    """Yield an array's samples without loading the array."""
    stream, (shape, is_fortran, dtype) = opened
    is_single = len(shape) < len(tensor.shape)
    row = shape if is_single else shape[1:]
    size = int(np.prod(row, dtype=np.int64)) * dtype.itemsize
    if is_fortran and len(shape) > 1:
        # Samples are not contiguous in such a file; it has to be read whole.
        whole = np.frombuffer(stream.read(), dtype).reshape(shape, order="F")
        yield from ([whole] if is_single else whole)
        return
    for _ in range(1 if is_single else shape[0]):
        data = stream.read(size)
        if len(data) != size:
            raise RefusedError(f"The calibration data {part} ends early; the file was cut short.")
        yield np.frombuffer(data, dtype).reshape(row)


def _check_finite(sample: Mapping[str, np.ndarray], number: int, group: Mapping[str, _Part]) -> None:
    for name, array in sample.items():
        if array.dtype.kind == "f" and not np.isfinite(array).all():
            raise RefusedError(
                f"Sample {number} of the calibration data ({group[name]}) holds NaN or infinity in {name!r}; "
                "ranges cannot be found from it. Mend or drop it."
            )
