"""Steps by name: the options of a component, and the models that runs made."""

from __future__ import annotations

import inspect
import os
import re
import tempfile
import types
import typing
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from embedl_device.readers import UnreadableError, read_npy, read_npz
from embedl_hub.core.component import CompiledModel, Component, ComponentOutput, LoggedArtifact, RunType, resolve
from embedl_hub.errors import ConfigError, UnknownDeviceError, quoted_list
from embedl_hub.tracking import Run, equal

if TYPE_CHECKING:
    from embedl_hub.core.context import HubContext

HERE = "here"
"""The name of this machine among devices, without a device of the user's."""
THIS_MACHINE = "this machine"
"""What a reader is told then."""


def place_of(run: Run) -> str | None:
    """Return what a reader is told of where a run was measured; None where it does not tell.

    Commands that need a name for this machine call it `HERE`, others none: one machine has one word.
    """
    return THIS_MACHINE if run.device in (None, HERE) and run.provider == "local" else run.device


@dataclass(frozen=True)
class StepOption:
    """One parameter of a component's ``run``: what it takes, and how text becomes that."""

    name: str  # the keyword
    types: tuple[Any, ...]  # the types it takes, without None; empty where the annotation cannot be resolved
    text: str  # what the docstring says of it
    is_required: bool = False  # whether it has no default

    def _takes(self, *kinds: type) -> bool:
        origins = (typing.get_origin(each) or each for each in self.types)
        return any(isinstance(each, type) and issubclass(each, kinds) for each in origins)

    @property
    def is_flag(self) -> bool:
        """Whether it is on or off."""
        return self.types == (bool,)

    @property
    def takes_path(self) -> bool:
        """Whether a path is one of the things it takes."""
        return self._takes(os.PathLike)

    @property
    def takes_arrays(self) -> bool:
        """Whether it takes arrays by name, and no path to them."""
        return self._takes(Mapping) and not self.takes_path

    @property
    def takes_numbers(self) -> bool:
        """Whether it takes a row of whole numbers."""
        return any(typing.get_origin(each) is tuple and int in typing.get_args(each) for each in self.types)

    @property
    def form(self) -> str:
        """What to write for it."""
        if self.takes_arrays or self.takes_path:
            return "PATH"
        if self.takes_numbers:
            return "N,N,..."
        return "NUMBER" if {int, float} & set(self.types) else "TEXT"

    def read(self, text: str) -> Any:  # noqa: ANN401 - what the component takes
        """Return the value that a text stands for; ``ValueError`` if it stands for none."""
        if self.takes_arrays:
            return read_arrays((text,))
        if self.takes_numbers:
            return tuple(int(part) for part in re.split(r"[,x×]", text) if part.strip())
        for kind in (int, float):
            if kind in self.types:
                return kind(text)
        return Path(text) if self.takes_path else text


def options_of(component: type[Component]) -> list[StepOption]:
    """Return the options of a component: its keywords, and further positional parameters as required ones."""
    run: Callable[..., Any] = component.run  # type: ignore[attr-defined]
    texts = _described(inspect.getdoc(run) or "")
    options = []
    for position, (name, parameter) in enumerate(inspect.signature(run).parameters.items()):
        # self, ctx and the model come another way; so does the device.
        if position < 3 or name == "device":
            continue
        is_required = parameter.kind is not inspect.Parameter.KEYWORD_ONLY
        annotation = resolve(component, inspect.unwrap(run), parameter.annotation)
        is_union = isinstance(annotation, types.UnionType) or typing.get_origin(annotation) is typing.Union
        members = typing.get_args(annotation) if is_union else (annotation,)
        kinds = tuple(each for each in members if each not in (None, types.NoneType, inspect.Parameter.empty))
        options.append(StepOption(name, kinds, texts.get(name, ""), is_required))
    return options


def takes_device(component: type[Component]) -> bool:
    """Tell whether a component runs on a device of the user's choice."""
    return "device" in inspect.signature(component.run).parameters  # type: ignore[attr-defined]


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


