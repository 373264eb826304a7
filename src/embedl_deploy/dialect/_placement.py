"""Where a dialect wants Q/DQ, decided on any graph of operators: that of an ONNX file, or of a torch model.

One set of rules for both, so that the model a user trains and judges rounds where the file does. The rules see
operators by their ONNX names and the edges between them; what a boundary is (a format in a file, a stub in torch) is
the business of whoever implements `Boundaries`.
"""

from abc import ABC, abstractmethod
from collections.abc import Collection, Sequence
from dataclasses import dataclass, field
from typing import Any, Generic, Protocol, TypeVar

from embedl_deploy.dialect._dialects import MOVES, WEIGHTED, Dialect

Edge = tuple[str, int]
TRANSPARENT = MOVES | {"Resize"}
OUTPUT = "output/"
"""What the name of the operator that stands for a model's output begins with."""
_REDUCTIONS = frozenset({"ReduceMean", "ReduceMax"})
_KEEP_SIGN = TRANSPARENT | _REDUCTIONS | {"Add", "AveragePool", "Concat", "GlobalAveragePool", "Mul", "Pad"}
_NOT_NEGATIVE = frozenset({"Sigmoid", "Softmax", "HardSigmoid", "Abs"})


class Operator(Protocol):
    """One operator of a graph; an ``onnx.NodeProto`` is one."""

    @property
    def name(self) -> str:
        """A name that no other operator has."""

    @property
    def op_type(self) -> str:
        """What it computes, by ONNX's name."""

    @property
    def input(self) -> Sequence[str]:
        """The tensors it reads; an empty name for one that is left out."""

    @property
    def output(self) -> Sequence[str]:
        """The tensors it makes."""


@dataclass(frozen=True)
class Step:
    """An operator of a graph that is in no file."""

    name: str
    op_type: str
    input: tuple[str, ...]
    output: tuple[str, ...]
    low: float | None = None  # what it cuts off below, of a Clip
    high: float | None = None  # and above


_Node = TypeVar("_Node", bound=Operator)


