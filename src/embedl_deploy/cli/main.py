"""The entry point: lazy commands, one clean line for what a user can fix.

Exit codes: 0 done, 1 an error, 2 wrong usage, 3 a check or verification that did not hold.
"""

import importlib.metadata
import sys

import click

from embedl_deploy._version import __version__
from embedl_deploy.errors import DeployError
from embedl_device.json_output import error_text
from embedl_device.terminal import guarded

COMMANDS = "embedl_deploy.commands"
"""The entry-point group of commands; ours are found the same way."""


class _LazyGroup(click.Group):
    """Knows the commands by their entry points and imports one only when it is called or asked for help."""

    def list_commands(self, ctx: click.Context) -> list[str]:  # noqa: ARG002 - click's signature
        return sorted(entry.name for entry in importlib.metadata.entry_points(group=COMMANDS))

    def get_command(self, ctx: click.Context, cmd_name: str) -> click.Command | None:  # noqa: ARG002 - click's signature
        for entry in importlib.metadata.entry_points(group=COMMANDS, name=cmd_name):
            try:
                command = entry.load()
            except (ImportError, AttributeError) as error:
                package = entry.dist.name if entry.dist is not None else entry.value
                raise click.ClickException(
                    f"The command {cmd_name!r} of {package} cannot be loaded: {error}."
                ) from error
            return command if isinstance(command, click.Command) else None
        return None


@click.group(cls=_LazyGroup, context_settings={"help_option_names": ["-h", "--help"]})
@click.version_option(__version__, "-V", "--version", prog_name="embedl-deploy")
def cli() -> None:
    """Quantize models, write them for a runtime, and prove what the runtime will make of them."""


def main() -> None:
    """Run the command line."""
    # Names of layers, and what a file says of itself, may be anybody's.
    with guarded():
        code = _run()
    sys.exit(code)


def _run() -> int:
    # By the words: what fails first is the reading of them.
    as_json = "--json" in sys.argv[1:]
    try:
        code = cli(standalone_mode=False)
    except DeployError as error:
        click.echo(error_text(error, 1) if as_json else f"embedl-deploy: {error}", err=True)
        return 1
    except click.ClickException as error:
        if as_json:
            click.echo(error_text(error, error.exit_code), err=True)
        else:
            error.show()
        return error.exit_code
    except (click.Abort, KeyboardInterrupt):
        click.echo(error_text("stopped.", 130) if as_json else "embedl-deploy: stopped.", err=True)
        return 130
    except BrokenPipeError:
        # Somebody piped us into head; that is no failure.
        sys.stderr.close()
        return 0
    return code if isinstance(code, int) else 0
