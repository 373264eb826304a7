"""From a sweep to its plan: its targets, what is wrong with it, every step once, and the document its run keeps."""

from __future__ import annotations

import functools
import hashlib
import json
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

from embedl_device.readers import MOST_DOCUMENT_BYTES, UnreadableError, parse_json
from embedl_hub.core.component import Component, RunType
from embedl_hub.core.device import DEVICES_FILE, Pool, load_pools
from embedl_hub.core.steps import HERE, StepOption, options_of
from embedl_hub.core.toolchain import find_component
from embedl_hub.errors import ConfigError, quoted_list
from embedl_hub.fleet._model import Cell, DeviceSelection, Plan, Step, StepKind, Sweep, SweepModel, SweepOption, Target
from embedl_hub.tracking import Run, describe

if TYPE_CHECKING:
    from embedl_hub.core import HubContext


def find_targets(
    ctx: HubContext, selection: DeviceSelection, pools: Mapping[str, Pool] | None = None
) -> tuple[tuple[Target, ...], list[str]]:
    """Return the targets that a sweep selects, from the home's pools if none are given, and what is wrong with it."""
    problems: list[str] = []
    matching: list[str] = []
    if selection.where is not None:
        try:
            matching = ctx.find_devices(selection.where)
        except ConfigError as error:
            problems.append(f"devices where: {error}")
    targets = {name: Target(name, (name,)) for name in matching}
    for name in selection.names if selection else tuple(ctx.devices) or (HERE,):
        if name in ctx.devices:
            targets.setdefault(name, Target(name, (name,)))
        elif name == HERE and not ctx.devices:
            targets[name] = Target(name, ())
        else:
            problems.append(f"there is no device {name!r}; the context has: {quoted_list(ctx.devices)}")
    if selection.pools:
        targets |= _pool_targets(ctx, selection.pools, pools, problems)
    return tuple(targets.values()), problems


def _pool_targets(
    ctx: HubContext, names: tuple[str, ...], pools: Mapping[str, Pool] | None, problems: list[str]
) -> dict[str, Target]:
    if pools is None:
        pools = {} if ctx.home is None else load_pools(ctx.home / DEVICES_FILE)
    facts = {name: (device.provider_type, ctx.known_spec(name)) for name, device in ctx.devices.items()}
    targets = {}
    for name in names:
        if name not in pools:
            problems.append(f"there is no pool {name!r}; known: {quoted_list(pools)}")
        elif name in ctx.devices:
            problems.append(f"pool {name!r} is called like a device; a matrix has one column of a name")
        else:
            try:
                targets[name] = Target(name, tuple(pools[name].members(facts)))
            except ConfigError as error:
                problems.append(str(error))
    return targets


_KEY_LENGTH = 32
TEST_DATA, LABELS = "test", "labels"


def expand(sweep: Sweep, targets: tuple[Target, ...]) -> Plan:
    """Write a sweep out. Files are read once each, to know them by their content; nothing else is touched."""
    content_of = functools.cache(lambda path: describe(path).sha256)
    steps: dict[str, Step] = {}
    cells = []
    for model in sweep.models:
        for option in sweep.options:
            work = _work_of(sweep, model, option, content_of)
            for target in targets:
                keys = _steps_of_cell(work, model, target, steps)
                cells.append(
                    Cell(f"{model.name}/{option.name}/{target.name}", model.name, option.name, target.name, keys)
                )
    labels = {model.name: model.data[LABELS] for model in sweep.models if LABELS in model.data}
    return Plan(sweep.name, tuple(cells), steps, targets, labels, sweep)


def _values_of(model: SweepModel, option: SweepOption, kind: StepKind) -> dict[str, object]:
    """Return the keywords of a step, with the model's own data where one says ``$name``."""
    written = _written_values(model, option, kind).items()
    return {
        name: model.data[value[1:]] if isinstance(value, str) and value.startswith("$") else value
        for name, value in written
    }


def _written_values(model: SweepModel, option: SweepOption, kind: StepKind) -> dict[str, object]:
    values = {**model.steps.get(kind, {}), **option.steps.get(kind, {})}
    if kind is StepKind.INVOKE and TEST_DATA in model.data:
        values.setdefault("input_data", f"${TEST_DATA}")
    return values


@dataclass(frozen=True)
class _Work:
    """One step of a model with an option, wherever it is done."""

    kind: StepKind
    toolchain: str
    source: Path
    values: Mapping[str, Any]
    facts: str  # a digest of what does not depend on the target, made once and not for every cell


