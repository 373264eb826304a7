"""Two versions of one ONNX model in parts, and models between them: some parts of the one, the others of the other.

Tensors that both files call the same and give the same type and shape are where they can be cut. What computes such a
tensor from others of them is a part, in either file; where the two are wired otherwise the part is taken from one of
the files as a whole, where only weights or scales differ each of these is a part of its own. A quantized tensor is no
place to cut: what was quantized with a scale is dequantized with the same one. Parts that read each other in circles
are one part, so that every choice of parts is a graph without circles.
"""

from __future__ import annotations

import graphlib
import math
from collections import defaultdict
from collections.abc import Hashable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import onnx
from onnx import numpy_helper

from embedl_hub.refusal import RefusedError

_QUANTIZES = "QuantizeLinear"
_SCALED = {"QuantizeLinear", "DequantizeLinear"}
_MOVES = {"QuantizeLinear", "DequantizeLinear", "Reshape", "Transpose", "Cast", "Identity", "Flatten"}
_FROM_BAD = "@bad"


@dataclass(frozen=True)
class Part:
    """One way in which the files differ."""

    name: str
    kind: str  # ``wiring``, ``scale`` or ``weights``
    good: str  # what it is in the good file, for people
    bad: str
    nodes: tuple[str, ...] = ()  # the nodes that it is about, of either file
    change: float = 0.0  # how much its numbers differ, for weights and scales: the relative distance


@dataclass(frozen=True)
class _Definition:
    """What computes the tensors of a part in one of the files: nodes in order, and what they read."""

    nodes: tuple[onnx.NodeProto, ...]
    reads: frozenset[str]
    private: frozenset[str]


class _Graph:
    """One of the files, taken apart."""

    def __init__(self, model: onnx.ModelProto) -> None:
        self.model = model
        self.weights = {tensor.name: tensor for tensor in model.graph.initializer}
        self.nodes: list[onnx.NodeProto] = []
        for node in model.graph.node:
            value = next((each for each in node.attribute if each.name == "value"), None)
            if node.op_type == "Constant" and value is not None and value.HasField("t"):
                tensor = onnx.TensorProto()
                tensor.CopyFrom(value.t)
                tensor.name = node.output[0]
                self.weights[tensor.name] = tensor
            else:
                self.nodes.append(node)
            if any(each.HasField("g") or each.graphs for each in node.attribute):
                raise RefusedError(f"node {node.name or node.op_type!r} holds graphs of its own, which are not cut")
        self.producer = {name: node for node in self.nodes for name in node.output if name}
        self.inputs = {value.name for value in model.graph.input} - set(self.weights)
        self.types = _types(model)


def _types(model: onnx.ModelProto) -> dict[str, tuple[int, tuple[int | str, ...] | None]]:
    try:
        inferred = onnx.shape_inference.infer_shapes(model, data_prop=True)
    except Exception:  # noqa: BLE001 - what cannot be inferred is not known
        inferred = model
    found: dict[str, tuple[int, tuple[int | str, ...] | None]] = {}
    for value in (*inferred.graph.value_info, *inferred.graph.input, *inferred.graph.output):
        kind = value.type.tensor_type
        sizes = tuple(each.dim_value or each.dim_param for each in kind.shape.dim) if kind.HasField("shape") else None
        found[value.name] = (kind.elem_type, sizes)
    return found


