"""``embedl-hub gate``: fail a build when a run is worse than a baseline, measured again in turns."""

from __future__ import annotations

import contextlib
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from embedl_device.schema import TEXT, either, maybe, of
from embedl_hub.cli._output import (
    COULD_NOT_MEASURE,
    PATH,
    home_option,
    in_home,
    is_usage,
    json_option,
    number,
    open_store,
    pairs,
    report,
    tell_error,
    working,
)
from embedl_hub.cli._settings import project_in_use, read_settings
from embedl_hub.cli._steps import STEP, open_context, step_facts
from embedl_hub.comparison import (
    Again,
    Decision,
    Finding,
    GateResult,
    Outcome,
    append_summary,
    find_baseline,
    finding_picture,
    gate,
    junit_error,
    junit_recorded,
    junit_xml,
    metric_value,
    summary_markdown,
    without_layers,
)
from embedl_hub.core.component import RunType
from embedl_hub.core.device import Device
from embedl_hub.core.document import METRICS
from embedl_hub.core.lookup import find_model, find_run, toolchain_of
from embedl_hub.core.steps import HERE, read_arrays, run_of, where_measured
from embedl_hub.core.toolchain import find_component
from embedl_hub.errors import ConfigError, HubError, TrackingError
from embedl_hub.tracking import export_bundle, find_home

if TYPE_CHECKING:
    from embedl_hub.core import HubContext
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
@click.argument("run", metavar="RUN|MODEL")
@click.option("--baseline", required=True, help="A run, or TAG=VALUE: the newest finished run with that tag.")
@click.option("--metric", default="latency_median", show_default=True, help="What is compared.")
@click.option("--tolerance", default="5%", show_default=True, callback=_share, help="How much worse is still fine.")
@click.option("--more-is-better/--less-is-better", default=None, help="For metrics of your own.")
@click.option("--repeat/--no-repeat", default=True, help="Measure again, in turns, before saying worse.")
@click.option("--input-data", multiple=True, metavar="PATH", help="What profiles on data of your own were measured on.")
@click.option("--most-pairs", default=30, show_default=True, help="Give up after so many turns.")
@click.option("--device", help="Where to measure again; where RUN and its baseline were measured if not given.")
@click.option("--here", is_flag=True, help="Measure again on this machine, whatever devices there are.")
@click.option("--record", is_flag=True, help="Compare nothing: profile MODEL with the tag of --baseline, for later.")
@click.option("--junit", type=PATH, help="Write a JUnit report here.")
@click.option("--summary", type=PATH, help="Append a summary in Markdown to this file, such as $GITHUB_STEP_SUMMARY.")
@click.option("--picture", type=PATH, help="Also draw the interval against the tolerance into this .svg file.")
@click.option("--bundle", type=PATH, help="Also write the runs and every repeat into this .zip, for `run import`.")
@click.option("--fail-when-unsure", is_flag=True, help="Exit with 3 when the gate cannot tell, instead of 0.")
@click.option("--project", help="Record the repeats under this project; the one in use if not given.")
@home_option
@json_option(either(of(GateResult, measured_on=maybe(TEXT)), STEP))
@click.pass_context
def command(  # noqa: PLR0913 - options
    ctx: click.Context, *, run: str, baseline: str, metric: str, tolerance: float, more_is_better: bool | None,
    repeat: bool, input_data: tuple[str, ...], most_pairs: int, device: str | None, here: bool, record: bool,
    junit: Path | None, summary: Path | None, picture: Path | None, bundle: Path | None, fail_when_unsure: bool,
    project: str | None, home: Path | None, as_json: bool,
) -> None:  # fmt: skip
    """Exit with 1 when RUN is worse than a baseline by more than is tolerated.

    Both are measured again in turns, so that noise does not fail a build, each on the device of its record. A MODEL, a
    file of a runtime's own format, is profiled first, where the baseline was measured. Exit code 0: fine, or nobody can
    tell (said so); 1: worse; 2: wrong usage; 3: it could not be measured.
    """
    reports = _Reports(junit, summary, picture, bundle, home)
    reports.check()
    if device and here:
        raise click.UsageError("--device and --here contradict each other.")
    if record:
        _check_recordable(run, baseline)
    started = time.perf_counter()
    where = _Where(home, project_in_use(home, project), device, here, input_data)
    measured_on: list[str] = []

    def asked() -> GateResult:
        candidate_id = _profile_first(where, run, baseline, metric) if Path(run).exists() else run
        with where.open(replace=without_layers, tags={"gate": candidate_id}) as hub:
            store = hub.client.store
            assert store is not None  # noqa: S101 - the command line always tracks
            candidate = find_run(hub, candidate_id)
            name = Path(run).name if Path(run).exists() else None
            reference = find_baseline(store, baseline, candidate.project, candidate.type, but=candidate.id, model=name)
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
        if record:
            _show_recorded(_profile(where, run, tags=pairs([baseline])), baseline, reports, as_json=as_json)
            return
        result = asked()
    except HubError as error:
        of_words = is_usage(error, named_device=device is not None)
        code = f"exit code {2 if of_words else COULD_NOT_MEASURE}: the model was not judged"
        failed = Finding.not_measured(f"{metric} of {run} against {baseline}", str(error), meaning=code)
        reports.write(junit_error(run, baseline, metric, str(error)), failed)
        if of_words:
            raise click.UsageError(str(error)) from error
        tell_error(error, COULD_NOT_MEASURE, as_json=as_json)
        ctx.exit(COULD_NOT_MEASURE)
    place = measured_on[0] if measured_on else ""
    found = Finding.of_gate(result, place=place, fails_when_unsure=fail_when_unsure)
    reports.write(junit_xml([result], seconds=time.perf_counter() - started), found)
    _show(result, place, as_json=as_json)
    codes = {Decision.WORSE: 1, Decision.CANNOT_TELL: COULD_NOT_MEASURE if fail_when_unsure else 0}
    ctx.exit(codes.get(result.decision, 0))


