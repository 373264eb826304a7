"""One pattern, one graph: where its tree fits, and why it must not be used there.

Works backwards from the last node of a tree. Patterns are filed by the kinds their last node may have, so the cost is
a dictionary look-up per node plus the few trees that can end there.
"""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field, replace
from itertools import product
from types import MappingProxyType
from typing import NamedTuple

from torch import fx, nn

from embedl_deploy._graph.network import Network, is_in_place, plain_base
from embedl_deploy.errors import PatternError
from embedl_deploy.pattern import Chain, Fork, Kind, Match, Maybe, Op, Part, Pattern, Refusal, Repeat, Value

_NO_SHAPES = "needs example inputs to know shapes; call transform(model, args)"
_LOSSY = "changes results; off unless allow_lossy=True"


@dataclass(frozen=True)
class Found:
    """A tree that fits; whether it may be used is asked of `Matcher.judge`, which costs more."""

    pattern: type[Pattern]
    match: Match


class _Partial(NamedTuple):
    """What a tree has collected so far, last node first."""

    ops: tuple[tuple[str, fx.Node], ...] = ()
    inputs: tuple[tuple[str, fx.Node], ...] = ()


@dataclass(frozen=True)
class Matcher:
    """Finds the given patterns in networks."""

    patterns: Sequence[type[Pattern]]
    allow_lossy: bool = False
    _filed: dict[Kind, list[tuple[type[Pattern], Part]]] = field(default_factory=dict)

    def __post_init__(self) -> None:
        """File every variant of every tree under the kinds its last node may have."""
        for pattern in self.patterns:
            tree = getattr(pattern, "tree", None)
            if tree is None:
                raise PatternError(f"{pattern.__name__} has no tree; say what it matches: tree = Chain(Op(...), ...).")
            for variant in _variants(tree):
                _check_names(pattern, variant)
                for kind in _last(variant).kinds:
                    self._filed.setdefault(kind, []).append((pattern, variant))

    def find(self, network: Network) -> Iterator[Found]:
        walk = _Walk(network)
        for node in network.graph.nodes:
            yield from self.find_at(network, node, walk)

    def find_at(self, network: Network, node: fx.Node, walk: "_Walk | None" = None) -> Iterator[Found]:
        walk = walk or _Walk(network)
        for kind in walk.kinds_of(node):
            for pattern, variant in self._filed.get(kind, ()):
                seen = set()
                for partial in walk.part(variant, node, _Partial()):
                    members = tuple(sorted(member.name for _, member in partial.ops))
                    if members not in seen:
                        seen.add(members)
                        yield Found(pattern, _match(network, node, partial))

    def judge(self, network: Network, found: Found) -> Refusal | None:
        pattern, match = found.pattern, found.match
        refusal = _structure(network, match) or _order(network, match)
        if refusal is None and pattern.lossy and not self.allow_lossy:
            refusal = Refusal(_LOSSY)
        if refusal is None and pattern.needs_shapes and network.example is None:
            refusal = Refusal(_NO_SHAPES)
        if refusal is None:
            refusal = pattern().check(match)
        return None if refusal is None else replace(refusal, pattern=pattern.__name__, place=match.place)


def _match(network: Network, output: fx.Node, partial: _Partial) -> Match:
    inputs = tuple(node for _, node in partial.inputs)
    names = MappingProxyType({name: index for index, (name, _) in enumerate(partial.inputs) if name})
    return Match(MappingProxyType(dict(partial.ops)), inputs, names, output, network)


def _structure(network: Network, match: Match) -> Refusal | None:
    """Refuse what no pattern may do: hide a value someone else reads, or lose a hook."""
    members = set(match.ops.values())
    for node in members:
        if node is not match.output and (others := [user for user in node.users if user not in members]):
            return Refusal(f"the result of '{network.place_of(node)}' is also used by '{network.place_of(others[0])}'")
        module = network.module_of(node)
        if module is not None and (reason := _attachments(module)):
            return Refusal(f"'{network.place_of(node)}' {reason}")
        if is_in_place(module) and not any(used in members for used in node.all_input_nodes):
            others = [user for used in node.all_input_nodes for user in used.users if user is not node]
            if others:
                return Refusal(
                    f"'{network.place_of(node)}' works in place on a value '{network.place_of(others[0])}' reads"
                )
    return None


def _order(network: Network, match: Match) -> Refusal | None:
    """Refuse to run members later than an in-place node that changes what they read."""
    members = set(match.ops.values())
    first = min(members)
    for node in members:
        for used in node.all_input_nodes:
            for writer in network.writers_of(used):
                if writer not in members and first < writer < match.output:
                    place = network.place_of(writer)
                    return Refusal(f"'{place}' changes what '{network.place_of(node)}' reads, in place, in between")
    return None


def _attachments(module: nn.Module) -> str:
    """Say what hangs on a module that a rewrite would lose."""
    if module._forward_hooks or module._forward_pre_hooks:
        return "has forward hooks, which a rewrite would lose"
    if "parametrizations" in module._modules:
        return "has a parametrized weight; call torch.nn.utils.parametrize.remove_parametrizations first"
    return ""


