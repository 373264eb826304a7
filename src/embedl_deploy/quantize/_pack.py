"""A model with its pairs as bytes, for other processes: the graph node by node, and everything that it refers to.

Torch pickles a graph module by its generated code and traces that anew, which loses what was written down about the
model, and fails for code that cannot be traced. Here the graph that arrives is the graph that was sent.
"""

import io
from typing import Any

import torch
from torch import fx, nn

from embedl_deploy.errors import QuantizationError
from embedl_deploy.quantize._insert import setup_of

_GRAPH = ("_graph", "_code", "_lineno_map", "_prologue_start")


def pack(model: nn.Module) -> bytes:
    """Return a model that `insert_qdq` made as bytes.

    Raises:
        QuantizationError: The model has no pairs, or holds something that cannot be pickled.
    """
    setup = setup_of(model)
    assert isinstance(model, fx.GraphModule)
    place = {node: number for number, node in enumerate(model.graph.nodes)}
    parts = {
        "nodes": [_as_data(node, place) for node in model.graph.nodes],
        "codegen": model.graph._codegen,
        "state": {name: value for name, value in model.__dict__.items() if name not in (*_GRAPH, "meta")},
        "meta": {name: value for name, value in model.meta.items() if value is setup},
        "name": type(model).__name__,
    }
    target = io.BytesIO()
    try:
        torch.save(parts, target)
    except Exception as exc:
        raise QuantizationError(
            f"this {parts['name']} cannot be sent to another process: {exc}. "
            "Functions and classes that it refers to must be importable there: no lambdas, nothing of a notebook."
        ) from exc
    return target.getvalue()


def unpack(data: bytes) -> fx.GraphModule:
    """Return the model that `pack` was given. Only for bytes of our own: reading them runs code."""
    parts = torch.load(io.BytesIO(data), weights_only=False)
    root = nn.Module()
    root.__dict__.update(parts["state"])
    graph = fx.Graph()
    nodes: list[fx.Node] = []
    for name, op, target, args, kwargs, kind in parts["nodes"]:
        nodes.append(graph.create_node(op, target, _as_nodes(args, nodes), _as_nodes(kwargs, nodes), name, kind))
    graph.set_codegen(parts["codegen"])
    model = fx.GraphModule(root, graph, parts["name"])
    # The constructor takes what the graph mentions; names and order are those of the original.
    model.__dict__.update(parts["state"])
    model.meta.update(parts["meta"])
    return model


class _Place(int):
    """The number of a node, where a node stood."""


def _as_data(node: fx.Node, place: dict[fx.Node, int]) -> tuple[Any, ...]:
    args, kwargs = fx.node.map_arg((node.args, node.kwargs), lambda one: _Place(place[one]))
    return node.name, node.op, node.target, args, kwargs, node.type


def _as_nodes(value: Any, nodes: list[fx.Node]) -> Any:
    return fx.node.map_aggregate(value, lambda one: nodes[one] if isinstance(one, _Place) else one)
