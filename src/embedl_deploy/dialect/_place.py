"""Where a dialect wants Q/DQ: drop what it cannot use, add what it asks for, on the edges of a model in parts."""

import numpy as np
import onnx
from onnx import numpy_helper

from embedl_deploy.dialect._dialects import MOVES, Dialect
from embedl_deploy.dialect._model import Parts, attribute, consumers, infer_shapes, producers, replace_nodes
from embedl_deploy.dialect._numbers import (
    LIMITS,
    Params,
    at_minimum,
    counterpart,
    for_range,
    per_tensor,
    resign,
    unzero,
)

CONVOLUTIONS = frozenset({"Conv", "ConvTranspose"})
WEIGHTED = CONVOLUTIONS | {"Gemm", "MatMul"}
_TRANSPARENT = MOVES | {"Resize"}
_KNOWN_RANGES = {"Sigmoid": (0.0, 1.0), "Softmax": (0.0, 1.0), "HardSigmoid": (0.0, 1.0), "Tanh": (-1.0, 1.0)}
_REDUCTIONS = frozenset({"ReduceMean", "ReduceMax"})
_KEEP_SIGN = _TRANSPARENT | _REDUCTIONS | {"Add", "AveragePool", "Concat", "GlobalAveragePool", "Mul", "Pad"}


class View:
    """A graph to look around in; valid until its nodes change."""

    def __init__(self, parts: Parts) -> None:
        self.parts = parts
        self.nodes = {node.name: node for node in parts.graph.node}
        self.maker = producers(parts.graph)
        self.readers = consumers(parts.graph)
        self.outputs = {value.name for value in parts.graph.output}
        self.constants = parts.constants()
        self.signs: dict[str, bool] = {}
        self.shapes: dict[str, tuple[int, ...]] | None = None

    def is_constant(self, tensor: str) -> bool:
        """Tell whether a tensor lies in the file."""
        return tensor in self.constants or tensor in self.parts.weights

    def shape(self, tensor: str) -> tuple[int, ...] | None:
        """Return a tensor's shape with -1 for open sizes, None where it is not known."""
        if self.shapes is None:
            self.shapes = infer_shapes(self.parts)
        return self.shapes.get(tensor)

    def data_inputs(self, node: onnx.NodeProto) -> list[int]:
        """Return the inputs that carry values from the network (not shapes, not constants)."""
        if node.op_type in _TRANSPARENT | {"Pad"}:
            return [0]
        return [index for index, name in enumerate(node.input) if name and not self.is_constant(name)]

    def only_reader(self, tensor: str) -> onnx.NodeProto | None:
        """Return the one node that reads a tensor, if there is one and the tensor is no graph output."""
        found = self.readers.get(tensor, [])
        return found[0][0] if len(found) == 1 and tensor not in self.outputs else None

    def tail(self, node: onnx.NodeProto) -> str:
        """Return the tensor after an operator and the Relu or Clip that a quantised kernel absorbs."""
        tensor = str(node.output[0])
        after = self.only_reader(tensor)
        if after is not None and (after.name, 0) not in self.parts.edges and self.is_floor(after):
            return str(after.output[0])
        return tensor

    def bias_tail(self, node: onnx.NodeProto) -> onnx.NodeProto:
        """Return the addition of a constant bias after a MatMul, else the node itself."""
        after = self.only_reader(node.output[0]) if node.op_type == "MatMul" else None
        if after is not None and after.op_type == "Add" and len(self.data_inputs(after)) == 1:
            return after
        return node

    def is_floor(self, node: onnx.NodeProto) -> bool:
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
        if self.is_floor(node) or node.op_type in ("Sigmoid", "Softmax", "HardSigmoid", "Abs"):
            return True
        if node.op_type not in _KEEP_SIGN:
            return False
        if node.op_type == "Pad" and len(node.input) > 2:
            return False
        first_only = node.op_type in _TRANSPARENT | _REDUCTIONS | {"Pad"}
        return all(self.is_nonnegative(name) for name in (node.input[:1] if first_only else node.input))


