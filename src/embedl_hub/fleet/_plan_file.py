"""A plan as the document that a sweep's run keeps, and back."""

from __future__ import annotations

import json
from pathlib import Path
from typing import TYPE_CHECKING, Any

from embedl_hub.errors import ConfigError
from embedl_hub.fleet._model import Cell, Plan, Step, StepKind, Target

if TYPE_CHECKING:
    from embedl_hub.tracking import Run

SWEEP = "Sweep"
"""The component of a sweep's own run, to find sweeps by."""
PLAN_ARTIFACT, PLAN_DIGEST = "plan", "plan_digest"
"""The artifact of a sweep's run that holds its plan, and the parameter that knows it by its content."""
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
    cells = [
        {"id": cell.id, "model": cell.model, "option": cell.option, "target": cell.target, "steps": cell.steps}
        for cell in plan.cells
    ]
    targets = {target.name: target.devices for target in plan.targets}
    document = {"format": _FORMAT, "name": plan.name, "targets": targets, "cells": cells, "steps": steps}
    return json.dumps(document, default=str)


def plan_from_json(text: str) -> Plan:
    """Return the plan of a document; how its sweep was to go about it is not in there."""
    try:
        document: dict[str, Any] = json.loads(text)
        if document["format"] != _FORMAT:
            raise ConfigError(
                f"The plan is of format {document['format']!r}, which is not known here; known: {_FORMAT}."
            )
        targets = {name: Target(name, tuple(devices)) for name, devices in document["targets"].items()}
        steps = {key: _step(key, facts, targets) for key, facts in document["steps"].items()}
        cells = tuple(
            Cell(one["id"], one["model"], one["option"], one["target"], tuple(one["steps"]))
            for one in document["cells"]
        )
    except (KeyError, TypeError, AttributeError, json.JSONDecodeError) as error:
        raise ConfigError(f"The plan of the sweep cannot be read ({type(error).__name__}: {error}).") from error
    if lost := {key for cell in cells for key in cell.steps} - steps.keys():
        raise ConfigError(f"The plan of the sweep lacks {len(lost)} of the steps of its cells.")
    return Plan(str(document["name"]), cells, steps, tuple(targets.values()))


def plan_of(run: Run) -> Plan:
    """Return the plan that a sweep's run keeps."""
    artifact = run.artifacts.get(PLAN_ARTIFACT)
    if run.component != SWEEP or artifact is None or artifact.local_path is None:
        raise ConfigError(f"Run {run.id} keeps no plan of a sweep here.")
    try:
        return plan_from_json(artifact.local_path.read_text(encoding="utf-8"))
    except (OSError, UnicodeDecodeError) as error:
        raise ConfigError(f"The plan of the sweep {run.id} cannot be read: {error}.") from error


def _step(key: str, facts: dict[str, Any], targets: dict[str, Target]) -> Step:
    return Step(
        key, StepKind(facts["kind"]), facts["toolchain"], facts["model"], Path(facts["source"]), facts["values"],
        targets[facts["target"]], facts["after"],
    )  # fmt: skip
