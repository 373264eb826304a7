"""What a sweep is made of and how it goes: frozen, so expand it, look at it, then run it."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Mapping
from dataclasses import dataclass, field
from enum import StrEnum
from pathlib import Path
from statistics import fmean
from typing import TYPE_CHECKING, Any

from embedl_hub import notebook
from embedl_hub.core.invoke import is_ruined

if TYPE_CHECKING:
    from embedl_device.statistics import Verdict


class StepKind(StrEnum):
    """What a step does to a model, in the order in which a cell goes through them."""

    COMPILE = "compile"
    PROFILE = "profile"
    INVOKE = "invoke"


DEFAULT_STEPS = (StepKind.COMPILE, StepKind.PROFILE)


@dataclass(frozen=True)
class SweepModel:
    """A model to try."""

    name: str  # what rows of the matrix call it
    path: Path  # the file or folder
    # Files of this model by a name that options refer to as ``$name``: calibration, inputs, labels.
    data: Mapping[str, Path] = field(default_factory=dict)
    # Keywords that this model alone needs, such as its input shape, by step; an option's go before them.
    steps: Mapping[StepKind, Mapping[str, Any]] = field(default_factory=dict)


@dataclass(frozen=True)
class SweepOption:
    """A way to treat every model: the keywords of each step."""

    name: str  # what cells call it: ``float``, ``int8`` …
    # Keywords of the toolchain's components by step; a value ``"$name"`` stands for the model's data.
    steps: Mapping[StepKind, Mapping[str, Any]] = field(default_factory=dict)
    toolchain: str | None = None  # whose components carry out the steps; the sweep's if not given
    # Which of the model's data is compiled instead of its file, as ``$name``: one written for this toolchain.
    source: str | None = None


@dataclass(frozen=True)
class DeviceSelection:
    """Where a sweep is to run; everything named here is a target of its own.

    Nothing named: every device of the context, or this machine where it has none.
    """

    names: tuple[str, ...] = ()  # devices of the context
    # Attributes of devices: ``arch=aarch64, memory>=4GB``; every device that has them is a target.
    where: str | None = None
    pools: tuple[str, ...] = ()  # pools of equal devices, each one target that serves one queue

    def __bool__(self) -> bool:
        return bool(self.names or self.where is not None or self.pools)


@dataclass(frozen=True)
class Sweep:
    """Models × options × targets, and how to go about them."""

    name: str  # what it is called
    toolchain: str  # whose components carry out the steps of options that name none
    models: tuple[SweepModel, ...]  # the rows of the matrix
    options: tuple[SweepOption, ...]  # the ways to treat each model
    devices: DeviceSelection = DeviceSelection()  # where
    steps: tuple[StepKind, ...] = DEFAULT_STEPS  # what every cell goes through, in this order
    timeout_s: float | None = None  # a step is stopped after this long on its device
    retries: int = 1  # how often a step is tried again after a board's fault
    retry_failures: bool = False  # whether a step that failed because of the model is tried again as well
    rank: bool = False  # whether the options of each model are measured against each other in turns on each target
    # Whether an earlier profile or answer of the very same step stands in for a new one.
    reuse_measurements: bool = False
    # The option whose answers the others are compared with; ``float`` if there is one of that name.
    reference: str | None = None

    def toolchain_of(self, option: SweepOption) -> str:
        """Return whose components carry out an option's steps."""
        return option.toolchain or self.toolchain


@dataclass(frozen=True)
class Target:
    """Where cells run: one device, or a pool of equal ones that serves one queue."""

    name: str  # what columns of the matrix call it
    # The devices that may carry it out; exactly one unless it is a pool; none for this machine without a device.
    devices: tuple[str, ...]


@dataclass(frozen=True)
class Step:
    """One thing to do, for one cell or for several."""

    key: str  # names the step by all that decides its result: what it does, to which content, how, where, after what
    kind: StepKind  # what it does
    toolchain: str  # ``onnxruntime``, ``tflite``, ``tensorrt`` or one of the user's
    model: str  # the model's name
    source: Path  # the model's file
    values: Mapping[str, Any]  # keywords for the component's ``run``
    target: Target  # where
    after: str | None = None  # the key of the step whose result it takes; None takes the model's file

    @property
    def title(self) -> str:
        """What messages call it."""
        return f"{self.kind} of {self.model!r} on {self.target.name!r}"


@dataclass(frozen=True)
class Cell:
    """One model with one option on one target: the steps it goes through, some of them shared with other cells."""

    id: str
    model: str
    option: str
    target: str
    steps: tuple[str, ...]


