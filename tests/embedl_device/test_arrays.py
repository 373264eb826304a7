"""Arrays as files: whole or not at all."""

from pathlib import Path

import numpy as np
import pytest

from embedl_device.arrays import Tensor, base_of, check_feed, gather, made_up_feed, save_npy, spread
from embedl_device.errors import BoardError


def test_a_name_that_is_no_file_name_leaves_nothing_behind(tmp_path: Path) -> None:
    """Not the outputs before it, and no folder."""
    with pytest.raises(BoardError, match=r"'a/b' cannot be a file name; use --use-npz"):
        save_npy(tmp_path / "out", {"first": np.zeros(1), "a/b": np.zeros(1)})
    assert not (tmp_path / "out").exists()
    save_npy(tmp_path / "out", {"first": np.zeros(1)})
    assert [path.name for path in (tmp_path / "out").iterdir()] == ["first.npy"]


SEQUENCE = Tensor("x", "seq(tensor(float))", ())
MAYBE = Tensor("m", "optional(tensor(float))", ())
PLAIN = Tensor("a[0]", "float32", (1,))


def test_a_sequence_is_one_entry_an_element_and_comes_back_whole() -> None:
    """Names of plain tensors that look like an element's are their own; an optional input may be left out."""
    one, two = np.zeros(1, np.float32), np.ones((2, 2), np.float32)
    feed = spread({"x": [one, two], "m": None, "a[0]": one})
    assert list(feed) == ["x[0]", "x[1]", "a[0]"]
    check_feed([SEQUENCE, MAYBE, PLAIN], feed)
    back = gather([SEQUENCE, MAYBE, PLAIN], feed)
    assert back["x"][1] is two
    assert back["m"] is None
    assert back["a[0]"] is one
    assert gather([MAYBE], {"m": two})["m"] is two
    assert gather([SEQUENCE], {})["x"] == []
    assert base_of("y[12]") == ("y", 12)
    assert base_of("y[x]") == ("y[x]", None)


def test_a_sequence_with_a_gap_is_refused() -> None:
    """So are elements of what is no sequence, and data that nobody can make up."""
    with pytest.raises(BoardError, match=r"The elements of 'x' are not counted from 0"):
        gather([SEQUENCE], {"x[1]": np.zeros(1)})
    with pytest.raises(BoardError, match=r"'b\[0\]' is not an input"):
        check_feed([SEQUENCE, PLAIN], {"b[0]": np.zeros(1, np.float32), "a[0]": np.zeros(1, np.float32)})
    with pytest.raises(BoardError, match=r"x seq\(tensor\(float\)\) cannot be made up"):
        made_up_feed([SEQUENCE], {})
