"""What kernels compute in that hand integers on to each other: it follows from the whole graph, not from one operator.

OpenVINO's way, as its CPU plugin does it (2026.4), and seen in the layers that it reports:

- a rounding stays an integer where a kernel takes it as such or several read it; where only one other reader would
  scale it back, it is a rounded float; of two that one sum reads, one takes both scales and the other is left as it is;
- behind a convolution, a product or a reduction, operators number by number melt into its kernel while nobody else
  reads what is between them; a convolution's kernel adds one other tensor too;
- what is left of them joins what it reads, roundings included, into one kernel, unless that would wait for itself;
- a kernel of them has room for so many tensors and constants by channel, and what it writes has sizes that fit each
  other; what does not fit begins another;
- such a kernel counts as one of integers where it reads any and writes nothing else;
- a rounding behind a Transpose is done before it; behind any other move it stays, and what only scales integers, as a
  product with a constant does, waits for it there.
"""

import copy
import itertools
from collections import Counter
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from functools import cached_property
from typing import NamedTuple

import numpy as np
import onnx

from embedl_deploy.dialect._dialects import CONVOLUTIONS, MOVES, WEIGHTED
from embedl_deploy.dialect._model import QdqModel, attribute
from embedl_deploy.dialect._qdq_placement import View

_REDUCING = frozenset({
    "AveragePool", "GlobalAveragePool", "GlobalMaxPool", "ReduceMax", "ReduceMean", "ReduceMin", "ReduceSum", "Resize",
})  # fmt: skip
_PASSING = MOVES | {"Concat", "DepthToSpace", "Expand", "Gather", "Identity", "Pad", "SpaceToDepth", "Split"}
# What melts into the kernel before it; behind a sum, fewer do.
_BEHIND_SUM = frozenset({"Clip", "Elu", "HardSwish", "LeakyRelu", "PRelu", "Relu", "Sigmoid"})
_SIMPLE = _BEHIND_SUM | {"Abs", "Gelu", "Sqrt", "Tanh"}
_SUMS = frozenset({"Add", "Sub"})
_SCALED = _SUMS | {"Mul"}
_SCALING = _SCALED | {"Div", "Neg", "Relu"}
_BY_CONSTANT = _SCALED | {"BatchNormalization", "Div"}
POINTWISE = _SIMPLE | _BY_CONSTANT | {"Erf", "Exp", "Neg", "Pow", "Where"}
"""What is part of some kernel of several operators."""
_NEVER_MOVED_BY = frozenset({"DepthToSpace", "Expand", "SpaceToDepth", "Tile"})
_RENAMING = frozenset({"Flatten", "Reshape", "Squeeze", "Unsqueeze"})
_EIGHT_BITS = frozenset({"int8", "uint8"})
_MOST_STEPS = 20
# What a kernel of pointwise operators can read and write at most, constants by channel among it: on x86 it has so many
# registers for their places.
_MOST_PLACES = 11
# A range of int8 behind a Concat is kept as integers only if its ends, rounded, are so far apart; seen in 60 of them.
_LEAST_SIGNED = 2


class Carried(NamedTuple):
    """The kernel that does an operator's work, and what it computes in."""

    root: str  # the operator that it begins with, by name; empty for one of pointwise operators alone
    reads_integers: bool  # any
    writes_integers: bool  # and nothing else

    @property
    def is_integer(self) -> bool:
        """Whether the runtime says of it that it computes in integers."""
        return self.reads_integers and (bool(self.root) or self.writes_integers)


class _Move(NamedTuple):
    """What a rounding behind moves is part of."""

    maker: onnx.NodeProto  # who computes what is moved
    is_before: bool  # whether it is rounded before it is moved


