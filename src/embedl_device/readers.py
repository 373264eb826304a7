"""Files that strangers made, read within bounds: JSON, NumPy arrays, archives, a model's weights beside it.

Each reader returns plain data or raises one error, ``UnreadableError``, whose text says why in one line; a file that is
not there, or may not be read, is the system's own ``OSError``. Only plain files are opened, so that none can make a
reader wait. Nothing is unpickled, and nothing takes much more memory than the file has bytes.
"""

from __future__ import annotations

import ast
import contextlib
import io
import json
import math
import os
import stat
import struct
import zipfile
import zlib
from pathlib import Path, PurePosixPath
from typing import IO, TYPE_CHECKING, Any, Dict, Iterator, List, Mapping, NamedTuple, Optional, Sequence, Tuple, Union

if TYPE_CHECKING:
    import numpy as np

PathLike = Union[str, "os.PathLike[str]"]

MOST_DOCUMENT_BYTES = 64 << 20
# What Python makes of a document: an object, a list and an item take about so many bytes.
_MOST_MEMORY_BYTES = 192 << 20
_OBJECT_BYTES, _LIST_BYTES, _ITEM_BYTES = 200, 64, 32
# Zeros shrink a thousandfold; measured numbers hardly. What is small may grow as it likes.
_MOST_GROWTH = 64
_MOST_GROWN_BYTES = 128 << 20
_MOST_DIRECTORY_BYTES = 4 << 20
_MOST_HEADER_BYTES = 10_000
_MOST_AXES = 32
_CHUNK_BYTES = 1 << 20
_MAGIC = b"\x93NUMPY"
_LOCAL_HEADER_BYTES = 30
_ENCRYPTED = 0x1
_LARGEST = (1 << 63) - 1
# Types of which several lie in a byte of a model, though not of an array.
_PACKED_BITS = {"int4": 4, "uint4": 4, "float4_e2m1fn": 4, "int2": 2, "uint2": 2, "float6_e2m3fn": None,
                "float6_e3m2fn": None}  # fmt: skip


class UnreadableError(ValueError):
    """A file is not what it should be; the text says why."""


@contextlib.contextmanager
def telling() -> Iterator[None]:
    """Turn whatever a library stumbles over in a file into one error with one line."""
    try:
        yield
    except UnreadableError:
        raise
    except MemoryError as error:
        raise UnreadableError("it needs more memory than there is") from error
    except RecursionError as error:
        raise UnreadableError("it is nested too deeply") from error
    except (
        ArithmeticError, AttributeError, EOFError, LookupError, RuntimeError, SyntaxError, TypeError, ValueError,
        struct.error, zipfile.BadZipFile, zlib.error,
    ) as error:  # fmt: skip
        raise UnreadableError(" ".join(str(error).split())[:300] or type(error).__name__) from error


def open_plain(path: PathLike) -> IO[bytes]:
    """Open a plain file for reading; a pipe would make us wait, a device has no end."""
    fd = os.open(os.fspath(path), os.O_RDONLY | os.O_CLOEXEC | os.O_NONBLOCK)
    if not stat.S_ISREG(os.fstat(fd).st_mode):
        os.close(fd)
        raise UnreadableError("{} is no plain file".format(path))
    return _File(io.FileIO(fd))


def size_of(file: IO[bytes]) -> int:
    """Return how many bytes an open file has."""
    return os.fstat(file.fileno()).st_size


def read_plain(path: PathLike, most_bytes: int = MOST_DOCUMENT_BYTES) -> bytes:
    """Return a plain file's content, or refuse one that is too large."""
    with open_plain(path) as file:
        if size_of(file) > most_bytes:
            raise UnreadableError("it has {} bytes; at most {} are read".format(size_of(file), most_bytes))
        return file.read(most_bytes)


def parse_json(text: Union[str, bytes], *, strict: bool = True) -> Any:
    """Return the value of a JSON text; ``strict`` refuses raw control characters in strings."""
    with telling():
        if len(text) > MOST_DOCUMENT_BYTES:
            raise UnreadableError("it has {} characters; at most {} are read".format(len(text), MOST_DOCUMENT_BYTES))
        plain = text.decode("utf-8") if isinstance(text, bytes) else text
        counts = plain.count("{"), plain.count("["), plain.count(",")
        if _OBJECT_BYTES * counts[0] + _LIST_BYTES * counts[1] + _ITEM_BYTES * counts[2] > _MOST_MEMORY_BYTES:
            raise UnreadableError("it has too many values: {} objects and {} lists".format(*counts))
        return json.loads(plain, strict=strict)


def read_json(path: PathLike) -> Any:
    """Return the value of a JSON file."""
    return parse_json(read_plain(path))


