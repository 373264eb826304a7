"""``assert_fits`` and ``assert_placed``: has a device room for a model, and does all of it run where it should."""

from __future__ import annotations

import fnmatch
from collections.abc import Sequence
from typing import Any

from embedl_hub.comparison import Finding, Outcome, Reach
from embedl_hub.core.component import RunType
from embedl_hub.core.document import LayerRow, document_of, fit_of
from embedl_hub.core.memory import memory_of, predict_memory, read_size
from embedl_hub.core.steps import run_of
from embedl_hub.core.toolchain import find_component
from embedl_hub.errors import ConfigError, ProfileError, quoted_list
from embedl_hub.pytest_plugin._check import Check, Model, place_name, run_ids
from embedl_hub.pytest_plugin._running import current_test
from embedl_hub.refusal import refusals_as

_MB = 1e6
_MOST_NAMED = 10
_CPU = "cpu"


def assert_fits(
    model: Model, *, device: str | None = None, memory: str | None = None, strict: bool | None = None
) -> None:
    """Fail when a device has no room for a model, by what its runtime would allocate; nothing is sent or run.

    Args:
        model: A model file, the id of a run, or what a compiler returned.
        device: The device; the test's board, else ``--hub-device``, else this machine if not given.
        memory: Hold it against so much instead, as 256MB.
        strict: Whether it fails when nobody can tell; as ``--hub-strict`` says if not given.
    """
    __tracebackhide__ = True
    check = Check(current_test("assert_fits"), device)

    def find() -> Finding:
        subject = check.subject(model)
        file = str(subject.model.path.to_local(check.hub).local())
        room = read_size(memory) if memory else memory_of(check.hub, check.device, here=False)
        with refusals_as(ProfileError):
            _, plan = predict_memory(check.hub, file, check.device, toolchain_name=subject.toolchain.name)
        fit = fit_of(plan, room)
        outcome = Outcome.CANNOT_TELL if fit.fits is None else Outcome.OK if fit.fits else Outcome.WORSE
        place = f"{memory} of memory" if memory else place_name(check.device)
        figures = [] if room is None else [("memory there", f"{room / _MB:.1f} MB")]
        reach = None
        with check.hub.client.start_run(RunType.CUSTOM, f"fits {subject.name}"[:100]) as run:
            run.log_artifact(subject.model.path, name="input", ctx=check.hub)
            run.log_param("memory_fit", fit.text)
            if plan.total_bytes is not None:
                needed = (plan.total_bytes + plan.runtime_bytes) / _MB
                figures.insert(0, ("needed", f"{needed:.1f} MB, the runtime included"))
                run.log_metric("predicted_memory_mb", plan.total_bytes / _MB)
                reach = None if room is None else Reach(needed, room / _MB)
        return Finding(
            f"memory of {subject.name}", outcome, fit.text, tuple(figures), place,
            run_ids(("prediction", check.store.run(run.id))), (), reach,
        )  # fmt: skip

    check.finish(find, strict=strict)


def assert_placed(
    model: Model,
    *,
    unit: str | None = None,
    integer: bool | float | Sequence[str] | None = None,
    allow: Sequence[str] = (),
    device: str | None = None,
    strict: bool | None = None,
) -> None:
    """Fail when layers of a model run elsewhere than asked: no silent fallback to the CPU, none to float.

    The model is profiled on the device; what each layer ran on is what the runtime itself says.

    Args:
        model: A model file, the id of a run, or what a compiler returned.
        unit: Where every layer must run: ``CPU``, ``GPU``, ``NPU``, or the runtime's own word such as
            ``CUDAExecutionProvider``. Not given: what the device asks of its runtime, where that is no CPU.
        integer: True: every layer that computes must do so in integers. A number: at least this share of the time of
            those layers. Names: these nodes of the source model must.
        allow: Layers, nodes or operators that may be elsewhere, with ``*`` for any letters.
        device: Where to run; the test's board, else ``--hub-device``, else this machine if not given.
        strict: Whether it fails when nobody can tell; as ``--hub-strict`` says if not given.
    """
    __tracebackhide__ = True
    check = Check(current_test("assert_placed"), device)

    def find() -> Finding:
        subject = check.subject(model)
        step: Any = find_component(RunType.PROFILE, subject.toolchain.name)()
        run = run_of(check.hub, step.run(check.hub, subject.model, device=check.device))
        document, problem = document_of(run)
        rows = [row for row in document.rows if not _is_allowed(row, allow)]
        wanted = unit or (_asked_unit(document.fact("settings", "providers")) if integer is None else None)
        if wanted is None and integer is None:
            units = {row.compute_unit for row in document.rows if row.compute_unit}
            raise ConfigError(
                f"assert_placed takes unit= or integer=: nothing but the CPU was asked for, and layers ran on "
                f"{quoted_list(units)}."
            )
        runs, place = run_ids(("profile", run)), place_name(run.device)
        title = f"placement of {subject.name}"
        if not document.rows:
            why = f"the runtime told no layers: {problem or 'it was not asked for them (layer_runs)'}"
            return Finding(title, Outcome.CANNOT_TELL, why, (), place, runs)
        outcome, reason, figures = _judge(rows, wanted, integer)
        return Finding(title, outcome, reason, figures, place, runs)

    check.finish(find, strict=strict)