@dataclass
class _Links:
    """Who reads the roundings of a graph."""

    qdq: QdqModel
    view: View
    readers: dict[str, list[onnx.NodeProto]] = field(default_factory=dict)
    on_tensor: dict[str, list[str]] = field(default_factory=dict)

    def __post_init__(self) -> None:
        for (name, _), boundary in self.qdq.edges.items():
            if name in self.view.nodes:
                self.readers.setdefault(boundary, []).append(self.view.nodes[name])
        for boundary in self.readers:
            self.on_tensor.setdefault(self.qdq.tensor_of[boundary], []).append(boundary)

    def takers(self, boundary: str) -> list[tuple[onnx.NodeProto, bool]]:
        """Return who reads a rounding in the end, behind what only moves it, and whether as integers."""
        return [found for reader in self.readers[boundary] for found in self._behind(reader)]

    def _behind(self, node: onnx.NodeProto, depth: int = 0) -> Iterator[tuple[onnx.NodeProto, bool]]:
        if node.op_type not in _PASSING or depth > _MOST_STEPS:
            yield node, self.takes(node)
            return
        if node.op_type == "Concat" and self._is_signed_behind(node):
            return  # rounded to floats
        readers = [found for tensor in node.output for found in self.view.readers.get(tensor, [])]
        for reader, index in readers:
            if (reader.name, index) in self.qdq.edges:
                yield node, True  # rounded again: it carries integers
            else:
                yield from self._behind(reader, depth + 1)
        if not readers:
            yield node, False

    def takes(self, node: onnx.NodeProto) -> bool:
        """Tell whether a node's kernel computes on the integers that it is given."""
        if node.op_type == "MatMul" and node.input[1] not in self.qdq.weights:
            return self._is_product_of_integers(node)
        if node.op_type not in WEIGHTED | _REDUCING or not self.is_rounded(node) or self._is_behind_signed(node):
            return False
        if node.op_type == "ConvTranspose" and self.is_shifted(str(self.rounding(node, 0))):
            return False
        if node.op_type == "Resize":
            return bool(attribute(node, "mode", b"nearest") == b"nearest")
        if node.op_type in WEIGHTED:
            return node.input[1] in self.qdq.weights
        return not (node.op_type == "AveragePool" and attribute(node, "ceil_mode", 0))

    def _is_product_of_integers(self, node: onnx.NodeProto) -> bool:
        """Tell whether both factors are integers whose zero is 0, the second one signed."""
        held = [self.rounding(node, index) for index in range(2)]
        if None in held or self.view.is_constant(node.input[0]):
            return False
        first, second = (self.qdq.params[str(each)] for each in held)
        if not {first.type, second.type} <= _EIGHT_BITS:
            return False
        middle = 128 if second.type == "uint8" else 0
        return not np.any(first.zero_point) and bool(np.all(second.zero_point == middle))

    def _is_behind_signed(self, node: onnx.NodeProto) -> bool:
        """Tell whether what a node reads was joined and rounded to int8, which OpenVINO keeps as floats."""
        boundary = self.rounding(node, 0)
        maker = None if boundary is None else self.view.maker.get(self.qdq.tensor_of[boundary])
        if maker is not None and maker.op_type == "Relu":
            maker = self.view.maker.get(maker.input[0])
        return maker is not None and maker.op_type == "Concat" and self._is_signed_behind(maker)

    def _is_signed_behind(self, concat: onnx.NodeProto) -> bool:
        """Tell whether a result, or the result of the Relu behind it, is rounded to int8 for its one reader."""
        after = self.view.only_reader(concat.output[0])
        if after is not None and after.op_type == "Relu" and (after.name, 0) not in self.qdq.edges:
            return self._is_signed_behind(after)
        formats = [self.qdq.params[each] for each in self.on_tensor.get(concat.output[0], ())]
        if len(formats) != 1 or formats[0].type != "int8" or np.size(formats[0].scale) != 1:
            return False
        low, high = formats[0].bounds
        return bool(np.rint(high) - np.rint(low) < _LEAST_SIGNED)

    def rounding(self, node: onnx.NodeProto, index: int) -> str | None:
        """Return the rounding that a node reads, if only before it was moved."""
        boundary = self.qdq.edges.get((node.name, index))
        maker = self.view.maker.get(node.input[index])
        while boundary is None and maker is not None and maker.input and self._hands_on(maker):
            place = self.operands(maker)[0] if maker.op_type == "Mul" else 0
            boundary = self.qdq.edges.get((maker.name, place))
            maker = self.view.maker.get(maker.input[place])
        return boundary

    def _hands_on(self, node: onnx.NodeProto) -> bool:
        """Tell whether a node's result is what it reads, moved, or with a scale that joins the one of a rounding."""
        if node.op_type != "Mul":
            return node.op_type in _PASSING
        scales = [name for name in node.input if self.view.is_constant(name)]
        return len(scales) == 1 and self.count(scales[0]) == 1

    def is_rounded(self, node: onnx.NodeProto) -> bool:
        boundary = self.rounding(node, 0)
        return boundary is not None and self.qdq.params[boundary].type in _EIGHT_BITS

    def hands_on_integers(self, node: onnx.NodeProto) -> bool:
        """Tell whether a move's result is integers still: not where a Reshape takes apart what a Concat joined.

        What was joined has scales along its axis from then on.
        """
        if node.op_type not in _PASSING or not self.is_rounded(node):
            return False
        maker = self.view.maker.get(node.input[0])
        if maker is None or maker.op_type != "Concat" or node.op_type not in ("Flatten", "Reshape"):
            return True
        shape, after = (tuple(self.view.shape(name) or ()) for name in (maker.output[0], node.output[0]))
        axis = int(attribute(maker, "axis", 0))
        kept = (axis + len(shape) if axis < 0 else axis) + 1
        return shape[:kept] == after[:kept]

    def operands(self, node: onnx.NodeProto) -> list[int]:
        """Return the inputs that are no constants."""
        return [index for index, name in enumerate(node.input) if name and not self.view.is_constant(name)]

    def sources(self, node: onnx.NodeProto, *, moved: bool = True) -> list[str]:
        """Return what a node reads: its operand's rounding, with `moved` if only before a move, or its maker."""
        found = []
        for index in self.operands(node):
            maker = self.view.maker.get(node.input[index])
            boundary = self.rounding(node, index) if moved else self.qdq.edges.get((node.name, index))
            found += [boundary] if boundary is not None else [maker.name] if maker is not None else []
        return found

    def is_alone(self, node: onnx.NodeProto) -> bool:
        """Tell whether one reads a node's result: an operator, a rounding or the outside."""
        tensor = node.output[0]
        raw = sum((reader.name, at) not in self.qdq.edges for reader, at in self.view.readers.get(tensor, []))
        return raw + len(self.on_tensor.get(tensor, ())) + (tensor in self.view.outputs) == 1

    @cached_property
    def moves(self) -> Mapping[str, _Move]:
        """The roundings behind moves that are part of the kernel before those, or it of theirs."""
        found = ((boundary, self._move(boundary)) for boundary in self.readers)
        return {boundary: move for boundary, move in found if move is not None}

    @cached_property
    def moved_from(self) -> Mapping[str, str]:
        """Those roundings by the name of who computes what is moved."""
        return {move.maker.name: boundary for boundary, move in self.moves.items()}

    def _move(self, boundary: str) -> _Move | None:
        maker = self.view.maker.get(self.qdq.tensor_of[boundary])
        moves: list[onnx.NodeProto] = []
        while maker is not None and maker.op_type in _PASSING and len(moves) < _MOST_STEPS:
            if maker.op_type in _NEVER_MOVED_BY or len(self.operands(maker)) != 1 or len(maker.output) != 1:
                return None
            if (maker.name, 0) in self.qdq.edges or not self.is_alone(maker):
                return None
            moves.append(maker)
            maker = self.view.maker.get(maker.input[0])
        if maker is None or not moves or not self.is_alone(maker):
            return None
        # The Transpose nearest to the rounding lets it through, and so does what stands before that and only renames.
        is_before = moves[0].op_type == "Transpose" and {move.op_type for move in moves[1:]} <= (
            {"Transpose"} if any(move.op_type == "Transpose" for move in moves[1:]) else _RENAMING
        )
        if not is_before and not self._only_scales(maker, {move.op_type for move in moves}):
            return None
        return _Move(maker, is_before)

    def _only_scales(self, node: onnx.NodeProto, moves: set[str]) -> bool:
        """Tell whether a node's result is the integers that it reads, in another scale, also once they were moved."""
        operands = self.operands(node)
        boundary = self.rounding(node, operands[0]) if len(operands) == 1 else None
        if node.op_type not in _SCALING or boundary is None or self.qdq.params[boundary].type not in _EIGHT_BITS:
            return False
        if self.is_shifted(boundary) and (node.op_type in _SUMS | {"Relu"} or "Pad" in moves):
            return False
        if ("Pad" in moves and node.op_type in _SUMS) or ("MaxPool" in moves and node.op_type == "Neg"):
            return False
        by_channel = any(self.count(name) > 1 for name in node.input if self.view.is_constant(name))
        return not by_channel or "Slice" not in moves

    def count(self, constant: str) -> int:
        """Return how many numbers a constant has."""
        weight = self.qdq.weights.get(constant)
        dims = self.view.constants[constant].dims if weight is None else weight.values.shape
        return int(np.prod(dims))

    @cached_property
    def kept(self) -> Mapping[str, bool]:
        """Whether each rounding hands on integers."""
        return {boundary: self._is_kept(boundary) for boundary in self.readers}

    def _is_kept(self, boundary: str) -> bool:
        if self.qdq.params[boundary].type not in _EIGHT_BITS:
            return False
        takers = self.takers(boundary)
        if len(takers) > 1 or any(takes for _, takes in takers):
            return True
        if not takers:
            return False
        reader, is_shifted = takers[0][0], self.is_shifted(boundary)
        count = len(self.operands(reader))
        if reader.op_type in _SCALED and count == 2:
            return (reader.op_type == "Add" or not is_shifted) and self._is_left(reader, boundary)
        return is_shifted or (reader.op_type in _SUMS and count == 1)

    def is_shifted(self, boundary: str) -> bool:
        """Tell whether a rounding has a zero point other than 0."""
        return bool(np.any(self.qdq.params[boundary].zero_point))

    def _is_left(self, node: onnx.NodeProto, boundary: str) -> bool:
        """Tell whether a rounding stays an integer because the other operand of a sum or product takes its scale."""
        held = [self.rounding(node, index) for index in range(2)]
        if None in held or held[0] == held[1] or boundary not in held:
            return False
        return held.index(boundary) != self._scaled_operand(node, [str(each) for each in held])

    def _scaled_operand(self, node: onnx.NodeProto, held: list[str]) -> int:
        """Return which of two rounded operands becomes a float."""
        direct = [(node.name, index) in self.qdq.edges for index in range(2)]
        if direct[0] != direct[1]:
            return direct.index(True)
        several = [len(self.readers[each]) > 1 for each in held]
        if all(direct) and several[0] != several[1]:
            return several.index(False)
        makers = [self.view.maker.get(self.qdq.tensor_of[each]) for each in held]
        weighted = [maker is not None and maker.op_type in WEIGHTED for maker in makers]
        if weighted[0] == weighted[1]:
            flat = [self._is_flat(self.qdq.tensor_of[each]) for each in held]
            if any(flat):
                return flat.index(True)
        shared = [not self.view.only_reader(self.qdq.tensor_of[each]) for each in held]
        if shared[0] != shared[1]:
            return shared.index(False)
        return weighted.index(True) if weighted[0] != weighted[1] else 0

    def _is_flat(self, tensor: str) -> bool:
        """Tell whether a tensor has one place, if many channels."""
        sizes = tuple(self.view.shape(tensor) or ())
        return bool(sizes) and all(size == 1 for size in sizes[min(2, len(sizes) - 1) :])