@dataclass(frozen=True, repr=False)
class Plan:
    """A sweep written out: every cell, and every step once."""

    name: str  # the sweep's name
    cells: tuple[Cell, ...]  # every combination, in the order of the sweep
    steps: Mapping[str, Step]  # by key; each as often as it is done, not as often as it is needed
    targets: tuple[Target, ...] = ()  # the targets in use
    # By model, the file with the right answers to its test data.
    labels: Mapping[str, Path] = field(default_factory=dict)
    settings: Sweep | None = None  # the sweep it was made from, for what says how to go about it

    def __repr__(self) -> str:
        return notebook.line("Plan", (repr(self.name), f"{len(self.cells)} cells", f"{len(self.steps)} steps"))

    def _repr_html_(self) -> str:
        rows = [(cell.model, cell.option, cell.target) for cell in self.cells]
        return notebook.table(f"{self!r}", rows, ("model", "option", "target"))

    @property
    def reference(self) -> str:
        """The option whose answers the others are compared with."""
        return (self.settings and self.settings.reference) or "float"


@dataclass(frozen=True)
class Job:
    """One step to run now, plain data that an engine may send anywhere."""

    sweep: str  # the id of the sweep's own run; every run of a step carries it as the tag ``sweep``
    step: Step  # what to do; its key becomes the tag ``step``
    attempt: int = 1  # 1 for the first try
    # The run that compiled the model, for steps that take a compiled one. It is in the store of the context that the
    # engine was opened with; an engine that works elsewhere brings it there.
    compiled: str | None = None
    timeout_s: float | None = None  # the step is stopped after this long on its device
    avoid: frozenset[str] = frozenset()  # devices that it failed on; they get it only where the target has no other


@dataclass(frozen=True)
class Outcome:
    """How a job ended."""

    step: str
    run_id: str | None  # its run, which is in the store of the context; None when it never began
    error: str | None = None  # why it failed, in words for people; None when it did not
    # Whether the board rather than the model is to blame (no connection, lost lease, time limit): worth a health check,
    # and another try elsewhere.
    is_boards_fault: bool = False
    # Whether it was ended from outside, as the engine closed: it says nothing about model or board.
    is_stopped: bool = False
    is_cached: bool = False  # whether the result was taken from an earlier run
    device: str | None = None  # the device that ran it
    claimed_ms: tuple[int, int] | None = None  # the time in which the device was its own: from, until
    metrics: Mapping[str, float] = field(default_factory=dict)  # the run's numbers by name
    verdict: Verdict | None = None  # what a profile thinks of its own numbers


class CellState(StrEnum):
    """How a cell ended, or how far it is."""

    DONE = "done"
    FAILED = "failed"
    SKIPPED = "skipped"
    RUNNING = "running"
    WAITING = "waiting"


@dataclass(frozen=True)
class CellResult:
    """A cell that has ended."""

    cell: Cell  # which
    state: CellState  # how it ended
    reason: str | None  # why it failed or was skipped
    outcomes: Mapping[StepKind, Outcome]  # what became of its steps
    # How good its answers are: ``accuracy`` where there are labels, ``cosine`` and ``top1_agreement`` with the
    # reference option's answers.
    scores: Mapping[str, float] = field(default_factory=dict)

    @property
    def is_ruined(self) -> bool:
        """Whether its answers are too far from the reference option's, or from float's on calibration data."""
        metrics = self.metrics
        return any(is_ruined(metrics[name]) for name in ("cosine", "calibration_cosine") if name in metrics)

    @property
    def metrics(self) -> Mapping[str, float]:
        """Every number of the cell by its name, whichever step measured it."""
        measured = {name: value for each in self.outcomes.values() for name, value in each.metrics.items()}
        return {**measured, **self.scores}


@dataclass(frozen=True)
class RankedOption:
    """An option's place among those of a model, the fastest first."""

    option: str  # its name
    latency_median: float  # its median time among the others, in ms
    ratio_to_next: float | None  # the next slower one's time over its own; None for the last
    is_significant: bool | None  # whether it is shown to be faster than the next; None for the last


@dataclass(frozen=True)
class Ranking:
    """The options of one model on one target, measured in turns."""

    model: str
    target: str
    options: tuple[RankedOption, ...]  # the fastest first; empty where it could not be measured
    run_id: str | None  # the run with the samples
    error: str | None = None  # why it could not be measured