class Hybrids:
    """The parts of two files, and the models between them."""

    def __init__(self, good: onnx.ModelProto, bad: onnx.ModelProto) -> None:
        if _opsets(good) != _opsets(bad):
            raise RefusedError(f"the files use other operator sets: {_opsets(good)} and {_opsets(bad)}")
        if good.functions or bad.functions:
            raise RefusedError("a file has functions of its own, which are not cut")
        self._good, self._bad = _Graph(good), _Graph(bad)
        _check_ends(self._good, self._bad)
        self._cuts = _cuts(self._good, self._bad)
        self._groups = self._grouped()
        self._pairs: dict[tuple[str, str], str] = {}  # a weight of both files, and the part that switches it
        self._wired: dict[int, str] = {}  # a group that is wired otherwise, and its part
        self.parts = tuple(self._find_parts())
        if not self.parts:
            raise RefusedError("the files differ in nothing that can be cut: only in remarks, names or order")

    def build(self, names: Iterable[str]) -> onnx.ModelProto:
        """Return the good model with some parts of the bad one."""
        chosen = set(names)
        if unknown := chosen - {part.name for part in self.parts}:
            raise RefusedError(f"there is no part {min(unknown)!r}")
        made = onnx.ModelProto()
        made.CopyFrom(self._good.model)
        graph = made.graph
        del graph.node[:], graph.initializer[:], graph.value_info[:]
        weights: dict[str, onnx.TensorProto] = {}
        taken: set[str] = set()
        for number in self._order():
            is_bad = self._wired.get(number) in chosen
            definition = self._groups[number][1 if is_bad else 0]
            renamed = self._names(definition, is_bad=is_bad)
            for node in definition.nodes:
                copy = onnx.NodeProto()
                copy.CopyFrom(node)
                if is_bad and copy.name in taken:
                    copy.name += _FROM_BAD
                taken.add(copy.name)
                for place, name in enumerate(node.input):
                    copy.input[place] = self._operand(name, chosen, weights, renamed, is_bad=is_bad)
                for place, name in enumerate(node.output):
                    copy.output[place] = renamed.get(name, name)
                graph.node.append(copy)
        self._keep_outputs(graph, weights)
        graph.initializer.extend(weights.values())
        kept = [value for value in graph.input if value.name not in self._good.weights]
        del graph.input[:]
        graph.input.extend(kept)
        return made

    def _keep_outputs(self, graph: onnx.GraphProto, weights: dict[str, onnx.TensorProto]) -> None:
        for value in graph.output:
            if value.name in self._good.weights:
                weights[value.name] = self._good.weights[value.name]

    def _operand(
        self,
        name: str,
        chosen: set[str],
        weights: dict[str, onnx.TensorProto],
        renamed: Mapping[str, str],
        *,
        is_bad: bool,
    ) -> str:
        if is_bad and name in self._bad.weights:
            return _kept(self._bad.weights[name], self._good, weights)
        if not is_bad and name in self._good.weights:
            pair = next((other for own, other in self._pairs if own == name), None)
            if pair is not None and self._pairs[name, pair] in chosen:
                return _kept(self._bad.weights[pair], self._good, weights)
            weights[name] = self._good.weights[name]
            return name
        return renamed.get(name, name)

    def _names(self, definition: _Definition, *, is_bad: bool) -> dict[str, str]:
        """Return new names for a bad part's own tensors where the good file has such names too."""
        if not is_bad:
            return {}
        known = set(self._good.producer) | set(self._good.weights) | self._good.inputs
        return {name: name + _FROM_BAD for name in definition.private if name in known}

    def _grouped(self) -> list[tuple[_Definition, _Definition]]:
        """Return what computes the cuts in either file, joined where nodes are shared or circles would arise."""
        joined = _Joined(self._cuts)
        for graph in (self._good, self._bad):
            owner: dict[int, str] = {}
            for cut in self._cuts:
                for node in _region(graph, [cut], self._cuts):
                    first = owner.setdefault(id(node), cut)
                    joined.join(first, cut)
        while True:
            groups = joined.groups()
            reads = [
                {joined.find(name) for graph in (self._good, self._bad) for name in _reads(graph, group, self._cuts)}
                for group in groups
            ]
            keys = [joined.find(group[0]) for group in groups]
            circle = _circle(keys, reads)
            if not circle:
                break
            for other in circle[1:]:
                joined.join(circle[0], other)
        self._keys, self._reads = keys, reads
        return [
            (_definition(self._good, group, self._cuts), _definition(self._bad, group, self._cuts)) for group in groups
        ]

    def _order(self) -> list[int]:
        """Return the groups so that each comes after those it reads, in either file."""
        place = {key: number for number, key in enumerate(self._keys)}
        done: dict[int, None] = {}
        waiting = [(number, False) for number in reversed(range(len(self._keys)))]
        while waiting:
            number, is_ready = waiting.pop()
            if number in done:
                continue
            if is_ready:
                done[number] = None
                continue
            waiting.append((number, True))
            waiting += [
                (place[key], False) for key in sorted(self._reads[number], key=str) if place[key] not in (*done, number)
            ]
        return list(done)

    def _find_parts(self) -> Iterator[Part]:
        pairs: dict[tuple[str, str], list[onnx.NodeProto]] = defaultdict(list)
        bound = _Joined([])
        for number, (good, bad) in enumerate(self._groups):
            found = _weight_pairs(good, bad, self._good, self._bad)
            if found is None:
                name = self._unique(_title(bad.nodes or good.nodes))
                self._wired[number] = name
                nodes = tuple(dict.fromkeys(node.name for node in (*good.nodes, *bad.nodes) if node.name))
                yield Part(name, "wiring", _operators(good.nodes), _operators(bad.nodes), nodes)
                continue
            for node, own in found:
                differing = [
                    pair for pair in own if not _equal(self._good.weights[pair[0]], self._bad.weights[pair[1]])
                ]
                for pair in differing:
                    bound.add(pair)
                    pairs[pair].append(node)
                    # A scale and its zero point, and the integers that they stand for, make sense together only.
                    if node.op_type in _SCALED:
                        bound.join(differing[0], pair)
        for group in bound.groups():
            yield self._weights_part(group, pairs)

    def _weights_part(
        self, group: Sequence[tuple[str, str]], pairs: Mapping[tuple[str, str], list[onnx.NodeProto]]
    ) -> Part:
        readers = [node for pair in group for node in pairs[pair]]
        is_scale = all(node.op_type in _SCALED and pair[1] in node.input[1:] for pair in group for node in pairs[pair])
        values = [(self._good.weights[own], self._bad.weights[other]) for own, other in group]
        name = self._unique(group[0][1])
        for pair in group:
            self._pairs[pair] = name
        good, bad = (_shown(pair[place] for pair in values) for place in (0, 1))
        nodes = tuple(dict.fromkeys(node.name for node in (*readers, *self._users(readers)) if node.name))
        change = max(_distance(*pair) for pair in values)
        return Part(name, "scale" if is_scale else "weights", good, bad, nodes, change)

    def _users(self, readers: Sequence[onnx.NodeProto]) -> list[onnx.NodeProto]:
        """Return the nodes behind a scale: what people call the layer."""
        outputs = {name for node in readers if node.op_type in _SCALED for name in node.output}
        return [node for node in self._good.nodes if outputs & set(node.input) and node.op_type not in _SCALED]

    def _unique(self, name: str) -> str:
        known = {*self._wired.values(), *self._pairs.values()}
        number = 2
        unique = name
        while unique in known:
            unique, number = f"{name} ({number})", number + 1
        return unique


