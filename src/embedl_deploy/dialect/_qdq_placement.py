"""Where a dialect wants Q/DQ: drop what it cannot use, add what it asks for, on the edges of a model in qdq."""

from collections.abc import Collection

import numpy as np
import onnx
from onnx import numpy_helper

from embedl_deploy._groups import Groups
from embedl_deploy.dialect._dialects import MOVES, WEIGHTED, Dialect
from embedl_deploy.dialect._model import (
    QdqModel,
    attribute,
    consumers,
    infer_shapes,
    producers,
    rename_tensor,
    replace_all,
)
from embedl_deploy.dialect._numbers import (
    LIMITS,
    Params,
    change_sign,
    counterpart,
    for_range,
    per_tensor,
    with_zero_at_minimum,
    without_zero_point,
)

_TRANSPARENT = MOVES | {"Resize"}
_KNOWN_RANGES = {"Sigmoid": (0.0, 1.0), "Softmax": (0.0, 1.0), "HardSigmoid": (0.0, 1.0), "Tanh": (-1.0, 1.0)}
_REDUCTIONS = frozenset({"ReduceMean", "ReduceMax"})
_KEEP_SIGN = _TRANSPARENT | _REDUCTIONS | {"Add", "AveragePool", "Concat", "GlobalAveragePool", "Mul", "Pad"}


class View:
    """A graph to look around in; valid until its nodes change."""

    def __init__(self, qdq: QdqModel) -> None:
        self.qdq = qdq
        self.nodes = {node.name: node for node in qdq.graph.node}
        self.maker = producers(qdq.graph)
        self.readers = consumers(qdq.graph)
        self.outputs = {value.name for value in qdq.graph.output}
        self.constants = qdq.constants()
        self.signs: dict[str, bool] = {}
        self.shapes: dict[str, tuple[int, ...]] | None = None

    def is_constant(self, tensor: str) -> bool:
        return tensor in self.constants or tensor in self.qdq.weights

    def shape(self, tensor: str) -> tuple[int, ...] | None:
        """Return a tensor's shape with -1 for open sizes, None where it is not known."""
        if self.shapes is None:
            self.shapes = infer_shapes(self.qdq)
        return self.shapes.get(tensor)

    def data_inputs(self, node: onnx.NodeProto) -> list[int]:
        """Return the inputs that carry values from the network (not shapes, not constants)."""
        if node.op_type in _TRANSPARENT | {"Pad"}:
            return [0]
        return [index for index, name in enumerate(node.input) if name and not self.is_constant(name)]

    def has_kernel(self, node: onnx.NodeProto, dialect: Dialect) -> bool:
        """Tell whether a dialect's runtime can compute an operator on integers at all."""
        if node.op_type not in dialect.integers:
            return False
        with_weights = node.op_type not in WEIGHTED or self.is_constant(node.input[1])
        return with_weights or not dialect.constant_weights

    def only_reader(self, tensor: str) -> onnx.NodeProto | None:
        found = self.readers.get(tensor, [])
        return found[0][0] if len(found) == 1 and tensor not in self.outputs else None

    def tail(self, node: onnx.NodeProto) -> str:
        """Return the tensor after an operator and the Relu or Clip that a quantized kernel absorbs."""
        tensor = str(node.output[0])
        after = self.only_reader(tensor)
        if after is not None and (after.name, 0) not in self.qdq.edges and self.is_relu_like(after):
            return str(after.output[0])
        return tensor

    def bias_tail(self, node: onnx.NodeProto) -> onnx.NodeProto:
        """Return the addition of a constant bias after a MatMul, else the node itself."""
        after = self.only_reader(node.output[0]) if node.op_type == "MatMul" else None
        if after is not None and after.op_type == "Add" and len(self.data_inputs(after)) == 1:
            return after
        return node

    def gated_by(self, node: onnx.NodeProto, gates: Collection[str]) -> tuple[onnx.NodeProto, onnx.NodeProto] | None:
        """Return the activation and the product that make SiLU of an operator's result, if nobody else reads that."""
        readers = [reader for reader, _ in self.readers.get(node.output[0], [])]
        if len(readers) != 2 or node.output[0] in self.outputs:
            return None
        gate, product = sorted(readers, key=lambda reader: reader.op_type == "Mul")
        is_gate = gate.op_type in gates and self.only_reader(gate.output[0]) is product
        return (gate, product) if is_gate and product.op_type == "Mul" else None

    def is_relu_like(self, node: onnx.NodeProto) -> bool:
        """Tell whether a node cuts values off at 0: Relu, or Clip from 0."""
        if node.op_type == "Relu":
            return True
        if node.op_type != "Clip":
            return False
        low = self.clip_bound(node, 1, "min")
        return low is not None and low >= 0

    def clip_bound(self, node: onnx.NodeProto, index: int, name: str) -> float | None:
        """Return a Clip's bound, None when it has none or computes it."""
        if len(node.input) > index and node.input[index]:
            tensor = self.constants.get(node.input[index])
            return None if tensor is None else float(numpy_helper.to_array(tensor).reshape(-1)[0])
        value = attribute(node, name)
        return None if value is None else float(value)

    def is_nonnegative(self, tensor: str) -> bool:
        """Tell whether a tensor can be seen to hold no negative value."""
        if tensor not in self.signs:
            self.signs[tensor] = self._is_nonnegative(tensor)
        return self.signs[tensor]

    def _is_nonnegative(self, tensor: str) -> bool:
        node = self.maker.get(tensor)
        if node is None:
            return False
        if self.is_relu_like(node) or node.op_type in ("Sigmoid", "Softmax", "HardSigmoid", "Abs"):
            return True
        if node.op_type not in _KEEP_SIGN:
            return False
        if node.op_type == "Pad" and len(node.input) > 2:
            return False
        first_only = node.op_type in _TRANSPARENT | _REDUCTIONS | {"Pad"}
        return all(self.is_nonnegative(name) for name in (node.input[:1] if first_only else node.input))


