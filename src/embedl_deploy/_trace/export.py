"""The second front end: torch.export, for models whose code torch.fx cannot follow.

The batch is kept dynamic where the model allows it: the first dimension is left open while exporting, and a batch of
one is doubled for it, because torch.export settles a size of one for good.
"""

import contextlib
import io
import logging
import warnings
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from typing import Any

import torch
from torch import fx, nn
from torch.export import Dim, ExportedProgram
from torch.utils import _pytree as pytree

from embedl_deploy._graph.network import Example, Network, network_of
from embedl_deploy._graph.shapes import Dims, note_inputs, open_dims, resized, shapes_of_call
from embedl_deploy._trace.fx import TraceFailedError, TraceFailure, user_line
from embedl_deploy.errors import first_line


def trace_export(model: nn.Module, example: Example, *, open_batch: bool) -> Network:
    """Export a structural copy of the user's model, with the batch left open or fixed to the example's.

    Dimensions that the user wants open are open either way.
    """
    dims = _with_batch(example) if open_batch else example.dims
    with _quiet():
        program = _export_open(model, example, dims) if dims else _export(model, example, None)
        graph_module = program.module(check_guards=False)
    assert isinstance(graph_module, fx.GraphModule)
    note_inputs(graph_module, model, example.args, example.kwargs)
    return from_graph_module(graph_module, example, title=type(model).__name__, training=model.training)


def from_graph_module(
    graph_module: fx.GraphModule, example: Example | None, *, title: str = "", training: bool | None = None
) -> Network:
    mode = _mode_of(graph_module) if training is None else training
    return network_of(graph_module, example, title=title, training=mode).copy()


def _mode_of(graph_module: fx.GraphModule) -> bool:
    """Return the mode of a graph; an exported one has it in its operators, whatever its module says."""
    if not hasattr(graph_module.graph._codegen, "pytree_info"):
        return graph_module.training
    places = {torch.ops.aten.batch_norm.default: 5, torch.ops.aten.dropout.default: 2}
    return any(node.args[places[node.target]] for node in graph_module.graph.nodes if node.target in places)


def _with_batch(example: Example) -> Dims:
    """Return the dimensions to leave open: the user's, and the first one where all inputs have it in common."""
    leaves = pytree.tree_leaves((example.args, dict(example.kwargs)))
    sizes = {leaf.shape[0] if leaf.dim() else 0 for leaf in leaves if isinstance(leaf, torch.Tensor)}
    if len(sizes) != 1 or 0 in sizes:
        raise TraceFailedError(TraceFailure("", "", "the inputs have no common batch"))
    batch = [{0: "batch"} if isinstance(leaf, torch.Tensor) else {} for leaf in leaves]
    return tuple({**own, **dims} for own, dims in zip(batch, example.dims or batch, strict=True))


def _export_open(model: nn.Module, example: Example, dims: Dims) -> ExportedProgram:
    """Export with dimensions left open; give up when the model settles one of them."""
    args, kwargs = resized(example.args, example.kwargs, dims)
    program = _export(model, Example(args, kwargs), [dict.fromkeys(each, Dim.AUTO) or None for each in dims])
    values = {node.name: node.meta.get("val") for node in program.graph.nodes}
    # The inputs in the order of the call; what is no tensor keeps its place.
    given = [
        values.get(spec.arg.name) for spec in program.graph_signature.input_specs if spec.kind.name == "USER_INPUT"
    ]
    wanted = open_dims(model, example.args, example.kwargs, dims)
    settled = [
        not isinstance(value, torch.Tensor) or str(value.shape[dim]).isdigit()  # a settled size may still be a SymInt
        for value, each in zip(given, dims, strict=True)
        for dim in sorted(each)
    ]
    for dim, is_settled in zip(wanted, settled, strict=True):
        if is_settled:
            raise TraceFailedError(TraceFailure("", "", f"the model settles {dim}"))
    return program


def _export(model: nn.Module, example: Example, leaves: Sequence[Any] | None) -> ExportedProgram:
    """Call torch.export and translate its many exceptions into one."""
    args, kwargs = example.args, dict(example.kwargs)
    shapes = None if leaves is None else shapes_of_call(model, args, kwargs, leaves)
    try:
        # torch prints whole graphs to stderr when it meets a branch on data; the reason is in its exception.
        with torch.enable_grad(), contextlib.redirect_stderr(io.StringIO()):
            # With gradients off, nn.TransformerEncoderLayer is exported as one fused operator nobody can look into.
            return torch.export.export(model, args, kwargs, dynamic_shapes=shapes, strict=False)
    except Exception as exc:
        raise TraceFailedError(TraceFailure("", user_line(exc), f"{type(exc).__name__}: {first_line(exc)}")) from exc


@contextmanager
def _quiet() -> Iterator[None]:
    """Silence torch.export's own warnings and logs; what matters reaches the user through the report."""
    logger = logging.getLogger("torch")
    level = logger.level
    logger.setLevel(logging.CRITICAL)
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            yield
    finally:
        logger.setLevel(level)
