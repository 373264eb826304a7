"""Steps on the command line: every component is a command, its options are the options of its ``run``."""

from __future__ import annotations

import contextlib
import dataclasses
import inspect
import shutil
from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

import click

from embedl_device.schema import ANY, NUMBER, TEXT, by_name, fields, maybe
from embedl_hub.cli._output import (
    PATH,
    KindGroup,
    emit,
    home_option,
    json_option,
    number,
    pairs,
    table,
    with_verbosity,
    working,
)
from embedl_hub.cli._settings import project_in_use, read_settings
from embedl_hub.core import HubContext
from embedl_hub.core.component import Component, RunType, load_provider, provider_types
from embedl_hub.core.device import DEVICES_FILE, Device, load_devices
from embedl_hub.core.document import METRICS, headlines
from embedl_hub.core.lookup import find_model
from embedl_hub.core.steps import HERE, StepOption, options_of, read_arrays, run_of, takes_device
from embedl_hub.core.toolchain import components
from embedl_hub.errors import ConfigError, ConnectError, quoted_list
from embedl_hub.tracking import Run, find_home

STEP = fields(
    {
        "run": TEXT, "project": TEXT, "type": TEXT, "component": maybe(TEXT), "provider": maybe(TEXT),
        "device": maybe(TEXT), "metrics": by_name(NUMBER), "verdict": ANY, "verdict_reason": ANY,
        "artifacts": by_name(TEXT),
    }
)  # fmt: skip
"""What `step_facts` returns."""


class StepGroup(KindGroup):
    """One command per toolchain, made from its component when it is asked for."""

    def __init__(self, name: str, run_type: RunType, summary: str) -> None:
        super().__init__(name, help=f"{summary}: one command per toolchain, with the options of its component.")
        self.run_type = run_type

    def list_commands(self, ctx: click.Context) -> list[str]:  # noqa: ARG002 - click's signature
        return sorted(components(self.run_type))

    def get_command(self, ctx: click.Context, cmd_name: str) -> click.Command | None:  # noqa: ARG002 - click's signature
        component = components(self.run_type).get(cmd_name)
        return None if component is None else with_verbosity(_command_of(cmd_name, component))


def _as_click(option: StepOption) -> click.Option:
    """Return the option; one that is not given is not passed on, so that the component's default holds."""
    flag = f"--{option.name.replace('_', '-')}"
    form = "An .npz file, or NAME=FILE.npy, as often as needed." if option.takes_arrays else ""
    help_text = f"{option.text} {form}".strip()
    if option.is_flag:
        return click.Option([f"{flag}/--no-{flag[2:]}", option.name], default=None, help=help_text)
    many, names = option.takes_arrays, [flag, option.name]
    return click.Option(names, required=option.is_required, multiple=many, help=help_text, metavar=option.form)


def _read(option: StepOption, given: Any) -> Any:  # noqa: ANN401 - what click made of it, what the component takes
    """Return the value for the component."""
    if option.is_flag:
        return given
    if option.takes_arrays:
        return read_arrays(given)
    try:
        return option.read(given)
    except ValueError:
        raise ConfigError(f"--{option.name.replace('_', '-')} is {given!r}; it must be {option.form}.") from None


def _command_of(name: str, component: type[Component]) -> click.Command:
    options = options_of(component)

    def call(model: str, **given: Any) -> None:  # noqa: ANN401 - generated options
        places = {field.name: given.pop(field.name) for field in dataclasses.fields(_StepSettings)}
        values = {each.name: _read(each, given[each.name]) for each in options if given[each.name] not in (None, ())}
        _run_step(component, model, values, _StepSettings(**places))

    doc = (inspect.getdoc(component) or "").partition("\n")[0]
    for provider_type in provider_types():
        load_provider(provider_type, fail=False)
    types = ", ".join(sorted(component.provider_types()))
    model_help = "the id of the run that compiled it, or of one that used it, or a file of the runtime's own format."
    if component.run_type is RunType.COMPILE:
        model_help = "a file, or the id of a run whose source is to be compiled."
    text = f"{doc}\n\nMODEL is {model_help}\n\nProviders: {types or 'none installed'}."
    short = doc if types else f"{doc} No provider is installed."
    command = click.Command(name, callback=call, short_help=short, help=text)
    command.params = [click.Argument(["model"]), *(_as_click(option) for option in options)]
    for decorate in _PLACE_OPTIONS:
        decorate(command)
    return command


_PLACE_OPTIONS = (
    click.option("--device", help="The device; the one in use, else the first compatible one, if not given."),
    click.option("--here", is_flag=True, help="On this machine, whatever devices there are."),
    click.option("--project", help="Record under this project; the one in use if not given."),
    click.option("--name", "run_name", help="What the run is called."),
    click.option("--tag", "tags", multiple=True, metavar="NAME=VALUE", help="A label to find the run by."),
    click.option("--output", type=PATH, help="Also put the result (model, profile, outputs) here."),
    home_option,
    json_option(STEP),
)


@contextlib.contextmanager
def open_context(
    home: Path | None,
    project: str | None,
    *,
    here: bool = False,
    device: str | None = None,
    tags: Mapping[str, str] | None = None,
    replace: Callable[[Any], Any] | None = None,
    extra: Sequence[Device] = (),
) -> Iterator[HubContext]:
    """Yield a context with the home's devices and further ones; their connections end with it.

    A device that is called `HERE` is this machine, in every command.
    """
    folder = find_home(home, uses_devices=not here)
    devices = [] if here else load_devices(folder / DEVICES_FILE)
    extra = [*extra, Device(HERE)] if device == HERE else extra
    # One of the user's own goes before one of ours of the same name.
    devices += [each for each in extra if each.name not in {own.name for own in devices}]
    if replace is not None:
        devices = [replace(each) for each in devices]
    try:
        with HubContext(project_in_use(home, project), devices, home=folder, tags=tags) as ctx:
            yield ctx
    finally:
        for each in devices:
            if callable(close := getattr(each.runner, "close", None)):
                close()


