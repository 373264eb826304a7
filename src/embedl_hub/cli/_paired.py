"""``embedl-hub compare --paired``: models measured in turns, now, each held against the first."""

from __future__ import annotations

import dataclasses
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from embedl_hub.cli._output import emit, number, table, working
from embedl_hub.cli._settings import read_settings
from embedl_hub.cli._steps import find_model, open_context
from embedl_hub.comparison import conclusion_of
from embedl_hub.core.component import RunType
from embedl_hub.core.profile import paired_profiler
from embedl_hub.core.steps import components, run_of
from embedl_hub.errors import ConfigError, TrackingError, known
from embedl_hub.tracking import find_home

if TYPE_CHECKING:
    from collections.abc import Sequence

    from embedl_hub.core import HubContext
    from embedl_hub.core.profile import PairedModel, PairedResult
    from embedl_hub.tracking import Run, Store

# What a file of a runtime's own format ends with; everything that a run made tells its toolchain itself.
_SUFFIXES = {".onnx": "onnxruntime", ".tflite": "tflite"}
_BUSY = 0.02


@dataclasses.dataclass(frozen=True)
class Wishes:
    """What is measured, how often and where, and where it is recorded."""

    models: Sequence[str]
    names: Sequence[str]
    samples: int
    device: str | None
    here: bool
    project: str | None
    home: Path | None


def compare_in_turns(wishes: Wishes, *, as_json: bool) -> None:
    """Measure models in turns and show how they compare."""
    chosen = None if wishes.here else wishes.device or read_settings(find_home(wishes.home)).get("device")
    with open_context(wishes.home, wishes.project, here=wishes.here) as ctx:
        component = paired_profiler(toolchain_of(ctx, wishes.models))
        models = [find_model(ctx, component, word) for word in wishes.models]
        step: Any = component()
        with working(f"{component.__name__}: {len(models)} models in turns"):
            result = step.run(ctx, models, device=chosen, samples=wishes.samples)
        run = run_of(ctx, result)
    if as_json:
        emit(as_dict(run, result, wishes.models))
        return
    _show(run, result, [f"{name} {word}" for name, word in zip(wishes.names, wishes.models, strict=True)])


def toolchain_of(ctx: HubContext, models: Sequence[str]) -> str:
    """Return the one toolchain that models belong to."""
    assert ctx.client.store is not None  # noqa: S101 - the command line always tracks
    found = {word: _toolchain(ctx.client.store, word) for word in models}
    if len(set(found.values())) > 1:
        words = "; ".join(f"{word}: {toolchain}" for word, toolchain in found.items())
        raise ConfigError(f"Models in turns must be of one toolchain, but these are not: {words}.")
    return found[models[0]]


def _toolchain(store: Store, word: str) -> str:
    path = Path(word)
    if path.exists():
        files = [path.name] if path.is_file() else [each.name for each in path.iterdir()]
        return _by_suffix(files, word)
    try:
        run = store.run(word)
    except TrackingError as error:
        raise ConfigError(f"{word!r} is neither a file here nor a run: {error}") from error
    for kind in (RunType.COMPILE, RunType.PROFILE, RunType.INFERENCE):
        for toolchain, component in components(kind).items():
            if component.__name__ == run.component:
                return toolchain
    return _by_suffix([artifact.file_name for artifact in run.artifacts.values()], word)


def _by_suffix(files: Sequence[str], word: str) -> str:
    found = {_SUFFIXES[Path(file).suffix] for file in files if Path(file).suffix in _SUFFIXES}
    if len(found) != 1:
        raise ConfigError(
            f"It cannot be told what runs {word!r}. Give a run of compile or profile, or a file that ends with "
            f"{known(_SUFFIXES)}."
        )
    return found.pop()


def as_dict(run: Run, result: PairedResult, models: Sequence[str]) -> dict[str, Any]:
    """Return everything as plain JSON values."""
    return {
        "run": run.id,
        "device": run.device,
        "rounds": result.rounds,
        "waiting_share": result.waiting_share,
        "verdict": result.verdict,
        "verdict_reason": result.verdict_reason,
        "models": [
            {"given": word, **dataclasses.asdict(model), "conclusion": _conclusion(place, model)}
            for place, (word, model) in enumerate(zip(models, result.models, strict=True))
        ],
        "ranking": [{**dataclasses.asdict(each), "is_told_apart": each.is_told_apart} for each in result.ranking],
    }


def _conclusion(place: int, model: PairedModel) -> str:
    return "" if place == 0 else conclusion_of("latency_median", model.ratio)


def _show(run: Run, result: PairedResult, names: Sequence[str]) -> None:
    click.echo(f"{run.id}, on {run.device or 'this machine'}: {result.rounds} rounds, each model once a round")
    rows = [
        (name, number(model.latency_median, "ms"), *_ratio_cells(place, model))
        for place, (name, model) in enumerate(zip(names, result.models, strict=True))
    ]
    table(("model", "latency_median", "against the first", ""), rows, folds=True)
    click.echo(f"From the fastest: {_ranking(result, names)}")
    if (result.waiting_share or 0) > _BUSY:
        click.echo(
            f"! The models stood {result.waiting_share:.0%} of the time in the queue for a processor, while something "
            "else ran; it is in latency_median and not in the ratios."
        )
    if result.verdict != "stable":
        click.echo(f"! The measurement is {result.verdict}: {result.verdict_reason}.")


def _ratio_cells(place: int, model: PairedModel) -> tuple[str, str]:
    ratio = model.ratio
    if place == 0:
        return "", ""
    interval = "" if ratio.low is None or ratio.high is None else f" ({ratio.low:.3f}-{ratio.high:.3f})"
    return f"× {ratio.value:.3f}{interval}", _conclusion(place, model)


def _ranking(result: PairedResult, names: Sequence[str]) -> str:
    words = []
    for each in result.ranking:
        words.append(names[each.number])
        if each.to_next is not None:
            words.append("<" if each.is_told_apart else "≈ (not told apart)")
    return " ".join(words)
