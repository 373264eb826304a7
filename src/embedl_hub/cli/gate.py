"""``embedl-hub gate``: fail a build when a run is worse than a baseline, measured again in turns."""

from __future__ import annotations

import time
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING

import click

from embedl_hub.cli._output import COULD_NOT_MEASURE, home_option, json_option, report, working
from embedl_hub.cli._settings import project_in_use
from embedl_hub.cli._steps import open_context
from embedl_hub.comparison import (
    Again,
    Decision,
    GateResult,
    find_baseline,
    gate,
    junit_error,
    junit_xml,
    without_layers,
)
from embedl_hub.core.component import RunType
from embedl_hub.core.device import Device
from embedl_hub.core.steps import HERE
from embedl_hub.errors import ConfigError, HubError, TrackingError, UnknownDeviceError

if TYPE_CHECKING:
    from embedl_hub.tracking import Run


def _share(_ctx: click.Context, _parameter: click.Parameter, value: str) -> float:
    try:
        share = float(value.removesuffix("%")) / 100 if value.endswith("%") else float(value)
    except ValueError:
        raise click.BadParameter(f"{value!r} must look like 5% or 0.05.") from None
    if share >= 1 and not value.endswith("%"):
        # Somebody who writes 5 means five per cent, not five hundred.
        raise click.BadParameter(f"{value!r} would tolerate {share:.0%}; write {value}% for per cent.")
    return share


@click.command()
@click.argument("run")
@click.option("--baseline", required=True, help="A run, or TAG=VALUE: the newest finished run with that tag.")
@click.option("--metric", default="latency_median", show_default=True, help="What is compared.")
@click.option("--tolerance", default="5%", show_default=True, callback=_share, help="How much worse is still fine.")
@click.option("--more-is-better/--less-is-better", default=None, help="For metrics of your own.")
@click.option("--repeat/--no-repeat", default=True, help="Measure again, in turns, before saying worse.")
@click.option("--input-data", multiple=True, metavar="PATH", help="What profiles on data of your own were measured on.")
@click.option("--most-pairs", default=30, show_default=True, help="Give up after so many turns.")
@click.option("--device", help="Where to measure again; where RUN and its baseline were measured if not given.")
@click.option("--here", is_flag=True, help="Measure again on this machine, whatever devices there are.")
@click.option("--junit", type=click.Path(path_type=Path), help="Write a JUnit report here.")
@click.option("--fail-when-unsure", is_flag=True, help="Exit with 3 when the gate cannot tell, instead of 0.")
@click.option("--project", help="Record the repeats under this project; the one in use if not given.")
@home_option
@json_option
@click.pass_context
def command(  # noqa: PLR0913 - options
    ctx: click.Context, *, run: str, baseline: str, metric: str, tolerance: float, more_is_better: bool | None,
    repeat: bool, input_data: tuple[str, ...], most_pairs: int, device: str | None, here: bool, junit: Path | None,
    fail_when_unsure: bool, project: str | None, home: Path | None, as_json: bool,
) -> None:  # fmt: skip
    """Exit with 1 when RUN is worse than a baseline by more than is tolerated.

    Both are measured again in turns, so that noise does not fail a build, each on the device of its record. Exit code
    0: fine, or nobody can tell (said so); 1: worse; 2: wrong usage; 3: it could not be measured.
    """
    if device and here:
        raise click.UsageError("--device and --here contradict each other.")
    started = time.perf_counter()

    measured_on: list[str] = []

    def asked() -> GateResult:
        # Runs of this machine are measured again on this machine, whatever devices there are now.
        this_machine = [Device(HERE)]
        with open_context(
            home, project_in_use(home, project), replace=without_layers, tags={"gate": run}, extra=this_machine
        ) as hub:
            store = hub.client.store
            assert store is not None  # noqa: S101 - the command line always tracks
            candidate = store.run(run)
            reference = find_baseline(store, baseline, candidate.project, candidate.type, but=candidate.id)
            again = Again(hub, input_data, device=device, here=here, while_measuring=working)
            measure, both = _repeats(again, candidate, reference) if repeat else (None, True)
            places = "" if measure is None else again.places((candidate, reference) if both else (candidate,))

            def told(each: Run) -> Run:
                assert measure is not None  # noqa: S101 - only then is this called
                if not measured_on:
                    measured_on.append(places)
                    click.echo(f"Measuring again on {places}.", err=True)
                return measure(each)

            return gate(
                candidate, reference, metric=metric, tolerance=tolerance,
                measure_again=None if measure is None else told, repeat_baseline=both,
                more_is_better=more_is_better, most_pairs=most_pairs,
            )  # fmt: skip

    try:
        result = asked()
    except HubError as error:
        _write(junit, junit_error(run, baseline, metric, str(error)))
        # A device of the records that is gone is no mistake in the words of the command.
        is_usage = isinstance(error, ConfigError | TrackingError) and not isinstance(error, UnknownDeviceError)
        if is_usage or (device is not None and isinstance(error, UnknownDeviceError)):
            raise click.UsageError(str(error)) from error
        click.echo(f"embedl-hub: {error}", err=True)
        ctx.exit(COULD_NOT_MEASURE)
    _write(junit, junit_xml([result], seconds=time.perf_counter() - started))
    ratio = result.worsening
    interval = "" if ratio.low is None or ratio.high is None else f" ({ratio.low:.3f} to {ratio.high:.3f})"
    report(
        {**result.as_dict(), "measured_on": measured_on[0] if measured_on else None},
        *(f"differs in {line}" for line in result.differences),
        f"{result.decision}: {result.metric} × {ratio.value:.3f}{interval} of the baseline's, tolerated "
        f"× {1 + result.tolerance:.3f}: {result.reason}.",
        as_json=as_json,
    )
    if result.decision is Decision.WORSE:
        ctx.exit(1)
    if fail_when_unsure and result.decision is Decision.CANNOT_TELL:
        ctx.exit(COULD_NOT_MEASURE)


def _write(path: Path | None, text: str) -> None:
    if path is None:
        return
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text, encoding="utf-8")
    except OSError as error:
        raise ConfigError(f"The report cannot be written to {path}: {error}.") from error


def _repeats(again: Again, candidate: Run, baseline: Run) -> tuple[Callable[[Run], Run] | None, bool]:
    """Return how to measure again, and whether the baseline can be measured again too."""
    if candidate.type != RunType.PROFILE:
        return None, True
    again.plan(candidate)
    try:
        again.plan(baseline)
    except HubError as error:
        click.echo(f"The baseline cannot be measured again, its record stands in: {error}", err=True)
        return again, False
    return again, True