class _Joined:
    """Things in groups that grow together."""

    def __init__(self, things: Iterable[Hashable]) -> None:
        self._parent: dict[Hashable, Hashable] = {each: each for each in things}

    def add(self, thing: Hashable) -> None:
        self._parent.setdefault(thing, thing)

    def find(self, thing: Hashable) -> Hashable:
        while self._parent[thing] != thing:
            self._parent[thing] = self._parent[self._parent[thing]]
            thing = self._parent[thing]
        return thing

    def join(self, one: Hashable, other: Hashable) -> None:
        self._parent[self.find(other)] = self.find(one)

    def groups(self) -> list[list[Any]]:
        found: dict[Hashable, list[Any]] = defaultdict(list)
        for thing in self._parent:
            found[self.find(thing)].append(thing)
        return list(found.values())


def _opsets(model: onnx.ModelProto) -> dict[str, int]:
    return {entry.domain: entry.version for entry in model.opset_import}


def _check_ends(good: _Graph, bad: _Graph) -> None:
    for what in ("input", "output"):
        ends = [[value.name for value in getattr(each.model.graph, what) if value.name not in each.weights]
                for each in (good, bad)]  # fmt: skip
        types = [[each.types.get(name) for name in names] for each, names in zip((good, bad), ends, strict=True)]
        if ends[0] != ends[1] or types[0] != types[1]:
            raise RefusedError(f"the files have other {what}s: {', '.join(ends[0])} and {', '.join(ends[1])}")


