"""``embedl-hub run``: find, show, start, finish, put aside, carry and remove runs."""

from __future__ import annotations

import dataclasses
import json
import sys
from datetime import UTC, datetime
from pathlib import Path
from typing import TYPE_CHECKING

import click

from embedl_hub.cli._output import NETWORK, emit, home_option, json_option, number, open_store, progress, table
from embedl_hub.cli._output import size as shown_size
from embedl_hub.cli._settings import project_in_use
from embedl_hub.errors import ConfigError, TrackingError
from embedl_hub.tracking import Client, RunStatus, RunType, Store, check_filter, equal, find_home, open_uplink

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from embedl_hub.core.profile import ModuleTimes
    from embedl_hub.tracking import Run

_FILE = click.Path(path_type=Path, dir_okay=False)
_VALUES = ("params", "metrics", "tags", "artifacts", "traceback")
_MODULES_SHOWN = 20
_ENDINGS = ("FINISHED", "FAILED", "KILLED")


@click.group()
def command() -> None:
    """Find, show, start, finish, put aside, carry and remove runs."""


def _search_options(function: Callable[..., None]) -> Callable[..., None]:
    """Give a command the ways to say which runs."""
    for option in (
        click.option("--order", default="-started", show_default=True, help="metrics.latency, -metrics.fps, name, ..."),
        click.option("--archived", is_flag=True, help="The archived ones too."),
        click.option("--device", help="Only runs on this device."),
        click.option("--type", "run_type", type=_one_of(RunType), help="Only runs of this kind."),
        click.option("--status", type=_one_of(RunStatus), help="Only runs in this state."),
        click.option("--project", help="Only runs of this project."),
        click.option("--where", default="", help="Conditions: metrics.latency < 5 and tags.stage = 'ci'."),
    ):
        function = option(function)
    return function


def _one_of(kind: type[RunType | RunStatus]) -> click.Choice[str]:
    return click.Choice([member.value for member in kind], case_sensitive=False)


def _where(where: str, **facts: str | None) -> str:
    # Alone first: a message about a slip must show the user's own words.
    check_filter(where)
    conditions = [equal(field, value) for field, value in facts.items() if value]
    return " and ".join([*conditions, *([f"({where})"] if where.strip() else [])])


@command.command("list")
@_search_options
@click.option("--limit", type=click.IntRange(1, 500), default=20, show_default=True, help="At most so many.")
@click.option("--after", help="Go on where the page before ended.")
@click.option("--columns", default="", help="More columns: metrics.latency,params.precision,tags.stage.")
@home_option
@json_option
def list_(  # noqa: PLR0913, PLR0917 - click's options
    where: str, project: str | None, status: str | None, run_type: str | None, device: str | None, archived: bool,
    order: str, limit: int, after: str | None, columns: str, home: Path | None, as_json: bool,
) -> None:  # fmt: skip
    """List runs, newest first, or by what they logged."""
    with open_store(home) as store:
        words = _where(where, project=project, status=status, type=run_type, device=device)
        page = store.find(words, order=order, archived=None if archived else False, after=after, limit=limit)
        if as_json:
            emit({"runs": [_head(run) for run in page.runs], "after": page.after})
            return
        if not page.runs:
            names = ", ".join(summary.name for summary in store.projects()) or "none"
            click.echo(f"No such runs in {store.home}; projects there: {names}.")
            if unknown := store.unknown_names(where):
                click.echo(f"No run has {', '.join(unknown)}; `run show` and `run table` show what runs have.")
            return
    extra = [column.strip() for column in columns.split(",") if column.strip()]
    if not extra and order.lstrip("-").partition(".")[0] in {"metrics", "params", "tags"}:
        extra = [order.lstrip("-")]
    rows = [
        (
            run.id, run.status.value, run.type, run.name, *(_value(run, column) for column in extra),
            run.device or "-", took(run), run.project, when(run),
        )
        for run in page.runs
    ]  # fmt: skip
    table(("run", "status", "type", "name", *extra, "device", "took", "project", "started"), rows)
    if page.after:
        click.echo(f"There are more: --after {page.after}")