def _show(result: GateResult, place: str, *, as_json: bool) -> None:
    ratio = result.worsening
    interval = "" if ratio.low is None or ratio.high is None else f" ({ratio.low:.3f} to {ratio.high:.3f})"
    report(
        {**result.as_dict(), "measured_on": place or None},
        *(f"differs in {line}" for line in result.differences),
        f"{result.decision}: {result.metric} × {ratio.value:.3f}{interval} of the baseline's, tolerated "
        f"× {1 + result.tolerance:.3f}: {result.reason}.",
        as_json=as_json,
    )


def _check_recordable(model: str, baseline: str) -> None:
    if "=" not in baseline or not Path(model).exists():
        raise click.UsageError("--record takes a model file and a tag: embedl-hub gate MODEL --baseline TAG=VALUE.")


@dataclass(frozen=True)
class _Reports:
    """Where the answer is written, besides the terminal."""

    junit: Path | None
    summary: Path | None
    picture: Path | None
    bundle: Path | None
    home: Path | None

    def check(self) -> None:
        """Refuse files that cannot be written, before anything is measured."""
        if self.picture is not None and self.picture.suffix.lower() != ".svg":
            raise click.UsageError(f"--picture is {str(self.picture)!r}; it is an SVG file, so name it .svg.")
        for option, path in (
            ("--junit", self.junit), ("--summary", self.summary), ("--picture", self.picture), ("--bundle", self.bundle)
        ):  # fmt: skip
            if path is None:
                continue
            is_new = not path.exists()
            try:
                path.parent.mkdir(parents=True, exist_ok=True)
                with path.open("a"):
                    pass
                if is_new:
                    path.unlink()
            except OSError as error:
                raise click.UsageError(f"{option} cannot be written to {path}: {error.strerror or error}.") from error

    def write(self, junit: str, finding: Finding) -> None:
        """Write what is wanted."""
        ids = " ".join(run for _, run in reversed(finding.runs))
        show = f"embedl-hub {'compare' if len(finding.runs) > 1 else 'run show'} {ids}" if ids else ""
        if self.bundle is not None and ids:
            # Whoever has the bundle has another store.
            command = f"embedl-hub run import {self.bundle.name} && {show}"
        else:
            command = in_home(show, self.home) if ids else ""
        try:
            if self.junit is not None:
                self.junit.write_text(junit, encoding="utf-8")
            if self.summary is not None:
                text = summary_markdown([finding], title="Edgeproof gate", open_with=command)
                append_summary(self.summary, text)
            if self.picture is not None and (drawn := finding_picture(finding)):
                self.picture.write_text(drawn, encoding="utf-8")
            if self.bundle is not None and ids:
                self._write_bundle(self.bundle, [run for _, run in finding.runs])
        except (OSError, ConfigError, TrackingError) as error:
            raise click.UsageError(f"The report cannot be written: {error}") from error

    def _write_bundle(self, path: Path, run_ids: list[str]) -> None:
        with open_store(self.home) as store:
            repeats = [run.id for run in store.tagged("gate", run_ids)]
            export_bundle(store, list(dict.fromkeys([*run_ids, *repeats])), path)


