"""``embedl-hub compare``: hold runs against the first: what differs, then the ratios; or measure models in turns."""

from __future__ import annotations

import dataclasses
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click
from click.core import ParameterSource

from embedl_device.schema import FLAG, NUMBER, TEXT, WHOLE, Shape, array, either, fields, maybe, of
from embedl_hub.cli._output import (
    NETWORK,
    emit,
    home_option,
    json_option,
    number,
    open_store,
    ratio_text,
    say_unless_stable,
    table,
    working,
)
from embedl_hub.cli._steps import chosen_device, open_context
from embedl_hub.comparison import Comparison, MetricRow, compare, conclusion_of
from embedl_hub.core.component import RunType
from embedl_hub.core.device import Device
from embedl_hub.core.document import find_metric
from embedl_hub.core.lookup import find_model, find_run, toolchain_of
from embedl_hub.core.steps import HERE, run_of, where_measured
from embedl_hub.core.toolchain import paired_profiler
from embedl_hub.errors import quoted_list

if TYPE_CHECKING:
    from embedl_hub.core import HubContext
    from embedl_hub.core.profile import PairedModel, PairedResult
    from embedl_hub.tracking import Run

_BUSY = 0.02
_METRIC = "latency_median"


def _paired_facts(run: Run, result: PairedResult, models: Sequence[str]) -> dict[str, object]:
    return {
        "run": run.id,
        "device": run.device,
        **{name: getattr(result, name) for name in ("rounds", "waiting_share", "verdict", "verdict_reason")},
        "models": [
            {"given": word, **dataclasses.asdict(model), "conclusion": _conclusion(place, model)}
            for place, (word, model) in enumerate(zip(models, result.models, strict=True))
        ],
        "ranking": [{**dataclasses.asdict(each), "is_significant": each.is_significant} for each in result.ranking],
    }


def _conclusion(place: int, model: PairedModel) -> str:
    return "" if place == 0 else conclusion_of(_METRIC, model.ratio)


def _show_paired(run: Run, result: PairedResult, names: Sequence[str]) -> None:
    click.echo(f"{run.id}, on {run.device or 'this machine'}: {result.rounds} rounds, each model once a round")
    unit = find_metric(_METRIC).unit
    rows = [
        (name, number(model.latency_median, unit), ratio_text(model.ratio) if place else "", _conclusion(place, model))
        for place, (name, model) in enumerate(zip(names, result.models, strict=True))
    ]
    table(("model", _METRIC, "against the first", ""), rows, folds=True)
    order = []
    for each in result.ranking:
        order.append(names[each.number])
        if each.to_next is not None:
            order.append("<" if each.is_significant else "≈ (no significant difference)")
    click.echo(f"From the fastest: {' '.join(order)}")
    if (result.waiting_share or 0) > _BUSY:
        click.echo(
            f"! The models stood {result.waiting_share:.0%} of the time in the queue for a processor, while something "
            "else ran; it is in latency_median and not in the ratios."
        )
    say_unless_stable(result.verdict, result.verdict_reason)


_LAYERS_SHOWN = 10
_CHOICES_SHOWN = 5
_LETTERS = 26


def _shape() -> Shape:
    from embedl_device.statistics import Ranked, Verdict  # noqa: PLC0415 - only for the schema
    from embedl_hub.comparison import FactRow, FloatChoice  # noqa: PLC0415
    from embedl_hub.core.profile import PairedModel  # noqa: PLC0415

    whole: dict[str, Any] = dict(of(Comparison, headline=array(TEXT)))
    more = {
        "facts": of(FactRow, differs=FLAG), "metrics": of(MetricRow, conclusions=array(TEXT)),
        "float_choices": of(FloatChoice, extra_ms=NUMBER, sentence=TEXT),
    }  # fmt: skip
    whole["properties"] = {**whole["properties"], **{name: array(shape) for name, shape in more.items()}}
    paired = {
        "run": TEXT, "device": maybe(TEXT), "rounds": WHOLE, "waiting_share": maybe(NUMBER),
        "verdict": maybe(of(Verdict)), "verdict_reason": maybe(TEXT),
        "models": array(of(PairedModel, given=TEXT, conclusion=TEXT)),
        "ranking": array(of(Ranked, is_significant=maybe(FLAG))),
    }  # fmt: skip
    return either(whole, fields(paired))


