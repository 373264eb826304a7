"""``embedl-hub bisect``: find the smallest set of differences between two runs that explains why one is worse."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

import click

from embedl_device.schema import FLAG, NUMBER, TEXT, WHOLE, Shape, array, fields, maybe, of
from embedl_hub.cli._output import (
    COULD_NOT_MEASURE,
    PATH,
    emit,
    home_option,
    in_home,
    is_usage,
    json_option,
    open_store,
    pairs,
    table,
    tell_error,
)
from embedl_hub.cli._steps import open_context
from embedl_hub.core.document import find_metric
from embedl_hub.errors import HubError

if TYPE_CHECKING:
    from embedl_hub.bisection import BisectionPlan, BisectionResult


def _shape() -> Shape:
    from embedl_hub.bisection import Decision, Operator, Switch  # noqa: PLC0415 - only for the schema

    switches = array(of(Switch))
    return fields(
        {
            "format": WHOLE, "run": TEXT, "good": TEXT, "bad": TEXT, "metric": TEXT, "place": TEXT, "alpha": NUMBER,
            "least": NUMBER, "sentence": TEXT, "differs": FLAG,
            "causes": array(fields({"switches": switches, "notes": array(TEXT), "undecided": switches})),
            "is_complete": FLAG, "note": maybe(TEXT), "switches": switches, "parts": switches,
            "decisions": array(of(Decision)), "operators": array(of(Operator)), "notes": array(TEXT), "reused": WHOLE,
        }
    )  # fmt: skip


@click.command()
@click.argument("good")
@click.argument("bad")
@click.option("--metric", help="What differs; latency_median for profiles, what both tell for evaluations.")
@click.option("--least", default=0.02, show_default=True, help="A smaller difference is none: 0.02 is 2 %.")
@click.option("--alpha", default=0.01, show_default=True, help="The error of the whole search is at most this.")
@click.option("--python", "pythons", multiple=True, metavar="VERSION=PATH", help="A Python there with that runtime.")
@click.option("--input-data", type=PATH, help="What profiles on data of your own were measured on, an .npz.")
@click.option("--labels", type=PATH, help="The right answers for accuracy, an .npy.")
@click.option("--calibration-data", type=PATH, help="What INT8 models were calibrated with, to compile them again.")
@click.option("--sitting-seconds", default=0.2, show_default=True, help="Turns of one sitting last so long.")
@click.option("--most-sittings", default=80, show_default=True, help="A decision stays open after so many.")
@click.option("--device", "devices", multiple=True, help="Where to measure; where BAD was measured. Several share it.")
@click.option("--here", is_flag=True, help="Measure on this machine, whatever devices there are.")
@click.option("--again", is_flag=True, help="Search anew although the question was answered before.")
@click.option("--project", help="Record under this project; the one in use if not given.")
@home_option
@json_option(_shape)
@click.pass_context
def command(  # noqa: PLR0913 - options
    ctx: click.Context, *, good: str, bad: str, metric: str | None, least: float, alpha: float,
    pythons: tuple[str, ...], input_data: Path | None, labels: Path | None, calibration_data: Path | None,
    sitting_seconds: float, most_sittings: int, devices: tuple[str, ...], here: bool, again: bool,
    project: str | None, home: Path | None, as_json: bool,
) -> None:  # fmt: skip
    """Find what made run BAD slower or worse than run GOOD.

    Everything recorded that differs is a switch. Trials with some switches set as in BAD are measured in turns with
    both ends, until a smallest set is left that explains the difference. Each decision is a run; the same command goes
    on where it was stopped. Exit code 0: a cause was found, or there is nothing to explain; 2: wrong usage; 3: it could
    not be measured, or stayed undecided.
    """
    from embedl_hub.bisection import Settings, bisect, plan_bisection  # noqa: PLC0415 - few commands need it

    if not 0 < alpha < 1:
        raise click.UsageError(f"--alpha is {alpha}; it is a probability such as 0.01.")
    if not 0 <= least < 1:
        raise click.UsageError(f"--least is {least}; write 0.02 for 2 %.")
    versions = pairs(pythons)
    try:
        open_store(home)  # both runs are in one that is there: none is made
        with open_context(home, project, here=here) as hub:
            plan = plan_bisection(
                hub, good, bad, metric=metric, device=devices[0] if len(devices) == 1 else None, here=here,
                pool=devices if len(devices) > 1 else (), pythons=versions, input_data=input_data, labels=labels,
                calibration_data=calibration_data,
            )  # fmt: skip
            if not as_json:
                _show_switches(plan)
            settings = Settings(alpha, least, sitting_seconds, most_sittings)
            result = bisect(hub, plan, settings=settings, told=lambda line: click.echo(line, err=as_json), again=again)
    except HubError as error:
        if is_usage(error, named_device=bool(devices)):
            raise click.UsageError(str(error)) from error
        tell_error(error, COULD_NOT_MEASURE, as_json=as_json)
        ctx.exit(COULD_NOT_MEASURE)
    if as_json:
        emit(result.as_dict())
    else:
        _show(result, home)
    if result.is_undecided or (result.has_difference and not any(cause.switches for cause in result.found.causes)):
        ctx.exit(COULD_NOT_MEASURE)


def _show_switches(plan: BisectionPlan) -> None:
    recorded = [side.run.metric(plan.metric) for side in (plan.good, plan.bad)]
    if recorded[0] is not None and recorded[1] is not None and recorded[0].value:
        good, bad = recorded[0].value, recorded[1].value
        click.echo(f"Recorded: {plan.metric} {good:.4g} in GOOD, {bad:.4g} in BAD (× {bad / good:.3g}).")
        if (bad > good) is find_metric(plan.metric).is_more_better and bad != good:
            click.echo("! By the records BAD is the better one; if that is not what you ask, exchange the two runs.")
    if not plan.switches:
        return
    click.echo(f"Measured on {plan.place}. What differs:")
    rows = [(each.name, each.good, each.bad, each.refusal or "can be switched") for each in plan.switches]
    table(("", "GOOD", "BAD", ""), rows, folds=True)


def _show(result: BisectionResult, home: Path | None) -> None:
    for note in result.notes:
        click.echo(f"! {note}")
    for cause in result.found.causes:
        for note in cause.notes:
            click.echo(f"! {note}")
    for each in result.operators:
        alone = f"; alone {each.alone.reason}" if each.alone is not None else f"; {each.note}" if each.note else ""
        click.echo(f"{each.op_type}: {each.good_ms:.4g} -> {each.bad_ms:.4g} ms, {each.share:.0%} of the change{alone}")
    if result.reused:
        click.echo(f"{result.reused} of the decisions were made before.")
    click.echo(result.sentence())
    click.echo(f"Run {result.run_id}; its page has the tree: {in_home('embedl-hub ui', home)}")