@dataclass(frozen=True)
class _Where:
    """Where models are profiled, and where that is recorded."""

    home: Path | None
    project: str
    device: str | None
    here: bool
    input_data: tuple[str, ...]

    def open(
        self, *, replace: Callable[[Device], Device] | None = None, tags: Mapping[str, str] | None = None
    ) -> contextlib.AbstractContextManager[HubContext]:
        """Open a context; this machine is one of its devices, whatever others there are."""
        return open_context(self.home, self.project, replace=replace, tags=tags, extra=[Device(HERE)])


def _profile_first(where: _Where, model: str, baseline: str, metric: str) -> str:
    """Profile a file where its baseline was measured, and return the run."""
    with where.open() as hub:
        assert hub.client.store is not None  # noqa: S101 - the command line always tracks
        reference = find_baseline(hub.client.store, baseline, where.project, RunType.PROFILE, model=Path(model).name)
        metric_value(reference, metric)  # a slip is told before minutes of measuring
        place = where_measured(hub, reference, device=where.device, here=where.here) or HERE
    return _profile(replace(where, device=place, here=False), model).id


def _profile(where: _Where, model: str, tags: Mapping[str, str] | None = None) -> Run:
    in_use = read_settings(find_home(where.home, uses_devices=False)).get("device")
    device = HERE if where.here else where.device or in_use
    with where.open(tags=tags) as hub:
        component = find_component(RunType.PROFILE, toolchain_of(hub, [model]))
        step: Any = component()
        data = {"input_data": read_arrays(where.input_data)} if where.input_data else {}
        with working(f"{component.__name__}: {model}"):
            return run_of(hub, step.run(hub, find_model(hub, component, model), device=device, **data))


def _show_recorded(run: Run, baseline: str, reports: _Reports, *, as_json: bool) -> None:
    place = "this machine" if run.device in (None, HERE) else f"device {run.device}"
    metrics = [
        (row.key, number(metric.value, row.unit)) for row in METRICS if row.column and (metric := run.metric(row.key))
    ]
    reason = f"this run is the baseline {baseline} from now on; nothing was compared"
    model = run.artifacts["input"].title if "input" in run.artifacts else run.name
    found = Finding(
        f"profile of {model}", Outcome.RECORDED, reason, tuple(metrics), place, (("baseline", run.id),),
        meaning="exit code 0: the build goes on",
    )  # fmt: skip
    reports.write(junit_recorded(run.id, baseline), found)
    report(step_facts(run), f"recorded: {run.id}, on {place}: {reason}.", as_json=as_json)


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
