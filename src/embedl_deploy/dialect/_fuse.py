"""Which kernels ONNX Runtime's CPU provider makes of a Q/DQ graph, and why not others.

The rules are the preconditions of its Q/DQ pass, written down as checks over a model in parts. `check` prints them, the
integer reference runs them, and both are compared with the graph that ONNX Runtime itself writes.
"""

import copy
from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np
import onnx

from embedl_deploy.dialect._dialects import MOVES
from embedl_deploy.dialect._model import Parts, attribute
from embedl_deploy.dialect._numbers import LIMITS, Params
from embedl_deploy.dialect._place import View

if TYPE_CHECKING:
    from collections.abc import Callable

_UNARY = frozenset({"AveragePool", "GlobalAveragePool", "LeakyRelu", "Sigmoid", "Softmax"})
_MOVES = MOVES | {"Resize", "DepthToSpace", "ReduceMax", "ReduceMin"}
# What ONNX Runtime carries Q and DQ across before it fuses.
_SPREADING = frozenset({"MaxPool", "Reshape", "Transpose", "Squeeze", "Unsqueeze", "Slice"})
_EIGHT_BITS = frozenset({"int8", "uint8"})
# What becomes of a layer whose float weight ONNX Runtime rounds.
_ROUNDED = {"Conv": "QLinearConv", "ConvTranspose": "ConvTranspose", "Gemm": "QGemm", "MatMul": "QGemm"}
# Operators that are spelt with one node here and vanish before anything runs.
_NOTHING = frozenset({"Identity", "Dropout"})


@dataclass(frozen=True)
class Kernel:
    """One operator and what it becomes.

    Attributes:
        node: The operator.
        name: The kernel; the operator's own name when it stays float.
        integer: Whether it computes on integers.
        reason: Why it stays float, or what it takes in.
        covers: Further nodes that the kernel does: a Relu, the addition of a bias.
        output: The tensor it ends at.
        boundary: The format it writes integers in, None when it writes floats.
        rounded: Whether the file has float weights that the runtime rounds all the same.
    """

    node: onnx.NodeProto
    name: str
    integer: bool
    reason: str
    covers: tuple[str, ...]
    output: str
    boundary: str | None
    rounded: bool = False


class _NotFusedError(Exception):
    """A precondition that does not hold; caught where a kernel is chosen."""


def fuse(parts: Parts, *, signed_kernels: bool) -> list[Kernel]:
    """Return the kernels in the graph's order.

    Args:
        parts: The model, as `propagated` returns it.
        signed_kernels: Whether the processor has kernels for signed activations (ARM); x86 turns int8 pairs into uint8.
    """
    fuser = _Fuser(parts, signed_kernels=signed_kernels)
    found: list[Kernel] = []
    done: set[str] = set()
    for node in parts.graph.node:
        if node.name not in done:
            kernel = fuser.kernel(node)
            done |= set(kernel.covers)
            found.append(kernel)
    return found


def propagated(parts: Parts) -> Parts:
    """Return a model whose Q/DQ stand on both sides of what moves values, as ONNX Runtime puts them before it fuses."""
    moved = copy.copy(parts)
    moved.tensor_of, moved.params, moved.edges = dict(parts.tensor_of), dict(parts.params), dict(parts.edges)
    view = View(moved)
    for node in parts.graph.node:
        before = moved.edges.get((node.name, 0)) if (node.name, 0) not in parts.spread else None
        if node.op_type not in _SPREADING or before is None or node.output[0] in view.outputs:
            continue
        readers = view.readers.get(node.output[0], [])
        if readers and not any((reader.name, index) in moved.edges for reader, index in readers):
            boundary = moved.boundary(node.output[0], moved.params[before])
            moved.edges |= {(reader.name, index): boundary for reader, index in readers}
    for node in reversed(parts.graph.node):
        if node.op_type not in _SPREADING or (node.name, 0) in moved.edges or not node.input[0]:
            continue
        held = {moved.edges.get((reader.name, index)) for reader, index in view.readers.get(node.output[0], [])}
        after = held.pop() if len(held) == 1 else None
        alone = view.only_reader(node.input[0]) is node
        if after is not None and alone and node.input[0] in view.maker and node.output[0] not in view.outputs:
            moved.edges[node.name, 0] = moved.boundary(node.input[0], moved.params[after])
    return moved


