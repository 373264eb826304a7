"""``embedl-hub run``: find, show, start, finish, archive, export and delete runs."""

from __future__ import annotations

import dataclasses
import json
import sys
from collections.abc import Callable, Sequence
from datetime import UTC, datetime
from pathlib import Path
from typing import TYPE_CHECKING

import click

from embedl_device.schema import (
    ANY,
    FLAG,
    NUMBER,
    TEXT,
    WHOLE,
    Shape,
    array,
    both,
    by_name,
    described,
    fields,
    maybe,
    of,
)
from embedl_device.statistics import Verdict
from embedl_hub.cli._mlflow_commands import from_mlflow, to_mlflow
from embedl_hub.cli._output import (
    NETWORK,
    check_report_path,
    chosen_runs,
    emit,
    home_option,
    json_option,
    number,
    open_store,
    progress,
    report,
    table,
    write_report,
)
from embedl_hub.cli._output import size as shown_size
from embedl_hub.cli._settings import project_in_use
from embedl_hub.cli.log import attached
from embedl_hub.errors import ConfigError
from embedl_hub.tracking import (
    Client,
    LoggedMetric,
    Run,
    RunStatus,
    RunType,
    Store,
    check_filter,
    equal,
    find_home,
    open_uplink,
)

if TYPE_CHECKING:
    from embedl_hub.core.profile import ModuleTimes

_FILE = click.Path(path_type=Path, dir_okay=False)
_MODULES_SHOWN = 20
_ENDINGS = ("FINISHED", "FAILED", "KILLED")


_HEAD = fields(
    {
        "id": TEXT, "project": TEXT, "type": of(RunType), "name": TEXT, "status": of(RunStatus), "started_ms": WHOLE,
        "ended_ms": maybe(WHOLE), "parent_id": maybe(TEXT), "component": maybe(TEXT), "provider": maybe(TEXT),
        "device": maybe(TEXT), "error": maybe(TEXT), "params": by_name(ANY), "tags": by_name(TEXT), "archived": FLAG,
    }
)  # fmt: skip
_ARTIFACT = {
    "file_name": TEXT, "size_bytes": WHOLE, "sha256": TEXT, "is_folder": FLAG,
    "path": described(TEXT, "on this machine"),
}  # fmt: skip
_LISTED = fields(
    {
        "runs": array(both(_HEAD, fields({"metrics": by_name(described(NUMBER, "the last value"))}))),
        "after": described(maybe(TEXT), "what --after takes for the next page"),
    }
)


def _shown() -> Shape:
    from embedl_hub.core.profile import ModuleTimes  # noqa: PLC0415 - only for the schema

    more = {
        "traceback": maybe(TEXT), "metrics": array(of(LoggedMetric)), "artifacts": by_name(fields(_ARTIFACT)),
        "lineage": fields({name: array(TEXT) for name in ("made_from", "used_by", "parts")}),
        "modules": described(maybe(of(ModuleTimes)), "of a profile whose model names its modules"),
    }  # fmt: skip
    return both(_HEAD, fields(more))


@click.group()
def command() -> None:
    """Find, show, start, finish, archive, export and delete runs."""


command.add_command(to_mlflow)
command.add_command(from_mlflow)


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
@json_option(_LISTED)
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
@json_option(_shown)
def show(run_id: str, home: Path | None, as_json: bool) -> None:
    """Show one run with everything it logged; the beginning of its id is enough."""
    from embedl_hub.core.document import document_of  # noqa: PLC0415 - only here
    from embedl_hub.core.profile import module_times  # noqa: PLC0415

    with open_store(home) as store:
        run = store.run(run_id)
        lineage = store.lineage(run.id)
    related = {what: [other.id for other in getattr(lineage, what)] for what in ("made_from", "used_by", "parts")}
    # None for what is no profile, or one whose model names no modules.
    modules = module_times(document_of(run)[0]) if run.type == "PROFILE" else None
    if as_json:
        times = None if modules is None else dataclasses.asdict(modules)
        emit({**_as_dict(run), "lineage": related, "modules": times})
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
@json_option(fields({"run": TEXT}))
def start(run_type: str, name: str | None, project: str | None, home: Path | None, as_json: bool) -> None:
    """Start a run that a script logs to with `log`, and print its id; end it with `run finish`."""
    with Store(find_home(home, uses_devices=False)) as store:
        client = Client(project_in_use(home, project), store, uplink=open_uplink(store))
        run_id = client.start_detached(run_type.upper(), name)
        client.close()
    report({"run": run_id}, run_id, as_json=as_json)


