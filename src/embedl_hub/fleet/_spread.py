"""The accuracy of a compiled model over data in parts, each answered by a board that is free; counts add up exactly."""

from __future__ import annotations

from concurrent.futures import FIRST_COMPLETED, Future, wait
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING, Any

from embedl_hub.errors import ConfigError, InvokeError, WorkerLostError, known
from embedl_hub.fleet._engine import Job, Outcome
from embedl_hub.fleet._evaluate import Score, read_answers, read_labels, score
from embedl_hub.fleet._model import Step, StepKind, Target
from embedl_hub.fleet._targets import HERE
from embedl_hub.fleet._threads import Threads
from embedl_hub.tracking import RunType

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping
    from pathlib import Path

    import numpy as np

    from embedl_hub.core import HubContext
    from embedl_hub.fleet._engine import Engine, Workers
    from embedl_hub.tracking import ActiveRun, Run


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
        retries: How often a part is tried again after a board's fault or a lost worker.

    Raises:
        InvokeError: A part could not be answered.
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
        jobs = {part.name: _job(run, model, part, toolchain, target, values or {}) for part in parts}
        with (engine or Threads()).open(ctx, (target,)) as workers:
            answers = _answer(workers, jobs, retries)
        written = {part.name: store.run(answers[part.name]).artifacts["output_file"].to_local(ctx) for part in parts}
        scores = (score(read_answers(written[part.name].local()), part.labels) for part in parts)
        total = sum(scores, Score())
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
    import numpy as np  # noqa: PLC0415 - importing the face must not cost numpy

    from embedl_hub.toolchain.arrays import write_npz  # noqa: PLC0415 - likewise

    if rows < 1:
        raise ConfigError(f"rows is {rows}; a job takes at least one row.")
    right = read_labels(labels)
    try:
        with np.load(data, allow_pickle=False) as file:
            arrays = {name: file[name] for name in file.files}
    except (OSError, ValueError, EOFError, TypeError) as error:
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
        raise ConfigError(f"Run {model.id} compiled no model; it logged: {known(model.artifacts)}.")
    source = model.artifacts["path"].local()
    given = {**values, "input_data": part.path}
    step = Step(part.name, StepKind.INVOKE, toolchain, model.name, source, given, target)
    return Job(run.id, step, compiled=model.id)


@dataclass
class _Tries:
    """Jobs under way, and what they have been through."""

    retries: int
    flying: dict[Future[Outcome], Job] = field(default_factory=dict)

    def again(self, job: Job, reason: str, avoid: frozenset[str]) -> Job:
        """Return a job for another try.

        Raises:
            InvokeError: It has had them all.
        """
        if job.attempt > self.retries:
            raise InvokeError(f"Part {job.step.key} could not be answered, tried {job.attempt} times: {reason}")
        return replace(job, attempt=job.attempt + 1, avoid=job.avoid | avoid)


def _answer(workers: Workers, jobs: Mapping[str, Job], retries: int) -> dict[str, str]:
    """Have every part answered and return the run of each."""
    tries = _Tries(retries)
    tries.flying = {workers.submit(job): job for job in jobs.values()}
    answers: dict[str, str] = {}
    while tries.flying:
        done, _ = wait(tries.flying, return_when=FIRST_COMPLETED)
        for future in done:
            job = tries.flying.pop(future)
            again = _heard(future, job, tries, answers)
            if again is not None:
                tries.flying[workers.submit(again)] = again
    return answers


def _heard(future: Future[Outcome], job: Job, tries: _Tries, answers: dict[str, str]) -> Job | None:
    try:
        outcome = future.result()
    except WorkerLostError as error:
        return tries.again(job, str(error), frozenset())
    if outcome.error is None and outcome.run_id is not None:
        answers[job.step.key] = outcome.run_id
        return None
    if not outcome.is_boards_fault:
        raise InvokeError(f"Part {job.step.key} could not be answered: {outcome.error}")
    avoid = frozenset() if outcome.device is None else frozenset({outcome.device})
    return tries.again(job, str(outcome.error), avoid)
