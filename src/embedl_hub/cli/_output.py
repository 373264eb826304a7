"""What every command shares: the store it looks at, and how it speaks to people and to programs."""

from __future__ import annotations

import contextlib
import logging
import re
import shlex
import sys
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from embedl_device import json_output
from embedl_hub.errors import ConfigError, TrackingError, UnknownDeviceError, blames_board
from embedl_hub.terminal import styled_console

if TYPE_CHECKING:
    from embedl_device.statistics import Ratio, Verdict
    from embedl_hub.tracking import Store

_VERBOSITY = "embedl_hub.verbosity"

JSON_WANTED = json_output.JSON_WANTED
as_json_text = json_output.as_json_text
json_option = json_output.json_option
PATH = click.Path(path_type=Path)
home_option = click.option(
    "--home", type=PATH, help="The store's folder; EMBEDL_HUB_HOME, .embedl here or above, else your data folder."
)


def in_home(command: str, home: Path | None) -> str:
    """Return a command for the user to type, which looks into the same home as this one."""
    return command if home is None else f"{command} --home {shlex.quote(str(home))}"


def is_usage(error: Exception, *, named_device: bool) -> bool:
    """Tell whether the words of a command are wrong; a device of the records that is gone is no such mistake."""
    if blames_board(error):
        return False
    return named_device if isinstance(error, UnknownDeviceError) else isinstance(error, ConfigError | TrackingError)


def with_verbosity(command: click.Command) -> click.Command:
    """Let -v stand behind any command too."""
    if not any(parameter.name == "verbose" for parameter in command.params):
        more = "Say more; twice or thrice for still more."
        names = ["-v", "--verbose"]
        command.params.append(click.Option(names, count=True, expose_value=False, callback=_set_verbosity, help=more))
    for each in command.commands.values() if isinstance(command, click.Group) else ():
        with_verbosity(each)
    return command


def _set_verbosity(ctx: click.Context, _parameter: click.Parameter, value: int) -> int:
    # Summed over all places where it may stand.
    ctx.meta[_VERBOSITY] = ctx.meta.get(_VERBOSITY, 0) + value
    logging.getLogger().setLevel(logging.WARNING - 10 * min(ctx.meta[_VERBOSITY], 2))
    return value


COULD_NOT_MEASURE = 3
"""The exit code of a command that was asked for an answer and could not measure it."""


class KindGroup(click.Group):
    """Answers an unknown command with the one that was most likely meant, or else with those there are."""

    def resolve_command(
        self, ctx: click.Context, args: list[str]
    ) -> tuple[str | None, click.Command | None, list[str]]:
        """Return the command of the first word."""
        try:
            return super().resolve_command(ctx, args)
        except click.UsageError as error:
            import difflib  # noqa: PLC0415 - only after a slip

            known = self.list_commands(ctx)
            close = difflib.get_close_matches(args[0], known, 1)
            hint = f"Did you mean {close[0]!r}?" if close else f"Known: {', '.join(known)}."
            raise click.UsageError(f"{error.message} {hint}", ctx) from None


def open_store(home: Path | None) -> Store:
    """Return the store to look at, not yet open; one that is not there is an error, not a new store."""
    from embedl_hub.tracking import Store, find_home  # noqa: PLC0415 - not every command needs one

    folder = find_home(home, uses_devices=False)
    if not (folder / "runs").is_dir():
        raise ConfigError(f"There is no store at {folder} yet. Run something first, or name one with --home.")
    return Store(folder)


def chosen_runs(store: Store, run_ids: tuple[str, ...], project: str | None) -> list[str]:
    """Return the runs that are named, or all of a project."""
    from embedl_hub.tracking import equal  # noqa: PLC0415 - not every command needs it

    if bool(run_ids) == bool(project):
        raise click.UsageError("Name runs, or a project with --project.")
    if not project:
        return [store.run(run_id).id for run_id in run_ids]
    found = [run.id for run in store.runs(equal("project", project), archived=None)]
    if not found:
        raise TrackingError(f"There are no runs of project {project!r} in {store.home}.")
    return found


# What tables call the module that has no name: the network itself.
NETWORK = "(the network itself)"


def emit(value: object, *, indent: int | None = 2) -> None:
    """Print a value as JSON: one document, or one line of several without an indent."""
    click.echo(as_json_text(value, indent=indent))


def tell_error(error: Exception | str, code: int, *, as_json: bool) -> None:
    """Say on standard error why a command ends with an exit code: in words, or as one line of JSON for programs."""
    if as_json:
        click.echo(json_output.error_text(error, code), err=True)
    else:
        click.echo(f"embedl-hub: {error}", err=True)


def report(facts: object, *lines: str, as_json: bool) -> None:
    """Print facts as JSON for programs, or lines for people."""
    if as_json:
        emit(facts)
        return
    for line in lines:
        click.echo(line)


def ratio_text(ratio: Ratio) -> str:
    """Return a ratio for people, with its interval where it has one."""
    interval = "" if ratio.low is None or ratio.high is None else f" ({ratio.low:.3f}-{ratio.high:.3f})"
    return f"× {ratio.value:.3f}{interval}"