def place(parts: Parts, dialect: Dialect) -> None:
    """Change the edges of a model to what a dialect wants."""
    _drop_foreign_types(parts, dialect)
    if dialect.skip_only:
        _Sparse(parts, dialect).run()
    else:
        _Dense(parts, dialect).run()
    parts.prune()


def show_floors(parts: Parts, cut: frozenset[str]) -> None:
    """Spell a Relu out that stands in the zero point alone.

    Tools leave the Relu away where the zero point at the type's minimum cuts off what is negative; a dialect without
    zero points needs it back. Data that enters the network was never cut off by a Relu: there it is told in a note.

    Args:
        parts: The model.
        cut: Tensors that the file as it was read cuts off at 0; its origin may have cut off more.
    """
    place_of = {name: number for number, node in enumerate(parts.graph.node) for name in node.output}
    for name in sorted(parts.params, key=lambda name: place_of.get(parts.tensor_of[name], -1)):
        params, tensor, view = parts.params[name], parts.tensor_of[name], View(parts)
        if params.type not in LIMITS or params.bounds[0] != 0 or view.is_nonnegative(tensor):
            continue
        if tensor not in view.maker:
            if tensor in cut:
                parts.notes.append(f"{tensor}: values below 0 were cut off by the zero point and are not any more.")
            continue
        _floor(parts, view, name)


def cut_at_zero(parts: Parts) -> frozenset[str]:
    """Return the tensors whose format holds nothing below 0."""
    formats = ((parts.tensor_of[name], params) for name, params in parts.params.items())
    return frozenset(tensor for tensor, params in formats if params.type in LIMITS and params.bounds[0] == 0)


def _floor(parts: Parts, view: View, boundary: str) -> None:
    """Put a Relu before a boundary."""
    tensor = parts.tensor_of[boundary]
    floored = f"{tensor}/floor"
    for reader, index in view.readers.get(tensor, []):
        if parts.edges.get((reader.name, index)) == boundary:
            reader.input[index] = floored
    parts.tensor_of[boundary] = floored
    nodes = list(parts.graph.node)
    node = onnx.helper.make_node("Relu", [tensor], [floored], name=f"floor/{tensor}")
    nodes.insert(nodes.index(view.maker[tensor]) + 1, node)
    replace_nodes(parts.graph, nodes)


def can_hold(dialect: Dialect, params: Params) -> bool:
    """Tell whether activations of a width can be expressed; their sign is changed where it must be."""
    return not dialect.activation_types.isdisjoint({params.type, counterpart(params.type, signed=True)})


def _drop_foreign_types(parts: Parts, dialect: Dialect) -> None:
    """Leave activations in float whose type the dialect lacks; the caller has asked for that."""
    lost = [name for name, params in parts.params.items() if not can_hold(dialect, params)]
    for name in lost:
        parts.notes.append(
            f"{parts.tensor_of[name]}: {parts.params[name].type} activations are not in {dialect.name}; left in float."
        )
    parts.edges = {edge: name for edge, name in parts.edges.items() if name not in lost}
    parts.prune()


