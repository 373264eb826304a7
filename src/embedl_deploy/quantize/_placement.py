"""Where quantise/dequantise pairs go: decided from the backend's patterns, as data that can be printed.

A layer's pattern says which of its points carry a pair and what must be quantised around it first. The pairs are then
placed on values, one for each value however many layers read it, so that two readers never see two scales.
"""

from collections.abc import Collection, Iterable, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

import torch
from torch import fx, nn

from embedl_deploy._graph import Network
from embedl_deploy._match import Matcher
from embedl_deploy._table import table
from embedl_deploy.pattern import Pattern, Phase, Point, When
from embedl_deploy.quantize._skip import Skip

_SKIPPED = "skipped by the user"
_MOVES: frozenset[Any] = frozenset({torch.flatten, torch.reshape, torch.squeeze, torch.unsqueeze})
_MOVING_METHODS = frozenset({"flatten", "reshape", "view", "squeeze", "unsqueeze", "contiguous"})


@dataclass(frozen=True)
class Decision:
    """What happens to one layer, and the rule that decided.

    Attributes:
        place: Qualified name in the user's model.
        layer: The kind of the layer.
        quantized: Whether it runs on quantised numbers.
        rule: Why.
        pattern: The pattern that decided, empty when no pattern knows the layer.
        points: Where pairs go on this layer.
        node: The graph's name for it.
    """

    place: str
    layer: str
    quantized: bool
    rule: str
    pattern: str
    points: tuple[Point, ...]
    node: str

    @property
    def runs(self) -> str:
        """The word for tables."""
        return "quantised" if self.quantized else "float"


@dataclass(frozen=True)
class Boundary:
    """A value that gets a stub.

    Attributes:
        value: The graph's name for the value.
        readers: Graph names of those that read the stub instead; empty means all of them.
        quantizes: It carries a pair; otherwise its range is only watched, for targets that want one here.
        group: Values of one group have one scale.
    """

    value: str
    readers: tuple[str, ...]
    quantizes: bool
    group: str


@dataclass(frozen=True)
class Placement:
    """All decisions about a network.

    Attributes:
        layers: One decision per layer, in the order of the data.
        boundaries: The values that get stubs.
        smooth: Targets of the normalisations that may be smoothed into their readers.
        integer_kernels: Eval mode computes what the target's integer kernels do.
        symmetric: What the target wants of activations.
    """

    layers: tuple[Decision, ...]
    boundaries: tuple[Boundary, ...]
    smooth: tuple[str, ...] = ()
    integer_kernels: bool = False
    symmetric: bool = True

    def __str__(self) -> str:
        rows = [
            (
                one.place,
                one.layer,
                "quantised" if one.quantized else "float",
                ", ".join(p.value for p in one.points),
                one.rule,
            )
            for one in self.layers
        ]
        return table(("layer", "kind", "runs", "pairs on", "rule"), rows)

    def with_islands(self, islands: Collection[str]) -> "Placement":
        """Return the same, saying of layers that were skipped for a goal that nobody else wanted it."""
        layers = (
            replace(one, rule="left float to meet the target") if one.place in islands and one.rule == _SKIPPED else one
            for one in self.layers
        )
        return replace(self, layers=tuple(layers))

    @property
    def quantized(self) -> tuple[Decision, ...]:
        """The layers that run on quantised numbers."""
        return tuple(one for one in self.layers if one.quantized)


@dataclass
class _Wanted:
    """A value that some layer wants quantised, while the plan is made."""

    readers: set[fx.Node] = field(default_factory=set)
    everyone: bool = False


class _Groups:
    """Sets of values that have one scale."""

    def __init__(self) -> None:
        self._parent: dict[fx.Node, fx.Node] = {}

    def find(self, node: fx.Node) -> fx.Node:
        while node in self._parent:
            node = self._parent[node]
        return node

    def join(self, one: fx.Node, other: fx.Node) -> None:
        first, second = sorted((self.find(one), self.find(other)))
        if first is not second:
            self._parent[second] = first


