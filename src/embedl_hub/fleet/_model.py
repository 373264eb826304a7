"""What a sweep is made of. Frozen: expand, look at it, then run it."""

from __future__ import annotations

from dataclasses import dataclass, field
from enum import StrEnum
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from collections.abc import Mapping
    from pathlib import Path


class StepKind(StrEnum):
    """What a step does to a model, in the order in which a cell goes through them."""

    COMPILE = "compile"
    PROFILE = "profile"
    INVOKE = "invoke"


DEFAULT_STEPS = (StepKind.COMPILE, StepKind.PROFILE)


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
class DeviceWish:
    """Where a sweep is to run; everything named here is a target of its own.

    Nothing named: every device of the context, or this machine where it has none.


    Attributes:
        names: Devices of the context.
        where: Attributes of devices: ``arch=aarch64, memory>=4GB``; every device that has them is a target.
        pools: Pools of equal devices, each one target that serves one queue.
    """

    names: tuple[str, ...] = ()
    where: str | None = None
    pools: tuple[str, ...] = ()


@dataclass(frozen=True)
class Sweep:
    """Models × options × targets, and how to go about them.

    Attributes:
        name: What it is called.
        toolchain: Whose components carry out the steps.
        models: The rows of the matrix.
        options: The ways to treat each model.
        devices: Where.
        steps: What every cell goes through, in this order.
        timeout_s: A step is stopped after this long on its device.
        retries: How often a step is tried again after a board's fault.
        retry_failures: Whether a step that failed on the model's own account is tried again as well.
        rank: Whether the options of each model are measured against each other in turns on each target.
        reuse_measurements: Whether an earlier profile or answer of the very same step stands in for a new one.
        reference: The option whose answers the others are compared with; ``float`` if there is one of that name.
    """

    name: str
    toolchain: str
    models: tuple[SweepModel, ...]
    options: tuple[SweepOption, ...]
    devices: DeviceWish = DeviceWish()
    steps: tuple[StepKind, ...] = DEFAULT_STEPS
    timeout_s: float | None = None
    retries: int = 1
    retry_failures: bool = False
    rank: bool = False
    reuse_measurements: bool = False
    reference: str | None = None


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
    """A sweep written out: every cell, and every step once.

    Attributes:
        name: The sweep's name.
        cells: Every combination, in the order of the sweep.
        steps: By key; each as often as it is done, not as often as it is needed.
        targets: The targets in use.
        labels: By model, the file with the right answers to its test data.
        settings: The sweep it was made from, for what says how to go about it.
    """

    name: str
    cells: tuple[Cell, ...]
    steps: Mapping[str, Step]
    targets: tuple[Target, ...] = ()
    labels: Mapping[str, Path] = field(default_factory=dict)
    settings: Sweep | None = None