def _cuts(good: _Graph, bad: _Graph) -> list[str]:
    """Return the tensors at which both files can be cut, in the good file's order."""
    ends = {value.name for value in good.model.graph.output}
    found = []
    for name, node in good.producer.items():
        other = bad.producer.get(name)
        if other is None:
            continue
        own_type, other_type = good.types.get(name), bad.types.get(name)
        is_quantized = _QUANTIZES in (node.op_type, other.op_type)
        if name in ends or (not is_quantized and own_type is not None and own_type == other_type):
            found.append(name)
    if missing := ends - set(found):
        raise RefusedError(f"output {min(missing)!r} is computed in one of the files only")
    return found


def _region(graph: _Graph, names: Iterable[str], cuts: Iterable[str]) -> list[onnx.NodeProto]:
    """Return the nodes that compute tensors from cuts, inputs and weights."""
    stops = set(cuts)
    found: dict[int, onnx.NodeProto] = {}
    waiting = [graph.producer[name] for name in names if name in graph.producer]
    while waiting:
        node = waiting.pop()
        if id(node) in found:
            continue
        found[id(node)] = node
        waiting += [graph.producer[name] for name in node.input if name in graph.producer and name not in stops]
    return list(found.values())


def _reads(graph: _Graph, group: Sequence[str], cuts: Sequence[str]) -> set[str]:
    stops = set(cuts)
    return {name for node in _region(graph, group, cuts) for name in node.input if name in stops} - set(group)


def _definition(graph: _Graph, group: Sequence[str], cuts: Sequence[str]) -> _Definition:
    own = {id(node) for node in _region(graph, group, cuts)}
    nodes = _sorted([node for node in graph.nodes if id(node) in own])
    made = {name for node in nodes for name in node.output if name}
    reads = {name for node in nodes for name in node.input if name} - made
    return _Definition(tuple(nodes), frozenset(reads), frozenset(made - set(group)))


def _sorted(nodes: Sequence[onnx.NodeProto]) -> list[onnx.NodeProto]:
    made = {name: node for node in nodes for name in node.output if name}
    done: dict[int, onnx.NodeProto] = {}
    waiting = [(node, False) for node in reversed(nodes)]
    while waiting:
        node, is_ready = waiting.pop()
        if id(node) in done:
            continue
        if is_ready:
            done[id(node)] = node
            continue
        waiting.append((node, True))
        waiting += [(made[name], False) for name in node.input if name in made and id(made[name]) not in done]
    return list(done.values())


def _circle(keys: Sequence[Hashable], reads: Sequence[set[Hashable]]) -> list[Hashable]:
    """Return groups that read each other in a circle; none where there is no circle."""
    edges = {key: others - {key} for key, others in zip(keys, reads, strict=True)}
    try:
        graphlib.TopologicalSorter(edges).prepare()
    except graphlib.CycleError as error:
        circle: list[Hashable] = error.args[1]
        return circle
    return []


def _weight_pairs(
    good: _Definition, bad: _Definition, good_graph: _Graph, bad_graph: _Graph
) -> list[tuple[onnx.NodeProto, list[tuple[str, str]]]] | None:
    """Return the weights of each node in both files; None where the nodes or their wiring differ."""
    if [_form(node) for node in good.nodes] != [_form(node) for node in bad.nodes]:
        return None
    same: dict[str, str] = {}
    found = []
    for own, other in zip(good.nodes, bad.nodes, strict=True):
        pairs = []
        for one, two in zip(own.input, other.input, strict=True):
            if one in good_graph.weights and two in bad_graph.weights:
                if _kind(good_graph.weights[one]) != _kind(bad_graph.weights[two]):
                    return None
                pairs.append((one, two))
            elif same.get(one, one) != two:
                return None
        for one, two in zip(own.output, other.output, strict=True):
            if one != two and not (one in good.private and two in bad.private):
                return None
            same[one] = two
        found.append((own, pairs))
    return found


def _form(node: onnx.NodeProto) -> tuple[object, ...]:
    return node.op_type, node.domain, _attributes(node), len(node.input), len(node.output)


def _kind(tensor: onnx.TensorProto) -> tuple[object, ...]:
    return tensor.data_type, tuple(tensor.dims)


