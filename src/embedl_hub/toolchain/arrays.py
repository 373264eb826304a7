"""Arrays in files: nothing is ever unpickled, equal arrays give equal files."""

from __future__ import annotations

import zipfile
from typing import TYPE_CHECKING

import numpy as np

from embedl_hub.toolchain.refusal import RefusedError

if TYPE_CHECKING:
    from collections.abc import Mapping
    from pathlib import Path


def read_outputs(folder: Path) -> dict[str, np.ndarray]:
    """Return the arrays of all .npz files of a folder, else of its .npy files by their stems."""
    output: dict[str, np.ndarray] = {}
    try:
        for path in sorted(folder.glob("*.npz")):
            with np.load(path, allow_pickle=False) as arrays:
                output.update({name: arrays[name] for name in arrays.files})
        if not output:
            output = {path.stem: np.load(path, allow_pickle=False) for path in sorted(folder.glob("*.npy"))}
    except (OSError, ValueError, zipfile.BadZipFile) as error:
        raise RefusedError(f"The device program's outputs cannot be read: {error}.") from error
    if not output:
        raise RefusedError("The device program wrote no outputs (.npz or .npy).")
    return output


def write_npz(path: Path, arrays: Mapping[str, np.ndarray]) -> None:
    """Write arrays as .npz; equal arrays give equal bytes, and any tensor name will do."""
    with zipfile.ZipFile(path, "w", zipfile.ZIP_STORED, allowZip64=True) as archive:
        for name, array in arrays.items():
            info = zipfile.ZipInfo(f"{name}.npy", (1980, 1, 1, 0, 0, 0))
            with archive.open(info, "w", force_zip64=True) as entry:
                plain = np.asarray(array)
                if plain.dtype == object:
                    plain = plain.astype(np.str_)
                np.lib.format.write_array(entry, plain, allow_pickle=False)
