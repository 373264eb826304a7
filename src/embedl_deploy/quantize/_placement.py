"""Where quantize/dequantize pairs go: decided from the backend's patterns, as data that can be printed.

A layer's pattern says which of its points carry a pair and what must be quantized around it first. The pairs are then
placed on values, one for each value however many layers read it, so that two readers never see two scales.
"""

from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from difflib import get_close_matches
from typing import Any

import torch
from torch import fx, nn

from embedl_deploy._graph.network import Network
from embedl_deploy._groups import Groups
from embedl_deploy._table import Printed, table
from embedl_deploy._transform.match import Matcher
from embedl_deploy.dialect._float32 import Addition
from embedl_deploy.errors import QuantizationError, quoted_list
from embedl_deploy.nn import QuantizableModule
from embedl_deploy.pattern import Pattern, Phase, Point, When
from embedl_deploy.quantize._config import Member, ModulesToSkip


class Skip:
    """The layers that the user wants left alone, in one network."""

    def __init__(self, network: Network, skip: ModulesToSkip) -> None:
        self._network = network
        self.stub, self.weight, self.smooth = (
            self._resolve(getattr(skip, where), where) for where in ("stub", "weight", "smooth")
        )

    def _resolve(self, members: Collection[Member], where: str) -> set[fx.Node]:
        """Return the nodes that any member means; a member that means none is an error."""
        if isinstance(members, str) or not isinstance(members, Collection):
            raise QuantizationError(f"skip.{where} is {members!r}; give a list of modules, module types or names.")
        found: set[fx.Node] = set()
        for member in members:
            means = {node for node in self._layers() if self._means(member, node)}
            if not means:
                raise QuantizationError(self._nothing(member, where))
            found |= means
        return found

    def _layers(self) -> Iterable[fx.Node]:
        return (node for node in self._network.graph.nodes if node.op == "call_module")

    def _means(self, member: Member, node: fx.Node) -> bool:
        module = self._network.module_of(node)
        assert module is not None
        if isinstance(member, str):
            names = (str(node.target), *self._network.origins_of(node))
            kinds = {type(part).__name__ for part in module.modules()}
            return member in kinds or any(name == member or name.startswith(f"{member}.") for name in names)
        if isinstance(member, type):
            return any(isinstance(part, member) for part in module.modules())
        if any(part is member for part in module.modules()):
            return True
        # The transformed network has its own module objects around the user's parameters.
        theirs = {id(parameter) for parameter in member.parameters()}
        return any(id(parameter) in theirs for parameter in module.parameters())

    def _nothing(self, member: object, where: str) -> str:
        names = sorted({name for node in self._layers() for name in self._network.origins_of(node)})
        if isinstance(member, str):
            hint = f"layers are called, for example, {quoted_list(names[:5])}."
            if close := get_close_matches(member, names, n=3):
                hint = f"did you mean {quoted_list(close)}?"
            return f"'{member}' was to be skipped, and no layer or type of layer is called so; {hint}"
        what = f"the type {member.__name__}" if isinstance(member, type) else f"a {type(member).__name__}"
        return (
            f"skip.{where} has {what}, which is no part of this model; give modules of the model that was transformed, "
            "module types in it, or qualified names."
        )


_SKIPPED = "skipped by the user"
_MOVES: frozenset[Any] = frozenset({torch.flatten, torch.reshape, torch.squeeze, torch.unsqueeze})
_MOVING_METHODS = frozenset({"flatten", "reshape", "view", "squeeze", "unsqueeze", "contiguous"})


@dataclass(frozen=True)
class Decision:
    """What happens to one layer, and the rule that decided."""

    place: str  # qualified name in the user's model
    layer: str  # the kind of the layer
    quantized: bool  # whether it runs on quantized numbers
    rule: str
    pattern: str  # the pattern that decided, empty when no pattern knows the layer
    points: tuple[Point, ...]  # where pairs go on this layer
    node: str  # the graph's name for it

    @property
    def runs(self) -> str:
        """The word for tables."""
        return "quantized" if self.quantized else "float"