class _File(io.BufferedReader):
    """A file of which no more than so many bytes are read at once, while that is set."""

    most_bytes: Optional[int] = None

    def read(self, size: Optional[int] = -1) -> bytes:
        if self.most_bytes is not None:
            # The archive's own end is read without a size.
            size = self.most_bytes + 1 if size is None or size < 0 else size
            found = super().read(min(size, self.most_bytes + 1))
            if len(found) > self.most_bytes:
                raise UnreadableError("its list of contents is too long")
            return found
        return super().read(size)


@contextlib.contextmanager
def open_zip(source: Union[PathLike, bytes]) -> Iterator[zipfile.ZipFile]:
    """Open an archive whose entries can all be read: within bounds, once each, neither encrypted nor overlapping."""
    with telling(), _zip_file(source) as file:
        file.most_bytes = _MOST_DIRECTORY_BYTES
        size = file.seek(0, os.SEEK_END)
        with zipfile.ZipFile(file) as archive:
            file.most_bytes = None
            _check_entries(archive.infolist(), size)
            yield archive


def _zip_file(source: Union[PathLike, bytes]) -> _File:
    file = _File(io.BytesIO(source)) if isinstance(source, bytes) else open_plain(source)
    assert isinstance(file, _File)  # noqa: S101 - open_plain says only what others need
    return file


def _check_entries(entries: "List[zipfile.ZipInfo]", size: int) -> None:
    names = set()
    for entry in entries:
        if entry.filename in names:
            raise UnreadableError("it holds {!r} twice".format(entry.filename[:100]))
        names.add(entry.filename)
        if entry.flag_bits & _ENCRYPTED:
            raise UnreadableError("{!r} in it is encrypted".format(entry.filename[:100]))
        if entry.compress_type not in (zipfile.ZIP_STORED, zipfile.ZIP_DEFLATED):
            raise UnreadableError("{!r} in it is compressed in a way that is not read".format(entry.filename[:100]))
    ends = 0
    for entry in sorted(entries, key=lambda each: each.header_offset):
        if entry.header_offset < ends:
            raise UnreadableError("{!r} in it lies upon another entry".format(entry.filename[:100]))
        ends = entry.header_offset + _LOCAL_HEADER_BYTES + entry.compress_size
    if ends > size:
        raise UnreadableError("it was cut short")
    grown = sum(entry.file_size for entry in entries)
    if grown > max(_MOST_GROWN_BYTES, _MOST_GROWTH * size):
        raise UnreadableError("its {} bytes would become {}; write it without compression".format(size, grown))


class Header(NamedTuple):
    """What an array in a file is; the numbers follow."""

    shape: Tuple[int, ...]
    is_fortran: bool
    dtype: "np.dtype[Any]"


def read_header(stream: IO[bytes], size: int) -> Header:
    """Return what an array is, of a stream that holds it alone in so many bytes."""
    import numpy as np

    with telling():
        start = stream.read(8)
        if start[:6] != _MAGIC or len(start) < 8:
            raise UnreadableError("it does not begin as a NumPy array")
        form = {1: "<H", 2: "<I", 3: "<I"}.get(start[6])
        if form is None:
            raise UnreadableError("it is of version {} of NumPy's format".format(start[6]))
        (length,) = struct.unpack(form, stream.read(struct.calcsize(form)))
        if length > _MOST_HEADER_BYTES:
            raise UnreadableError("its header has {} bytes; at most {} are read".format(length, _MOST_HEADER_BYTES))
        text = stream.read(length).decode("utf-8" if start[6] == 3 else "latin-1")
        facts = ast.literal_eval(text.strip())
        if not isinstance(facts, dict) or set(facts) != {"descr", "fortran_order", "shape"}:
            raise UnreadableError("its header is none of a NumPy array")
        shape, is_fortran, descr = facts["shape"], facts["fortran_order"], facts["descr"]
        if not isinstance(shape, tuple) or len(shape) > _MOST_AXES or not isinstance(is_fortran, bool):
            raise UnreadableError("its shape is {!r:.100}".format(shape))
        if any(type(axis) is not int or not 0 <= axis <= _LARGEST for axis in shape):
            raise UnreadableError("its shape is {!r:.100}".format(shape))
        dtype = np.dtype(descr) if isinstance(descr, str) else None
        if dtype is None or dtype.names is not None or dtype.subdtype is not None or not dtype.itemsize:
            raise UnreadableError("its numbers are of the type {!r:.100}".format(descr))
        if dtype.hasobject:
            raise UnreadableError("it holds Python objects, which are never unpickled")
        wanted, held = math.prod(shape) * dtype.itemsize, size - 8 - struct.calcsize(form) - length
        if wanted != held:
            raise UnreadableError("{}{} are {} bytes and it holds {}".format(dtype, list(shape), wanted, max(0, held)))
        return Header(shape, is_fortran, dtype)


