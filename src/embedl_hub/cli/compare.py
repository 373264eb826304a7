"""``embedl-hub compare``: hold runs against the first: what differs, then the ratios; or measure models in turns."""

from __future__ import annotations

from typing import TYPE_CHECKING

import click
from click.core import ParameterSource

from embedl_hub.cli._output import emit, home_option, json_option, number, open_store, table
from embedl_hub.cli._paired import Wishes, compare_in_turns
from embedl_hub.comparison import compare

if TYPE_CHECKING:
    from pathlib import Path

    from embedl_hub.comparison import Comparison, MetricRow

_LAYERS_SHOWN = 10
_LETTERS = 26


@click.command()
@click.argument("runs", nargs=-1, required=True)
@click.option("--layers", default=_LAYERS_SHOWN, show_default=True, help="Show so many layers, the costliest first.")
@click.option("--paired", is_flag=True, help="Measure their models again, in turns in one process.")
@click.option("--samples", type=click.IntRange(min=1), default=200, show_default=True, help="Rounds of --paired.")
@click.option("--device", help="Where --paired measures; the device in use, else the first that serves.")
@click.option("--here", is_flag=True, help="Measure --paired on this machine, whatever devices there are.")
@click.option("--project", help="Record --paired under this project; the one in use if not given.")
@home_option
@json_option
@click.pass_context
def command(  # noqa: PLR0913 - options
    ctx: click.Context,
    *,
    runs: tuple[str, ...],
    layers: int,
    paired: bool,
    samples: int,
    device: str | None,
    here: bool,
    project: str | None,
    home: Path | None,
    as_json: bool,
) -> None:
    """Hold two or more RUNS against the first: what differs, then the ratios and their uncertainty.

    With --paired the models of RUNS, or files, are measured now, in turns within one process, so that what the machine
    does meanwhile happens to all of them.
    """
    if len(runs) < 2:
        raise click.UsageError("Give two runs or more; the first is what the others are held against.")
    if not paired:
        _refuse_without_paired(ctx)
        with open_store(home) as store:
            comparison = compare([store.run(run) for run in runs])
        if as_json:
            emit(comparison.as_dict())
        else:
            _show(comparison, layers)
        return
    if here and device:
        raise click.UsageError("--device and --here contradict each other.")
    compare_in_turns(Wishes(runs, _letters(len(runs)), samples, device, here, project, home), as_json=as_json)


def _refuse_without_paired(ctx: click.Context) -> None:
    given = [
        f"--{name}"
        for name in ("samples", "device", "here", "project")
        if ctx.get_parameter_source(name) is not ParameterSource.DEFAULT
    ]
    if given:
        raise click.UsageError(f"{', '.join(given)} says how to measure; add --paired, without it nothing is measured.")


def _letters(count: int) -> list[str]:
    return [chr(ord("A") + place) if place < _LETTERS else str(place) for place in range(count)]


def _show(comparison: Comparison, layers: int) -> None:
    letters = _letters(len(comparison.runs))
    names = [f"{letter} {_short(run.name)}" for letter, run in zip(letters, comparison.runs, strict=True)]
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
    for line in (*comparison.headline(), *(f"! {caution}" for caution in comparison.cautions)):
        click.echo(line)


def _cells(row: MetricRow) -> list[str]:
    cells = []
    for place, (value, ratio) in enumerate(zip(row.values, row.ratios, strict=True)):
        text = number(value, row.unit)
        if ratio is not None:
            interval = "" if ratio.low is None or ratio.high is None else f" ({ratio.low:.3f}-{ratio.high:.3f})"
            text += f"  × {ratio.value:.3f}{interval} {row.conclusion(place)}"
        cells.append(text)
    return cells


def _show_layers(comparison: Comparison, names: list[str], count: int) -> None:
    costliest = sorted(comparison.layers, key=lambda row: -max((time or 0.0) for time in row.times_ms))
    rows = [(_short(row.name, 60), *(number(time, "ms") for time in row.times_ms)) for row in costliest[:count]]
    table(("layer", *names), rows, folds=True)
    if len(costliest) > count:
        click.echo(f"{len(costliest) - count} more layers; --layers {len(costliest)} shows all.")


def _short(text: str | None, length: int = 40) -> str:
    if text is None:
        return "not known"
    return text if len(text) <= length else f"{text[: length - 1]}…"
