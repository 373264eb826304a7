"""The words users search runs with: ``metrics.latency < 5 and tags.stage = 'ci'``.

    status = 'FINISHED' and not device in ('pi', 'jetson')
    params.precision = 'int8' and metrics."top-1 %" >= 70
    started > '2026-11-01' and started > '7d'           a date, or so long ago
    name ~ 'resnet'                                     contains, in any case
    model = '9f3c'                                      a content of the run, by the beginning of its hash
    metrics.accuracy is null or archived = true

This file only understands the words; what they mean in SQL is in _find.
"""

from __future__ import annotations

import re
from dataclasses import dataclass
from typing import TYPE_CHECKING

from embedl_hub.errors import ConfigError, known

if TYPE_CHECKING:
    from collections.abc import Sequence

Literal = str | float | bool

TEXTS = ("id", "name", "project", "type", "status", "device", "component", "provider", "parent", "error")
TIMES = ("started", "ended")
OTHERS = ("duration", "archived", "model")
GROUPS = ("metrics", "params", "tags", "artifacts")
_LONGEST = 4000
_DEEPEST = 50

_TOKEN = re.compile(
    r"""\s*(?:
        (?P<number>-?(?:\d+\.?\d*|\.\d+)(?:[eE][-+]?\d+)?)(?![\w.])
      | (?P<text>'(?:[^']|'')*'|"(?:[^"]|"")*")
      | (?P<field>(?:metrics|params|tags|artifacts)\.(?:"(?:[^"]|"")+"|`[^`]+`|[\w$][\w$./-]*))
      | (?P<word>[A-Za-z_]\w*)
      | (?P<sign><=|>=|!=|<>|==|=|<|>|~|\(|\)|,)
    )""",
    re.VERBOSE,
)
_SIGNS = {"==": "=", "<>": "!="}
_COMPARISONS = ("=", "!=", "<", "<=", ">", ">=", "~")


@dataclass(frozen=True)
class Field:
    """What a condition speaks about: ``status``, or a name in a group such as ``metrics.latency``."""

    group: str
    name: str = ""

    def __str__(self) -> str:
        return f'{self.group}."{self.name}"' if self.name else self.group


@dataclass(frozen=True)
class Compare:
    """A field against a value."""

    field: Field
    sign: str
    value: Literal


@dataclass(frozen=True)
class OneOf:
    """A field against several values."""

    field: Field
    values: tuple[Literal, ...]


@dataclass(frozen=True)
class Missing:
    """A field that the run does not have."""

    field: Field


@dataclass(frozen=True)
class Not:
    """The opposite."""

    part: Condition


@dataclass(frozen=True)
class AllOf:
    """Every part holds; with no parts, always."""

    parts: tuple[Condition, ...]


@dataclass(frozen=True)
class AnyOf:
    """At least one part holds."""

    parts: tuple[Condition, ...]


Condition = Compare | OneOf | Missing | Not | AllOf | AnyOf


def parse(text: str) -> Condition:
    """Return what a filter says; empty text says nothing."""
    if len(text) > _LONGEST:
        raise ConfigError(f"The filter has {len(text)} characters; {_LONGEST} are enough for anyone.")
    if "\x00" in text:
        raise ConfigError("The filter holds a NUL character; no name and no value has one.")
    return _Parser(text).whole()


def check_filter(text: str) -> None:
    """Refuse a filter that is not whole by itself, so that it can be put into another one in brackets."""
    parse(text)


def named_fields(condition: Condition) -> set[Field]:
    """Return the parameters, metrics and tags that a filter speaks of."""
    match condition:
        case AllOf(parts=parts) | AnyOf(parts=parts):
            return {field for part in parts for field in named_fields(part)}
        case Not(part=part):
            return named_fields(part)
        case _:
            return {condition.field} if condition.field.name and condition.field.group != "artifacts" else set()


def parse_field(text: str) -> Field:
    """Return the field that a word names."""
    field = _Parser(text).only_field()
    if field.group in {"error", "archived", "model", "artifacts"}:
        raise ConfigError(f"Runs cannot be ordered by {field}.")
    return field


@dataclass(frozen=True)
class _Token:
    kind: str
    text: str
    at: int


