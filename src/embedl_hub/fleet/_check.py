"""What is wrong with a sweep, all of it at once and before anything runs."""

from __future__ import annotations

import json
from pathlib import Path
from typing import TYPE_CHECKING, Any

from embedl_hub.core.component import RunType
from embedl_hub.core.steps import find_component, options_of
from embedl_hub.errors import ConfigError, known
from embedl_hub.fleet._expand import LABELS, TEST_DATA, written_values
from embedl_hub.fleet._model import StepKind

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator, Mapping

    from embedl_hub.core.component import Component
    from embedl_hub.core.steps import StepOption
    from embedl_hub.fleet._model import Sweep, SweepModel, SweepOption

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
        for who, steps, models in _holders(sweep):
            yield from _value_problems(f"{who}, {kind}", steps.get(kind, {}), options, models)
        for option in sweep.options:
            yield from _missing_values(sweep, option, kind, options)
    for who, steps, _ in _holders(sweep):
        if unused := set(steps) - set(sweep.steps):
            yield f"{who} has values for {known(unused)}, which is no step of this sweep"


def _holders(sweep: Sweep) -> Iterator[tuple[str, Mapping[StepKind, Mapping[str, Any]], tuple[SweepModel, ...]]]:
    """Return whoever holds values of steps, what to call it, and the models its values go to."""
    for option in sweep.options:
        yield f"option {option.name!r}", option.steps, sweep.models
    for model in sweep.models:
        if model.steps:
            yield f"model {model.name!r}", model.steps, (model,)


def _value_problems(
    where: str, values: Mapping[str, Any], options: Mapping[str, StepOption], models: tuple[SweepModel, ...]
) -> Iterator[str]:
    if unknown := set(values) - set(options):
        yield f"{where} has no {known(unknown)}; known: {known(options)}"
    for name, value in values.items():
        if isinstance(value, str) and value.startswith("$"):
            for model in models:
                if value[1:] not in model.data:
                    yield f"{where}: model {model.name!r} has no data {value[1:]!r}; it has: {known(model.data)}"
        elif not _is_plain(value):
            yield f"{where}: {name} is {value!r:.60}; a sweep takes text, numbers, lists and paths"


def _missing_values(
    sweep: Sweep, option: SweepOption, kind: StepKind, options: Mapping[str, StepOption]
) -> Iterator[str]:
    required = {name for name, each in options.items() if each.is_required}
    for model in sweep.models:
        for name in sorted(required - written_values(model, option, kind).keys()):
            where = f"option {option.name!r}, {kind}"
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
    for who, steps, _ in _holders(sweep):
        for kind, values in steps.items():
            for name, value in values.items():
                if isinstance(value, Path) and not value.exists():
                    yield f"{who}, {kind}: there is no {value} for {name!r}"


def _is_plain(value: Any) -> bool:  # noqa: ANN401 - whatever somebody wrote
    if isinstance(value, Path):
        return True
    try:
        json.dumps(value)
    except (TypeError, ValueError):
        return False
    return True
