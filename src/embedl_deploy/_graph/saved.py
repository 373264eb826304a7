"""A graph module that `torch.save` can write: its nodes as plain data, not its generated code.

torch writes the code and traces it again on reading, which fails on annotations that are strings and loses what nodes
know of the user's model.
"""

from collections.abc import Mapping
from typing import Any

from torch import fx, nn

_GRAPH = ("_graph", "_code", "_lineno_map", "_prologue_start", "meta")
_PLAIN = (bool, int, float, str, type(None))


class SavableGraphModule(fx.GraphModule):
    """A graph module that is pickled node by node; what its graph refers to must be importable where it is read."""

    def __reduce__(self) -> tuple[Any, ...]:
        """Return how it is made again."""
        return restored, (parts_of(self, self.meta),)


def parts_of(model: fx.GraphModule, meta: Mapping[str, Any]) -> dict[str, Any]:
    """Return what a model is made of, with no reference to its graph."""
    place = {node: _Place(number) for number, node in enumerate(model.graph.nodes)}
    return {
        "nodes": [
            (
                *(node.name, node.op, node.target),
                *fx.node.map_arg((node.args, node.kwargs), place.__getitem__),
                *(node.type if isinstance(node.type, type) else None, _plain_part(node.meta)),
            )
            for node in model.graph.nodes
        ],
        "codegen": model.graph._codegen,
        "state": {name: value for name, value in model.__dict__.items() if name not in _GRAPH},
        "meta": dict(meta),
        "name": type(model).__name__,
    }


def restored(parts: Mapping[str, Any]) -> SavableGraphModule:
    """Return the model that `parts_of` was given."""
    root = nn.Module()
    root.__dict__.update(parts["state"])
    graph = fx.Graph()
    nodes: list[fx.Node] = []
    for name, op, target, args, kwargs, kind, marks in parts["nodes"]:
        node = graph.create_node(op, target, _as_nodes(args, nodes), _as_nodes(kwargs, nodes), name, kind)
        node.meta = dict(marks)
        nodes.append(node)
    graph.set_codegen(parts["codegen"])
    model = SavableGraphModule(root, graph, parts["name"])
    # The constructor takes what the graph mentions; names and order are those of the original.
    model.__dict__.update(parts["state"])
    model.meta = dict(parts["meta"])
    return model


class _Place(int):
    """The number of a node, where a node stood."""


def _as_nodes(value: Any, nodes: list[fx.Node]) -> Any:
    return fx.node.map_aggregate(value, lambda item: nodes[item] if isinstance(item, _Place) else item)


def _plain_part(meta: Mapping[str, Any]) -> dict[str, Any]:
    """Leave out what tracing noted for itself: values and stacks of frames."""
    return {name: value for name, value in meta.items() if _is_plain(value)}


def _is_plain(value: object) -> bool:
    if isinstance(value, list | tuple):
        return all(_is_plain(item) for item in value)
    return isinstance(value, _PLAIN)
