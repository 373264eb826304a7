"""Where the store is."""

from __future__ import annotations

import json
import os
from pathlib import Path
from typing import Any

import platformdirs
import pytest
from support import cli

from embedl_hub.tracking import Store, find_home


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


def test_a_new_store_is_its_owners_alone(tmp_path: Path) -> None:
    """Whatever the umask lets through; one that is there stays as its owner made it."""
    umask = os.umask(0o022)
    try:
        with Store(tmp_path / "deep" / "home"):
            pass
        (tmp_path / "shared").mkdir(mode=0o755)
        with Store(tmp_path / "shared"):
            pass
    finally:
        os.umask(umask)
    assert (tmp_path / "deep" / "home").stat().st_mode & 0o777 == 0o700
    assert (tmp_path / "shared").stat().st_mode & 0o777 == 0o755


def test_doctor_names_a_store_that_is_open_to_others(tmp_path: Path) -> None:
    """With the line that closes it; not as a failure, since it may be meant."""
    home = tmp_path / "open store"
    with Store(home):
        pass
    assert "private store" not in [result["title"] for result in _doctor(home)]
    home.chmod(0o755)
    (found,) = [result for result in _doctor(home) if result["title"] == "private store"]
    assert found["is_ok"] is None
    assert "(mode 755)" in found["message"]
    assert found["advice"].startswith(f"chmod go= '{home}'")


def _doctor(home: Path) -> list[dict[str, Any]]:
    done = cli.hub("doctor", "--home", home, "--json")
    results: list[dict[str, Any]] = json.loads(done.stdout)
    return results