def read_arrays(words: Iterable[str]) -> dict[str, Any]:
    """Return arrays by name from .npz files and NAME=FILE.npy words."""
    arrays: dict[str, Any] = {}
    for word in words:
        name, equals, file = word.partition("=")
        path = Path(file if equals else word)
        try:
            if path.suffix == ".npz" and not equals:
                arrays |= read_npz(path)
            elif path.suffix == ".npy" and equals:
                arrays[name] = read_npy(path)
            else:
                raise ConfigError(f"{word!r} must be an .npz file, which holds its own names, or NAME=FILE.npy.")
        except (OSError, UnreadableError) as error:
            raise ConfigError(f"The arrays in {path} cannot be read: {error}.") from error
    return arrays


def model_of(ctx: HubContext, component: type[Component], run: Run) -> Any:  # noqa: ANN401 - a path or a compiled model
    """Return the model that a run made or used, as a component takes it."""
    names = ("input", "path") if component.run_type is RunType.COMPILE else ("path", "input")
    artifact = next((run.artifacts[name] for name in names if name in run.artifacts), None)
    if artifact is None:
        raise ConfigError(
            f"Run {run.id} ({run.type}, {run.status}) has no model: it logged the artifacts "
            f"{quoted_list(run.artifacts)}; one of {quoted_list(names)} is needed."
        )
    if component.run_type is RunType.COMPILE:
        return artifact.to_local(ctx).local()
    kind = component.model_class()
    maker = run if "path" in run.artifacts else _maker(ctx, run, artifact)
    return kind(path=artifact) if maker is None else kind.from_run(maker)


def _maker(ctx: HubContext, run: Run, artifact: LoggedArtifact) -> Run | None:
    """Return the run that compiled what another used: it alone tells the names of its inputs, its source and so on."""
    store = ctx.client.store
    for made in () if store is None else store.lineage(run.id).made_from:
        path = made.artifacts.get("path")
        if made.type == RunType.COMPILE and path is not None and path.sha256 == artifact.sha256:
            return made
    return None


def where_measured(ctx: HubContext, run: Run, *, device: str | None = None, here: bool = False) -> str | None:
    """Return the device on which a recorded run is measured again: the one it was measured on, unless told otherwise.

    None is this machine. A device that is gone is an error: another one would answer another question.
    """
    if here and device is not None:
        raise ConfigError("device and here contradict each other.")
    if here:
        return None
    name = device or run.device
    if name is not None and name not in ctx.devices:
        if device is not None:
            ctx.find_device(device)
        raise UnknownDeviceError(
            f"Run {run.id} was measured on device {name!r}, which is not there any more; devices are: "
            f"{quoted_list(ctx.devices)}. Add it again (embedl-hub device add {name}), or say where to measure "
            "instead: --device NAME, or --here for this machine."
        )
    return name


def keep_model(ctx: HubContext, component: type[Component], path: Path) -> CompiledModel:
    """Record a file of the user's as a model, so that whatever is done with it can be led back to it."""
    with ctx.client.start_run(RunType.CUSTOM, "model") as run:
        run.log_param("source", str(path))
        model = component.model_class()
        with tempfile.TemporaryDirectory(prefix="edgeproof-") as scratch:
            artifact = run.log_artifact(model.gather(path, Path(scratch)), name="path")
    return model(path=artifact)


def run_of(ctx: HubContext, result: object) -> Run:
    """Return the run that made a result: its artifacts know it; else the newest of the project."""
    store = ctx.client.store
    assert store is not None  # noqa: S101 - whoever asks tracks
    values = vars(result).values() if isinstance(result, ComponentOutput) else ()
    known_ids = (value.run_id for value in values if isinstance(value, LoggedArtifact) and value.run_id)
    return store.run(next(known_ids, None) or store.find(equal("project", ctx.project_name), limit=1).runs[0].id)
