"""Models that are measured in one of the ways that all toolchains share: from words to compiled models, and a run."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from embedl_hub.cli._output import home_option, json_option, working
from embedl_hub.cli._steps import chosen_device, find_model, find_run, open_context
from embedl_hub.core.component import RunType
from embedl_hub.core.steps import run_of
from embedl_hub.core.toolchain import find_component, toolchains
from embedl_hub.errors import ConfigError, quoted_list

if TYPE_CHECKING:
    from embedl_device.schema import Deferred
    from embedl_hub.core import HubContext
    from embedl_hub.core.component import Component
    from embedl_hub.tracking import Run


@dataclass(frozen=True)
class Where:
    """Where a measurement runs, and where it is recorded."""

    device: str | None
    here: bool
    project: str | None
    home: Path | None


_OPTIONS = (
    click.option("--device", help="The device; the one in use, else the first compatible one, if not given."),
    click.option("--here", is_flag=True, help="On this machine, whatever devices there are."),
    click.option("--project", help="Record under this project; the one in use if not given."),
    home_option,
)


def where_options(shape: Deferred) -> Callable[[Callable[..., Any]], Callable[..., Any]]:
    """Give a command the options of `Where`, and ``--json``, which prints this."""

    def decorate(function: Callable[..., Any]) -> Callable[..., Any]:
        for option in (json_option(shape), *reversed(_OPTIONS)):
            function = option(function)
        return function

    return decorate


def measure(component: type[Component], words: Sequence[str], where: Where, **options: object) -> tuple[Run, Any]:
    """Let a component measure the models that words name, one or a list as it takes, and return its run and result."""
    chosen = chosen_device(where.home, where.device, here=where.here)
    with open_context(where.home, where.project, here=where.here) as hub:
        profiler = find_component(RunType.PROFILE, toolchain_of(hub, words))
        models = [find_model(hub, profiler, word) for word in words]
        step: Any = component()
        takes_several = "models" in component.run_signature().parameters
        place = "this machine" if where.here else chosen or "the first compatible device"
        with working(f"{component.__name__}: {', '.join(words)} on {place}"):
            result = step.run(hub, models if takes_several else models[0], device=chosen, **options)
        return run_of(hub, result), result


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
    # The longest end counts: net_vela.tflite ends with .tflite too.
    ends = [max((end for end in by_suffix if file.endswith(end)), key=len, default=None) for file in files]
    names = {by_suffix[end] for end in ends if end is not None}
    if len(names) != 1:
        raise ConfigError(
            f"It cannot be told what runs {word!r}. Give a run of compile or profile, or a file that ends with "
            f"{quoted_list(by_suffix)}."
        )
    return names.pop()