def place(qdq: QdqModel, dialect: Dialect) -> None:
    _drop_foreign_types(qdq, dialect)
    (_SkipBranchPlacement if dialect.skip_only else _BothSidesPlacement)(qdq, dialect).run()
    qdq.prune()


def insert_missing_relus(qdq: QdqModel, cut: frozenset[str]) -> None:
    """Spell a Relu out that stands in the zero point alone.

    Tools leave the Relu away where the zero point at the type's minimum cuts off what is negative; a dialect without
    zero points needs it back. Data that enters the network was never cut off by a Relu: there it is told in a note.

    Args:
        qdq: The model.
        cut: Tensors that the file as it was read cuts off at 0; its origin may have cut off more.
    """
    place_of = {name: number for number, node in enumerate(qdq.graph.node) for name in node.output}
    for name in sorted(qdq.params, key=lambda name: place_of.get(qdq.tensor_of[name], -1)):
        params, tensor, view = qdq.params[name], qdq.tensor_of[name], View(qdq)
        if params.type not in LIMITS or params.bounds[0] != 0 or view.is_nonnegative(tensor):
            continue
        if tensor not in view.maker:
            if tensor in cut:
                qdq.notes.append(f"{tensor}: values below 0 were cut off by the zero point and are not any more.")
            continue
        _insert_relu(qdq, view, name)


def nonnegative_tensors(qdq: QdqModel) -> frozenset[str]:
    formats = ((qdq.tensor_of[name], params) for name, params in qdq.params.items())
    return frozenset(tensor for tensor, params in formats if params.type in LIMITS and params.bounds[0] == 0)


def _insert_relu(qdq: QdqModel, view: View, boundary: str) -> None:
    """Put a Relu before a boundary."""
    tensor = qdq.tensor_of[boundary]
    floored = f"{tensor}/relu"
    for reader, index in view.readers.get(tensor, []):
        if qdq.edges.get((reader.name, index)) == boundary:
            reader.input[index] = floored
    qdq.tensor_of[boundary] = floored
    nodes = list(qdq.graph.node)
    node = onnx.helper.make_node("Relu", [tensor], [floored], name=f"inserted_relu/{tensor}")
    nodes.insert(nodes.index(view.maker[tensor]) + 1, node)
    replace_all(qdq.graph.node, nodes)


def can_hold(dialect: Dialect, params: Params) -> bool:
    """Tell whether activations of a width can be expressed; their sign is changed where it must be."""
    return not dialect.activation_types.isdisjoint({params.type, counterpart(params.type, signed=True)})


def _drop_foreign_types(qdq: QdqModel, dialect: Dialect) -> None:
    """Leave activations in float whose type the dialect lacks; the caller has asked for that."""
    lost = [name for name, params in qdq.params.items() if not can_hold(dialect, params)]
    for name in lost:
        qdq.notes.append(
            f"{qdq.tensor_of[name]}: {qdq.params[name].type} activations are not in {dialect.name}; left in float."
        )
    qdq.edges = {edge: name for edge, name in qdq.edges.items() if name not in lost}
    qdq.prune()


