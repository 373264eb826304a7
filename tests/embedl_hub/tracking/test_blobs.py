"""Artifacts on disk, once per content."""

from __future__ import annotations

import hashlib
import os
import stat
from typing import TYPE_CHECKING

import pytest

from embedl_hub.errors import ConfigError, TrackingError
from embedl_hub.tracking._blobs import Blobs, describe, folder_content, walk_files

if TYPE_CHECKING:
    from pathlib import Path


@pytest.fixture
def blobs(tmp_path: Path) -> Blobs:
    return Blobs(tmp_path / "home" / "blobs", durable=True)


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    """A folder with nested files whose sorting by name and by folder differ."""
    folder = tmp_path / "model"
    (folder / "a" / "deep").mkdir(parents=True)
    (folder / "a" / "deep" / "weights.bin").write_bytes(b"weights")
    (folder / "a.onnx").write_bytes(b"graph")
    (folder / "copy.bin").write_bytes(b"weights")
    return folder


def stored(blobs: Blobs) -> set[str]:
    """Return the names of all stored contents, each checked against its name."""
    files = [path for path in blobs.path_of("").parent.rglob("*") if path.is_file()]
    for path in files:
        assert hashlib.sha256(path.read_bytes()).hexdigest() == path.name
    return {path.name for path in files}


def test_a_file_is_stored_under_its_hash_and_appears_at_its_target(blobs: Blobs, tmp_path: Path) -> None:
    """The target and the stored content are one file, read-only."""
    source, target = tmp_path / "m.onnx", tmp_path / "run" / "path" / "m.onnx"
    source.write_bytes(b"graph")
    content = blobs.add(source, target)
    assert (content.sha256, content.size_bytes) == (hashlib.sha256(b"graph").hexdigest(), 5)
    assert target.read_bytes() == b"graph"
    assert target.samefile(blobs.path_of(content.sha256))
    assert stat.S_IMODE(target.stat().st_mode) == 0o444
    assert source.stat().st_nlink == 1


def test_the_same_content_is_stored_once(blobs: Blobs, tmp_path: Path) -> None:
    """Two files with equal bytes share one content."""
    for number in range(3):
        (tmp_path / f"{number}").write_bytes(b"same")
        blobs.add(tmp_path / f"{number}", tmp_path / "run" / f"{number}")
    assert len(stored(blobs)) == 1
    assert (tmp_path / "run" / "0").stat().st_nlink == 4


def test_a_folder_keeps_its_files_and_shares_their_content(blobs: Blobs, folder: Path, tmp_path: Path) -> None:
    """Nested files appear under the target; equal ones are stored once; the description is the same as unstored."""
    target = tmp_path / "run" / "model"
    content = blobs.add(folder, target)
    assert [name for name, _, _ in content.files] == ["a.onnx", "a/deep/weights.bin", "copy.bin"]
    assert content == describe(folder) == describe(target)
    assert content.size_bytes == 19
    assert len(stored(blobs)) == 2


def test_an_empty_folder_is_a_content(blobs: Blobs, tmp_path: Path) -> None:
    """An empty folder has a hash, no size, and appears as an empty folder."""
    (tmp_path / "empty").mkdir()
    content = blobs.add(tmp_path / "empty", tmp_path / "run" / "empty")
    assert (content.is_folder, content.size_bytes, content.files) == (True, 0, ())
    assert list((tmp_path / "run" / "empty").iterdir()) == []


def test_an_empty_file_is_a_content(blobs: Blobs, tmp_path: Path) -> None:
    """No bytes are bytes too."""
    (tmp_path / "none").write_bytes(b"")
    assert blobs.add(tmp_path / "none", tmp_path / "run" / "none").size_bytes == 0
    assert (tmp_path / "run" / "none").read_bytes() == b""


def test_the_order_of_a_listing_does_not_matter() -> None:
    """A folder's hash depends on names and contents only."""
    one, two = ("a/x", "11", 1), ("a.b", "22", 2)
    assert folder_content((one, two)) == folder_content((two, one))


def test_a_name_moved_between_folders_changes_the_hash() -> None:
    """The same bytes under other names are another folder."""
    assert folder_content((("a/x", "11", 1),)).sha256 != folder_content((("b/x", "11", 1),)).sha256


def test_odd_file_names_are_kept(blobs: Blobs, tmp_path: Path) -> None:
    """Names with spaces, newlines, quotes, dashes, dollars, non-ASCII and bytes that are no text come through."""
    odd = [b"with space", b"new\nline", b"qu'ot\"e", b"-dash", b"$(touch x)", "grün 名".encode(), b"\xff\xfe.bin"]
    (tmp_path / "odd").mkdir()
    for name in odd:
        (tmp_path / "odd" / os.fsdecode(name)).write_bytes(name)
    blobs.add(tmp_path / "odd", tmp_path / "run" / "odd")
    assert {os.fsencode(path.name): path.read_bytes() for path in (tmp_path / "run" / "odd").iterdir()} == {
        name: name for name in odd
    }


def test_a_link_to_a_folder_beside_it_is_followed(folder: Path) -> None:
    """``latest`` next to what it points to is a second copy, not a loop."""
    (folder / "latest").symlink_to("a")
    assert [name for name, _ in walk_files(folder)][-1] == "latest/deep/weights.bin"


