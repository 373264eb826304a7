"""What every operator of a converted model becomes: which compute on integers, and in which formats."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING

import numpy as np

from .qdq import Chain, Constant, Edge, Format, QdqFile, Refused, readers_of

if TYPE_CHECKING:
    from .flat import Flat, Operator
    from .matching import Match

# They move, select or join: input and output hold the same integers.
GRID = frozenset({
    "RESHAPE", "TRANSPOSE", "SLICE", "STRIDED_SLICE", "GATHER", "GATHER_ND", "SPLIT", "SPLIT_V", "CONCATENATION", "PAD",
    "MIRROR_PAD", "MAX_POOL_2D", "RESIZE_NEAREST_NEIGHBOR", "EXPAND_DIMS", "SQUEEZE", "TILE", "BROADCAST_TO", "PACK",
    "UNPACK", "SPACE_TO_DEPTH", "DEPTH_TO_SPACE", "SPACE_TO_BATCH_ND", "BATCH_TO_SPACE_ND",
})  # fmt: skip
# Their kernels take one format for input and output.
_SAME = frozenset({"AVERAGE_POOL_2D", "RESIZE_BILINEAR"})
# Any formats.
_FREE = frozenset({
    "ADD", "SUB", "MUL", "MEAN", "LEAKY_RELU", "HARD_SWISH", "GELU", "RELU", "RELU6", "BATCH_MATMUL",
})  # fmt: skip
_FIXED = {
    "LOGISTIC": Format(1 / 256, -128), "SOFTMAX": Format(1 / 256, -128), "TANH": Format(1 / 128, 0),
}  # fmt: skip
# The axis of a weight that counts output channels.
WEIGHT_AXES = {"CONV_2D": 0, "DEPTHWISE_CONV_2D": 3, "FULLY_CONNECTED": 0, "TRANSPOSE_CONV": 0}
# Where a weighted operator has its data, weight and bias.
PLACES = {"TRANSPOSE_CONV": (2, 1, 3)}


@dataclass
class Plan:
    """What becomes of each operator and tensor, by their numbers in the float model."""

    integer: dict[int, Format] = field(default_factory=dict)  # operators that compute on integers: what they write
    written: dict[int, Format] = field(default_factory=dict)  # tensors that are handed on as integers
    reads: dict[tuple[int, int], Chain] = field(default_factory=dict)  # how an operator reads a tensor
    outputs: dict[int, Chain] = field(default_factory=dict)  # how outputs of the graph are rounded
    weights: dict[int, tuple[np.ndarray, Constant]] = field(default_factory=dict)  # integers in TFLite's layout
    operands: dict[tuple[int, int], Constant] = field(default_factory=dict)  # other constants, by operator and place
    refused: list[Refused] = field(default_factory=list)
    sources: dict[int, tuple[str, ...]] = field(default_factory=dict)  # operators: the nodes they stand for


def fingerprint(values: np.ndarray) -> bytes:
    """Return what tells weights apart, whatever the order of their axes."""
    return np.sort(values.astype(np.float32).reshape(-1)).tobytes()


class Planner:
    """Leads the file's formats over to the converted model's operators."""

    def __init__(self, file: QdqFile, flat: Flat, match: Match, left_float: Mapping[int, str]) -> None:
        self._file, self._flat, self._match, self._left_float = file, flat, match, left_float
        graph = file.model.graph
        self._nodes = {node.name: node for node in graph.node}
        self._maker = {name: node for node in graph.node for name in node.output if name}
        self._readers = readers_of(file.model)
        self._ends = {value.name for value in graph.output}
        self._members: dict[int, list[str]] = {}
        for name, number in match.of_source.items():
            self._members.setdefault(number, []).append(name)
        alive = {*flat.inputs, *(int(out) for operator in flat.operators for out in operator.outputs)}
        self._seen = {number for index, number in match.of_converted.items() if index in alive}
        self._weights = {fingerprint(constant.values): constant for constant in file.constants.values()}
        self._constants = {value.name for value in graph.initializer}
        self._order = {node.name: number for number, node in enumerate(graph.node)}
        self._used: set[Edge] = set()
        self._made_within: dict[int, set[int]] = {}
        self._operators = flat.operators
        self._read_by = flat.readers()
        self._plan = Plan()

    def plan(self) -> Plan:
        """Return the plan."""
        for number, operator in enumerate(self._operators):
            for at, index in self._flat.data_inputs(operator):
                chain = self._chain(operator, index)
                if chain is not None:
                    self._plan.reads[number, at] = chain
            self._plan.sources[number] = self._nodes_of(operator)
        for index in self._flat.outputs:
            self._plan.outputs[index] = self._output_chain(index)
        for index in self._flat.inputs:
            self._hand_on(index, None)
        for number, operator in enumerate(self._operators):
            self._decide(number, operator)
        self._name_lost()
        return self._plan

    def _refuse(self, number: int, op_type: str, reason: str) -> None:
        """Name an operator that stays float; what one node became is named once."""
        nodes = ", ".join(self._plan.sources[number])
        alike = [other for other, names in self._plan.sources.items() if ", ".join(names) == nodes]
        kinds = [self._flat.op_type(self._operators[other]) for other in alike]
        kinds = [kind for kind in kinds if kind not in GRID]
        if nodes and len(kinds) > 1:
            op_type, reason = (
                ", ".join(dict.fromkeys(kinds)),
                "TFLite has no such operator: several of floats do its work",
            )
        self._plan.refused.append(Refused(nodes, op_type, reason))

    # How the file says that a tensor is read.

    def _class(self, index: int) -> int | None:
        return self._match.of_converted.get(index)

    def _prefix(self, tensor: str, depth: int = 0) -> Chain:
        """Return the roundings between where a value was made and a tensor that holds the same value."""
        node, number = self._maker.get(tensor), self._match.of_source.get(tensor)
        if node is None or depth > 64:
            return ()
        for at, name in enumerate(node.input):
            if name and self._match.of_source.get(name) == number and name != tensor:
                return _joined(self._prefix(name, depth + 1), self._file.edges.get((node.name, at), ()))
        return ()

    def _edge_chain(self, edge: Edge) -> Chain:
        tensor = self._nodes[edge[0]].input[edge[1]]
        return _joined(self._prefix(tensor), self._file.edges.get(edge, ()))

    def _chain(self, operator: Operator, index: int) -> Chain | None:
        """Return how an operator reads a tensor; None when it takes it as it comes."""
        own = self._class(index)
        if own is None or own not in self._members:
            return None
        outputs = [int(out) for out in operator.outputs]
        if any(self._class(out) == own for out in outputs):
            # Another operator that gives back what it gets, on this data, takes floats.
            return None if self._flat.op_type(operator) in GRID else ()
        edges = set()
        for target in self._targets(outputs):
            edges |= set(self._edges_between(own, target))
        if not edges:
            edges = {edge for name in self._members[own] for edge in self._readers.get(name, []) if self._leaves(edge)}
        self._used |= edges
        chains = {self._edge_chain(edge) for edge in edges}
        if len(chains) > 1:
            names = ", ".join(sorted(edge[0] for edge in edges))
            op_type = self._flat.op_type(operator)
            reason = f"one operator of TFLite stands for {names}, which read the same tensor in different formats"
            self._plan.refused.append(Refused(names, op_type, reason))
        return max(chains, key=len, default=())

    def _leaves(self, edge: Edge) -> bool:
        node = self._nodes[edge[0]]
        own = self._match.of_source.get(node.input[edge[1]])
        return all(self._match.of_source.get(name) != own for name in node.output)

    def _targets(self, outputs: list[int]) -> set[int]:
        """Return the values known to the source that are computed next."""
        found, queue, seen = set(), list(outputs), set(outputs)
        while queue:
            index = queue.pop()
            known = self._class(index)
            if known is not None and known in self._members:
                found.add(known)
                continue
            for number, _ in self._read_by.get(index, []):
                for out in self._operators[number].outputs:
                    if int(out) not in seen:
                        seen.add(int(out))
                        queue.append(int(out))
        return found

    def _edges_between(self, own: int, target: int) -> Iterator[Edge]:
        """Yield the source's edges by which one value is computed from another, past what TFLite has no tensor for."""
        queue = [self._maker[name] for name in self._members[target] if name in self._maker]
        seen = {node.name for node in queue}
        while queue:
            node = queue.pop()
            for at, name in enumerate(node.input):
                number = self._match.of_source.get(name)
                if number == own and number != target:
                    yield node.name, at
                elif number == target or (number is not None and number in self._seen):
                    continue
                elif name in self._maker and self._maker[name].name not in seen:
                    seen.add(self._maker[name].name)
                    queue.append(self._maker[name])

    def _output_chain(self, index: int) -> Chain:
        own = self._class(index)
        names = [name for name in self._members.get(own, ()) if name in self._ends] if own is not None else []
        chains = {_joined(self._prefix(name), self._file.outputs.get(name, ())) for name in names}
        return max(chains, key=len, default=())

    def _nodes_of(self, operator: Operator) -> tuple[str, ...]:
        """Return the nodes that an operator stands for: what made its value, and what TFLite has no tensor for.

        An operator that only a converter knows stands for those that its values go to.
        """
        outputs = [int(out) for out in operator.outputs]
        known = [own for own in map(self._class, outputs) if own in self._members]
        read = {self._class(int(at)) for at in operator.inputs if at >= 0}
        if any(own in read for own in known):
            # It moves a value: nodes that do so have the names of their tensors left, or none.
            names = {self._flat.name(out) for out in outputs}
            movers = (self._maker[name] for name in names if name in self._maker)
            return tuple(node.name for node in movers)
        found: dict[str, None] = {}
        for own in known or sorted(self._targets(outputs)):
            queue = [self._maker[name] for name in self._members[own] if self._is_made(name)]
            while queue:
                node = queue.pop()
                if node.name in found:
                    continue
                found[node.name] = None
                for before in node.input:
                    number = self._match.of_source.get(before)
                    if before in self._maker and number is not None and number not in self._seen:
                        queue.append(self._maker[before])
        return tuple(sorted(found, key=self._order.__getitem__))

    def _is_made(self, name: str) -> bool:
        """Tell whether a tensor's value is computed by its node, not only moved."""
        node, own = self._maker.get(name), self._match.of_source[name]
        return node is not None and all(self._match.of_source.get(before) != own for before in node.input)

    # What becomes of operators.

    def _wanted(self, index: int) -> Format | None:
        """Return the format in which everybody reads a value first, also after it was moved; None if there is none."""
        own = self._class(index)
        same = {index} if own is None else {at for at, number in self._match.of_converted.items() if number == own}
        firsts = set()
        for (number, at), chain in self._plan.reads.items():
            if int(self._operators[number].inputs[at]) in same and number not in self._within(own):
                firsts.add(chain[0] if chain else None)
        firsts |= {(chain[0] if chain else None) for out, chain in self._plan.outputs.items() if out in same}
        return firsts.pop() if len(firsts) == 1 else None

    def _within(self, own: int | None) -> set[int]:
        """Return the operators, other than those that move values, that give back a value as they get it."""
        if own is None:
            return set()
        made = self._made_within.get(own)
        if made is None:
            makers = (
                (number, operator)
                for number, operator in enumerate(self._operators)
                if any(self._class(int(out)) == own for out in operator.outputs)
            )
            made = {
                number
                for number, operator in makers
                if self._flat.op_type(operator) not in GRID
                and any(self._class(int(at)) == own for at in operator.inputs if at >= 0)
            }
            self._made_within[own] = made
        return made

    def _hand_on(self, index: int, made: Format | None) -> None:
        """Note in which format a tensor is handed on: as made, or rounded at once where everybody reads it so."""
        readers = {number for number, _ in self._read_by.get(index, [])}
        computes = bool(readers & self._within(self._class(index)))
        wanted = self._wanted(index) if self._flat.is_float(index) and not computes else None
        form = made if made is not None else wanted
        if form is not None:
            self._plan.written[index] = form

    def _read_format(self, number: int, at: int, index: int) -> Format | None:
        chain = self._plan.reads.get((number, at))
        if chain is None:
            return self._plan.written.get(index)
        return chain[-1] if chain else None

    def _decide(self, number: int, operator: Operator) -> None:
        flat = self._flat
        outputs = [int(out) for out in operator.outputs]
        data = list(flat.data_inputs(operator))
        formats = [self._read_format(number, at, index) for at, index in data]
        made: Format | None = None
        # Who reads no integers, and computes none that are read as such, was meant to be float.
        if data and outputs and flat.is_float(outputs[0]) and any(form is not None for form in formats):
            found = self._left_float.get(number) or self._integer(number, operator, formats, outputs)
            if isinstance(found, str):
                self._refuse(number, flat.op_type(operator), found)
            else:
                made = self._plan.integer[number] = found
        for out in outputs:
            self._hand_on(out, made)

    def _integer(
        self,
        number: int,
        operator: Operator,
        formats: list[Format | None],
        outputs: list[int],
    ) -> Format | str:
        """Return what an operator writes in integers, or why it computes floats."""
        kind = self._flat.op_type(operator)
        if kind not in GRID | _SAME | _FREE | set(_FIXED) | set(WEIGHT_AXES):
            return f"LiteRT has no INT8 kernel for {kind}"
        if any(form is None for form in formats):
            return "one of its inputs is float"
        inputs = [form for form in formats if form is not None]
        if kind in GRID:
            return self._moved(number, operator, inputs)
        wanted = {self._wanted(out) for out in outputs}
        out = wanted.pop()
        if wanted or out is None:
            return "its INT8 kernel writes integers, and the file has no Q on its output, or several"
        reason = _why_not(kind, inputs[0], out)
        if not reason:
            weighted = kind in WEIGHT_AXES
            reason = self._weighted(number, operator, kind) if weighted else self._operands(number, operator)
        return reason or out

    def _moved(self, number: int, operator: Operator, inputs: list[Format]) -> Format | str:
        if len(set(inputs)) > 1:
            return "its inputs have different scales"
        for at, index in enumerate(operator.inputs):
            if index < 0 or not self._flat.is_float(index):
                continue
            values = self._flat.constant(index)
            if values is None:
                continue
            constant = self._weights.get(fingerprint(values))
            if constant is None or constant.format != inputs[0]:
                return "it joins a constant that has no integers of this scale"
            self._plan.operands[number, at] = constant
        return inputs[0]

    def _operands(self, number: int, operator: Operator) -> str:
        for at, index in enumerate(operator.inputs):
            values = self._flat.constant(index) if index >= 0 and self._flat.is_float(index) else None
            if values is None:
                continue
            constant = self._weights.get(fingerprint(values))
            if constant is None or constant.scale.size != 1 or constant.codes.dtype != np.int8:
                return "its constant operand is float in the file, or has one scale per channel"
            self._plan.operands[number, at] = constant
        return ""

    def _weighted(self, number: int, operator: Operator, kind: str) -> str:
        place = PLACES.get(kind, (0, 1, 2))[1]
        values = self._flat.constant(int(operator.inputs[place]))
        if values is None:
            return "its weight is computed"
        constant = self._weights.get(fingerprint(values))
        if constant is None or constant.codes.dtype != np.int8:
            return "its weight is float in the file, or the converter changed it"
        if constant.zero_point:
            return "its weight has a zero point, and LiteRT's kernels take none but 0"
        axis = WEIGHT_AXES[kind]
        if constant.scale.size not in (1, values.shape[axis]):
            return f"its weight has {constant.scale.size} scales for {values.shape[axis]} channels"
        if constant.scale.size > 1 and constant.axis is not None:
            order = _order(constant.values, constant.axis, values, axis)
            constant = replace(constant, scale=constant.scale[order]) if len(order) == constant.scale.size else constant
        scale = constant.scale.reshape([-1 if at == axis else 1 for at in range(values.ndim)])
        codes = np.rint(values / np.where(scale == 0, 1, scale))
        if np.abs(codes).max(initial=0) > 128 or not np.array_equal((codes.astype(np.float32) * scale), values):
            return "its weight has its scales along an axis that TFLite has none for"
        self._plan.weights[number] = codes.astype(np.int8), constant
        return ""

    def _name_lost(self) -> None:
        """Name the roundings that no operator of the converted model stands for."""
        for edge, chain in self._file.edges.items():
            node = self._nodes.get(edge[0])
            if node is None or not chain or edge in self._used or not node.input[edge[1]]:
                continue
            own = self._match.of_source.get(node.input[edge[1]])
            if own is None or own in self._seen or not self._leaves(edge):
                continue
            reason = f"TFLite has no tensor for {node.input[edge[1]]!r}, so its rounding is left out"
            self._plan.refused.append(Refused(node.name, node.op_type, reason))


