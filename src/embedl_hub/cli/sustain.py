"""``embedl-hub sustain``: put a model under load for minutes to hours: throttling, steady latency, energy."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import click

from embedl_device.schema import TEXT, both, fields, maybe
from embedl_hub.cli._models import Where, measure, where_options
from embedl_hub.cli._output import emit, number, progress, say_unless_stable, table
from embedl_hub.cli._steps import STEP, chosen_device, open_context, step_facts
from embedl_hub.core.document import find_metric
from embedl_hub.core.lookup import find_run
from embedl_hub.core.profile import Progress, SustainedProfiler, watching
from embedl_hub.core.steps import HERE
from embedl_hub.errors import ConfigError
from embedl_hub.refusal import RefusedError

_ROWS = (
    "fresh_latency", "steady_latency", "steady_ratio", "onset", "energy", "mean_power", "idle_power",
    "temperature_start", "temperature_end",
)  # fmt: skip
_POLL_S = 2.0


@click.command()
@click.argument("model", required=False)
@click.option("--seconds", type=click.FloatRange(min=1), default=300.0, show_default=True, help="How long it lasts.")
@click.option("--duty", type=click.FloatRange(0, 1, min_open=True), default=1.0, show_default=True,
              help="The busy share of each period.")  # fmt: skip
@click.option("--duty-period", type=click.FloatRange(min=0.1), default=10.0, show_default=True,
              help="Busy and idle time together, in s.")  # fmt: skip
@click.option("--rate", type=click.FloatRange(min=0, min_open=True),
              help="Inferences a second; one right after another if not given.")  # fmt: skip
@click.option("--idle-seconds", type=click.FloatRange(min=0), default=5.0, show_default=True,
              help="Rest before and after, for the idle power.")  # fmt: skip
@click.option("--until-steady", is_flag=True, help="End when latency and temperature have stopped to change.")
@click.option("--max-temperature", type=float, help="End when a sensor of the device says so many °C.")
@click.option("--power-source", help="Take this source of power or energy; the device's own choice if not given.")
@click.option("--collect", metavar="RUN", help="Bring what a run measured that was cut off; start nothing.")
@where_options(both(STEP, fields({name: maybe(TEXT) for name in ("energy_sources", "energy_problem", "stopped")})))
def command(
    model: str | None, collect: str | None, device: str | None, here: bool, project: str | None, home: Path | None,
    as_json: bool, **options: Any,  # noqa: ANN401 - the options of the load
) -> None:  # fmt: skip
    """Put MODEL under load on a device and see what is left of its speed, and what an inference costs.

    MODEL is a run of compile or profile, or a file of the runtime's own format. The load runs on the device by itself:
    after a lost connection or a killed hub, --collect RUN brings its result.
    """
    if (model is None) is (collect is None):
        raise click.UsageError("Give a MODEL, or --collect RUN.")
    where = Where(device, here, project, home)
    if collect is not None:
        collect, model, where = _await_run(collect, where)
    with _shown(f"{model} under load") as tell, watching(tell):
        run, result = measure(SustainedProfiler, [str(model)], where, collect=collect, **options)
    if as_json:
        names = ("energy_sources", "energy_problem", "stopped")
        emit({**step_facts(run), **{name: getattr(result, name) for name in names}})
        return
    click.echo(f"{run.id}, on {run.device or 'this machine'}: {result.stopped}")
    table(None, [(find_metric(key).title, _cell(result, key)) for key in _ROWS])
    if result.onset is None:
        click.echo("No throttling was seen that the latency shows.")
    if (missed := run.metric("missed")) is not None and missed.value:
        click.echo(
            f"! {missed.value:,.0f} inferences came too late for the rate: the device is not fast enough for it."
        )
    if result.energy_problem is not None:
        click.echo(f"! There is no energy of an inference: {result.energy_problem}.")
    elif result.energy_sources is not None:
        click.echo(f"Energy is of {result.energy_sources}; idle power is taken off.")
    say_unless_stable(result.verdict, result.verdict_reason)


def _cell(result: Any, key: str) -> str:  # noqa: ANN401 - a SustainedResult
    metric = getattr(result, key)
    if metric is None:
        return "none seen" if key == "onset" else "not known"
    text = number(metric.value, find_metric(key).unit)
    low, high = getattr(result, f"{key}_low", None), getattr(result, f"{key}_high", None)
    return text if low is None or high is None else f"{text} ({number(low.value)} to {number(high.value)})"


@contextmanager
def _shown(what: str) -> Iterator[Callable[[Progress], None]]:
    with progress(what) as bar:

        def tell(found: Progress) -> None:
            if found.at_s is not None and found.seconds is not None:
                bar(int(max(0.0, found.at_s)), int(found.seconds))

        yield tell


def _await_run(word: str, where: Where) -> tuple[str, str, Where]:
    """Wait until a run's load is over, without the lease, which the load itself may hold; return what to collect."""
    from embedl_hub.machine.sustained import job_folder, peek  # noqa: PLC0415 - importing a command must cost nothing

    with open_context(where.home, where.project, here=where.here, device=HERE) as hub:
        run = find_run(hub, word)
        here = run.device is None or where.here
        try:
            folder = job_folder(hub, run.id)
            runner = None if here else hub.find_device(run.device or "").runner
            if runner is None:
                from embedl_hub.core.device import LocalCommandRunner  # noqa: PLC0415 - as above

                runner = LocalCommandRunner()
            with _shown(f"run {run.id}") as tell:
                while not (found := peek(runner, folder)[0]).is_over:
                    tell(found)
                    time.sleep(_POLL_S)
        except RefusedError as error:
            raise ConfigError(str(error)) from error
    chosen = chosen_device(where.home, where.device, here=here) if where.device else run.device
    return run.id, run.id, Where(chosen, here, where.project or run.project, where.home)
