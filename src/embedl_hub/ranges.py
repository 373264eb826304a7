"""A file over HTTP: which bytes of it a client wants, and those bytes in pieces."""

from __future__ import annotations

import re
from collections.abc import Iterator
from typing import IO

_WANTED = re.compile(r"bytes=([0-9]{1,18})-([0-9]{0,18})")
_PIECE_BYTES = 1 << 20


class NoSuchRangeError(ValueError):
    """The file has none of the bytes that were asked for."""


def wanted_bytes(header: str | None, size: int) -> tuple[int, int]:
    """Return the first byte that a Range header asks for, and how many; all of them if it asks for something else."""
    match = _WANTED.fullmatch(header or "")
    if match is None:
        return 0, size
    first, last = int(match[1]), min(int(match[2] or size - 1), size - 1)
    if first > last:
        raise NoSuchRangeError(f"bytes */{size}")
    return first, last - first + 1


def range_headers(first: int, count: int, size: int) -> dict[str, str]:
    """Return the headers of an answer that holds these bytes."""
    headers = {"Content-Length": str(count), "Accept-Ranges": "bytes"}
    return headers | ({"Content-Range": f"bytes {first}-{first + count - 1}/{size}"} if count < size else {})


def pieces(file: IO[bytes], first: int, count: int) -> Iterator[bytes]:
    """Yield bytes of an open file, and close it."""
    with file:
        file.seek(first)
        while count > 0 and (chunk := file.read(min(_PIECE_BYTES, count))):
            count -= len(chunk)
            yield chunk
