"""``embedl-hub sweep``: many models, many options, many devices, from one file; resumed where it was left."""

from __future__ import annotations

import contextlib
import sys
from collections import Counter
from collections.abc import Iterator, Sequence
from dataclasses import asdict, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from embedl_device.schema import FLAG, NUMBER, TEXT, WHOLE, array, by_name, either, fields, maybe, of
from embedl_hub.cli._output import RUINED, alarm, emit, home_option, json_option, number, plain, table
from embedl_hub.cli._settings import project_in_use, read_settings
from embedl_hub.cli._steps import open_context
from embedl_hub.core.device import Device
from embedl_hub.core.document import columns, find_metric
from embedl_hub.core.steps import HERE
from embedl_hub.fleet import (
    CellResult,
    CellState,
    DeviceSelection,
    Outcome,
    Plan,
    Progress,
    Ranking,
    Step,
    StepKind,
    Sweep,
    SweepResult,
    find_engine,
    find_sweep,
    plan_sweep,
    read_sweep,
    run_sweep,
)
from embedl_hub.health import HealthWatch
from embedl_hub.terminal import styled_console
from embedl_hub.tracking import find_home

if TYPE_CHECKING:
    from embedl_hub.core import HubContext

_NEWEST = "newest"
_MOST_ROWS = 200


_CELL = {"model": TEXT, "option": TEXT, "target": TEXT}
_SHAPE = either(
    fields(
        {
            "sweep": TEXT,
            "cells": array(
                fields(
                    {
                        **_CELL, "state": of(CellState), "reason": maybe(TEXT), "ruined": FLAG,
                        "runs": by_name(maybe(TEXT)), "cached": array(TEXT), "metrics": by_name(NUMBER),
                        "verdict": maybe(TEXT),
                    }
                )
            ),
            "rankings": array(of(Ranking)),
        }
    ),
    fields(
        {
            "name": TEXT, "targets": by_name(array(TEXT)), "cells": array(fields({**_CELL, "steps": array(TEXT)})),
            "steps": by_name(fields({"kind": TEXT, "cells": WHOLE})),
        }
    ),
)  # fmt: skip


@click.command()
@click.argument("plan", type=click.Path(path_type=Path))
@click.option("--dry-run", is_flag=True, help="Show the cells, the steps and the devices, and do nothing.")
@click.option(
    "--resume", is_flag=False, flag_value=_NEWEST, metavar="[ID]", help="Go on with a sweep; the newest of its name."
)
@click.option("--retry-failed", is_flag=True, help="With --resume, run again what failed because of the model.")
@click.option("--engine", default="threads", show_default=True, help="Who places the work.")
@click.option("--reuse-measurements", is_flag=True, help="Take earlier profiles and answers of the very same steps.")
@click.option("--watch-health/--no-watch-health", default=True, help="Check boards on a schedule and after failures.")
@click.option("--project", help="Record under this project; the one in use if not given.")
@home_option
@json_option(_SHAPE)
@click.pass_context
def command(  # noqa: PLR0913 - options
    ctx: click.Context, *, plan: Path, dry_run: bool, resume: str | None, retry_failed: bool, engine: str,
    reuse_measurements: bool, watch_health: bool, project: str | None, home: Path | None, as_json: bool,
) -> None:  # fmt: skip
    """Compile, profile and invoke every model of PLAN (a TOML file) with every option on every device.

    Steps that several cells share are done once. What a killed sweep finished is not done again: --resume.
    Exit code 0: every cell is done; 1: some are not, or their answers are ruined, and why is said.
    """
    sweep = _where(read_sweep(plan), home)
    if reuse_measurements:
        sweep = replace(sweep, reuse_measurements=True)
    extra = [Device(HERE)] if HERE in sweep.devices.names else []
    with open_context(home, project_in_use(home, project), extra=extra) as hub:
        written = plan_sweep(hub, sweep)
        if dry_run:
            _show_plan(written, as_json=as_json)
            return
        store = hub.client.store
        assert store is not None  # noqa: S101 - the command line always tracks
        if resume == _NEWEST:
            resume = find_sweep(store, hub.project_name, sweep.name)
        try:
            with _watching(written, as_json=as_json) as listener, _health(hub, written, watch=watch_health) as health:
                result = run_sweep(
                    hub, written, engine=find_engine(engine), resume=resume, retry_failed=retry_failed,
                    listener=listener, health=health,
                )  # fmt: skip
        except KeyboardInterrupt:
            click.echo(f"Stopped; what is done is kept. Go on with: embedl-hub sweep {plan} --resume", err=True)
            raise
    _tell(result, as_json=as_json)
    if result.count(CellState.DONE) < len(result.cells) or any(each.is_ruined for each in result.cells):
        ctx.exit(1)