def table(titles: Sequence[str] | None, rows: Sequence[Sequence[str]], *, folds: bool = False) -> None:
    """Print rows; in a narrow terminal the last columns go before any cell is cut, or cells fold where told to."""
    from rich.box import SIMPLE  # noqa: PLC0415 - --json must not pay for it
    from rich.table import Table  # noqa: PLC0415

    if not rows:
        return
    console = styled_console(width=None if sys.stdout.isatty() else 400)
    drawn = Table(box=SIMPLE, show_header=titles is not None)
    shown = len(rows[0])
    if titles is not None and not folds:
        # Whole columns or none: half an id is no id. The last ones matter least.
        widths = [max(len(cell) for cell in column) + 3 for column in zip(titles, *rows, strict=True)]
        while shown > 2 and sum(widths[:shown]) + 1 > console.width:
            shown -= 1
    for title in (titles or ("",) * shown)[:shown]:
        drawn.add_column(title, overflow="fold")
    for row in rows:
        drawn.add_row(*(plain(cell) for cell in row[:shown]))
    console.print(drawn)


RUINED = (
    "FAIL: the answers are ruined, too far from float's to be of use. The warnings of its compile run say why "
    "(embedl-hub run show); calibrate on other data, with --per-channel or another method, or keep float."
)


def alarm(text: str) -> None:
    """Print what nobody may miss, in red on a terminal."""
    styled_console().print(plain(text), style="bold red", soft_wrap=True)


def plain(cell: str) -> str:
    """Return text without what could move a terminal's cursor."""
    return "".join(character if character.isprintable() else " " for character in cell)


def number(value: float | None, unit: str = "") -> str:
    """Return a number for people: four digits, and more where they would make it something else."""
    if value is None:
        return "-"
    text = f"{value:.4g}"
    if 1000 <= abs(value) < 1e15:
        text = f"{value:.0f}"
    elif text == "1" and value != 1:
        # A cosine of 0.99998 is not 1.
        text = f"{value:.7g}"
    return f"{text} {unit}".strip()


def size(count: int) -> str:
    """Return a number of bytes for people."""
    for unit, bytes_in in (("GB", 10**9), ("MB", 10**6), ("kB", 10**3)):
        if count >= bytes_in:
            return f"{count / bytes_in:.1f} {unit}"
    return f"{count} bytes"


@contextlib.contextmanager
def working(what: str) -> Iterator[None]:
    """Show that something is going on, where somebody is looking."""
    if not sys.stderr.isatty():
        yield
        return
    from rich.text import Text  # noqa: PLC0415 - most commands never wait

    with styled_console(stderr=True).status(Text(plain(what))):
        yield


def say_unless_stable(verdict: Verdict | None, reason: str | None) -> None:
    """Warn of a measurement that is not stable, with why."""
    if verdict is None or not verdict.is_stable:
        why = reason or "nothing is known of it"
        click.echo(f"! The measurement is {verdict or 'not judged'}: {why}{'' if why.endswith('?') else '.'}")


def pairs(words: Sequence[str]) -> dict[str, str]:
    """Return NAME=VALUE words as a mapping."""
    split = [word.partition("=") for word in words]
    if wrong := [key for key, equals, _ in split if not equals or not key.strip()]:
        raise click.UsageError(f"{wrong[0]!r} must look like KEY=VALUE.")
    return {key.strip(): value for key, _, value in split}


def as_value(text: str) -> Any:  # noqa: ANN401 - any TOML value
    """Return what a user typed as a value: a number, true, a list; else the text itself."""
    from embedl_hub.toml import parse_toml  # noqa: PLC0415 - few commands need it

    try:
        return parse_toml(f"value = {text}")["value"]
    except ValueError:
        return text


@contextlib.contextmanager
def progress(what: str) -> Iterator[Callable[[int, int], None]]:
    """Show a bar where somebody is looking; yields what is to be told how many of all are done."""
    if not sys.stderr.isatty():
        yield lambda _done, _all: None
        return
    from rich.progress import Progress  # noqa: PLC0415 - most commands never wait

    with Progress(console=styled_console(stderr=True), transient=True) as bar:
        task = bar.add_task(what, total=None)
        yield lambda done, whole: bar.update(task, completed=done, total=whole)


def read_shape(text: str | None) -> tuple[int, ...] | None:
    """Return the sizes that --input-shape gives."""
    try:
        return None if text is None else tuple(int(size) for size in re.split(r"[,x×]", text.rstrip(", ")))
    except ValueError:
        raise ConfigError(f"--input-shape is {text!r}; it must be sizes: 1,3,224,224.") from None


def check_report_path(path: Path) -> None:
    """Refuse a report that is not called like HTML."""
    if path.suffix not in {".html", ".htm"}:
        raise ConfigError(f"A report is an HTML file; name it .html, not {path.name!r}.")


def write_report(store: Store, run_ids: Sequence[str], path: Path) -> None:
    """Write one run, or several side by side, as one HTML file."""
    from embedl_hub.page import export_comparison, export_run  # noqa: PLC0415 - an extra

    if len(run_ids) == 1:
        export_run(store, run_ids[0], path)
    else:
        export_comparison(store, run_ids, path)
