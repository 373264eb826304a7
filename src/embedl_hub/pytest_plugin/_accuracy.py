"""``assert_accuracy``: a model's answers on a device, against labels and against another model's."""

from __future__ import annotations

import math
import os
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeAlias

from embedl_device.readers import UnreadableError, read_arrays, read_npz
from embedl_hub.comparison import Finding, Outcome, Reach
from embedl_hub.core.component import RunType
from embedl_hub.core.steps import run_of
from embedl_hub.core.toolchain import find_component
from embedl_hub.errors import ConfigError, quoted_list
from embedl_hub.pytest_plugin._check import Check, Model, Subject, check_share, place_name, run_ids
from embedl_hub.pytest_plugin._running import current_test

if TYPE_CHECKING:
    import numpy as np

    from embedl_hub.tracking import Run

    Arrays = Mapping[str, np.ndarray]
    Metric: TypeAlias = "str | Callable[[Arrays, Any], float]"

_Z_95 = 1.96
_TOP_1 = "accuracy"


def assert_accuracy(
    model: Model,
    data: Arrays | str | os.PathLike[str],
    labels: Any = None,  # noqa: ANN401 - an array, a list, a path, or what the metric takes
    *,
    metric: Metric = _TOP_1,
    at_least: float | None = None,
    no_worse_than: Model | None = None,
    within: float = 0.0,
    device: str | None = None,
) -> None:
    """Fail when a model's answers on a device are worse than is asked for.

    Args:
        model: A model file, the id of a run, or what a compiler returned.
        data: The inputs by name, samples on the first axis, or an .npz file of them; all samples are run.
        labels: The right class of each sample: an array, or an .npy file.
        metric: ``accuracy``, the share of samples whose largest score in the first output is their label's; or a
            function of the outputs by name and the labels that returns a number, of which more is better.
        at_least: The least that is fine.
        no_worse_than: A model that answers the same data on the same device; at least what it reaches is fine,
        within: less this.
        device: Where to run; the test's board, else ``--hub-device``, else this machine if not given.
    """
    __tracebackhide__ = True
    check = Check(current_test("assert_accuracy"), device)

    def find() -> Finding:
        if (at_least is None) == (no_worse_than is None):
            raise ConfigError("assert_accuracy takes either at_least=0.9 or no_worse_than=MODEL, one of them.")
        for name, share in (("at_least", at_least), ("within", within)) if metric == _TOP_1 else ():
            if share is not None:
                check_share(name, share)
        scored = _Scores(check, _inputs(data), _labels(labels) if metric == _TOP_1 else labels, metric)
        subject = check.subject(model)
        if no_worse_than is None:
            assert at_least is not None  # noqa: S101 - one of them is given
            return scored.against(subject, at_least)
        return scored.against_model(subject, check.subject(no_worse_than), within)

    check.finish(find, strict=None)


def _inputs(data: Arrays | str | os.PathLike[str]) -> Arrays:
    if isinstance(data, Mapping):
        return data
    try:
        return read_npz(Path(data))
    except (OSError, UnreadableError) as error:
        raise ConfigError(f"The inputs in {os.fspath(data)} cannot be read: {error}.") from error


def _labels(labels: Any) -> np.ndarray:  # noqa: ANN401 - what a user gave
    import numpy as np  # noqa: PLC0415 - on use

    if labels is None:
        raise ConfigError(
            f"The metric {_TOP_1!r} needs the labels: assert_accuracy(model, data, labels, ...); or give a function "
            "as metric."
        )
    if not isinstance(labels, str | os.PathLike):
        return np.asarray(labels)
    try:
        loaded = read_arrays(Path(labels))
    except (OSError, UnreadableError) as error:
        raise ConfigError(f"The labels in {os.fspath(labels)} cannot be read: {error}.") from error
    if isinstance(loaded, dict):
        raise ConfigError(f"{os.fspath(labels)} holds {quoted_list(loaded)}; labels are one array, an .npy file.")
    return loaded