class _SkipBranchPlacement:
    """TensorRT's way: inputs of weighted operators, and of an addition the skip branch alone."""

    def __init__(self, qdq: QdqModel, dialect: Dialect) -> None:
        self.qdq = qdq
        self.dialect = dialect
        self.view = View(qdq)

    def run(self) -> None:
        for edge in list(self.qdq.edges):
            if self.view.nodes[edge[0]].op_type not in self.dialect.integers or edge[0].startswith("output/"):
                del self.qdq.edges[edge]
        for node in self.qdq.graph.node:
            if node.op_type == "Add":
                self._addition(node)
        for node in reversed(self.qdq.graph.node):
            moves = node.op_type in _TRANSPARENT | {"Concat", "AveragePool", "GlobalAveragePool", "Pad"}
            # An operator without weights that reads integers must write them too.
            if moves and not self._is_read(node.output[0]):
                self._unquantize(node)

    def _addition(self, node: onnx.NodeProto) -> None:
        """Keep Q/DQ on the skip branch; between a weighted operator and its addition it would break the fusion."""
        view, edges = self.view, self.qdq.edges
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
        skip = node.input[1 - main]
        boundary = next((name for name, tensor in self.qdq.tensor_of.items() if tensor == skip), None)
        if boundary is not None:
            edges.setdefault((node.name, 1 - main), boundary)

    def _ends_weighted(self, tensor: str) -> bool:
        """Tell whether a tensor comes from a weighted operator for this reader alone."""
        node = self.view.maker.get(tensor)
        if node is None or self.view.only_reader(tensor) is None:
            return False
        if node.op_type == "Add" and len(self.view.data_inputs(node)) == 1:
            return self._ends_weighted(node.input[self.view.data_inputs(node)[0]])
        return node.op_type in WEIGHTED

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
            (reader.name, index) in self.qdq.edges
            or (reader.op_type in _TRANSPARENT and index == 0 and self._is_read(reader.output[0]))
            for reader, index in self.view.readers.get(tensor, [])
        )

    def _unquantize(self, node: onnx.NodeProto) -> None:
        for index in self.view.data_inputs(node):
            self.qdq.edges.pop((node.name, index), None)


