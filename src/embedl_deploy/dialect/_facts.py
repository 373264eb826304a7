"""What can decide where a runtime runs a node: the facts around it, as words.

Rules that were learned from one-operator graphs speak of these facts, and so are applied to the nodes of any network.
Every fact is a short text; what does not apply is ``-``.
"""

from collections import Counter
from collections.abc import Iterable, Iterator, Mapping
from functools import cache
from typing import NamedTuple

import numpy as np
import onnx
from onnx import helper

from embedl_deploy.dialect._dialects import MOVES, WEIGHTED
from embedl_deploy.dialect._model import QdqModel
from embedl_deploy.dialect._numbers import LIMITS, Params
from embedl_deploy.dialect._qdq_placement import View

NONE = "-"
# What computes nothing: runtimes carry Q and DQ across it, drop it or merge it as they please.
MOVING = frozenset({"Flatten", "Gather", "Reshape", "Slice", "Squeeze", "Transpose", "Unsqueeze"})
NOT_COMPUTING = MOVING | (MOVES - {"MaxPool"}) | {"Constant", "DepthToSpace", "Shape", "SpaceToDepth", "Split"}
"""Operators that are not judged: where they run makes no difference."""
# Lists of numbers that only matter as the usual value or another.
_USUAL = {"pads": 0, "strides": 1, "dilations": 1}
_MOST_OPERANDS = 3
_LEFT_OUT = frozenset({"axes", "kernel_shape", "output_padding", "output_shape", "perm", "split", "to", "value"})

_OPSETS = (14, 15, 16, 17, 18, 19, 20, 21, 22, 23, 24, 25)
BEFORE_RUNS = "before, runs in"
"""The fact that follows from others: what whoever makes a node's operand runs in, ``integer`` or ``float``."""

POINTWISE = frozenset({
    "Abs", "Add", "Clip", "Div", "Elu", "Erf", "Exp", "Gelu", "HardSigmoid", "HardSwish", "LeakyRelu", "Mul", "Neg",
    "PRelu", "Pow", "Relu", "Sigmoid", "Softplus", "Sqrt", "Sub", "Tanh", "Where",
})  # fmt: skip
_MOST_STEPS = 20
BEYOND = frozenset({
    "made by", "joins", "output, goes to", "chain to", "chain writes", "chain from", "chain reads",
})  # fmt: skip
"""What stands behind the rounding on either side. A runtime that fuses Q/DQ where they stand, as ONNX Runtime does,
never looks there; one that carries integers from kernel to kernel does."""


class NodeFacts(NamedTuple):
    """A node, and what may decide where it runs."""

    name: str
    facts: Mapping[str, str]
    maker: str | None  # who computes the operand that it reads in float, by name

    def known(self, placed: Mapping[str, str]) -> dict[str, str]:
        """Return the facts with what the node's maker runs in, where the nodes before it are placed."""
        where = NONE if self.maker is None else placed.get(self.maker, "float")
        return {**self.facts, BEFORE_RUNS: "float" if where == "float" else NONE if where == NONE else "integer"}


def facts_of(qdq: QdqModel, *, opset: int | None = None) -> list[NodeFacts]:
    """Return the facts around every node of a model, in the graph's order; as of another opset where one is given."""
    return list(_Facts(qdq, qdq.opset if opset is None else opset).all())