def _work_of(
    sweep: Sweep, model: SweepModel, option: SweepOption, content_of: Callable[[Path], str]
) -> tuple[_Work, ...]:
    toolchain = sweep.toolchain_of(option)
    source = model.path if option.source is None else model.data[option.source[1:]]
    work = []
    for kind in sweep.steps:
        values = _values_of(model, option, kind)
        work.append(_Work(kind, toolchain, source, values, _facts(toolchain, source, kind, values, content_of)))
    return tuple(work)


def _steps_of_cell(work: Iterable[_Work], model: SweepModel, target: Target, steps: dict[str, Step]) -> tuple[str, ...]:
    compiled: str | None = None
    keys = []
    for each in work:
        key = _digest(each.facts, target.name, *target.devices, compiled or "")
        if key not in steps:
            steps[key] = Step(
                key, each.kind, each.toolchain, model.name, each.source, each.values, target, compiled
            )  # fmt: skip
        if each.kind is StepKind.COMPILE:
            compiled = key
        keys.append(key)
    return tuple(keys)


def _facts(
    toolchain: str, source: Path, kind: StepKind, values: Mapping[str, Any], content_of: Callable[[Path], str]
) -> str:
    """Return a digest of everything that decides a step's result, its target and what it follows left out."""
    plain = {
        name: {"content": content_of(value)} if isinstance(value, Path) else value for name, value in values.items()
    }
    return _digest(kind, toolchain, content_of(source), json.dumps(plain, sort_keys=True, default=str))


def _digest(*texts: str) -> str:
    # Each with its length, so that no two lists of texts run into one.
    joined = "".join(f"{len(text)}:{text}" for text in texts)
    return hashlib.sha256(joined.encode()).hexdigest()[:_KEY_LENGTH]


RUN_TYPES = {StepKind.COMPILE: RunType.COMPILE, StepKind.PROFILE: RunType.PROFILE, StepKind.INVOKE: RunType.INFERENCE}


def check_sweep(sweep: Sweep, further: Iterable[str] = ()) -> None:
    """Refuse a sweep that cannot be run, with everything that is wrong with it, ``further`` problems included."""
    problems = [*_name_problems(sweep), *_step_problems(sweep), *_file_problems(sweep), *further]
    if problems:
        raise ConfigError(f"The sweep {sweep.name!r} cannot be run:\n" + "\n".join(f"- {text}" for text in problems))


def component_of(kind: StepKind, toolchain: str) -> type[Component]:
    """Return the component for a kind of step in a toolchain."""
    return find_component(RUN_TYPES[kind], toolchain)


def _name_problems(sweep: Sweep) -> Iterator[str]:
    for what, entries in (("models", sweep.models), ("options", sweep.options)):
        names = [entry.name for entry in entries]
        if not names:
            yield f"it has no {what}"
        if twice := {name for name in names if names.count(name) > 1}:
            yield f"{what}: {quoted_list(twice)} is there twice"
    if not sweep.steps:
        yield f"it has no steps; known: {quoted_list(StepKind)}"
    if sweep.retries < 0 or (sweep.timeout_s is not None and sweep.timeout_s <= 0):
        yield f"retries is {sweep.retries} and timeout_s is {sweep.timeout_s}; they must be positive"
    if sweep.reference is not None and sweep.reference not in {option.name for option in sweep.options}:
        options = quoted_list(option.name for option in sweep.options)
        yield f"reference {sweep.reference!r} is no option; known: {options}"


def _step_problems(sweep: Sweep) -> Iterator[str]:
    for toolchain in dict.fromkeys(map(sweep.toolchain_of, sweep.options)):
        own = replace(sweep, options=tuple(each for each in sweep.options if sweep.toolchain_of(each) == toolchain))
        for kind in sweep.steps:
            try:
                options = {option.name: option for option in options_of(component_of(kind, toolchain))}
            except ConfigError as error:
                yield f"{quoted_list(option.name for option in own.options)}: {error}"
                break
            for who, steps, models in _holders(own):
                yield from _value_problems(f"{who}, {kind}", steps.get(kind, {}), options, models)
            for option in own.options:
                yield from _missing_values(sweep, option, kind, options)
    for who, steps, _ in _holders(sweep):
        if unused := set(steps) - set(sweep.steps):
            yield f"{who} has values for {quoted_list(unused)}, which is no step of this sweep"
    yield from _source_problems(sweep)


def _source_problems(sweep: Sweep) -> Iterator[str]:
    for option in sweep.options:
        if option.source is not None and not option.source.startswith("$"):
            yield f"option {option.name!r}: source is {option.source!r}; it names data of the model, as '$name'"
        elif option.source is not None:
            yield from _data_problems(f"option {option.name!r}, source", option.source, sweep.models)


