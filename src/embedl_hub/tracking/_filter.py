"""The words users search runs with: ``metrics.latency < 5 and tags.stage = 'ci'``.

    status = 'FINISHED' and not device in ('pi', 'jetson')
    params.precision = 'int8' and metrics."top-1 %" >= 70
    started > '2026-11-01' and started > '7d'           a date, or so long ago
    name ~ 'resnet'                                     contains, in any case
    model = '9f3c'                                      a content of the run, by the beginning of its hash
    metrics.accuracy is null or archived = true

This file only understands the words; what they mean in SQL is in _sql/find.py.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import TypeVar

from embedl_hub.errors import ConfigError

Parsed = TypeVar("Parsed")
Literal = str | float | bool

TEXTS = ("id", "name", "project", "type", "status", "device", "component", "provider", "parent", "error")
TIMES = ("started", "ended")
OTHERS = ("duration", "archived", "model")
GROUPS = ("metrics", "params", "tags", "artifacts")
_LONGEST = 4000
_DEEPEST = 50
# Each is looked at for every run that the others leave.
_MOST_CONDITIONS = 30
_LONGEST_PART = 200

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
class Not:
    """The opposite."""

    part: Condition


@dataclass(frozen=True)
class Compare:
    """A field against a value; with the sign ``is null``, whether the run does not have it."""

    field: Field
    sign: str
    value: Literal = True


@dataclass(frozen=True)
class Joined:
    """Parts that hold all with ``and``, which none do always, or at least one with ``or``."""

    word: str
    parts: tuple[Condition, ...] = ()


Condition = Compare | Not | Joined


def missing(field: Field) -> Compare:
    return Compare(field, "is null")


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
        case Joined(parts=parts):
            return {field for part in parts for field in named_fields(part)}
        case Not(part=part):
            return named_fields(part)
        case _:
            return {condition.field} if condition.field.name and condition.field.group != "artifacts" else set()


def parse_field(text: str) -> Field:
    field = _Parser(text).only_field()
    if field.group in {"error", "archived", "model", "artifacts"}:
        raise ConfigError(f"Runs cannot be ordered by {field}.")
    return field


@dataclass(frozen=True)
class _Token:
    kind: str
    text: str
    start: int


class _Parser:
    def __init__(self, text: str) -> None:
        self._text = text
        self._next = self._depth = self._conditions = 0
        self._tokens: list[_Token] = []
        self._tokens = list(self._split(text))

    def whole(self) -> Condition:
        return self._until_end(self._any_of) if self._tokens else Joined("and")

    def only_field(self) -> Field:
        return self._until_end(self._field)

    def _until_end(self, read: Callable[[], Parsed]) -> Parsed:
        parsed = read()
        if self._peek() is not None:
            raise self._wrong("'and', 'or' or the end is expected here")
        return parsed

    def _split(self, text: str) -> Iterator[_Token]:
        start, end = 0, len(text.rstrip())
        while start < end:
            match = _TOKEN.match(text, start)
            if match is None:
                raise self._wrong("this cannot be read", start)
            if (word := match.group("word")) and f"{word}s" in GROUPS and text[match.end() : match.end() + 1] == ".":
                raise self._wrong(f"the group is called {word}s: {word}s.NAME", match.start("word"))
            kind = str(match.lastgroup)
            yield _Token(kind, match.group(kind), match.start(kind))
            start = match.end()

    def _any_of(self) -> Condition:
        return self._joined("or", lambda: self._joined("and", self._term))

    def _joined(self, word: str, read: Callable[[], Condition]) -> Condition:
        parts = [read()]
        while self._take("word", word):
            parts.append(read())
        return parts[0] if len(parts) == 1 else Joined(word, tuple(parts))

    def _term(self) -> Condition:
        self._depth += 1
        if self._depth > _DEEPEST:
            raise ConfigError(f"The filter is nested more than {_DEEPEST} deep.")
        try:
            if self._take("word", "not"):
                return Not(self._term())
            if self._take("sign", "("):
                condition = self._any_of()
                self._need_sign(")")
                return condition
            return self._comparison()
        finally:
            self._depth -= 1

    def _comparison(self) -> Condition:
        field = self._field()
        self._count(1)
        if self._take("word", "is"):
            negated = self._take("word", "not")
            if not self._take("word", "null"):
                raise self._wrong("'null' is expected after 'is' or 'is not'")
            return Not(missing(field)) if negated else missing(field)
        negated = self._take("word", "not")
        if self._take("word", "in"):
            values = self._list()
            self._count(len(values) - 1)
            condition = Joined("or", tuple(Compare(field, "=", value) for value in values))
            return Not(condition) if negated else condition
        token = self._peek()
        sign = _SIGNS.get(token.text, token.text) if token and token.kind == "sign" else ""
        if negated or sign not in _COMPARISONS:
            raise self._wrong(f"one of {' '.join(_COMPARISONS)}, 'in' or 'is null' is expected here")
        self._next += 1
        value = self._literal()
        if sign == "~" and len(str(value)) > _LONGEST_PART:
            raise ConfigError(f"What a text must contain may have {_LONGEST_PART} characters, not {len(str(value))}.")
        return Compare(field, sign, value)

    def _count(self, conditions: int) -> None:
        self._conditions += conditions
        if self._conditions > _MOST_CONDITIONS:
            raise ConfigError(
                f"The filter has more than {_MOST_CONDITIONS} conditions, each value of a list among them. "
                "Ask in parts, or give the runs a tag and ask for that."
            )

    def _list(self) -> tuple[Literal, ...]:
        self._need_sign("(")
        values = [self._literal()]
        while self._take("sign", ","):
            values.append(self._literal())
        self._need_sign(")")
        return tuple(values)

    def _field(self) -> Field:
        token, plain = self._peek(), (*TEXTS, *TIMES, *OTHERS)
        if token is None or not (token.kind == "field" or (token.kind == "word" and token.text in plain)):
            fields = ", ".join((*plain, *(f"{group}.NAME" for group in GROUPS)))
            raise self._wrong(f"a field is expected here; there are: {fields}")
        self._next += 1
        group, _, name = token.text.partition(".")
        return Field(group, name[1:-1].replace('""', '"') if name.startswith(('"', "`")) else name)

    def _literal(self) -> Literal:
        token = self._peek()
        if token is None or token.kind not in {"number", "text", "word"}:
            raise self._wrong("a value is expected here: a number, 'text', true or false")
        self._next += 1
        if token.kind == "number":
            return float(token.text)
        if token.kind == "text":
            quote = token.text[0]
            return token.text[1:-1].replace(quote * 2, quote)
        if token.text.lower() in {"true", "false"}:
            return token.text.lower() == "true"
        raise self._wrong(f"text is written in quotation marks: '{token.text}'", token.start)

    def _peek(self) -> _Token | None:
        return self._tokens[self._next] if self._next < len(self._tokens) else None

    def _take(self, kind: str, text: str) -> bool:
        token = self._peek()
        is_next = token is not None and token.kind == kind and token.text.lower() == text
        self._next += is_next
        return is_next

    def _need_sign(self, sign: str) -> None:
        if not self._take("sign", sign):
            raise self._wrong(f"{sign!r} is expected here")

    def _wrong(self, why: str, start: int | None = None) -> ConfigError:
        """Return the error for a place in the text: the next token's, if none is given."""
        token = self._peek()
        if start is None:
            start = len(self._text) if token is None else token.start
        return ConfigError(
            f"The filter cannot be understood at {self._text[start : start + 30]!r} (character {start + 1} of "
            f"{self._text!r:.200}): {why}. An example: metrics.latency < 5 and tags.stage = 'ci'"
        )


def equal(group: str, value: str, *, name: str = "") -> str:
    """Return the words for a field that equals a text, whatever either holds: ``tags."stage" = 'ci'``."""
    field, quoted = Field(group, name.replace('"', '""')), value.replace("'", "''")
    return f"{field} = '{quoted}'"
