"""Records that come from elsewhere, by a client or in a bundle: none is believed before it is checked here."""

from __future__ import annotations

import math
import re
from collections.abc import Callable
from dataclasses import dataclass
from typing import TypeAlias

from embedl_hub.errors import ConfigError
from embedl_hub.tracking._blobs import folder_content
from embedl_hub.tracking._journal import FORMAT, LATEST_MS, Record
from embedl_hub.tracking._models import RunStatus, RunType
from embedl_hub.tracking._values import check_file_name, check_name

Check: TypeAlias = Callable[[str, object], None]


@dataclass(frozen=True)
class RecordLimits:
    """What a record may hold."""

    time_ms: int = LATEST_MS
    whole: int = 2**63 - 1  # the largest whole number
    files: int = 10_000  # the most files of a folder
    text: int = 200_000  # the longest text
    not_finite: tuple[str, ...] = ("nan", "inf", "-inf")  # how a metric that is not finite is written


RECORD_LIMITS = RecordLimits()
RUN_ID = re.compile(r"[0-9a-f]{8,64}")
SHA256 = re.compile(r"[0-9a-f]{64}")
_LARGEST_NUMBER = 1.7e308
_LONGEST_PATH = 4096
_LONGEST_PART = 255
_DEEPEST = 200


def check_record(record: object) -> None:
    """Refuse what is no record, or holds what an index or a page cannot; says why."""
    try:
        _check(record)
    except ConfigError:
        raise
    except ValueError as error:
        raise ConfigError(str(error)) from error


def _check(record: object) -> None:
    if not isinstance(record, dict):
        raise ValueError("must be an object.")  # noqa: TRY004 - all reasons leave as one kind
    kind = record.get("kind")
    if not isinstance(kind, str) or kind not in _KINDS:
        raise ValueError(f"kind must be one of {', '.join(_KINDS)}, not {kind!r:.100}.")
    _check_plain(record)
    fields = _COMMON | _KINDS[kind]
    for name in record:
        if name not in fields:
            raise ValueError(f"a {kind} has no {name!r:.100}; known: {', '.join(fields)}.")
    for name, check in fields.items():
        if name in record:
            check(name, record[name])
        elif name not in _OPTIONAL:
            raise ValueError(f"a {kind} needs {name}.")
    if (kind == "start") != (record["seq"] == 0):
        raise ValueError("a run starts with seq 0, and only there.")
    if kind == "artifact":
        _check_artifact(record)


def _check_plain(value: object) -> None:
    """Refuse what a database or a page cannot hold, at any depth; without recursion, which a client could exhaust."""
    waiting: list[tuple[object, int]] = [(value, 0)]
    while waiting:
        item, depth = waiting.pop()
        if depth > _DEEPEST:
            raise ValueError(f"values are nested more than {_DEEPEST} deep.")
        if isinstance(item, str):
            try:
                item.encode()
            except UnicodeEncodeError as error:
                raise ValueError("a text is not valid Unicode.") from error
        elif isinstance(item, float) and not math.isfinite(item):
            raise ValueError("a number is not finite; it is written as text: " + ", ".join(RECORD_LIMITS.not_finite))
        elif isinstance(item, dict):
            waiting += [(part, depth + 1) for pair in item.items() for part in pair]
        elif isinstance(item, list):
            waiting += [(part, depth + 1) for part in item]


def _any(name: str, value: object) -> None:
    pass


def _whole(least: int, most: int) -> Check:
    def check(name: str, value: object) -> None:
        if type(value) is not int or not least <= value <= most:
            raise ValueError(f"{name} must be a whole number from {least} to {most}.")

    return check


def _or_none(check: Check) -> Check:
    return lambda name, value: None if value is None else check(name, value)


def _one_of(words: tuple[str, ...]) -> Check:
    return _text_that(f"be one of {', '.join(words)}", words.__contains__)


def _text_that(must: str, is_right: Callable[[str], object]) -> Check:
    def check(name: str, value: object) -> None:
        if not isinstance(value, str) or not is_right(value):
            raise ValueError(f"{name} must {must}.")

    return check