def _told_apart(qdq: QdqModel) -> QdqModel:
    """Return a model whose roundings are called as no node is: many files call a node as they call its result."""
    named = copy.copy(qdq)
    named.tensor_of = {_name_of(boundary): tensor for boundary, tensor in qdq.tensor_of.items()}
    named.params = {_name_of(boundary): params for boundary, params in qdq.params.items()}
    named.edges = {edge: _name_of(boundary) for edge, boundary in qdq.edges.items()}
    return named


def _name_of(boundary: str) -> str:
    return f"{boundary} rounded"


class Kernels:
    """The kernels of a graph."""

    def __init__(self, model: QdqModel, view: View) -> None:
        qdq = _told_apart(model)
        self._links = _Links(qdq, view)
        self._qdq, self._view = qdq, view
        # Parts are nodes and roundings, by name.
        self._chain: dict[str, tuple[str, str]] = {}  # the root of the chain that a part is in, and its state
        self._open: set[str] = set()  # the ends of chains that may go on
        self._group: dict[str, int] = {}  # parts that are in no chain
        self._members: dict[int, set[str]] = {}  # and the other way round
        self._before: dict[str, set[int]] = {}  # groups that a part waits for
        self._same: dict[int, int] = {}
        for value in qdq.graph.input:
            self._round(value.name, None)
        for node in view.order:
            self._place(node)
            for tensor in node.output:
                self._round(tensor, node)
        self._ends: dict[int, Carried] = {}

    def of(self, node: onnx.NodeProto) -> Carried | None:
        """Return the kernel that does a node's work; None for an operator that is in none of these."""
        if node.name in self._chain:
            root = self._chain[node.name][0]
            return Carried(root, self._links.takes(self._view.nodes[root]), writes_integers=False)
        if node.name not in self._group:
            return None
        group = self._find(self._group[node.name])
        if group not in self._ends:
            self._ends[group] = self._end(group)
        return self._ends[group]

    def taken_by(self, root: onnx.NodeProto) -> tuple[str, ...]:
        """Return the nodes that melt into the kernel of another."""
        names = (node.name for node in self._view.order if node.name != root.name)
        return tuple(name for name in names if self._chain.get(name, ("", ""))[0] == root.name)

    def _round(self, tensor: str, maker: onnx.NodeProto | None) -> None:
        """Place the roundings of a tensor."""
        for boundary in self._links.on_tensor.get(tensor, ()):
            self._wait(boundary, [maker.name] if maker is not None else [])
            if move := self._links.moves.get(boundary):
                self._round_moved(boundary, move)
            elif maker is not None and maker.name in self._open:
                self._chain[boundary] = self._chain[maker.name]
                if len(self._links.takers(boundary)) == 1:
                    self._open.add(boundary)
            else:
                self._join(boundary, [maker.name] if maker is not None and not self._is_full(maker) else [])

    def _round_moved(self, boundary: str, move: _Move) -> None:
        """Place a rounding that is part of the kernel before a move, or that kernel of its own."""
        if move.is_before and move.maker.name in self._open:
            self._chain[boundary] = self._chain[move.maker.name]
        else:
            self._join(boundary, [move.maker.name])

    def _is_turned(self, part: str) -> bool:
        """Tell whether a rounding is done before its result is moved: whoever reads it is in another kernel."""
        move = self._links.moves.get(part)
        return move is not None and move.is_before and self._links.kept[part]

    def _is_full(self, node: onnx.NodeProto) -> bool:
        """Tell whether a kernel has no room for a rounding by channel: where it writes much already."""
        before = self._qdq.edges.get((node.name, 0), "")
        return node.op_type == "BatchNormalization" and before in self._group and len(self._links.readers[before]) > 2

    def _wait(self, part: str, sources: list[str]) -> None:
        self._before[part] = {self._find(group) for source in sources for group in self._before.get(source, ())}
        self._before[part] |= {self._find(self._group[source]) for source in sources if source in self._group}

    def _place(self, node: onnx.NodeProto) -> None:
        sources = self._links.sources(node)
        self._wait(node.name, sources)
        if node.op_type in WEIGHTED | _REDUCING:
            self._go_on(node, (node.name, "convolution" if node.op_type in CONVOLUTIONS else "other"))
        elif node.op_type in POINTWISE:
            chains = (self._continued(node, source, len(sources)) for source in sources)
            chain = self._gated(node) or next(filter(None, chains), None)
            if chain is not None:
                self._go_on(node, chain)
            else:
                beside = self._links.sources(node, moved=False)
                self._join(node.name, [source for source in beside if not self._is_turned(source)])

    def _go_on(self, node: onnx.NodeProto, chain: tuple[str, str]) -> None:
        self._chain[node.name] = chain
        if self._links.is_alone(node):
            self._open.add(node.name)

    def _continued(self, node: onnx.NodeProto, source: str, count: int) -> tuple[str, str] | None:
        """Return the chain of a source with a node behind it, where the node melts into it."""
        if source not in self._open:
            return None
        root, state = self._chain[source]
        if node.op_type in _SUMS and count == 2:
            return (root, "sum") if state == "convolution" else None
        if self._links.kept.get(source, False):
            return None  # scaled back in a kernel of its own
        if state == "sum" and node.op_type in _BEHIND_SUM:
            return root, "convolution"
        return (root, state) if count == 1 and node.op_type in _SIMPLE | _BY_CONSTANT else None

    def _gated(self, node: onnx.NodeProto) -> tuple[str, str] | None:
        """Return the chain of x where a node is part of x · Sigmoid(x) with no rounding inside."""
        gates = [node] if node.op_type == "Sigmoid" else [self._view.maker.get(name) for name in node.input]
        gate = next((each for each in gates if each is not None and each.op_type == "Sigmoid"), None)
        maker = None if gate is None else self._view.maker.get(gate.input[0])
        pair = None if maker is None else self._view.gated_by(maker, {"Sigmoid"})
        if maker is None or pair is None or node not in pair:
            return None
        inside = [(pair[0].name, 0), (pair[1].name, 0), (pair[1].name, 1)]
        chain = self._chain.get(maker.name)
        return None if chain is None or chain[1] == "sum" or any(edge in self._qdq.edges for edge in inside) else chain

    def _find(self, group: int) -> int:
        while self._same.get(group, group) != group:
            group = self._same[group]
        return group

    def _join(self, part: str, sources: list[str]) -> None:
        """Put a part into the groups of what it reads, as far as none of them would wait for itself."""
        own = {source: self._find(self._group[source]) for source in sources if source in self._group}
        free = []
        for group in dict.fromkeys(own.values()):
            others = [source for source in sources if own.get(source) != group]
            if not any(group in map(self._find, self._before.get(other, ())) for other in others):
                free.append(group)
        members = {part}.union(*(self._members[group] for group in free))
        if free and not self._is_possible(members):
            free, members = [], {part}
        number = free[0] if free else len(self._same)
        self._same[number] = number
        self._same |= dict.fromkeys(free[1:], number)
        self._group[part] = number
        self._members[number] = members

    def _is_possible(self, members: set[str]) -> bool:
        """Tell whether parts can be one kernel: with room for all that it reads and writes, of sizes that fit."""
        reads = {place for part in members for place in self._places_read(part, members)}
        writes = [part for part in members if self._is_result(part, members)]
        if len(reads) + len(writes) > _MOST_PLACES:
            return False
        shapes = [self._view.shape(self._tensor_of(part)) or () for part in writes]
        return all(
            len({size for size in sizes if size > 1}) <= 1
            for sizes in itertools.zip_longest(*(reversed(shape) for shape in shapes), fillvalue=1)
        )

    def _tensor_of(self, part: str) -> str:
        return self._qdq.tensor_of[part] if part in self._links.readers else self._view.nodes[part].output[0]

    def _places_read(self, part: str, members: set[str]) -> Iterator[str | tuple[str, int]]:
        """Yield the tensors that a part reads from outside, and its constants of more than one number."""
        if part in self._links.readers:
            tensor = self._qdq.tensor_of[part]
            maker = self._view.maker.get(tensor)
            move = self._links.moves.get(part)
            source = move.maker if move is not None else maker
            if source is None or source.name not in members:
                yield tensor
            return
        node = self._view.nodes[part]
        if node.op_type == "BatchNormalization":
            yield from ((part, 1), (part, 2))  # a factor and a term
        for index, name in enumerate(node.input):
            boundary, maker = self._qdq.edges.get((part, index)), self._view.maker.get(name)
            if not name:
                continue
            if self._view.is_constant(name):
                if node.op_type != "BatchNormalization" and self._links.count(name) > 1:
                    yield part, index
            elif boundary not in members and (boundary is not None or maker is None or maker.name not in members):
                yield boundary or name

    def _is_result(self, part: str, members: set[str]) -> bool:
        if part in self._links.readers:
            return any(reader.name not in members for reader in self._links.readers[part])
        return self._is_read_outside(self._view.nodes[part], members)

    def _end(self, group: int) -> Carried:
        """Return what a group of parts reads and writes."""
        members = self._members[group]
        reads = False
        writes: Counter[str] = Counter()
        for part in members:
            if part in self._links.readers:
                reads |= self._is_requantized(part)
                writes += self._rounding_writes(part, members)
            else:
                node = self._view.nodes[part]
                reads |= any(self._reads_integers(node, source) for source in self._links.sources(node)
                             if source not in members)  # fmt: skip
                writes["floats"] += self._is_read_outside(node, members)
        return Carried("", reads, writes["integers"] >= 1 and not writes["floats"])

    def _is_requantized(self, boundary: str) -> bool:
        """Tell whether a rounding begins a kernel that reads integers: what it rounds was rounded before and moved."""
        maker = self._view.maker.get(self._qdq.tensor_of[boundary])
        return maker is not None and self._links.hands_on_integers(maker)

    def _reads_integers(self, node: onnx.NodeProto, source: str) -> bool:
        is_kept = self._links.kept.get(source, False)
        is_beside = source in self._group and not self._is_turned(source)
        return is_kept and not (is_beside and self._is_scaled_before(node, source))

    def _is_scaled_before(self, node: onnx.NodeProto, boundary: str) -> bool:
        """Tell whether a reader gets what a group rounded as floats: all but a sum, which takes over the scale.

        A normalization does not mind a scale either, only a zero point.
        """
        if node.op_type == "LayerNormalization":
            return self._links.is_shifted(boundary)
        if len(self._links.operands(node)) != 2 or node.op_type not in _SCALED:
            return True
        return node.op_type == "Mul" and self._links.is_shifted(boundary)

    def _rounding_writes(self, boundary: str, members: set[str]) -> Counter[str]:
        takers = self._links.takers(boundary)
        outside = [taker for taker, takes in takers if not takes and taker.name not in members]
        if not self._links.kept[boundary]:
            return Counter(floats=int(bool(outside)))
        apart = self._is_turned(boundary)  # whoever reads it scales it, but a normalization
        floats = any(self._is_scaled_before(taker, boundary) for taker in outside
                     if not apart or taker.op_type == "LayerNormalization")  # fmt: skip
        integers = any(takes for _, takes in takers) or (bool(outside) and not floats)
        return Counter(floats=int(floats), integers=int(integers))

    def _is_read_outside(self, node: onnx.NodeProto, members: set[str]) -> bool:
        if self._links.moved_from.get(node.name) in members:
            return False
        for tensor in node.output:
            raw = [reader for reader, at in self._view.readers.get(tensor, [])
                   if (reader.name, at) not in self._qdq.edges]  # fmt: skip
            if tensor in self._view.outputs or any(reader.name not in members for reader in raw):
                return True
            if any(boundary not in members for boundary in self._links.on_tensor.get(tensor, ())):
                return True
        return False