class GraphView(ABC, Generic[_Node]):
    """A graph to look around in; valid until its operators change."""

    def __init__(self, nodes: Sequence[_Node], outputs: Collection[str], edges: Collection[Edge]) -> None:
        self.order = list(nodes)
        self.nodes = {node.name: node for node in nodes}
        self.maker = {name: node for node in nodes for name in node.output if name}
        self.readers: dict[str, list[tuple[_Node, int]]] = {}
        for node in nodes:
            for index, name in enumerate(node.input):
                self.readers.setdefault(name, []).append((node, index))
        self.outputs = set(outputs)
        self.edges = edges
        self.signs: dict[str, bool] = {}

    @abstractmethod
    def is_constant(self, tensor: str) -> bool:
        """Tell whether a tensor is a weight or another constant."""

    @abstractmethod
    def is_rounded_constant(self, tensor: str) -> bool:
        """Tell whether a constant is stored in integers."""

    @abstractmethod
    def clip_bound(self, node: _Node, index: int, name: str) -> float | None:
        """Return a Clip's bound, None when it has none or computes it."""

    def data_inputs(self, node: _Node) -> list[int]:
        """Return the inputs that carry values from the network (not shapes, not constants)."""
        if node.op_type in TRANSPARENT | {"Pad"}:
            return [0]
        return [index for index, name in enumerate(node.input) if name and not self.is_constant(name)]

    def has_kernel(self, node: _Node, dialect: Dialect) -> bool:
        """Tell whether a dialect's runtime can compute an operator on integers at all."""
        if node.op_type not in dialect.integers:
            return False
        with_weights = node.op_type not in WEIGHTED or self.is_constant(node.input[1])
        return with_weights or not dialect.constant_weights

    def only_reader(self, tensor: str) -> _Node | None:
        found = self.readers.get(tensor, [])
        return found[0][0] if len(found) == 1 and tensor not in self.outputs else None

    def tail(self, node: _Node) -> str:
        """Return the tensor after an operator and the Relu or Clip that a quantized kernel absorbs."""
        tensor = str(node.output[0])
        after = self.only_reader(tensor)
        if after is not None and (after.name, 0) not in self.edges and self.is_relu_like(after):
            return str(after.output[0])
        return tensor

    def bias_tail(self, node: _Node) -> _Node:
        """Return the addition of a constant bias after a MatMul, else the node itself."""
        after = self.only_reader(node.output[0]) if node.op_type == "MatMul" else None
        if after is not None and after.op_type == "Add" and len(self.data_inputs(after)) == 1:
            return after
        return node

    def gated_by(self, node: _Node, gates: Collection[str]) -> tuple[_Node, _Node] | None:
        """Return the activation and the product that make SiLU of an operator's result, if nobody else reads that."""
        readers = [reader for reader, _ in self.readers.get(node.output[0], [])]
        if len(readers) != 2 or node.output[0] in self.outputs:
            return None
        gate, product = sorted(readers, key=lambda reader: reader.op_type == "Mul")
        is_gate = gate.op_type in gates and self.only_reader(gate.output[0]) is product
        return (gate, product) if is_gate and product.op_type == "Mul" else None

    def gelu_around(self, erf: _Node) -> tuple[_Node, ...] | None:
        """Return the operators that make GELU of a value with an Erf, in order: x / √2, Erf, + 1, · x, and · 1/2."""
        before, add = self.maker.get(erf.input[0]), self.only_reader(erf.output[0])
        if before is None or before.op_type != "Div" or self.data_inputs(before) != [0] or add is None:
            return None
        product = self.only_reader(add.output[0])
        if product is None or (add.op_type, product.op_type) != ("Add", "Mul") or before.input[0] not in product.input:
            return None
        half = self.only_reader(product.output[0])
        is_half = half is not None and half.op_type == "Mul" and len(self.data_inputs(half)) == 1
        return (before, erf, add, product, half) if is_half and half is not None else None

    def is_relu_like(self, node: _Node) -> bool:
        """Tell whether a node cuts values off at 0: Relu, or Clip from 0."""
        if node.op_type == "Relu":
            return True
        if node.op_type != "Clip":
            return False
        low = self.clip_bound(node, 1, "min")
        return low is not None and low >= 0

    def is_nonnegative(self, tensor: str) -> bool:
        """Tell whether a tensor can be seen to hold no negative value."""
        if tensor not in self.signs:
            self.signs[tensor] = self._is_nonnegative(tensor)
        return self.signs[tensor]

    def _is_nonnegative(self, tensor: str) -> bool:
        node = self.maker.get(tensor)
        if node is None:
            return False
        if self.is_relu_like(node) or node.op_type in _NOT_NEGATIVE:
            return True
        if node.op_type not in _KEEP_SIGN:
            return False
        if node.op_type == "Pad" and len(node.input) > 2:
            return False
        first_only = node.op_type in TRANSPARENT | _REDUCTIONS | {"Pad"}
        return all(self.is_nonnegative(name) for name in (node.input[:1] if first_only else node.input))

    def clip_top(self, tensor: str) -> float | None:
        """Return the bound that a Clip cuts a tensor off at, looking through what only moves values."""
        node = self.maker.get(tensor)
        while node is not None and node.op_type in TRANSPARENT:
            node = self.maker.get(node.input[0])
        top = self.clip_bound(node, 2, "max") if node is not None and node.op_type == "Clip" else None
        return top if top is not None and top > 0 else None