def plan_placement(network: Network, patterns: Sequence[type[Pattern]], skip: Skip) -> Placement:
    """Decide for every layer and every value."""
    planner = _Planner(network, Matcher([one for one in patterns if one.phase is Phase.QUANTIZED]), skip)
    smooth = Matcher([one for one in patterns if one.phase is Phase.SMOOTH]).find(network)
    allowed = [found for found in smooth if found.pattern().check(found.match) is None]
    return replace(
        planner.plan(),
        smooth=tuple(str(found.match.output.target) for found in allowed if not skip.covers_smooth(found.match.output)),
    )


class _Planner:
    """Decides in three sweeps: what is always quantised, what follows its inputs, what follows its readers."""

    def __init__(self, network: Network, matcher: Matcher, skip: Skip) -> None:
        self.network = network
        self.matcher = matcher
        self.skip = skip
        self.wanted: dict[fx.Node, _Wanted] = {}
        self.groups = _Groups()
        self.decisions: dict[fx.Node, Decision] = {}

    def plan(self) -> Placement:
        nodes = [node for node in self.network.graph.nodes if node.op == "call_module"]
        found = {node: self._pattern_at(node) for node in nodes}
        for when, order in ((When.ALWAYS, nodes), (When.INPUTS, nodes), (When.OUTPUT, nodes[::-1])):
            for node in order:
                pattern, refusal = found[node]
                if pattern is not None and pattern.qdq_when is when:
                    self._decide(node, pattern, refusal)
        for node in nodes:
            if node not in self.decisions and found[node][0] is None:
                moves = "it only moves values, in the numbers they come in"
                self._leave(node, "", moves if self._moves(node) else "the backend has no quantised kernel for it")
        self._join_moves()
        layers = tuple(self.decisions[node] for node in nodes)
        return Placement(layers, (*self._boundaries(), *self._watched(nodes)))

    def _pattern_at(self, node: fx.Node) -> tuple[type[Pattern] | None, str]:
        """Return the pattern that knows a layer, and why it must not be used here."""
        reasons: list[tuple[type[Pattern], str]] = []
        for found in self.matcher.find_at(self.network, node):
            refusal = found.pattern().check(found.match)
            if refusal is None and (found.pattern.qdq_points or not reasons):
                return found.pattern, ""
            if refusal is None:
                break
            reasons.append((found.pattern, refusal.reason))
        return reasons[0] if reasons else (None, "")

    def _decide(self, node: fx.Node, pattern: type[Pattern], refusal: str) -> None:
        """Decide about one layer that a pattern knows."""
        place = self.network.place_of(node)
        stub, weight = self.skip.covers_stub(node), self.skip.covers_weight(node)
        points = tuple(point for point in pattern.qdq_points if not (weight if point is Point.WEIGHT else stub))
        reason = refusal
        if not reason and not points:
            reason = _SKIPPED if pattern.qdq_points else _first_line(pattern)
        if not reason and pattern.qdq_when is When.INPUTS and not self._inputs_quantized(node):
            reason = "not every input is quantised"
        if not reason and pattern.qdq_when is When.OUTPUT and node not in self.wanted:
            reason = "no reader quantises its result"
        if reason:
            self._leave(node, pattern.__name__, reason)
            return
        rule = _first_line(pattern) + ("; partly skipped by the user" if len(points) < len(pattern.qdq_points) else "")
        self.decisions[node] = Decision(
            place, self._kind(node), quantized=True, rule=rule, pattern=pattern.__name__, points=points, node=node.name
        )
        self._want(node, pattern, points)

    def _leave(self, node: fx.Node, pattern: str, reason: str) -> None:
        self.decisions[node] = Decision(
            self.network.place_of(node), self._kind(node), False, reason, pattern, (), node.name
        )

    def _kind(self, node: fx.Node) -> str:
        return type(self.network.module_of(node)).__name__

    def _want(self, node: fx.Node, pattern: type[Pattern], points: tuple[Point, ...]) -> None:
        """Note the values a layer wants quantised."""
        inputs = self._tensors(node)
        residual = inputs[1:2] if Point.RESIDUAL_INPUT in pattern.qdq_points else []
        main = [one for one in inputs if one not in residual] if residual else inputs
        chosen = (main if Point.INPUT in points else []) + (residual if Point.RESIDUAL_INPUT in points else [])
        for value in chosen:
            self.wanted.setdefault(value, _Wanted()).readers.add(node)
        if Point.OUTPUT in points:
            self.wanted.setdefault(node, _Wanted()).everyone = True
        if pattern.one_scale and node in self.wanted:
            for value in chosen:
                self.groups.join(value, node)

    def _tensors(self, node: fx.Node) -> list[fx.Node]:
        """Return the computed values a layer reads; parameters are not calibrated."""
        return [one for one in node.args if isinstance(one, fx.Node) and one.op != "get_attr"]

    def _inputs_quantized(self, node: fx.Node) -> bool:
        """Say whether every value a layer reads leaves its maker quantised."""
        values = [one for one in node.args if isinstance(one, fx.Node)]
        return bool(values) and all(self._leaves_quantized(one) or self._is_gate(one) for one in values)

    def _is_gate(self, node: fx.Node) -> bool:
        """Say whether a value is a gate made of a quantised value for one reader: a pair on it costs little."""
        if node.op != "call_module" or not isinstance(self.network.module_of(node), _GATES) or len(node.users) != 1:
            return False
        return self._leaves_quantized(node.all_input_nodes[0])

    def _leaves_quantized(self, node: fx.Node) -> bool:
        """Say whether a value is quantised for everyone, looking through what only moves numbers."""
        while node not in self.wanted and self._moves(node):
            node = node.all_input_nodes[0]
        return node in self.wanted and self.wanted[node].everyone

    def _moves(self, node: fx.Node) -> bool:
        """Say whether a node only gives its numbers another shape."""
        if len(node.all_input_nodes) != 1:
            return False
        if node.op == "call_module":
            return isinstance(self.network.module_of(node), nn.Flatten)
        return node.target in (_MOVES if node.op == "call_function" else _MOVING_METHODS)

    def _join_moves(self) -> None:
        """Give a quantised value that was only moved the scale it had before."""
        for node in self.network.graph.nodes:
            if node in self.wanted and self._moves(node) and self._leaves_quantized(node.all_input_nodes[0]):
                source = node.all_input_nodes[0]
                while source not in self.wanted:
                    source = source.all_input_nodes[0]
                self.groups.join(source, node)

    def _boundaries(self) -> Iterable[Boundary]:
        """List the values that carry a pair, in the order of the data."""
        for node in self.network.graph.nodes:
            want = self.wanted.get(node)
            if want is not None:
                readers = () if want.everyone else tuple(sorted(reader.name for reader in want.readers))
                yield Boundary(node.name, readers, quantizes=True, group=self.groups.find(node).name)

    def _watched(self, nodes: list[fx.Node]) -> Iterable[Boundary]:
        """List what another target would want quantised: results of layers with weights, operands of sums."""
        seen = set(self.wanted)
        for node in nodes:
            module = self.network.module_of(node)
            kind = type(module).__name__
            values = [node] if kind in _WATCHED else []
            if kind in _JOINTS:
                values = [node, *self._tensors(node)]
            for value in values:
                if value not in seen:
                    seen.add(value)
                    yield Boundary(value.name, (), quantizes=False, group=value.name)


_GATES = (nn.Sigmoid, nn.Hardsigmoid)
_JOINTS = frozenset({"Add", "FusedAddReLU", "Concat", "Multiply", "FusedAdaptiveAvgPool2d", "MaxPool2d"})
_WATCHED = frozenset({
    "FusedConvBN", "FusedConvBNReLU", "FusedConvBNReLUMaxPool", "FusedConvBNAdd", "FusedConvBNAddReLU",
    "FusedConvTransposeBN", "FusedConvTransposeBNReLU",
})  # fmt: skip


def _first_line(pattern: type[Pattern]) -> str:
    """Return what a pattern's docstring says first: the rule in words."""
    return (pattern.__doc__ or pattern.__name__).strip().splitlines()[0].rstrip(".")
