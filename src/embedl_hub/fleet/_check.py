"""What is wrong with a sweep, all of it at once and before anything runs."""

from __future__ import annotations

import json
from pathlib import Path
from typing import TYPE_CHECKING, Any

from embedl_hub.core.component import RunType
from embedl_hub.core.steps import find_component, options_of
from embedl_hub.errors import ConfigError, known
from embedl_hub.fleet._expand import LABELS, TEST_DATA
from embedl_hub.fleet._model import StepKind

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator, Mapping

    from embedl_hub.core.component import Component
    from embedl_hub.core.steps import StepOption
    from embedl_hub.fleet._model import Sweep, SweepOption

RUN_TYPES = {StepKind.COMPILE: RunType.COMPILE, StepKind.PROFILE: RunType.PROFILE, StepKind.INVOKE: RunType.INFERENCE}


def check_sweep(sweep: Sweep, further: Iterable[str] = ()) -> None:
    """Refuse a sweep that cannot be carried out, with everything that is wrong with it.

    Args:
        sweep: The sweep.
        further: What others found wrong with it.
    """
    problems = [*_name_problems(sweep), *_step_problems(sweep), *_file_problems(sweep), *further]
    if problems:
        raise ConfigError(
            f"The sweep {sweep.name!r} cannot be carried out:\n" + "\n".join(f"- {one}" for one in problems)
        )


def component_of(kind: StepKind, toolchain: str) -> type[Component]:
    """Return the component that carries out a kind of step in a toolchain."""
    return find_component(RUN_TYPES[kind], toolchain)


def _name_problems(sweep: Sweep) -> Iterator[str]:
    for what, each in (("models", sweep.models), ("options", sweep.options)):
        names = [one.name for one in each]
        if not names:
            yield f"it has no {what}"
        if twice := {name for name in names if names.count(name) > 1}:
            yield f"{what}: {known(twice)} is there twice"
    if not sweep.steps:
        yield f"it has no steps; known: {known(StepKind)}"
    if sweep.retries < 0 or (sweep.timeout_s is not None and sweep.timeout_s <= 0):
        yield f"retries is {sweep.retries} and timeout_s is {sweep.timeout_s}; they must be positive"
    if sweep.reference is not None and sweep.reference not in {option.name for option in sweep.options}:
        yield f"reference {sweep.reference!r} is no option; known: {known(option.name for option in sweep.options)}"


def _step_problems(sweep: Sweep) -> Iterator[str]:
    for kind in sweep.steps:
        try:
            options = {option.name: option for option in options_of(component_of(kind, sweep.toolchain))}
        except ConfigError as error:
            yield str(error)
            continue
        for option in sweep.options:
            yield from _value_problems(sweep, option, kind, options)
    for option in sweep.options:
        if unused := set(option.steps) - set(sweep.steps):
            yield f"option {option.name!r} has values for {known(unused)}, which is no step of this sweep"


def _value_problems(
    sweep: Sweep, option: SweepOption, kind: StepKind, options: Mapping[str, StepOption]
) -> Iterator[str]:
    values = option.steps.get(kind, {})
    where = f"option {option.name!r}, {kind}"
    if unknown := set(values) - set(options):
        yield f"{where} has no {known(unknown)}; known: {known(options)}"
    for name, value in values.items():
        if isinstance(value, str) and value.startswith("$"):
            for model in sweep.models:
                if value[1:] not in model.data:
                    yield f"{where}: model {model.name!r} has no data {value[1:]!r}; it has: {known(model.data)}"
        elif not _is_plain(value):
            yield f"{where}: {name} is {value!r:.60}; a sweep takes text, numbers, lists and paths"
    for name in (name for name, each in options.items() if each.is_required and name not in values):
        for model in sweep.models:
            if not (kind is StepKind.INVOKE and name == "input_data" and TEST_DATA in model.data):
                yield f"{where} needs {name!r}: give it, or give model {model.name!r} data {TEST_DATA!r}"


def _file_problems(sweep: Sweep) -> Iterator[str]:
    for model in sweep.models:
        if not model.path.exists():
            yield f"model {model.name!r}: there is no {model.path}"
        for name, path in model.data.items():
            if not path.exists():
                yield f"model {model.name!r}: there is no {path} for its data {name!r}"
        if LABELS in model.data and TEST_DATA not in model.data:
            yield f"model {model.name!r} has labels but no data {TEST_DATA!r} that they belong to"
    for option in sweep.options:
        for kind, values in option.steps.items():
            for name, value in values.items():
                if isinstance(value, Path) and not value.exists():
                    yield f"option {option.name!r}, {kind}: there is no {value} for {name!r}"


def _is_plain(value: Any) -> bool:  # noqa: ANN401 - whatever somebody wrote
    if isinstance(value, Path):
        return True
    try:
        json.dumps(value)
    except (TypeError, ValueError):
        return False
    return True
