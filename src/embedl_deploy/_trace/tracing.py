"""A model becomes a network: by torch.fx, else by torch.export, else in parts.

What neither front end can follow stays whole as an opaque module, and the tracing says where and why.
"""

import os
import re
from collections.abc import Iterable, Mapping
from contextlib import ExitStack
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

import torch
from torch import fx, nn
from torch.export import ExportedProgram

from embedl_deploy._graph.clone import clone_module
from embedl_deploy._graph.network import Example, Network
from embedl_deploy._graph.proof import compare
from embedl_deploy._graph.run import evaluating
from embedl_deploy._graph.shapes import DynamicShapes, read_dynamic_shapes, resized
from embedl_deploy._trace.archive import load_exported
from embedl_deploy._trace.computed_weights import settle_weights
from embedl_deploy._trace.export import from_graph_module, trace_export
from embedl_deploy._trace.fx import TraceFailedError, TraceFailure, trace_fx, user_line
from embedl_deploy._trace.preconditions import in_float32, mode_note, random_note, refuse_dropout
from embedl_deploy._trace.recompose import functions_left, recompose
from embedl_deploy.errors import InputError, TraceError, first_line

Model = nn.Module | ExportedProgram | str | os.PathLike[str]


@dataclass(frozen=True)
class Tracing:
    """A traced model and how it was traced."""

    network: Network = field(repr=False)
    route: str  # fx, export, graph (it was one already), or parts.
    notes: tuple[str, ...]  # For the report.
    opaque: tuple[TraceFailure, ...]  # Submodules kept whole, with the line and the reason.
    expected: Any = field(repr=False, default=None)  # What the model returns for the example inputs, in eval mode.


def trace(
    model: Model,
    args: tuple[Any, ...] | None,
    kwargs: Mapping[str, Any] | None,
    dynamic_shapes: DynamicShapes | None = None,
) -> Tracing:
    example = _example(args, kwargs)
    if isinstance(model, str | os.PathLike):
        model = load_exported(Path(model))
    if isinstance(model, ExportedProgram):
        # torch.export settled the structure of the call; the graph module checks it and keeps the tensors.
        model = model.module(check_guards=False)
    model = _unwrap(model)
    copy = clone_module(model)
    example, converted = in_float32(copy, example)
    expected = _run(copy, example) if example is not None else None
    example, notes = _opened(copy, example, dynamic_shapes)
    if isinstance(copy, fx.GraphModule):
        network = from_graph_module(copy, example)
        recompose(network, None)
        tracing = Tracing(network, "graph", (), ())
    else:
        settled = (*mode_note(copy), *settle_weights(copy))
        tracing = _trace_module(copy, example, expected)
        tracing.network.note_modules(copy)
        tracing = replace(tracing, notes=(*settled, *tracing.notes))
    refuse_dropout(tracing.network)
    _check_other_size(tracing.network)
    told = (*converted, *random_note(tracing.network), *tracing.notes, *notes)
    return replace(tracing, expected=expected, notes=told)


def _opened(
    model: nn.Module, example: Example | None, dynamic_shapes: DynamicShapes | None
) -> tuple[Example | None, tuple[str, ...]]:
    """Return the example with the dimensions that stay open, and a longer call to try them on."""
    if dynamic_shapes is None:
        return example, ()
    if example is None:
        raise InputError("dynamic_shapes needs example inputs; call transform(model, args, dynamic_shapes=...).")
    dims = read_dynamic_shapes(model, example.args, example.kwargs, dynamic_shapes)
    other = Example(*resized(example.args, example.kwargs, dims, factor=2))
    try:
        result = _run(model, other)
    except InputError as exc:
        note = f"the open sizes were not tried at twice those of the example inputs: {first_line(exc)}"
        return replace(example, dims=dims), (note,)
    return replace(example, dims=dims, other=replace(other, result=result)), ()


def _check_other_size(network: Network) -> None:
    """Refuse a graph that has the sizes of the example inputs in it, naming the place."""
    other = network.example.other if network.example is not None else None
    if other is None:
        return
    seen: list[fx.Node] = []
    try:
        proof = compare(other.result, network.run(lambda node, _: seen.append(node), other))
        reason = f"the result {proof.fault}" if proof.fault else ""
    except Exception as exc:  # noqa: BLE001 (a size that was settled can fail in any operator)
        reason = f"{type(exc).__name__}: {first_line(exc)}"
    if reason:
        failing = next((node for node in network.graph.nodes if node not in set(seen)), None)
        place = "" if failing is None else network.place_of(failing)
        where = f" at '{place}'" if place else ""
        raise TraceError(
            f"the model's graph has sizes of the example inputs in it{where}: twice the open sizes do not fit "
            f"({reason}). Compute sizes from the inputs' shapes there, or leave that dimension out of dynamic_shapes.",
            place=place,
        )


