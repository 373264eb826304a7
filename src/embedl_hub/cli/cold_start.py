"""``embedl-hub cold-start``: measure what a fresh process takes to answer, with and without the page cache."""

from __future__ import annotations

from pathlib import Path

import click

from embedl_device.schema import TEXT, both, fields, maybe
from embedl_hub.cli._models import Where, measure, where_options
from embedl_hub.cli._output import emit, number, say_unless_stable, table
from embedl_hub.cli._steps import STEP, step_facts
from embedl_hub.core.document import find_metric
from embedl_hub.core.profile import ColdStartProfiler

_ROWS = ("process_time", "import_time", "load_time", "first_latency", "start_time")


@click.command()
@click.argument("model")
@click.option("--starts", type=click.IntRange(min=1), default=20, show_default=True,
              help="So many starts with the files in the page cache, and as many without.")  # fmt: skip
@where_options(both(STEP, fields({"cold_problem": maybe(TEXT)})))
def command(
    model: str, starts: int, device: str | None, here: bool, project: str | None, home: Path | None, as_json: bool
) -> None:
    """Measure what the user of an app waits for: a fresh process, the import, the loading and the first inference.

    MODEL is a run of compile or profile, or a file of the runtime's own format. Every start is a process of its own;
    starts with the files in the page cache and starts that read them from storage take turns.
    """
    run, result = measure(ColdStartProfiler, [model], Where(device, here, project, home), starts=starts)
    if as_json:
        emit({**step_facts(run), "cold_problem": result.cold_problem})
        return
    click.echo(f"{run.id}, on {run.device or 'this machine'}: {starts} starts with the page cache and as many without")

    def cell(key: str) -> str:
        metric = getattr(result, key)
        return "" if metric is None else number(metric.value, find_metric(key).unit)

    rows = [(find_metric(key).title, cell(key), cell(f"{key}_cold")) for key in _ROWS]
    table(("median of", "files in the page cache", "files read from storage"), rows)
    if result.cold_problem is not None:
        click.echo(f"! Starts without the page cache could not be measured: {result.cold_problem}.")
    say_unless_stable(result.verdict, result.verdict_reason)
