"""``embedl-hub completion``: print the script that completes commands and options in a shell."""

from __future__ import annotations

import click
from click.shell_completion import get_completion_class

from embedl_device.schema import TEXT, fields
from embedl_hub.cli._output import json_option, report

_NAMES = ("embedl-hub", "ehub")


@click.command()
@click.argument("shell", type=click.Choice(["bash", "zsh", "fish"]))
@json_option(fields({"shell": TEXT, "script": TEXT}))
def command(shell: str, as_json: bool) -> None:
    """Print the script that completes commands and options in a shell.

    For bash put this into ~/.bashrc:  eval "$(embedl-hub completion bash)"
    """
    # The group itself, without importing it: this file is imported by it.
    group = click.get_current_context().find_root().command
    script = get_completion_class(shell)
    if script is None:
        raise click.UsageError(f"There is no completion for {shell}.")
    scripts = [script(group, {}, name, f"_{name.replace('-', '_').upper()}_COMPLETE").source() for name in _NAMES]
    report({"shell": shell, "script": "\n".join(scripts)}, *scripts, as_json=as_json)
