"""The entry point: global options, lazy commands, one clean message for what a user can fix."""

from __future__ import annotations

import importlib
import logging
import sys

import click

import embedl_hub
from embedl_hub.errors import HubError

_COMMANDS = {
    "reindex": "Rebuild the index of runs from the run folders.",
    "run": "List and show recorded runs.",
    "serve": "Serve runs to a team, and hand out keys.",
    "sync": "Send runs that a server has not got yet.",
}


class _LazyGroup(click.Group):
    """Knows the commands by name and imports one only when it is called or asked for help."""

    def list_commands(self, ctx: click.Context) -> list[str]:  # noqa: ARG002 - click's signature
        return sorted(_COMMANDS)

    def get_command(self, ctx: click.Context, cmd_name: str) -> click.Command | None:  # noqa: ARG002 - click's signature
        if cmd_name not in _COMMANDS:
            return None
        command = importlib.import_module(f"embedl_hub.cli.{cmd_name}").command
        return command if isinstance(command, click.Command) else None

    def format_commands(self, ctx: click.Context, formatter: click.HelpFormatter) -> None:  # noqa: ARG002
        # The one-line texts stand here, so that --help imports no command.
        with formatter.section("Commands"):
            formatter.write_dl(sorted(_COMMANDS.items()))


@click.group(cls=_LazyGroup, context_settings={"help_option_names": ["-h", "--help"]})
@click.version_option(embedl_hub.__version__, "-V", "--version", prog_name="embedl-hub")
@click.option("-v", "--verbose", count=True, help="Say more; twice or thrice for still more.")
def cli(verbose: int) -> None:
    """Compile, profile and invoke models on real devices; find every run again."""
    logging.basicConfig(level=logging.WARNING - 10 * min(verbose, 2), format="%(message)s", stream=sys.stderr)


def main() -> None:
    """Run the command line."""
    try:
        cli(standalone_mode=False)
    except HubError as error:
        click.echo(f"embedl-hub: {error}", err=True)
        sys.exit(1)
    except click.ClickException as error:
        error.show()
        sys.exit(error.exit_code)
    except (click.Abort, KeyboardInterrupt):
        click.echo("embedl-hub: stopped.", err=True)
        sys.exit(130)
    except BrokenPipeError:
        # Somebody piped us into head; that is no failure.
        sys.stderr.close()
        sys.exit(0)