def _data_problems(where: str, value: str, models: tuple[SweepModel, ...]) -> Iterator[str]:
    for model in models:
        if value[1:] not in model.data:
            yield f"{where}: model {model.name!r} has no data {value[1:]!r}; it has: {quoted_list(model.data)}"


def _holders(sweep: Sweep) -> Iterator[tuple[str, Mapping[StepKind, Mapping[str, Any]], tuple[SweepModel, ...]]]:
    """Return whoever holds values of steps, what to call it, and the models its values go to."""
    for option in sweep.options:
        yield f"option {option.name!r}", option.steps, sweep.models
    for model in sweep.models:
        if model.steps:
            yield f"model {model.name!r}", model.steps, (model,)


def _value_problems(
    where: str, values: Mapping[str, object], options: Mapping[str, StepOption], models: tuple[SweepModel, ...]
) -> Iterator[str]:
    if unknown := set(values) - set(options):
        yield f"{where} has no {quoted_list(unknown)}; known: {quoted_list(options)}"
    for name, value in values.items():
        if isinstance(value, str) and value.startswith("$"):
            yield from _data_problems(where, value, models)
        elif not _is_plain(value):
            yield f"{where}: {name} is {value!r:.60}; a sweep takes text, numbers, lists and paths"


def _missing_values(
    sweep: Sweep, option: SweepOption, kind: StepKind, options: Mapping[str, StepOption]
) -> Iterator[str]:
    required = {name for name, each in options.items() if each.is_required}
    for model in sweep.models:
        for name in sorted(required - _written_values(model, option, kind).keys()):
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


def _is_plain(value: object) -> bool:
    try:
        return isinstance(value, Path) or bool(json.dumps(value))
    except (TypeError, ValueError):
        return False


# The component of a sweep's own run; the artifact that holds its plan, and the parameter with the plan's hash.
SWEEP, PLAN_ARTIFACT, PLAN_DIGEST = "Sweep", "plan", "plan_digest"
_FORMAT = 1


def plan_as_json(plan: Plan) -> str:
    """Return a plan as the document that its sweep's run keeps."""
    steps = {
        key: {
            "kind": step.kind, "toolchain": step.toolchain, "model": step.model, "source": str(step.source),
            "values": dict(step.values), "target": step.target.name, "after": step.after,
        }
        for key, step in plan.steps.items()
    }  # fmt: skip
    targets = {target.name: target.devices for target in plan.targets}
    document = {"format": _FORMAT, "name": plan.name, "targets": targets, "cells": list(map(vars, plan.cells))}
    return json.dumps({**document, "steps": steps}, default=str)


def _check_format(given: object) -> None:
    if given != _FORMAT:
        raise ConfigError(f"The plan is of format {given!r:.100}, which is not known here; known: {_FORMAT}.")


def plan_from_json(text: str | bytes) -> Plan:
    """Return the plan of a document; how its sweep was to go about it is not in there."""
    try:
        document = parse_json(text)
        _check_format(document["format"])
        targets = {name: Target(name, tuple(devices)) for name, devices in document["targets"].items()}
        steps = {
            key: Step(
                key, StepKind(facts["kind"]), facts["toolchain"], facts["model"], Path(facts["source"]),
                facts["values"], targets[facts["target"]], facts["after"],
            )
            for key, facts in document["steps"].items()
        }  # fmt: skip
        cells = tuple(Cell(**{**cell, "steps": tuple(cell["steps"])}) for cell in document["cells"])
        name = str(document["name"])
    except ConfigError:
        raise
    except (LookupError, TypeError, AttributeError, ValueError) as error:
        raise ConfigError(f"The plan of the sweep cannot be read ({type(error).__name__}: {error}).") from error
    if lost := {key for cell in cells for key in cell.steps} - steps.keys():
        raise ConfigError(f"The plan of the sweep lacks {len(lost)} of the steps of its cells.")
    return Plan(name, cells, steps, tuple(targets.values()))


def plan_of(run: Run) -> Plan:
    """Return the plan that a sweep's run keeps."""
    artifact = run.artifacts.get(PLAN_ARTIFACT)
    if run.component != SWEEP or artifact is None or artifact.local_path is None:
        raise ConfigError(f"Run {run.id} keeps no plan of a sweep here.")
    try:
        with artifact.open() as file:
            return plan_from_json(file.read(MOST_DOCUMENT_BYTES + 1))
    except (OSError, UnreadableError) as error:
        raise ConfigError(f"The plan of the sweep {run.id} cannot be read: {error}.") from error