def _read_array(stream: IO[bytes], size: int) -> "np.ndarray":
    import numpy as np

    header = read_header(stream, size)
    with telling():
        content = np.empty(math.prod(header.shape) * header.dtype.itemsize, np.uint8)
        left = content.data
        while left:
            count = stream.readinto(left[:_CHUNK_BYTES])  # type: ignore[attr-defined]
            if not count:
                raise UnreadableError("it was cut short")
            left = left[count:]
        flat = content.view(header.dtype)
        return flat.reshape(header.shape[::-1]).T if header.is_fortran else flat.reshape(header.shape)


def read_npy(path: PathLike) -> "np.ndarray":
    """Return the array of an .npy file."""
    with open_plain(path) as file:
        return _read_array(file, size_of(file))


def read_npz(path: PathLike) -> "Dict[str, np.ndarray]":
    """Return the arrays of an .npz file by name."""
    with open_zip(path) as archive:
        return {name: _entry(archive, entry) for name, entry in array_entries(archive).items()}


def read_arrays(path: PathLike) -> "Union[np.ndarray, Dict[str, np.ndarray]]":
    """Return the array of an .npy file or the arrays of an .npz file, whichever it is."""
    with open_plain(path) as file:
        is_array = file.read(len(_MAGIC)) == _MAGIC
    return read_npy(path) if is_array or str(path).endswith(".npy") else read_npz(path)


def array_entries(archive: zipfile.ZipFile) -> "Dict[str, zipfile.ZipInfo]":
    """Return the entries of an archive of arrays, by their arrays' names."""
    for entry in archive.infolist():
        if not entry.filename.endswith(".npy"):
            raise UnreadableError("{!r} in it is no array".format(entry.filename[:100]))
    return {entry.filename[:-4]: entry for entry in archive.infolist()}


def _entry(archive: zipfile.ZipFile, entry: zipfile.ZipInfo) -> "np.ndarray":
    with archive.open(entry) as stream:
        return _read_array(stream, entry.file_size)


class Piece(NamedTuple):
    """Where numbers of a model lie that are not in its own file."""

    path: Path
    offset: int
    length: int


def tensor_bytes(shape: Sequence[int], dtype: "np.dtype[Any]") -> Optional[int]:
    """Return how many bytes the numbers of a tensor take in a model; None for types whose packing is not known."""
    if any(size < 0 for size in shape) or dtype.hasobject:
        raise UnreadableError("its shape is {!r:.100} of {}".format(list(shape), dtype))
    bits = 8 * dtype.itemsize if dtype.name not in _PACKED_BITS else _PACKED_BITS[dtype.name]
    return None if bits is None else -(-math.prod(shape) * bits // 8)


def find_piece(folder: Path, facts: Mapping[str, str], expected_bytes: Optional[int]) -> Piece:
    """Return where the numbers of a tensor lie beside its model, or refuse a place that is none.

    Args:
        folder: The model's folder; nothing outside it is read.
        facts: ``location``, ``offset`` and ``length`` as the model says them; the last two may be missing.
        expected_bytes: How many bytes the tensor's shape and type take; None where that is not known.
    """
    location = facts.get("location", "")
    plain = PurePosixPath(location)
    if not location or plain.is_absolute() or ".." in plain.parts or "\\" in location or "\0" in location:
        raise UnreadableError("{!r:.200} is outside the model's folder".format(location))
    path = folder / plain
    if folder.resolve() not in path.resolve().parents:
        raise UnreadableError("{!r:.200} is a link out of the model's folder".format(location))
    try:
        with open_plain(path) as file:
            size = size_of(file)
    except OSError as error:
        raise UnreadableError("there is no {} to read; copy it beside the model".format(path)) from error
    offset = _whole(facts, "offset", 0)
    length = _whole(facts, "length", size - offset if expected_bytes is None else expected_bytes)
    if offset + length > size:
        raise UnreadableError("{} ends before byte {}; it was cut short".format(path, offset + length))
    if expected_bytes is not None and length != expected_bytes:
        raise UnreadableError("it takes {} bytes and {} are given".format(expected_bytes, length))
    return Piece(path, offset, length)


def read_piece(piece: Piece) -> bytes:
    """Return the numbers."""
    with open_plain(piece.path) as file:
        file.seek(piece.offset)
        return file.read(piece.length)


def check_pieces(pieces: "List[Piece]") -> None:
    """Refuse a model that reads the same numbers so often that it would burst; tensors may share some."""
    held = sum(path.stat().st_size for path in {piece.path for piece in pieces})
    wanted = sum(piece.length for piece in pieces)
    if wanted > 2 * held + _MOST_GROWN_BYTES:
        raise UnreadableError("its {} bytes of weights would become {}".format(held, wanted))


def _whole(facts: Mapping[str, str], key: str, otherwise: int) -> int:
    text = facts.get(key) or ""
    if not text:
        return max(0, otherwise)
    if not (text.isascii() and text.isdigit() and len(text) <= 18):
        raise UnreadableError("its {} is {!r:.50}, which is no number of bytes".format(key, text))
    return int(text)
