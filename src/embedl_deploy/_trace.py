"""A model becomes a network: by torch.fx, else by torch.export, else in parts.

What neither front end can follow stays whole as an opaque module, and the tracing says where and why.
"""

import os
from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

import torch
from torch import fx, nn
from torch.export import ExportedProgram

from embedl_deploy._clone import clone_module
from embedl_deploy._export import from_graph_module, trace_export
from embedl_deploy._fx import Stuck, StuckError, trace_fx
from embedl_deploy._graph import Example, Network
from embedl_deploy._place import user_line
from embedl_deploy._proof import compare
from embedl_deploy._recompose import recompose
from embedl_deploy._run import evaluating
from embedl_deploy.errors import InputError, TraceError

Model = nn.Module | ExportedProgram | str | os.PathLike[str]


@dataclass(frozen=True)
class Tracing:
    """A traced model and how it was traced.

    Attributes:
        route: ``fx``, ``export``, ``graph`` (it was one already), or ``parts``.
        opaque: Submodules kept whole, with the line and the reason.
        notes: Remarks for the report.
        expected: What the model as given returns for the example inputs, in eval mode.
    """

    network: Network = field(repr=False)
    route: str
    notes: tuple[str, ...]
    opaque: tuple[Stuck, ...]
    expected: Any = field(repr=False, default=None)


def trace(model: Model, args: tuple[Any, ...] | None, kwargs: Mapping[str, Any] | None) -> Tracing:
    """Turn whatever the user has into a network.

    Raises:
        TraceError: No front end could follow the model, or it is nothing that can be followed.
        InputError: The model does not accept the example inputs.
    """
    example = _example(args, kwargs)
    if isinstance(model, str | os.PathLike):
        model = _load(Path(model))
    if isinstance(model, ExportedProgram):
        # torch.export settled the structure of the call; the graph module checks it and keeps the tensors.
        model = model.module(check_guards=False)
    model = _unwrap(model)
    copy = clone_module(model)
    expected = _run(copy, example) if example is not None else None
    if isinstance(copy, fx.GraphModule):
        network = from_graph_module(copy, example)
        recompose(network, None)
        return Tracing(network, "graph", (), (), expected)
    tracing = _trace_module(copy, example, expected)
    tracing.network.note_modules(copy)
    return replace(tracing, expected=expected)


def _trace_module(model: nn.Module, example: Example | None, expected: Any) -> Tracing:
    """Try the front ends in turn."""
    try:
        network, readers = trace_fx(model, example)
    except StuckError as error:
        first = error.stuck
    else:
        recompose(network, model)
        notes = tuple(_mode_note(model, place) for place in readers)
        return _confirmed(Tracing(network, "fx", notes, ()), model, expected)
    if example is None:
        return _trace_parts(model, example, first, None)
    try:
        network, notes = _trace_exported(model, example, expected)
    except StuckError as error:
        return _trace_parts(model, example, first, error.stuck)
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
    except StuckError:
        network, notes = tracing.network, ()
    if network is not tracing.network and _agrees(network, expected):
        return Tracing(network, "export", (*notes, "torch.fx's graph does not compute the model's result"), ())
    note = "the graph does not repeat the model's result on the example inputs: its code is random, or keeps a state"
    return replace(tracing, notes=(*tracing.notes, note))


def _trace_exported(model: nn.Module, example: Example, expected: Any) -> tuple[Network, tuple[str, ...]]:
    """Export with an open batch if the result still fits the example inputs, else with theirs."""
    try:
        network = trace_export(model, example, open_batch=True)
        recompose(network, model)
        if _agrees(network, expected):
            return network, ()
    except StuckError:
        pass
    network = trace_export(model, example, open_batch=False)
    recompose(network, model)
    return network, ("torch.export fixed the batch size to that of the example inputs",)


def _agrees(network: Network, expected: Any) -> bool:
    """Say whether a graph made for another batch computes the model's own result for the example inputs."""
    try:
        proof = compare(expected, network.measure())
    except Exception:  # noqa: BLE001 (a size that was settled wrongly can fail in any operator)
        return False
    return not proof.fault and proof.verdict != "approximate"


def _trace_parts(model: nn.Module, example: Example | None, first: Stuck, export: Stuck | None) -> Tracing:
    """Trace with torch.fx, keeping whole whatever stops it."""
    opaque: dict[str, Stuck] = {}
    stuck = first
    while True:
        if not stuck.place or stuck.place in opaque:
            raise _hopeless(model, stuck, export)
        opaque[stuck.place] = stuck
        try:
            network, readers = trace_fx(model, example, frozenset(opaque))
        except StuckError as error:
            stuck = error.stuck
        else:
            break
    called = {str(node.target) for node in network.graph.nodes if node.op == "call_module"}
    kept = [one for place, one in opaque.items() if place in called]
    notes = [f"'{one.place}' is kept whole, in float: {_where(one)}{one.reason}" for one in kept]
    if example is None:
        notes.append("torch.export was not tried: it needs example inputs, transform(model, args)")
    else:
        assert export is not None
        notes.append(f"torch.export could not follow the model either: {_where(export)}{export.reason}")
        kept, notes = _rescue(network, model, example, kept, notes)
    recompose(network, model)
    notes += [_mode_note(model, place) for place in readers]
    return Tracing(network, "parts", tuple(notes), tuple(kept))


