"""Keeps secrets out of the store: values under telling names, and known secret values anywhere in a text."""

from __future__ import annotations

import os
import re
from collections.abc import Iterable, Mapping
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from embedl_hub.tracking._models import Value

REDACTED = "<redacted>"
_SECRET_NAME = re.compile(
    r"pass(word|wd|phrase)|secret|token|credential|bearer|cookie|authori[sz]ation"
    r"|(api|access|private|signing|encryption|auth|ssh)[_-]?key|(^|[_-])(pwd|pw|auth)($|[_-])",
    re.IGNORECASE,
)
# Tokenizers are everywhere in this field and hold no secrets; a secret is also never a number of tokens.
_HARMLESS_NAME = re.compile(r"tokeni[sz]|tokens|num_token|max_token|token_id|_(file|path)$", re.IGNORECASE)
# Shorter values ("1", "true", "root") would black out half of every text.
_SHORTEST_SECRET = 6


def is_secret_name(name: str) -> bool:
    """Tell whether a value under this name must not be stored."""
    return bool(_SECRET_NAME.search(name)) and not _HARMLESS_NAME.search(name)


class Redactor:
    """Replaces secrets in names, values and texts.

    Secret values are learned from the environment when it is made, and from every mapping passed
    to :meth:`learn`, so that a token is also found inside an error message that quotes it.
    """

    def __init__(self, environment: Mapping[str, str] | None = None) -> None:
        self._secrets: set[str] = set()
        self._pattern: re.Pattern[str] | None = None
        self.learn(os.environ if environment is None else environment)

    def learn(self, values: Mapping[str, object]) -> None:
        """Remember the values that stand under secret names, at any depth."""
        found = {text for text in _secret_texts(values) if len(text) >= _SHORTEST_SECRET}
        if not found <= self._secrets:
            self._secrets |= found
            longest_first = sorted(self._secrets, key=len, reverse=True)
            self._pattern = re.compile("|".join(map(re.escape, longest_first)))

    def text(self, text: str) -> str:
        """Return the text without any secret value."""
        return self._pattern.sub(REDACTED, text) if self._pattern else text

    def value(self, name: str, value: Value) -> Value:
        """Return the value as it may be stored under this name."""
        if value is not None and not isinstance(value, bool) and is_secret_name(name):
            return REDACTED
        if isinstance(value, str):
            return self.text(value)
        if isinstance(value, list):
            return [self.value(name, item) for item in value]
        if isinstance(value, dict):
            return {key: self.value(key, item) for key, item in value.items()}
        return value


def _secret_texts(values: Mapping[str, object]) -> Iterable[str]:
    for name, value in values.items():
        if isinstance(value, Mapping):
            yield from _secret_texts(value)
        elif is_secret_name(str(name)) and isinstance(value, str | bytes):
            yield value.decode("utf-8", "replace") if isinstance(value, bytes) else value