class _Scores:
    """Runs models on the same data and scores what they answer."""

    def __init__(self, check: Check, inputs: Arrays, labels: Any, metric: Metric) -> None:  # noqa: ANN401 - a metric's
        if isinstance(metric, str) and metric != _TOP_1:
            raise ConfigError(
                f"There is no metric {metric!r}; known: {quoted_list([_TOP_1])}, or give a function of the outputs and "
                "the labels."
            )
        self._check, self._inputs, self._labels, self._metric = check, inputs, labels, metric
        self._name = metric if isinstance(metric, str) else getattr(metric, "__name__", "the metric")

    def _score(self, subject: Subject) -> tuple[float, np.ndarray | None, Run]:
        """Return a model's score, which samples it got right where that is counted, and the run of type EVAL."""
        hub = self._check.hub
        step: Any = find_component(RunType.INFERENCE, subject.toolchain.name)()
        answers = step.run(hub, subject.model, self._inputs, device=self._check.device)
        right = _right(answers.output, self._labels) if self._metric == _TOP_1 else None
        if right is not None:
            value = float(right.mean())
        else:
            assert callable(self._metric)  # noqa: S101 - checked before
            value = float(self._metric(answers.output, self._labels))
        if not math.isfinite(value):
            raise ConfigError(f"{self._name} of {subject.name} is {value}; a number is needed.")
        with hub.client.start_run(RunType.EVAL, f"evaluate {subject.name}"[:100]) as run:
            run.log_tag("compared_run", run_of(hub, answers).id)
            run.log_artifact(answers.output_file, name="input", ctx=hub)
            run.log_metric(self._name, value)
            if right is not None:
                run.log_metric("evaluated", float(right.size))
        return value, right, self._check.store.run(run.id)

    def against(self, subject: Subject, at_least: float) -> Finding:
        """Hold a model against a number."""
        value, right, run = self._score(subject)
        low, high = (None, None) if right is None else _wilson(int(right.sum()), right.size)
        reach = Reach(value, at_least, low, high, None, "", is_more_better=True)
        samples = "" if right is None else f", 95 % interval of {right.size} samples"
        figures = ((self._name, f"{reach}{samples}"), ("at least", f"{at_least:.3f}"))
        is_fine = value >= at_least
        reason = f"{value:.4f} is {'at least' if is_fine else 'less than'} {at_least:g}"
        return self._finding(subject, reason, figures, (("candidate", run),), reach, is_fine=is_fine)

    def against_model(self, subject: Subject, baseline: Subject, within: float) -> Finding:
        """Hold a model against another on the same samples."""
        base, base_right, base_run = self._score(baseline)
        value, right, run = self._score(subject)
        low = high = None
        if right is not None and base_right is not None:
            low, high = _difference(right, base_right)
        reach = Reach(value - base, -within, low, high, 0.0, "", is_more_better=True)
        figures = (
            (f"{self._name}, difference", f"{reach}{'' if low is None else ', 95 % interval'}"),
            ("within", f"{within:.3f}"),
            ("candidate", f"{value:.4f}"),
            (f"baseline {baseline.name}", f"{base:.4f}"),
        )
        # Exactly what is allowed is fine, however it rounds.
        is_fine = value - base >= -within - 1e-12
        reason = f"{value:.4f} against {base:.4f}: {'within' if is_fine else 'below by more than'} {within:g}"
        runs = (("candidate", run), ("baseline", base_run))
        return self._finding(subject, reason, figures, runs, reach, is_fine=is_fine)

    def _finding(
        self,
        subject: Subject,
        reason: str,
        figures: tuple[tuple[str, str], ...],
        runs: tuple[tuple[str, Run], ...],
        reach: Reach,
        *,
        is_fine: bool,
    ) -> Finding:
        outcome = Outcome.OK if is_fine else Outcome.WORSE
        place = place_name(self._check.device)
        return Finding(f"{self._name} of {subject.name}", outcome, reason, figures, place, run_ids(*runs), (), reach)


def _right(outputs: Arrays, labels: np.ndarray) -> np.ndarray:
    import numpy as np  # noqa: PLC0415 - on use

    name, first = next(iter(outputs.items()))
    answers = np.asarray(first)
    if answers.ndim < 2 or answers.shape[:-1] != labels.shape or not labels.size:
        raise ConfigError(
            f"Output {name!r} has the shape {list(answers.shape)} and the labels {list(labels.shape)}: there must be "
            f"one label for each row of scores, {list(answers.shape[:-1])}."
        )
    return np.asarray(answers.argmax(axis=-1) == labels)


def _wilson(right: int, count: int) -> tuple[float, float]:
    """Return the 95 % interval of a share, right also near 0 and 1."""
    share, weight = right / count, _Z_95**2 / count
    middle = (share + weight / 2) / (1 + weight)
    reach = _Z_95 * math.sqrt(share * (1 - share) / count + weight / (4 * count)) / (1 + weight)
    return max(middle - reach, 0.0), min(middle + reach, 1.0)


def _difference(right: np.ndarray, base: np.ndarray) -> tuple[float, float]:
    """Return the 95 % interval of a difference of shares of the same samples: those that changed count."""
    count = right.size
    gained, lost = int((right & ~base).sum()), int((base & ~right).sum())
    difference = (gained - lost) / count
    # One changed sample more on each side keeps the interval from being nothing where nothing changed.
    error = math.sqrt(gained + lost + 1 - (gained - lost) ** 2 / count) / count
    return difference - _Z_95 * error, difference + _Z_95 * error
