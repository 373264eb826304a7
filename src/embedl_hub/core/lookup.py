"""Models by what a user writes: a file, or the id of a run that made or used one."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from embedl_hub.core.component import Component, RunType
from embedl_hub.core.steps import keep_model, model_of
from embedl_hub.core.toolchain import toolchains
from embedl_hub.errors import ConfigError, TrackingError, quoted_list

if TYPE_CHECKING:
    from embedl_hub.core.context import HubContext
    from embedl_hub.tracking import Run


def find_model(ctx: HubContext, component: type[Component], model: str) -> Any:  # noqa: ANN401 - a path or a compiled model
    """Return what a component takes as its model: from a file, or from a run."""
    wants_path = component.run_type is RunType.COMPILE
    if Path(model).exists():
        return Path(model) if wants_path else keep_model(ctx, component, Path(model))
    return model_of(ctx, component, find_run(ctx, model))


def find_run(ctx: HubContext, model: str) -> Run:
    """Return the run that a word which is no file names."""
    assert ctx.client.store is not None  # noqa: S101 - whoever asks tracks
    try:
        return ctx.client.store.run(model)
    except TrackingError as error:
        raise ConfigError(f"{model!r} is neither a file here nor a run: {error}") from error


def toolchain_of(ctx: HubContext, models: Sequence[str]) -> str:
    """Return the one toolchain that models belong to."""
    found = {word: _toolchain(ctx, word) for word in models}
    if len(set(found.values())) > 1:
        listed = "; ".join(f"{word}: {toolchain}" for word, toolchain in found.items())
        raise ConfigError(f"The models must be of one toolchain, but these are not: {listed}.")
    return found[models[0]]


def _toolchain(ctx: HubContext, word: str) -> str:
    path = Path(word)
    if path.exists():
        files = [path.name] if path.is_file() else [each.name for each in path.iterdir()]
        return _by_suffix(files, word)
    run = find_run(ctx, word)
    for toolchain in toolchains():
        if run.component in {step.__name__ for step in toolchain.components}:
            return toolchain.name
    return _by_suffix([artifact.file_name for artifact in run.artifacts.values()], word)


def _by_suffix(files: Sequence[str], word: str) -> str:
    by_suffix = {suffix: each.name for each in toolchains() for suffix in each.suffixes}
    # The longest end counts: one ending may end with another.
    ends = [max((end for end in by_suffix if file.endswith(end)), key=len, default=None) for file in files]
    names = {by_suffix[end] for end in ends if end is not None}
    if len(names) != 1:
        raise ConfigError(
            f"It cannot be told what runs {word!r}. Give a run of compile or profile, or a file that ends with "
            f"{quoted_list(by_suffix)}."
        )
    return names.pop()