@command.command("finish")
@click.argument("run_id")
@click.option("--status", type=click.Choice(_ENDINGS, case_sensitive=False), default="FINISHED", show_default=True)
@click.option("--error", help="What went wrong.")
@home_option
@json_option(fields({"run": TEXT, "status": TEXT}))
def finish(run_id: str, status: str, error: str | None, home: Path | None, as_json: bool) -> None:
    """End a run that `run start` began."""
    with attached(home, run_id) as run:
        run.finish(RunStatus(status.upper()), error=error)
    report({"run": run.id, "status": status.upper()}, as_json=as_json)


@command.command("archive")
@click.argument("run_ids", nargs=-1, required=True)
@click.option("--undo", is_flag=True, help="Bring them back.")
@home_option
@json_option(fields({"archived": FLAG, "runs": array(TEXT)}))
def archive(run_ids: tuple[str, ...], undo: bool, home: Path | None, as_json: bool) -> None:
    """Archive finished runs: they stay, and lists leave them out."""
    with open_store(home) as store:
        found = [store.run(run_id).id for run_id in run_ids]
        for run_id in found:
            store.archive(run_id, archived=not undo)
    text = f"{'Restored' if undo else 'Archived'}: {', '.join(found)}"
    report({"archived": not undo, "runs": found}, text, as_json=as_json)


@command.command("delete")
@click.argument("run_ids", nargs=-1, required=True)
@click.option("--yes", is_flag=True, help="Do not ask.")
@home_option
@json_option(fields({"deleted": array(TEXT)}))
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
    deleted = [run.id for run in found]
    report({"deleted": deleted}, f"Removed: {', '.join(deleted)}", as_json=as_json)


@command.command("bundle")
@click.argument("run_ids", nargs=-1)
@click.option("--project", help="All runs of this project, the archived ones too.")
@click.option("-o", "--output", type=_FILE, required=True, help="Output file (usually .zip).")
@home_option
@json_option(fields({"file": TEXT, "runs": array(TEXT), "contents": WHOLE, "size_bytes": WHOLE}))
def bundle(run_ids: tuple[str, ...], project: str | None, output: Path, home: Path | None, as_json: bool) -> None:
    """Write runs with all their contents into one file that `run import` takes in elsewhere."""
    from embedl_hub.tracking import export_bundle  # noqa: PLC0415 - only here

    with open_store(home) as store:
        found = chosen_runs(store, run_ids, project)
        with progress("Bundling runs") as advance:
            contents = export_bundle(store, found, output, progress=advance)
    size = output.stat().st_size
    facts = {"file": str(output), "runs": found, "contents": contents, "size_bytes": size}
    report(facts, f"{output}: {len(found)} runs, {contents} contents, {shown_size(size)}", as_json=as_json)


@command.command("import")
@click.argument("file", type=_FILE)
@click.option(
    "--largest",
    type=click.IntRange(1),
    help="In MiB; how much it may unpack to. A hundred times its size and 64 MiB if not given.",
)
@click.option("--project", help="Where rows of a table belong that do not say; the one in use if not given.")
@home_option
@json_option(fields({"runs": array(TEXT), "known_already": array(TEXT)}))
def import_(file: Path, largest: int | None, project: str | None, home: Path | None, as_json: bool) -> None:
    """Take the runs of a bundle, or of a table, into this store; those that are here already stay as they are.

    A table is a .csv or .parquet file as `run table` writes them: a row for each run, columns called name, project,
    type, status, started, ended, params.NAME, metrics.NAME, tags.NAME and so on. It comes in whole or not at all.
    """
    from embedl_hub.tracking import import_bundle, import_table  # noqa: PLC0415 - only here

    is_table = file.suffix in {".csv", ".parquet"}
    if (project is not None and not is_table) or (largest is not None and is_table):
        raise click.UsageError("--project is for tables, --largest for bundles.")
    with Store(find_home(home, uses_devices=False)) as store:
        if is_table:
            imported = import_table(store, file, project=project_in_use(home, project))
        else:
            imported = import_bundle(store, file, most_bytes=None if largest is None else largest << 20)
    facts = {"runs": imported.runs, "known_already": imported.known_already}
    text = f"{len(imported.runs)} runs imported, {len(imported.known_already)} already present."
    report(facts, text, as_json=as_json)


