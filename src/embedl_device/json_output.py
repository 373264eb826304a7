"""``--json`` of the command lines of the hub and of deploy: what a command promises to print, and errors for programs.

Both bring click; no program on a board imports this.
"""

from __future__ import annotations

import json
import math
from typing import Any, Callable, Dict, Iterator, List, Optional, Sequence, Tuple, TypeVar

import click

from embedl_device.schema import Deferred, document

JSON_WANTED = "embedl_hub.json"
"""Under this name a group notes in ``ctx.meta`` that ``--json`` stood before the command."""

_Decorated = TypeVar("_Decorated", bound=Callable[..., Any])


class JsonOption(click.Option):
    """``--json``, with the shape of what the command prints then."""

    def __init__(self, *args: Any, shape: Deferred, **kwargs: Any) -> None:
        super().__init__(*args, **kwargs)
        self.shape = shape


def json_option(shape: Deferred) -> Callable[[_Decorated], _Decorated]:
    """Give a command ``--json``, and say the shape of the one document that it prints then."""
    return click.option(
        "--json", "as_json", is_flag=True, help="Print JSON for programs.", cls=JsonOption, shape=shape,
        # It may stand before the command too.
        callback=lambda ctx, _parameter, value: value or bool(ctx.meta.get(JSON_WANTED)),
    )  # fmt: skip


def shape_of(command: click.Command) -> Optional[Deferred]:
    """Return the shape of what a command prints with ``--json``; None when it takes none."""
    return next((each.shape for each in command.params if isinstance(each, JsonOption)), None)


def printing(command: click.Command, ctx: click.Context, name: str = "") -> Iterator[Tuple[str, click.Command]]:
    """Yield every command that takes ``--json``, by its words."""
    if shape_of(command) is not None:
        yield name, command
    if isinstance(command, click.Group):
        for word in command.list_commands(ctx):
            below = command.get_command(ctx, word)
            if below is not None:
                inner = click.Context(below, parent=ctx, info_name=word)
                yield from printing(below, inner, "{} {}".format(name, word).strip())


class NotPrintedError(LookupError):
    """No command of these words takes ``--json``; ``known`` are those that may have been meant."""

    def __init__(self, name: str, known: Sequence[str]) -> None:
        super().__init__("There is no command {!r} with --json".format(name))
        self.known: List[str] = list(known)


def schemas(program: str, root: click.Context, words: Sequence[str]) -> Dict[str, Any]:
    """Return the JSON Schema of what a command of a program prints; of all by their names without words.

    Raises:
        NotPrintedError: There is no such command.
    """
    name = " ".join(words)
    # The one alone first: to know all is to import all.
    asked = _find(root, words) if words else None
    if asked is not None and shape_of(asked) is not None:
        return schema_of(program, name, asked)
    known = dict(printing(root.command, root))
    if words:
        raise NotPrintedError(name, [each for each in known if each.startswith(name + " ")] or list(known))
    return {each: schema_of(program, each, found) for each, found in known.items()}


def _find(ctx: click.Context, words: Sequence[str]) -> Optional[click.Command]:
    command: Optional[click.Command] = ctx.command
    for word in words:
        command = command.get_command(ctx, word) if isinstance(command, click.Group) else None
    return command


def schema_of(program: str, name: str, command: click.Command) -> Dict[str, Any]:
    """Return the JSON Schema of what a command prints."""
    shape = shape_of(command)
    assert shape is not None  # noqa: S101 - only such are asked for
    return document(shape, "{} {} --json".format(program, name))


def as_json_text(value: object, *, indent: Optional[int] = None) -> str:
    """Return a value as JSON; numbers that are not finite, which JSON has none of, as the text that records have."""
    try:
        return json.dumps(value, indent=indent, ensure_ascii=False, allow_nan=False)
    except ValueError:
        return json.dumps(_finite(value), indent=indent, ensure_ascii=False, allow_nan=False)


def _finite(value: object) -> object:
    if isinstance(value, float):
        return value if math.isfinite(value) else str(value)
    if isinstance(value, dict):
        return {key: _finite(item) for key, item in value.items()}
    return [_finite(item) for item in value] if isinstance(value, (list, tuple)) else value


def error_text(error: object, code: int) -> str:
    """Return why a command ends with an exit code, as one line of JSON; a text is an error of no kind of its own."""
    kind = "Error" if isinstance(error, str) else type(error).__name__
    message = error.format_message() if isinstance(error, click.ClickException) else str(error)
    return as_json_text({"error": {"kind": kind, "message": message, "exit_code": code}})
