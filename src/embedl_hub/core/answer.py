"""JSON that a board or a program answered: parsed as data, within bounds that a parser alone does not have."""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import TypeAlias

from embedl_device.readers import parse_json

Form: TypeAlias = "type | list[Form] | Mapping[str, Form]"
"""What a value must be: a type (``float`` is any finite number, ``object`` anything), ``[form]`` for a list of such,
``{"*": form}`` for an object of such, or the form of each key that somebody reads; a key with ``?`` may be missing or
null, and others than these may be there."""

# The largest honest answer is a profile: a hundred thousand samples are two million characters.
_MOST_CHARACTERS = 16 << 20
_MOST_VALUES = 1_000_000
# Lists and objects cost a hundred times their two characters.
_MOST_CONTAINERS = 200_000
_LARGEST = 1e300


def parse_answer(text: str, *, strict: bool = True) -> object:
    """Return what JSON text says; a ``ValueError`` for what is none, or would take more memory than it is worth.

    Not ``strict`` lets control characters stand in texts.
    """
    if len(text) > _MOST_CHARACTERS:
        raise ValueError(f"the answer has {len(text)} characters, more than {_MOST_CHARACTERS}")
    if text.count(",") > _MOST_VALUES or text.count("[") + text.count("{") > _MOST_CONTAINERS:
        raise ValueError(f"the answer has more than {_MOST_VALUES} values, or {_MOST_CONTAINERS} lists and objects")
    value: object = parse_json(text, strict=strict)
    return value


def check_form(value: object, form: Form, where: str = "it") -> None:
    """Raise a ``ValueError`` that names the first place where a value has not the form that its readers count on."""
    if isinstance(form, list):
        if not isinstance(value, list):
            raise _wrong(where, value, "a list")
        for number, each in enumerate(value):
            check_form(each, form[0], f"{where}[{number}]")
    elif isinstance(form, Mapping):
        _check_object(value, form, where)
    elif not _is(value, form):
        raise _wrong(where, value, form.__name__)


def _check_object(value: object, form: Mapping[str, Form], where: str) -> None:
    if not isinstance(value, dict):
        raise _wrong(where, value, "an object")
    if "*" in form:
        for key, each in value.items():
            check_form(each, form["*"], f"{where}.{key:.50}")
        return
    for key, each_form in form.items():
        name = key.removesuffix("?")
        if value.get(name) is not None:
            check_form(value[name], each_form, f"{where}.{name}")
        elif name == key:
            raise ValueError(f"{where} has no {name!r}")


def _is(value: object, kind: type) -> bool:
    if kind is object:
        return True
    if isinstance(value, bool) or kind is bool:
        return isinstance(value, bool) and kind is bool
    if kind is float:
        # Larger whole numbers than a float can be are none either.
        return isinstance(value, int | float) and -_LARGEST < value < _LARGEST and math.isfinite(value)
    return isinstance(value, kind)


def _wrong(where: str, value: object, wanted: str) -> ValueError:
    return ValueError(f"{where} is {value!r:.60}, not {wanted}")
