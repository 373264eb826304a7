"""What a sweep is made of. Frozen: expand, look at it, then run it."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from enum import StrEnum
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from pathlib import Path


class StepKind(StrEnum):
    """What a step does to a model, in the order in which a cell goes through them."""

    COMPILE = "compile"
    PROFILE = "profile"
    INVOKE = "invoke"


@dataclass(frozen=True)
class SweepModel:
    """A model to try.

    Attributes:
        name: What rows of the matrix call it.
        path: The file or folder.
        data: Files of this model by a name that options refer to as ``$name``: calibration, inputs, labels.
    """

    name: str
    path: Path
    data: Mapping[str, Path] = field(default_factory=dict)


@dataclass(frozen=True)
class SweepOption:
    """A way to treat every model: the keywords of each step.

    Attributes:
        name: What cells call it: ``float``, ``int8`` …
        steps: Keywords of the toolchain's components by step; a value ``"$name"`` stands for the model's data.
    """

    name: str
    steps: Mapping[StepKind, Mapping[str, Any]] = field(default_factory=dict)


@dataclass(frozen=True)
class Target:
    """Where cells run: one device, or a pool of equal ones that serves one queue.

    Attributes:
        name: What columns of the matrix call it.
        devices: The devices that may carry it out; exactly one unless it is a pool; none for this machine without
            a device.
    """

    name: str
    devices: tuple[str, ...]


@dataclass(frozen=True)
class Step:
    """One thing to do, for one cell or for several.

    Attributes:
        key: Names the step by all that decides its result: what it does, to which content, how, where, after what.
        kind: What it does.
        toolchain: ``onnxruntime``, ``tflite``, ``tensorrt`` or one of the user's.
        model: The model's name.
        source: The model's file.
        values: Keywords for the component's ``run``.
        target: Where.
        after: The key of the step whose result it takes; None takes the model's file.
    """

    key: str
    kind: StepKind
    toolchain: str
    model: str
    source: Path
    values: Mapping[str, Any]
    target: Target
    after: str | None = None


@dataclass(frozen=True)
class Cell:
    """One model with one option on one target: the steps it goes through, some of them shared with other cells."""

    id: str
    model: str
    option: str
    target: str
    steps: tuple[str, ...]


@dataclass(frozen=True)
class Plan:
    """A sweep written out: every cell, and every step once."""

    name: str
    cells: tuple[Cell, ...]
    steps: Mapping[str, Step]