@command.command("report")
@click.argument("run_ids", nargs=-1, required=True)
@click.option("-o", "--output", type=_FILE, required=True, help="Output file (usually .html).")
@home_option
@json_option(fields({"file": TEXT, "runs": array(TEXT), "size_bytes": WHOLE}))
def report_(run_ids: tuple[str, ...], output: Path, home: Path | None, as_json: bool) -> None:
    """Write one run, a sweep's matrix, or two to six runs side by side, as one HTML file that needs nothing else."""
    check_report_path(output)
    with open_store(home) as store:
        found = [store.run(run_id).id for run_id in run_ids]
        write_report(store, found, output)
    size = output.stat().st_size
    report({"file": str(output), "runs": found, "size_bytes": size}, f"{output}: {shown_size(size)}", as_json=as_json)


@command.command("table")
@_search_options
@click.option("-o", "--output", type=_FILE, required=True, help="A file that ends in .csv or .parquet.")
@click.option(
    "--rows", type=click.Choice(["runs", "metrics", "layers"]), default="runs", show_default=True,
    help="A row for each run, for each number with its step and time, or for each layer of profiles.",
)  # fmt: skip
@home_option
@json_option(fields({"file": TEXT, "runs": WHOLE, "rows": WHOLE}))
def table_(  # noqa: PLR0913, PLR0917 - click's options
    where: str, project: str | None, status: str | None, run_type: str | None, device: str | None, archived: bool,
    order: str, output: Path, rows: str, home: Path | None, as_json: bool,
) -> None:  # fmt: skip
    """Write runs with all their values, their series or their layers as a table for spreadsheets or data frames."""
    from embedl_hub.tracking import series_columns, write_columns, write_table  # noqa: PLC0415 - only here

    with open_store(home) as store:
        words = _where(where, project=project, status=status, type=run_type, device=device)
        runs = store.runs(words, order=order, archived=None if archived else False)
        if rows != "runs":
            runs = [store.run(run.id) for run in runs]
    if rows == "runs":
        write_table(runs, output)
        count = len(runs)
    else:
        columns = series_columns(runs) if rows == "metrics" else _layer_columns(runs)
        write_columns(columns, output)
        count = len(columns["run"])
    said = f"{output}: {len(runs)} runs" + ("" if rows == "runs" else f", {count} {rows}")
    report({"file": str(output), "runs": len(runs), "rows": count}, said, as_json=as_json)


def _layer_columns(runs: Sequence[Run]) -> dict[str, list[object]]:
    """Return a row for each layer of the profiles among runs, in the order that the layers ran."""
    from embedl_hub.core.document import document_of  # noqa: PLC0415 - only here

    profiles = [run for run in runs if run.type == RunType.PROFILE]
    found = [(run, at, row) for run in profiles for at, row in enumerate(document_of(run)[0].rows)]
    plain = ("op_type", "compute_unit", "provider", "time_ms", "share", "integer", "added_by_runtime")
    return {
        "run": [run.id for run, _, _ in found],
        "name": [run.name for run, _, _ in found],
        "position": [at for _, at, _ in found],
        "layer": [row.name for _, _, row in found],
        **{name: [getattr(row, name) for _, _, row in found] for name in plain},
        **{name: [" ".join(getattr(row, name)) for _, _, row in found] for name in ("source_nodes", "modules")},
    }


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
        is_estimated = "verdict" in run.params and run.params["verdict"].value == Verdict.ESTIMATED.value
        return "-" if metric is None else f"{metric.value:g}{' estimated' if is_estimated else ''}"
    if group == "params":
        return json.dumps(run.params[name].value, ensure_ascii=False) if name in run.params else "-"
    if group == "tags":
        return run.tags.get(name, "-")
    raise ConfigError(f"{column!r} is no column; a column is metrics.NAME, params.NAME or tags.NAME.")


def _metrics(run: Run) -> dict[str, str]:
    from embedl_hub.core.document import find_metric  # noqa: PLC0415 - only here

    series: dict[str, list[float]] = {}
    for metric in run.metrics:
        series.setdefault(metric.name, []).append(metric.value)
    return {
        name: f"{values[-1]:g} {find_metric(name).unit}".strip()
        + (f" (last of {len(values)})" if len(values) > 1 else "")
        for name, values in series.items()
    }


def _head(run: Run) -> dict[str, object]:
    """Return a run as a list has it: without its artifacts, each metric with its last value."""
    values = _as_dict(run)
    del values["artifacts"], values["traceback"]
    return values | {"metrics": {metric.name: metric.value for metric in run.metrics}}


def _as_dict(run: Run) -> dict[str, object]:
    values = dataclasses.asdict(run)
    values["params"] = {name: param.value for name, param in run.params.items()}
    fields = ("file_name", "size_bytes", "sha256", "is_folder")
    values["artifacts"] = {
        name: {**{field: getattr(item, field) for field in fields}, "path": str(item.local_path)}
        for name, item in run.artifacts.items()
    }
    return values
