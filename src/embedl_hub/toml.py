"""TOML files, of the user and of strangers, read within bounds: one error, one line."""

from __future__ import annotations

import os
import re
import tomllib
from typing import Any

from embedl_device.readers import UnreadableError, read_plain, telling

_MOST_BYTES = 4 << 20
# Each further part of a dotted key costs the parser as much as all before it.
_LONG_KEY = re.compile(r"(?:[^\n.,=\[\]{}#]{0,200}\.){64}")


def read_toml(path: str | os.PathLike[str]) -> dict[str, Any]:
    """Return the values of a file; one that is not there is the system's own error."""
    return parse_toml(read_plain(path, _MOST_BYTES))


def parse_toml(text: str | bytes) -> dict[str, Any]:
    """Return the values of a text."""
    with telling():
        plain = text.decode("utf-8") if isinstance(text, bytes) else text
        if _LONG_KEY.search(plain):
            raise UnreadableError("a key in it has too many parts")
        return tomllib.loads(plain)