class _Parser:
    def __init__(self, text: str) -> None:
        self._text = text
        self._tokens = list(self._split(text))
        self._next = 0
        self._depth = 0

    def whole(self) -> Condition:
        if not self._tokens:
            return AllOf(())
        condition = self._either()
        self._expect_end()
        return condition

    def only_field(self) -> Field:
        field = self._field()
        self._expect_end()
        return field

    def _split(self, text: str) -> Sequence[_Token]:
        tokens, at = [], 0
        end = len(text.rstrip())
        while at < end:
            match = _TOKEN.match(text, at)
            if match is None:
                raise self._wrong(at, "this cannot be read")
            if (word := match.group("word")) and f"{word}s" in GROUPS and text[match.end() : match.end() + 1] == ".":
                raise self._wrong(match.start("word"), f"the group is called {word}s: {word}s.NAME")
            kind = str(match.lastgroup)
            tokens.append(_Token(kind, match.group(kind), match.start(kind)))
            at = match.end()
        return tokens

    def _either(self) -> Condition:
        parts = [self._both()]
        while self._take_word("or"):
            parts.append(self._both())
        return parts[0] if len(parts) == 1 else AnyOf(tuple(parts))

    def _both(self) -> Condition:
        parts = [self._one()]
        while self._take_word("and"):
            parts.append(self._one())
        return parts[0] if len(parts) == 1 else AllOf(tuple(parts))

    def _one(self) -> Condition:
        self._depth += 1
        if self._depth > _DEEPEST:
            raise ConfigError(f"The filter is nested more than {_DEEPEST} deep.")
        try:
            if self._take_word("not"):
                return Not(self._one())
            if self._take_sign("("):
                condition = self._either()
                self._need_sign(")")
                return condition
            return self._comparison()
        finally:
            self._depth -= 1

    def _comparison(self) -> Condition:
        field = self._field()
        if self._take_word("is"):
            negated = self._take_word("not")
            if not self._take_word("null"):
                raise self._wrong(self._at(), "'null' is expected after 'is' or 'is not'")
            return Not(Missing(field)) if negated else Missing(field)
        negated = self._take_word("not")
        if self._take_word("in"):
            condition: Condition = OneOf(field, self._list())
            return Not(condition) if negated else condition
        token = self._peek()
        sign = _SIGNS.get(token.text, token.text) if token and token.kind == "sign" else ""
        if negated or sign not in _COMPARISONS:
            raise self._wrong(self._at(), f"one of {' '.join(_COMPARISONS)}, 'in' or 'is null' is expected here")
        self._next += 1
        return Compare(field, sign, self._literal())

    def _list(self) -> tuple[Literal, ...]:
        self._need_sign("(")
        values = [self._literal()]
        while self._take_sign(","):
            values.append(self._literal())
        self._need_sign(")")
        return tuple(values)

    def _field(self) -> Field:
        token = self._peek()
        if token is not None and token.kind == "field":
            self._next += 1
            group, _, name = token.text.partition(".")
            if name[0] in '"`':
                name = name[1:-1].replace('""', '"')
            return Field(group, name)
        if token is not None and token.kind == "word" and token.text in (*TEXTS, *TIMES, *OTHERS):
            self._next += 1
            return Field(token.text)
        fields = ", ".join((*TEXTS, *TIMES, *OTHERS, *(f"{group}.NAME" for group in GROUPS)))
        raise self._wrong(self._at(), f"a field is expected here; there are: {fields}")

    def _literal(self) -> Literal:
        token = self._peek()
        if token is None or token.kind not in {"number", "text", "word"}:
            raise self._wrong(self._at(), "a value is expected here: a number, 'text', true or false")
        self._next += 1
        if token.kind == "number":
            return float(token.text)
        if token.kind == "text":
            quote = token.text[0]
            return token.text[1:-1].replace(quote * 2, quote)
        if token.text.lower() in {"true", "false"}:
            return token.text.lower() == "true"
        raise self._wrong(token.at, f"text is written in quotation marks: '{token.text}'")

    def _peek(self) -> _Token | None:
        return self._tokens[self._next] if self._next < len(self._tokens) else None

    def _at(self) -> int:
        token = self._peek()
        return len(self._text) if token is None else token.at

    def _take_word(self, word: str) -> bool:
        token = self._peek()
        found = token is not None and token.kind == "word" and token.text.lower() == word
        self._next += found
        return found

    def _take_sign(self, sign: str) -> bool:
        token = self._peek()
        found = token is not None and token.kind == "sign" and token.text == sign
        self._next += found
        return found

    def _need_sign(self, sign: str) -> None:
        if not self._take_sign(sign):
            raise self._wrong(self._at(), f"{sign!r} is expected here")

    def _expect_end(self) -> None:
        if self._peek() is not None:
            raise self._wrong(self._at(), "'and', 'or' or the end is expected here")

    def _wrong(self, at: int, why: str) -> ConfigError:
        return ConfigError(
            f"The filter cannot be understood at {self._text[at : at + 30]!r} (character {at + 1} of "
            f"{self._text!r:.200}): {why}. An example: metrics.latency < 5 and tags.stage = 'ci'"
        )


def equal(group: str, value: str, *, name: str = "") -> str:
    """Return the words for a field that equals a text, whatever either holds: ``tags."stage" = 'ci'``."""
    field, quoted = Field(group, name.replace('"', '""')), value.replace("'", "''")
    return f"{field} = '{quoted}'"


def check_word(what: str, word: str, words: Sequence[str]) -> str:
    """Return a word in the spelling the store keeps, or say which there are."""
    for spelling in words:
        if spelling.upper() == word.upper():
            return spelling
    raise ConfigError(f"There is no {what} {word!r}; known: {known(words)}.")
