"""Arrays as files: whole or not at all."""

from pathlib import Path

import numpy as np
import pytest

from embedl_device.arrays import save_npy
from embedl_device.errors import BoardError


def test_a_name_that_is_no_file_name_leaves_nothing_behind(tmp_path: Path) -> None:
    """Not the outputs before it, and no folder."""
    with pytest.raises(BoardError, match=r"'a/b' cannot be a file name; use --use-npz"):
        save_npy(tmp_path / "out", {"first": np.zeros(1), "a/b": np.zeros(1)})
    assert not (tmp_path / "out").exists()
    save_npy(tmp_path / "out", {"first": np.zeros(1)})
    assert [path.name for path in (tmp_path / "out").iterdir()] == ["first.npy"]