class _Facts:
    def __init__(self, qdq: QdqModel, opset: int) -> None:
        self.qdq = qdq
        self.view = View(qdq)
        self.reads = Counter(qdq.edges.values())
        self.opset = {f"opset {each} or newer": "yes" for each in _OPSETS if opset >= each}

    def all(self) -> Iterator[NodeFacts]:
        for node in self.qdq.graph.node:
            maker = self._maker(node)
            yield NodeFacts(node.name, self._of(node), None if maker is None else maker.name)

    def _of(self, node: onnx.NodeProto) -> dict[str, str]:
        found = {"operator": node.op_type, **self.opset}
        for index in range(_MOST_OPERANDS):
            found[f"input {index}"] = self._operand(node, index)
        found["inputs"] = self._inputs(node)
        for index in range(2):
            found |= {f"readers of input {index}": self._read_by(node, index), f"moved to input {index}": NONE}
            maker = self.view.maker.get(node.input[index]) if index < len(node.input) else None
            if maker is not None and maker.op_type in MOVING and (node.name, index) not in self.qdq.edges:
                found[f"moved to input {index}"] = maker.op_type
        found |= self._shape_facts(node)
        found |= self._before(node)
        found |= self._after(node)
        found |= self._beyond(node)
        found |= dict(_attributes(node, self.qdq.opset))
        return found

    def _boundary(self, node: onnx.NodeProto, index: int) -> tuple[str | None, onnx.NodeProto | None]:
        """Return the format in which a node reads an input, if only before it was moved, and what moved it last."""
        boundary = self.qdq.edges.get((node.name, index))
        if boundary is not None or index >= len(node.input):
            return boundary, None
        last = maker = self.view.maker.get(node.input[index])
        while maker is not None and maker.op_type in MOVING:
            boundary = self.qdq.edges.get((maker.name, 0))
            if boundary is not None:
                return boundary, last
            maker = self.view.maker.get(maker.input[0])
        return None, None

    def _operand(self, node: onnx.NodeProto, index: int) -> str:
        """Tell in which format a node reads an input."""
        if index >= len(node.input) or not node.input[index]:
            return NONE
        name = node.input[index]
        boundary, _ = self._boundary(node, index)
        if boundary is not None:
            spread = " per channel" if (node.name, index) in self.qdq.spread else ""
            return self.qdq.params[boundary].type + spread
        weight = self.qdq.weights.get(name)
        if weight is not None:
            params = weight.params
            if params.type == "int32":
                return f"bias int32{'' if self._bias_fits(node, params) else ' of another scale'}"
            how = " per block" if params.block else " per channel" if params.axis is not None else ""
            return f"weight {params.type}{how}"
        return "constant" if name in self.view.constants else "float"

    def _bias_fits(self, node: onnx.NodeProto, bias: Params) -> bool:
        """Tell whether a bias has the scale of input times weight."""
        maker = node
        if node.op_type == "Add":  # the bias of a matrix product stands in an addition behind it
            makers = [self.view.maker.get(name) for name in node.input]
            maker = next((each for each in makers if each is not None and each.op_type == "MatMul"), node)
        first, _ = self._boundary(maker, 0)
        second = self.qdq.weights.get(maker.input[1]) if len(maker.input) > 1 else None
        if first is None or second is None:
            return False
        wanted = self.qdq.params[first].scale.astype(np.float64) * second.params.scale
        return wanted.shape in {(), bias.scale.shape} and np.allclose(bias.scale, wanted, rtol=1e-3, atol=0)

    def _inputs(self, node: onnx.NodeProto) -> str:
        """Tell whether the operands have one format; a bias is none."""
        kinds = {self._operand(node, index) for index in range(len(node.input)) if node.input[index]}
        kinds = {kind for kind in kinds if not kind.startswith(("bias", "constant"))}
        return "one format" if len(kinds) < 2 else "all 8 bits" if all("int8" in kind for kind in kinds) else "several"

    def _read_by(self, node: onnx.NodeProto, index: int) -> str:
        """Tell whether a node is the only one that reads what a boundary holds, and what moves of it."""
        boundary, moved = self._boundary(node, index)
        if boundary is None:
            return NONE
        alone = self.reads[boundary] == 1 and (moved is None or len(self.view.readers.get(moved.output[0], [])) == 1)
        return "one" if alone else "more"

    def _beyond(self, node: onnx.NodeProto) -> dict[str, str]:
        """Tell who makes what a node reads and who reads what it makes, whether rounded in between or not."""
        if node.op_type in WEIGHTED and len(node.input) > 1 and self.view.is_constant(node.input[1]):
            return {}  # its own input and weight are enough
        last = node
        for _ in range(_MOST_STEPS):
            reader = self.view.only_reader(last.output[0])
            if reader is None or reader.op_type not in POINTWISE | MOVING:
                break
            last = reader
        makers = [self._made_by(node, index) for index in range(len(node.input))]
        joins = any(
            made == "weighted" and self.view.only_reader(name) is node
            for made, name in zip(makers, node.input, strict=True)
        )
        beside = {"made by": _listed(makers), "output, goes to": self._goes_to(node)}
        if node.op_type not in POINTWISE:
            return beside
        begins = self._begins(node)
        return {
            **beside, "joins": "weighted" if joins else NONE, "chain to": self._goes_to(last),
            "chain writes": self._written(last)[0], "chain from": _listed(made for made, _ in begins),
            "chain reads": _listed(kind for _, kind in begins),
        }  # fmt: skip

    def _begins(self, node: onnx.NodeProto) -> set[tuple[str, str]]:
        """Return who makes what a chain of operators number by number reads that ends in a node, and in which format.

        What others read too is written by a kernel, and a chain begins behind it.
        """
        found: set[tuple[str, str]] = set()
        waiting, seen = [node], {node.name}
        while waiting:
            current = waiting.pop()
            for index in range(len(current.input)):
                made = self._made_by(current, index)
                maker = self.view.maker.get(current.input[index])
                alone = maker is not None and self.view.only_reader(maker.output[0]) is not None
                if made == "pointwise" and alone and current.op_type in POINTWISE and len(seen) < _MOST_STEPS:
                    if maker is not None and maker.name not in seen:
                        seen.add(maker.name)
                        waiting.append(maker)
                elif made != NONE:
                    found.add((made, self._operand(current, index)))
        return found

    def _made_by(self, node: onnx.NodeProto, index: int) -> str:
        if index >= len(node.input) or not node.input[index] or self.view.is_constant(node.input[index]):
            return NONE
        maker = self.view.maker.get(node.input[index])
        return "input" if maker is None else _class(maker)

    def _goes_to(self, node: onnx.NodeProto) -> str:
        """Tell who reads a result, if only after it was moved."""
        found: set[str] = set()
        waiting = [(node, 0)]
        while waiting:
            current, depth = waiting.pop()
            for name in current.output:
                found |= {"output"} if name in self.view.outputs else set()
                for reader, _ in self.view.readers.get(name, []):
                    if reader.op_type in MOVING and depth < _MOST_STEPS:
                        waiting.append((reader, depth + 1))
                    else:
                        found.add(_class(reader))
        return _listed(found)

    def _shape_facts(self, node: onnx.NodeProto) -> dict[str, str]:
        shapes = [self._shape(name) for name in node.input[:2] if name]
        ranks = [NONE if shape is None else str(len(shape)) for shape in shapes] + [NONE, NONE]
        known = [shape for shape in shapes if shape is not None]
        is_open = any(size < 0 for shape in known[:1] for size in shape)
        equal = NONE if len(known) < 2 else "equal" if known[0] == known[1] else "different"
        return {"rank 0": ranks[0], "rank 1": ranks[1], "sizes": "open" if is_open else "fixed", "shapes": equal}

    def _shape(self, tensor: str) -> tuple[int, ...] | None:
        if tensor in self.qdq.weights:
            return self.qdq.weights[tensor].values.shape
        constant = self.view.constants.get(tensor)
        return self.view.shape(tensor) if constant is None else tuple(constant.dims)

    def _before(self, node: onnx.NodeProto) -> dict[str, str]:
        """Tell what a node's operand in float comes from: who computes it, and from what."""
        found: dict[str, str] = {}
        current: onnx.NodeProto | None = node
        for step in ("before", "before that"):
            maker = None if current is None else self._maker(current)
            if maker is None:
                found |= {step: NONE, f"{step}, input 0": NONE, f"{step}, input 1": NONE, f"{step}, readers": NONE}
            else:
                readers = self.view.readers.get(maker.output[0], [])
                found |= {
                    step: maker.op_type, f"{step}, input 0": self._operand(maker, 0),
                    f"{step}, input 1": self._operand(maker, 1),
                    f"{step}, readers": "one" if len(readers) == 1 else "more",
                }  # fmt: skip
            current = maker
        return found

    def _maker(self, node: onnx.NodeProto) -> onnx.NodeProto | None:
        """Return who computes an operand that a node reads in float, one with weights before others."""
        makers = []
        for index, name in enumerate(node.input):
            maker = self.view.maker.get(name) if self._operand(node, index) == "float" else None
            while maker is not None and maker.op_type in MOVING:
                maker = self.view.maker.get(maker.input[0]) if self._operand(maker, 0) == "float" else None
            if maker is not None:
                makers.append(maker)
        return next((maker for maker in makers if maker.op_type in WEIGHTED), makers[0] if makers else None)

    def _after(self, node: onnx.NodeProto) -> dict[str, str]:
        """Tell in which format a node's output is read, and what follows where that is one node in float."""
        found: dict[str, str] = {}
        current: onnx.NodeProto | None = node
        for step in ("output", "after", "after that"):
            if current is None:
                found |= {step: NONE, f"{step}, zero point": NONE}
                continue
            kind, boundary, last = self._written(current)
            if step == "output":
                alone = boundary is None or self.reads[boundary] == 1
                found |= {"output": kind, "scales": self._scales(node, boundary)}
                found["output, readers"] = NONE if boundary is None else "one" if alone else "more"
            else:
                found |= {step: current.op_type, f"{step}, other input": self._other(current), f"{step}, output": kind}
            found |= {f"{step}, moved": last.op_type if last is not current else NONE}
            found[f"{step}, zero point"] = self._cut(current, boundary)
            current = self.view.only_reader(last.output[0]) if kind == "float" else None
        return found

    def _other(self, node: onnx.NodeProto) -> str:
        """Tell what a node reads beside its operand in float, and how many dimensions a constant has."""
        for index, name in enumerate(node.input):
            kind = self._operand(node, index)
            if kind not in ("float", NONE):
                shape = self._shape(name) if name in self.view.constants or name in self.qdq.weights else None
                return kind if shape is None else f"{kind}, {len(shape)}-d"
        return NONE

    def _written(self, node: onnx.NodeProto) -> tuple[str, str | None, onnx.NodeProto]:
        """Tell in which format a node's outputs are read, if only after they were moved, and who moved them last.

        A type, ``float``, ``output`` of the model, or several.
        """
        kind, boundary = self._read_as(node)
        last = node
        while kind == "float":
            after = self.view.only_reader(last.output[0])
            if after is None or after.op_type not in MOVING:
                break
            last = after
            kind, boundary = self._read_as(last)
        return kind, boundary, last

    def _read_as(self, node: onnx.NodeProto) -> tuple[str, str | None]:
        kinds: list[tuple[str, str | None]] = []
        for tensor in node.output:
            readers = self.view.readers.get(tensor, [])
            held = {self.qdq.edges.get((reader.name, index)) for reader, index in readers}
            if tensor in self.view.outputs:
                kinds.append(("output" if not readers else "output and read", None))
            elif len(held) == 1:
                boundary = next(iter(held))
                if boundary is None:
                    kinds.append(("float", None))
                elif boundary in self.qdq.doubled:
                    kinds.append(("more than one Q", None))
                else:
                    kinds.append((self.qdq.params[boundary].type, boundary))
            elif held:
                kinds.append(("float and Q" if None in held else "more than one Q", None))
        if not kinds:
            return NONE, None
        return kinds[0] if len({kind for kind, _ in kinds}) == 1 else ("several", None)

    def _scales(self, node: onnx.NodeProto, boundary: str | None) -> str:
        sources = (self._boundary(node, index)[0] for index in range(len(node.input)))
        source = next((each for each in sources if each is not None), None)
        if boundary is None or source is None:
            return NONE
        one, other = self.qdq.params[source], self.qdq.params[boundary]
        return "same" if one.same(other) else "other"

    def _cut(self, node: onnx.NodeProto, boundary: str | None) -> str:
        """Tell whether the integers of an output end where a Relu or Clip does."""
        if boundary is None:
            return NONE
        params = self.qdq.params[boundary]
        if params.type not in LIMITS:
            return NONE
        least, _ = LIMITS[params.type]
        if node.op_type == "Clip":
            low, high = self.view.clip_bound(node, 1, "min"), self.view.clip_bound(node, 2, "max")
            bottom, top = params.bounds
            within = (low is None or bottom >= low) and (high is None or top <= high)
            return "within the clip" if within else "beyond the clip"
        return "at the minimum" if int(params.zero_point) == least else "elsewhere"