class _Sparse:
    """TensorRT's way: inputs of weighted operators, and of an addition the skip branch alone."""

    def __init__(self, parts: Parts, dialect: Dialect) -> None:
        self.parts = parts
        self.dialect = dialect
        self.view = View(parts)

    def run(self) -> None:
        for edge in list(self.parts.edges):
            if self.view.nodes[edge[0]].op_type not in self.dialect.integers or edge[0].startswith("output/"):
                del self.parts.edges[edge]
        for node in self.parts.graph.node:
            if node.op_type == "Add":
                self._addition(node)
        for node in reversed(self.parts.graph.node):
            if node.op_type in _TRANSPARENT | {"Concat", "AveragePool", "GlobalAveragePool", "Pad"}:
                self._both_or_neither(node)

    def _addition(self, node: onnx.NodeProto) -> None:
        """Keep Q/DQ on the skip branch; between a weighted operator and its addition it would break the fusion."""
        view, edges = self.view, self.parts.edges
        data = view.data_inputs(node)
        backbone = [index for index in data if self._ends_weighted(node.input[index])]
        if len(data) != 2:
            for index in data:
                edges.pop((node.name, index), None)
            return
        if not backbone:
            held = [edges.get((node.name, index)) for index in data]
            if None in held or not self._is_read(view.tail(node)):
                for index in data:
                    edges.pop((node.name, index), None)
            return
        if len(backbone) == 2:
            backbone = [max(backbone, key=lambda index: self._depth(node.input[index], node.input[1 - index]))]
        (main,) = backbone
        edges.pop((node.name, main), None)
        skip = node.input[1 - main]
        boundary = next((name for name, tensor in self.parts.tensor_of.items() if tensor == skip), None)
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
        shared = self._before(other)
        count, queue, seen = 0, [tensor], set[str]()
        while queue:
            name = queue.pop()
            node = self.view.maker.get(name)
            if name in seen or name in shared or node is None:
                continue
            seen.add(name)
            count += node.op_type in WEIGHTED
            queue.extend(node.input)
        return count

    def _before(self, tensor: str) -> set[str]:
        seen: set[str] = set()
        queue = [tensor]
        while queue:
            name = queue.pop()
            if name not in seen:
                seen.add(name)
                node = self.view.maker.get(name)
                queue.extend(node.input if node is not None else ())
        return seen - {tensor}

    def _is_read(self, tensor: str) -> bool:
        """Tell whether somebody reads a tensor in integers, if only after moving it."""
        return any(
            (reader.name, index) in self.parts.edges
            or (reader.op_type in _TRANSPARENT and index == 0 and self._is_read(reader.output[0]))
            for reader, index in self.view.readers.get(tensor, [])
        )

    def _both_or_neither(self, node: onnx.NodeProto) -> None:
        """An operator without weights that reads integers must write them too."""
        if not self._is_read(node.output[0]):
            for index in self.view.data_inputs(node):
                self.parts.edges.pop((node.name, index), None)


