"""Steps by name: which component a toolchain has for a kind of step, its options, and the models that runs made."""

from __future__ import annotations

import inspect
import re
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from embedl_hub.core.component import (
    CompiledModel,
    Component,
    ComponentOutput,
    LoggedArtifact,
    RunType,
    installed_providers,
)
from embedl_hub.errors import ConfigError, known
from embedl_hub.tracking import equal

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Iterator

    from embedl_hub.core.context import HubContext
    from embedl_hub.tracking import Run

_SUFFIXES = {RunType.COMPILE: "Compiler", RunType.PROFILE: "Profiler", RunType.INFERENCE: "Invoker"}


def components(run_type: RunType) -> dict[str, type[Component]]:
    """Return the components of a kind by the name of their toolchain, those of installed providers included."""
    installed_providers()
    return _declared(run_type)


def find_component(run_type: RunType, toolchain: str) -> type[Component]:
    """Return the component of a kind that a toolchain has; installed providers are asked only where it is not known."""
    found = _declared(run_type)
    if toolchain not in found:
        found = components(run_type)
    if toolchain not in found:
        raise ConfigError(
            f"There is no toolchain {toolchain!r} with a component of type {run_type}; known: {known(found)}."
        )
    return found[toolchain]


def _declared(run_type: RunType) -> dict[str, type[Component]]:
    import embedl_hub.core.compile  # noqa: PLC0415 - only what steps need
    import embedl_hub.core.invoke  # noqa: F401, PLC0415
    from embedl_hub.core.profile import PairedProfiler  # noqa: PLC0415

    found = {}
    for component in _subclasses(Component):
        # What takes several models at once is no step of one model.
        if issubclass(component, PairedProfiler):
            continue
        if getattr(component, "run_type", None) is run_type and hasattr(component, "run"):
            found[component.__name__.removesuffix(_SUFFIXES[run_type]).lower()] = component
    return found


def _subclasses(base: type[Any]) -> Iterator[type[Any]]:
    for each in base.__subclasses__():
        yield each
        yield from _subclasses(each)


@dataclass(frozen=True)
class StepOption:
    """One parameter of a component's ``run``: its name there, what it takes, and how text becomes that.

    Attributes:
        name: The keyword.
        annotation: Its type, as it is written, with aliases written out.
        text: What the docstring says of it.
        is_required: Whether it has no default.
    """

    name: str
    annotation: str
    text: str
    is_required: bool = False

    @property
    def takes_path(self) -> bool:
        """Whether a path is one of the things it takes."""
        return "Path" in self.annotation

    @property
    def takes_arrays(self) -> bool:
        """Whether it takes arrays by name, and no path to them."""
        return "ndarray" in self.annotation and not self.takes_path

    @property
    def takes_numbers(self) -> bool:
        """Whether it takes a row of whole numbers."""
        return "tuple[int" in self.annotation

    @property
    def form(self) -> str:
        """What to write for it."""
        if self.takes_arrays or self.takes_path:
            return "PATH"
        if self.takes_numbers:
            return "N,N,..."
        return "NUMBER" if re.search(r"\b(int|float)\b", self.annotation) else "TEXT"

    def read(self, text: str) -> Any:  # noqa: ANN401 - what the component takes
        """Return the value that a text stands for.

        Raises:
            ValueError: It stands for none.
        """
        if self.takes_arrays:
            return read_arrays((text,))
        if self.takes_numbers:
            return tuple(int(word) for word in re.split(r"[,x×]", text) if word.strip())
        for kind in (int, float):
            if re.search(rf"\b{kind.__name__}\b", self.annotation):
                return kind(text)
        return Path(text) if self.takes_path else text


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


def takes_device(component: type[Component]) -> bool:
    """Tell whether a component runs on a device of the user's choice."""
    return "device" in inspect.signature(component.run).parameters  # type: ignore[attr-defined]


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


def read_arrays(words: Iterable[str]) -> dict[str, Any]:
    """Return arrays by name from .npz files and NAME=FILE.npy words."""
    import numpy as np  # noqa: PLC0415 - few steps need it

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


def keep_model(ctx: HubContext, component: type[Component], path: Path) -> CompiledModel:
    """Record a file of the user's as a model, so that whatever is done with it can be led back to it."""
    with ctx.client.start_run(RunType.CUSTOM, "model") as run:
        run.log_param("source", str(path))
        artifact = run.log_artifact(path, name="path")
    return model_class(component)(path=artifact)


def run_of(ctx: HubContext, result: object) -> Run:
    """Return the run that made a result: its artifacts know it; else the newest of the project."""
    store = ctx.client.store
    assert store is not None  # noqa: S101 - whoever asks tracks
    values = vars(result).values() if isinstance(result, ComponentOutput) else ()
    known_ids = (value.run_id for value in values if isinstance(value, LoggedArtifact) and value.run_id)
    return store.run(next(known_ids, None) or store.find(equal("project", ctx.project_name), limit=1).runs[0].id)
