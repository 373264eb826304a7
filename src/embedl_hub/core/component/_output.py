"""What a component returns: a frozen record, filled by name from what its run logged."""

from __future__ import annotations

import dataclasses
import inspect
import json
import os
import sys
import types
import typing
from collections.abc import Mapping
from dataclasses import MISSING, dataclass, fields
from enum import Enum
from pathlib import Path
from typing import TYPE_CHECKING, Any, Self

from embedl_hub import notebook
from embedl_hub.errors import OutputError, quoted_list
from embedl_hub.tracking import LoggedArtifact, LoggedMetric, LoggedParam, Run

if TYPE_CHECKING:
    from embedl_hub.core.context import HubContext

_LOGGED = {"LoggedArtifact": LoggedArtifact, "LoggedMetric": LoggedMetric, "LoggedParam": LoggedParam}


@dataclass(frozen=True)
class ComponentOutput:
    """Base of every result. Subclass it as a frozen dataclass; fields are filled by their names."""

    def __init_subclass__(cls, **kwargs: Any) -> None:  # noqa: ANN401 - passed on
        super().__init_subclass__(**kwargs)
        # A dataclass writes a repr of its own, with whole arrays and paths, unless the class has one.
        if "__repr__" not in cls.__dict__:
            cls.__repr__ = ComponentOutput.__repr__  # type: ignore[method-assign]

    def __repr__(self) -> str:
        return notebook.line(type(self).__name__, (f"{name}={notebook.short(value)}" for name, value in self._shown()))

    def _repr_html_(self) -> str:
        return notebook.table(type(self).__name__, self._shown())

    def _shown(self) -> list[tuple[str, object]]:
        values = [(field.name, getattr(self, field.name)) for field in fields(self)]
        return [
            (name, value)
            for name, value in values
            if value is not None and not (isinstance(value, tuple) and not value)
        ]

    @classmethod
    def from_current_run(cls, ctx: HubContext, **extra: object) -> Self:
        """Build the result from what the current run logged.

        A field typed LoggedArtifact, LoggedParam or LoggedMetric takes what was logged under its name. Any other
        takes its value from ``extra``, else from the metric or parameter of its name, else its default.
        """
        return cls.from_run(ctx.client.run.snapshot(), **extra)

    @classmethod
    def from_run(cls, run: Run, **extra: object) -> Self:
        """Build the result of a recorded run again, from the store."""
        own = {field.name: field for field in fields(cls) if field.init}
        if unknown := set(extra) - set(own):
            raise OutputError(
                f"{cls.__name__} has no field {quoted_list(unknown)}; its fields are: {quoted_list(own)}."
            )
        values: dict[str, Any] = {}
        missing: list[str] = []
        for name, field in own.items():
            found = _find(cls, field, run, extra)
            if found is not MISSING:
                values[name] = found
            elif field.default is MISSING and field.default_factory is MISSING:
                missing.append(name)
        if missing:
            raise OutputError(
                f"{cls.__name__} needs {quoted_list(missing)}, which run {run.id} did not log. It logged the artifacts "
                f"{quoted_list(run.artifacts)}, the parameters {quoted_list(run.params)} and the metrics "
                f"{quoted_list({metric.name for metric in run.metrics})}. Before it: "
                f"{', '.join(_how_to_log(cls, own[name]) for name in missing)}."
            )
        return cls(**values)


@dataclass(frozen=True)
class CompiledModel(ComponentOutput):
    """A compiled model: ``path`` is the model itself, ``input`` what it was compiled from."""

    path: LoggedArtifact
    input: LoggedArtifact | None = None

    @classmethod
    def gather(cls, path: Path, scratch: Path) -> Path:  # noqa: ARG003 - for formats that use it
        """Return what holds all of a user's model; a format with weights in files beside it puts them into a folder."""
        return path


def _how_to_log(cls: type, field: dataclasses.Field[Any]) -> str:
    """Return the call that gives a field its value."""
    calls = {LoggedArtifact: "log_artifact(file, name={})", LoggedParam: "log_param({}, value)"}
    wanted = _wanted_types(cls, field)
    call = next((call for kind, call in calls.items() if kind in wanted), "log_metric({}, value)")
    return f"ctx.client.{call.format(repr(field.name))}"


def _find(cls: type, field: dataclasses.Field[Any], run: Run, extra: dict[str, object]) -> object:
    """Return a field's value, or MISSING."""
    name = field.name
    wanted = _wanted_types(cls, field)
    if name in extra:
        if LoggedArtifact in wanted and isinstance(extra[name], str | os.PathLike):
            raise OutputError(f"{cls.__name__}.{name} is a file of the run, so {_how_to_log(cls, field)} keeps it.")
        return extra[name]
    metric, param = run.metric(name), run.params.get(name)
    for kind, logged in ((LoggedArtifact, run.artifacts.get(name)), (LoggedMetric, metric), (LoggedParam, param)):
        if kind in wanted:
            return MISSING if logged is None else logged
    number_or_text = metric or param
    return MISSING if number_or_text is None else _convert(cls, name, number_or_text.value, wanted)


def _wanted_types(cls: type, field: dataclasses.Field[Any]) -> tuple[Any, ...]:
    """Return the types a field admits; empty when its annotation cannot be known at run time."""
    annotation = field.type
    if isinstance(annotation, str):
        owner = next((base for base in cls.__mro__ if field.name in inspect.get_annotations(base)), cls)
        namespace = vars(sys.modules[owner.__module__]) if owner.__module__ in sys.modules else {}
        try:
            annotation = eval(annotation, dict(namespace), dict(_LOGGED))  # noqa: S307 - the class author's own text
        except (NameError, AttributeError, TypeError, SyntaxError):
            # Names imported for type checkers only do not exist now; such a field is taken as it comes.
            return ()
    origin = typing.get_origin(annotation)
    if origin in (typing.Union, types.UnionType):
        return typing.get_args(annotation)
    return (annotation,)


def _convert(cls: type, name: str, value: object, wanted: tuple[Any, ...]) -> object:
    """Return a logged value as the field's type; what is stored is text, numbers, lists and mappings."""
    plain = [typing.get_origin(kind) or kind for kind in wanted]
    if not plain or Any in plain or (value is None and types.NoneType in plain):
        return value
    for kind in plain:
        if isinstance(kind, type) and (type(value) is kind or (isinstance(value, kind) and inspect.isabstract(kind))):
            return value
    for kind in plain:
        converted = _convert_to(kind, value)
        if converted is not MISSING:
            return converted
    raise OutputError(
        f"{cls.__name__}.{name} is declared as {' | '.join(getattr(kind, '__name__', str(kind)) for kind in wanted)}, "
        f"but the run logged {value!r} under that name."
    )


def _convert_to(kind: Any, value: Any) -> object:  # noqa: ANN401 - any declared type, any stored value
    try:
        if kind is bool:
            return {"true": True, "false": False}.get(str(value).lower(), MISSING)
        if kind is int:
            return int(value) if float(value).is_integer() else MISSING
        if kind is Mapping:
            kind = dict
        if kind in (list, tuple, set, frozenset, dict):
            parsed = json.loads(value) if isinstance(value, str) else value
            return kind(parsed) if isinstance(parsed, dict if kind is dict else list) else MISSING
        if kind in (float, str, Path) or (isinstance(kind, type) and issubclass(kind, Enum)):
            return kind(value)
    except (TypeError, ValueError):
        pass
    return MISSING