class _Fuser:
    def __init__(self, parts: Parts, *, signed_kernels: bool) -> None:
        self.parts = parts
        self.view = View(parts)
        self.signed_kernels = signed_kernels
        self.reads: dict[str, int] = {}
        self.spread = {parts.edges[edge] for edge in parts.spread}
        self.rules: dict[str, Callable[[onnx.NodeProto], Kernel]] = {
            "Conv": self._conv,
            "Gemm": self._gemm,
            "MatMul": self._matmul,
            "Add": self._binary,
            "Mul": self._binary,
            "Concat": self._concat,
            **dict.fromkeys(_UNARY, self._unary),
            **dict.fromkeys(_MOVES, self._move),
        }
        for name in parts.edges.values():
            self.reads[name] = self.reads.get(name, 0) + 1

    def kernel(self, node: onnx.NodeProto) -> Kernel:
        standard = node.domain in ("", "ai.onnx")
        rule = self.rules.get(node.op_type, self._float) if standard else self._float
        try:
            return rule(node)
        except _NotFusedError as refused:
            return self._in_float(node, str(refused))

    def _in_float(self, node: onnx.NodeProto, reason: str) -> Kernel:
        """Return the float kernel of a node; a float weight between Q/DQ is rounded, unless the file prevents it."""
        has_float_weight = node.op_type in _ROUNDED and node.input[1] in self.view.constants
        if not has_float_weight or (node.name, 0) not in self.parts.edges:
            return Kernel(node, node.op_type, False, reason, (), node.output[0], None)
        if (node.name, 0) in self.parts.spread:
            reason = f"its weight {node.input[1]!r} is float, and the DQ before it keeps it so"
        elif self._is_rounded(node):
            reason = (
                f"its weight {node.input[1]!r} is float, and ONNX Runtime rounds it to int8 with one scale, as it "
                "stands between Q/DQ; lowering the file prevents that"
            )
            return Kernel(node, _ROUNDED[node.op_type], False, reason, (), node.output[0], None, rounded=True)
        return Kernel(node, node.op_type, False, reason, (), node.output[0], None)

    def _is_rounded(self, node: onnx.NodeProto) -> bool:
        """Tell whether ONNX Runtime rounds the float weight of a node that reads a DQ."""
        last = self.view.bias_tail(node)
        if node.op_type == "MatMul":
            # Of more than two dimensions it is a Gemm between two Reshapes, and Q is not carried across a Relu.
            flat = len(self.view.shape(node.input[0]) or ()) == 2
            end = last.output[0]
            reached = self._leads_to_q(end) if flat else self._only_boundary(end) is not None
            return reached and self._becomes_gemm(node, last)
        bias = node.input[2] if len(node.input) > 2 else ""
        flat = not bias or (bias in self.view.constants and len(self.view.constants[bias].dims) == 1)
        return flat and self._leads_to_q(node.output[0])

    def _leads_to_q(self, tensor: str) -> bool:
        """Tell whether a tensor has one reader, a Q, if only behind Relu and Clip."""
        if self._only_boundary(tensor) is not None:
            return True
        after = self.view.only_reader(tensor)
        return after is not None and after.op_type in ("Relu", "Clip") and self._leads_to_q(after.output[0])

    def _float(self, node: onnx.NodeProto) -> Kernel:
        raise _NotFusedError(self._foreign(node))

    def _foreign(self, node: onnx.NodeProto) -> str:
        if node.op_type in _NOTHING:
            return "does nothing"
        held = any((node.name, index) in self.parts.edges for index in range(len(node.input)))
        return "ONNX Runtime has no integer kernel for it" if held else "is not quantised"

    def _kind(self, boundary: str) -> str:
        """Return the type a boundary has when kernels are chosen: x86 turns an int8 pair with one reader into uint8."""
        kind = self.parts.params[boundary].type
        plain = boundary not in self.spread
        if kind == "int8" and not self.signed_kernels and plain and self.reads.get(boundary) == 1:
            return "uint8"
        return kind

    def _in(self, node: onnx.NodeProto, index: int) -> str:
        """Return the type of an input that is read in integers."""
        name = node.input[index]
        boundary = self.parts.edges.get((node.name, index))
        if boundary is not None:
            if (node.name, index) in self.parts.spread:
                raise _NotFusedError(f"the DQ before input {name!r} has a scale per channel")
            kind = self._kind(boundary)
        elif name in self.parts.weights:
            kind = self.parts.weights[name].params.type
        else:
            raise _NotFusedError(f"input {name!r} is float: no Q/DQ before it")
        if kind not in _EIGHT_BITS | {"int32"}:
            raise _NotFusedError(f"input {name!r} is {kind}, and kernels have 8 bits")
        return kind

    def _signed(self, node: onnx.NodeProto, kind: str) -> None:
        if kind == "int8" and not self.signed_kernels:
            raise _NotFusedError(
                f"{node.input[0]!r} is int8 with several readers: x86 kernels take uint8; use dialect onnxruntime-x86"
            )

    def _out(self, node: onnx.NodeProto) -> tuple[str, str | None, tuple[str, ...]]:
        """Return where a kernel that starts at a node ends: tensor, format it writes (or None), nodes taken in.

        Raises:
            _NotFusedError: A Relu or Clip follows that stops the kernel altogether.
        """
        tensor = node.output[0]
        after = self.view.only_reader(tensor)
        floor = after is not None and after.op_type in ("Relu", "Clip") and (after.name, 0) not in self.parts.edges
        if after is None or not floor:
            return tensor, self._only_boundary(tensor), ()
        end = after.output[0]
        boundaries = {self.parts.edges.get((reader.name, index)) for reader, index in self.view.readers.get(end, [])}
        formats = [name for name, held in self.parts.tensor_of.items() if held == end]
        in_float = None in boundaries
        if len(formats) + in_float != 1 or end in self.view.outputs or self.parts.doubled & set(formats):
            return tensor, None, ()  # the Relu has several readers and is left alone
        if in_float:
            raise _NotFusedError(f"the {after.op_type} after it is not followed by Q, and that stops the kernel")
        self._absorbs(after, self.parts.params[formats[0]], formats[0])
        return end, formats[0], (after.name,)

    def _absorbs(self, node: onnx.NodeProto, params: Params, boundary: str) -> None:
        """Check that rounding does what a Relu or Clip does."""
        zero, least = int(params.zero_point), LIMITS[params.type][0]
        if node.op_type == "Relu":
            if zero != least:
                raise _NotFusedError(
                    f"Relu {node.name!r} is not absorbed: zero point {zero} of {boundary!r} is not the minimum of "
                    f"{params.type}"
                )
            return
        low, high = self.view.clip_bound(node, 1, "min"), self.view.clip_bound(node, 2, "max")
        least_real, most_real = params.bounds
        if (low is not None and least_real < low) or (high is not None and most_real > high):
            raise _NotFusedError(
                f"Clip {node.name!r} is not absorbed: {boundary!r} reaches from {least_real:.6g} to {most_real:.6g}"
            )

    def _only_boundary(self, tensor: str) -> str | None:
        """Return the format all readers of a tensor read it in, None if any reads floats or formats differ."""
        readers = self.view.readers.get(tensor, [])
        held = {self.parts.edges.get((reader.name, index)) for reader, index in readers}
        if len(held) != 1 or tensor in self.view.outputs or held & self.parts.doubled:
            return None
        return held.pop()

    def _must_write(self, node: onnx.NodeProto, kind: str) -> tuple[str, str, tuple[str, ...]]:
        """Return where a kernel ends that must write integers of its input's type."""
        end, boundary, covers = self._out(node)
        if boundary is None:
            floats = [reader.name for reader, index in self.view.readers.get(end, [])
                      if (reader.name, index) not in self.parts.edges]  # fmt: skip
            if end in self.view.outputs:
                raise _NotFusedError(f"its output {end!r} is an output of the model")
            if floats:
                raise _NotFusedError(f"its output {end!r} is read as float by {floats[0]!r}: Q is missing")
            raise _NotFusedError(f"its output {end!r} has more than one Q")
        if self._kind(boundary) != kind:
            raise _NotFusedError(f"input is {kind} and output {boundary!r} is {self._kind(boundary)}")
        return end, boundary, covers

    def _bias(self, node: onnx.NodeProto, index: int) -> None:
        name = node.input[index]
        bias = self.parts.weights.get(name)
        if bias is not None and bias.params.type == "int32":
            self._bias_scale(node, bias.params)
            return
        raise _NotFusedError(f"bias {name!r} is float; as int32 behind DQ it would fuse")

    def _bias_scale(self, node: onnx.NodeProto, bias: Params) -> None:
        """Check that a bias has the scale that the kernel will give it."""
        first, second = self.parts.edges.get((node.name, 0)), self.parts.weights.get(node.input[1])
        if first is None or second is None:
            return
        wanted = self.parts.params[first].scale.astype(np.float64) * second.params.scale
        if not np.allclose(bias.scale, wanted, rtol=1e-3, atol=0):
            raise _NotFusedError("the scale of its bias is not input scale × weight scale")

    def _conv(self, node: onnx.NodeProto) -> Kernel:
        kind = self._in(node, 0)
        self._in(node, 1)
        self._signed(node, kind)
        if len(node.input) > 2 and node.input[2] in self.parts.weights:
            self._bias(node, 2)
        end, boundary, covers = self._must_write(node, kind)
        return Kernel(node, "QLinearConv", True, _taken(covers), covers, end, boundary)

    def _gemm(self, node: onnx.NodeProto) -> Kernel:
        kind = self._in(node, 0)
        self._in(node, 1)
        if len(node.input) > 2 and node.input[2]:
            self._bias(node, 2)
            if any(attribute(node, name, 1.0) != 1.0 for name in ("alpha", "beta")):
                raise _NotFusedError("it has a bias, and alpha or beta is not 1")
        end, boundary, covers = self._out(node)
        if boundary is not None and self._kind(boundary) != kind:
            raise _NotFusedError(f"input is {kind} and output {boundary!r} is {self._kind(boundary)}")
        note = _taken(covers) if boundary else "writes float"
        return Kernel(node, "QGemm", True, note, covers, end, boundary)

    def _matmul(self, node: onnx.NodeProto) -> Kernel:
        kind = self._in(node, 0)
        self._in(node, 1)
        last = self.view.bias_tail(node)
        if self._becomes_gemm(node, last):
            index = next(index for index, name in enumerate(last.input) if name != node.output[0])
            self._bias(last, index)
            end, boundary, covers = self._out(last)
            note = _taken(covers) if boundary else "writes float"
            return Kernel(node, "QGemm", True, note, (last.name, *covers), end, boundary)
        self._signed(node, kind)
        end, boundary, covers = self._out(node)
        if boundary is None:
            return Kernel(node, "MatMulIntegerToFloat", True, "writes float", (), node.output[0], None)
        if self._kind(boundary) != kind:
            raise _NotFusedError(f"input is {kind} and output {boundary!r} is {self._kind(boundary)}")
        return Kernel(node, "QLinearMatMul", True, _taken(covers), covers, end, boundary)

    def _becomes_gemm(self, node: onnx.NodeProto, add: onnx.NodeProto) -> bool:
        """Tell whether MatMul and Add melt before kernels are chosen: a matrix, or fixed shapes, and a flat bias."""
        weight, constant = self.parts.weights.get(node.input[1]), self.view.constants.get(node.input[1])
        rank = weight.values.ndim if weight is not None else len(constant.dims) if constant is not None else 0
        if add is node or rank != 2 or (add.name, 0) in self.parts.edges:
            return False
        shape = self.view.shape(node.input[0])
        return shape is not None and (len(shape) == 2 or all(size > 0 for size in shape))

    def _binary(self, node: onnx.NodeProto) -> Kernel:
        kinds = {self._in(node, index) for index in range(2)}
        if len(kinds) > 1:
            raise _NotFusedError(f"its inputs have different types, {' and '.join(sorted(kinds))}")
        end, boundary, covers = self._must_write(node, kinds.pop())
        return Kernel(node, f"QLinear{node.op_type}", True, _taken(covers), covers, end, boundary)

    def _concat(self, node: onnx.NodeProto) -> Kernel:
        kinds = {self._in(node, index) for index in range(len(node.input))}
        if len(kinds) > 1:
            raise _NotFusedError(f"its inputs have different types, {' and '.join(sorted(kinds))}")
        end, boundary, covers = self._must_write(node, kinds.pop())
        return Kernel(node, "QLinearConcat", True, _taken(covers), covers, end, boundary)

    def _unary(self, node: onnx.NodeProto) -> Kernel:
        end, boundary, covers = self._must_write(node, self._in(node, 0))
        return Kernel(node, f"QLinear{node.op_type}", True, _taken(covers), covers, end, boundary)

    def _move(self, node: onnx.NodeProto) -> Kernel:
        kind = self._in(node, 0)
        boundary = self._only_boundary(node.output[0])
        source = self.parts.edges.get((node.name, 0))
        if source is None or boundary is None:
            raise _NotFusedError("its output is read as float")
        if not self.parts.params[source].same(self.parts.params[boundary]) or self._kind(boundary) != kind:
            raise _NotFusedError(f"its input and output have different scales ({source!r}, {boundary!r})")
        return Kernel(node, node.op_type, True, "moves integers", (), node.output[0], boundary)


def _taken(covers: tuple[str, ...]) -> str:
    return f"takes in {', '.join(covers)}" if covers else ""
