"""What two runs differ in, as switches: what a trial can set, and what it cannot, with the reason at once."""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field, fields, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

from embedl_hub.bisection._search import Switch
from embedl_hub.core.component import RunType
from embedl_hub.core.document import document_of, in_order
from embedl_hub.core.steps import where_measured
from embedl_hub.core.toolchain import Toolchain, toolchains
from embedl_hub.errors import ConfigError, TrackingError, quoted_list

if TYPE_CHECKING:
    from embedl_hub.core.context import HubContext
    from embedl_hub.core.device import MeasuringConfig
    from embedl_hub.core.document import ProfileDocument
    from embedl_hub.tracking import LoggedArtifact, Run, Store

RUNTIME, MODEL, DATA = "runtime", "model", "data"
OPTION = "compile: "
"""What the names of switches begin with that are options of a compilation."""

# How a metric is found out again: by the rounds of the turns, by what a fresh process tells, by the file, by answers.
ROUNDS = ("latency_median", "latency", "fps")
STARTS = {"load_time": "load_us", "first_latency": "first_us", "peak_memory_mb": "peak_memory_mb"}
SIZE = "model_size_mb"
ANSWERS = ("accuracy", "top1_agreement", "cosine", "max_abs_error")

# Settings that say how much is measured, or where a program is; every trial is measured alike, where it was measured.
_EFFORT = frozenset(
    {"iterations", "min_seconds", "max_seconds", "until", "max_warmup_seconds", "layer_runs", "timeout_s", "prediction"}
)
_EFFORT_WORDS = "it says how a profile is measured, not what runs; every trial is measured alike"
_PATH_WORDS = "it says where a program is; which runtime that is stands under runtime"
_OF_THE_BOARD = {
    "governor": "the governor of a processor belongs to the system; set it there and profile again",
    "clock limit": "the clocks of a processor belong to the system; set them there and profile again",
    "system": "the system cannot be switched; boot the other one and profile again",
}
_OF_THE_HUB = "it belongs to the Python that drove the run, not to what ran the model"


@dataclass(frozen=True)
class Side:
    """One of the two ends: everything of a recorded run that a trial can set."""

    run: Run  # the one that the user named
    step: Run  # the one that ran the model: the same, or the one whose answers were evaluated
    document: ProfileDocument
    model: LoggedArtifact
    version: str | None  # of the runtime
    settings: Mapping[str, Any]
    data: LoggedArtifact | Path | None = None  # what it ran on; None where that was made up
    reference: LoggedArtifact | None = None  # the answers that it was compared with
    compiled: Run | None = None  # the run that compiled the model


@dataclass(frozen=True)
class BisectionPlan:
    """What is asked, where, and what can be switched to answer it."""

    good: Side
    bad: Side
    metric: str
    toolchain: Toolchain
    device: str | None  # where it is measured; None is this machine
    switches: tuple[Switch, ...]  # all differences, those with a refusal too
    pool: tuple[str | None, ...] = ()  # equal devices that share the trials, the first is ``device``
    pythons: Mapping[str, str] = field(default_factory=dict)  # by version of the runtime, the Python that has it
    labels: Path | None = None
    calibration_data: Path | None = None  # to compile again with
    notes: tuple[str, ...] = ()  # what a reader must know before believing the answer

    @property
    def place(self) -> str:
        """Where it is measured, in words."""
        names = [f"device {each}" if each else "this machine" for each in (self.pool or (self.device,))]
        return ", ".join(names)