@dataclass
class _Walk:
    """Walks trees backwards over one network, which must not change meanwhile; share one for many questions."""

    network: Network
    depths: dict[fx.Node, int] = field(default_factory=dict)
    kinds: dict[fx.Node, tuple[Kind, ...]] = field(default_factory=dict)

    def kinds_of(self, node: fx.Node) -> tuple[Kind, ...]:
        found = self.kinds.get(node)
        if found is None:
            found = self.kinds[node] = _kinds_of(self.network, node)
        return found

    def part(self, part: Part, node: fx.Node, so_far: _Partial) -> Iterator[_Partial]:
        if isinstance(part, Value):
            if all(node is not member for _, member in so_far.ops):
                yield _Partial(so_far.ops, (*so_far.inputs, (part.name, node)))
        elif isinstance(part, Op):
            yield from self.chain((part,), node, so_far)
        elif isinstance(part, Fork):
            yield from self.fork(part, node, so_far)
        else:
            assert isinstance(part, Chain), "Maybe and Repeat are resolved into variants"
            yield from self.chain(part.parts, node, so_far)

    def chain(self, parts: Sequence[object], node: fx.Node, so_far: _Partial) -> Iterator[_Partial]:
        *earlier, last = parts
        if isinstance(last, Fork):
            yield from self.fork(last, node, so_far)
            return
        assert isinstance(last, Op)
        if not self.fits(last, node) or any(node is member for _, member in so_far.ops):
            return
        here = _Partial(((last.name, node), *so_far.ops), so_far.inputs)
        entering = node.all_input_nodes
        if not earlier:
            yield _Partial(here.ops, (*here.inputs, *(("", value) for value in entering)))
        elif entering:
            data = node.args[0] if node.args and isinstance(node.args[0], fx.Node) else entering[0]
            sides = tuple(("", value) for value in entering if value is not data)
            for found in self.chain(earlier, data, here):
                yield _Partial(found.ops, (*found.inputs, *sides))

    def fork(self, part: Fork, node: fx.Node, so_far: _Partial) -> Iterator[_Partial]:
        operands = [value for value in node.args if isinstance(value, fx.Node)]
        if not self.fits(part.op, node) or len(operands) != 2:
            return
        here = _Partial(((part.op.name, node), *so_far.ops), so_far.inputs)
        orders = [operands]
        if not part.ordered:
            orders.append(operands[::-1])
            orders.sort(key=lambda pair: -self.depth(pair[0]))
        for one, other in orders:
            for half in self.part(part.first, one, here):
                yield from self.part(part.second, other, half)

    def depth(self, node: fx.Node) -> int:
        """Return how many steps lead to a node at most; counted for the whole graph when first asked."""
        if not self.depths:
            self.depths = _depths(self.network.graph)
        return self.depths[node]

    def fits(self, op: Op, node: fx.Node) -> bool:
        return not op.accepts.isdisjoint(self.kinds_of(node))


def _kinds_of(network: Network, node: fx.Node) -> tuple[Kind, ...]:
    """Return what an `Op` may call this node: its type or function, and its dotted name."""
    module = network.module_of(node)
    if module is not None:
        kind, base = type(module), plain_base(type(module))
        own = (kind, f"{kind.__module__}.{kind.__qualname__}")
        return own if base is None else (*own, base)
    if node.op == "call_function" and callable(node.target):
        module_name = getattr(node.target, "__module__", "")
        return (node.target, f"{module_name}.{getattr(node.target, '__name__', '')}")
    return (f".{node.target}",) if node.op == "call_method" else ()


def _depths(graph: fx.Graph) -> dict[fx.Node, int]:
    depths: dict[fx.Node, int] = {}
    for node in graph.nodes:
        depths[node] = 1 + max((depths[used] for used in node.all_input_nodes), default=-1)
    return depths


def _variants(part: Part) -> list[Part]:
    """Resolve every `Maybe` and `Repeat` into trees that have the node or not."""
    if isinstance(part, Fork):
        return [
            Fork(part.op, first, second, part.ordered)  # type: ignore[arg-type]  # variants of a branch are branches
            for first, second in product(_variants(part.first), _variants(part.second))
        ]
    if isinstance(part, Op | Value):
        return [part]
    parts = part.parts if isinstance(part, Chain) else (part,)
    found: list[Part] = []
    for chosen in product(*(_choices(piece) for piece in parts)):
        flat = [op for choice in chosen for op in choice]
        if flat:
            found.append(Chain(*flat))
    return found


def _check_names(pattern: type[Pattern], tree: Part) -> None:
    """Raise when two nodes of a tree have one name: a match could not tell them apart."""
    names = _names(tree)
    if twice := {name for name in names if names.count(name) > 1}:
        raise PatternError(
            f"{pattern.__name__}: two parts of the tree are called {sorted(twice)}; give each Op a name."
        )


def _names(part: Part) -> list[str]:
    if isinstance(part, Chain):
        return [name for piece in part.parts for name in _names(piece)]
    if isinstance(part, Fork):
        return [part.op.name, *_names(part.first), *_names(part.second)]
    return [part.name] if isinstance(part, Op) else []


def _choices(part: Op | Maybe | Repeat | Fork) -> list[list[Op | Fork]]:
    """List what a part of a chain may stand for, the longest first."""
    if isinstance(part, Maybe):
        return [[part.op], []]
    if isinstance(part, Repeat):
        named = [Op(*part.op.kinds, name=part.op.name if n == 0 else f"{part.op.name}_{n}") for n in range(part.most)]
        return [list(named[:count]) for count in range(part.most, -1, -1)]
    if isinstance(part, Fork):
        return [[variant] for variant in _variants(part) if isinstance(variant, Fork)]
    return [[part]]


def _last(part: Part) -> Op:
    if isinstance(part, Chain):
        return _last(part.parts[-1])
    if isinstance(part, Fork):
        return part.op
    if isinstance(part, Op):
        return part
    raise PatternError(f"a tree cannot end with {part!r}; end it with an Op.")
