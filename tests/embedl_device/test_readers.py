"""Hostile files of every format that is read within bounds: each is refused in one line, with little memory."""

from __future__ import annotations

import io
import json
import os
import struct
import subprocess
import sys
import zipfile
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest

from embedl_device.readers import (
    UnreadableError,
    check_pieces,
    find_piece,
    parse_json,
    read_arrays,
    read_json,
    read_npy,
    read_npz,
    read_piece,
)


def header(descr: str, shape: str, *, data: bytes = b"", more: str = "") -> bytes:
    """Return an array's file with a header of one's own."""
    text = f"{{'descr': {descr}, 'fortran_order': False, 'shape': {shape}{more}}}\n".encode()
    return b"\x93NUMPY\x01\x00" + struct.pack("<H", len(text)) + text + data


def zipped(entries: dict[str, bytes], kind: int = zipfile.ZIP_STORED) -> bytes:
    target = io.BytesIO()
    with zipfile.ZipFile(target, "w", kind) as archive:
        for name, content in entries.items():
            archive.writestr(name, content)
    return target.getvalue()


def overlapping() -> bytes:
    """Return an archive whose entries all have the same numbers."""
    target = io.BytesIO()
    with zipfile.ZipFile(target, "w", zipfile.ZIP_DEFLATED) as archive:
        archive.writestr("a.npy", header("'<f4'", "(4,)", data=bytes(16)))
        first = archive.filelist[0]
        for number in range(3):
            again = zipfile.ZipInfo(f"b{number}.npy")
            for name in ("CRC", "compress_size", "file_size", "header_offset", "compress_type", "flag_bits"):
                setattr(again, name, getattr(first, name))
            archive.filelist.append(again)
            archive.NameToInfo[again.filename] = again
        archive._didModify = True  # type: ignore[attr-defined]
    return target.getvalue()


def encrypted() -> bytes:
    content = bytearray(zipped({"a.npy": header("'<f4'", "(1,)", data=bytes(4))}))
    content[6] |= 1
    content[content.index(b"PK\x01\x02") + 8] |= 1
    return bytes(content)


ARRAYS: dict[str, tuple[bytes, str]] = {
    "objects": (header("'|O'", "(1,)", data=bytes(8)), "Python objects, which are never unpickled"),
    "negative": (header("'<f4'", "(-1,)"), "its shape is"),
    "overflow": (header("'<f4'", f"({2**62}, {2**62})", data=bytes(16)), "and it holds 16"),
    "beyond": (header("'<f4'", f"({2**70},)"), "its shape is"),
    "not whole": (header("'<f4'", "(1.0,)"), "its shape is"),
    "many axes": (header("'<f4'", str((1,) * 33)), "its shape is"),
    "no size": (header("'V0'", "(9999999999,)"), "of the type"),
    "long text": (header("'<U999999999'", "(1,)"), "not understood|and it holds 0"),
    "structure": (header("[('a', '<f4')]", "(1,)", data=bytes(4)), "of the type"),
    "no type": (header("'nonsense'", "(1,)"), "not understood"),
    "code": (header("__import__('os')", "(1,)"), "malformed"),
    "more keys": (header("'<f4'", "()", more=", 'x': 1"), "none of a NumPy array"),
    "deep": (header("'<f4'", "(" * 4000), "nested|malformed|too many"),
    "long header": (b"\x93NUMPY\x02\x00" + struct.pack("<I", 2**31), "its header has 2147483648 bytes"),
    "version": (b"\x93NUMPY\x09\x00" + bytes(20), "version 9"),
    "short": (header("'<f4'", "(9,)", data=bytes(35)), "are 36 bytes and it holds 35"),
    "long": (header("'<f4'", "(9,)", data=bytes(37)), "are 36 bytes and it holds 37"),
}


@pytest.mark.parametrize("name", ARRAYS)
def test_an_array_that_is_none_is_refused(name: str, tmp_path: Path) -> None:
    """In a file of its own, and in an archive, compressed or not."""
    content, words = ARRAYS[name]
    (tmp_path / "x.npy").write_bytes(content)
    with pytest.raises(UnreadableError, match=words) as caught:
        read_npy(tmp_path / "x.npy")
    assert "\n" not in str(caught.value)
    for kind in (zipfile.ZIP_STORED, zipfile.ZIP_DEFLATED):
        (tmp_path / "x.npz").write_bytes(zipped({"x.npy": content}, kind))
        with pytest.raises(UnreadableError):
            read_npz(tmp_path / "x.npz")