def plan_bisection(  # noqa: PLR0913 - what is asked, where and with what
    ctx: HubContext,
    good: str,
    bad: str,
    *,
    metric: str | None = None,
    device: str | None = None,
    here: bool = False,
    pool: tuple[str, ...] = (),
    pythons: Mapping[str, str] | None = None,
    input_data: Path | None = None,
    labels: Path | None = None,
    calibration_data: Path | None = None,
) -> BisectionPlan:
    """Find out what two runs differ in, or say why there is nothing to search for.

    Args:
        ctx: An open context with a store.
        good: The id of the run as it should be.
        bad: The id of the one that is worse, or only other.
        metric: What differs; latency_median for profiles, and what both have of accuracy, top1_agreement and cosine for
            evaluations, when not given.
        device: Where to measure; where the bad run was measured when not given.
        here: On this machine.
        pool: Devices, all alike, that share the trials.
        pythons: By version of the runtime, a Python there that has it.
        input_data: What profiles on data of the user's own were measured on, an .npz.
        labels: The right answers, an .npy, for accuracy.
        calibration_data: What INT8 models were calibrated with, to compile again with single options of BAD.
    """
    store = ctx.client.store
    if store is None:
        raise ConfigError("A bisection reads its runs from a store: open the context with tracking.")
    runs = store.run(good), store.run(bad)
    if runs[0].id == runs[1].id:
        raise ConfigError(f"GOOD and BAD are the same run, {runs[0].id}; against itself it shows no difference.")
    if runs[0].type != runs[1].type:
        raise ConfigError(
            f"Run {runs[0].id} is of type {runs[0].type} and run {runs[1].id} of {runs[1].type}; give two of one type, "
            "PROFILE or EVAL."
        )
    chosen = _metric(runs, metric)
    sides = tuple(_side(ctx, store, run, chosen, input_data) for run in runs)
    kinds = [_toolchain(side.step) for side in sides]
    if kinds[0].name != kinds[1].name:
        raise ConfigError(
            f"Run {runs[0].id} is of {kinds[0].title} and run {runs[1].id} of {kinds[1].title}; another runtime is no "
            "switch. Compare them with: embedl-hub compare"
        )
    place = where_measured(ctx, sides[1].step, device=device or (pool[0] if pool else None), here=here)
    for name in pool:
        ctx.find_device(name)
    plan = BisectionPlan(
        sides[0], sides[1], chosen, kinds[0], place, tuple(_switches(ctx, sides, place, kinds[0])), pool, pythons or {},
        labels, calibration_data,
    )  # fmt: skip
    if chosen == "accuracy" and labels is None:
        raise ConfigError("Accuracy needs the right answers, which are not in the records: give them with --labels.")
    return plan


def _metric(runs: tuple[Run, Run], wanted: str | None) -> str:
    known = {*ROUNDS, *STARTS, SIZE, *ANSWERS}
    names = [{metric.name for metric in run.metrics} | ({SIZE} if "input" in run.artifacts else set()) for run in runs]
    both = in_order(names[0] & names[1] & known)
    if wanted is None:
        if not both:
            raise ConfigError(
                f"The runs {runs[0].id} and {runs[1].id} ({runs[0].type}) have no metric in common that can be "
                f"measured again; those are {quoted_list(known)}."
            )
        return both[0]
    if wanted not in known:
        hint = " Its middle is latency_median." if wanted.startswith("latency") else ""
        raise ConfigError(
            f"{wanted!r} cannot be measured again in turns; metrics that can are {quoted_list(known)}.{hint}"
        )
    for run, own in zip(runs, names, strict=True):
        if wanted not in own and wanted not in ANSWERS:
            raise ConfigError(f"Run {run.id} ({run.status}) has no metric {wanted!r}; it has: {quoted_list(own)}.")
    is_of_answers, is_profile = wanted in ANSWERS, runs[0].type == RunType.PROFILE
    if is_of_answers == is_profile and wanted != SIZE:
        raise ConfigError(f"{wanted!r} is not told by runs of type {runs[0].type}; those tell {quoted_list(both)}.")
    return wanted


