"""Folders as streams: what we pack comes out the same, what a board sends is not trusted."""

import hashlib
import io
import os
import tarfile
from pathlib import Path
from typing import TypeAlias

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from support.names import NAMES

from embedl_hub.core.device._tree import pack, remove, unpack
from embedl_hub.errors import TransferError

NAME = st.binary(min_size=1, max_size=60).map(lambda data: os.fsdecode(data.replace(b"\0", b"x").replace(b"/", b"_")))
NAME = NAME.filter(lambda name: name not in {".", ".."})


Member: TypeAlias = tuple[tarfile.TarInfo, bytes]


def entry(name: str, kind: bytes = tarfile.REGTYPE, aim: str = "", data: bytes = b"evil") -> Member:
    """Return one member of a made-up stream."""
    info = tarfile.TarInfo(name)
    info.type, info.linkname, info.mode = kind, aim, 0o755
    info.size = len(data) if kind == tarfile.REGTYPE else 0
    return info, data


def stream_of(*members: Member) -> io.BytesIO:
    """Return a tar stream that no honest tar would write."""
    stream = io.BytesIO()
    with tarfile.open(fileobj=stream, mode="w", format=tarfile.GNU_FORMAT) as archive:
        for info, data in members:
            archive.addfile(info, io.BytesIO(data) if info.size else None)
    stream.seek(0)
    return stream


@pytest.fixture
def target(tmp_path: Path) -> Path:
    """The new folder that a stream is unpacked into, with something worth keeping beside it."""
    (tmp_path / "secret").write_bytes(b"secret")
    (tmp_path / "target").mkdir()
    return tmp_path / "target"


def around(target: Path) -> dict[str, bytes]:
    """Return the files beside the target."""
    return {
        str(path.relative_to(target.parent)): path.read_bytes()
        for path in target.parent.rglob("*")
        if not path.is_relative_to(target) and path.is_file()
    }


# Another user may have left a file of any other name there.
OUTSIDE = f"/tmp/edgeproof-hostile-{os.getuid()}"
SYM, LNK, DIR = tarfile.SYMTYPE, tarfile.LNKTYPE, tarfile.DIRTYPE
HOSTILE = {
    "parent": [entry("../x")],
    "parent, below": [entry("a/../../x")],
    "parent, folder": [entry("../x", DIR)],
    "parent, dots only": [entry("..", DIR)],
    "absolute": [entry(OUTSIDE)],
    "no name": [entry("")],
    "link out": [entry("link", SYM, "../secret")],
    "link to the parent": [entry("link", SYM, "..")],
    "absolute link": [entry("link", SYM, "/etc/passwd")],
    "link out, below": [entry("a/b/link", SYM, "../../../secret")],
    "name under a link out": [entry("a", SYM, "."), entry("a/../../x")],
    "file through a link": [entry("sub", DIR), entry("link", SYM, "sub"), entry("link", SYM, "../x")],
    "link through links": [
        entry("a/b", DIR),
        entry("a/b/up", SYM, "../.."),
        entry("out", SYM, "a/b/up/../../secret"),
    ],
    "made through links": [
        entry("a/b", DIR),
        entry("a/b/up", SYM, "../.."),
        entry("out", SYM, "a/b/up/../.."),
        entry("out/planted", SYM, "a"),
    ],
    "hard link out": [entry("link", LNK, "../secret")],
    "absolute hard link": [entry("link", LNK, "/etc/passwd")],
    "hard link to nothing": [entry("link", LNK, "nothing")],
    "device": [entry("null", tarfile.CHRTYPE)],
    "block device": [entry("disk", tarfile.BLKTYPE)],
    "pipe": [entry("pipe", tarfile.FIFOTYPE)],
    "name twice": [entry("a"), entry("a", data=b"other")],
    "file as a folder": [entry("a"), entry("a/b")],
    "folder as a file": [entry("a", DIR), entry("a")],
}


@pytest.mark.parametrize("members", HOSTILE.values(), ids=HOSTILE)
def test_a_hostile_stream_is_refused(target: Path, members: list[Member]) -> None:
    """Nothing is written outside of the target, and the caller learns that something was wrong."""
    with pytest.raises((TransferError, OSError)):
        unpack(stream_of(entry("first"), *members), target)

    assert around(target) == {"secret": b"secret"}
    assert not Path(OUTSIDE).exists()
    assert not (target.parent / "planted").is_symlink()