@command.command("show")
@click.argument("run_id")
@home_option
@json_option
def show(run_id: str, home: Path | None, as_json: bool) -> None:
    """Show one run with everything it logged; the beginning of its id is enough."""
    with open_store(home) as store:
        run = store.run(run_id)
        lineage = store.lineage(run.id)
    related = {
        "made_from": [other.id for other in lineage.made_from],
        "used_by": [other.id for other in lineage.used_by],
        "parts": [other.id for other in lineage.parts],
    }
    modules = _modules(run)
    if as_json:
        told = None if modules is None else dataclasses.asdict(modules)
        emit({**_as_dict(run), "lineage": related, "modules": told})
        return
    facts = [("run", run.id), ("project", run.project), ("type", run.type), ("name", run.name)]
    facts += [("status", f"{run.status.value}{', archived' if run.archived else ''}")]
    facts += [("started", when(run)), ("took", took(run))]
    for name in ("component", "provider", "device", "parent_id", "error"):
        if value := getattr(run, name):
            facts.append((name, value))
    facts += [(what.replace("_", " "), " ".join(ids)) for what, ids in related.items() if ids]
    facts += [(f"param {name}", json.dumps(param.value, ensure_ascii=False)) for name, param in run.params.items()]
    facts += [(f"metric {name}", text) for name, text in _metrics(run).items()]
    facts += [(f"tag {name}", value) for name, value in run.tags.items()]
    facts += [(f"artifact {name}", f"{item.local_path} ({item.size_bytes} B)") for name, item in run.artifacts.items()]
    table(None, facts)
    if modules is not None:
        _show_modules(modules)
    if run.traceback:
        click.echo(run.traceback)


def _modules(run: Run) -> ModuleTimes | None:
    """Return a profile by modules; None for what is no profile, or one whose model names none."""
    from embedl_hub.core.profile import module_times  # noqa: PLC0415 - only here

    artifact = run.artifacts.get("output_file")
    if run.type != "PROFILE" or artifact is None or artifact.local_path is None:
        return None
    try:
        document = json.loads(artifact.local_path.read_text(encoding="utf-8"))
    except (OSError, ValueError, RecursionError):
        return None
    return module_times(document) if isinstance(document, dict) else None


def _show_modules(modules: ModuleTimes) -> None:
    costliest, whole = modules.costliest, modules.total_ms or 1.0
    rows = [
        (
            row.name or NETWORK, number(row.own_ms, "ms"), f"{(row.own_ms or 0) / whole:.1%}", row.precision or "-",
            "-" if row.sensitivity is None else f"{row.sensitivity:.2g} ({row.sensitivity_share or 0:.1%})",
        )
        for row in costliest[:_MODULES_SHOWN]
    ]  # fmt: skip
    for name, time_ms in (("added by the runtime", modules.added_ms), ("of no known module", modules.unnamed_ms)):
        if time_ms:
            rows.append((name, number(time_ms, "ms"), f"{time_ms / whole:.1%}", "-", "-"))
    table(("module", "time", "share", "precision", "sensitivity"), rows)
    if len(costliest) > _MODULES_SHOWN:
        click.echo(f"{len(costliest) - _MODULES_SHOWN} more modules; --json has all, and sums over those around them.")
    if modules.method:
        click.echo(f"Sensitivity: {modules.method}; {modules.unit}.")
    if modules.problem:
        click.echo(f"! The model's own remarks: {modules.problem}.")


@command.command("start")
@click.option("--type", "run_type", type=_one_of(RunType), default="CUSTOM", show_default=True, help="What it does.")
@click.option("--name", help="What to call it.")
@click.option("--project", help="Where it belongs; the one in use if not given.")
@home_option
@json_option
def start(run_type: str, name: str | None, project: str | None, home: Path | None, as_json: bool) -> None:
    """Start a run that a script logs to with `log`, and print its id; end it with `run finish`."""
    with Store(find_home(home)) as store:
        client = Client(project_in_use(home, project), store, uplink=open_uplink(store))
        run_id = client.start_detached(run_type.upper(), name)
        client.close()
    if as_json:
        emit({"run": run_id})
    else:
        click.echo(run_id)