@dataclass(frozen=True, repr=False)
class SweepResult:
    """A sweep that has ended."""

    id: str  # the sweep's own run; every run of it carries this as the tag ``sweep``
    plan: Plan  # what was to be done
    cells: tuple[CellResult, ...]  # how each cell ended, in the plan's order
    reused: frozenset[str] = frozenset()  # the keys of the steps that an earlier driver of this sweep had finished
    rankings: tuple[Ranking, ...] = ()  # the options of each model on each target, fastest first, where the sweep ranks

    def __repr__(self) -> str:
        counts = (f"{self.count(state)} {state.value}" for state in CellState if self.count(state))
        return notebook.line("SweepResult", (self.id, repr(self.plan.name), *counts))

    def _repr_html_(self) -> str:
        rows = [
            (
                each.cell.model,
                each.cell.option,
                each.cell.target,
                each.state.value,
                each.metrics.get("latency_median", ""),
                next((outcome.verdict for outcome in each.outcomes.values() if outcome.verdict), ""),
            )
            for each in self.cells
        ]
        return notebook.table(
            f"{self!r}", rows, ("model", "option", "target", "state", "latency_median, ms", "verdict")
        )

    def count(self, state: CellState) -> int:
        """Return how many cells ended in a state."""
        return sum(result.state is state for result in self.cells)


class Listener:
    """Hears of a sweep as it goes on; subclass it and take what you need. Called from the sweep's own thread."""

    def began(self, sweep: str, plan: Plan, done: Mapping[str, Outcome]) -> None:
        """Hear that it goes off, and which steps were done before."""

    def step_ended(self, step: Step, outcome: Outcome) -> None:
        """Hear the end of a step."""

    def cell_ended(self, result: CellResult) -> None:
        """Hear the end of a cell."""

    def said(self, text: str) -> None:
        """Hear of something that people should know: a board is out, a step is tried again."""


@dataclass
class TargetProgress:
    """One target: its steps, and how many ended in which way."""

    devices: int
    steps: int = 0
    ended: int = 0
    failed: int = 0
    reused: int = 0


@dataclass
class Progress(Listener):
    """Counts what ended, and estimates what is left from how long steps of the same kind took on the same target."""

    cells: int = 0
    cells_ended: int = 0
    targets: dict[str, TargetProgress] = field(default_factory=dict)
    _open: dict[tuple[str, StepKind], int] = field(default_factory=lambda: defaultdict(int))
    _took_s: dict[tuple[str, StepKind], list[float]] = field(default_factory=lambda: defaultdict(list))

    def began(self, sweep: str, plan: Plan, done: Mapping[str, Outcome]) -> None:  # noqa: ARG002 - the seam's signature
        """Take what there is to do."""
        self.cells = len(plan.cells)
        self.targets = {target.name: TargetProgress(max(1, len(target.devices))) for target in plan.targets}
        for key, step in plan.steps.items():
            place = self.targets[step.target.name]
            place.steps += 1
            if key in done:
                place.ended += 1
                place.reused += 1
                place.failed += done[key].error is not None
            else:
                self._open[step.target.name, step.kind] += 1

    def step_ended(self, step: Step, outcome: Outcome) -> None:
        """Take the end of a step."""
        place, what = self.targets[step.target.name], (step.target.name, step.kind)
        place.ended += 1
        place.failed += outcome.error is not None
        self._open[what] -= 1
        if outcome.claimed_ms is not None:
            self._took_s[what].append((outcome.claimed_ms[1] - outcome.claimed_ms[0]) / 1000)

    def cell_ended(self, result: CellResult) -> None:  # noqa: ARG002 - the seam's signature
        """Take the end of a cell."""
        self.cells_ended += 1

    def left_s(self) -> float | None:
        """Return how long the slowest target still needs; None where nothing is known of what it has to do."""
        estimates = [self._left_s(name, place.devices) for name, place in self.targets.items()]
        known = [estimate for estimate in estimates if estimate is not None]
        return max(known, default=0.0) if len(known) == len(estimates) else None

    def _left_s(self, target: str, devices: int) -> float | None:
        total_s = 0.0
        for (place, kind), count in self._open.items():
            if place != target or count == 0:
                continue
            # One that has done none of these yet is taken for as fast as the others.
            known_s = self._took_s[place, kind] or [
                took for (_, other), list_s in self._took_s.items() if other == kind for took in list_s
            ]
            if not known_s:
                return None
            total_s += count * fmean(known_s)
        return total_s / devices


def first_line(text: str) -> str:
    """Return the first line of a message; the rest is in its run."""
    return text.strip().partition("\n")[0][:300]