@pytest.mark.parametrize(
    ("make", "words"),
    [
        (lambda: zipped({"x.npy": header("'<f4'", "(75000000,)", data=bytes(300_000_000))}, zipfile.ZIP_DEFLATED),
         "would become 3000000.*without compression"),
        (overlapping, "lies upon another entry"),
        (encrypted, "is encrypted"),
        (lambda: zipped({"x.npy": header("'<f4'", "()", data=bytes(4))}, zipfile.ZIP_LZMA), "compressed in a way"),
        (lambda: zipped({"readme.txt": b"x"}), "is no array"),
        (lambda: zipped({f"{number:01000d}.npy": b"" for number in range(5000)}), "list of contents is too long"),
        (lambda: b"", "zip"),
    ],
    ids=["bomb", "overlapping", "encrypted", "lzma", "other", "many", "empty"],
)  # fmt: skip
def test_an_archive_that_is_none_is_refused(make: Callable[[], bytes], words: str, tmp_path: Path) -> None:
    """Bombs, tricks with the list of contents, and what numpy does not write."""
    (tmp_path / "x.npz").write_bytes(make())
    with pytest.raises(UnreadableError, match=words):
        read_npz(tmp_path / "x.npz")


def test_two_entries_of_one_name_are_refused(tmp_path: Path) -> None:
    """Readers would disagree on which counts."""
    with zipfile.ZipFile(tmp_path / "x.npz", "w") as archive:
        archive.writestr("x.npy", header("'<f4'", "()", data=bytes(4)))
        with pytest.warns(UserWarning, match="Duplicate"):
            archive.writestr("x.npy", header("'<f8'", "()", data=bytes(8)))
    with pytest.raises(UnreadableError, match=r"holds 'x\.npy' twice"):
        read_npz(tmp_path / "x.npz")


def test_a_bomb_takes_no_memory(tmp_path: Path) -> None:
    """Its 300 MB are refused before a byte of them is made."""
    content = header("'<f4'", "(75000000,)", data=bytes(300_000_000))
    (tmp_path / "x.npz").write_bytes(zipped({"x.npy": content}, zipfile.ZIP_DEFLATED))
    code = (
        "import resource, sys\nfrom embedl_device.readers import read_npz\nimport numpy\n"
        "before = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss\n"
        "try:\n    read_npz(sys.argv[1])\nexcept ValueError as error:\n    print(error)\n"
        "print((resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - before) // 1024)\n"
    )
    done = subprocess.run(
        [sys.executable, "-c", code, tmp_path / "x.npz"], capture_output=True, text=True, check=True, timeout=60
    )
    words, grown = done.stdout.splitlines()
    assert "would become" in words
    assert int(grown) < 32


@pytest.mark.parametrize(
    "array",
    [
        np.arange(6, dtype=np.float32).reshape(2, 3), np.asfortranarray(np.arange(6).reshape(2, 3)), np.array(2.5),
        np.zeros((0, 3)), np.array(["a", "bc"]), np.array([True]), np.arange(3, dtype=">i2"), np.ones(2, np.complex64),
        np.array(["2020-01-01"], "datetime64[D]"), np.ones((300, 300, 4), np.float64),
    ],
    ids=lambda array: f"{array.dtype}{array.shape}",
)  # fmt: skip
def test_what_numpy_writes_is_read(array: np.ndarray, tmp_path: Path) -> None:
    """Types, orders and shapes stay, and arrays can be written to."""
    np.save(tmp_path / "x.npy", array)
    np.savez_compressed(tmp_path / "x.npz", a=array, b=array)
    for found in (read_npy(tmp_path / "x.npy"), read_npz(tmp_path / "x.npz")["b"], read_arrays(tmp_path / "x.npy")):
        np.testing.assert_array_equal(found, array)
        assert isinstance(found, np.ndarray)
        assert found.dtype == array.dtype
        assert found.flags.writeable


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ("[" * 100_000, "nested too deeply"),
        ('{"a":' * 100_000, "nested too deeply"),
        ("9" * 5000, "Exceeds the limit"),
        ("[" + "{}," * 2_000_000 + "{}]", "too many values"),
        ("[" + "0," * 8_000_000 + "0]", "too many values"),
        (" " * (65 << 20), "at most"),
        ('{"a": ', "Expecting value"),
        ("\udcff", "Expecting value"),
        (b"\xff\xfe\xfd", "codec"),
    ],
    ids=["lists", "objects", "number", "many objects", "many numbers", "long", "short", "surrogate", "bytes"],
)
def test_a_document_that_bursts_is_refused(text: str | bytes, words: str) -> None:
    """Before anything is made of it, where its size tells."""
    with pytest.raises(UnreadableError, match=words) as caught:
        parse_json(text)
    assert "\n" not in str(caught.value)


