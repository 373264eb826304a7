"""``embedl-hub run``: list and show recorded runs."""

from __future__ import annotations

import dataclasses
import json
import sys
from datetime import UTC, datetime
from pathlib import Path
from typing import TYPE_CHECKING

import click

from embedl_hub.errors import ConfigError
from embedl_hub.tracking import Run, RunStatus, Store, find_home

if TYPE_CHECKING:
    from collections.abc import Sequence

_home_option = click.option(
    "--home", type=click.Path(path_type=Path), help="The store's folder; found as for a run if not given."
)
_VALUES = ("params", "metrics", "tags", "artifacts", "traceback")
_json_option = click.option("--json", "as_json", is_flag=True, help="Print JSON for programs.")


@click.group()
def command() -> None:
    """List and show recorded runs."""


@command.command("list")
@_home_option
@_json_option
@click.option("--project", help="Only runs of this project.")
@click.option(
    "--status",
    type=click.Choice([status.value for status in RunStatus], case_sensitive=False),
    help="Only runs in this state.",
)
@click.option("--limit", type=click.IntRange(1, 500), default=20, show_default=True, help="At most so many.")
def list_(home: Path | None, as_json: bool, project: str | None, status: str | None, limit: int) -> None:
    """List runs, newest first."""
    with _open(home) as store:
        runs = _find(store, project, status, limit)
        if as_json:
            click.echo(json.dumps([_head(run) for run in runs], indent=2))
            return
        if not runs:
            names = ", ".join(summary.name for summary in store.projects()) or "none"
            click.echo(f"No such runs in {store.home}; projects there: {names}.")
            return
        rows = [
            (run.id, run.status.value, run.type, run.name, run.device or "-", _took(run), run.project, _when(run))
            for run in runs
        ]
        _table(("run", "status", "type", "name", "device", "took", "project", "started"), rows)


@command.command("show")
@click.argument("run_id")
@_home_option
@_json_option
def show(run_id: str, home: Path | None, as_json: bool) -> None:
    """Show one run with everything it logged; the beginning of its id is enough."""
    with _open(home) as store:
        run = store.run(run_id)
    if as_json:
        click.echo(json.dumps(_as_dict(run), indent=2))
        return
    facts = [("run", run.id), ("project", run.project), ("type", run.type), ("name", run.name)]
    facts += [("status", run.status.value), ("started", _when(run)), ("took", _took(run))]
    for name in ("component", "provider", "device", "parent_id", "error"):
        if value := getattr(run, name):
            facts.append((name, value))
    facts += [(f"param {name}", json.dumps(param.value, ensure_ascii=False)) for name, param in run.params.items()]
    facts += [(f"metric {name}", text) for name, text in _metrics(run).items()]
    facts += [(f"tag {name}", value) for name, value in run.tags.items()]
    facts += [(f"artifact {name}", f"{item.local_path} ({item.size_bytes} B)") for name, item in run.artifacts.items()]
    _table(None, facts)
    if run.traceback:
        click.echo(run.traceback)


def _find(store: Store, project: str | None, status: str | None, limit: int) -> Sequence[Run]:
    conditions = [f"project = {_quoted(project)}"] if project else []
    conditions += [f"status = {_quoted(status)}"] if status else []
    return store.find(" and ".join(conditions), limit=limit).runs


def _quoted(text: str) -> str:
    return "'" + text.replace("'", "''") + "'"


def _open(home: Path | None) -> Store:
    folder = find_home(home)
    if not (folder / "runs").is_dir():
        raise ConfigError(f"There is no store at {folder} yet. Run something first, or name one with --home.")
    return Store(folder)


def _table(titles: Sequence[str] | None, rows: Sequence[Sequence[str]]) -> None:
    from rich.box import SIMPLE  # noqa: PLC0415 - --json must not pay for it
    from rich.console import Console  # noqa: PLC0415
    from rich.table import Table  # noqa: PLC0415

    console = Console(width=None if sys.stdout.isatty() else 400, markup=False, highlight=False)
    table = Table(box=SIMPLE, show_header=titles is not None)
    shown = len(rows[0])
    if titles is not None:
        # Whole columns or none: half an id is no id. The last ones matter least.
        widths = [max(len(cell) for cell in column) + 3 for column in zip(titles, *rows, strict=True)]
        while shown > 2 and sum(widths[:shown]) + 1 > console.width:
            shown -= 1
    for title in (titles or ("", ""))[:shown]:
        table.add_column(title, overflow="fold")
    for row in rows:
        # markup off: a run's values are data, never styling.
        table.add_row(*(_plain(cell) for cell in row[:shown]))
    console.print(table)


def _plain(cell: str) -> str:
    return "".join(character if character.isprintable() else " " for character in cell)


def _when(run: Run) -> str:
    return datetime.fromtimestamp(run.started_ms / 1000, UTC).astimezone().strftime("%Y-%m-%d %H:%M:%S")


def _took(run: Run) -> str:
    if run.ended_ms is None:
        return "-"
    # A killed run ended some time after its last sign of life.
    more_than = "> " if run.status is RunStatus.KILLED else ""
    return f"{more_than}{(run.ended_ms - run.started_ms) / 1000:.2f} s"


def _metrics(run: Run) -> dict[str, str]:
    series: dict[str, list[float]] = {}
    for metric in run.metrics:
        series.setdefault(metric.name, []).append(metric.value)
    return {
        name: f"{values[-1]:g}" + (f" (last of {len(values)})" if len(values) > 1 else "")
        for name, values in series.items()
    }


def _head(run: Run) -> dict[str, object]:
    """Return a run without its values, which a list does not read."""
    return {name: value for name, value in _as_dict(run).items() if name not in _VALUES}


def _as_dict(run: Run) -> dict[str, object]:
    values = dataclasses.asdict(run)
    values["params"] = {name: param.value for name, param in run.params.items()}
    values["artifacts"] = {
        name: {
            "file_name": item.file_name,
            "size_bytes": item.size_bytes,
            "sha256": item.sha256,
            "is_folder": item.is_folder,
            "path": str(item.local_path),
        }
        for name, item in run.artifacts.items()
    }
    return values
