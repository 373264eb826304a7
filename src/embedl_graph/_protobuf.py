"""Messages of Protocol Buffers read from a file, field by field, without a schema and without what is passed over.

https://protobuf.dev/programming-guides/encoding: a message is a row of fields, each with its number and one of four
forms. Nothing refers to anything else, so a file is read once at most; numbers and ends are checked at every step.
"""

from __future__ import annotations

import struct
from typing import IO, Iterator, List, Optional, Tuple

from embedl_device.readers import UnreadableError

VARINT, FIXED64, BYTES, FIXED32 = 0, 1, 2, 5
_LONGEST_VARINT = 10
_MOST_BYTES = 256 << 20


class Message:
    """A message in memory."""

    def __init__(self, content: bytes) -> None:
        self._content = content

    def __iter__(self) -> Iterator[Tuple[int, int, int, bytes]]:
        """Yield the fields: number, form, value of a number, value of bytes."""
        content, at, end = self._content, 0, len(self._content)
        while at < end:
            key, at = varint(content, at)
            number, form = key >> 3, key & 7
            if form == BYTES:
                size, at = varint(content, at)
                if size > end - at:
                    raise UnreadableError("a field ends behind its message")
                yield number, form, 0, content[at : at + size]
                at += size
            elif form == VARINT:
                value, at = varint(content, at)
                yield number, form, value, b""
            elif form in (FIXED64, FIXED32):
                size = 8 if form == FIXED64 else 4
                if size > end - at:
                    raise UnreadableError("a number ends behind its message")
                yield number, form, int.from_bytes(content[at : at + size], "little"), b""
                at += size
            else:
                raise UnreadableError("it has a field of the unknown form {}".format(form))


def varint(content: bytes, at: int) -> Tuple[int, int]:
    """Return a number and where it ends."""
    value = shift = 0
    for place in range(at, min(at + _LONGEST_VARINT, len(content))):
        byte = content[place]
        value |= (byte & 0x7F) << shift
        if byte < 0x80:
            return value & 0xFFFF_FFFF_FFFF_FFFF, place + 1
        shift += 7
    raise UnreadableError("a number has no end")


def signed(value: int) -> int:
    """Return an int64 that was written as its two's complement."""
    return value - (1 << 64) if value >= 1 << 63 else value


def numbers(form: int, value: int, content: bytes) -> List[int]:
    """Return the whole numbers of a repeated field, packed or one by one."""
    if form != BYTES:
        return [signed(value)]
    found, at = [], 0
    while at < len(content):
        one, at = varint(content, at)
        found.append(signed(one))
    return found


def floats(form: int, value: int, content: bytes) -> List[float]:
    """Return the floats of a repeated field, packed or one by one."""
    packed = content if form == BYTES else value.to_bytes(4, "little")
    return [item[0] for item in struct.iter_unpack("<f", packed[: len(packed) // 4 * 4])]


class MessageFile:
    """A message in a file: fields are read or passed over, so that weights cost nothing."""

    def __init__(self, file: IO[bytes], end: int) -> None:
        self._file = file
        self._end = end

    def __iter__(self) -> Iterator[Tuple[int, int, int]]:
        """Yield the fields: number, form, and the value or the size; what is not taken is passed over."""
        while self._file.tell() < self._end:
            key = self._varint()
            number, form = key >> 3, key & 7
            if form == BYTES:
                size = self._varint()
                after = self._file.tell() + size
                if after > self._end:
                    raise UnreadableError("a field ends behind its message")
                yield number, form, size
                self._file.seek(after)
            elif form == VARINT:
                yield number, form, self._varint()
            elif form in (FIXED64, FIXED32):
                self._file.seek(8 if form == FIXED64 else 4, 1)
                yield number, form, 0
            else:
                raise UnreadableError("it has a field of the unknown form {}".format(form))
        if self._file.tell() > self._end:
            raise UnreadableError("it was cut short")

    def take(self, size: int) -> bytes:
        """Return the bytes of the field at hand."""
        if size > _MOST_BYTES:
            raise UnreadableError("a field has {} bytes; at most {} are read".format(size, _MOST_BYTES))
        content = self._file.read(size)
        if len(content) != size:
            raise UnreadableError("it was cut short")
        return content

    def inner(self, size: int) -> "MessageFile":
        """Return the message that the field at hand is."""
        return MessageFile(self._file, self._file.tell() + size)

    def _varint(self) -> int:
        value = shift = 0
        for _ in range(_LONGEST_VARINT):
            byte = self._file.read(1)
            if not byte:
                raise UnreadableError("it was cut short")
            value |= (byte[0] & 0x7F) << shift
            if byte[0] < 0x80:
                return value & 0xFFFF_FFFF_FFFF_FFFF
            shift += 7
        raise UnreadableError("a number has no end")


def text(content: bytes, most: Optional[int] = None) -> str:
    """Return a text; bytes that are none are replaced, what is too long is cut."""
    if most is not None and len(content) > most:
        return content[: most - 1].decode("utf-8", "replace") + "…"
    return content.decode("utf-8", "replace")