@click.command()
@click.argument("runs", nargs=-1, required=True)
@click.option(
    "--layers", default=_LAYERS_SHOWN, show_default=True, help="So many layers and modules, the costliest first."
)
@click.option("--paired", is_flag=True, help="Measure their models again, in turns in one process.")
@click.option("--samples", type=click.IntRange(min=1), default=200, show_default=True, help="Rounds of --paired.")
@click.option("--device", help="Where --paired measures; where the runs were measured, else the device in use.")
@click.option("--here", is_flag=True, help="Measure --paired on this machine, whatever devices there are.")
@click.option("--project", help="Record --paired under this project; the one in use if not given.")
@home_option
@json_option(_shape)
@click.pass_context
def command(  # noqa: PLR0913 - options
    ctx: click.Context, *, runs: tuple[str, ...], layers: int, paired: bool, samples: int, device: str | None,
    here: bool, project: str | None, home: Path | None, as_json: bool,
) -> None:  # fmt: skip
    """Hold two or more RUNS against the first: what differs, then the ratios and their uncertainty.

    With --paired the models of RUNS, or files, are measured now, in turns within one process, so that what the machine
    does meanwhile happens to all of them.
    """
    if len(runs) < 2:
        raise click.UsageError("Give two runs or more; the first is the reference.")
    if not paired:
        names = [name for name in ("samples", "device", "here", "project")
                 if ctx.get_parameter_source(name) is not ParameterSource.DEFAULT]  # fmt: skip
        if names:
            given = ", ".join(f"--{name}" for name in names)
            raise click.UsageError(f"{given} says how to measure; add --paired, without it nothing is measured.")
        with open_store(home) as store:
            comparison = compare([store.run(run) for run in runs])
        if as_json:
            emit(comparison.as_dict())
        else:
            _show(comparison, layers)
        return
    chosen = chosen_device(home, device, here=here)
    with open_context(home, project, here=here, extra=() if here else [Device(HERE)]) as hub:
        if not (device or here):
            chosen = _place(hub, runs) or chosen
        component = paired_profiler(toolchain_of(hub, runs))
        models = [find_model(hub, component, word) for word in runs]
        step: Any = component()
        with working(f"{component.__name__}: {len(models)} models in turns"):
            result = step.run(hub, models, device=chosen, samples=samples)
        run = run_of(hub, result)
    if as_json:
        emit(_paired_facts(run, result, runs))
    else:
        _show_paired(run, result, [f"{letter} {word}" for letter, word in zip(_letters(len(runs)), runs, strict=True)])


def _place(hub: HubContext, words: Sequence[str]) -> str | None:
    """Return the device on which profiles among runs were measured; None where there are none."""
    found = [find_run(hub, word) for word in words if not Path(word).exists()]
    places = dict.fromkeys(where_measured(hub, run) or HERE for run in found if run.type == RunType.PROFILE)
    if len(places) > 1:
        raise click.UsageError(
            f"The runs were measured on {quoted_list(places)}; --device NAME or --here says where to measure."
        )
    return next(iter(places), None)


def _letters(count: int) -> list[str]:
    return [chr(ord("A") + place) if place < _LETTERS else str(place) for place in range(count)]


def _show(comparison: Comparison, layers: int) -> None:
    letters = _letters(len(comparison.runs))
    names = [
        f"{letter} {_short(run.name)}{f' ({run.verdict})' if run.is_estimated else ''}"
        for letter, run in zip(letters, comparison.runs, strict=True)
    ]
    for name, run in zip(names, comparison.runs, strict=True):
        click.echo(f"{name}: {run.id}, on {run.device or 'this machine'}")
    differing = comparison.differences
    if differing:
        click.echo("What differs in what was measured:")
        table(("", *names), [(row.name, *(_short(v, 80) for v in row.values)) for row in differing], folds=True)
    else:
        click.echo("Nothing is known to differ: model, precision, runtime, device, threads, power, batch.")
    if comparison.params:
        click.echo("Further parameters that differ:")
        table(("", *names), [(row.name, *(_short(v) for v in row.values)) for row in comparison.params], folds=True)
    if comparison.metrics:
        table(("metric", *names), [(row.name, *_cells(row)) for row in comparison.metrics], folds=True)
    if comparison.layers:
        _show_layers(comparison, names, layers)
    if comparison.modules:
        _show_modules(comparison, names, layers)
    for line in (*comparison.headline(), *(f"! {caution}" for caution in comparison.cautions)):
        click.echo(line)


def _cells(row: MetricRow) -> list[str]:
    cells = []
    for place, (value, ratio) in enumerate(zip(row.values, row.ratios, strict=True)):
        text = number(value, row.unit)
        if ratio is not None:
            text += f"  {ratio_text(ratio)} {row.conclusion(place)}"
        cells.append(text)
    return cells


def _show_layers(comparison: Comparison, names: list[str], count: int) -> None:
    costliest = sorted(comparison.layers, key=lambda row: -max((time or 0.0) for time in row.times_ms))
    rows = [(_short(row.name, 60), *(number(time, "ms") for time in row.times_ms)) for row in costliest[:count]]
    table(("layer", *names), rows, folds=True)
    _say_more(len(costliest), count, "layers")


def _say_more(known: int, shown: int, what: str) -> None:
    if known > shown:
        click.echo(f"{known - shown} more {what}; --layers {known} shows all.")


def _show_modules(comparison: Comparison, names: list[str], count: int) -> None:
    own = [row for row in comparison.modules if any(time is not None for time in row.own_ms)]
    costliest = sorted(own, key=lambda row: -max((time or 0.0) for time in row.own_ms))
    rows = [
        (
            _short(row.name or NETWORK, 60),
            *(
                f"{number(time, 'ms')} {word or ''}".strip()
                for time, word in zip(row.own_ms, row.precisions, strict=True)
            ),
            "-" if row.sensitivity_share is None else f"{row.sensitivity_share:.1%}",
        )
        for row in costliest[:count]
    ]  # fmt: skip
    rows.append(("of no module", *(number(time, "ms") for time in comparison.outside_ms), "-"))
    table(("module", *names, "of the loss"), rows, folds=True)
    _say_more(len(costliest), count, "modules")
    for choice in comparison.float_choices[:_CHOICES_SHOWN]:
        click.echo(choice.sentence())


def _short(text: str | None, length: int = 40) -> str:
    if text is None:
        return "not known"
    return text if len(text) <= length else f"{text[: length - 1]}…"
