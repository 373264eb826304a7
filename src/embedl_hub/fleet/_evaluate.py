"""How good a model's answers are: counts that can be added up, kept as a run that leads back to the answers."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

from embedl_hub.core.invoke import compare_outputs
from embedl_hub.errors import ConfigError, known
from embedl_hub.tracking import RunType

if TYPE_CHECKING:
    from collections.abc import Mapping
    from pathlib import Path

    import numpy as np

    from embedl_hub.core import HubContext
    from embedl_hub.fleet._model import Step
    from embedl_hub.tracking import Run

EVALUATES = "evaluates"
"""The tag of an evaluation: the key of the step whose answers it looked at."""


@dataclass(frozen=True)
class Score:
    """How many answers were right; scores of parts of the data add up to that of the whole.

    Attributes:
        right: How often the largest score was the label's.
        count: Of how many.
    """

    right: int = 0
    count: int = 0

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
    import numpy as np  # noqa: PLC0415 - importing the face must not cost numpy

    try:
        loaded = np.load(path, allow_pickle=False)
        if isinstance(loaded, np.ndarray):
            return loaded
        with loaded:
            if len(loaded.files) == 1:
                labels: np.ndarray = loaded[loaded.files[0]]
                return labels
            held = known(loaded.files)
    except (OSError, ValueError, EOFError) as error:
        raise ConfigError(f"The labels in {path} cannot be read: {error}.") from error
    raise ConfigError(f"{path} holds {held}; labels are one array.")


def evaluate(
    ctx: HubContext, sweep: str, step: Step, answers: Run, *, labels: Path | None, reference: Run | None
) -> dict[str, float]:
    """Score the answers of a run, keep it as a run of type EVAL, and return its numbers.

    Args:
        ctx: An open context.
        sweep: The sweep's id, for the tag.
        step: The invoke step that answered.
        answers: Its run.
        labels: The right answers; None where nobody knows them.
        reference: The run whose answers these are compared with.
    """
    output = answers.artifacts["output_file"].to_local(ctx)
    arrays = read_answers(output.local())
    numbers: dict[str, float] = {}
    with ctx.client.start_run(RunType.EVAL, f"evaluate {step.model}"[:100]) as run:
        run.log_batch(tags={"sweep": sweep, EVALUATES: step.key, "model": step.model, "compared_run": answers.id})
        run.log_artifact(output, name="input", ctx=ctx)
        if labels is not None:
            found = score(arrays, read_labels(labels))
            numbers |= {"accuracy": found.accuracy, "evaluated": float(found.count)}
        if reference is not None:
            right = reference.artifacts["output_file"].to_local(ctx)
            run.log_artifact(right, name="reference", ctx=ctx)
            comparison = compare_outputs(arrays, read_answers(right.local()))
            numbers |= {"cosine": comparison.cosine, "max_abs_error": comparison.max_abs_error}
            if comparison.top1_agreement is not None:
                numbers["top1_agreement"] = comparison.top1_agreement
        run.log_batch(metrics=[(name, value, None) for name, value in numbers.items()])
    return numbers


def read_answers(path: Path) -> dict[str, np.ndarray]:
    """Return the arrays of a file that an invoke step wrote, by name."""
    import numpy as np  # noqa: PLC0415 - importing the face must not cost numpy

    with np.load(path, allow_pickle=False) as arrays:
        return {name: arrays[name] for name in arrays.files}