def _attributes(node: onnx.NodeProto) -> tuple[bytes, ...]:
    return tuple(sorted(each.SerializeToString(deterministic=True) for each in node.attribute))


def _kept(tensor: onnx.TensorProto, good: _Graph, weights: dict[str, onnx.TensorProto]) -> str:
    """Keep a bad file's weight under a name that the good file does not use, and return that."""
    taken = tensor.name in good.weights or tensor.name in good.producer or tensor.name in good.inputs
    name = tensor.name + _FROM_BAD if taken else tensor.name
    if name not in weights:
        copy = onnx.TensorProto()
        copy.CopyFrom(tensor)
        copy.name = name
        weights[name] = copy
    return name


def _equal(one: onnx.TensorProto, other: onnx.TensorProto) -> bool:
    if one.raw_data and other.raw_data:
        return one.raw_data == other.raw_data
    return np.array_equal(numpy_helper.to_array(one), numpy_helper.to_array(other))


def _distance(one: onnx.TensorProto, other: onnx.TensorProto) -> float:
    """Return how far two tensors are apart, over the size of the first."""
    if onnx.TensorProto.STRING in (one.data_type, other.data_type):
        return 1.0
    first, second = (numpy_helper.to_array(each).astype(np.float64) for each in (one, other))
    size = float(np.linalg.norm(first))
    distance = float(np.linalg.norm(first - second)) / size if size else float(np.linalg.norm(second))
    return distance if math.isfinite(distance) else 1e300


_SHOWN = 3


def _shown(tensors: Iterable[onnx.TensorProto]) -> str:
    words = []
    for tensor in tensors:
        values = numpy_helper.to_array(tensor)
        if values.size <= _SHOWN:
            words.append(
                ", ".join(f"{value:.6g}" for value in np.ravel(values).tolist() if not isinstance(value, bytes))
            )
        else:
            words.append(f"{values.dtype} {'×'.join(map(str, values.shape))}")
    return "; ".join(words)


def _main(nodes: Sequence[onnx.NodeProto]) -> onnx.NodeProto | None:
    working = [node for node in nodes if node.op_type not in _MOVES]
    return next(iter(working or nodes), None)


def _title(nodes: Sequence[onnx.NodeProto]) -> str:
    node = _main(nodes)
    return "nothing" if node is None else node.name or f"{node.op_type} {next(iter(node.output), '')}".strip()


def _operators(nodes: Sequence[onnx.NodeProto]) -> str:
    return ", ".join(node.op_type for node in nodes[:8]) + (" ..." if len(nodes) > 8 else "") or "nothing"


def one_operator(model: onnx.ModelProto, name: str, op_type: str) -> onnx.ModelProto:
    """Return a model of one node alone, with the weights that it reads and its other operands as inputs."""
    graph = _Graph(model)
    node = next((each for each in graph.nodes if each.name == name and each.op_type == op_type), None)
    if node is None:
        # The optimizer renames what it rewrites; a name that it added to is still the node's.
        named = [each for each in graph.nodes if each.name and each.op_type == op_type and name.startswith(each.name)]
        node = max(named, key=lambda each: len(each.name), default=None)
    if node is None:
        raise RefusedError(f"no {op_type} of the file is called {name!r}; the runtime made it of others")
    inputs = []
    for each in dict.fromkeys(filter(None, node.input)):
        if each in graph.weights:
            continue
        kind, sizes = graph.types.get(each, (0, None))
        if not kind or sizes is None or not all(isinstance(size, int) and size > 0 for size in sizes):
            raise RefusedError(f"the shape of {each!r} is not fixed")
        inputs.append(onnx.helper.make_tensor_value_info(each, kind, sizes))
    outputs = []
    for each in filter(None, node.output):
        kind, sizes = graph.types.get(each, (0, None))
        if kind:
            outputs.append(onnx.helper.make_tensor_value_info(each, kind, sizes))
    if not inputs or not outputs:
        raise RefusedError(f"{name!r} has no input or output of a known type")
    weights = [graph.weights[each] for each in dict.fromkeys(node.input) if each in graph.weights]
    made = onnx.helper.make_graph([node], "one operator", inputs, outputs, weights)
    return onnx.helper.make_model(made, opset_imports=list(model.opset_import), ir_version=model.ir_version)
