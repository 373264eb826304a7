"""Which kernels ONNX Runtime's CPU provider makes of a Q/DQ graph, and why not others.

The rules are the preconditions of its Q/DQ pass, written down as checks over a model in qdq. `check` prints them, the
integer reference runs them, and both are compared with the graph that ONNX Runtime itself writes.
"""

import copy
from collections import Counter
from dataclasses import dataclass, replace

import numpy as np
import onnx

from embedl_deploy.dialect._dialects import MOVES
from embedl_deploy.dialect._model import QdqModel, attribute
from embedl_deploy.dialect._numbers import LIMITS, Params
from embedl_deploy.dialect._qdq_placement import View

_UNARY = frozenset({"AveragePool", "GlobalAveragePool", "LeakyRelu", "Sigmoid", "Softmax"})
_MOVES = MOVES | {"Resize", "DepthToSpace", "ReduceMax", "ReduceMin"}
# What ONNX Runtime carries Q and DQ across before it fuses.
_SPREADING = frozenset({"MaxPool", "Reshape", "Transpose", "Squeeze", "Unsqueeze", "Slice"})
_EIGHT_BITS = frozenset({"int8", "uint8"})
# What becomes of a layer whose float weight ONNX Runtime rounds.
_ROUNDED = {"Conv": "QLinearConv", "ConvTranspose": "ConvTranspose", "Gemm": "QGemm", "MatMul": "QGemm"}
# Operators that are spelled with one node here and vanish before anything runs.
_NOTHING = frozenset({"Identity", "Dropout"})


@dataclass(frozen=True)
class Kernel:
    """One operator and what it becomes."""

    node: onnx.NodeProto
    name: str  # The operator's own name when it stays float.
    integer: bool
    reason: str  # Why it stays float, or what it takes in.
    covers: tuple[str, ...]  # Further nodes that the kernel does: a Relu, the addition of a bias.
    output: str  # The tensor it ends at.
    boundary: str | None  # The format it writes integers in, None when it writes floats.
    rounded: bool = False  # The file has float weights that the runtime rounds all the same.


class _NotFusedError(Exception):
    """A precondition that does not hold; caught where a kernel is chosen."""


def fuse(qdq: QdqModel, *, signed_kernels: bool) -> list[Kernel]:
    """Return the kernels in the graph's order.

    Args:
        qdq: The model, as `propagated` returns it.
        signed_kernels: Whether the processor has kernels for signed activations (ARM); x86 turns int8 pairs into uint8.
    """
    fuser = _Fuser(qdq, signed_kernels=signed_kernels)
    found: list[Kernel] = []
    done: set[str] = set()
    for node in qdq.graph.node:
        if node.name not in done:
            kernel = fuser.kernel(node)
            done |= set(kernel.covers)
            found.append(kernel)
    return found


def propagated(qdq: QdqModel) -> QdqModel:
    """Return a model whose Q/DQ stand on both sides of what moves values, as ONNX Runtime puts them before it fuses."""
    moved = copy.copy(qdq)
    moved.tensor_of, moved.params, moved.edges = dict(qdq.tensor_of), dict(qdq.params), dict(qdq.edges)
    view = View(moved)
    for node in qdq.graph.node:
        before = moved.edges.get((node.name, 0)) if (node.name, 0) not in qdq.spread else None
        if node.op_type not in _SPREADING or before is None or node.output[0] in view.outputs:
            continue
        readers = view.readers.get(node.output[0], [])
        if readers and not any((reader.name, index) in moved.edges for reader, index in readers):
            boundary = moved.boundary(node.output[0], moved.params[before])
            moved.edges |= {(reader.name, index): boundary for reader, index in readers}
    for node in reversed(qdq.graph.node):
        if node.op_type not in _SPREADING or (node.name, 0) in moved.edges or not node.input[0]:
            continue
        held = {moved.edges.get((reader.name, index)) for reader, index in view.readers.get(node.output[0], [])}
        after = held.pop() if len(held) == 1 else None
        alone = view.only_reader(node.input[0]) is node
        if after is not None and alone and node.input[0] in view.maker and node.output[0] not in view.outputs:
            moved.edges[node.name, 0] = moved.boundary(node.input[0], moved.params[after])
    return moved