class _Dense:
    """The way of kernels that take and give integers: both sides of every operator that has such a kernel."""

    def __init__(self, parts: Parts, dialect: Dialect) -> None:
        self.parts = parts
        self.dialect = dialect
        self.view = View(parts)
        self.made: dict[str, str] = {}

    def run(self) -> None:
        self._melt_into_floors()
        for node in reversed(self.parts.graph.node):
            if node.op_type in _TRANSPARENT:
                self._up(node)
        for node in list(self.parts.graph.node):
            if node.op_type in WEIGHTED & self.dialect.integers:
                self._weighted(node)
            elif node.op_type in self.dialect.both_sides:
                self._both(node)
            elif node.op_type in _TRANSPARENT:
                self._down(node)
        self._read_what_is_made()
        self._drop_useless()

    def _melt_into_floors(self) -> None:
        """Round once, after the Relu: rounding before it as well would keep the kernel from absorbing it."""
        for node in self.parts.graph.node:
            alone = self.view.is_floor(node) and self.view.only_reader(node.input[0]) is node
            if alone and node.input[0] in self.view.maker and self._wanted(node.output[0]):
                self.parts.edges.pop((node.name, 0), None)
        self.parts.prune()

    def _held(self, tensor: str) -> str | None:
        """Return the boundary on a tensor that most edges read."""
        names = [name for name, held in self.parts.tensor_of.items() if held == tensor]
        count = list(self.parts.edges.values()).count
        return max(names, key=count, default=None)

    def _up(self, node: onnx.NodeProto) -> None:
        """What moves values commutes with rounding: its input may carry its output's format."""
        after, before = self._held(node.output[0]), self._held(node.input[0])
        if after is not None and before is None:
            name = self.parts.boundary(node.input[0], self.parts.params[after])
            self.parts.edges[node.name, 0] = name

    def _down(self, node: onnx.NodeProto) -> None:
        """Values that were rounded once stay on their grid: the output takes the input's format."""
        before = self.made.get(node.input[0]) or self.parts.edges.get((node.name, 0))
        if before is None or node.output[0] in self.view.outputs:
            return
        if not (self._wanted(node.output[0]) or node.input[0] in self.made):
            return
        self.parts.edges[node.name, 0] = before
        params = self.parts.params[before]
        old = self._held(node.output[0])
        if old is not None:
            self.parts.params[old] = params
        self.made[node.output[0]] = old or self.parts.boundary(node.output[0], params)

    def _wanted(self, tensor: str) -> bool:
        return any((reader.name, index) in self.parts.edges for reader, index in self.view.readers.get(tensor, []))

    def _weighted(self, node: onnx.NodeProto) -> None:
        data = self.view.data_inputs(node)[:2]
        constant = [name for name in node.input[:2] if self.view.is_constant(name)]
        ready = all((node.name, index) in self.parts.edges for index in data if index < 2)
        if not ready or any(name not in self.parts.weights for name in constant):
            return
        end = self.view.bias_tail(node)
        if node.op_type in self.dialect.outputs:
            self._make(end, f"{node.op_type} {node.name} stays in float")

    def _both(self, node: onnx.NodeProto) -> None:
        data = self.view.data_inputs(node)
        if len(data) < len([name for name in node.input if name]) or not data:
            return
        ready = [(node.name, index) in self.parts.edges or node.input[index] in self.made for index in data]
        if not any(ready):
            return
        ends = [self.made.get(node.input[index]) or self._ensure(node.input[index]) for index in data]
        lacking = [node.input[index] for index, end in zip(data, ends, strict=True) if end is None]
        if lacking:
            self._miss(lacking[0], f"{node.op_type} {node.name} stays in float")
            return
        if self._make(node, f"{node.op_type} {node.name} stays in float"):
            for index, end in zip(data, ends, strict=True):
                assert end is not None
                self.parts.edges[node.name, index] = end

    def _make(self, node: onnx.NodeProto, what: str) -> bool:
        """Have an operator's result, after an absorbed Relu, carry Q."""
        tensor = self.view.tail(node)
        boundary = self._ensure(tensor)
        if boundary is None:
            self._miss(tensor, what)
            return False
        for op_type, scale, zero in self.dialect.fixed:
            if node.op_type == op_type and self.parts.params[boundary].type == "int8":
                self.parts.params[boundary] = _fixed(scale, zero)
        self.made[tensor] = boundary
        return True

    def _miss(self, tensor: str, what: str) -> None:
        self.parts.notes.append(
            f"{what}: {self.dialect.name} wants Q on {tensor!r}, and no range was observed for it; "
            "relower with samples observes it."
        )

    def _ensure(self, tensor: str) -> str | None:
        """Return a boundary for a tensor: the one it has, else one from an observed or known range."""
        held = self._held(tensor)
        if held is not None:
            return held
        span = self._range(tensor)
        if span is None:
            return None
        params = for_range(*span, self.dialect.activation, zero_point=self.dialect.zero_point)
        return self.parts.boundary(tensor, params)

    def _range(self, tensor: str) -> tuple[float, float] | None:
        if tensor in self.parts.ranges:
            return self.parts.ranges[tensor]
        node = self.view.maker.get(tensor)
        if node is None:
            return None
        if node.op_type in _KNOWN_RANGES:
            return _KNOWN_RANGES[node.op_type]
        if self.view.is_floor(node) and node.input[0] in self.parts.ranges:
            low, high = self.parts.ranges[node.input[0]]
            return max(low, 0.0), max(high, 0.0)
        return None

    def _read_what_is_made(self) -> None:
        """A kernel that writes integers must have no reader of the float value."""
        for tensor, boundary in self.made.items():
            if tensor in self.view.outputs:
                self._name_output(tensor, boundary)
        self.view = View(self.parts)
        for tensor, boundary in self.made.items():
            for reader, index in self.view.readers.get(tensor, []):
                self.parts.edges.setdefault((reader.name, index), boundary)

    def _name_output(self, tensor: str, boundary: str) -> None:
        """Keep a graph output's name behind an Identity, so that Q and DQ can stand before it."""
        raw = f"{tensor}/raw"
        for node in self.parts.graph.node:
            for names in (node.input, node.output):
                for index, name in enumerate(names):
                    if name == tensor:
                        names[index] = raw
        node = self.parts.graph.node.add()
        node.CopyFrom(onnx.helper.make_node("Identity", [raw], [tensor], name=f"output/{tensor}"))
        for name, held in self.parts.tensor_of.items():
            if held == tensor:
                self.parts.tensor_of[name] = raw
        self.parts.edges[node.name, 0] = boundary

    def _drop_useless(self) -> None:
        """Take Q/DQ away from operators that run in float whatever stands before them."""
        sources = {self.parts.tensor_of[name] for name in self.made.values()}
        for (name, index), boundary in list(self.parts.edges.items()):
            node = self.view.nodes[name]
            if node.op_type in self.dialect.integers or self.parts.tensor_of[boundary] in sources:
                continue
            if name.startswith(("output/", "requantize/")) or self.view.is_floor(node):
                continue
            del self.parts.edges[name, index]