@pytest.mark.parametrize("points_to", [".", "..", "../../model"])
def test_a_link_loop_is_refused(blobs: Blobs, folder: Path, tmp_path: Path, points_to: str) -> None:
    """A folder that contains itself is named, with where the link leads."""
    (folder / "a" / "loop").symlink_to(points_to if points_to != "." else "../a")
    with pytest.raises(ConfigError, match=r"model/a/loop.*link back to .*no end"):
        blobs.add(folder, tmp_path / "run" / "model")


@pytest.mark.parametrize("points_to", ["nowhere", "dangling"])
def test_a_link_to_nothing_is_refused(blobs: Blobs, folder: Path, tmp_path: Path, points_to: str) -> None:
    """A dangling link, or one to itself, is named, with what to do."""
    (folder / "dangling").symlink_to(points_to)
    with pytest.raises(ConfigError, match=r"model/dangling leads nowhere .*remove the link"):
        blobs.add(folder, tmp_path / "run" / "model")


def test_a_pipe_is_refused_without_waiting_for_it(blobs: Blobs, folder: Path, tmp_path: Path) -> None:
    """A FIFO, by itself or inside a folder, is neither a file nor a folder."""
    os.mkfifo(folder / "pipe")
    for source in (folder, folder / "pipe"):
        with pytest.raises(ConfigError, match=r"model/pipe is neither a file nor a folder"):
            blobs.add(source, tmp_path / "run" / source.name)
    with pytest.raises(ConfigError, match="neither a file nor a folder"):
        describe(folder / "pipe")


def test_nothing_there_is_refused(blobs: Blobs, tmp_path: Path) -> None:
    """The message names the path that does not exist."""
    with pytest.raises(ConfigError, match=r"There is no file or folder .*absent\.onnx to log"):
        blobs.add(tmp_path / "absent.onnx", tmp_path / "run" / "x")


def test_a_second_attempt_never_writes_into_stored_content(blobs: Blobs, folder: Path, tmp_path: Path) -> None:
    """After a failed attempt, changed files are stored anew; what was stored before stays what it was."""
    target = tmp_path / "run" / "model"
    os.mkfifo(folder / "pipe")
    with pytest.raises(ConfigError):
        blobs.add(folder, target)
    (folder / "pipe").unlink()
    (folder / "a.onnx").write_bytes(b"another graph")
    content = blobs.add(folder, target)
    assert (target / "a.onnx").read_bytes() == b"another graph"
    assert describe(target) == content
    assert hashlib.sha256(b"graph").hexdigest() in stored(blobs)


def test_a_stored_content_that_was_cut_short_is_mended(blobs: Blobs, tmp_path: Path) -> None:
    """Storing the same bytes again replaces a content that lost its end."""
    source = tmp_path / "m"
    source.write_bytes(b"graph")
    content = blobs.add(source, tmp_path / "run" / "1")
    blob = blobs.path_of(content.sha256)
    blob.chmod(0o644)
    blob.write_bytes(b"")
    blobs.add(source, tmp_path / "run" / "2")
    assert blob.read_bytes() == b"graph"
    assert (tmp_path / "run" / "2").read_bytes() == b"graph"


def test_without_links_contents_are_copied(
    blobs: Blobs, folder: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """On a file system without hard links everything works, with two copies."""

    def refuse(*_: object) -> None:
        raise PermissionError(1, "no links here")

    monkeypatch.setattr(os, "link", refuse)
    target = tmp_path / "run" / "model"
    assert blobs.add(folder, target) == describe(target)
    before = (target / "a.onnx").read_bytes()
    blobs.adopt(target / "a.onnx")
    assert (target / "a.onnx").read_bytes() == before
    assert sorted(path.name for path in target.iterdir()) == ["a", "a.onnx", "copy.bin"]


def test_an_adopted_file_is_kept_once(blobs: Blobs, tmp_path: Path) -> None:
    """A file that came with a copied run folder becomes a link to its stored content."""
    path = tmp_path / "copied.bin"
    path.write_bytes(b"copied")
    blobs.adopt(path)
    assert path.samefile(blobs.path_of(hashlib.sha256(b"copied").hexdigest()))


def test_a_folder_that_holds_the_store_is_refused(blobs: Blobs, tmp_path: Path) -> None:
    """Logging the store into itself would have no end."""
    with pytest.raises(ConfigError, match="holds the store itself"):
        blobs.add(tmp_path, tmp_path / "home" / "runs" / "1" / "artifacts" / "x" / "x")


def test_a_file_where_the_store_should_be_is_a_clear_error(tmp_path: Path) -> None:
    """What the file system says is passed on, with the file, the store and the next step."""
    (tmp_path / "blocked").write_text("")
    (tmp_path / "m").write_bytes(b"graph")
    with pytest.raises(TrackingError, match=r"/m could not be stored in .*blocked.*has space"):
        Blobs(tmp_path / "blocked" / "blobs", durable=False).add(tmp_path / "m", tmp_path / "run" / "m")
    assert not list(tmp_path.rglob("incoming-*"))