class _BothSidesPlacement:
    """The way of kernels that take and give integers: both sides of every operator that has such a kernel."""

    def __init__(self, qdq: QdqModel, dialect: Dialect) -> None:
        self.qdq = qdq
        self.dialect = dialect
        self.view = View(qdq)
        self.made: dict[str, str] = {}
        self.gated: set[str] = set()

    def run(self) -> None:
        self._round_after_relu()
        self._round_after_gate()
        for node in reversed(self.qdq.graph.node):
            # What moves values commutes with rounding: its input may carry its output's format.
            after = self._held(node.output[0]) if node.op_type in _TRANSPARENT else None
            if after is not None and self._held(node.input[0]) is None:
                self.qdq.edges[node.name, 0] = self.qdq.boundary(node.input[0], self.qdq.params[after])
        for node in list(self.qdq.graph.node):
            if node.op_type in WEIGHTED:
                if self.view.has_kernel(node, self.dialect):
                    self._weighted(node)
            elif node.op_type in self.dialect.both_sides and node.name not in self.gated:
                self._quantize_both_sides(node)
            elif node.op_type in _TRANSPARENT:
                self._quantize_output_like_input(node)
        self._read_what_is_made()
        self._drop_useless()

    def _round_after_relu(self) -> None:
        """Round once, after the Relu: rounding before it as well would keep the kernel from absorbing it."""
        for node in self.qdq.graph.node:
            alone = self.view.is_relu_like(node) and self.view.only_reader(node.input[0]) is node
            if alone and node.input[0] in self.view.maker and self._wanted(node.output[0]):
                self.qdq.edges.pop((node.name, 0), None)
        self.qdq.prune()

    def _round_after_gate(self) -> None:
        """Round once, after an activation of two nodes: rounding inside would keep the kernel from absorbing it."""
        for node in self.qdq.graph.node:
            if node.op_type not in WEIGHTED or not self.view.has_kernel(node, self.dialect):
                continue
            found = self.view.gated_by(self.view.bias_tail(node), self.dialect.gates)
            for each in found or ():
                for index in range(len(each.input)):
                    self.qdq.edges.pop((each.name, index), None)
            self.gated |= {each.name for each in found or ()}
        self.qdq.prune()

    def _held(self, tensor: str) -> str | None:
        """Return the boundary on a tensor that most edges read."""
        names = [name for name, held in self.qdq.tensor_of.items() if held == tensor]
        count = list(self.qdq.edges.values()).count
        return max(names, key=count, default=None)

    def _quantize_output_like_input(self, node: onnx.NodeProto) -> None:
        """Values that were rounded once stay on their grid: the output takes the input's format."""
        before = self.made.get(node.input[0]) or self.qdq.edges.get((node.name, 0))
        if before is None or node.output[0] in self.view.outputs:
            return
        if not (self._wanted(node.output[0]) or node.input[0] in self.made):
            return
        self.qdq.edges[node.name, 0] = before
        params = self.qdq.params[before]
        old = self._held(node.output[0])
        if old is not None:
            self.qdq.params[old] = params
        self.made[node.output[0]] = old or self.qdq.boundary(node.output[0], params)

    def _wanted(self, tensor: str) -> bool:
        return any((reader.name, index) in self.qdq.edges for reader, index in self.view.readers.get(tensor, []))

    def _weighted(self, node: onnx.NodeProto) -> None:
        data = self.view.data_inputs(node)[:2]
        constant = [name for name in node.input[:2] if self.view.is_constant(name)]
        ready = all((node.name, index) in self.qdq.edges for index in data if index < 2)
        if not ready or any(name not in self.qdq.weights for name in constant):
            return
        end = self.view.bias_tail(node)
        if node.op_type in self.dialect.outputs:
            self._make(end, f"{node.op_type} {node.name} stays in float")

    def _quantize_both_sides(self, node: onnx.NodeProto) -> None:
        data = self.view.data_inputs(node)
        if len(data) < len([name for name in node.input if name]) or not data:
            return
        ready = [(node.name, index) in self.qdq.edges or node.input[index] in self.made for index in data]
        if not any(ready) or (node.op_type in self.dialect.keeps_float and not self._is_rounded(node)):
            return
        ends = [self.made.get(node.input[index]) or self._ensure(node.input[index]) for index in data]
        lacking = [node.input[index] for index, end in zip(data, ends, strict=True) if end is None]
        if lacking:
            self._note_missing_range(lacking[0], f"{node.op_type} {node.name} stays in float")
            return
        if self._make(node, f"{node.op_type} {node.name} stays in float"):
            for index, end in zip(data, ends, strict=True):
                assert end is not None
                self.qdq.edges[node.name, index] = end

    def _is_rounded(self, node: onnx.NodeProto) -> bool:
        """Tell whether an operator's result was rounded before this dialect asked for it, if only further on."""
        tensor = self.view.tail(node)
        if self._held(tensor) is not None or self._wanted(tensor):
            return True
        through = self.dialect.both_sides - self.dialect.keeps_float
        after = (reader for reader, _ in self.view.readers.get(tensor, []))
        return any(reader.op_type in through and self._is_rounded(reader) for reader in after)

    def _make(self, node: onnx.NodeProto, what: str) -> bool:
        """Have an operator's result, after an absorbed Relu, carry Q."""
        tensor = self.view.tail(node)
        boundary = self._ensure(tensor)
        if boundary is None:
            self._note_missing_range(tensor, what)
            return False
        for op_type, scale, zero in self.dialect.fixed:
            if node.op_type == op_type and self.qdq.params[boundary].type == "int8":
                self.qdq.params[boundary] = per_tensor(scale, zero, "int8")
        self.made[tensor] = boundary
        return True

    def _note_missing_range(self, tensor: str, what: str) -> None:
        self.qdq.notes.append(
            f"{what}: {self.dialect.name} wants Q on {tensor!r}, and no range was observed for it; "
            "relower with samples observes it."
        )

    def _ensure(self, tensor: str) -> str | None:
        """Return a boundary for a tensor: the one it has, else one from an observed or known range."""
        held, span = self._held(tensor), self._range(tensor)
        if held is not None or span is None:
            return held
        return self.qdq.boundary(tensor, for_range(*span, self.dialect.activation, zero_point=self.dialect.zero_point))

    def _range(self, tensor: str) -> tuple[float, float] | None:
        if tensor in self.qdq.ranges:
            return self.qdq.ranges[tensor]
        node = self.view.maker.get(tensor)
        if node is None:
            return None
        if node.op_type in _KNOWN_RANGES:
            return _KNOWN_RANGES[node.op_type]
        if self.view.is_relu_like(node) and node.input[0] in self.qdq.ranges:
            low, high = self.qdq.ranges[node.input[0]]
            return max(low, 0.0), max(high, 0.0)
        return None

    def _read_what_is_made(self) -> None:
        """A kernel that writes integers must have no reader of the float value."""
        for tensor, boundary in self.made.items():
            if tensor in self.view.outputs:
                self._name_output(tensor, boundary)
        self.view = View(self.qdq)
        for tensor, boundary in self.made.items():
            for reader, index in self.view.readers.get(tensor, []):
                self.qdq.edges.setdefault((reader.name, index), boundary)

    def _name_output(self, tensor: str, boundary: str) -> None:
        """Keep a graph output's name behind an Identity, so that Q and DQ can stand before it."""
        raw = f"{tensor}/raw"
        rename_tensor(self.qdq.graph.node, tensor, raw)
        node = self.qdq.graph.node.add()
        node.CopyFrom(onnx.helper.make_node("Identity", [raw], [tensor], name=f"output/{tensor}"))
        for name, held in self.qdq.tensor_of.items():
            if held == tensor:
                self.qdq.tensor_of[name] = raw
        self.qdq.edges[node.name, 0] = boundary

    def _drop_useless(self) -> None:
        """Take Q/DQ away from operators that run in float whatever stands before them."""
        sources = {self.qdq.tensor_of[name] for name in self.made.values()}
        for (name, index), boundary in list(self.qdq.edges.items()):
            node = self.view.nodes[name]
            if self.view.has_kernel(node, self.dialect) or self.qdq.tensor_of[boundary] in sources:
                continue
            if name.startswith(("output/", "requantize/")) or self.view.is_relu_like(node):
                continue
            del self.qdq.edges[name, index]


