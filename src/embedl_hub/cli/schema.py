"""``embedl-hub schema``: print the JSON Schema of what a command prints with --json."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

import click

from embedl_device.schema import ANY, by_name, document
from embedl_hub.cli._output import emit, json_option, shape_of
from embedl_hub.errors import ConfigError, quoted_list


@click.command()
@click.argument("words", nargs=-1, metavar="[COMMAND]...")
@json_option(by_name(ANY))
@click.pass_context
def command(ctx: click.Context, words: tuple[str, ...], as_json: bool) -> None:  # noqa: ARG001 - it is JSON anyway
    """Print the JSON Schema (2020-12) of what a command prints with --json; of all by their names if none is given.

    \b
    embedl-hub schema run list
    """  # noqa: D301 - click's mark for text that keeps its lines
    root, name = ctx.find_root(), " ".join(words)
    # The one alone first: to know all is to import all.
    asked = _find(root, words) if words else None
    if asked is not None and shape_of(asked) is not None:
        emit(schema_of(name, asked))
        return
    known = dict(printing(root.command, root))
    if words:
        below = [each for each in known if each.startswith(f"{name} ")] or list(known)
        raise ConfigError(f"There is no command {name!r} with --json; there are: {quoted_list(below)}.")
    emit({each: schema_of(each, found) for each, found in known.items()})


def _find(ctx: click.Context, words: Sequence[str]) -> click.Command | None:
    command: click.Command | None = ctx.command
    for word in words:
        command = command.get_command(ctx, word) if isinstance(command, click.Group) else None
    return command


def printing(command: click.Command, ctx: click.Context, name: str = "") -> Iterator[tuple[str, click.Command]]:
    """Yield every command that takes ``--json``, by its words."""
    if shape_of(command) is not None:
        yield name, command
    if isinstance(command, click.Group):
        for word in command.list_commands(ctx):
            below = command.get_command(ctx, word)
            if below is not None:
                yield from printing(below, click.Context(below, parent=ctx, info_name=word), f"{name} {word}".strip())


def schema_of(name: str, command: click.Command) -> dict[str, object]:
    """Return the JSON Schema of what a command prints."""
    shape = shape_of(command)
    assert shape is not None  # noqa: S101 - only such are yielded
    return document(shape, f"embedl-hub {name} --json")