def _trace_module(model: nn.Module, example: Example | None, expected: Any) -> Tracing:
    try:
        network, readers = trace_fx(model, example)
    except TraceFailedError as error:
        first = error.failure
    else:
        recompose(network, model)
        confirmed = _confirmed(Tracing(network, "fx", _mode_notes(model, readers), ()), model, expected)
        return _better(confirmed, model, expected)
    if example is None:
        return _trace_parts(model, example, first, None)
    try:
        network, notes = _trace_exported(model, example, expected)
    except TraceFailedError as error:
        return _trace_parts(model, example, first, error.failure)
    return Tracing(network, "export", notes, ())


def _confirmed(tracing: Tracing, model: nn.Module, expected: Any) -> Tracing:
    """Keep what torch.fx traced if it computes the model's own result, else prefer torch.export's graph.

    Symbolic tracing does not see in-place changes through another name, for one.
    """
    example = tracing.network.example
    if example is None or _agrees(tracing.network, expected):
        return tracing
    try:
        network, notes = _trace_exported(model, example, expected)
    except TraceFailedError:
        network, notes = tracing.network, ()
    if network is not tracing.network and _agrees(network, expected):
        return Tracing(network, "export", (*notes, "torch.fx's graph does not compute the model's result"), ())
    note = "the graph does not repeat the model's result on the example inputs: its code is random, or keeps a state"
    return replace(tracing, notes=(*tracing.notes, note))


def _better(tracing: Tracing, model: nn.Module, expected: Any) -> Tracing:
    """Prefer torch.export's graph where torch.fx's has layers with weights that stay functions, and it has fewer."""
    example, loose = tracing.network.example, functions_left(tracing.network)
    if tracing.route != "fx" or example is None or not loose:
        return tracing
    place = tracing.network.place_of(loose[0])
    what = f"{len(loose)} layers with weights stay functions in torch.fx's graph (the first is '{place}')"
    try:
        network, notes = _trace_exported(model, example, expected)
    except TraceFailedError as error:
        return replace(tracing, notes=(*tracing.notes, f"{what}, and torch.export failed: {error.failure}"))
    left = len(functions_left(network))
    if left >= len(loose) or not _agrees(network, expected):
        return replace(tracing, notes=(*tracing.notes, f"{what}, {left} in torch.export's, which was not taken"))
    return Tracing(network, "export", (*notes, f"torch.export was chosen: {what}, {left} in torch.export's"), ())


def _trace_exported(model: nn.Module, example: Example, expected: Any) -> tuple[Network, tuple[str, ...]]:
    """Export with an open batch if the result still fits the example inputs, else with theirs."""
    try:
        network = trace_export(model, example, open_batch=True)
        recompose(network, model)
        if _agrees(network, expected):
            return network, ()
    except TraceFailedError:
        pass
    network = trace_export(model, example, open_batch=False)
    recompose(network, model)
    return network, ("torch.export fixed the batch size to that of the example inputs",)


def _agrees(network: Network, expected: Any) -> bool:
    """Say whether a graph made for another batch computes the model's own result for the example inputs."""
    try:
        proofs = [compare(expected, network.measure())]
        other = network.example.other if network.example is not None else None
        if other is not None:
            proofs.append(compare(other.result, network.run(example=other)))
    except Exception:  # noqa: BLE001 (a size that was settled wrongly can fail in any operator)
        return False
    return not any(proof.fault or proof.verdict == "approximate" for proof in proofs)


def _trace_parts(
    model: nn.Module, example: Example | None, first: TraceFailure, export: TraceFailure | None
) -> Tracing:
    """Trace with torch.fx, keeping whole whatever stops it."""
    opaque: dict[str, TraceFailure] = {}
    failure = first
    while True:
        if not failure.place or failure.place in opaque:
            raise _trace_error(model, failure, export)
        opaque[failure.place] = failure
        try:
            network, readers = trace_fx(model, example, frozenset(opaque))
        except TraceFailedError as error:
            failure = error.failure
        else:
            break
    called = {str(node.target) for node in network.graph.nodes if node.op == "call_module"}
    kept = [failure for place, failure in opaque.items() if place in called]
    notes = [f"'{failure.place}' is kept whole, in float: {failure}" for failure in kept]
    if example is None:
        notes.append("torch.export was not tried: it needs example inputs, transform(model, args)")
    else:
        assert export is not None
        notes.append(f"torch.export could not follow the model either: {export}")
        kept, notes = _export_opaque_parts(network, model, example, kept, notes)
    recompose(network, model)
    return Tracing(network, "parts", (*notes, *_mode_notes(model, readers)), tuple(kept))


def _export_opaque_parts(
    network: Network, model: nn.Module, example: Example, kept: list[TraceFailure], notes: list[str]
) -> tuple[list[TraceFailure], list[str]]:
    """Export the opaque submodules one by one, each on the inputs that reach it, and put their graphs in."""
    left = []
    for failure in kept:
        module = model.get_submodule(failure.place)
        part = _exported_part(model, module, example)
        if part is None or not network.inline(failure.place, part):
            left.append(failure)
            continue
        notes = [note for note in notes if not note.startswith(f"'{failure.place}' is kept whole")]
        notes.append(f"'{failure.place}' was traced by torch.export: {failure}")
    return left, notes