def _side(ctx: HubContext, store: Store, run: Run, metric: str, input_data: Path | None) -> Side:
    step = run if run.type in (RunType.PROFILE, RunType.INFERENCE) else _answering(store, run)
    model = step.artifacts.get("input") or step.artifacts.get("path")
    if model is None:
        raise ConfigError(
            f"Run {step.id} ({step.type}, {step.status}) has no model; it logged: {quoted_list(step.artifacts)}."
        )
    ctx.bring_here(model)
    document = document_of(step)[0]
    version = document.runtime.version or _param(step, "runtime_version")
    data: LoggedArtifact | Path | None = None
    if metric in ANSWERS:
        data = step.artifacts.get("input_data")
        if data is None:
            raise ConfigError(f"Run {step.id} kept no input_data, so its answers cannot be had again.")
        ctx.bring_here(data)
    elif _param(step, "input_data") is not None or str(document.fact("data", "source") or "").startswith("given"):
        if input_data is None and metric != SIZE:
            raise ConfigError(
                f"Run {step.id} was measured on data of your own, which is not in its record; give it: --input-data."
            )
        data = input_data
    reference = run.artifacts.get("reference")
    if metric in ANSWERS and metric != "accuracy" and reference is None:
        raise ConfigError(
            f"Run {run.id} kept no reference answers to compare with, so {metric} cannot be had again; evaluate "
            "against a run, or bisect accuracy with --labels."
        )
    settings = _param(step, "provider_config")
    return Side(
        run, step, document, model, None if version is None else str(version),
        settings if isinstance(settings, dict) else {}, data, reference, _compiling(store, step, model),
    )  # fmt: skip


def _compiling(store: Store, step: Run, model: LoggedArtifact) -> Run | None:
    """Return the newest run that compiled a model."""
    for run in reversed(store.lineage(step.id).made_from):
        made = run.artifacts.get("path")
        if run.type == RunType.COMPILE and made is not None and made.sha256 == model.sha256:
            return store.run(run.id)
    return None


def _answering(store: Store, run: Run) -> Run:
    """Return the run whose answers an evaluation looked at."""
    name = run.tags.get("compared_run")
    made = [each for each in store.lineage(run.id).made_from if each.type == RunType.INFERENCE]
    try:
        found = made[0] if made else store.run(str(name))
    except TrackingError:
        found = None
    if found is None or found.type != RunType.INFERENCE:
        raise ConfigError(
            f"Run {run.id} ({run.type}) does not lead to a run that gave answers; give two runs of type PROFILE, or "
            "two of type EVAL that compare the answers of a model."
        )
    return store.run(found.id)


def _toolchain(run: Run) -> Toolchain:
    for toolchain in toolchains():
        if run.component in {step.__name__ for step in toolchain.components}:
            if toolchain.driver is None:
                raise ConfigError(
                    f"Models of {toolchain.title} are measured by the vendor's own program, which knows no turns."
                )
            if toolchain.paired_profiler is not None and run.component == toolchain.paired_profiler.__name__:
                raise ConfigError(f"Run {run.id} measured several models; give runs of one model each.")
            return toolchain
    known = {step.__name__ for each in toolchains() for step in each.components if each.driver is not None}
    raise ConfigError(
        f"Run {run.id} was made by {run.component!r}, which cannot be repeated here; known: {quoted_list(known)}."
    )


def _switches(ctx: HubContext, sides: tuple[Side, ...], place: str | None, toolchain: Toolchain) -> Iterator[Switch]:
    good, bad = sides
    yield from _of_the_device(ctx, good, bad, place)
    if good.version != bad.version:
        yield Switch(RUNTIME, f"{toolchain.title} {good.version}", f"{toolchain.title} {bad.version}", "runtime",
                     suspicion=0.5)  # fmt: skip
    if good.model.sha256 != bad.model.sha256:
        names = [f"{side.model.title} ({side.model.sha256[:12]})" for side in sides]
        yield Switch(MODEL, names[0], names[1], "model", suspicion=1.0)
    if (one := _data_words(good.data)) != (other := _data_words(bad.data)):
        yield Switch(DATA, one, other, "data")
    known = {**good.settings, **bad.settings}
    for name in sorted(known):
        words = _text(good.settings.get(name)), _text(bad.settings.get(name))
        if words[0] != words[1]:
            yield Switch(name, *words, refusal=_refusal_of(name))
    yield from _of_the_hub(good, bad)


