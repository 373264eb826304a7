"""How good answers are, in counts that add up."""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from embedl_hub.errors import ConfigError
from embedl_hub.fleet import Score, score
from embedl_hub.fleet._evaluate import _agreement, read_labels
from embedl_hub.testing import temporary_context

if TYPE_CHECKING:
    from pathlib import Path


@given(
    st.lists(st.tuples(st.integers(0, 3), st.integers(0, 3)), min_size=1, max_size=30),
    st.integers(0, 30),
)
def test_scores_of_parts_add_up_to_that_of_the_whole(pairs: list[tuple[int, int]], cut: int) -> None:
    """Wherever the data is cut."""
    answers = np.eye(4)[[answer for answer, _ in pairs]]
    labels = np.array([label for _, label in pairs])
    whole = score({"y": answers}, labels)
    assert whole == Score(sum(answer == label for answer, label in pairs), len(pairs))
    parts = [score({"y": answers[part]}, labels[part]) for part in (slice(cut), slice(cut, None))]
    assert parts[0] + parts[1] == whole
    assert whole.accuracy == whole.right / len(pairs)


def test_labels_that_do_not_fit_are_refused() -> None:
    """With both shapes, and the one that would fit."""
    with pytest.raises(ConfigError, match=r"shape \[2, 4\] and the labels \[3\].*\[2\]"):
        score({"y": np.zeros((2, 4))}, np.zeros(3))
    with pytest.raises(ConfigError, match="no outputs"):
        score({}, np.zeros(3))
    assert np.isnan(Score().accuracy)


def test_one_output_is_compared_whatever_the_files_call_it() -> None:
    """Files of one model for two runtimes may name it apart; several outputs go by name, and that is said."""
    answers = np.eye(3)
    with temporary_context() as ctx:
        with ctx.client.start_run("EVAL", "evaluate") as run:
            found = _agreement(run, {"y": answers}, {"scores": answers})
            assert found == pytest.approx({"cosine": 1.0, "max_abs_error": 0.0, "top1_agreement": 1.0})
            assert _agreement(run, {"y": answers, "z": answers}, {"a": answers, "b": answers}) == {}
        assert ctx.client.store is not None
        said = ctx.client.store.run(run.id).params["not_compared"].value
    assert "Outputs 'y', 'z' cannot be compared with 'a', 'b'" in str(said)


def test_labels_are_one_array_in_either_format(tmp_path: Path) -> None:
    """An .npz with two is refused by name, and so is what is no array."""
    np.save(tmp_path / "a.npy", [1, 2])
    np.savez(tmp_path / "a.npz", y=[1, 2])
    assert read_labels(tmp_path / "a.npy").tolist() == read_labels(tmp_path / "a.npz").tolist() == [1, 2]
    np.savez(tmp_path / "b.npz", y=[1], z=[2])
    with pytest.raises(ConfigError, match="holds 'y', 'z'"):
        read_labels(tmp_path / "b.npz")
    (tmp_path / "c.npy").write_text("1, 2")
    with pytest.raises(ConfigError, match=r"c.npy cannot be read"):
        read_labels(tmp_path / "c.npy")