@dataclass(frozen=True)
class Boundary:
    """A value that gets a stub."""

    value: str  # the graph's name for the value
    readers: tuple[str, ...]  # graph names of those that read the stub instead; empty means all of them
    quantizes: bool  # it carries a pair; otherwise its range is only watched, for targets that want one here
    group: str  # values of one group have one scale
    inside: str = ""  # the stub inside the layer that makes the value; empty for the value itself
    prescribed: tuple[float, int] | None = None  # scale and zero point (of int8) that the runtime prescribes
    nonnegative: bool = False  # zero is the smallest integer: the runtime sees that the ReLU before it does nothing
    top: float | None = None  # what no value exceeds, so that no integer needs to

    @property
    def key(self) -> tuple[str, str]:
        """What it stands on."""
        return self.value, self.inside

    @property
    def tensor(self) -> str:
        """What it stands on, as one name."""
        return f"{self.value}/{self.inside}" if self.inside else self.value


@dataclass(frozen=True)
class Variant:
    """What one dialect makes of a placement."""

    dialect: str
    boundaries: tuple[Boundary, ...]  # the values that its file rounds
    additions: tuple[Addition, ...] = ()  # sums that must be exact on every processor, the last one first


@dataclass(frozen=True, repr=False)
class Placement(Printed):
    """All decisions about a network."""

    layers: tuple[Decision, ...]  # one decision per layer, in the order of the data
    boundaries: tuple[Boundary, ...]  # the values that get stubs
    smooth: tuple[str, ...] = ()  # targets of the normalizations that may be smoothed into their readers
    integer_kernels: bool = False  # eval mode computes what the target's integer kernels do
    symmetric: bool = True  # what the target wants of activations
    dialect: str = ""  # whose file the model rounds like; empty for what the backend's patterns say, before any dialect
    variants: Mapping[str, Variant] = field(default_factory=dict, repr=False, compare=False)  # by dialect

    def _line(self) -> str:
        return f"{sum(bool(layer.points) for layer in self.layers)} of {len(self.layers)} layers quantized"

    def __str__(self) -> str:
        rows = [
            (layer.place, layer.layer, layer.runs, ", ".join(point.value for point in layer.points), layer.rule)
            for layer in self.layers
        ]
        return table(("layer", "kind", "runs", "pairs on", "rule"), rows)

    @property
    def rounded(self) -> tuple[Boundary, ...]:
        """The values that carry a pair: those of the dialect, or the patterns' where there is none."""
        if self.dialect:
            return self.variants[self.dialect].boundaries
        return tuple(boundary for boundary in self.boundaries if boundary.quantizes)

    def observed(self) -> list[str]:
        """List the values that get a stub: what the patterns want or watch, and what any dialect rounds."""
        wanted = [boundary.value for boundary in self.boundaries if not boundary.inside]
        wanted += [each.value for variant in self.variants.values() for each in variant.boundaries if not each.inside]
        return list(dict.fromkeys(wanted))

    def with_islands(self, islands: Collection[str], rule: str) -> "Placement":
        """Return the same, saying by which rule layers were skipped that no user wanted skipped."""
        layers = list(self.layers)
        for index, decision in enumerate(layers):
            if decision.place in islands and decision.rule == _SKIPPED:
                layers[index] = replace(decision, rule=rule)
        return replace(self, layers=tuple(layers))

    @property
    def quantized(self) -> tuple[Decision, ...]:
        """The layers that run on quantized numbers."""
        return tuple(decision for decision in self.layers if decision.quantized)


@dataclass
class _Wanted:
    """A value that some layer wants quantized, while the plan is made."""

    readers: set[fx.Node] = field(default_factory=set)
    everyone: bool = False


def plan_placement(network: Network, patterns: Sequence[type[Pattern]], skip: Skip) -> Placement:
    planner = _Planner(network, Matcher([pattern for pattern in patterns if pattern.phase is Phase.QUANTIZED]), skip)
    smooth = Matcher([pattern for pattern in patterns if pattern.phase is Phase.SMOOTH]).find(network)
    allowed = [found for found in smooth if found.pattern().check(found.match) is None]
    return replace(
        planner.plan(),
        smooth=tuple(str(found.match.output.target) for found in allowed if found.match.output not in skip.smooth),
    )


