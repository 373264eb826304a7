"""``embedl-hub schema``: print the JSON Schema of what a command prints with --json."""

from __future__ import annotations

import click

from embedl_device.json_output import NotPrintedError, schemas
from embedl_device.schema import ANY, by_name
from embedl_hub.cli._output import emit, json_option
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
    try:
        emit(schemas("embedl-hub", ctx.find_root(), words))
    except NotPrintedError as error:
        raise ConfigError(f"{error}; there are: {quoted_list(error.known)}.") from None
