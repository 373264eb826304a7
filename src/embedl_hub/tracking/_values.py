"""What may be logged: values as JSON can hold them, and names that are safe on a page and on a disk."""

from __future__ import annotations

import hashlib
import math
import re
from collections.abc import Mapping
from dataclasses import fields, is_dataclass
from enum import Enum
from pathlib import PurePath
from typing import TYPE_CHECKING

from embedl_hub.errors import ConfigError

if TYPE_CHECKING:
    from embedl_hub.tracking._models import Value

_LONGEST_NAME_BYTES = 200
_LARGEST_STEP = 2**63 - 1
_CONTROL_CHARACTER = re.compile(r"[\x00-\x1f\x7f-\x9f]")


def plain_value(value: object) -> Value:
    """Return a value as JSON can hold it; what it cannot hold is described, never pickled."""
    try:
        return _plain(value)
    except RecursionError as error:
        raise ConfigError(
            f"A {type(value).__name__} that contains itself, or is nested too deep, has no end."
        ) from error


def _plain(value: object) -> Value:
    if isinstance(value, Enum):
        return _plain(value.value)
    if value is None or isinstance(value, bool):
        return value
    if isinstance(value, str | PurePath):
        return encodable(str(value))
    if isinstance(value, int):
        return int(value)
    if isinstance(value, float):
        return float(value) if math.isfinite(value) else str(float(value))
    return _plain_container(value)


def _plain_container(value: object) -> Value:
    if is_dataclass(value) and not isinstance(value, type):
        return {field.name: _plain(getattr(value, field.name)) for field in fields(value)}
    if isinstance(value, Mapping):
        return {encodable(str(key)): _plain(item) for key, item in value.items()}
    if isinstance(value, list | tuple | set | frozenset):
        items = sorted(value, key=str) if isinstance(value, set | frozenset) else value
        return [_plain(item) for item in items]
    shape, dtype = getattr(value, "shape", None), getattr(value, "dtype", None)
    if shape == () and hasattr(value, "item"):
        return _plain(value.item())
    if shape is not None and dtype is not None:
        return f"<array {dtype}{list(shape)}>"
    return encodable(str(value))


def encodable(text: str) -> str:
    """Spell out what is not text, such as the odd bytes of a file name: the index holds UTF-8 only."""
    return text if text.isascii() else text.encode("utf-8", "backslashreplace").decode()


def without_nuls(text: str) -> str:
    """Spell NULs out: PostgreSQL's texts cannot hold them. In a parameter, which is kept as JSON, they may stand."""
    return text.replace("\0", "\\x00")


def project_id(name: str) -> str:
    """Return a project's id: made from its name, so that it is the same everywhere and safe in an address."""
    return hashlib.sha256(name.encode()).hexdigest()[:32]


def whole_step(name: str, step: object) -> int | None:
    """Return a metric's step as an integer that the index can hold, or refuse it."""
    if step is None:
        return None
    try:
        number = int(step)  # type: ignore[call-overload]  # anything may come; what is no number raises
    except (TypeError, ValueError, OverflowError):
        number = None
    if number is None or number != step or abs(number) > _LARGEST_STEP:
        raise ConfigError(f"The step of metric {name!r} must be a whole number of at most 64 bits, not {step!r:.300}.")
    return int(number)


def check_name(what: str, name: object) -> None:
    """Refuse a name that is not short, printable text."""
    if not isinstance(name, str) or not name.strip() or len(name.encode("utf-8", "replace")) > _LONGEST_NAME_BYTES:
        raise ConfigError(f"The {what} must be text of 1 to {_LONGEST_NAME_BYTES} bytes, not {name!r:.300}.")
    if _CONTROL_CHARACTER.search(name):
        raise ConfigError(f"The {what} must not hold control characters: {name!r}.")
    if encodable(name) != name:
        raise ConfigError(f"The {what} must be valid text, not {name!r}; give a name of your own.")


def check_file_name(what: str, name: str) -> None:
    """Refuse a name that could lead out of the folder it is used in."""
    check_name(what, name)
    if name in {".", ".."} or "/" in name or "\\" in name:
        raise ConfigError(f"The {what} {name!r} must be a plain name, without folders.")