@command.command("finish")
@click.argument("run_id")
@click.option("--status", type=click.Choice(_ENDINGS, case_sensitive=False), default="FINISHED", show_default=True)
@click.option("--error", help="What went wrong.")
@home_option
@json_option
def finish(run_id: str, status: str, error: str | None, home: Path | None, as_json: bool) -> None:
    """End a run that `run start` began."""
    with open_store(home) as store:
        client = Client("default", store, uplink=open_uplink(store))
        with client.attach(run_id) as run:
            run.finish(RunStatus(status.upper()), error=error)
        client.close()
    if as_json:
        emit({"run": run.id, "status": status.upper()})


@command.command("archive")
@click.argument("run_ids", nargs=-1, required=True)
@click.option("--undo", is_flag=True, help="Bring them back.")
@home_option
@json_option
def archive(run_ids: tuple[str, ...], undo: bool, home: Path | None, as_json: bool) -> None:
    """Put finished runs aside: they stay, and lists leave them out."""
    with open_store(home) as store:
        found = [store.run(run_id).id for run_id in run_ids]
        for run_id in found:
            store.archive(run_id, archived=not undo)
    if as_json:
        emit({"archived": not undo, "runs": found})
    else:
        click.echo(f"{'Back again' if undo else 'Put aside'}: {', '.join(found)}")


@command.command("delete")
@click.argument("run_ids", nargs=-1, required=True)
@click.option("--yes", is_flag=True, help="Do not ask.")
@home_option
@json_option
def delete(run_ids: tuple[str, ...], yes: bool, home: Path | None, as_json: bool) -> None:
    """Remove runs for good; `collect` then frees the contents that no other run uses."""
    with open_store(home) as store:
        found = [store.run(run_id) for run_id in run_ids]
        if not yes:
            names = ", ".join(f"{run.id} ({run.name})" for run in found)
            if not sys.stdin.isatty():
                raise ConfigError(f"This would remove {names} for good; say so with --yes.")
            click.confirm(f"Remove {names} for good?", abort=True)
        for run in found:
            store.delete(run.id)
    if as_json:
        emit({"deleted": [run.id for run in found]})
    else:
        click.echo(f"Removed: {', '.join(run.id for run in found)}")


@command.command("bundle")
@click.argument("run_ids", nargs=-1)
@click.option("--project", help="All runs of this project, the archived ones too.")
@click.option("-o", "--output", type=_FILE, required=True, help="The file to write, by custom .zip.")
@home_option
@json_option
def bundle(run_ids: tuple[str, ...], project: str | None, output: Path, home: Path | None, as_json: bool) -> None:
    """Write runs with all their contents into one file that `run import` takes in elsewhere."""
    from embedl_hub.tracking import export_bundle  # noqa: PLC0415 - only here

    if bool(run_ids) == bool(project):
        raise click.UsageError("Name runs, or a project with --project.")
    with open_store(home) as store:
        if project:
            found = [run.id for run in store.runs(equal("project", project), archived=None)]
            if not found:
                raise TrackingError(f"There are no runs of project {project!r} in {store.home}.")
        else:
            found = [store.run(run_id).id for run_id in run_ids]
        with progress("Bundling runs") as told:
            contents = export_bundle(store, found, output, progress=told)
    size = output.stat().st_size
    if as_json:
        emit({"file": str(output), "runs": found, "contents": contents, "size_bytes": size})
    else:
        click.echo(f"{output}: {len(found)} runs, {contents} contents, {shown_size(size)}")


@command.command("import")
@click.argument("file", type=_FILE)
@home_option
@json_option
def import_(file: Path, home: Path | None, as_json: bool) -> None:
    """Take the runs of a bundle into this store; those that are here already stay as they are."""
    from embedl_hub.tracking import import_bundle  # noqa: PLC0415 - only here

    with Store(find_home(home)) as store:
        brought = import_bundle(store, file)
    if as_json:
        emit({"runs": brought.runs, "known_already": brought.known_already})
    else:
        click.echo(f"{len(brought.runs)} runs taken in, {len(brought.known_already)} were here already.")


