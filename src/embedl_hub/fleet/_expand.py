"""From a sweep to its plan: every cell, and every step once."""

from __future__ import annotations

import hashlib
import json
from pathlib import Path
from typing import TYPE_CHECKING, Any

from embedl_hub.fleet._model import Cell, Plan, Step, StepKind
from embedl_hub.tracking import describe

if TYPE_CHECKING:
    from collections.abc import Mapping

    from embedl_hub.fleet._model import Sweep, SweepModel, SweepOption, Target

_KEY_LENGTH = 32
TEST_DATA, LABELS = "test", "labels"


def expand(sweep: Sweep, targets: tuple[Target, ...]) -> Plan:
    """Write a sweep out. Files are read once each, to know them by their content; nothing else is touched."""
    contents = _Contents()
    steps: dict[str, Step] = {}
    cells = []
    for model in sweep.models:
        for option in sweep.options:
            values = {kind: values_of(model, option, kind) for kind in sweep.steps}
            # Digests of what does not depend on the target, made once and not for every cell.
            facts = {kind: contents.facts(sweep.toolchain, model, kind, values[kind]) for kind in sweep.steps}
            for target in targets:
                keys = _steps_of_cell(sweep, model, target, values, facts, steps)
                cells.append(
                    Cell(f"{model.name}/{option.name}/{target.name}", model.name, option.name, target.name, keys)
                )
    labels = {model.name: model.data[LABELS] for model in sweep.models if LABELS in model.data}
    return Plan(sweep.name, tuple(cells), steps, targets, labels, sweep)


def values_of(model: SweepModel, option: SweepOption, kind: StepKind) -> dict[str, Any]:
    """Return the keywords of a step, with the model's own data where an option says ``$name``."""
    values = dict(option.steps.get(kind, {}))
    if kind is StepKind.INVOKE and TEST_DATA in model.data:
        values.setdefault("input_data", f"${TEST_DATA}")
    return {name: _resolved(model, value) for name, value in values.items()}


def _resolved(model: SweepModel, value: Any) -> Any:  # noqa: ANN401 - whatever an option says
    if isinstance(value, str) and value.startswith("$"):
        return model.data[value[1:]]
    return value


def _steps_of_cell(
    sweep: Sweep,
    model: SweepModel,
    target: Target,
    values: Mapping[StepKind, Mapping[str, Any]],
    facts: Mapping[StepKind, str],
    steps: dict[str, Step],
) -> tuple[str, ...]:
    compiled: str | None = None
    keys = []
    for kind in sweep.steps:
        key = _digest(facts[kind], target.name, *target.devices, compiled or "")
        if key not in steps:
            steps[key] = Step(key, kind, sweep.toolchain, model.name, model.path, values[kind], target, compiled)
        if kind is StepKind.COMPILE:
            compiled = key
        keys.append(key)
    return tuple(keys)


class _Contents:
    """Knows files by their content; each is read once."""

    def __init__(self) -> None:
        self._known: dict[Path, str] = {}

    def facts(self, toolchain: str, model: SweepModel, kind: StepKind, values: Mapping[str, Any]) -> str:
        """Return a digest of everything that decides a step's result, its target and what it follows left out."""
        plain = {name: self._plain(value) for name, value in values.items()}
        return _digest(kind, toolchain, self._hash(model.path), json.dumps(plain, sort_keys=True, default=str))

    def _plain(self, value: object) -> object:
        return {"content": self._hash(value)} if isinstance(value, Path) else value

    def _hash(self, path: Path) -> str:
        if path not in self._known:
            self._known[path] = describe(path).sha256
        return self._known[path]


def _digest(*words: str) -> str:
    digest = hashlib.sha256()
    for word in words:
        # With its length, so that no two lists of words run into one.
        digest.update(f"{len(word)}:{word}".encode())
    return digest.hexdigest()[:_KEY_LENGTH]
