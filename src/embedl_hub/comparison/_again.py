"""Recorded profiles measured again: the same model, device and options; and the baseline that a word names."""

from __future__ import annotations

import contextlib
import dataclasses
import shlex
from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Any

from embedl_hub.core.component import Component, RunType
from embedl_hub.core.lookup import toolchain_of
from embedl_hub.core.profile import ColdStartProfiler, SustainedProfiler
from embedl_hub.core.steps import HERE, model_of, options_of, read_arrays, run_of, where_measured
from embedl_hub.core.toolchain import components, find_component
from embedl_hub.errors import ConfigError, TrackingError, quoted_list
from embedl_hub.tracking import Run, Store, equal

if TYPE_CHECKING:
    from embedl_hub.core import HubContext
    from embedl_hub.core.device import Device


_MOST_TAGGED = 100


def find_baseline(
    store: Store, word: str, project: str, run_type: str, *, but: str | None = None, model: str | None = None
) -> Run:
    """Return a run by its id, or the newest finished one of a project and type with a tag.

    Args:
        store: Where to look.
        word: A run's id, or TAG=VALUE.
        project: The project of a tagged run.
        run_type: Its type.
        but: The id of a run that is not meant.
        model: The file name of the model that a tagged run measured; any if not given.
    """
    name, equals, value = word.partition("=")
    if not equals:
        return store.run(word)
    where = [equal("project", project), equal("type", run_type), equal("tags", value, name=name), "status = 'FINISHED'"]
    if but is not None:
        where.append(f"not {equal('id', but)}")
    others: set[str] = set()
    for found in store.find(" and ".join(where), limit=1 if model is None else _MOST_TAGGED).runs:
        run = store.run(found.id)
        measured = _model_name(run)
        if model is None or measured == model.replace(".compiled.", "."):
            return run
        others.add(measured)
    if others:
        raise TrackingError(
            f"No {run_type} run of project {project!r} with the tag {name}={value} measured {model!r}; they measured "
            f"{quoted_list(others)}. Record this model too, or name the run to compare with by its id."
        )
    home = shlex.quote(str(store.home))
    raise TrackingError(
        f"No finished {run_type} run of project {project!r} has the tag {name}={value}. "
        f"Record one: pytest --hub-record {name}={value} --hub-home {home} for tests, or "
        f"embedl-hub gate MODEL --baseline {name}={value} --record --project {project} --home {home}"
    )


def _model_name(run: Run) -> str:
    model = run.artifacts.get("input")
    return "" if model is None else model.title.replace(".compiled.", ".")


def without_layers(device: Device) -> Device:
    """Leave the layers out of repeats, where a kind of device has that setting: only the metric is asked for."""
    config = device.provider_config
    if config is None or "layer_runs" not in config.__dataclass_fields__:
        return device
    return dataclasses.replace(device, provider_config=dataclasses.replace(config, layer_runs=0))  # type: ignore[call-arg]


_OF_ALL: tuple[type[Component], ...] = (ColdStartProfiler, SustainedProfiler)
"""The profilers of one model that are the same for all toolchains."""


class Again:
    """Measures a recorded profile again: the same model, device and options."""

    def __init__(
        self,
        ctx: HubContext,
        input_data: tuple[str, ...] = (),
        *,
        device: str | None = None,
        here: bool = False,
        while_measuring: Callable[[str], contextlib.AbstractContextManager[object]] = contextlib.nullcontext,
    ) -> None:
        self._ctx = ctx
        self._data = read_arrays(input_data) if input_data else None
        self._device, self._here = device, here
        self._while_measuring = while_measuring

    def place(self, run: Run) -> str:
        """Return the device that a run is measured again on: where it was measured, unless told otherwise."""
        return where_measured(self._ctx, run, device=self._device, here=self._here) or HERE

    def places(self, runs: Sequence[Run]) -> str:
        """Return where runs are measured again, in words."""
        names = dict.fromkeys(self.place(run) for run in runs)
        return " and ".join("this machine" if name == HERE else f"device {name}" for name in names)

    def __call__(self, run: Run) -> Run:
        component, model, options = self.plan(run)
        step: Any = component(name=f"gate: {run.name}"[:100])
        with self._while_measuring(f"measuring {run.id} again"):
            result = step.run(self._ctx, model, **options)
        repeat = run_of(self._ctx, result)
        # Kept for whoever doubts the answer, but out of the user's lists, where they would bury everything else.
        if (store := self._ctx.client.store) is not None:
            store.archive(repeat.id)
        return repeat

    def plan(self, run: Run) -> tuple[type[Component], Any, dict[str, object]]:
        """Return what to run again, or say why it cannot be."""
        found = {each.__name__: each for each in (*components(RunType.PROFILE).values(), *_OF_ALL)}
        if run.component not in found:
            raise ConfigError(
                f"Run {run.id} was made by {run.component!r}, which is not measured again here; known: "
                f"{quoted_list(found)}. --no-repeat compares the records alone."
            )
        component = found[run.component]
        place = self.place(run)
        # One for all toolchains does not say whose models it takes; the toolchain's own profiler does.
        profiler = component
        if component in _OF_ALL:
            profiler = find_component(RunType.PROFILE, toolchain_of(self._ctx, [run.id]))
        model = model_of(self._ctx, profiler, run)
        model.path.to_local(self._ctx)
        return component, model, {"device": place, **self._options(component, run)}

    def _options(self, component: type[Component], run: Run) -> dict[str, object]:
        options: dict[str, object] = {}
        for option in options_of(component):
            value = run.params[option.name].value if option.name in run.params else None
            if option.name == "input_data":
                if value is not None and self._data is None:
                    raise ConfigError(
                        f"Run {run.id} was measured on data of your own, which is not in its record; "
                        "give it with --input-data."
                    )
                value = self._data
            if value is not None:
                options[option.name] = value
        return options
