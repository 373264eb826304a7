"""The second front end: torch.export, for models whose code torch.fx cannot follow.

The batch is kept dynamic where the model allows it: the first dimension is left open while exporting, and a batch of
one is doubled for it, because torch.export settles a size of one for good.
"""

import contextlib
import io
import logging
import warnings
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import torch
from torch import fx, nn
from torch.export import Dim, ExportedProgram
from torch.utils import _pytree as pytree

from embedl_deploy._graph.network import Example, Network, network_of
from embedl_deploy._trace.fx import TraceFailedError, TraceFailure, user_line
from embedl_deploy.errors import first_line


def trace_export(model: nn.Module, example: Example, *, open_batch: bool) -> Network:
    """Export a structural copy of the user's model, with the batch left open or fixed to the example's."""
    with _quiet():
        program = _export_open(model, example) if open_batch else _export(model, example, None)
        graph_module = program.module(check_guards=False)
    assert isinstance(graph_module, fx.GraphModule)
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


def _export_open(model: nn.Module, example: Example) -> ExportedProgram:
    """Export with an open batch; give up when the inputs have no common one or the model settles it."""
    leaves = pytree.tree_leaves((example.args, dict(example.kwargs)))
    tensors = [leaf for leaf in leaves if isinstance(leaf, torch.Tensor)]
    sizes = {leaf.shape[0] if leaf.dim() else 0 for leaf in tensors}
    if len(sizes) != 1 or 0 in sizes:
        raise TraceFailedError(TraceFailure("", "", "the inputs have no common batch"))
    if sizes == {1}:
        args, kwargs = pytree.tree_map_only(
            torch.Tensor, lambda leaf: torch.cat([leaf, leaf]), (example.args, dict(example.kwargs))
        )
        example = Example(args, kwargs)
    program = _export(model, example, lambda leaf: {0: Dim.AUTO} if isinstance(leaf, torch.Tensor) else None)
    for node in program.graph.nodes:
        value = node.meta.get("val")
        given = node.name in program.graph_signature.user_inputs and isinstance(value, torch.Tensor)
        if given and str(value.shape[0]).isdigit():  # a settled size may still be a SymInt
            raise TraceFailedError(TraceFailure("", "", "the model settles the batch size"))
    return program


def _export(model: nn.Module, example: Example, dynamic: Any) -> ExportedProgram:
    """Call torch.export and translate its many exceptions into one."""
    args, kwargs = example.args, dict(example.kwargs)
    shapes = None
    if dynamic is not None:
        shapes = (*pytree.tree_map(dynamic, args), *pytree.tree_map(dynamic, kwargs).values())
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
