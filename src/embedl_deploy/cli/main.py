"""The entry point: lazy commands, one clean line for what a user can fix.

Exit codes: 0 done, 1 an error, 2 wrong usage, 3 a check or verification that did not hold.
"""

import importlib
import sys

import click

from embedl_deploy._version import __version__
from embedl_deploy.errors import DeployError

_COMMANDS = {
    "check": "Predict and confirm the kernel of every operator of a Q/DQ file.",
    "export": "Write a model as an ONNX file for a runtime.",
    "plan": "Show what would be fused and quantised, and why not the rest.",
    "quantize": "Calibrate a model and keep the statistics.",
    "relower": "Write a Q/DQ file of any tool in another runtime's dialect.",
    "verify": "Compare an exported file with the model it came from.",
}


class _LazyGroup(click.Group):
    """Knows the commands by name and imports one only when it is called or asked for help."""

    def list_commands(self, ctx: click.Context) -> list[str]:  # noqa: ARG002 - click's signature
        return sorted(_COMMANDS)

    def get_command(self, ctx: click.Context, cmd_name: str) -> click.Command | None:  # noqa: ARG002 - click's signature
        if cmd_name not in _COMMANDS:
            return None
        command = importlib.import_module(f"embedl_deploy.cli.{cmd_name}").command
        return command if isinstance(command, click.Command) else None

    def format_commands(self, ctx: click.Context, formatter: click.HelpFormatter) -> None:  # noqa: ARG002
        # The one-line texts stand here, so that --help imports no command.
        with formatter.section("Commands"):
            formatter.write_dl(sorted(_COMMANDS.items()))


@click.group(cls=_LazyGroup, context_settings={"help_option_names": ["-h", "--help"]})
@click.version_option(__version__, "-V", "--version", prog_name="embedl-deploy")
def cli() -> None:
    """Quantise models, write them for a runtime, and prove what the runtime will make of them."""


def main() -> None:
    """Run the command line."""
    try:
        code = cli(standalone_mode=False)
    except DeployError as error:
        click.echo(f"embedl-deploy: {error}", err=True)
        sys.exit(1)
    except click.ClickException as error:
        error.show()
        sys.exit(error.exit_code)
    except (click.Abort, KeyboardInterrupt):
        click.echo("embedl-deploy: stopped.", err=True)
        sys.exit(130)
    except BrokenPipeError:
        # Somebody piped us into head; that is no failure.
        sys.stderr.close()
        sys.exit(0)
    sys.exit(code if isinstance(code, int) else 0)