def _rescue(
    network: Network, model: nn.Module, example: Example, kept: list[Stuck], notes: list[str]
) -> tuple[list[Stuck], list[str]]:
    """Export the opaque submodules one by one, each on the inputs that reach it, and put their graphs in."""
    left = []
    for one in kept:
        module = model.get_submodule(one.place)
        part = _exported_part(model, module, example)
        if part is None or not network.inline(one.place, part):
            left.append(one)
            continue
        notes = [note for note in notes if not note.startswith(f"'{one.place}' is kept whole")]
        notes.append(f"'{one.place}' was traced by torch.export: {_where(one)}{one.reason}")
    return left, notes


def _exported_part(model: nn.Module, module: nn.Module, example: Example) -> Network | None:
    """Export a submodule alone, with an open batch if that is possible; `None` when it is not possible at all."""
    for open_batch in (True, False):
        try:
            return trace_export(module, _inputs_of(model, module, example), open_batch=open_batch)
        except StuckError:
            continue
    return None


def _inputs_of(model: nn.Module, module: nn.Module, example: Example) -> Example:
    """Catch what a submodule is called with when the model runs the example inputs."""
    caught: list[Example] = []
    handle = module.register_forward_pre_hook(
        lambda _, args, kwargs: caught.append(Example(args, kwargs)), with_kwargs=True
    )
    try:
        with evaluating([model]):
            model(*example.args, **example.kwargs)
    finally:
        handle.remove()
    if len(caught) != 1:
        raise StuckError(Stuck("", "", f"it is called {len(caught)} times"))
    return caught[0]


def _hopeless(model: nn.Module, stuck: Stuck, export: Stuck | None) -> TraceError:
    """Explain why a model cannot be traced at all."""
    place = (
        f"'{stuck.place}' ({type(model.get_submodule(stuck.place)).__name__})" if stuck.place else type(model).__name__
    )
    lines = [f"{place} cannot be traced.", f"torch.fx: {_where(stuck)}{stuck.reason}"]
    if export is None:
        lines.append("torch.export was not tried: it needs example inputs; call transform(model, args).")
    else:
        lines.append(f"torch.export: {_where(export)}{export.reason}")
        lines.append(
            "A branch on tensor values in the model's own forward has no graph; "
            "move it into a submodule (that one is then kept whole) or out of the model."
        )
    return TraceError("\n".join(lines), place=stuck.place, line=stuck.line)


def _where(stuck: Stuck) -> str:
    """Prefix a reason with the line of the user's code, when there is one."""
    return f"{stuck.line}: " if stuck.line else ""


def _mode_note(model: nn.Module, place: str) -> str:
    """Say that a branch on the mode was settled by the trace."""
    mode = "training" if model.training else "eval"
    return (
        f"'{place}' asks whether it is training; the graph has the {mode} branch, train() and eval() do not change it"
    )


def _example(args: object, kwargs: Mapping[str, Any] | None) -> Example | None:
    """Normalise the example call; a lone tensor is taken as the only input."""
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
        shapes = ", ".join(_describe(value) for value in (*example.args, *example.kwargs.values()))
        place = _failing_place(model, example)
        culprit = f"'{place}' fails with " if place else ""
        line = user_line(exc)
        raise InputError(
            f"{type(model).__name__} does not accept the example inputs ({shapes}): "
            f"{culprit}{type(exc).__name__}: {exc}{f' at {line}' if line else ''}"
        ) from exc


def _failing_place(model: nn.Module, example: Example) -> str:
    """Run a failing model again and return the submodule that was entered last and never left."""
    entered: list[str] = []
    handles = []
    for name, module in model.named_modules():
        handles.append(module.register_forward_pre_hook(lambda *_, name=name: entered.append(name)))
        handles.append(module.register_forward_hook(lambda *_: (entered.pop(), None)[1]))
    try:
        with evaluating([model]):
            model(*example.args, **example.kwargs)
    except Exception:  # noqa: BLE001 (it failed before, with the same exception)
        return entered[-1] if entered else ""
    finally:
        for handle in handles:
            handle.remove()
    return ""


def _describe(value: object) -> str:
    """Say what an example input is: a tensor's type and shape, else its type."""
    if isinstance(value, torch.Tensor):
        return f"{str(value.dtype).removeprefix('torch.')} {tuple(value.shape)}"
    return type(value).__name__


def _load(path: Path) -> ExportedProgram:
    """Load a saved exported program."""
    if not path.exists():
        raise TraceError(
            f"there is no file '{path}'; give a model, or the path of a .pt2 file saved by torch.export.save."
        )
    try:
        return torch.export.load(path)
    except Exception as exc:
        raise TraceError(f"'{path}' cannot be loaded as an exported program: {type(exc).__name__}: {exc}") from exc


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
