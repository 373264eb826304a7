"""A model as a graph: nodes, the tensors between them, and what nodes can be colored by."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Dict, Mapping, Optional, Tuple, Union

Size = Union[int, str, None]
Value = Union[float, str]


class GraphError(ValueError):
    """A model cannot be shown; the text says why, and what can be done."""


@dataclass(frozen=True)
class Tensor:
    """A value between nodes; a size of None or a name is open, a shape of None is not told."""

    name: str
    dtype: str = ""
    shape: Optional[Tuple[Size, ...]] = None
    is_constant: bool = False

    def __str__(self) -> str:
        sizes = "" if self.shape is None else "[{}]".format(", ".join("?" if s is None else str(s) for s in self.shape))
        return " ".join(part for part in (self.dtype, sizes) if part)


@dataclass(frozen=True)
class Node:
    """One operator; ``module`` is the dotted name of the PyTorch module it comes from, empty where nobody tells."""

    name: str
    op_type: str
    inputs: Tuple[str, ...] = ()
    outputs: Tuple[str, ...] = ()
    module: str = ""
    precision: str = ""
    attributes: Tuple[Tuple[str, str], ...] = ()
    is_constant: bool = False  # computed from weights alone


@dataclass(frozen=True)
class Coloring:
    """Something that nodes are colored by: numbers, of which the larger are darker, or words."""

    key: str
    title: str
    values: Mapping[int, Value]  # by the number of the node
    unit: str = ""
    note: str = ""


@dataclass(frozen=True)
class ModelGraph:
    """A model: its nodes in the order of the file, its tensors by name."""

    title: str
    kind: str  # ``ONNX``, ``TFLite`` or ``PyTorch``
    nodes: Tuple[Node, ...]
    tensors: Mapping[str, Tensor] = field(default_factory=dict)
    inputs: Tuple[str, ...] = ()
    outputs: Tuple[str, ...] = ()
    colorings: Tuple[Coloring, ...] = ()
    notes: Tuple[str, ...] = ()  # what could not be read, and where modules come from

    def numbers(self) -> Dict[str, int]:
        """Return the number of each node by its name; of nodes with the same name the first."""
        found: Dict[str, int] = {}
        for number, node in enumerate(self.nodes):
            found.setdefault(node.name, number)
        return found
