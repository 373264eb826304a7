"""Where the store is."""

from __future__ import annotations

from pathlib import Path

import platformdirs
import pytest

from embedl_hub.tracking import find_home


@pytest.fixture(autouse=True)
def somewhere(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Stand in an empty folder without any setting."""
    monkeypatch.delenv("EMBEDL_HUB_HOME", raising=False)
    (tmp_path / "a" / "b").mkdir(parents=True)
    monkeypatch.chdir(tmp_path / "a" / "b")
    return tmp_path


def test_an_explicit_folder_comes_first(somewhere: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A folder given by the caller beats the environment and the project."""
    monkeypatch.setenv("EMBEDL_HUB_HOME", str(somewhere / "from-environment"))
    (somewhere / ".embedl").mkdir()
    assert find_home(somewhere / "mine") == somewhere / "mine"


def test_the_environment_beats_the_project(somewhere: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """EMBEDL_HUB_HOME comes before a .embedl folder."""
    (somewhere / ".embedl").mkdir()
    monkeypatch.setenv("EMBEDL_HUB_HOME", str(somewhere / "from-environment"))
    assert find_home() == somewhere / "from-environment"


def test_an_empty_variable_counts_as_unset(somewhere: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """EMBEDL_HUB_HOME= does not make the working folder a store."""
    (somewhere / ".embedl").mkdir()
    monkeypatch.setenv("EMBEDL_HUB_HOME", "")
    assert find_home() == somewhere / ".embedl"


def test_the_nearest_project_folder_is_found_from_below(somewhere: Path) -> None:
    """The search for .embedl goes up and stops at the first."""
    (somewhere / ".embedl").mkdir()
    assert find_home() == somewhere / ".embedl"
    (somewhere / "a" / ".embedl").mkdir()
    assert find_home() == somewhere / "a" / ".embedl"


def test_a_file_named_like_the_project_folder_is_passed_over(somewhere: Path) -> None:
    """Only a folder is a store."""
    (somewhere / ".embedl").mkdir()
    (somewhere / "a" / ".embedl").write_text("")
    assert find_home() == somewhere / ".embedl"


def test_the_user_folder_comes_last(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Without any setting the store is in the user's data folder, and nothing is created."""
    monkeypatch.setenv("XDG_DATA_HOME", str(tmp_path / "data"))
    assert find_home() == Path(platformdirs.user_data_dir("edgeproof"))
    assert not find_home().exists()


def test_relative_and_tilde_paths_become_absolute(somewhere: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A later change of the working folder does not move the store."""
    monkeypatch.setenv("HOME", str(somewhere / "me"))
    assert find_home("runs") == somewhere / "a" / "b" / "runs"
    assert find_home("~/runs") == somewhere / "me" / "runs"
    monkeypatch.setenv("EMBEDL_HUB_HOME", "~/other")
    assert find_home() == somewhere / "me" / "other"