def _listed(words: Iterable[str]) -> str:
    return ", ".join(sorted(set(words) - {NONE})) or NONE


def _class(node: onnx.NodeProto) -> str:
    """Return what an operator is to its neighbors."""
    if node.op_type in WEIGHTED:
        return "weighted"
    return "pointwise" if node.op_type in POINTWISE else "moving" if node.op_type in MOVING else node.op_type


def _attributes(node: onnx.NodeProto, opset: int) -> Iterator[tuple[str, str]]:
    """Yield what a node's settings are where they are not the usual ones."""
    for entry in node.attribute:
        if entry.name in _LEFT_OUT or entry.type in (entry.GRAPH, entry.GRAPHS, entry.TENSOR):
            continue
        value = helper.get_attribute_value(entry)
        if entry.name == "group":
            yield "group", "1" if value == 1 else "more"
        elif entry.name in _USUAL:
            usual = all(each == _USUAL[entry.name] for each in value)
            if not usual:
                yield entry.name, "set"
        elif value == _default(node.op_type, opset, entry.name):
            continue  # some tools write it, some do not
        elif isinstance(value, bytes):
            yield entry.name, value.decode("utf-8", "replace")
        elif isinstance(value, int | float):
            yield entry.name, f"{value:g}"


@cache
def _default(operator: str, opset: int, name: str) -> object:
    """Return what a setting of a standard operator is where a node does not tell; None where it must."""
    if not onnx.defs.has(operator, opset):
        return None
    declared = onnx.defs.get_schema(operator, opset).attributes.get(name)
    given = declared is not None and declared.default_value.type != onnx.AttributeProto.UNDEFINED
    return helper.get_attribute_value(declared.default_value) if declared is not None and given else None
