"""``embedl-hub gate``: fail a build when a run is worse than a baseline, measured again in turns."""

from __future__ import annotations

import dataclasses
import time
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from embedl_device.schema import TEXT, maybe, of
from embedl_hub.cli._models import toolchain_of
from embedl_hub.cli._output import COULD_NOT_MEASURE, home_option, json_option, report, tell_error, working
from embedl_hub.cli._settings import project_in_use
from embedl_hub.cli._steps import open_context
from embedl_hub.comparison import Decision, GateResult, gate, junit_error, junit_xml
from embedl_hub.core.component import Component, RunType
from embedl_hub.core.device import Device
from embedl_hub.core.profile import ColdStartProfiler, SustainedProfiler
from embedl_hub.core.steps import model_of, options_of, read_arrays, run_of, where_measured
from embedl_hub.core.toolchain import components, find_component
from embedl_hub.errors import ConfigError, HubError, TrackingError, UnknownDeviceError, quoted_list
from embedl_hub.fleet import HERE
from embedl_hub.tracking import Run, Store, equal

if TYPE_CHECKING:
    from embedl_hub.core import HubContext


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
@json_option(of(GateResult, measured_on=maybe(TEXT)))
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
            home, project_in_use(home, project), replace=_without_layers, tags={"gate": run}, extra=this_machine
        ) as hub:
            store = hub.client.store
            assert store is not None  # noqa: S101 - the command line always tracks
            candidate = store.run(run)
            reference = find_baseline(store, baseline, candidate)
            again = _Again(hub, input_data, device=device, here=here)
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
        tell_error(error, COULD_NOT_MEASURE, as_json=as_json)
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


def find_baseline(store: Store, word: str, candidate: Run) -> Run:
    """Return a run by its id, or the newest finished one of the candidate's kind with a tag."""
    name, equals, value = word.partition("=")
    if not equals:
        return store.run(word)
    same = [equal("project", candidate.project), equal("type", candidate.type), equal("tags", value, name=name)]
    where = " and ".join((*same, "status = 'FINISHED'", f"not {equal('id', candidate.id)}"))
    for found in store.find(where, limit=1).runs:
        return store.run(found.id)
    raise TrackingError(
        f"No finished {candidate.type} run of project {candidate.project!r} has the tag {name}={value}. "
        f"Give one when you profile: embedl-hub profile ... --tag {name}={value}"
    )


def _without_layers(device: Device) -> Device:
    """Leave the layers out of repeats, where a kind of device has that setting: only the metric is asked for."""
    config = device.provider_config
    if config is None or "layer_runs" not in config.__dataclass_fields__:
        return device
    return dataclasses.replace(device, provider_config=dataclasses.replace(config, layer_runs=0))  # type: ignore[call-arg]


_OF_ALL: tuple[type[Component], ...] = (ColdStartProfiler, SustainedProfiler)
"""The profilers of one model that are the same for all toolchains."""


class _Again:
    """Measures a recorded profile again: the same model, device and options."""

    def __init__(
        self, ctx: HubContext, input_data: tuple[str, ...], *, device: str | None = None, here: bool = False
    ) -> None:
        self._ctx = ctx
        self._data = read_arrays(input_data) if input_data else None
        self._device, self._here = device, here

    def place(self, run: Run) -> str:
        """Return the device that a run is measured again on: where it was measured, unless told otherwise."""
        return where_measured(self._ctx, run, device=self._device, here=self._here) or HERE

    def places(self, runs: Sequence[Run]) -> str:
        """Return where runs are measured again, in words."""
        names = dict.fromkeys(self.place(run) for run in runs)
        return " and ".join("this machine" if name == HERE else f"device {name}" for name in names)

    def __call__(self, run: Run) -> Run:
        component, model, options = self.plan(run)
        step: Any = component(name=f"gate: {run.name}"[:100])
        with working(f"measuring {run.id} again"):
            result = step.run(self._ctx, model, **options)
        repeat = run_of(self._ctx, result)
        # Kept for whoever doubts the answer, but out of the user's lists, where they would bury everything else.
        if (store := self._ctx.client.store) is not None:
            store.archive(repeat.id)
        return repeat

    def plan(self, run: Run) -> tuple[type[Component], Any, dict[str, object]]:
        """Return what to run again, or say why it cannot be."""
        found = {each.__name__: each for each in (*components(RunType.PROFILE).values(), *_OF_ALL)}
        if run.component not in found:
            raise ConfigError(
                f"Run {run.id} was made by {run.component!r}, which is not measured again here; known: "
                f"{quoted_list(found)}. --no-repeat compares the records alone."
            )
        component = found[run.component]
        place = self.place(run)
        # One for all toolchains does not say whose models it takes; the toolchain's own profiler does.
        profiler = component
        if component in _OF_ALL:
            profiler = find_component(RunType.PROFILE, toolchain_of(self._ctx, [run.id]))
        model = model_of(self._ctx, profiler, run)
        model.path.to_local(self._ctx)
        return component, model, {"device": place, **self._options(component, run)}

    def _options(self, component: type[Component], run: Run) -> dict[str, object]:
        options: dict[str, object] = {}
        for option in options_of(component):
            value = run.params[option.name].value if option.name in run.params else None
            if option.name == "input_data":
                if value is not None and self._data is None:
                    raise ConfigError(
                        f"Run {run.id} was measured on data of your own, which is not in its record; "
                        "give it with --input-data."
                    )
                value = self._data
            if value is not None:
                options[option.name] = value
        return options


def _repeats(again: _Again, candidate: Run, baseline: Run) -> tuple[Callable[[Run], Run] | None, bool]:
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
