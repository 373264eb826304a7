"""How good a model's answers are: counts that add up, kept as runs that lead back to the answers."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Iterator, Mapping
from concurrent.futures import FIRST_COMPLETED, wait
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

from embedl_device.readers import UnreadableError, read_arrays, read_npz
from embedl_hub.core.invoke import compare_outputs
from embedl_hub.core.steps import HERE
from embedl_hub.errors import ConfigError, HubError, InvokeError, WorkerLostError, quoted_list
from embedl_hub.fleet._model import Job, Listener, Outcome, Plan, Step, StepKind, Target, first_line
from embedl_hub.fleet._threads import Threads
from embedl_hub.tracking import ActiveRun, Run, RunStatus, RunType

if TYPE_CHECKING:
    import numpy as np

    from embedl_hub.core import HubContext
    from embedl_hub.fleet._engine import Engine, Workers

EVALUATES = "evaluates"  # the tag of an evaluation: the key of the step whose answers it looked at


@dataclass(frozen=True)
class Score:
    """How many answers were right; scores of parts of the data add up to that of the whole."""

    right: int = 0  # how often the largest score was the label's
    count: int = 0  # of how many

    def __add__(self, other: Score) -> Score:
        return Score(self.right + other.right, self.count + other.count)

    @property
    def accuracy(self) -> float:
        """The share of right answers; of none it is not a number."""
        return self.right / self.count if self.count else float("nan")


def score(outputs: Mapping[str, np.ndarray], labels: np.ndarray) -> Score:
    """Count the right answers: the largest of the last axis of the first output, against one label for each."""
    import numpy as np  # noqa: PLC0415 - importing the face must not cost numpy

    if not outputs:
        raise ConfigError("There are no outputs to score.")
    name, first = next(iter(outputs.items()))
    answers = np.asarray(first)
    if answers.ndim < 2 or answers.shape[:-1] != np.shape(labels):
        raise ConfigError(
            f"Output {name!r} has the shape {list(answers.shape)} and the labels {list(np.shape(labels))}: "
            f"there must be one label for each row of scores, {list(answers.shape[:-1])}."
        )
    right = answers.argmax(axis=-1) == np.asarray(labels)
    return Score(int(right.sum()), int(right.size))


def read_labels(path: Path) -> np.ndarray:
    """Return the labels of a file: an .npy, or an .npz with one array."""
    try:
        loaded = read_arrays(path)
    except (OSError, UnreadableError) as error:
        raise ConfigError(f"The labels in {path} cannot be read: {error}.") from error
    if not isinstance(loaded, dict):
        return loaded
    if len(loaded) != 1:
        raise ConfigError(f"{path} holds {quoted_list(loaded)}; labels are one array.")
    return next(iter(loaded.values()))


def evaluate(
    ctx: HubContext, sweep: str, step: Step, answers: Run, *, labels: Path | None, reference: Run | None
) -> dict[str, float]:
    """Score the answers of an invoke step's run, keep that as a run of type EVAL, and return its numbers.

    Labels are None where nobody knows the right answers; ``reference`` is a run whose answers to compare with.
    """
    output = answers.artifacts["output_file"].to_local(ctx)
    arrays = read_answers(output.local())
    numbers: dict[str, float] = {}
    with ctx.client.start_run(RunType.EVAL, f"evaluate {step.model}"[:100]) as run:
        run.log_batch(tags={"sweep": sweep, EVALUATES: step.key, "model": step.model, "compared_run": answers.id})
        run.log_artifact(output, name="input", ctx=ctx)
        if labels is not None:
            total = score(arrays, read_labels(labels))
            numbers |= {"accuracy": total.accuracy, "evaluated": float(total.count)}
        if reference is not None:
            right = reference.artifacts["output_file"].to_local(ctx)
            run.log_artifact(right, name="reference", ctx=ctx)
            numbers |= _agreement(run, arrays, read_answers(right.local()))
        run.log_batch(metrics=[(name, value, None) for name, value in numbers.items()])
    return numbers


def _agreement(
    run: ActiveRun, answers: Mapping[str, np.ndarray], reference: Mapping[str, np.ndarray]
) -> dict[str, float]:
    """Compare answers; where that cannot be done the reason is kept, and what is known of them otherwise stays."""
    if len(answers) == len(reference) == 1:
        # Files of one model that were written apart may call its one output otherwise.
        reference = dict(zip(answers, reference.values(), strict=True))
    try:
        found = compare_outputs(answers, reference)
    except InvokeError as error:
        run.log_param("not_compared", str(error))
        return {}
    numbers = {"cosine": found.cosine, "max_abs_error": found.max_abs_error}
    return numbers if found.top1_agreement is None else {**numbers, "top1_agreement": found.top1_agreement}


def read_answers(path: Path) -> dict[str, np.ndarray]:
    """Return the arrays of a file that an invoke step wrote, by name."""
    try:
        return read_npz(path)
    except (OSError, UnreadableError) as error:
        raise ConfigError(f"The answers in {path} cannot be read: {error}. Run the step again.") from error


class Judge:
    """Scores answers as soon as both they and those they are compared with are there."""

    def __init__(
        self, ctx: HubContext, plan: Plan, sweep_id: str, outcomes: Mapping[str, Outcome], listener: Listener
    ) -> None:
        self._ctx = ctx
        self._plan = plan
        self._id = sweep_id
        self._outcomes = outcomes
        self._listener = listener
        self.scores: dict[str, Mapping[str, float]] = {}
        self._reference = _references(plan)
        self._waiting: dict[str, list[str]] = defaultdict(list)

    def hear(self, step: Step, outcome: Outcome) -> None:
        """Take the end of a step; only answers matter here."""
        if step.kind is not StepKind.INVOKE:
            return
        reference = self._reference.get(step.key)
        if outcome.error is None and reference is not None and reference not in self._outcomes:
            self._waiting[reference].append(step.key)
        elif outcome.error is None:
            self._judge(step)
        for key in self._waiting.pop(step.key, []):
            self._judge(self._plan.steps[key])

    def judge_rest(self) -> None:
        """Score what still waits for answers that never came."""
        for keys in self._waiting.values():
            for key in keys:
                self._judge(self._plan.steps[key])

    def _judge(self, step: Step) -> None:
        labels = self._plan.labels.get(step.model)
        reference = self._reference.get(step.key)
        good = reference if reference is not None and self._outcomes[reference].error is None else None
        if labels is None and good is None:
            return
        store = self._ctx.client.store
        assert store is not None  # noqa: S101 - a sweep always tracks
        try:
            for run in store.tagged(EVALUATES, [step.key]):
                if run.tags.get("sweep") == self._id and run.status is RunStatus.FINISHED:
                    self.scores[step.key] = {metric.name: metric.value for metric in run.metrics}
                    return
            answers = store.run(str(self._outcomes[step.key].run_id))
            right = None if good is None else store.run(str(self._outcomes[good].run_id))
            self.scores[step.key] = evaluate(self._ctx, self._id, step, answers, labels=labels, reference=right)
        except HubError as error:
            self._listener.said(f"The answers of {step.title} could not be scored: {first_line(str(error))}")


def _references(plan: Plan) -> dict[str, str]:
    """Return, for the answers of each cell, the step whose answers they are compared with."""
    name = plan.reference
    invokes = {
        (cell.model, cell.option, cell.target): key
        for cell in plan.cells
        for key in cell.steps
        if plan.steps[key].kind is StepKind.INVOKE
    }
    return {
        key: reference
        for (model, option, target), key in invokes.items()
        if option != name and (reference := invokes.get((model, name, target))) not in (None, key)
    }


def evaluate_spread(  # noqa: PLR0913 - what is asked, of whom, and by whom
    ctx: HubContext,
    compiled: str,
    data: Path,
    labels: Path,
    *,
    rows: int,
    toolchain: str,
    target: Target | None = None,
    engine: Engine | None = None,
    values: Mapping[str, Any] | None = None,
    retries: int = 1,
) -> Score:
    """Score a compiled model over data in parts and return the sum: the count of one pass over all of it.

    Args:
        ctx: An open context with a store.
        compiled: The run that compiled the model.
        data: The inputs, an .npz with one array for each; the first axis counts.
        labels: The right answer to each row, an .npy.
        rows: How many rows one job takes; for a model with a fixed batch, that batch.
        toolchain: Whose component answers: ``onnxruntime`` ...
        target: Equal boards that share the work; this machine if not given.
        engine: Who places the work; threads of this process if not given.
        values: Further keywords of the component that answers.
        retries: How often a part is tried again after a board's fault or a lost worker; then it is an InvokeError.
    """
    store = ctx.client.store
    if store is None:
        raise ConfigError("Answers are kept in a store: open the context with tracking.")
    model = store.run(compiled)
    target = target or Target(HERE, ())
    with ctx.client.start_run(RunType.EVAL, f"evaluate {model.name}"[:100]) as run:
        parts = list(_parts(run, data, labels, rows))
        run.log_batch(
            {"rows": rows, "parts": len(parts), "target": target.name}, tags={"sweep": run.id, "compared_run": model.id}
        )
        jobs = [_job(run, model, part, toolchain, target, values or {}) for part in parts]
        with (engine or Threads()).open(ctx, (target,)) as workers:
            answers = _answer(workers, jobs, retries)
        total = Score()
        for part in parts:
            output = store.run(answers[part.name]).artifacts["output_file"].to_local(ctx)
            total += score(read_answers(output.local()), part.labels)
        metrics = [("accuracy", total.accuracy, None), ("right", float(total.right), None)]
        run.log_batch(metrics=[*metrics, ("evaluated", float(total.count), None)])
    return total


@dataclass(frozen=True, eq=False)
class _Part:
    """Some rows of the data."""

    name: str
    path: Path
    labels: np.ndarray


def _parts(run: ActiveRun, data: Path, labels: Path, rows: int) -> Iterator[_Part]:
    from embedl_hub.models.calibration import write_npz  # noqa: PLC0415 - importing the face must not cost numpy

    if rows < 1:
        raise ConfigError(f"rows is {rows}; a job takes at least one row.")
    right = read_labels(labels)
    try:
        arrays = read_npz(data)
    except (OSError, UnreadableError) as error:
        raise ConfigError(f"The inputs in {data} cannot be read: {error}.") from error
    lengths = {name: len(array) if array.ndim else 0 for name, array in arrays.items()}
    if set(lengths.values()) != {len(right)} or not len(right):
        raise ConfigError(f"{data} has rows {lengths} and {labels} {len(right)}: there must be a label for each row.")
    for number, start in enumerate(range(0, len(right), rows)):
        path = run.artifact_dir / f"part-{number}.npz"
        write_npz(path, {name: array[start : start + rows] for name, array in arrays.items()})
        yield _Part(f"{run.id}-{number}", path, right[start : start + rows])


def _job(run: ActiveRun, model: Run, part: _Part, toolchain: str, target: Target, values: Mapping[str, Any]) -> Job:
    if "path" not in model.artifacts:
        raise ConfigError(f"Run {model.id} compiled no model; it logged: {quoted_list(model.artifacts)}.")
    source = model.artifacts["path"].local()
    given = {**values, "input_data": part.path}
    step = Step(part.name, StepKind.INVOKE, toolchain, model.name, source, given, target)
    return Job(run.id, step, compiled=model.id)


def _answer(workers: Workers, jobs: Iterable[Job], retries: int) -> dict[str, str]:
    """Have every part answered and return the run of each."""
    flying = {workers.submit(job): job for job in jobs}
    answers: dict[str, str] = {}
    while flying:
        done, _ = wait(flying, return_when=FIRST_COMPLETED)
        for future in done:
            job = flying.pop(future)
            try:
                outcome = future.result()
            except WorkerLostError as error:
                outcome = Outcome(job.step.key, None, str(error), is_boards_fault=True)
            if outcome.error is None and outcome.run_id is not None:
                answers[job.step.key] = outcome.run_id
            else:
                again = _retry(job, outcome, retries)
                flying[workers.submit(again)] = again
    return answers


def _retry(job: Job, outcome: Outcome, retries: int) -> Job:
    """Return a job for another try, elsewhere if possible."""
    if not outcome.is_boards_fault:
        raise InvokeError(f"Part {job.step.key} could not be answered: {outcome.error}")
    if job.attempt > retries:
        raise InvokeError(f"Part {job.step.key} could not be answered, tried {job.attempt} times: {outcome.error}")
    return replace(job, attempt=job.attempt + 1, avoid=job.avoid | ({outcome.device} if outcome.device else set()))