@contextlib.contextmanager
def _health(hub: HubContext, plan: Plan, *, watch: bool) -> Iterator[HealthWatch | None]:
    """Watch over the devices of a sweep, where there is a board among them."""
    names = {name for target in plan.targets for name in target.devices}
    if not watch or all(hub.devices[name].runner is None for name in names):
        yield None
        return
    with HealthWatch(hub, names=sorted(names)) as health:
        yield health


def _where(sweep: Sweep, home: Path | None) -> Sweep:
    """Return the sweep with its devices named: the one in use, or this machine, where it names none."""
    if sweep.devices:
        return sweep
    chosen = read_settings(find_home(home, uses_devices=False)).get("device", HERE)
    return replace(sweep, devices=DeviceSelection((chosen,)))


def _show_plan(plan: Plan, *, as_json: bool) -> None:
    needed = Counter(key for cell in plan.cells for key in cell.steps)
    if as_json:
        cells = [{name: value for name, value in vars(cell).items() if name != "id"} for cell in plan.cells]
        steps = {key: {"kind": step.kind, "cells": needed[key]} for key, step in plan.steps.items()}
        targets = {target.name: list(target.devices) for target in plan.targets}
        emit({"name": plan.name, "targets": targets, "cells": cells, "steps": steps})
        return
    titles = {
        key: step.kind if needed[key] == 1 else f"{step.kind} (shared by {needed[key]})"
        for key, step in plan.steps.items()
    }
    rows = [
        (cell.model, cell.option, cell.target, " → ".join(titles[key] for key in cell.steps))
        for cell in plan.cells[:_MOST_ROWS]
    ]
    table(("model", "option", "target", "steps"), rows)
    if len(plan.cells) > _MOST_ROWS:
        click.echo(f"... and {len(plan.cells) - _MOST_ROWS} more cells.")
    for target in plan.targets:
        click.echo(f"target {target.name}: {', '.join(target.devices) or 'this machine'}")
    kinds = {kind: sum(step.kind is kind for step in plan.steps.values()) for kind in StepKind}
    listed = ", ".join(f"{count} {kind}" for kind, count in kinds.items() if count)
    shared = sum(needed.values()) - len(plan.steps)
    click.echo(f"{len(plan.cells)} cells, {len(plan.steps)} steps ({listed}); {shared} are shared and done once.")


class _Lines(Progress):
    """Writes a line for each cell, for logs and for whoever reads them later."""

    def began(self, sweep: str, plan: Plan, done: dict[str, Outcome]) -> None:  # type: ignore[override]
        """Say what goes off, and how it can be gone on with."""
        super().began(sweep, plan, done)
        again = f", {len(done)} of them done before" if done else ""
        self.write(f"Sweep {sweep}: {len(plan.cells)} cells, {len(plan.steps)} steps{again}.")

    def cell_ended(self, result: CellResult) -> None:
        """Write its line."""
        super().cell_ended(result)
        words = _numbers(result) if result.state is CellState.DONE else f"{result.state}: {_short(result.reason)}"
        self.write(f"[{self.cells_ended}/{self.cells}] {result.cell.id} {words}{_left(self.left_s())}")

    def said(self, text: str) -> None:
        """Pass it on."""
        self.write(text)

    def write(self, text: str) -> None:
        """Write a line to standard error; standard output is for the result."""
        click.echo(plain(text), err=True)


class _Live(_Lines):
    """Shows a table that changes in place, one line for each target."""

    def __init__(self, view: Any) -> None:  # noqa: ANN401 - rich's Live
        super().__init__()
        self._view = view

    def step_ended(self, step: Step, outcome: Outcome) -> None:
        """Draw the table anew."""
        super().step_ended(step, outcome)
        self._view.update(self._drawn())

    def write(self, text: str) -> None:
        """Write above the table."""
        self._view.console.print(plain(text))

    def _drawn(self) -> Any:  # noqa: ANN401 - rich's Table
        from rich.table import Table  # noqa: PLC0415 - only where somebody looks

        drawn = Table(title=f"{self.cells_ended} of {self.cells} cells{_left(self.left_s())}")
        for title in ("target", "steps", "failed", "done before"):
            drawn.add_column(title, justify="left" if title == "target" else "right")
        for name, place in self.targets.items():
            drawn.add_row(plain(name), f"{place.ended}/{place.steps}", str(place.failed), str(place.reused))
        return drawn


@contextlib.contextmanager
def _watching(plan: Plan, *, as_json: bool) -> Iterator[Progress]:
    if as_json:
        yield Progress()
        return
    if not sys.stderr.isatty():
        yield _Lines()
        return
    from rich.live import Live  # noqa: PLC0415 - only where somebody looks

    with Live(console=styled_console(stderr=True), refresh_per_second=4, transient=True) as view:
        view.update(f"{plan.name}: {len(plan.cells)} cells")
        yield _Live(view)