def is_effort(name: str) -> bool:
    """Tell whether a setting says how much is measured, or where a program is."""
    return name in _EFFORT or name.endswith("_path") or name == "cli_args"


def _refusal_of(name: str) -> str | None:
    if name in _EFFORT:
        return _EFFORT_WORDS
    if name.endswith("_path"):
        return _PATH_WORDS
    return "arguments of a record are not passed on to a program" if name == "cli_args" else None


def _of_the_device(ctx: HubContext, good: Side, bad: Side, place: str | None) -> Iterator[Switch]:
    addresses = [_address(ctx, side.step.device) for side in (good, bad)]
    words = [side.step.device or "this machine" for side in (good, bad)]
    boards = [side.document.fact("environment", "board") for side in (good, bad)]
    hardware = [board if isinstance(board, dict) else {} for board in boards]
    facts = [tuple(board.get(key) for key in ("model", "cpu", "architecture", "cores")) for board in hardware]
    if addresses[0] != addresses[1] or (all(map(any, facts)) and facts[0] != facts[1]):
        cpus = [board.get("cpu") or board.get("model") for board in hardware]
        shown = [f"{word} ({cpu})" if cpu else word for word, cpu in zip(words, cpus, strict=True)]
        where = f"device {place}" if place else "this machine"
        refusal = f"another board cannot be switched; everything is measured on {where}"
        yield Switch("device", shown[0], shown[1], "fact", refusal)
    before = [side.document.fact("environment", "before") for side in (good, bad)]
    states = [each if isinstance(each, dict) else {} for each in before]
    told = {
        "governor": [state.get("governor") for state in states],
        "clock limit": [state.get("clock_limit_mhz") for state in states],
        "system": [board.get("system") for board in hardware],
    }
    for name, (one, other) in told.items():
        if one is not None and other is not None and one != other:
            yield Switch(name, _text(one), _text(other), "fact", _OF_THE_BOARD[name])


def _address(ctx: HubContext, name: str | None) -> str | None:
    """Return where a device is; None is this machine, a name that nobody knows any more stands for itself."""
    if name is None or name not in ctx.devices:
        return name
    runner = ctx.devices[name].runner
    address = None if runner is None else str(getattr(runner, "address", name))
    return None if address is None or address.startswith("local ") else address


def _of_the_hub(good: Side, bad: Side) -> Iterator[Switch]:
    versions = [_param(side.step, "$versions") for side in (good, bad)]
    both = [each if isinstance(each, dict) else {} for each in versions]
    # What the runtime is stands under its own name, whatever the Python of the hub has.
    own = {"system", "onnxruntime"}
    for name in sorted({*both[0], *both[1]} - own):
        words = _text(both[0].get(name)), _text(both[1].get(name))
        if words[0] != words[1]:
            yield Switch(f"package {name}", *words, "fact", _OF_THE_HUB)


def _data_words(data: LoggedArtifact | Path | None) -> str:
    if data is None:
        return "made up"
    return str(data) if isinstance(data, Path) else f"{data.file_name} ({data.sha256[:12]})"


def _param(run: Run, name: str) -> Any:  # noqa: ANN401 - any JSON
    return run.params[name].value if name in run.params else None


def _text(value: object) -> str:
    if value is None:
        return "left to the runtime"
    return value if isinstance(value, str) else json.dumps(value, ensure_ascii=False)


def config_of(side: Side, base: MeasuringConfig, names: Mapping[str, Side]) -> MeasuringConfig:
    """Return a machine's settings with those of a run; ``names`` says of single ones from which run they are."""
    values: dict[str, Any] = {}
    for each in fields(base):
        if is_effort(each.name):
            continue
        given = names.get(each.name, side).settings.get(each.name, each.default)
        values[each.name] = tuple(given) if isinstance(given, list) else given
    return replace(base, **values)
