"""The entries of a tar stream that a board sent: files, folders and links, and nothing that tar can say besides.

Python's own reader understands more, such as files with holes, that a few bytes can make endless; it reads a name of
any length into memory, and keeps every entry. What tar, busybox and bsdtar write for an ordinary folder is read here.
"""

from __future__ import annotations

import enum
import os
import re
from collections.abc import Iterator
from dataclasses import dataclass
from typing import IO

from embedl_hub.errors import TransferError

_BLOCK = 512
_MOST_ENTRIES = 200_000
# A name may be as long as a path; pax puts some more facts beside it.
_MOST_NAME_BYTES = 64 << 10
_NO_ENTRY = bytes(_BLOCK)


class Kind(enum.Enum):
    """What an entry is."""

    FILE = enum.auto()
    FOLDER = enum.auto()
    LINK = enum.auto()
    SECOND_NAME = enum.auto()


@dataclass(frozen=True)
class Entry:
    """One entry; the bytes of a file are the next in the stream."""

    name: str
    kind: Kind
    size_bytes: int = 0
    link: str = ""
    is_executable: bool = False


_KINDS = {
    b"0": Kind.FILE, b"\0": Kind.FILE, b"7": Kind.FILE, b"5": Kind.FOLDER, b"2": Kind.LINK, b"1": Kind.SECOND_NAME,
}  # fmt: skip


def read_entries(stream: IO[bytes]) -> Iterator[Entry]:
    """Yield the entries; whoever takes a file's bytes from the stream may leave some.

    Raises:
        TransferError: It is no tar stream, it ends too early, or holds what a board has no reason to send.
    """
    told: dict[str, str] = {}  # what the next entry's own header has no room for
    for _ in range(_MOST_ENTRIES):
        header = _exactly(stream, _BLOCK)
        if header == _NO_ENTRY:
            return
        _check_sum(header)
        kind, size = header[156:157], _number(header[124:136])
        if kind in (b"L", b"K", b"x", b"g"):
            content = _exactly(stream, _long(size))
            stream.seek(-size % _BLOCK, os.SEEK_CUR)
            if kind in (b"L", b"K"):
                told["path" if kind == b"L" else "linkpath"] = os.fsdecode(content.rstrip(b"\0"))
            elif kind == b"x":
                told |= _pax(content)
            continue
        entry = _entry(header, told)
        told = {}
        start = stream.tell()
        yield entry
        stream.seek(start + entry.size_bytes + -entry.size_bytes % _BLOCK)
    raise TransferError(f"The board sent more than {_MOST_ENTRIES} files; refused. Send them as one archive.")


def _entry(header: bytes, told: dict[str, str]) -> Entry:
    name = _text(header[:100])
    # Only the standard's own form has this field; GNU tar keeps times there.
    if header[257:263] == b"ustar\0" and (prefix := _text(header[345:500])):
        name = f"{prefix}/{name}"
    name = told.get("path", name)
    if any(key.startswith("GNU.sparse") for key in told) or header[156:157] == b"S":
        raise TransferError(f"The board sent {name!r:.300} as a file with holes, which may be endless; refused.")
    kind = _KINDS.get(header[156:157])
    if kind is None:
        raise TransferError(f"The board sent {name!r:.300}, which is neither a file, a folder nor a link; refused.")
    # The first tar knew a folder by its slash.
    if kind is Kind.FILE and name.endswith("/"):
        kind = Kind.FOLDER
    if kind is not Kind.FILE:
        return Entry(name, kind, link=told.get("linkpath", _text(header[157:257])))
    size = told.get("size", "")
    if size and not re.fullmatch(r"[0-9]{1,18}", size):
        raise _damaged(f"{name!r:.300} has the size {size!r:.50}")
    return Entry(
        name,
        kind,
        int(size) if size else _number(header[124:136]),
        is_executable=bool(_number(header[100:108]) & 0o100),
    )


def _pax(content: bytes) -> dict[str, str]:
    """Return the records of a pax header: each is its length, a space, key=value and a newline."""
    found: dict[str, str] = {}
    at = 0
    while at < len(content):
        start = re.compile(rb"([1-9][0-9]{0,5}) ").match(content, at)
        end = at + int(start[1]) if start else 0
        if start is None or not start.end() < end <= len(content) or content[end - 1 : end] != b"\n":
            raise _damaged("a header of it cannot be read")
        key, _, value = content[start.end() : end - 1].partition(b"=")
        found[os.fsdecode(key)] = os.fsdecode(value)
        at = end
    return found


def _number(field: bytes) -> int:
    """Return a number of a header: octal digits, or bytes where those do not suffice."""
    if field[0] == 0x80:
        return int.from_bytes(field[1:], "big")
    digits = field.strip(b" \0")
    if not re.fullmatch(rb"[0-7]*", digits):
        raise _damaged("a header of it has a number that is none")
    return int(digits or b"0", 8)


def _long(size: int) -> int:
    if size > _MOST_NAME_BYTES:
        raise TransferError(f"The board sent a name of {size} bytes; refused.")
    return size


def _check_sum(header: bytes) -> None:
    # The field of the sum itself counts as blanks.
    if _number(header[148:156]) != sum(header[:148]) + 8 * ord(" ") + sum(header[156:]):
        raise _damaged("a header of it is damaged")


def _exactly(stream: IO[bytes], size: int) -> bytes:
    content = stream.read(size)
    if len(content) != size:
        raise _damaged("it ends too early")
    return content


def _text(field: bytes) -> str:
    return os.fsdecode(field.partition(b"\0")[0])


def _damaged(why: str) -> TransferError:
    return TransferError(f"What the board sent is no folder that tar wrote: {why}.")