class Boundaries(ABC):
    """The quantized values of a graph while they are placed: a boundary is a tensor in a format, known by a name."""

    edges: dict[Edge, str]  # The boundary that an operator's input reads; an edge without one reads the float value.

    @abstractmethod
    def view(self) -> GraphView[Any]:
        """Return the graph as it is now."""

    @abstractmethod
    def held(self, tensor: str) -> str | None:
        """Return the boundary on a tensor that most edges read."""

    @abstractmethod
    def ensure(self, tensor: str) -> str | None:
        """Return a boundary for a tensor, the one it has or a new one; None where no range is known for it."""

    @abstractmethod
    def like(self, tensor: str, boundary: str) -> str:
        """Return a boundary for a tensor in another one's format."""

    @abstractmethod
    def adopt(self, boundary: str, other: str) -> None:
        """Give a boundary another one's format."""

    @abstractmethod
    def prescribe(self, boundary: str, op_type: str) -> None:
        """Give a boundary the format that the dialect prescribes for results of an operator, if it does."""

    @abstractmethod
    def name_output(self, tensor: str, boundary: str) -> str:
        """Let a model's output be read through a boundary; return what the tensor before it is called now."""

    @abstractmethod
    def tensor_at(self, boundary: str) -> str:
        """Return the tensor of a boundary."""

    @abstractmethod
    def note(self, text: str) -> None:
        """Tell what was given up."""

    @abstractmethod
    def prune(self) -> None:
        """Forget the boundaries that no edge reads."""


def place(boundaries: Boundaries, dialect: Dialect) -> None:
    """Drop the Q/DQ that a dialect cannot use and add what it asks for."""
    (_SkipBranchPlacement if dialect.skip_only else _BothSidesPlacement)(boundaries, dialect).run()
    boundaries.prune()


class _SkipBranchPlacement:
    """TensorRT's way: inputs of weighted operators, and of an addition the skip branch alone."""

    def __init__(self, boundaries: Boundaries, dialect: Dialect) -> None:
        self.boundaries = boundaries
        self.dialect = dialect
        self.view = boundaries.view()

    def run(self) -> None:
        edges = self.boundaries.edges
        for edge in list(edges):
            if edge[0].startswith(OUTPUT) or not self.view.has_kernel(self.view.nodes[edge[0]], self.dialect):
                del edges[edge]
        for node in self.view.order:
            if node.op_type == "Add":
                self._addition(node)
        for node in reversed(self.view.order):
            moves = node.op_type in TRANSPARENT | {"Concat", "AveragePool", "GlobalAveragePool", "Pad"}
            # An operator without weights that reads integers must write them too.
            if moves and not self._is_read(node.output[0]):
                self._unquantize(node)

    def _addition(self, node: Operator) -> None:
        """Keep Q/DQ on the skip branch; between a weighted operator and its addition it would break the fusion."""
        view, edges = self.view, self.boundaries.edges
        data = view.data_inputs(node)
        backbone = [index for index in data if self._ends_weighted(node.input[index])]
        if len(data) != 2 or not backbone:
            quantized = len(data) == 2 and all((node.name, index) in edges for index in data)
            if not quantized or not self._is_read(view.tail(node)):
                self._unquantize(node)
            return
        if len(backbone) == 2:
            backbone = [max(backbone, key=lambda index: self._depth(node.input[index], node.input[1 - index]))]
        (main,) = backbone
        edges.pop((node.name, main), None)
        # The kernel of a convolution adds an int8 residual; a matrix product's does not, and there the residual stream
        # of a transformer would be rounded for nothing.
        boundary = self.boundaries.held(node.input[1 - main])
        if boundary is not None and self._ends_weighted(node.input[main], ("Conv", "ConvTranspose")):
            edges.setdefault((node.name, 1 - main), boundary)

    def _ends_weighted(self, tensor: str, kinds: Collection[str] = WEIGHTED) -> bool:
        """Tell whether a tensor comes from a weighted operator for this reader alone."""
        node = self.view.maker.get(tensor)
        if node is None or self.view.only_reader(tensor) is None:
            return False
        if node.op_type == "Add" and len(self.view.data_inputs(node)) == 1:
            return self._ends_weighted(node.input[self.view.data_inputs(node)[0]], kinds)
        return node.op_type in kinds

    def _depth(self, tensor: str, other: str) -> int:
        """Count the weighted operators between a tensor and what it has in common with another."""
        shared = self._before(other) - {other}
        makers = (self.view.maker.get(name) for name in self._before(tensor, shared))
        return sum(node is not None and node.op_type in WEIGHTED for node in makers)

    def _before(self, tensor: str, end: Collection[str] = ()) -> set[str]:
        """Return a tensor and everything it is made from, up to where to end."""
        seen: set[str] = set()
        queue = [tensor]
        while queue:
            name = queue.pop()
            if name not in seen and name not in end:
                seen.add(name)
                node = self.view.maker.get(name)
                queue.extend(node.input if node is not None else ())
        return seen

    def _is_read(self, tensor: str) -> bool:
        """Tell whether somebody reads a tensor in integers, if only after moving it."""
        return any(
            (reader.name, index) in self.boundaries.edges
            or (reader.op_type in TRANSPARENT and index == 0 and self._is_read(reader.output[0]))
            for reader, index in self.view.readers.get(tensor, [])
        )

    def _unquantize(self, node: Operator) -> None:
        for index in self.view.data_inputs(node):
            self.boundaries.edges.pop((node.name, index), None)


