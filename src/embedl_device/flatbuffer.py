"""Tables of a flatbuffer, read in place: every step is checked, and the same parts cannot be named without end.

https://flatbuffers.dev/internals: a table begins with the distance back to its layout, which has the place of each of
its fields, or 0 for one that has its default. Strings, vectors and tables inside are distances forward.
"""

from __future__ import annotations

import struct
from typing import List, Optional, Tuple

from embedl_device.readers import UnreadableError

_FEWEST_ITEMS = 100_000


class FlatBuffer:
    """A buffer that comes from elsewhere; tables and fields are told by their numbers in the schema."""

    def __init__(self, content: bytes) -> None:
        self._content = content
        self._left = max(_FEWEST_ITEMS, len(content))

    @property
    def root(self) -> int:
        """The buffer's table."""
        return self.pointer(0)

    def field(self, table: int, index: int) -> Optional[int]:
        """Return where a field of a table is, or None when it has its default."""
        layout = table - self.number("<i", table)
        place = 4 + 2 * index
        if place >= self.number("<H", layout):
            return None
        offset = self.number("<H", layout + place)
        return table + offset if offset else None

    def scalar(self, table: int, index: int, form: str, default: int = 0) -> int:
        """Return a number of a table."""
        at = self.field(table, index)
        return default if at is None else self.number(form, at)

    def inner(self, table: int, index: int) -> Optional[int]:
        """Return the table that a field is; None for none."""
        at = self.field(table, index)
        return None if at is None else self.pointer(at)

    def text(self, table: int, index: int) -> str:
        """Return a string of a table."""
        start, size = self._vector(table, index)
        return self._content[start : start + size].decode("utf-8")

    def tables(self, table: int, index: int) -> List[int]:
        """Return the tables that a field lists."""
        start, count = self._vector(table, index)
        return [self.pointer(start + 4 * item) for item in range(count)]

    def numbers(self, table: int, index: int, form: str) -> List[int]:
        """Return the numbers that a field lists."""
        start, count = self._vector(table, index)
        size = struct.calcsize(form)
        return [self.number(form, start + size * item) for item in range(count)]

    def pointer(self, at: int) -> int:
        """Return where a distance leads to."""
        return at + self.number("<I", at)

    def number(self, form: str, at: int) -> int:
        """Return the number at a place."""
        if at < 0:
            raise UnreadableError("it points before its beginning")
        return int(struct.unpack_from(form, self._content, at)[0])

    def _vector(self, table: int, index: int) -> Tuple[int, int]:
        at = self.field(table, index)
        if at is None:
            return 0, 0
        start = self.pointer(at)
        count = self.number("<I", start)
        self._left -= count
        if self._left < 0:
            raise UnreadableError("it names the same parts so often that it would burst")
        return start + 4, count
