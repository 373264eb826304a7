"""What each dialect makes of a placement: which values its file rounds, decided before calibration.

The rules are those that lower an ONNX file (`dialect._placement`), on the operators that the model will be. What any
dialect wants is watched while the data runs, so that one calibration serves them all.
"""

from collections.abc import Iterable, Mapping
from dataclasses import replace

from embedl_deploy._graph.network import Network
from embedl_deploy._groups import Groups
from embedl_deploy.dialect import Dialect, dialects
from embedl_deploy.dialect._float32 import additions_of
from embedl_deploy.dialect._placement import Boundaries, Edge, GraphView, Step, place
from embedl_deploy.pattern import Point
from embedl_deploy.quantize._operators import Operators, operators_of
from embedl_deploy.quantize._placement import Boundary, Placement, Variant


class _View(GraphView[Step]):
    """The operators of a model to look around in."""

    def __init__(self, operators: Operators, edges: Mapping[Edge, str]) -> None:
        super().__init__(operators.steps, (), edges)
        self.operators = operators

    def is_constant(self, tensor: str) -> bool:
        return tensor in self.operators.constants

    def is_rounded_constant(self, tensor: str) -> bool:
        return tensor in self.operators.rounded

    def clip_bound(self, node: Step, index: int, name: str) -> float | None:
        del name
        return node.low if index == 1 else node.high

    def has_kernel(self, node: Step, dialect: Dialect) -> bool:
        return node.name in self.operators.own_kernels or super().has_kernel(node, dialect)


class _TorchBoundaries(Boundaries):
    """The boundaries of a model in torch: one on a value, known by the value's name."""

    def __init__(self, operators: Operators, edges: dict[Edge, str], groups: Groups[str]) -> None:
        self.edges = edges
        self.groups = groups
        self.operators = operators
        self.tensors = set(edges.values())
        self.prescribed: dict[str, str] = {}
        self._view = _View(operators, edges)

    def view(self) -> _View:
        return self._view

    def held(self, tensor: str) -> str | None:
        return tensor if tensor in self.tensors else None

    def ensure(self, tensor: str) -> str | None:
        """Make a boundary where a stub can stand: on a value of the graph, or on one of a layer's own points."""
        inside = "/" in tensor and tensor not in self.operators.inner
        if inside:
            return None
        self.tensors.add(tensor)
        return tensor

    def like(self, tensor: str, boundary: str) -> str:
        self.tensors.add(tensor)
        self.groups.join(boundary, tensor)
        return tensor

    def adopt(self, boundary: str, other: str) -> None:
        self.groups.join(other, boundary)

    def prescribe(self, boundary: str, op_type: str) -> None:
        self.prescribed[boundary] = op_type

    def name_output(self, tensor: str, boundary: str) -> str:
        raise AssertionError(f"{tensor} and {boundary}: outputs of a model in torch are operators")

    def tensor_at(self, boundary: str) -> str:
        return boundary

    def note(self, text: str) -> None:
        """Say nothing: a point without a stub stays in float, and the file is written so."""

    def prune(self) -> None:
        self.tensors = set(self.edges.values())


def targeted(network: Network, placement: Placement) -> Placement:
    """Add to a placement what every known dialect makes of it, and the points inside layers that it has stubs for."""
    decisions = placement.layers
    chosen = {decision.node: Point.WEIGHT in decision.points for decision in decisions if decision.quantized}
    cut = {decision.node for decision in decisions if Point.OUTPUT in decision.points}
    operators = operators_of(network, chosen)
    inner = [
        Boundary(layer, (), quantizes=layer in cut and stub != "act", group=tensor, inside=stub)
        for tensor, (layer, stub) in operators.inner.items()
    ]
    base = (*placement.boundaries, *inner)
    quantizing = [boundary for boundary in base if boundary.quantizes]
    found = {dialect.name: _variant(operators, quantizing, dialect) for dialect in dialects()}
    return replace(placement, boundaries=base, variants=found)


def _variant(operators: Operators, base: Iterable[Boundary], dialect: Dialect) -> Variant:
    groups: Groups[str] = Groups()
    edges = dict(_edges(operators, base))
    for boundary in base:
        if boundary.group != boundary.tensor:
            groups.join(boundary.group, boundary.tensor)
    found = _TorchBoundaries(operators, edges, groups)
    place(found, dialect)
    view = found.view()
    _share_scales(view, edges, groups, dialect)
    tensors = [tensor for step in operators.steps for tensor in step.input if tensor in found.tensors]
    tensors = list(dict.fromkeys(tensors))
    made = {tensor: tensor for tensor in tensors}
    boundaries = tuple(_boundary(found, view, tensor, dialect) for tensor in tensors)
    additions = tuple(additions_of(view, edges, made)) if dialect.portable else ()
    return Variant(dialect.name, boundaries, additions)


def _edges(operators: Operators, base: Iterable[Boundary]) -> Iterable[tuple[Edge, str]]:
    """List the edges that read what the patterns quantize, on values and inside layers."""
    wanted = {boundary.tensor: set(boundary.readers) for boundary in base}
    for step in operators.steps:
        for index, tensor in enumerate(step.input):
            if tensor in wanted and (not wanted[tensor] or operators.owners[step.name] in wanted[tensor]):
                yield (step.name, index), tensor


def _share_scales(view: _View, edges: Mapping[Edge, str], groups: Groups[str], dialect: Dialect) -> None:
    """Put what the operators that need it read and make into one group."""
    for node in view.order:
        if node.op_type not in dialect.one_scale:
            continue
        read = [(node.name, index) for index in view.data_inputs(node)]
        read += [(reader.name, index) for reader, index in view.readers.get(node.output[0], [])]
        names = [edges[edge] for edge in read if edge in edges]
        for name in names[1:]:
            groups.join(names[0], name)


def _boundary(found: _TorchBoundaries, view: _View, tensor: str, dialect: Dialect) -> Boundary:
    operators = found.operators
    value, inside = operators.inner.get(tensor, (tensor, ""))
    readers = {operators.owners[reader.name]: (reader.name, at) in found.edges for reader, at in view.readers[tensor]}
    for reader, at in view.readers[tensor]:
        # Two operators of one layer read one value: the layer reads it rounded if any of them does.
        readers[operators.owners[reader.name]] |= (reader.name, at) in found.edges
    everyone = all(readers.values())
    fixed = next(((scale, zero) for op, scale, zero in dialect.fixed if op == found.prescribed.get(tensor)), None)
    return Boundary(
        value, () if everyone or inside else tuple(sorted(name for name, reads in readers.items() if reads)),
        quantizes=True, group=found.groups.find(tensor), inside=inside, prescribed=fixed,
        nonnegative=dialect.relu_at_minimum and view.is_nonnegative(tensor), top=view.clip_top(tensor),
    )  # fmt: skip