@command.command("report")
@click.argument("run_ids", nargs=-1, required=True)
@click.option("-o", "--output", type=_FILE, required=True, help="The file to write, by custom .html.")
@home_option
@json_option
def report(run_ids: tuple[str, ...], output: Path, home: Path | None, as_json: bool) -> None:
    """Write one run, a sweep's matrix, or two to six runs side by side, as one HTML file that needs nothing else."""
    from embedl_hub.page import export_comparison, export_run  # noqa: PLC0415 - an extra

    if output.suffix not in {".html", ".htm"}:
        raise ConfigError(f"A report is an HTML file; name it .html, not {output.name!r}.")
    with open_store(home) as store:
        found = [store.run(run_id).id for run_id in run_ids]
        if len(found) == 1:
            export_run(store, found[0], output)
        else:
            export_comparison(store, found, output)
    if as_json:
        emit({"file": str(output), "runs": found, "size_bytes": output.stat().st_size})
    else:
        click.echo(f"{output}: {shown_size(output.stat().st_size)}")


@command.command("table")
@_search_options
@click.option("-o", "--output", type=_FILE, required=True, help="A file that ends in .csv or .parquet.")
@home_option
@json_option
def table_(  # noqa: PLR0913, PLR0917 - click's options
    where: str, project: str | None, status: str | None, run_type: str | None, device: str | None, archived: bool,
    order: str, output: Path, home: Path | None, as_json: bool,
) -> None:  # fmt: skip
    """Write the runs with all their values as a table for spreadsheets or data frames."""
    from embedl_hub.tracking import write_table  # noqa: PLC0415 - only here

    with open_store(home) as store:
        words = _where(where, project=project, status=status, type=run_type, device=device)
        runs = store.runs(words, order=order, archived=None if archived else False)
    write_table(runs, output)
    if as_json:
        emit({"file": str(output), "runs": len(runs)})
    else:
        click.echo(f"{output}: {len(runs)} runs")


def when(run: Run) -> str:
    """Return when a run started, for people."""
    return datetime.fromtimestamp(run.started_ms / 1000, UTC).astimezone().strftime("%Y-%m-%d %H:%M:%S")


def took(run: Run) -> str:
    """Return how long a run took, for people."""
    if run.ended_ms is None:
        return "-"
    # A killed run ended some time after its last sign of life.
    more_than = "> " if run.status is RunStatus.KILLED else ""
    return f"{more_than}{(run.ended_ms - run.started_ms) / 1000:.2f} s"


def _value(run: Run, column: str) -> str:
    group, _, name = column.partition(".")
    name = name.strip('"`')
    if group == "metrics":
        metric = run.metric(name)
        return "-" if metric is None else f"{metric.value:g}"
    if group == "params":
        return json.dumps(run.params[name].value, ensure_ascii=False) if name in run.params else "-"
    if group == "tags":
        return run.tags.get(name, "-")
    raise ConfigError(f"{column!r} is no column; a column is metrics.NAME, params.NAME or tags.NAME.")


def _metrics(run: Run) -> dict[str, str]:
    series: dict[str, list[float]] = {}
    for metric in run.metrics:
        series.setdefault(metric.name, []).append(metric.value)
    return {
        name: f"{values[-1]:g}" + (f" (last of {len(values)})" if len(values) > 1 else "")
        for name, values in series.items()
    }


def _head(run: Run) -> dict[str, object]:
    """Return a run as a list has it: without its artifacts, each metric with its last value."""
    values = {name: value for name, value in _as_dict(run).items() if name not in _VALUES}
    metrics: Sequence[tuple[str, float]] = [(metric.name, metric.value) for metric in run.metrics]
    return values | {
        "params": {name: param.value for name, param in run.params.items()},
        "metrics": dict(metrics),
        "tags": dict(run.tags),
    }


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
