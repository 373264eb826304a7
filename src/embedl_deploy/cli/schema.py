"""``embedl-deploy schema``."""

import click

from embedl_deploy.cli import options
from embedl_deploy.errors import InputError, quoted_list
from embedl_device import schema
from embedl_device.json_output import NotPrintedError, as_json_text, schemas


@click.command("schema", short_help="Print the JSON Schema of what a command prints with --json.")
@click.argument("words", nargs=-1, metavar="[COMMAND]...")
@options.as_json(schema.by_name(schema.ANY))
@click.pass_context
def command(ctx: click.Context, words: tuple[str, ...], *, as_json: bool) -> None:  # noqa: ARG001 - it is JSON anyway
    """Print the JSON Schema (2020-12) of what a command prints with --json; of all by their names if none is given.

    \b
    embedl-deploy schema verify
    """  # noqa: D301 - click's mark for text that keeps its lines
    try:
        click.echo(as_json_text(schemas("embedl-deploy", ctx.find_root(), words), indent=2))
    except NotPrintedError as error:
        raise InputError(f"{error}; there are: {quoted_list(error.known)}.") from None
