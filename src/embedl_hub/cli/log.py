"""``embedl-hub log``: record a parameter, a metric, a tag or an artifact from a shell script."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator
from pathlib import Path

import click

from embedl_device.schema import ANY, NUMBER, TEXT, WHOLE, fields, maybe
from embedl_hub.cli._output import as_value, home_option, json_option, open_store, report
from embedl_hub.tracking import ActiveRun, Client, open_uplink


@click.group()
def command() -> None:
    """Record a parameter, a metric, a tag or an artifact of a run that `run start` began.

    \b
    RUN=$(embedl-hub run start --name "by hand")
    embedl-hub log param $RUN precision int8
    embedl-hub log metric $RUN accuracy 0.91
    embedl-hub run finish $RUN
    """  # noqa: D301 - click's mark for text that keeps its lines


@contextlib.contextmanager
def attached(home: Path | None, run_id: str) -> Iterator[ActiveRun]:
    """Hold a run that no process owns."""
    with open_store(home) as store:
        client = Client("default", store, uplink=open_uplink(store))
        try:
            with client.attach(run_id) as run:
                yield run
        finally:
            client.close()


@command.command("param")
@click.argument("run_id")
@click.argument("name")
@click.argument("value")
@home_option
@json_option(fields({"run": TEXT, "param": TEXT, "value": ANY}))
def param(run_id: str, name: str, value: str, home: Path | None, as_json: bool) -> None:
    """Record a parameter: a number, true, a list such as [1,2], else text."""
    with attached(home, run_id) as run:
        logged = run.log_param(name, as_value(value))
    report({"run": run.id, "param": name, "value": logged.value}, as_json=as_json)


@command.command("metric", context_settings={"ignore_unknown_options": True})
@click.argument("run_id")
@click.argument("name")
@click.argument("value", type=float)
@click.option("--step", type=int, help="Where in a series it stands.")
@home_option
@json_option(fields({"run": TEXT, "metric": TEXT, "value": NUMBER, "step": maybe(WHOLE)}))
def metric(run_id: str, name: str, value: float, step: int | None, home: Path | None, as_json: bool) -> None:
    """Record a number."""
    with attached(home, run_id) as run:
        run.log_metric(name, value, step)
    report({"run": run.id, "metric": name, "value": value, "step": step}, as_json=as_json)


@command.command("tag")
@click.argument("run_id")
@click.argument("name")
@click.argument("value")
@home_option
@json_option(fields({"run": TEXT, "tag": TEXT, "value": TEXT}))
def tag(run_id: str, name: str, value: str, home: Path | None, as_json: bool) -> None:
    """Record a label to find the run by; a finished run takes one too."""
    with open_store(home) as store:
        run = store.run(run_id)
        if run.ended_ms is not None:
            store.label(run.id, name, value)
    if run.ended_ms is None:
        with attached(home, run.id) as active:
            active.log_tag(name, value)
    report({"run": run.id, "tag": name, "value": value}, as_json=as_json)


@command.command("artifact")
@click.argument("run_id")
@click.argument("path", type=click.Path(path_type=Path, exists=True))
@click.option("--name", help="What the run calls it; the file's name if not given.")
@home_option
@json_option(fields({"run": TEXT, "artifact": TEXT, "sha256": TEXT, "size_bytes": WHOLE}))
def artifact(run_id: str, path: Path, name: str | None, home: Path | None, as_json: bool) -> None:
    """Keep a file or a folder with the run."""
    with attached(home, run_id) as run:
        logged = run.log_artifact(path, name)
    facts = {"run": run.id, "artifact": logged.name, "sha256": logged.sha256, "size_bytes": logged.size_bytes}
    report(facts, as_json=as_json)