def _order(source: np.ndarray, axis: int, converted: np.ndarray, own: int) -> np.ndarray:
    """Return which of the source's channels each of a converted weight's is, told by values; fewer where none fits."""
    left = {at: fingerprint(np.take(source, at, axis)) for at in range(source.shape[axis])}
    found = []
    for at in range(converted.shape[own]):
        wanted = fingerprint(np.take(converted, at, own))
        match = at if left.get(at) == wanted else next((key for key, value in left.items() if value == wanted), None)
        if match is not None:
            found.append(match)
            del left[match]
    return np.asarray(found, np.int64)


def _joined(first: Chain, second: Chain) -> Chain:
    """Return one chain after another; rounding twice to the same format is rounding once."""
    return first + (second[1:] if first and second and first[-1] == second[0] else second)


def _why_not(kind: str, into: Format, out: Format) -> str:
    """Say why a kernel has no such formats; empty when it has."""
    fixed = _FIXED.get(kind)
    if fixed is not None and not _near(out, fixed):
        return f"LiteRT prescribes scale {fixed.scale} and zero point {fixed.zero_point} for its output"
    if kind in _SAME and into != out:
        return "its kernel takes one scale for input and output, and the file has two"
    return ""


def _near(one: Format, other: Format) -> bool:
    return one.zero_point == other.zero_point and abs(one.scale - other.scale) <= 1e-6 * other.scale  # as float32