class _Planner:
    """Decides in three sweeps: what is always quantized, what follows its inputs, what follows its readers."""

    def __init__(self, network: Network, matcher: Matcher, skip: Skip) -> None:
        self.network = network
        self.matcher = matcher
        self.skip = skip
        self.wanted: dict[fx.Node, _Wanted] = {}
        self.groups: Groups[fx.Node] = Groups()
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
                self._leave(node, "", moves if self._moves(node) else "the backend has no quantized kernel for it")
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
        place = self.network.place_of(node)
        stub, weight = node in self.skip.stub, node in self.skip.weight
        points = tuple(point for point in pattern.qdq_points if not (weight if point is Point.WEIGHT else stub))
        reason = refusal
        if not reason and not points:
            reason = _SKIPPED if pattern.qdq_points else _first_line(pattern)
        if not reason and pattern.qdq_when is When.INPUTS and not self._inputs_quantized(node):
            reason = "not every input is quantized"
        if not reason and pattern.qdq_when is When.OUTPUT and node not in self.wanted:
            reason = "no reader quantizes its result"
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
        inputs = self._tensors(node)
        residual = inputs[1:2] if Point.RESIDUAL_INPUT in pattern.qdq_points else []
        main = [value for value in inputs if value not in residual] if residual else inputs
        chosen = (main if Point.INPUT in points else []) + (residual if Point.RESIDUAL_INPUT in points else [])
        for value in chosen:
            self.wanted.setdefault(value, _Wanted()).readers.add(node)
        if Point.OUTPUT in points:
            self.wanted.setdefault(node, _Wanted()).everyone = True
        if pattern.one_scale and node in self.wanted:
            for value in chosen:
                self._share_scale(value, node)

    def _share_scale(self, value: fx.Node, other: fx.Node) -> None:
        """Give two values one scale; their group is known by the first of the graph."""
        self.groups.join(*sorted((self.groups.find(value), self.groups.find(other))))

    def _tensors(self, node: fx.Node) -> list[fx.Node]:
        """Return the computed values a layer reads; parameters are not calibrated."""
        return [value for value in node.args if isinstance(value, fx.Node) and value.op != "get_attr"]

    def _inputs_quantized(self, node: fx.Node) -> bool:
        values = [value for value in node.args if isinstance(value, fx.Node)]
        return bool(values) and all(self._leaves_quantized(value) or self._is_gate(value) for value in values)

    def _is_gate(self, node: fx.Node) -> bool:
        """Say whether a value is a gate made of a quantized value for one reader: a pair on it costs little."""
        gate = isinstance(self.network.module_of(node), _GATES) and len(node.users) == 1
        return gate and self._leaves_quantized(node.all_input_nodes[0])

    def _leaves_quantized(self, node: fx.Node) -> bool:
        """Say whether a value is quantized for everyone, looking through what only moves numbers."""
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
        """Give a quantized value that was only moved the scale it had before."""
        for node in self.network.graph.nodes:
            if node in self.wanted and self._moves(node) and self._leaves_quantized(node.all_input_nodes[0]):
                source = node.all_input_nodes[0]
                while source not in self.wanted:
                    source = source.all_input_nodes[0]
                self._share_scale(source, node)

    def _boundaries(self) -> Iterable[Boundary]:
        for node in self.network.graph.nodes:
            want = self.wanted.get(node)
            if want is not None:
                readers = () if want.everyone else tuple(sorted(reader.name for reader in want.readers))
                yield Boundary(node.name, readers, quantizes=True, group=self.groups.find(node).name)

    def _watched(self, nodes: list[fx.Node]) -> Iterable[Boundary]:
        """List what another target would want quantized: results of layers with weights, operands of sums."""
        seen = set(self.wanted)
        for node in nodes:
            module = self.network.module_of(node)
            watched = module.watched if isinstance(module, QuantizableModule) else _WATCHED.get(type(module), ())
            values = [node] if Point.OUTPUT in watched else []
            for value in (*values, *(self._tensors(node) if Point.INPUT in watched else ())):
                if value not in seen:
                    seen.add(value)
                    yield Boundary(value.name, (), quantizes=False, group=value.name)


_GATES = (nn.Sigmoid, nn.Hardsigmoid)
# Of torch's own modules; fused ones say it themselves.
_WATCHED: dict[type, tuple[Point, ...]] = {nn.MaxPool2d: (Point.OUTPUT, Point.INPUT)}


def _first_line(pattern: type[Pattern]) -> str:
    """Return what a pattern's docstring says first: the rule in words."""
    return (pattern.__doc__ or pattern.__name__).strip().splitlines()[0].rstrip(".")