@pytest.mark.parametrize(
    ("name", "says"),
    [
        ("parent", "the name '../x', which leads out of the target folder; refused"),
        ("absolute", f"the name '{OUTSIDE}', which leads out"),
        ("link out", "the link 'link' -> '../secret', which leads out"),
        ("link through links", "the link 'out' -> 'a/b/up/../../secret', which leads out"),
        ("hard link out", "the name '../secret', which leads out"),
        ("device", "'null', which is neither a file, a folder nor a link; refused"),
    ],
)
def test_a_refusal_names_what_was_sent(target: Path, name: str, says: str) -> None:
    """The name is shown as it came, safely quoted."""
    with pytest.raises(TransferError) as caught:
        unpack(stream_of(*HOSTILE[name]), target)

    assert says in str(caught.value)


def test_a_cut_off_stream_is_an_error(target: Path) -> None:
    """A stream that ends too early does not pass for a whole one."""
    whole = stream_of(entry("a", data=b"x" * 100_000)).getvalue()
    with pytest.raises(TransferError, match="ends in the middle of 'a'"):
        unpack(io.BytesIO(whole[:50_000]), target)
    with pytest.raises(TransferError, match="it ends too early"):
        unpack(io.BytesIO(whole[:300]), target)


def test_links_that_stay_inside_are_kept(target: Path) -> None:
    """To files and folders, up and down, even in circles or to nothing; they are no files of their own."""
    hashes = unpack(
        stream_of(
            entry("sub/file", data=b"data"),
            entry("to_file", SYM, "sub/file"),
            entry("to_folder", SYM, "sub"),
            entry("sub/up", SYM, "../to_file"),
            entry("loop", SYM, "."),
            entry("nothing", SYM, "gone"),
        ),
        target,
    )

    assert (target / "sub/up").read_bytes() == b"data"
    assert {path.name for path in target.rglob("*") if path.is_symlink()} >= {"to_file", "to_folder", "up", "loop"}
    assert hashes == [hashlib.sha256(b"data").hexdigest()]


@settings(max_examples=60, deadline=None, derandomize=True)
@given(names=st.lists(NAME, max_size=8, unique=True), executable=st.booleans())
def test_what_is_packed_comes_out_the_same(
    tmp_path_factory: pytest.TempPathFactory, names: list[str], executable: bool
) -> None:
    """Any names, contents, executable bits and empty folders."""
    base = tmp_path_factory.mktemp("tree")
    source, target = base / "source", base / "target"
    source.mkdir()
    target.mkdir()
    for name in names:
        (source / name).mkdir()
        (source / name / name).write_bytes(os.fsencode(name) * 3)
        (source / name / name).chmod(0o755 if executable else 0o600)
        (source / f"{name[:50]}.empty").mkdir(exist_ok=True)
    moved = 0

    def advance(count: int) -> None:
        nonlocal moved
        moved += count

    stream = io.BytesIO()
    pack(source, stream, advance)
    stream.seek(0)
    unpack(stream, target)

    def facts(folder: Path) -> dict[str, tuple[bytes, bool] | None]:
        return {
            str(path.relative_to(folder)): None if path.is_dir() else (path.read_bytes(), os.access(path, os.X_OK))
            for path in folder.rglob("*")
        }

    assert facts(target) == facts(source)
    assert moved == sum(len(os.fsencode(name)) * 3 for name in names)


def test_long_paths_are_packed(tmp_path: Path, target: Path) -> None:
    """Longer than the hundred bytes of the first tar, with every odd name on the way."""
    source = tmp_path / "source"
    folder = source.joinpath(*(["deep" * 20] * 4), "åäö" * 30)
    folder.mkdir(parents=True)
    for name in NAMES:
        (folder / name).write_bytes(b"x")
    stream = io.BytesIO()
    pack(source, stream, lambda _: None)
    stream.seek(0)
    unpack(stream, target)

    assert {path.name for path in target.rglob("*") if path.is_file()} == set(NAMES)


def test_leftovers_are_removed_whatever_they_are(tmp_path: Path) -> None:
    """Files, folders, links and nothing; a link's aim stays."""
    (tmp_path / "folder/sub").mkdir(parents=True)
    (tmp_path / "file").touch()
    (tmp_path / "kept").mkdir()
    (tmp_path / "link").symlink_to("kept")
    for name in ("folder", "file", "link", "nothing", "file/below"):
        remove(tmp_path / name)

    assert [path.name for path in tmp_path.iterdir()] == ["kept"]
