"""The entry point: global options, lazy commands, one clean message for what a user can fix."""

from __future__ import annotations

import contextlib
import importlib
import logging
import sys
import traceback
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING

import click

import embedl_hub
from embedl_device.terminal import guarded
from embedl_hub.cli._output import JSON_WANTED, KindGroup, tell_error, with_verbosity
from embedl_hub.errors import HubError

if TYPE_CHECKING:
    from importlib.metadata import EntryPoint


def own_commands() -> dict[str, Path]:
    """Return the files of our own commands by name."""
    files = sorted(Path(__file__).parent.glob("[!_]*.py"))
    return {path.stem.replace("_", "-"): path for path in files if path.stem != "main"}


class _LazyGroup(KindGroup):
    """Knows the commands by their files and imports one only when it is called or asked for help."""

    def invoke(self, ctx: click.Context) -> None:
        # What a command returns means nothing here; what is left for main() is the code of ctx.exit().
        super().invoke(ctx)

    def list_commands(self, ctx: click.Context) -> list[str]:  # noqa: ARG002 - click's signature
        return sorted({*own_commands(), *_foreign_commands()})

    def get_command(self, ctx: click.Context, cmd_name: str) -> click.Command | None:  # noqa: ARG002 - click's signature
        if cmd_name in own_commands():
            found = importlib.import_module(f"embedl_hub.cli.{cmd_name.replace('-', '_')}").command
        elif cmd_name in _foreign_commands():
            from embedl_hub import plugins  # noqa: PLC0415 - as below

            found = plugins.load(plugins.COMMANDS, cmd_name)
        else:
            return None
        return with_verbosity(found) if isinstance(found, click.Command) else None

    def format_commands(self, ctx: click.Context, formatter: click.HelpFormatter) -> None:  # noqa: ARG002
        # Read, not imported: --help must not pay for every command.
        lines = {name: _first_line(path) for name, path in own_commands().items()}
        for name, entry in _foreign_commands().items():
            lines.setdefault(name, _foreign_line(entry))
        with formatter.section("Commands"):
            formatter.write_dl(sorted(lines.items()))


def _first_line(path: Path) -> str:
    import ast  # noqa: PLC0415 - only for the help

    text = ast.get_docstring(ast.parse(path.read_text(encoding="utf-8"))) or ""
    words = text.partition("\n")[0].rpartition("``: ")[2]
    return words[:1].upper() + words[1:]


def _foreign_line(entry: EntryPoint) -> str:
    """Return what a command of another package says of itself, where its file is found without importing it."""
    import importlib.util  # noqa: PLC0415 - only for the help

    top, *rest = entry.module.split(".")
    try:
        spec = importlib.util.find_spec(top)
        if spec is not None and spec.origin is not None:
            file = Path(spec.origin).parent.joinpath(*rest).with_suffix(".py") if rest else Path(spec.origin)
            if line := _first_line(file):
                return line
    except (ImportError, OSError, SyntaxError, ValueError):
        pass  # whose file cannot be read is told by its name alone
    return f"From {entry.dist.name if entry.dist is not None else entry.value}."


def _foreign_commands() -> dict[str, EntryPoint]:
    from embedl_hub import plugins  # noqa: PLC0415 - our own commands must not pay for it

    return {entry.name: entry for entry in plugins.entries(plugins.COMMANDS).values()}


# color off: what styles by escape sequences goes through styled_console; click's own would be shown as text.
@click.group(cls=_LazyGroup, context_settings={"help_option_names": ["-h", "--help"], "color": False})
@click.version_option(embedl_hub.__version__, "-V", "--version", prog_name="embedl-hub")
@click.option("--json", "as_json", is_flag=True, help="Print JSON for programs; every command takes it too.")
@click.pass_context
def cli(ctx: click.Context, as_json: bool) -> None:
    """Compile, profile and invoke models on real devices; find every run again."""
    ctx.meta[JSON_WANTED] = as_json


def main() -> None:
    """Run the command line."""
    with guarded():
        logging.basicConfig(level=logging.WARNING, format="%(message)s", stream=sys.stderr)
        with _endings():
            code = with_verbosity(cli).main(standalone_mode=False)
        sys.exit(code if isinstance(code, int) else 0)


@contextlib.contextmanager
def _endings() -> Iterator[None]:
    """Turn every ending into one clean message and an exit code."""
    # By the words: what fails first is the reading of them.
    as_json = "--json" in sys.argv[1:]
    try:
        yield
    except HubError as error:
        if logging.getLogger().isEnabledFor(logging.DEBUG):
            logging.getLogger("embedl_hub").debug("", exc_info=error)
        tell_error(error, 1, as_json=as_json)
        sys.exit(1)
    except click.ClickException as error:
        if as_json:
            tell_error(error, error.exit_code, as_json=True)
        else:
            error.show()
        sys.exit(error.exit_code)
    except (click.Abort, KeyboardInterrupt):
        tell_error("stopped.", 130, as_json=as_json)
        sys.exit(130)
    except BrokenPipeError:
        # Somebody piped us into head; that is no failure.
        sys.stderr.close()
        sys.exit(0)
    except Exception as error:  # a provider's own mistake, or ours
        if logging.getLogger().isEnabledFor(logging.DEBUG):
            raise
        frame = traceback.extract_tb(error.__traceback__)[-1]
        where = f"{frame.name} ({frame.filename}:{frame.lineno})"
        tell_error(f"{type(error).__name__} in {where}: {error}. -vv shows the traceback.", 1, as_json=as_json)
        sys.exit(1)
