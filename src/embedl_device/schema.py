"""The shape of what a command prints as JSON, written beside the command and given out as a JSON Schema (2020-12).

A shape is a schema already, a plain mapping; these are the words to write one with. A program may meet more fields than
a schema lists: a later version adds some, and takes none away.
"""

from __future__ import annotations

import collections.abc
import dataclasses
import enum
import types
import typing
from typing import Any, Callable, Dict, Mapping, Union

Shape = Mapping[str, Any]
Deferred = Union[Shape, Callable[[], Shape]]
"""A shape, or what returns it: one whose classes are slow to import is asked for when somebody wants the schema."""

DIALECT = "https://json-schema.org/draft/2020-12/schema"
ANY: Shape = {}
TEXT: Shape = {"type": "string"}
FLAG: Shape = {"type": "boolean"}
WHOLE: Shape = {"type": "integer"}
# JSON has no numbers that are not finite; they are printed as text.
NUMBER: Shape = {"anyOf": [{"type": "number"}, {"enum": ["nan", "inf", "-inf"]}]}
NOTHING: Shape = {"type": "null"}


def one_of(*words: str) -> Shape:
    """Return the shape of one of some words."""
    return {"enum": list(words)}


def maybe(shape: Shape) -> Shape:
    """Return the shape of what may be null."""
    return {**shape, "type": [shape["type"], "null"]} if isinstance(shape.get("type"), str) else either(shape, NOTHING)


def either(*shapes: Shape) -> Shape:
    """Return what has one of several shapes."""
    return {"anyOf": list(shapes)}


def array(shape: Shape) -> Shape:
    """Return the shape of a list."""
    return {"type": "array", "items": shape}


def by_name(shape: Shape) -> Shape:
    """Return the shape of values by name."""
    return {"type": "object", "additionalProperties": shape}


def described(shape: Shape, text: str) -> Shape:
    """Return a shape with what it means."""
    return {**shape, "description": text}


def fields(required: Mapping[str, Shape], optional: Mapping[str, Shape] = types.MappingProxyType({})) -> Shape:
    """Return the shape of an object with these fields."""
    return {"type": "object", "properties": {**required, **optional}, "required": list(required)}


def both(*parts: Shape) -> Shape:
    """Return an object that has the fields of several."""
    properties: Dict[str, Shape] = {}
    required = []
    for part in parts:
        properties.update(part["properties"])
        required += part["required"]
    return {"type": "object", "properties": properties, "required": required}


def of(kind: Any, **others: Shape) -> Shape:
    """Return the shape of a data class as ``dataclasses.asdict`` gives it, or of any type; others win."""
    if not dataclasses.is_dataclass(kind) and not hasattr(kind, "_fields"):
        return _of_type(kind)
    hints = typing.get_type_hints(kind)
    names = getattr(kind, "_fields", None) or [field.name for field in dataclasses.fields(kind)]
    own = {name: _of_type(hints[name]) for name in names if name not in others}
    return fields({**{name: own.get(name) or others[name] for name in names}, **others})


def _of_type(kind: Any) -> Shape:
    plain = {str: TEXT, bool: FLAG, int: WHOLE, float: NUMBER, type(None): NOTHING, object: ANY, Any: ANY}
    if kind in plain:
        return plain[kind]
    origin, arguments = typing.get_origin(kind), typing.get_args(kind)
    if origin is Union or origin is getattr(types, "UnionType", Union):
        kinds = [_of_type(one) for one in arguments if one is not type(None)]
        shape = kinds[0] if len(kinds) == 1 else either(*kinds)
        return maybe(shape) if type(None) in arguments else shape
    if dataclasses.is_dataclass(kind) or hasattr(kind, "_fields"):
        return of(kind)
    if isinstance(kind, type) and issubclass(kind, enum.Enum):
        return one_of(*(str(member.value) for member in kind))
    if origin in (tuple, list, frozenset) or (origin is not None and issubclass(origin, collections.abc.Sequence)):
        return array(_of_type(arguments[0]) if arguments else ANY)
    if origin is not None and issubclass(origin, collections.abc.Mapping):
        return by_name(_of_type(arguments[1]))
    raise TypeError("{!r} has no shape in JSON".format(kind))


def document(shape: Deferred, title: str) -> Dict[str, Any]:
    """Return a shape as a whole JSON Schema."""
    found = shape() if callable(shape) else shape
    return {"$schema": DIALECT, "title": title, **found}
