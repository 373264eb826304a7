r"""No secret is written: found by the name it stands under, by its own shape, or because it was seen before.

By name in a mapping, in a command line (``--token=x``, ``--token x``), in an address (``?sig=x``), in a header and in
code (``password='x'``). By shape: keys that their makers give a prefix, private keys, JSON web tokens, what follows
``Bearer`` and ``Basic``, and the password of an address. A hash, a base64 text or a long name has no such shape and is
kept: a random text without a prefix and without a name cannot be told from a model's hash.
"""

from __future__ import annotations

import base64
import binascii
import functools
import itertools
import json
import os
import re
from collections.abc import Iterable, Mapping, Sequence
from typing import TYPE_CHECKING
from urllib.parse import quote

from embedl_hub.tracking._values import without_nuls

if TYPE_CHECKING:
    from embedl_hub.tracking._journal import Record
    from embedl_hub.tracking._models import Value

REDACTED = "<redacted>"
_SECRET_NAME = re.compile(
    r"pass(word|wd|phrase)|secret|token|credential|bearer|cookie|authori[sz]ation|(amz|goog)[_-]signature"
    r"|(api|access|account|private|signing|encryption|auth|ssh)[_-]?key|(^|[_-])(pwd|pw|auth)($|[_-])",
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
_SIGNATURE = re.compile(r"sig|signature", re.IGNORECASE)
# Shorter values ("1", "true", "root") would black out half of every text.
_SHORTEST_SECRET = 6

_SHAPES = r"""
    (?<![A-Za-z0-9_-])(?:
        eh_[\w-]{32,}                                        # a key of our own server
      | (?:AKIA|ASIA|ABIA|ACCA)[A-Z2-7]{16}(?![A-Za-z0-9])   # AWS
      | gh[opsur]_[A-Za-z0-9]{20,} | github_pat_\w{20,} | glpat-[\w-]{20,}
      | hf_[A-Za-z0-9]{30,} | api_org_[A-Za-z0-9]{30,}       # Hugging Face
      | sk-(?:proj|svcacct|admin|ant|or|lf)-[\w-]{16,} | sk-[0-9a-f]{32,}(?![\w-])
      | sk-(?=[A-Za-z]*\d)(?=[a-z0-9]*[A-Z])(?=[A-Z0-9]*[a-z])[A-Za-z0-9]{20,}
      | [rs]k_(?:live|test)_[A-Za-z0-9]{16,}                 # Stripe
      | xox[abeoprs]-[\w-]{10,} | xapp-\d-[\w-]{10,}         # Slack
      | AIza[\w-]{35} | ya29\.[\w-]{20,} | GOCSPX-[\w-]{20,} # Google
      | nvapi-[\w-]{40,} | pypi-[\w-]{50,} | npm_[A-Za-z0-9]{36} | dckr_pat_[\w-]{20,}
      | eyJ[\w-]{8,}(?:\.[\w-]*){2,4}                        # a JSON web token
    )
  | -----BEGIN\ [A-Z0-9\ ]*PRIVATE\ KEY[A-Z\ ]*-----.*?(?:-----END\ [A-Z0-9\ ]*PRIVATE\ KEY[A-Z\ ]*-----|\Z)
"""
_STEMS = r"""
    pass(?:word|wd|phrase) | secret | token | credential | bearer | cookie | authori[sz]ation
  | (?:amz|goog)[_-]signature | (?:api|access|account|private|signing|encryption|auth|ssh)[_-]?key
  | (?<![A-Za-z])(?:pwd|pw|auth|sig|signature)(?![A-Za-z])
"""
# Every part has a longest length: what a board or a model says must not make the search slow.
_IN_TEXTS = re.compile(
    rf"""
    (?P<shape>{_SHAPES})
  | ://[^\s/:@\[\]"'<>,{{}}]{{0,100}}:(?!\d{{1,5}}(?:[/?\#]|$))(?P<password>[^\s"'<>]{{1,300}})@
  | \b(?i:(?:set-)?cookie|(?:proxy-)?authorization)\s{{0,4}}:\s{{0,4}}(?P<header>[^\r\n"']+)
  | \b(?P<scheme>(?i:bearer|basic))\s{{1,4}}(?P<proof>[\w.~+/-]{{8,}}={{0,2}})
  | (?:(?P<query>[?&]|%3[Ff]|%26)|(?<![\w.-])(?P<dash>--?)?)
    (?P<name>[\w.-]{{0,60}}?(?i:{_STEMS})[\w.-]{{0,40}})
    (?:(?P<sign>\\{{0,4}}["']?(?:\s{{0,8}}[=:]\s{{0,8}}|%3[Dd])(?:[bru]?\\{{0,4}}["'])?)|(?(dash)["']?,?\s{{1,4}}["']?|(?!)))
    """,
    re.VERBOSE | re.DOTALL,
)
_VALUE = re.compile(
    r"""(?<=\\["'])[^"'\\\n]+|(?<=")(?:[^"\\\n]|\\.)+|(?<=')(?:[^'\\\n]|\\.)+|[^\s"']+""", re.VERBOSE | re.DOTALL
)
_VALUE_IN_QUERY = re.compile(r"(?:(?!%26)[^\s\"'&#])+")
# Most texts are names and short words that hold nothing a secret needs: one fast look tells. It leaps from one
# separator to the next, of which a text is given one in front.
_may_hold_one = re.compile(
    r"[^A-Za-z0-9_-](?:(?<=[=:])|(?<=%)3[Dd]|-|PRIVATE|(?i:bearer|basic)\s|ya29\.|(?=[\w-]{11})(?:eh_|A[KSBC][IC]A"
    r"|AIza|gh[opsur]_|github_pat_|glpat-|hf_|api_org_|sk[-_]|rk_|xox|xapp-|GOCSPX|nvapi-|pypi-|npm_|dckr_pat_|eyJ))"
).search
_OPTION = re.compile(r"--?([A-Za-z][\w-]*)")
# After a name and an equals sign: nothing, or what stands for a secret ...
_PLACEHOLDER = re.compile(r"(?:None|null|True|False|true|false|\.\.\.|…|\$[A-Z_]+|\$\{\w+\}|<[^>]*>|\*+)[,.;:)\]}]*")
# ... or, without quotes, a type or a piece of code, as tracebacks quote it.
_CODE = re.compile(
    r"(?:str|bytes|int|bool|object|Any)(?:\|\w+)*[,)\]:=]*|[A-Za-z_][\w.]*(?:\(\S*\)+[,:;]*|\[)",
)
_VARIABLE = re.compile(r"(?:[A-Za-z_]\w*\.)*([A-Za-z_]+)[,:;)\]}]*")
_LIKE_WORDS = re.compile(r"[a-z]{1,9}[,.;:)]?|[A-Z_]+[,.;:)]?|-.*")
_NAMES_IN_PROSE = re.compile(r"token|cookie|bearer|auth", re.IGNORECASE)
_SURE_LENGTH = 20
_LONGEST_CODE = 200
_LONGEST_KNOWN = 200


@functools.lru_cache(maxsize=4096)
def is_secret_name(name: str) -> bool:
    """Tell whether a value under this name must not be stored."""
    if _HARMLESS_ENDING.search(name):
        return False
    return bool(_CERTAIN_NAME.search(name) or _SECRET_NAME.search(_HARMLESS_WORD.sub("", name)))


def without_known_secrets(text: str) -> str:
    """Return a text without what is a secret by its shape or by the name that stands before it."""
    if not _may_hold_one(" " + text):
        return text
    parts, done = [], 0
    for start, end in _secret_spans(text):
        parts += [text[done:start], REDACTED]
        done = end
    return "".join([*parts, text[done:]]) if parts else text


def _secret_spans(text: str) -> Iterable[tuple[int, int]]:
    """Yield where secrets are, in order."""
    at = 0
    while found := _IN_TEXTS.search(text, at):
        span = _secret_span(found)
        if span is not None:
            yield span
        # Not the value too, when it is none: it may hold a secret of its own.
        at = span[1] if span is not None else max(found.start("proof"), found.end("sign"), found.start() + 1)


def _secret_span(found: re.Match[str]) -> tuple[int, int] | None:
    """Return where the secret of a finding is; None when it only looked like one."""
    for kind in ("shape", "password", "header"):
        if found[kind] is not None:
            return found.span(kind)
    if found["scheme"] is not None:
        return found.span("proof") if _is_proof(found["scheme"], found["proof"]) else None
    in_query = found["query"] is not None
    # A signature in an address alone: elsewhere it is what a TFLite model has.
    if not (in_query if _SIGNATURE.fullmatch(found["name"]) else is_secret_name(found["name"])):
        return None
    value = (_VALUE_IN_QUERY if in_query else _VALUE).match(found.string, found.end())
    return value.span() if value is not None and _is_value(found, value[0]) else None


def _is_proof(scheme: str, proof: str) -> bool:
    """Tell a proof from a sentence about one: "Basic quantization", "bearer authentication"."""
    if scheme.lower() == "bearer":
        return len(proof) >= _SURE_LENGTH or any(letter.isdigit() for letter in proof)
    try:
        return b":" in base64.b64decode(proof, validate=True)
    except binascii.Error:
        return False


def _is_value(found: re.Match[str], value: str) -> bool:
    """Tell a secret under a secret name from a placeholder, a word of a sentence, and a piece of code."""
    if len(value) > _LONGEST_CODE:
        return True
    is_quoted = found[0][-1] in "\"'"
    if _PLACEHOLDER.fullmatch(value) or (not is_quoted and _CODE.fullmatch(value)):
        return False
    if is_quoted:
        return True
    if found["sign"] is None:
        return not _LIKE_WORDS.fullmatch(value)
    if ":" in found["sign"] and _NAMES_IN_PROSE.search(found["name"]):
        # "unexpected token: newline" is no secret, "token: 9f86d081" is one.
        return len(value) >= _SHORTEST_SECRET and any(letter.isdigit() for letter in value)
    variable = _VARIABLE.fullmatch(value)
    return variable is None or not is_secret_name(variable[1])


class Redactor:
    """Replaces secrets in names, values and texts.

    Secret values are learned from the environment when it is made, from every mapping passed to :meth:`learn` and from
    every value it replaces, so that a token is also found inside an error message that quotes it.
    """

    def __init__(self, environment: Mapping[str, str] | None = None) -> None:
        self._secrets: set[str] = set()
        self._pattern: re.Pattern[str] | None = None
        self._forget()
        variables = os.environ if environment is None else environment
        # A shell's PWD is the folder it is in; learned, it would black out every path.
        self._remember(_secret_texts({name: value for name, value in variables.items() if name != "PWD"}))

    def learn(self, values: Mapping[str, object]) -> None:
        """Remember the values that stand under secret names, at any depth, and those of options in command lines."""
        self._remember(_secret_texts(values))

    def _remember(self, texts: Iterable[str]) -> None:
        secrets = {text for text in texts if len(text) >= _SHORTEST_SECRET and text != REDACTED}
        if secrets and not secrets <= self._secrets:
            self._secrets = self._secrets | secrets
            spellings = {spelling for secret in self._secrets for spelling in _spellings(secret)}
            longest_first = sorted(spellings, key=len, reverse=True)
            self._pattern = re.compile("|".join(map(re.escape, longest_first)))
            self._forget()

    def _forget(self) -> None:
        """Start the table of texts anew: names, and most values, come again and again."""
        self._known = functools.lru_cache(maxsize=2048)(self._cleaned)

    def text(self, text: str) -> str:
        """Return the text without any secret value."""
        return self._known(text) if len(text) <= _LONGEST_KNOWN else self._cleaned(text)

    def _cleaned(self, text: str) -> str:
        # First what is known: a pattern would take the beginning of a password with a blank, and leave the rest.
        if self._pattern is not None:
            text = self._pattern.sub(REDACTED, text)
        return without_known_secrets(text) if _may_hold_one(" " + text) else text

    def value(self, name: str, value: Value) -> Value:
        """Return the value as it may be stored under this name."""
        if value is not None and not isinstance(value, bool) and is_secret_name(name):
            self.learn({name: value})
            return REDACTED
        if isinstance(value, str):
            return self.text(value)
        if isinstance(value, list):
            self._remember(_after_options(value))
            hidden = _places_after_options(value)
            return [REDACTED if place in hidden else self.value(name, item) for place, item in enumerate(value)]
        if isinstance(value, dict):
            return {self.text(key): self.value(key, item) for key, item in value.items()}
        return value

    def clean(self, records: Iterable[Record]) -> None:
        """Change records of a run to what may be written: none of their texts holds a secret afterwards."""
        value, text = self.value, self.text
        for record in records:
            kind = record["kind"]
            if kind == "metric":
                record["name"] = self._known(record["name"])
            elif kind == "param":
                record["value"] = value(record["name"], record["value"])
                record["name"] = self._known(record["name"])
            elif kind == "tag":
                # As text only now, so that a secret inside a dict is found by its name.
                record["value"] = without_nuls(str(value(record["name"], record["value"])))
                record["name"] = self._known(record["name"])
            else:
                for key, found in record.items():
                    if key not in _MADE_HERE and type(found) not in _NO_TEXTS:
                        record[key] = text(found) if type(found) is str else value(key, found)


# A folder's listing says what is in its hash, and the project's name was checked when the client was made.
_MADE_HERE = frozenset(
    {"kind", "type", "status", "sha256", "files", "parent_id", "project", "host", "seq", "time_ms", "name"}
)


def _places_after_options(items: Sequence[object]) -> frozenset[int]:
    """Return the places of a command line's words that are values of secret options: ``--token VALUE``."""
    return frozenset(
        place
        for place, (before, item) in enumerate(itertools.pairwise(items), start=1)
        if isinstance(before, str)
        and isinstance(item, str)
        and not item.startswith("-")
        and (option := _OPTION.fullmatch(before))
        and is_secret_name(option[1])
    )


def _after_options(items: Sequence[object]) -> Iterable[str]:
    return (str(items[place]) for place in _places_after_options(items))


_NO_TEXTS = frozenset({type(None), bool, int, float})


def _secret_texts(values: Mapping[str, object]) -> Iterable[str]:
    for name, value in values.items():
        if type(value) in _NO_TEXTS:
            continue
        if isinstance(value, Mapping):
            yield from _secret_texts(value)
        elif isinstance(value, list | tuple):
            yield from _after_options(value)
            for item in value:
                yield from _secret_texts({name: item})
        elif isinstance(value, str | bytes) and is_secret_name(str(name)):
            yield value.decode("utf-8", "replace") if isinstance(value, bytes) else value
        elif isinstance(value, str) and _may_hold_one(" " + value):
            yield from (value[start:end] for start, end in _secret_spans(value))


def _spellings(secret: str) -> Iterable[str]:
    """Yield a secret as it stands in plain text, in a Python literal, in JSON and in a URL."""
    yield secret
    yield repr(secret)[1:-1]
    yield json.dumps(secret)[1:-1]
    yield json.dumps(secret, ensure_ascii=False)[1:-1]
    yield quote(secret.encode("utf-8", "backslashreplace"), safe="")