def _left(seconds: float | None) -> str:
    if seconds is None or seconds <= 0:
        return ""
    minutes, rest = divmod(round(seconds), 60)
    return f", about {minutes} min {rest} s left" if minutes else f", about {max(1, rest)} s left"


def _numbers(result: CellResult) -> str:
    """Return what a cell measured, the most telling first, with its verdict."""
    shown = []
    for metric in map(find_metric, columns(result.metrics)):
        text = number(result.metrics[metric.key], metric.unit)
        shown.append(text if metric.is_speed else f"{metric.key} {text}")
    shown = shown or [str(result.state)]
    profile = result.outcomes.get(StepKind.PROFILE)
    if profile is not None and profile.verdict:
        shown.append(str(profile.verdict))
    if cached := [kind for kind, outcome in result.outcomes.items() if outcome.is_cached]:
        shown.append(f"({', '.join(cached)} from before)")
    return " ".join(shown)


def _tell(result: SweepResult, *, as_json: bool) -> None:
    if as_json:
        emit(_result_facts(result))
        return
    for each in [each for each in result.cells if each.is_ruined][:_MOST_ROWS]:
        alarm(f"{each.cell.id}: {RUINED}")
    titles, shown = _by_number(result) if len(result.plan.targets) == 1 else _by_target(result)
    table(titles, shown[:_MOST_ROWS])
    for ranking in result.rankings:
        click.echo(f"{ranking.model} on {ranking.target}: {_order(ranking)}")
    for each in [each for each in result.cells if each.state is not CellState.DONE][:_MOST_ROWS]:
        click.echo(f"{each.cell.id} {each.state}: {_short(each.reason)}")
    counts = ", ".join(f"{result.count(state)} {state}" for state in CellState if result.count(state))
    click.echo(f"Sweep {result.id}: {counts}. Look at it: embedl-hub ui, then /sweeps/{result.id}")


def _by_target(result: SweepResult) -> tuple[Sequence[str], Sequence[Sequence[str]]]:
    """Return a table with a column for each target, all that was measured in its cells."""
    targets = [target.name for target in result.plan.targets]
    rows: dict[tuple[str, str], dict[str, str]] = {}
    for each in result.cells:
        words = _numbers(each) if each.state is CellState.DONE else str(each.state)
        rows.setdefault((each.cell.model, each.cell.option), {})[each.cell.target] = words
    shown = [(*names, *(cells.get(name, "-") for name in targets)) for names, cells in rows.items()]
    return ("model", "option", *targets), shown


def _by_number(result: SweepResult) -> tuple[Sequence[str], Sequence[Sequence[str]]]:
    """Return a table with a column for each number, where one target leaves room for them."""
    metrics = [find_metric(key) for key in columns({key for each in result.cells for key in each.metrics})]
    rows = []
    for each in result.cells:
        profile = each.outcomes.get(StepKind.PROFILE)
        words = str((profile and profile.verdict) or "-" if each.state is CellState.DONE else each.state)
        if cached := [kind for kind, outcome in each.outcomes.items() if outcome.is_cached]:
            words = f"{words} ({', '.join(cached)} from before)"
        numbers = (number(each.metrics.get(metric.key)) for metric in metrics)
        rows.append((each.cell.model, each.cell.option, words, *numbers))
    return ("model", "option", "verdict", *(metric.column_title for metric in metrics)), rows


def _order(ranking: Ranking) -> str:
    """Return a ranking for people: what is not shown to differ has a question mark between."""
    if ranking.error is not None:
        return f"not ranked: {_short(ranking.error)}"
    texts = []
    for place in ranking.options:
        texts.append(f"{place.option} {number(place.latency_median, 'ms')}")
        if place.ratio_to_next is not None:
            texts.append(f"{'<' if place.is_significant else '<?'} (× {place.ratio_to_next:.3f})")
    return " ".join(texts)


def _result_facts(result: SweepResult) -> dict[str, object]:
    return {
        "sweep": result.id,
        "cells": [
            {
                "model": each.cell.model, "option": each.cell.option, "target": each.cell.target,
                "state": each.state, "reason": each.reason, "ruined": each.is_ruined,
                "runs": {kind: outcome.run_id for kind, outcome in each.outcomes.items()},
                "cached": [kind for kind, outcome in each.outcomes.items() if outcome.is_cached],
                "metrics": dict(each.metrics),
                "verdict": next((outcome.verdict for outcome in each.outcomes.values() if outcome.verdict), None),
            }
            for each in result.cells
        ],
        "rankings": [asdict(ranking) for ranking in result.rankings],
    }  # fmt: skip


def _short(text: str | None) -> str:
    return (text or "").strip().partition("\n")[0][:300]
