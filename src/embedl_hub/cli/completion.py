"""``embedl-hub completion``: print the script that completes commands and options in a shell."""

from __future__ import annotations

import click
from click.shell_completion import get_completion_class

_NAMES = ("embedl-hub", "ehub")


@click.command()
@click.argument("shell", type=click.Choice(["bash", "zsh", "fish"]))
def command(shell: str) -> None:
    """Print the script that completes commands and options in a shell.

    For bash put this into ~/.bashrc:  eval "$(embedl-hub completion bash)"
    """
    # The group itself, without importing it: this file is imported by it.
    group = click.get_current_context().find_root().command
    script = get_completion_class(shell)
    if script is None:
        raise click.UsageError(f"There is no completion for {shell}.")
    for name in _NAMES:
        variable = f"_{name.replace('-', '_').upper()}_COMPLETE"
        click.echo(script(group, {}, name, variable).source())
