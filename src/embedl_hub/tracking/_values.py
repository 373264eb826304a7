"""What may be logged: values as JSON can hold them, names that are safe on a page and on a disk, and no secrets."""

from __future__ import annotations

import functools
import hashlib
import json
import math
import os
import re
from collections.abc import Iterable, Mapping
from dataclasses import fields, is_dataclass
from enum import Enum
from pathlib import PurePath
from typing import TYPE_CHECKING
from urllib.parse import quote

from embedl_hub.errors import ConfigError

if TYPE_CHECKING:
    from embedl_hub.tracking._models import Value

_LONGEST_NAME_BYTES = 200
_LARGEST_STEP = 2**63 - 1
_CONTROL_CHARACTER = re.compile(r"[\x00-\x1f\x7f-\x9f]")
REDACTED = "<redacted>"
_SECRET_NAME = re.compile(
    r"pass(word|wd|phrase)|secret|token|credential|bearer|cookie|authori[sz]ation"
    r"|(api|access|private|signing|encryption|auth|ssh)[_-]?key|(^|[_-])(pwd|pw|auth)($|[_-])",
    re.IGNORECASE,
)
# Tokens are everywhere in this field: tokenizers, numbers of tokens, and the marks in a text hold no secrets.
_HARMLESS_WORD = re.compile(
    r"tokeni[sz]|tokens|token[_-]?(id|type|count|dim|len|limit|size|embed|mix|drop|index|position|mask|rate)"
    r"|(?<![a-z])(num|max|min|per|first|next|last|pad|eos|bos|cls|sep|unk|mask|class|image|patch|prefix|start|end|stop)"
    r"[_-]?token",
    re.IGNORECASE,
)
_CERTAIN_NAME = re.compile(
    r"(api|access|auth|refresh|session|bearer|user|bot|client|service|deploy|device|admin|hub|lab|hf)[_-]?token",
    re.IGNORECASE,
)
_HARMLESS_ENDING = re.compile(r"_(file|path|sock)$", re.IGNORECASE)
_PASSWORD_IN_URL = re.compile(r"(?<=://)([^\s/:@]*):[^\s/@]+@")
# Shorter values ("1", "true", "root") would black out half of every text.
_SHORTEST_SECRET = 6


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


@functools.lru_cache(maxsize=4096)
def is_secret_name(name: str) -> bool:
    """Tell whether a value under this name must not be stored."""
    if _HARMLESS_ENDING.search(name):
        return False
    return bool(_CERTAIN_NAME.search(name) or _SECRET_NAME.search(_HARMLESS_WORD.sub("", name)))


class Redactor:
    """Replaces secrets in names, values and texts.

    Secret values are learned from the environment when it is made, from every mapping passed to :meth:`learn` and from
    every value it replaces, so that a token is also found inside an error message that quotes it.
    """

    def __init__(self, environment: Mapping[str, str] | None = None) -> None:
        self._secrets: set[str] = set()
        self._pattern: re.Pattern[str] | None = None
        variables = os.environ if environment is None else environment
        # A shell's PWD is the folder it is in; learned, it would black out every path.
        self.learn({name: value for name, value in variables.items() if name != "PWD"})

    def learn(self, values: Mapping[str, object]) -> None:
        """Remember the values that stand under secret names, at any depth."""
        secrets = {text for text in _secret_texts(values) if len(text) >= _SHORTEST_SECRET}
        if not secrets <= self._secrets:
            self._secrets = self._secrets | secrets
            spellings = {spelling for secret in self._secrets for spelling in _spellings(secret)}
            longest_first = sorted(spellings, key=len, reverse=True)
            self._pattern = re.compile("|".join(map(re.escape, longest_first)))

    def text(self, text: str) -> str:
        """Return the text without any secret value."""
        text = _PASSWORD_IN_URL.sub(rf"\1:{REDACTED}@", text) if "://" in text else text
        return self._pattern.sub(REDACTED, text) if self._pattern else text

    def value(self, name: str, value: Value) -> Value:
        """Return the value as it may be stored under this name."""
        if value is not None and not isinstance(value, bool) and is_secret_name(name):
            self.learn({name: value})
            return REDACTED
        if isinstance(value, str):
            return self.text(value)
        if isinstance(value, list):
            return [self.value(name, item) for item in value]
        if isinstance(value, dict):
            return {self.text(key): self.value(key, item) for key, item in value.items()}
        return value


def _secret_texts(values: Mapping[str, object]) -> Iterable[str]:
    for name, value in values.items():
        if isinstance(value, Mapping):
            yield from _secret_texts(value)
        elif isinstance(value, list | tuple):
            for item in value:
                yield from _secret_texts({name: item})
        elif is_secret_name(str(name)) and isinstance(value, str | bytes):
            yield value.decode("utf-8", "replace") if isinstance(value, bytes) else value


def _spellings(secret: str) -> Iterable[str]:
    """Yield a secret as it stands in plain text, in a Python literal, in JSON and in a URL."""
    yield secret
    yield repr(secret)[1:-1]
    yield json.dumps(secret)[1:-1]
    yield json.dumps(secret, ensure_ascii=False)[1:-1]
    yield quote(secret.encode("utf-8", "backslashreplace"), safe="")