@dataclass
class _BothSidesPlacement:
    """The way of kernels that take and give integers: both sides of every operator that has such a kernel."""

    boundaries: Boundaries
    dialect: Dialect
    made: dict[str, str] = field(default_factory=dict)
    gated: set[str] = field(default_factory=set)

    def run(self) -> None:
        self.view = self.boundaries.view()
        self._round_after_relu()
        self._round_after_gate()
        edges = self.boundaries.edges
        for node in reversed(self.view.order):
            # What moves values commutes with rounding: its input may carry its output's format.
            # A table of constants is rounded where it lies, or not at all.
            moves = node.op_type in TRANSPARENT and not self.view.is_constant(node.input[0])
            after = self.boundaries.held(node.output[0]) if moves else None
            if after is not None and self.boundaries.held(node.input[0]) is None:
                edges[node.name, 0] = self.boundaries.like(node.input[0], after)
        for node in self.view.order:
            if node.op_type in WEIGHTED:
                if self.view.has_kernel(node, self.dialect):
                    self._weighted(node)
            elif node.op_type in self.dialect.both_sides and node.name not in self.gated:
                self._quantize_both_sides(node)
            elif node.op_type in TRANSPARENT:
                self._quantize_output_like_input(node)
        self._read_what_is_made()
        self._drop_useless()

    def _round_after_relu(self) -> None:
        """Round once, after the Relu: rounding before it as well would keep the kernel from absorbing it."""
        for node in self.view.order:
            alone = self.view.is_relu_like(node) and self.view.only_reader(node.input[0]) is node
            if alone and node.input[0] in self.view.maker and self._wanted(node.output[0]):
                self.boundaries.edges.pop((node.name, 0), None)
        self.boundaries.prune()

    def _round_after_gate(self) -> None:
        """Round once, after an activation of two nodes: rounding inside would keep the kernel from absorbing it."""
        for node in self.view.order:
            if node.op_type not in WEIGHTED or not self.view.has_kernel(node, self.dialect):
                continue
            found = self.view.gated_by(self.view.bias_tail(node), self.dialect.gates)
            for each in found or ():
                for index in range(len(each.input)):
                    self.boundaries.edges.pop((each.name, index), None)
            self.gated |= {each.name for each in found or ()}
        self.boundaries.prune()

    def _quantize_output_like_input(self, node: Operator) -> None:
        """Values that were rounded once stay on their grid: the output takes the input's format."""
        before = self.made.get(node.input[0]) or self.boundaries.edges.get((node.name, 0))
        if before is None or node.output[0] in self.view.outputs:
            return
        if not (self._wanted(node.output[0]) or node.input[0] in self.made):
            return
        self.boundaries.edges[node.name, 0] = before
        old = self.boundaries.held(node.output[0])
        if old is not None:
            self.boundaries.adopt(old, before)
        self.made[node.output[0]] = old or self.boundaries.like(node.output[0], before)

    def _wanted(self, tensor: str) -> bool:
        edges = self.boundaries.edges
        return any((reader.name, index) in edges for reader, index in self.view.readers.get(tensor, []))

    def _weighted(self, node: Operator) -> None:
        data = self.view.data_inputs(node)[:2]
        constant = [name for name in node.input[:2] if self.view.is_constant(name)]
        ready = all((node.name, index) in self.boundaries.edges for index in data if index < 2)
        if not ready or not all(map(self.view.is_rounded_constant, constant)):
            return
        if node.op_type in self.dialect.outputs:
            self._make(self.view.bias_tail(node), f"{node.op_type} {node.name} stays in float")

    def _quantize_both_sides(self, node: Operator) -> None:
        data = self.view.data_inputs(node)
        if len(data) < len([name for name in node.input if name]) or not data:
            return
        edges = self.boundaries.edges
        ready = [(node.name, index) in edges or node.input[index] in self.made for index in data]
        if not any(ready) or (node.op_type in self.dialect.keeps_float and not self._is_rounded(node)):
            return
        ends = [self.made.get(node.input[index]) or self.boundaries.ensure(node.input[index]) for index in data]
        lacking = [node.input[index] for index, end in zip(data, ends, strict=True) if end is None]
        if lacking:
            self._note_missing_range(lacking[0], f"{node.op_type} {node.name} stays in float")
            return
        if self._make(node, f"{node.op_type} {node.name} stays in float"):
            for index, end in zip(data, ends, strict=True):
                assert end is not None
                edges[node.name, index] = end

    def _is_rounded(self, node: Operator) -> bool:
        """Tell whether an operator's result was rounded before this dialect asked for it, if only further on."""
        tensor = self.view.tail(node)
        if self.boundaries.held(tensor) is not None or self._wanted(tensor):
            return True
        through = self.dialect.both_sides - self.dialect.keeps_float
        after = (reader for reader, _ in self.view.readers.get(tensor, []))
        return any(reader.op_type in through and self._is_rounded(reader) for reader in after)

    def _make(self, node: Operator, what: str) -> bool:
        """Have an operator's result, after an absorbed Relu, carry Q."""
        tensor = self.view.tail(node)
        boundary = self.boundaries.ensure(tensor)
        if boundary is None:
            self._note_missing_range(tensor, what)
            return False
        self.boundaries.prescribe(boundary, node.op_type)
        self.made[tensor] = boundary
        return True

    def _note_missing_range(self, tensor: str, what: str) -> None:
        self.boundaries.note(
            f"{what}: {self.dialect.name} wants Q on {tensor!r}, and no range was observed for it; "
            "relower with samples observes it."
        )

    def _read_what_is_made(self) -> None:
        """A kernel that writes integers must have no reader of the float value."""
        made = {
            self.boundaries.name_output(tensor, boundary) if tensor in self.view.outputs else tensor: boundary
            for tensor, boundary in self.made.items()
        }
        self.view = self.boundaries.view()
        for tensor, boundary in made.items():
            for reader, index in self.view.readers.get(tensor, []):
                self.boundaries.edges.setdefault((reader.name, index), boundary)

    def _drop_useless(self) -> None:
        """Take Q/DQ away from operators that run in float whatever stands before them."""
        sources = {self.boundaries.tensor_at(name) for name in self.made.values()}
        for (name, index), boundary in list(self.boundaries.edges.items()):
            node = self.view.nodes[name]
            if self.view.has_kernel(node, self.dialect) or self.boundaries.tensor_at(boundary) in sources:
                continue
            if name.startswith((OUTPUT, "requantize/")) or self.view.is_relu_like(node):
                continue
            del self.boundaries.edges[name, index]
