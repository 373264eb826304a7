"""Keeps secrets out of the store: values under telling names, and known secret values anywhere in a text."""

from __future__ import annotations

import functools
import json
import os
import re
from collections.abc import Iterable, Mapping
from typing import TYPE_CHECKING
from urllib.parse import quote

if TYPE_CHECKING:
    from embedl_hub.tracking._models import Value

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


@functools.lru_cache(maxsize=4096)
def is_secret_name(name: str) -> bool:
    """Tell whether a value under this name must not be stored."""
    if _HARMLESS_ENDING.search(name):
        return False
    return bool(_CERTAIN_NAME.search(name) or _SECRET_NAME.search(_HARMLESS_WORD.sub("", name)))


class Redactor:
    """Replaces secrets in names, values and texts.

    Secret values are learned from the environment when it is made, from every mapping passed to
    :meth:`learn` and from every value it replaces, so that a token is also found inside an error
    message that quotes it.
    """

    def __init__(self, environment: Mapping[str, str] | None = None) -> None:
        self._secrets: set[str] = set()
        self._pattern: re.Pattern[str] | None = None
        variables = os.environ if environment is None else environment
        # A shell's PWD is the folder it is in; learned, it would black out every path.
        self.learn({name: value for name, value in variables.items() if name != "PWD"})

    def learn(self, values: Mapping[str, object]) -> None:
        """Remember the values that stand under secret names, at any depth."""
        found = {text for text in _secret_texts(values) if len(text) >= _SHORTEST_SECRET}
        if not found <= self._secrets:
            self._secrets = self._secrets | found
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