_Judged = tuple[Outcome, str, tuple[tuple[str, str], ...]]


def _judge(rows: Sequence[LayerRow], unit: str | None, integer: bool | float | Sequence[str] | None) -> _Judged:
    parts = []
    if unit is not None:
        parts.append(_on_unit(rows, unit))
    if integer is True or (isinstance(integer, int | float) and not isinstance(integer, bool)):
        parts.append(_in_integers(rows, float(integer)))
    elif integer is not None and integer is not False:
        parts.append(_nodes_in_integers(rows, [integer] if isinstance(integer, str) else list(integer)))
    order = (Outcome.WORSE, Outcome.CANNOT_TELL, Outcome.OK)
    outcome = min((part[0] for part in parts), key=order.index, default=Outcome.OK)
    return outcome, "; ".join(part[1] for part in parts), tuple(figure for part in parts for figure in part[2])


def _on_unit(rows: Sequence[LayerRow], unit: str) -> _Judged:
    wanted = unit.lower().removesuffix("executionprovider")

    def is_there(row: LayerRow) -> bool:
        return wanted in (row.compute_unit.lower(), row.provider.lower().removesuffix("executionprovider"))

    told = [row for row in rows if row.compute_unit or row.provider]
    if not told:
        return Outcome.CANNOT_TELL, "the runtime does not tell where its layers run", ()
    elsewhere = [row for row in told if not is_there(row)]
    figures = [(f"layers on {unit}", f"{len(told) - len(elsewhere)} of {len(told)}")]
    if not elsewhere:
        return Outcome.OK, f"every layer ran on {unit}", tuple(figures)
    figures += [("elsewhere", _described(row, row.provider or row.compute_unit)) for row in elsewhere[:_MOST_NAMED]]
    return Outcome.WORSE, f"{len(elsewhere)} of {len(told)} layers did not run on {unit}", tuple(figures)


def _in_integers(rows: Sequence[LayerRow], least: float) -> _Judged:
    computing = [row for row in rows if row.integer is not None]
    if not computing:
        return Outcome.CANNOT_TELL, "the runtime does not tell which layers compute in integers", ()
    in_float = [row for row in computing if not row.integer]
    whole = sum(row.time_ms or 0.0 for row in computing)
    # Where no times are told, layers are counted.
    weight = [(row.time_ms or 0.0) if whole else 1.0 for row in in_float]
    share = 1 - sum(weight) / (whole or len(computing))
    figures = [("time in integers", f"{share:.1%} of the layers that compute"), ("at least", f"{least:.0%}")]
    if share >= least and (least < 1 or not in_float):
        return (
            Outcome.OK,
            f"{len(computing) - len(in_float)} of {len(computing)} layers compute in integers",
            (*figures,),
        )
    figures += [("in float", _described(row)) for row in in_float[:_MOST_NAMED]]
    return Outcome.WORSE, f"{len(in_float)} of {len(computing)} layers compute in float", tuple(figures)


def _nodes_in_integers(rows: Sequence[LayerRow], nodes: Sequence[str]) -> _Judged:
    known = {node for row in rows for node in row.source_nodes}
    if missing := [node for node in nodes if node not in known]:
        shown = quoted_list(sorted(known)[: 3 * _MOST_NAMED])
        raise ConfigError(f"No layer stands for {quoted_list(missing)}; nodes of the model are: {shown}.")
    wrong = [row for row in rows if set(nodes) & set(row.source_nodes) and row.integer is not True]
    untold = [row for row in wrong if row.integer is None]
    if untold and len(untold) == len(wrong):
        return Outcome.CANNOT_TELL, "the runtime does not tell what these layers compute in", ()
    if wrong:
        figures = tuple(("in float", _described(row)) for row in wrong[:_MOST_NAMED])
        return Outcome.WORSE, f"{len(wrong)} of the named layers compute in float", figures
    return Outcome.OK, f"the named {len(nodes)} nodes compute in integers", ()


def _described(row: LayerRow, where: str = "") -> str:
    time = "" if row.time_ms is None else f", {row.time_ms:.4g} ms"
    nodes = f" ({', '.join(row.source_nodes[:3])})" if row.source_nodes and row.source_nodes != (row.name,) else ""
    return f"{row.name}{nodes}, {row.op_type}{f', on {where}' if where else ''}{time}"


def _is_allowed(row: LayerRow, allow: Sequence[str]) -> bool:
    words = (row.name, row.op_type, *row.source_nodes)
    return any(fnmatch.fnmatchcase(word, pattern) for word in words for pattern in allow)


def _asked_unit(providers: object) -> str | None:
    """Return the first execution provider that a device asks for, unless that is the CPU's."""
    first = str(providers[0]) if isinstance(providers, list) and providers else ""
    return None if not first or first.lower().startswith(_CPU) else first
