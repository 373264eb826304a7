"""Arrays in and out of files. Nothing is ever unpickled, and any tensor name is a valid key."""

from __future__ import annotations

import zipfile
from pathlib import Path
from typing import Dict, List, Tuple

import numpy as np

from embedl_device.errors import BoardError

Arrays = Dict[str, np.ndarray]


def load_samples(folder: Path) -> List[Tuple[str, Arrays]]:
    """Return the samples in a folder: each .npz is one, by its stem; else all .npy together are one."""
    if not folder.is_dir():
        raise BoardError("There is no input folder {}.".format(folder))
    archives = sorted(folder.glob("*.npz"))
    if archives:
        return [(path.stem, load_npz(path)) for path in archives]
    files = sorted(folder.glob("*.npy"))
    if not files:
        raise BoardError("The input folder {} holds no .npz or .npy file.".format(folder))
    return [("output", {path.stem: _load(path) for path in files})]


def load_npz(path: Path) -> Arrays:
    """Return the arrays of an .npz file."""
    try:
        with np.load(str(path), allow_pickle=False) as data:
            return {name: data[name] for name in data.files}
    except (OSError, ValueError, zipfile.BadZipFile) as error:
        raise BoardError("{} cannot be read as .npz: {}.".format(path, error)) from error


def save_npz(path: Path, arrays: Arrays) -> None:
    """Write arrays as .npz; unlike numpy's own function it takes any name, also ``file``."""
    with zipfile.ZipFile(str(path), "w", zipfile.ZIP_STORED, allowZip64=True) as archive:
        for name, array in arrays.items():
            with archive.open(name + ".npy", "w", force_zip64=True) as entry:
                np.lib.format.write_array(entry, np.asanyarray(array), allow_pickle=False)


def save_npy(folder: Path, arrays: Arrays) -> None:
    """Write one .npy per array, named after it."""
    for name, array in arrays.items():
        if "/" in name or name in ("", ".", ".."):
            raise BoardError("Output {!r} cannot be a file name; use --use-npz.".format(name))
        np.save(str(folder / (name + ".npy")), array, allow_pickle=False)


def _load(path: Path) -> np.ndarray:
    try:
        array = np.load(str(path), allow_pickle=False)
    except (OSError, ValueError) as error:
        raise BoardError("{} cannot be read as .npy: {}.".format(path, error)) from error
    return np.asarray(array)