def share_scales(qdq: QdqModel, dialect: Dialect) -> None:
    """Give inputs and output of the operators that need it one format: the widest range of them."""
    groups: Groups[str] = Groups()
    view = View(qdq)
    for node in qdq.graph.node:
        if node.op_type not in dialect.one_scale:
            continue
        names = [qdq.edges[node.name, index] for index in view.data_inputs(node) if (node.name, index) in qdq.edges]
        names += {
            qdq.edges[reader.name, index]
            for reader, index in view.readers.get(node.output[0], [])
            if (reader.name, index) in qdq.edges
        }
        for name in names[1:]:
            groups.join(names[0], name)
    for members in groups.sets(qdq.tensor_of):
        if not all(qdq.params[name].same(qdq.params[members[0]]) for name in members):
            widest = _widest([qdq.params[name] for name in members], dialect)
            for name in members:
                qdq.params[name] = widest
            qdq.notes.append(f"One scale for {', '.join(sorted(members))}: {dialect.name} wants it so.")


def _widest(formats: list[Params], dialect: Dialect) -> Params:
    """Return a format that holds every range, one of the given where it can."""
    low, high = min(item.bounds[0] for item in formats), max(item.bounds[1] for item in formats)
    whole = (item for item in formats if item.bounds == (low, high))
    return next(whole, None) or for_range(low, high, formats[0].type, zero_point=dialect.zero_point)


def convert_formats(qdq: QdqModel, dialect: Dialect, *, refit: bool) -> None:
    """Bring every boundary into the dialect's number format.

    Scales stay as they are unless the zero point must go. `refit` chooses scales anew from the observed ranges: a range
    that starts at 0 then uses all 256 integers, at the price of other numbers than were simulated.
    """
    view = View(qdq)
    fixed = {(np.float32(scale), zero) for _, scale, zero in dialect.fixed}
    for name, params in list(qdq.params.items()):
        if (np.float32(params.scale), int(params.zero_point)) in fixed or params.type not in LIMITS:
            continue
        tensor = qdq.tensor_of[name]
        starts_at_zero = dialect.relu_at_minimum and view.is_nonnegative(tensor)
        kind = counterpart(params.type, signed=dialect.activation == "int8")
        if refit and tensor in qdq.ranges:
            found = for_range(*qdq.ranges[tensor], kind, zero_point=dialect.zero_point)
        else:
            found = change_sign(params, kind) if dialect.zero_point else without_zero_point(params)
        if starts_at_zero:
            found = _within_clip(with_zero_at_minimum(found), view, tensor)
        qdq.params[name] = found


def _within_clip(params: Params, view: View, tensor: str) -> Params:
    """Let a format end where a Clip ends: a kernel absorbs the Clip only if no integer lies beyond it."""
    node = view.maker.get(tensor)
    while node is not None and node.op_type in _TRANSPARENT:
        node = view.maker.get(node.input[0])
    top = view.clip_bound(node, 2, "max") if node is not None and node.op_type == "Clip" else None
    if top is None or top <= 0 or params.bounds[1] <= top:
        return params
    least, most = LIMITS[params.type]
    scale = np.float32(top / (most - least))
    while float(scale) * (most - least) > top:
        scale = np.nextafter(scale, np.float32(0))
    return per_tensor(float(scale), least, params.type)
