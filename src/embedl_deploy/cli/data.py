"""Batches from .npy and .npz files."""

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path

import numpy as np

from embedl_deploy.errors import CalibrationError, InputError
from embedl_device.readers import UnreadableError, read_arrays

Batch = tuple[np.ndarray, ...] | dict[str, np.ndarray]


def batches(path: Path) -> Iterator[Batch]:
    """Yield the batches of a file or of the files in a folder, in the order of their names."""
    for file in _files(path):
        yield _read(file)


@contextmanager
def naming_files(path: Path | None) -> Iterator[None]:
    """Have an error that is about one of the batches of `path` say which file that is."""
    try:
        yield
    except CalibrationError as error:
        files = [] if error.batch is None or path is None else _files(path)
        if error.batch is None or not 0 < error.batch <= len(files):
            raise
        words = f"{str(files[error.batch - 1])!r}: {error}"
        raise CalibrationError(words, place=error.place, batch=error.batch) from error


def _files(path: Path) -> list[Path]:
    if path.is_file():
        return [path]
    if not path.is_dir():
        raise InputError(f"There is no data at {str(path)!r}; give a .npy or .npz file, or a folder of them.")
    found = sorted(file for file in path.iterdir() if file.suffix in (".npy", ".npz"))
    if not found:
        raise InputError(f"The folder {str(path)!r} has no .npy and no .npz file.")
    return found


def _read(path: Path) -> Batch:
    try:
        arrays = read_arrays(path)
    except (OSError, UnreadableError) as exc:
        raise InputError(f"{str(path)!r} cannot be read as .npy or .npz: {exc}") from exc
    if not isinstance(arrays, dict):
        return (arrays,)
    if arrays and all(name == f"arr_{index}" for index, name in enumerate(arrays)):
        return tuple(arrays.values())
    return arrays


def by_name(batch: Batch, names: list[str]) -> dict[str, np.ndarray]:
    """Return a batch with the names of a file's inputs."""
    if isinstance(batch, dict):
        return batch
    if len(batch) != len(names):
        raise InputError(f"A batch has {len(batch)} arrays; the file has the inputs {names}.")
    return dict(zip(names, batch, strict=True))


def read_labels(path: Path, sizes: Sequence[int]) -> list[np.ndarray]:
    """Read the classes of all samples and cut them into batches of these sizes."""
    try:
        classes = read_arrays(path)
    except (OSError, UnreadableError) as exc:
        raise InputError(f"{str(path)!r} cannot be read as .npy: {exc}") from exc
    if isinstance(classes, dict) or classes.shape != (sum(sizes),):
        shape = "several arrays" if isinstance(classes, dict) else f"the shape {list(classes.shape)}"
        raise InputError(f"The labels {path.name!r} have {shape}; give one class for each of the {sum(sizes)} samples.")
    ends = [sum(sizes[: index + 1]) for index in range(len(sizes))]
    return [classes[end - size : end] for size, end in zip(sizes, ends, strict=True)]
