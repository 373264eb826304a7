"""``embedl-hub concurrent``: measure models at once on one device, each alone and beside the others."""

from __future__ import annotations

import dataclasses
from pathlib import Path

import click

from embedl_device.schema import TEXT, WHOLE, array, fields, maybe, of
from embedl_device.statistics import Verdict
from embedl_hub.cli._models import Where, measure, where_options
from embedl_hub.cli._output import emit, number, ratio_text, say_unless_stable, table
from embedl_hub.core.profile import ConcurrentModel, ConcurrentProfiler

_SHAPE = fields(
    {
        "run": TEXT, "device": maybe(TEXT), "rounds": WHOLE, "verdict": maybe(of(Verdict)),
        "verdict_reason": maybe(TEXT), "models": array(of(ConcurrentModel, given=TEXT, conclusion=TEXT)),
    }
)  # fmt: skip


@click.command()
@click.argument("models", nargs=-1, required=True)
@click.option("--rounds", type=click.IntRange(min=1), default=20, show_default=True,
              help="In each every model runs alone once, and all run at once.")  # fmt: skip
@click.option("--idle-processes", type=click.IntRange(min=0), default=0, show_default=True,
              help="So many further processes that do nothing, to see that those change nothing.")  # fmt: skip
@where_options(_SHAPE)
def command(
    models: tuple[str, ...], rounds: int, idle_processes: int, device: str | None, here: bool, project: str | None,
    home: Path | None, as_json: bool,
) -> None:  # fmt: skip
    """Measure two or more MODELS at once on one device: what each takes alone, and beside the others.

    MODELS are runs of compile or profile, or files of the runtime's own format, all of one toolchain. Each runs in a
    process of its own.
    """
    if len(models) + idle_processes < 2:
        raise click.UsageError("Give two models or more, or one and --idle-processes 1.")
    where = Where(device, here, project, home)
    run, result = measure(ConcurrentProfiler, models, where, rounds=rounds, idle_processes=idle_processes)
    if as_json:
        rows = [
            {"given": word, **dataclasses.asdict(each), "conclusion": each.conclusion}
            for word, each in zip(models, result.models, strict=True)
        ]
        facts = {name: getattr(result, name) for name in ("rounds", "verdict", "verdict_reason")}
        emit({"run": run.id, "device": run.device, **facts, "models": rows})
        return
    click.echo(f"{run.id}, on {run.device or 'this machine'}: {result.rounds} rounds")
    table(
        ("model", "alone", "beside the others", "ratio", "", "1/s alone", "1/s beside"),
        [
            (
                word,
                number(each.latency_alone, "ms"),
                number(each.latency_concurrent, "ms"),
                ratio_text(each.interference),
                each.conclusion,
                number(each.fps_alone),
                number(each.fps_concurrent),
            )
            for word, each in zip(models, result.models, strict=True)
        ],
        folds=True,
    )
    say_unless_stable(result.verdict, result.verdict_reason)
