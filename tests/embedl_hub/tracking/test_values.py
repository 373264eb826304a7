"""What may be logged."""

from __future__ import annotations

import threading
from dataclasses import dataclass, field
from enum import Enum, IntEnum, StrEnum
from pathlib import Path, PurePosixPath
from types import MappingProxyType
from typing import TYPE_CHECKING

import numpy as np
import pytest

from embedl_hub.errors import ConfigError
from embedl_hub.tracking import plain_value
from embedl_hub.tracking._values import check_file_name, check_name, whole_step

if TYPE_CHECKING:
    from embedl_hub.tracking import Value


class Plain(Enum):
    RED = ("r", 1)


class Number(IntEnum):
    TWO = 2


class Word(StrEnum):
    YES = "yes"


class OldWord(str, Enum):  # noqa: UP042 - the older spelling, whose str() is not its value
    YES = "yes"


@dataclass(frozen=True)
class Inner:
    word: Word = Word.YES


@dataclass(frozen=True)
class Outer:
    size: int = 3
    inner: Inner = field(default_factory=Inner)


@dataclass
class WithLock:
    """A lock can be neither copied nor pickled."""

    lock: object = field(default_factory=threading.Lock)


@pytest.mark.parametrize(
    ("given", "plain"),
    [
        (None, None),
        (True, True),
        (-7, -7),
        (2**80, 2**80),
        (0.1, 0.1),
        (float("nan"), "nan"),
        (float("-inf"), "-inf"),
        ("grün ✓ 名前", "grün ✓ 名前"),
        ("odd \udcff byte", "odd \\udcff byte"),
        (Path("/a/b"), "/a/b"),
        (PurePosixPath("c"), "c"),
        (Plain.RED, ["r", 1]),
        (Number.TWO, 2),
        (Word.YES, "yes"),
        (OldWord.YES, "yes"),
        (Outer(), {"size": 3, "inner": {"word": "yes"}}),
        ({1: (2, 3)}, {"1": [2, 3]}),
        (MappingProxyType({"a": {1}}), {"a": [1]}),
        ({"b", "a"}, ["a", "b"]),
        (np.int64(5), 5),
        (np.float64(0.5), 0.5),
        (np.float32(0.5), 0.5),
        (np.float64("nan"), "nan"),
        (np.float32("inf"), "inf"),
        (np.bool_(True), True),
        (np.str_("text"), "text"),
        (np.array(3), 3),
        (np.zeros((2, 3), np.float32), "<array float32[2, 3]>"),
        (b"\x00\x01", "b'\\x00\\x01'"),
        (int, "<class 'int'>"),
    ],
)
def test_values_become_plain(given: object, plain: Value) -> None:
    """Every kind of value has one plain form, of a type that JSON knows."""
    result = plain_value(given)
    assert result == plain
    assert type(result) is type(plain)


def test_what_cannot_be_copied_is_described() -> None:
    """A dataclass that holds a lock is recorded, not copied."""
    result = plain_value(WithLock())
    assert isinstance(result, dict)
    assert "lock" in str(result["lock"])


def test_a_value_that_contains_itself_is_refused() -> None:
    """The message names the type instead of ending in a recursion."""
    endless: dict[str, object] = {}
    endless["self"] = endless
    with pytest.raises(ConfigError, match="A dict that contains itself"):
        plain_value(endless)


@pytest.mark.parametrize("step", [1.5, "three", 2**70, -(2**70), float("nan"), float("inf"), object()])
def test_a_step_that_is_not_whole_is_refused(step: object) -> None:
    """The message names the metric and the value."""
    with pytest.raises(ConfigError, match="step of metric 'loss' must be a whole number"):
        whole_step("loss", step)


@pytest.mark.parametrize(
    ("step", "whole"), [(None, None), (0, 0), (-1, -1), (3.0, 3), (np.int32(4), 4), (2**62, 2**62)]
)
def test_whole_steps_become_integers(step: object, whole: int | None) -> None:
    """Whole numbers of any kind are steps."""
    assert whole_step("loss", step) == whole


@pytest.mark.parametrize(
    ("name", "reason"),
    [
        ("", "1 to 200 bytes, not ''"),
        ("   ", "1 to 200 bytes"),
        (None, "not None"),
        (3, "not 3"),
        ("x" * 201, "1 to 200 bytes"),
        ("ü" * 101, "1 to 200 bytes"),
        ("a\x00b", r"control characters: 'a\x00b'"),
        ("a\nb", r"control characters: 'a\nb'"),
        ("\x1b[31m", "control characters"),
        ("a\x7f", "control characters"),
        ("a\x9b", "control characters"),
        ("a\udcff", r"valid text, not 'a\udcff'"),
    ],
)
def test_bad_names_are_refused(name: object, reason: str) -> None:
    """The message says what the name is for, what is wrong with it and what it was."""
    with pytest.raises(ConfigError) as caught:
        check_name("tag name", name)
    assert "tag name" in str(caught.value)
    assert reason in str(caught.value)
    assert len(str(caught.value)) < 500


@pytest.mark.parametrize("name", ["..", ".", "a/b", "/etc/passwd", "a\\b", "../../x"])
def test_names_that_lead_elsewhere_are_refused(name: str) -> None:
    """A file name has no folders in it."""
    with pytest.raises(ConfigError, match="must be a plain name, without folders"):
        check_file_name("file name", name)


@pytest.mark.parametrize("name", ["x", "ü" * 100, "-rf", "$(reboot)", "a b;c", ".hidden", "名前", "...", "a'\"b"])
def test_odd_but_harmless_names_are_taken(name: str) -> None:
    """Only what can do harm is refused."""
    check_file_name("file name", name)
