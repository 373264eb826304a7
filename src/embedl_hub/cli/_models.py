"""Models that are measured in one of the ways that all toolchains share: from words to compiled models, and a run."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from embedl_hub.cli._output import home_option, json_option, working
from embedl_hub.cli._steps import chosen_device, open_context
from embedl_hub.core.component import RunType
from embedl_hub.core.lookup import find_model, toolchain_of
from embedl_hub.core.steps import run_of
from embedl_hub.core.toolchain import find_component

if TYPE_CHECKING:
    from embedl_device.schema import Deferred
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
    with open_context(where.home, where.project, here=where.here, device=chosen) as hub:
        profiler = find_component(RunType.PROFILE, toolchain_of(hub, words))
        models = [find_model(hub, profiler, word) for word in words]
        step: Any = component()
        takes_several = "models" in component.run_signature().parameters
        place = "this machine" if where.here else chosen or "the first compatible device"
        with working(f"{component.__name__}: {', '.join(words)} on {place}"):
            result = step.run(hub, models if takes_several else models[0], device=chosen, **options)
        return run_of(hub, result), result