@dataclasses.dataclass(frozen=True)
class _StepSettings:
    """Where a step is to run, where it is recorded, and what becomes of its result."""

    home: Path | None
    project: str | None
    device: str | None
    here: bool
    run_name: str | None
    tags: tuple[str, ...]
    as_json: bool
    output: Path | None


def chosen_device(home: Path | None, device: str | None, *, here: bool) -> str | None:
    """Return the device given, else the one in use; None for --here, or when the first compatible one is meant."""
    if here and device:
        raise click.UsageError("--device and --here contradict each other.")
    return None if here else device or read_settings(find_home(home, uses_devices=False)).get("device")


def _run_step(component: type[Component], model: str, values: dict[str, object], settings: _StepSettings) -> None:
    here, chosen = settings.here, chosen_device(settings.home, settings.device, here=settings.here)
    if chosen is not None and not takes_device(component):
        raise ConfigError(f"{component.__name__} takes no device.")
    with open_context(settings.home, settings.project, here=here, device=chosen, tags=pairs(settings.tags)) as ctx:
        subject = find_model(ctx, component, model)
        step: Any = component(name=settings.run_name)
        where = "this machine" if here else chosen or "the first compatible device"
        if takes_device(component):
            values["device"] = chosen
        try:
            with working(f"{component.__name__}: {model} on {where}"):
                result = step.run(ctx, subject, **values)
        except ConnectError as error:
            if here or chosen:
                raise
            raise ConnectError(
                f"{error} No device was named, so it went to the first compatible one; --device NAME takes another, "
                "--here this machine."
            ) from error
        run = run_of(ctx, result)
    if settings.output is not None:
        copy_result(run, settings.output)
    if settings.as_json:
        emit(step_facts(run))
    else:
        _show(run)


def copy_result(run: Run, target: Path) -> None:
    """Copy what a run made to a place of the user's."""
    artifact = run.artifacts.get("path") or run.artifacts.get("output_file")
    if artifact is None:
        raise ConfigError(f"Run {run.id} made no file; it logged {quoted_list(run.artifacts)}.")
    target = target / artifact.file_name if target.is_dir() else target
    try:
        target.parent.mkdir(parents=True, exist_ok=True)
        if artifact.is_folder:
            target.mkdir()
            for name, file in artifact.files():
                (target / name).parent.mkdir(parents=True, exist_ok=True)
                with (target / name).open("xb") as copy:
                    shutil.copyfileobj(file, copy)
        else:
            with artifact.open() as file, target.open("wb") as copy:
                shutil.copyfileobj(file, copy)
    except OSError as error:
        raise ConfigError(f"The result cannot be copied to {target}: {error}. It is kept in run {run.id}.") from error


def step_facts(run: Run) -> dict[str, object]:
    """Return what a program wants to know of a step."""
    return {
        "run": run.id,
        **{name: getattr(run, name) for name in ("project", "type", "component", "provider", "device")},
        "metrics": {metric.name: metric.value for metric in run.metrics},
        **{name: run.params[name].value if name in run.params else None for name in ("verdict", "verdict_reason")},
        "artifacts": {name: str(artifact.local_path) for name, artifact in run.artifacts.items()},
    }


def _show(run: Run) -> None:
    rows = [("run", run.id), ("by", f"{run.provider} on {run.device or 'this machine'}")]
    rows += [(row.key, number(metric.value, row.unit)) for row in headlines() if (metric := run.metric(row.key))]
    rows += _own_numbers(run)
    if "int8_kernels" in run.params:
        rows.append(("INT8 made for", str(run.params["int8_kernels"].value)))
    if "prediction" in run.params:
        gain: Any = run.params["prediction"].value
        text = f"{gain['speedup']:.2f}x as fast as float ({gain['low']:.2f} to {gain['high']:.2f})"
        rows.append(("INT8 predicted", text))
    if "memory_fit" in run.params:
        rows.append(("memory", str(run.params["memory_fit"].value)))
    if "from_cache" in run.params and run.params["from_cache"].value:
        rows.append(("from cache", "yes: the same model was compiled with the same options before"))
    if "goal" in run.params:
        rows.append(("goal", str(run.params["goal"].value)))
    if "verdict" in run.params:
        reason = run.params.get("verdict_reason")
        rows.append(("verdict", f"{run.params['verdict'].value}: {reason.value if reason else ''}"))
    names = [name for name in ("path", "output_file") if name in run.artifacts]
    rows += [("result", str(run.artifacts[name].local_path)) for name in names]
    if run.type == RunType.INFERENCE:
        rows += _outputs(run)
    table(None, rows)


def _own_numbers(run: Run) -> list[tuple[str, str]]:
    """Return the numbers that only this toolchain knows; what it predicts has a row of its own."""
    known = {row.key for row in METRICS}
    own = {metric.name: metric.value for metric in run.metrics if metric.name not in known}
    return [(name, number(own[name])) for name in sorted(own) if not name.startswith("predicted_")]


def _outputs(run: Run) -> list[tuple[str, str]]:
    artifact = run.artifacts.get("output_file")
    if artifact is None or artifact.local_path is None or not artifact.file_name.endswith(".npz"):
        return []
    arrays = read_arrays((str(artifact.local()),))
    return [
        (f"output {name}", f"{array.dtype} {'×'.join(map(str, array.shape))}, mean {array.mean():.4g}")
        for name, array in arrays.items()
        if array.size and array.dtype.kind in "iufb"
    ]