def _fixed(scale: float, zero: int) -> Params:
    return Params(np.asarray(scale, np.float32), np.asarray(zero, np.int64), "int8")


def share_scales(parts: Parts, dialect: Dialect) -> None:
    """Give inputs and output of the operators that need it one format: the widest range of them."""
    groups: dict[str, str] = {name: name for name in parts.tensor_of}

    def root(name: str) -> str:
        while groups[name] != name:
            name = groups[name]
        return name

    view = View(parts)
    for node in parts.graph.node:
        if node.op_type not in dialect.one_scale:
            continue
        names = [parts.edges[node.name, index] for index in view.data_inputs(node) if (node.name, index) in parts.edges]
        names += {
            parts.edges[reader.name, index]
            for reader, index in view.readers.get(node.output[0], [])
            if (reader.name, index) in parts.edges
        }
        for name in names[1:]:
            groups[root(name)] = root(names[0])
    for head in {root(name) for name in groups}:
        members = [name for name in groups if root(name) == head]
        if len(members) > 1 and not all(parts.params[name].same(parts.params[head]) for name in members):
            widest = _widest([parts.params[name] for name in members], dialect)
            for name in members:
                parts.params[name] = widest
            parts.notes.append(f"One scale for {', '.join(sorted(members))}: {dialect.name} wants it so.")


def _widest(formats: list[Params], dialect: Dialect) -> Params:
    """Return a format that holds every range, one of the given where it can."""
    low, high = min(item.bounds[0] for item in formats), max(item.bounds[1] for item in formats)
    for item in formats:
        if item.bounds[0] <= low and item.bounds[1] >= high:
            return item
    return for_range(low, high, formats[0].type, zero_point=dialect.zero_point)


def convert_formats(parts: Parts, dialect: Dialect, *, refit: bool) -> None:
    """Bring every boundary into the dialect's number format.

    Scales stay as they are unless the zero point must go. `refit` chooses scales anew from the observed ranges: a range
    that starts at 0 then uses all 256 integers, at the price of other numbers than were simulated.
    """
    view = View(parts)
    fixed = {(np.float32(scale), zero) for _, scale, zero in dialect.fixed}
    for name, params in list(parts.params.items()):
        if (np.float32(params.scale), int(params.zero_point)) in fixed or params.type not in LIMITS:
            continue
        tensor = parts.tensor_of[name]
        starts_at_zero = dialect.relu_at_minimum and view.is_nonnegative(tensor)
        found = _refitted(parts, tensor, params, dialect) if refit and tensor in parts.ranges else None
        found = found or _kept(params, dialect)
        if starts_at_zero:
            found = _within_clip(at_minimum(found), view, tensor)
        parts.params[name] = found


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


def _refitted(parts: Parts, tensor: str, params: Params, dialect: Dialect) -> Params:
    """Choose a format anew for an observed range."""
    kind = counterpart(params.type, signed=dialect.activation == "int8")
    return for_range(*parts.ranges[tensor], kind, zero_point=dialect.zero_point)


def _kept(params: Params, dialect: Dialect) -> Params:
    """Keep the scale, unless the zero point must go."""
    if not dialect.zero_point:
        return unzero(params)
    return resign(params, counterpart(params.type, signed=dialect.activation == "int8"))