def _exported_part(model: nn.Module, module: nn.Module, example: Example) -> Network | None:
    """Export a submodule alone, with an open batch if that is possible; `None` when it is not possible at all."""
    for open_batch in (True, False):
        try:
            return trace_export(module, _inputs_of(model, module, example), open_batch=open_batch)
        except TraceFailedError:
            continue
    return None


def _inputs_of(model: nn.Module, module: nn.Module, example: Example) -> Example:
    """Catch what a submodule is called with when the model runs the example inputs."""
    caught: list[Example] = []

    def catch(_: nn.Module, args: tuple[Any, ...], kwargs: Mapping[str, Any]) -> None:
        caught.append(Example(args, kwargs))

    with module.register_forward_pre_hook(catch, with_kwargs=True), evaluating([model]):
        model(*example.args, **example.kwargs)
    if len(caught) != 1:
        raise TraceFailedError(TraceFailure("", "", f"it is called {len(caught)} times"))
    return caught[0]


def _trace_error(model: nn.Module, failure: TraceFailure, export: TraceFailure | None) -> TraceError:
    kind = type(model.get_submodule(failure.place)).__name__
    place = f"'{failure.place}' ({kind})" if failure.place else kind
    lines = [f"{place} cannot be traced.", f"torch.fx: {failure}"]
    if export is None:
        lines.append("torch.export was not tried: it needs example inputs; call transform(model, args).")
    elif unknown := re.search(r"Found <class '([\w.]+)'> in output", export.reason):
        kind = unknown[1].rpartition(".")[2]
        lines.append(
            f"torch.export: the model returns a {kind}, and a graph returns tensors. Where it is the cache of a "
            "Hugging Face model, call it without: transform(model, args, kwargs={'use_cache': False}); otherwise "
            "wrap the model in one that returns its tensors."
        )
    else:
        lines.append(
            f"torch.export: {export}\nA branch on tensor values in the model's own forward has no graph; "
            "move it into a submodule (that one is then kept whole) or out of the model."
        )
    return TraceError("\n".join(lines), place=failure.place, line=failure.line)


def _mode_notes(model: nn.Module, places: Iterable[str]) -> tuple[str, ...]:
    mode = "training" if model.training else "eval"
    note = f"asks whether it is training; the graph has the {mode} branch, train() and eval() do not change it"
    return tuple(f"'{place}' {note}" for place in places)


def _example(args: object, kwargs: Mapping[str, Any] | None) -> Example | None:
    """Normalize the example call; a lone tensor is taken as the only input."""
    if args is None and not kwargs:
        return None
    if isinstance(args, torch.Tensor):
        args = (args,)
    if args is not None and not isinstance(args, tuple | list):
        raise InputError(
            f"args is a {type(args).__name__}; give a tuple of example inputs: transform(model, (tensor,))."
        )
    return Example(tuple(args or ()), dict(kwargs or {}))


def _run(model: nn.Module, example: Example) -> Any:
    """Run the model as it is, which also finds inputs of the wrong shape before anything is rewritten."""
    try:
        with evaluating([model]), example.clock:
            return model(*example.args, **example.kwargs)
    except Exception as exc:
        shapes = ", ".join(
            f"{str(value.dtype).removeprefix('torch.')} {tuple(value.shape)}"
            if isinstance(value, torch.Tensor)
            else type(value).__name__
            for value in (*example.args, *example.kwargs.values())
        )
        place, line = _failing_place(model, example), user_line(exc)
        culprit = f"'{place}' fails with " if place else ""
        raise InputError(
            f"{type(model).__name__} does not accept the example inputs ({shapes}): "
            f"{culprit}{type(exc).__name__}: {exc}{f' at {line}' if line else ''}"
        ) from exc


def _failing_place(model: nn.Module, example: Example) -> str:
    """Run a failing model again and return the submodule that was entered last and never left."""
    entered: list[str] = []
    with ExitStack() as stack:
        for name, module in model.named_modules():
            stack.enter_context(module.register_forward_pre_hook(lambda *_, name=name: entered.append(name)))
            stack.enter_context(module.register_forward_hook(lambda *_: (entered.pop(), None)[1]))
        try:
            with evaluating([model]):
                model(*example.args, **example.kwargs)
        except Exception:  # noqa: BLE001 (it failed before, with the same exception)
            return entered[-1] if entered else ""
    return ""


def _unwrap(model: object) -> nn.Module:
    """Return the module behind a compiled one, and refuse what has no Python code."""
    if isinstance(model, torch.jit.ScriptModule):
        raise TraceError(
            "the model is TorchScript, which has no Python code to trace; give the nn.Module it was made from."
        )
    inner = getattr(model, "_orig_mod", None)
    if isinstance(inner, nn.Module):
        return inner
    if not isinstance(model, nn.Module):
        raise TraceError(
            f"{type(model).__name__} is no model; give an nn.Module, a GraphModule, an ExportedProgram or a .pt2 path."
        )
    return model
