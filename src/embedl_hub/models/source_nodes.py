"""Which nodes of the user's model each layer of a runtime stands for: claims by name, then by neighborhood.

A runtime's own file says which names lead where; what is left between two layers joins its neighbors here.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Self

from embedl_hub.models.onnx_file import nodes_of

if TYPE_CHECKING:
    import onnx

_WITHOUT_WORK = {"Constant", "Identity", "Dropout"}


@dataclass
class Claims:
    """Who stands for which source node; the first claim holds."""

    sources: Mapping[str, onnx.NodeProto]  # the nodes by name
    makers: Mapping[str, str]  # the nodes that write each tensor
    of: dict[str, int] = field(default_factory=dict)  # the layer of each node, as far as it is claimed

    @classmethod
    def of_model(cls, source: onnx.ModelProto) -> Self:
        """Return empty claims on a model that has a name on every node."""
        nodes = list(nodes_of(source.graph))
        makers = {output: node.name for node in nodes for output in node.output if output}
        return cls({node.name: node for node in nodes}, makers)

    def claim(self, name: str, row: int) -> None:
        """Let a layer stand for a node, unless another does."""
        self.of.setdefault(name, row)

    def nodes(self, row: int) -> list[str]:
        """Return the nodes that a layer stands for, in the order of the model."""
        return [name for name in self.sources if self.of.get(name) == row]

    def absorb_before(self, row: int, nodes: Iterable[str] | None = None, until: Collection[str] = ()) -> None:
        """Let a layer that was anchored at the end of what it fused take in what leads there.

        ``nodes`` are where to begin, its own when not given; what stands before an operator of a kind in ``until`` is
        left.
        """
        waiting = list(self.nodes(row) if nodes is None else nodes)
        while waiting:
            for tensor in self.sources[waiting.pop()].input:
                before = self.makers.get(tensor)
                if before is not None and before not in self.of:
                    self.claim(before, row)
                    waiting += [] if self.sources[before].op_type in until else [before]

    def join_neighbors(self, source: onnx.ModelProto) -> None:
        """Give the layers around it what is left and costs time at run time."""
        working = _working(list(self.sources.values()), {value.name for value in source.graph.initializer})
        self._join_producers(working)
        self._join_readers(working)

    def _join_producers(self, nodes: Sequence[onnx.NodeProto]) -> None:
        """What is left between two layers was fused into the one before it: an activation, an addition, a norm."""
        for node in nodes:
            makers = (self.makers.get(name) for name in node.input)
            before = [self.of[maker] for maker in makers if maker is not None and maker in self.of]
            if node.name not in self.of and before:
                self.claim(node.name, max(before))

    def _join_readers(self, nodes: Sequence[onnx.NodeProto]) -> None:
        """What stands before every layer joins the first that reads it."""
        readers: dict[str, list[str]] = {}
        for node in self.sources.values():
            for name in node.input:
                readers.setdefault(name, []).append(node.name)
        for node in reversed(nodes):
            after = [self.of[name] for output in node.output for name in readers.get(output, ()) if name in self.of]
            if node.name not in self.of and after:
                self.claim(node.name, min(after))


def _working(nodes: Sequence[onnx.NodeProto], constants: set[str]) -> list[onnx.NodeProto]:
    """Return the nodes that cost time at run time: not what is computed once at load time, nor what does nothing."""
    constant = set(constants)
    working = []
    for node in nodes:
        if all(name in constant for name in node.input if name):
            constant.update(node.output)
        elif node.op_type not in _WITHOUT_WORK:
            working.append(node)
    return working
