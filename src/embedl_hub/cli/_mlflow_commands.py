"""The commands ``run to-mlflow`` and ``run from-mlflow``."""

from __future__ import annotations

import dataclasses
from pathlib import Path

import click

from embedl_device.schema import Shape, of
from embedl_hub.cli._output import chosen_runs, home_option, json_option, open_store, progress, report
from embedl_hub.errors import TrackingError
from embedl_hub.tracking import Store, find_home


def _to_mlflow() -> Shape:
    from embedl_hub.mlflow import Exported  # noqa: PLC0415 - only for the schema

    return of(Exported)


def _from_mlflow() -> Shape:
    from embedl_hub.mlflow import Taken  # noqa: PLC0415 - only for the schema

    return of(Taken)


@click.command("to-mlflow")
@click.argument("url")
@click.argument("run_ids", nargs=-1)
@click.option("--project", help="All runs of this project, the archived ones too.")
@click.option("--experiment", help="The experiment there; one for each project, of its name, if not given.")
@click.option("--artifacts/--no-artifacts", default=True, show_default=True, help="Whether files go too.")
@home_option
@json_option(_to_mlflow)
def to_mlflow(
    url: str, run_ids: tuple[str, ...], project: str | None, experiment: str | None, artifacts: bool,
    home: Path | None, as_json: bool,
) -> None:  # fmt: skip
    """Write runs to an MLflow server; those that are there whole stay as they are, others are completed.

    What opens the server is read from MLFLOW_TRACKING_TOKEN, or MLFLOW_TRACKING_USERNAME and MLFLOW_TRACKING_PASSWORD.
    """
    from embedl_hub.mlflow import Api, Server, export_runs  # noqa: PLC0415 - only here

    with Api(Server.at(url)) as api, open_store(home) as store:
        found = chosen_runs(store, run_ids, project)
        with progress("Exporting runs") as advance:
            done = export_runs(store, found, api, experiment=experiment, with_artifacts=artifacts, progress=advance)
    lines = [f"{len(done.runs)} runs written, {len(done.known_already)} already there."]
    lines += [f"! Run {run} is there without {what}." for run, left in done.left_out.items() for what in left]
    report(dataclasses.asdict(done), *lines, as_json=as_json)


@click.command("from-mlflow")
@click.argument("url")
@click.option("--experiment", required=True, help="Whose runs, by its name.")
@click.option("--project", help="The project here; the one that a run came from, else the experiment's name.")
@click.option("--artifacts/--no-artifacts", default=True, show_default=True, help="Whether files come too.")
@click.option("--largest", type=click.IntRange(1), default=4096, show_default=True, help="In MiB; the files of a run.")
@home_option
@json_option(_from_mlflow)
def from_mlflow(
    url: str, experiment: str, project: str | None, artifacts: bool, largest: int, home: Path | None, as_json: bool
) -> None:
    """Take the runs of an MLflow experiment into this store; those that are here already stay as they are.

    What opens the server is read from MLFLOW_TRACKING_TOKEN, or MLFLOW_TRACKING_USERNAME and MLFLOW_TRACKING_PASSWORD.
    """
    from embedl_hub.mlflow import Api, Server, import_runs  # noqa: PLC0415 - only here

    folder = find_home(home, uses_devices=False)
    with Api(Server.at(url)) as api, Store(folder) as store, progress("Importing runs") as advance:
        done = import_runs(
                store, api, experiment, project=project, with_artifacts=artifacts, most_bytes=largest << 20,
                progress=advance,
            )  # fmt: skip
    lines = [f"{len(done.runs)} runs imported, {len(done.known_already)} already present."]
    if done.still_running:
        lines.append(f"{len(done.still_running)} are not over yet; the same command takes them later.")
    lines += [f"! Run {run}: {what}" for run, left in done.left_out.items() for what in left]
    report(dataclasses.asdict(done), *lines, as_json=as_json)
    if done.refused:
        reasons = "\n".join(f"{run}: {reason}" for run, reason in done.refused.items())
        raise TrackingError(f"{len(done.refused)} runs cannot be taken:\n{reasons}")
