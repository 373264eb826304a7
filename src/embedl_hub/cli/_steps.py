"""Steps on the command line: every component is a command, its options are the options of its ``run``."""

from __future__ import annotations

import contextlib
import dataclasses
import inspect
import re
import shutil
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from embedl_hub.cli._output import (
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
from embedl_hub.core.component import (
    CompiledModel,
    Component,
    ComponentOutput,
    LoggedArtifact,
    RunType,
    installed_providers,
)
from embedl_hub.core.device import DEVICES_FILE, load_devices
from embedl_hub.errors import ConfigError, ConnectError, TrackingError, known
from embedl_hub.tracking import equal, find_home

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Mapping

    from embedl_hub.tracking import Run

_SUFFIXES = {RunType.COMPILE: "Compiler", RunType.PROFILE: "Profiler", RunType.INFERENCE: "Invoker"}


def components(run_type: RunType) -> dict[str, type[Component]]:
    """Return the components of a kind by the name of their toolchain, those of installed providers included."""
    from embedl_hub.core.profile import PairedProfiler  # noqa: PLC0415

    installed_providers()
    found = {}
    for component in _subclasses(Component):
        # What takes several models at once is no step of one model; compare --paired has it.
        if issubclass(component, PairedProfiler):
            continue
        if getattr(component, "run_type", None) is run_type and hasattr(component, "run"):
            found[component.__name__.removesuffix(_SUFFIXES[run_type]).lower()] = component
    return found


def _subclasses(base: type[Any]) -> Iterator[type[Any]]:
    for each in base.__subclasses__():
        yield each
        yield from _subclasses(each)


class StepGroup(KindGroup):
    """One command per toolchain, made from its component when it is asked for."""

    def __init__(self, run_type: RunType, **settings: Any) -> None:  # noqa: ANN401 - click's own
        super().__init__(**settings)
        self.run_type = run_type

    def list_commands(self, ctx: click.Context) -> list[str]:  # noqa: ARG002 - click's signature
        return sorted(components(self.run_type))

    def get_command(self, ctx: click.Context, cmd_name: str) -> click.Command | None:  # noqa: ARG002 - click's signature
        component = components(self.run_type).get(cmd_name)
        return None if component is None else with_verbosity(_command_of(cmd_name, component))


@dataclasses.dataclass(frozen=True)
class StepOption:
    """One parameter of a component's ``run`` as an option: its name there, its flag, and how its text is read."""

    name: str
    annotation: str
    text: str
    is_required: bool = False

    def as_click(self) -> click.Option:
        """Return the option; one that is not given is not passed on, so that the component's default holds."""
        flag = f"--{self.name.replace('_', '-')}"
        help_text = f"{self.text} {self._form()}".strip()
        if self.annotation == "bool":
            return click.Option([f"{flag}/--no-{flag[2:]}", self.name], default=None, help=help_text)
        several = self._takes_arrays()
        return click.Option(
            [flag, self.name], required=self.is_required, multiple=several, help=help_text, metavar=self._metavar()
        )

    def read(self, given: Any) -> Any:  # noqa: ANN401 - what click made of it, what the component takes
        """Return the value for the component."""
        if self.annotation == "bool":
            return given
        if self._takes_arrays():
            return read_arrays(given)
        try:
            if "tuple[int" in self.annotation:
                return tuple(int(word) for word in re.split(r"[,x×]", given) if word.strip())
            for kind in (int, float):
                if re.search(rf"\b{kind.__name__}\b", self.annotation):
                    return kind(given)
        except ValueError:
            raise ConfigError(f"--{self.name.replace('_', '-')} is {given!r}; it must be {self._metavar()}.") from None
        return Path(given) if self._takes_path() else given

    def _takes_path(self) -> bool:
        return "Path" in self.annotation

    def _takes_arrays(self) -> bool:
        return "ndarray" in self.annotation and not self._takes_path()

    def _metavar(self) -> str:
        if self._takes_arrays() or self._takes_path():
            return "PATH"
        if "tuple[int" in self.annotation:
            return "N,N,..."
        return "NUMBER" if re.search(r"\b(int|float)\b", self.annotation) else "TEXT"

    def _form(self) -> str:
        return "An .npz file, or NAME=FILE.npy, as often as needed." if self._takes_arrays() else ""


def read_arrays(words: tuple[str, ...]) -> dict[str, Any]:
    """Return arrays by name from .npz files and NAME=FILE.npy words."""
    import numpy as np  # noqa: PLC0415 - few commands need it

    arrays: dict[str, Any] = {}
    for word in words:
        name, equals, file = word.partition("=")
        path = Path(file if equals else word)
        try:
            if path.suffix == ".npz" and not equals:
                with np.load(path, allow_pickle=False) as content:
                    arrays |= {key: content[key] for key in content.files}
            elif path.suffix == ".npy" and equals:
                arrays[name] = np.load(path, allow_pickle=False)
            else:
                raise ConfigError(f"{word!r} must be an .npz file, which holds its own names, or NAME=FILE.npy.")
        except (OSError, ValueError, EOFError) as error:
            if isinstance(error, ConfigError):
                raise
            raise ConfigError(f"The arrays in {path} cannot be read: {error}.") from error
    return arrays


def options_of(component: type[Component]) -> list[StepOption]:
    """Return the options of a component: its keywords, and further positional parameters as required ones."""
    run: Callable[..., Any] = component.run  # type: ignore[attr-defined]
    texts = _described(inspect.getdoc(run) or "")
    found = []
    for position, (name, parameter) in enumerate(inspect.signature(run).parameters.items()):
        # self, ctx and the model come another way; so does the device.
        if position < 3 or name == "device":
            continue
        is_required = parameter.kind is not inspect.Parameter.KEYWORD_ONLY
        found.append(StepOption(name, _spelled(run, parameter.annotation), texts.get(name, ""), is_required))
    return found


def _spelled(run: Callable[..., Any], annotation: object) -> str:
    """Return an annotation as text, with aliases of its module written out."""
    text = annotation if isinstance(annotation, str) else str(getattr(annotation, "__name__", annotation))
    names = inspect.unwrap(run).__globals__
    return re.sub(r"\b\w+\b", lambda found: _alias(names.get(found[0])) or found[0], text)


def _alias(value: object) -> str | None:
    return value if isinstance(value, str) else None


def _described(docstring: str) -> dict[str, str]:
    """Return the texts of a docstring's Args by name."""
    texts: dict[str, str] = {}
    name = ""
    for line in docstring.partition("Args:")[2].splitlines():
        if found := re.match(r"    (\w+): (.*)", line):
            name, texts[found[1]] = found[1], found[2]
        elif name and line.strip():
            texts[name] += f" {line.strip()}"
    return texts


def _command_of(name: str, component: type[Component]) -> click.Command:
    options = options_of(component)

    def call(model: str, **given: Any) -> None:  # noqa: ANN401 - generated options
        places = {
            key: given.pop(key)
            for key in ("home", "project", "device", "here", "run_name", "tags", "as_json", "output")
        }
        values = {option.name: option.read(given[option.name]) for option in options if _is_given(given[option.name])}
        _carry_out(component, model, values, _Wishes(**places))

    doc = (inspect.getdoc(component) or "").partition("\n")[0]
    types = ", ".join(sorted(component.provider_types()))
    command = click.Command(
        name,
        callback=call,
        short_help=doc if types else f"{doc} No installed package carries it out.",
        help=f"{doc}\n\nMODEL is {_model_help(component)}\n\nCarried out by: {types or 'no installed package'}.",
    )
    command.params = [click.Argument(["model"]), *(option.as_click() for option in options)]
    for decorate in _PLACE_OPTIONS:
        decorate(command)
    return command


def _is_given(value: object) -> bool:
    return value is not None and value != ()


_PLACE_OPTIONS = (
    click.option("--device", help="The device; the one in use, else the first that serves, if not given."),
    click.option("--here", is_flag=True, help="On this machine, whatever devices there are."),
    click.option("--project", help="Record under this project; the one in use if not given."),
    click.option("--name", "run_name", help="What the run is called."),
    click.option("--tag", "tags", multiple=True, metavar="NAME=VALUE", help="A label to find the run by."),
    click.option(
        "--output", type=click.Path(path_type=Path), help="Also put the result (model, profile, outputs) here."
    ),
    home_option,
    json_option,
)


def _model_help(component: type[Component]) -> str:
    if component.run_type is RunType.COMPILE:
        return "a file, or the id of a run whose source is to be compiled."
    return "the id of the run that compiled it, or of one that used it, or a file of the runtime's own format."


@contextlib.contextmanager
def open_context(
    home: Path | None,
    project: str | None,
    *,
    here: bool = False,
    tags: Mapping[str, str] | None = None,
    replace: Callable[[Any], Any] | None = None,
) -> Iterator[HubContext]:
    """Yield a context with the home's devices; their connections end with it."""
    folder = find_home(home)
    devices = [] if here else load_devices(folder / DEVICES_FILE)
    if replace is not None:
        devices = [replace(device) for device in devices]
    try:
        with HubContext(project_in_use(home, project), devices, home=folder, tags=tags) as ctx:
            yield ctx
    finally:
        for device in devices:
            if callable(close := getattr(device.runner, "close", None)):
                close()


@dataclasses.dataclass(frozen=True)
class _Wishes:
    """Where a step is to run, where it is recorded, and what becomes of its result."""

    home: Path | None
    project: str | None
    device: str | None
    here: bool
    run_name: str | None
    tags: tuple[str, ...]
    as_json: bool
    output: Path | None


def _carry_out(component: type[Component], model: str, values: dict[str, Any], wishes: _Wishes) -> None:
    here, chosen = wishes.here, wishes.device or read_settings(find_home(wishes.home)).get("device")
    if here and wishes.device:
        raise click.UsageError("--device and --here contradict each other.")
    with open_context(wishes.home, wishes.project, here=here, tags=pairs(wishes.tags)) as ctx:
        subject = find_model(ctx, component, model)
        step: Any = component(name=wishes.run_name)
        where = "this machine" if here else chosen or "the first device that serves"
        with working(f"{component.__name__}: {model} on {where}"), _choice_said(is_chosen=here or bool(chosen)):
            result = step.run(ctx, subject, **_with_device(component, None if here else chosen), **values)
        run = run_of(ctx, result)
    if wishes.output is not None:
        copy_result(run, wishes.output)
    if wishes.as_json:
        emit(step_facts(run))
    else:
        _show(run)


@contextlib.contextmanager
def _choice_said(*, is_chosen: bool) -> Iterator[None]:
    """Say why that device, when one that nobody named cannot be reached."""
    try:
        yield
    except ConnectError as error:
        if is_chosen:
            raise
        raise ConnectError(
            f"{error} No device was named, so it went to the first one that serves; --device NAME takes another, "
            "--here this machine."
        ) from error


def _with_device(component: type[Component], device: str | None) -> dict[str, str | None]:
    takes = "device" in inspect.signature(component.run).parameters  # type: ignore[attr-defined]
    if device is not None and not takes:
        raise ConfigError(f"{component.__name__} takes no device.")
    return {"device": device} if takes else {}


def find_model(ctx: HubContext, component: type[Component], model: str) -> Any:  # noqa: ANN401 - a path or a compiled model
    """Return what a component takes as its model: from a file, or from a run."""
    wants_path = component.run_type is RunType.COMPILE
    if Path(model).exists():
        return Path(model) if wants_path else _kept(ctx, component, Path(model))
    assert ctx.client.store is not None  # noqa: S101 - the command line always tracks
    try:
        run = ctx.client.store.run(model)
    except TrackingError as error:
        raise ConfigError(f"{model!r} is neither a file here nor a run: {error}") from error
    return model_of(ctx, component, run)


def model_of(ctx: HubContext, component: type[Component], run: Run) -> Any:  # noqa: ANN401 - a path or a compiled model
    """Return the model that a run made or used, as a component takes it."""
    names = ("input", "path") if component.run_type is RunType.COMPILE else ("path", "input")
    artifact = next((run.artifacts[name] for name in names if name in run.artifacts), None)
    if artifact is None:
        raise ConfigError(
            f"Run {run.id} ({run.type}, {run.status}) has no model: it logged the artifacts {known(run.artifacts)}; "
            f"one of {known(names)} is needed."
        )
    if component.run_type is RunType.COMPILE:
        return artifact.to_local(ctx).local()
    kind = model_class(component)
    return kind.from_run(run) if "path" in run.artifacts else kind(path=artifact)


def model_class(component: type[Component]) -> type[CompiledModel]:
    """Return the class of compiled models that a component takes, one or several of them."""
    parameter = list(inspect.signature(component.run).parameters.values())[2]  # type: ignore[attr-defined]
    annotation = parameter.annotation
    name = annotation if isinstance(annotation, str) else getattr(annotation, "__name__", "")
    words = re.findall(r"\w+", name)
    return next((each for each in _subclasses(CompiledModel) if each.__name__ in words), CompiledModel)


def _kept(ctx: HubContext, component: type[Component], path: Path) -> CompiledModel:
    """Record a file of the user's as a model, so that whatever is done with it can be led back to it."""
    with ctx.client.start_run(RunType.CUSTOM, "model") as run:
        run.log_param("source", str(path))
        artifact = run.log_artifact(path, name="path")
    return model_class(component)(path=artifact)


def run_of(ctx: HubContext, result: object) -> Run:
    """Return the run that made a result: its artifacts know it; else the newest of the project."""
    store = ctx.client.store
    assert store is not None  # noqa: S101 - the command line always tracks
    values = vars(result).values() if isinstance(result, ComponentOutput) else ()
    known_ids = (value.run_id for value in values if isinstance(value, LoggedArtifact) and value.run_id)
    return store.run(next(known_ids, None) or store.find(equal("project", ctx.project_name), limit=1).runs[0].id)


def copy_result(run: Run, target: Path) -> None:
    """Copy what a run made to a place of the user's."""
    artifact = run.artifacts.get("path") or run.artifacts.get("output_file")
    if artifact is None:
        raise ConfigError(f"Run {run.id} made no file; it logged {known(run.artifacts)}.")
    target = target / artifact.file_name if target.is_dir() else target
    try:
        target.parent.mkdir(parents=True, exist_ok=True)
        if artifact.is_folder:
            shutil.copytree(artifact.local(), target)
        else:
            shutil.copyfile(artifact.local(), target)
    except OSError as error:
        raise ConfigError(f"The result cannot be copied to {target}: {error}. It is kept in run {run.id}.") from error


_HEADLINE = (
    ("latency_median", "ms"), ("latency", "ms"), ("latency_p90", "ms"), ("latency_p99", "ms"), ("fps", "1/s"),
    ("load_time", "ms"), ("first_latency", "ms"), ("peak_memory_mb", "MB"), ("model_size_mb", "MB"),
    ("calibration_cosine", ""), ("conversion_error", "of the range"), ("quantization_sqnr_db", "dB"),
    ("iterations", ""),
)  # fmt: skip


def step_facts(run: Run) -> dict[str, Any]:
    """Return what a program wants to know of a step."""
    return {
        "run": run.id,
        "project": run.project,
        "type": run.type,
        "component": run.component,
        "provider": run.provider,
        "device": run.device,
        "metrics": {metric.name: metric.value for metric in run.metrics},
        **{name: run.params[name].value if name in run.params else None for name in ("verdict", "verdict_reason")},
        "artifacts": {name: str(artifact.local_path) for name, artifact in run.artifacts.items()},
    }


def _show(run: Run) -> None:
    rows = [("run", run.id), ("by", f"{run.provider} on {run.device or 'this machine'}")]
    rows += [(name, number(metric.value, unit)) for name, unit in _HEADLINE if (metric := run.metric(name))]
    if "from_cache" in run.params and run.params["from_cache"].value:
        rows.append(("from cache", "yes: the same model was compiled with the same options before"))
    if "verdict" in run.params:
        reason = run.params.get("verdict_reason")
        rows.append(("verdict", f"{run.params['verdict'].value}: {reason.value if reason else ''}"))
    for name in ("path", "output_file"):
        if name in run.artifacts:
            rows.append(("result", str(run.artifacts[name].local_path)))
    if run.type == RunType.INFERENCE:
        rows += _outputs(run)
    table(None, rows)


def _outputs(run: Run) -> list[tuple[str, str]]:
    artifact = run.artifacts.get("output_file")
    if artifact is None or artifact.local_path is None or not artifact.file_name.endswith(".npz"):
        return []
    arrays = read_arrays((str(artifact.local_path),))
    return [
        (f"output {name}", f"{array.dtype} {'×'.join(map(str, array.shape))}, mean {array.mean():.4g}")
        for name, array in arrays.items()
        if array.size and array.dtype.kind in "iufb"
    ]