@pytest.mark.parametrize("read", [read_json, read_npy, read_npz, read_arrays])
def test_only_plain_files_are_read(read: Callable[[Path], object], tmp_path: Path) -> None:
    """A pipe would make the reader wait, a device has no end."""
    os.mkfifo(tmp_path / "pipe")
    (tmp_path / "link").symlink_to("/dev/zero")
    for place in (tmp_path / "pipe", tmp_path / "link", tmp_path):
        with pytest.raises((UnreadableError, OSError), match=r"no plain file|Is a directory"):
            read(place)
    with pytest.raises(FileNotFoundError):
        read(tmp_path / "none")


def test_a_large_document_is_read(tmp_path: Path) -> None:
    """As many samples as half a minute can have."""
    (tmp_path / "x.json").write_text(json.dumps({"samples_us": [1.25] * 1_000_000}))
    assert len(read_json(tmp_path / "x.json")["samples_us"]) == 1_000_000


@pytest.fixture
def model_folder(tmp_path: Path) -> Path:
    folder = tmp_path / "model"
    folder.mkdir()
    (folder / "w.bin").write_bytes(bytes(range(64)))
    (tmp_path / "secret").write_bytes(b"secret")
    (folder / "out").symlink_to("../secret")
    (folder / "up").symlink_to("..")
    (folder / "zero").symlink_to("/dev/zero")
    (folder / "environ").symlink_to("/proc/self/environ")
    (folder / "again").symlink_to("w.bin")
    os.mkfifo(folder / "pipe")
    return folder


@pytest.mark.parametrize(
    ("facts", "words"),
    [
        ({"location": "../secret"}, "outside the model's folder"),
        ({"location": "/etc/passwd"}, "outside the model's folder"),
        ({"location": "/proc/self/environ"}, "outside the model's folder"),
        ({"location": "a\\b"}, "outside the model's folder"),
        ({"location": "a\0b"}, "outside the model's folder"),
        ({"location": ""}, "outside the model's folder"),
        ({}, "outside the model's folder"),
        ({"location": "out"}, "a link out"),
        ({"location": "up/secret"}, "a link out"),
        ({"location": "zero"}, "a link out"),
        ({"location": "environ"}, "a link out"),
        ({"location": "pipe"}, "no plain file"),
        ({"location": "."}, "a link out|no plain file|there is no"),
        ({"location": "none"}, "copy it beside the model"),
        ({"location": "x" * 5000}, "copy it beside the model"),
        ({"location": "w.bin", "offset": "-1"}, "its offset is '-1'"),
        ({"location": "w.bin", "offset": "abc"}, "its offset is 'abc'"),
        ({"location": "w.bin", "offset": "9" * 30}, "its offset is"),
        ({"location": "w.bin", "offset": "\u0663"}, "its offset is"),
        ({"location": "w.bin", "length": "1e3"}, "its length is '1e3'"),
        ({"location": "w.bin", "offset": "60"}, "ends before byte 76"),
        ({"location": "w.bin", "offset": "999999999999"}, "ends before byte"),
        ({"location": "w.bin", "length": "999999999999"}, "ends before byte"),
        ({"location": "w.bin", "length": "8"}, "takes 16 bytes and 8 are given"),
    ],
)
def test_weights_come_from_inside_the_folder(model_folder: Path, facts: dict[str, str], words: str) -> None:
    """Whatever the model says of the place."""
    with pytest.raises(UnreadableError, match=words) as caught:
        find_piece(model_folder, facts, 16)
    assert "\n" not in str(caught.value)


def test_good_weights_are_read(model_folder: Path) -> None:
    """Also through a link inside the folder, and to the end where no length is given."""
    assert read_piece(find_piece(model_folder, {"location": "w.bin", "offset": "8"}, 4)) == bytes(range(8, 12))
    assert len(read_piece(find_piece(model_folder, {"location": "./again", "offset": "60"}, None))) == 4


def test_weights_read_too_often_are_refused(model_folder: Path) -> None:
    """A thousand tensors of one large file would take a thousand times its memory; some may share."""
    with (model_folder / "w.bin").open("wb") as file:
        file.truncate(100 << 20)
    piece = find_piece(model_folder, {"location": "w.bin"}, None)
    check_pieces([piece, piece])
    with pytest.raises(UnreadableError, match="would become"):
        check_pieces([piece] * 1000)
