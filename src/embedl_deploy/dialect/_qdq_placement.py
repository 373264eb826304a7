"""Where a dialect wants Q/DQ in an ONNX model, and in which formats: the rules of `_placement` on a model in qdq."""

import numpy as np
import onnx
from onnx import numpy_helper

from embedl_deploy._groups import Groups
from embedl_deploy.dialect._dialects import Dialect
from embedl_deploy.dialect._float32 import below
from embedl_deploy.dialect._model import QdqModel, attribute, infer_shapes, rename_tensor, replace_all
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
from embedl_deploy.dialect._placement import OUTPUT, Boundaries, Edge, GraphView
from embedl_deploy.dialect._placement import place as place_edges

_KNOWN_RANGES = {"Sigmoid": (0.0, 1.0), "Softmax": (0.0, 1.0), "HardSigmoid": (0.0, 1.0), "Tanh": (-1.0, 1.0)}


class View(GraphView[onnx.NodeProto]):
    """The graph of an ONNX model to look around in; valid until its nodes change."""

    def __init__(self, qdq: QdqModel) -> None:
        super().__init__(qdq.graph.node, [value.name for value in qdq.graph.output], qdq.edges)
        self.qdq = qdq
        self.constants = qdq.constants()
        self.shapes: dict[str, tuple[int, ...]] | None = None

    def is_constant(self, tensor: str) -> bool:
        return tensor in self.constants or tensor in self.qdq.weights

    def is_rounded_constant(self, tensor: str) -> bool:
        return tensor in self.qdq.weights

    def shape(self, tensor: str) -> tuple[int, ...] | None:
        """Return a tensor's shape with -1 for open sizes, None where it is not known."""
        if self.shapes is None:
            self.shapes = infer_shapes(self.qdq)
        return self.shapes.get(tensor)

    def clip_bound(self, node: onnx.NodeProto, index: int, name: str) -> float | None:
        if len(node.input) > index and node.input[index]:
            tensor = self.constants.get(node.input[index])
            return None if tensor is None else float(numpy_helper.to_array(tensor).reshape(-1)[0])
        value = attribute(node, name)
        return None if value is None else float(value)


class _FileBoundaries(Boundaries):
    """The boundaries of an ONNX model; the edges are the model's own."""

    def __init__(self, qdq: QdqModel, dialect: Dialect) -> None:
        self.qdq = qdq
        self.dialect = dialect
        self.graph = View(qdq)

    @property
    def edges(self) -> dict[Edge, str]:  # type: ignore[override]
        """The edges of the model."""
        return self.qdq.edges

    def view(self) -> View:
        self.graph = View(self.qdq)
        return self.graph

    def held(self, tensor: str) -> str | None:
        names = [name for name, held in self.qdq.tensor_of.items() if held == tensor]
        if len(names) < 2:
            return names[0] if names else None
        count = list(self.qdq.edges.values()).count
        return max(names, key=count)

    def ensure(self, tensor: str) -> str | None:
        held, span = self.held(tensor), self._range(tensor)
        if held is not None or span is None:
            return held
        return self.qdq.boundary(tensor, for_range(*span, self.dialect.activation, zero_point=self.dialect.zero_point))

    def _range(self, tensor: str) -> tuple[float, float] | None:
        if tensor in self.qdq.ranges:
            return self.qdq.ranges[tensor]
        node = self.graph.maker.get(tensor)
        if node is None:
            return None
        if node.op_type in _KNOWN_RANGES:
            return _KNOWN_RANGES[node.op_type]
        if self.graph.is_relu_like(node) and node.input[0] in self.qdq.ranges:
            low, high = self.qdq.ranges[node.input[0]]
            return max(low, 0.0), max(high, 0.0)
        return None

    def like(self, tensor: str, boundary: str) -> str:
        return self.qdq.boundary(tensor, self.qdq.params[boundary])

    def adopt(self, boundary: str, other: str) -> None:
        self.qdq.params[boundary] = self.qdq.params[other]

    def prescribe(self, boundary: str, op_type: str) -> None:
        for name, scale, zero in self.dialect.fixed:
            if op_type == name and self.qdq.params[boundary].type == "int8":
                self.qdq.params[boundary] = per_tensor(scale, zero, "int8")

    def name_output(self, tensor: str, boundary: str) -> str:
        """Keep a graph output's name behind an Identity, so that Q and DQ can stand before it."""
        raw = f"{tensor}/raw"
        rename_tensor(self.qdq.graph.node, tensor, raw)
        node = self.qdq.graph.node.add()
        node.CopyFrom(onnx.helper.make_node("Identity", [raw], [tensor], name=f"{OUTPUT}{tensor}"))
        for name, held in self.qdq.tensor_of.items():
            if held == tensor:
                self.qdq.tensor_of[name] = raw
        self.qdq.edges[node.name, 0] = boundary
        return raw

    def tensor_at(self, boundary: str) -> str:
        return self.qdq.tensor_of[boundary]

    def note(self, text: str) -> None:
        self.qdq.notes.append(text)

    def prune(self) -> None:
        self.qdq.prune()


def place(qdq: QdqModel, dialect: Dialect) -> None:
    _drop_foreign_types(qdq, dialect)
    place_edges(_FileBoundaries(qdq, dialect), dialect)


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


def convert_types(qdq: QdqModel, dialect: Dialect) -> None:
    """Bring every boundary into the dialect's integer type; the numbers stay."""
    for name, params in list(qdq.params.items()):
        if params.type in LIMITS:
            signed = dialect.activation == "int8"
            qdq.params[name] = change_sign(params, counterpart(params.type, signed=signed))


def _within_clip(params: Params, view: View, tensor: str) -> Params:
    """Let a format end where a Clip ends: a kernel absorbs the Clip only if no integer lies beyond it."""
    top = view.clip_top(tensor)
    if top is None or params.bounds[1] <= top:
        return params
    least, most = LIMITS[params.type]
    return per_tensor(below(top, most - least), least, params.type)