class _Fuser:
    def __init__(self, qdq: QdqModel, *, signed_kernels: bool) -> None:
        self.qdq = qdq
        self.view = View(qdq)
        self.signed_kernels = signed_kernels
        self.reads = Counter(qdq.edges.values())
        self.spread = {qdq.edges[edge] for edge in qdq.spread}
        self.rules = {
            "Conv": self._conv,
            "Gemm": self._gemm,
            "MatMul": self._matmul,
            **dict.fromkeys(_UNARY | {"Add", "Mul", "Concat"}, self._elementwise),
            **dict.fromkeys(_MOVES, self._move),
        }

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
        name, rounded = node.op_type, False
        if has_float_weight and (node.name, 0) in self.qdq.spread:
            reason = f"its weight {node.input[1]!r} is float, and the DQ before it keeps it so"
        elif has_float_weight and (node.name, 0) in self.qdq.edges and self._is_rounded(node):
            name, rounded = _ROUNDED[node.op_type], True
            reason = (
                f"its weight {node.input[1]!r} is float, and ONNX Runtime rounds it to int8 with one scale, as it "
                "stands between Q/DQ; lowering the file prevents that"
            )
        return Kernel(node, name, False, reason, (), node.output[0], None, rounded=rounded)

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
        if node.op_type in _NOTHING:
            raise _NotFusedError("does nothing")
        held = any((node.name, index) in self.qdq.edges for index in range(len(node.input)))
        raise _NotFusedError("ONNX Runtime has no integer kernel for it" if held else "is not quantized")

    def _kind(self, boundary: str) -> str:
        """Return the type a boundary has when kernels are chosen: x86 turns an int8 pair with one reader into uint8."""
        kind = self.qdq.params[boundary].type
        plain = boundary not in self.spread
        if kind == "int8" and not self.signed_kernels and plain and self.reads.get(boundary) == 1:
            return "uint8"
        return kind

    def _as_fused(self, boundary: str) -> Params:
        """Return the format a boundary has when kernels are chosen, see `_kind`."""
        params = self.qdq.params[boundary]
        if params.type == self._kind(boundary):
            return params
        return replace(params, zero_point=params.zero_point + 128, type="uint8")

    def _in(self, node: onnx.NodeProto, index: int) -> str:
        name = node.input[index]
        boundary = self.qdq.edges.get((node.name, index))
        if boundary is not None:
            if (node.name, index) in self.qdq.spread:
                raise _NotFusedError(f"the DQ before input {name!r} has a scale per channel")
            kind = self._kind(boundary)
        elif name in self.qdq.weights:
            kind = self.qdq.weights[name].params.type
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
        """Return where a kernel that starts at a node ends: tensor, format it writes (or None), nodes taken in."""
        tensor = node.output[0]
        after = self.view.only_reader(tensor)
        floor = after is not None and after.op_type in ("Relu", "Clip") and (after.name, 0) not in self.qdq.edges
        if after is None or not floor:
            return tensor, self._only_boundary(tensor), ()
        end = after.output[0]
        boundaries = {self.qdq.edges.get((reader.name, index)) for reader, index in self.view.readers.get(end, [])}
        formats = [name for name, held in self.qdq.tensor_of.items() if held == end]
        in_float = None in boundaries
        if len(formats) + in_float != 1 or end in self.view.outputs or self.qdq.doubled & set(formats):
            return tensor, None, ()  # the Relu has several readers and is left alone
        if in_float:
            raise _NotFusedError(f"the {after.op_type} after it is not followed by Q, and that stops the kernel")
        self._absorbs(after, self.qdq.params[formats[0]], formats[0])
        return end, formats[0], (after.name,)

    def _absorbs(self, node: onnx.NodeProto, params: Params, boundary: str) -> None:
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
        held = {self.qdq.edges.get((reader.name, index)) for reader, index in readers}
        if len(held) != 1 or tensor in self.view.outputs or held & self.qdq.doubled:
            return None
        return held.pop()

    def _must_write(self, node: onnx.NodeProto, kind: str) -> tuple[str, str, tuple[str, ...]]:
        """Return where a kernel ends that must write integers of its input's type."""
        end, boundary, covers = self._out(node)
        if boundary is None:
            floats = [reader.name for reader, index in self.view.readers.get(end, [])
                      if (reader.name, index) not in self.qdq.edges]  # fmt: skip
            if end in self.view.outputs:
                raise _NotFusedError(f"its output {end!r} is an output of the model")
            if floats:
                raise _NotFusedError(f"its output {end!r} is read as float by {floats[0]!r}: Q is missing")
            raise _NotFusedError(f"its output {end!r} has more than one Q")
        self._same_kind(kind, boundary)
        return end, boundary, covers

    def _same_kind(self, kind: str, boundary: str | None) -> None:
        if boundary is not None and self._kind(boundary) != kind:
            raise _NotFusedError(f"input is {kind} and output {boundary!r} is {self._kind(boundary)}")

    def _bias(self, node: onnx.NodeProto, index: int) -> None:
        """Check that a bias is an integer, with the scale that the kernel will give it."""
        bias = self.qdq.weights.get(node.input[index])
        if bias is None or bias.params.type != "int32":
            raise _NotFusedError(f"bias {node.input[index]!r} is float; as int32 behind DQ it would fuse")
        first, second = self.qdq.edges.get((node.name, 0)), self.qdq.weights.get(node.input[1])
        if first is None or second is None:
            return
        wanted = self.qdq.params[first].scale.astype(np.float64) * second.params.scale
        if not np.allclose(bias.params.scale, wanted, rtol=1e-3, atol=0):
            raise _NotFusedError("the scale of its bias is not input scale × weight scale")

    def _conv(self, node: onnx.NodeProto) -> Kernel:
        kind = self._in(node, 0)
        self._in(node, 1)
        self._signed(node, kind)
        if len(node.input) > 2 and node.input[2] in self.qdq.weights:
            self._bias(node, 2)
        end, boundary, covers = self._must_write(node, kind)
        return Kernel(node, "QLinearConv", True, _covered(covers), covers, end, boundary)

    def _gemm(self, node: onnx.NodeProto) -> Kernel:
        kind = self._in(node, 0)
        self._in(node, 1)
        if len(node.input) > 2 and node.input[2]:
            self._bias(node, 2)
            if any(attribute(node, name, 1.0) != 1.0 for name in ("alpha", "beta")):
                raise _NotFusedError("it has a bias, and alpha or beta is not 1")
        end, boundary, covers = self._out(node)
        self._same_kind(kind, boundary)
        return Kernel(node, "QGemm", True, _covered(covers) if boundary else "writes float", covers, end, boundary)

    def _matmul(self, node: onnx.NodeProto) -> Kernel:
        kind = self._in(node, 0)
        self._in(node, 1)
        last = self.view.bias_tail(node)
        if self._becomes_gemm(node, last):
            index = next(index for index, name in enumerate(last.input) if name != node.output[0])
            self._bias(last, index)
            end, boundary, covers = self._out(last)
            note = _covered(covers) if boundary else "writes float"
            return Kernel(node, "QGemm", True, note, (last.name, *covers), end, boundary)
        self._signed(node, kind)
        end, boundary, covers = self._out(node)
        if boundary is None:
            return Kernel(node, "MatMulIntegerToFloat", True, "writes float", (), node.output[0], None)
        self._same_kind(kind, boundary)
        return Kernel(node, "QLinearMatMul", True, _covered(covers), covers, end, boundary)

    def _becomes_gemm(self, node: onnx.NodeProto, add: onnx.NodeProto) -> bool:
        """Tell whether MatMul and Add melt before kernels are chosen: a matrix, or fixed shapes, and a flat bias."""
        weight, constant = self.qdq.weights.get(node.input[1]), self.view.constants.get(node.input[1])
        rank = weight.values.ndim if weight is not None else len(constant.dims) if constant is not None else 0
        if add is node or rank != 2 or (add.name, 0) in self.qdq.edges:
            return False
        shape = self.view.shape(node.input[0])
        return shape is not None and (len(shape) == 2 or all(size > 0 for size in shape))

    def _elementwise(self, node: onnx.NodeProto) -> Kernel:
        operands = 1 if node.op_type in _UNARY else len(node.input)
        kinds = {self._in(node, index) for index in range(operands)}
        if len(kinds) > 1:
            raise _NotFusedError(f"its inputs have different types, {' and '.join(sorted(kinds))}")
        end, boundary, covers = self._must_write(node, kinds.pop())
        return Kernel(node, f"QLinear{node.op_type}", True, _covered(covers), covers, end, boundary)

    def _move(self, node: onnx.NodeProto) -> Kernel:
        self._in(node, 0)
        boundary = self._only_boundary(node.output[0])
        source = self.qdq.edges.get((node.name, 0))
        if source is None or boundary is None:
            raise _NotFusedError("its output is read as float")
        if not self._as_fused(source).same(self._as_fused(boundary)):
            raise _NotFusedError(f"its input and output have different scales ({source!r}, {boundary!r})")
        return Kernel(node, node.op_type, True, "moves integers", (), node.output[0], boundary)


def _covered(covers: tuple[str, ...]) -> str:
    return f"takes in {', '.join(covers)}" if covers else ""