_size = _whole(0, RECORD_LIMITS.whole)
_step = _whole(-RECORD_LIMITS.whole, RECORD_LIMITS.whole)
_run_id = _text_that("be the id of a run", RUN_ID.fullmatch)
_sha256 = _text_that("be a SHA-256 in lower-case hex", SHA256.fullmatch)
_text = _text_that(
    f"be text of at most {RECORD_LIMITS.text} characters, without NULs",
    lambda text: len(text) <= RECORD_LIMITS.text and "\0" not in text,
)


def _flag(name: str, value: object) -> None:
    if type(value) is not bool:
        raise ValueError(f"{name} must be true or false.")


def _plain_name(name: str, value: object) -> None:
    if not isinstance(value, str):
        raise ValueError(f"{name} must be text.")  # noqa: TRY004 - all reasons leave as one kind
    check_file_name(name, value)


def _metric(name: str, value: object) -> None:
    # An integer too large for a float has no place among metrics either.
    is_number = type(value) in (int, float) and abs(value) <= _LARGEST_NUMBER  # type: ignore[arg-type]
    if not is_number and value not in RECORD_LIMITS.not_finite:
        raise ValueError(f"{name} must be a number, or one of {', '.join(RECORD_LIMITS.not_finite)}.")


def _files(name: str, value: object) -> None:
    if not isinstance(value, list) or len(value) > RECORD_LIMITS.files:
        raise ValueError(f"{name} must be a list of at most {RECORD_LIMITS.files} files.")
    for file in value:
        if not isinstance(file, list) or len(file) != 3:
            raise ValueError(f"{name} holds [name, sha256, size] for each file.")
        _inner_path(file[0])
        _sha256("a file's hash", file[1])
        _size("a file's size", file[2])


def _inner_path(path: object) -> None:
    """Refuse a name inside a folder that leads anywhere but below it."""
    is_path = isinstance(path, str) and 0 < len(path.encode()) <= _LONGEST_PATH and "\0" not in path
    parts = str(path).split("/") if is_path else [""]
    if any(part in {"", ".", ".."} or len(part.encode()) > _LONGEST_PART for part in parts):
        raise ValueError(f"a file inside the folder cannot be called {path!r:.100}.")


def _check_artifact(record: Record) -> None:
    files = record.get("files")
    if files is None:
        return
    names = {name for name, _, _ in files}
    folders = {"/".join(parts[:end]) for parts in (name.split("/") for name in names) for end in range(1, len(parts))}
    if len(names) != len(files) or names & folders:
        raise ValueError("two files of the folder stand in each other's way.")
    sizes: dict[str, int] = {}
    for _, sha256, size in files:
        if sizes.setdefault(sha256, size) != size:
            raise ValueError("one content has two sizes.")
    content = folder_content(tuple((name, sha256, size) for name, sha256, size in files))
    if content.sha256 != record["sha256"] or content.size_bytes != record["size_bytes"]:
        raise ValueError("the folder's hash or size is not that of its files.")


_COMMON: dict[str, Check] = {"seq": _whole(0, 2**53), "kind": _any, "time_ms": _whole(0, RECORD_LIMITS.time_ms)}
_KINDS: dict[str, dict[str, Check]] = {
    "start": {
        "format": _whole(1, FORMAT), "project": check_name, "host": check_name, "pid": _size, "detached": _flag,
        "type": _one_of(tuple(RunType)), "name": check_name, "component": check_name, "provider": check_name,
        "device": check_name, "parent_id": _run_id,
    },
    "param": {"name": check_name, "value": _any},
    "metric": {"name": check_name, "value": _metric, "step": _or_none(_step)},
    "tag": {"name": check_name, "value": _text},
    "artifact": {
        "name": _plain_name, "file_name": _plain_name, "sha256": _sha256, "size_bytes": _size, "files": _files,
    },
    "end": {"status": _one_of(tuple(RunStatus)), "error": _or_none(_text), "traceback": _or_none(_text)},
    "archive": {"archived": _flag},
}  # fmt: skip
_OPTIONAL = frozenset(
    ("host", "pid", "detached", "component", "provider", "device", "parent_id", "step", "files", "error", "traceback")
)
