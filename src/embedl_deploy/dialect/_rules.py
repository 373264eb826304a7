"""What TensorRT, LiteRT and OpenVINO make of a Q/DQ graph, from their documentation; nothing here is run."""

import numpy as np
import onnx

from embedl_deploy.dialect._dialects import MOVES, Dialect
from embedl_deploy.dialect._fuse import Kernel
from embedl_deploy.dialect._model import Parts
from embedl_deploy.dialect._place import CONVOLUTIONS, WEIGHTED, View

_EPILOGUE = frozenset(
    {"Relu", "Clip", "Sigmoid", "LeakyRelu", "HardSwish", "HardSigmoid", "Mul", "Gelu", "Elu", "Tanh"}
)


def predict(parts: Parts, dialect: Dialect) -> list[Kernel]:
    """Return a kernel for every node, with the reason where one stays float."""
    rules = _Rules(parts, dialect)
    found = [rules.kernel(node) for node in parts.graph.node]
    covered = {name for kernel in found for name in kernel.covers}
    return [kernel for kernel in found if kernel.node.name not in covered]


class _Rules:
    def __init__(self, parts: Parts, dialect: Dialect) -> None:
        self.parts = parts
        self.dialect = dialect
        self.view = View(parts)

    def kernel(self, node: onnx.NodeProto) -> Kernel:
        reason = self._refusal(node) or self._lack(node)
        if reason:
            return Kernel(node, node.op_type, False, reason, (), node.output[0], None)
        kind = self._kind(node).upper()
        return Kernel(
            node, f"{kind} {node.op_type}", True, self._slow(node), self._epilogue(node), node.output[0], None
        )

    def _epilogue(self, node: onnx.NodeProto) -> tuple[str, ...]:
        """Name what melts into an integer operator: the addition of a bias, and the activation after it."""
        if node.op_type not in WEIGHTED | {"Add"}:
            return ()
        last = self.view.bias_tail(node)
        found = [] if last is node else [last.name]
        after = self.view.only_reader(last.output[0])
        if after is not None and (after.name, 0) not in self.parts.edges:
            pointwise = self.dialect.skip_only and after.op_type in _EPILOGUE - {"Mul"}
            found += [after.name] if pointwise or self.view.is_floor(after) else []
        return tuple(found)

    def _formats(self, node: onnx.NodeProto) -> list[str]:
        """Name the formats of a node's quantised inputs."""
        found = [self.parts.edges[node.name, i] for i in range(len(node.input)) if (node.name, i) in self.parts.edges]
        kinds = [self.parts.params[name].type for name in found]
        return kinds + [self.parts.weights[name].params.type for name in node.input if name in self.parts.weights]

    def _kind(self, node: onnx.NodeProto) -> str:
        return next((kind for kind in self._formats(node) if kind != "int32"), "float")

    def _refusal(self, node: onnx.NodeProto) -> str:
        """Say what the runtime does not read at all."""
        for index, name in enumerate(node.input):
            boundary = self.parts.edges.get((node.name, index))
            weight = self.parts.weights.get(name)
            params = self.parts.params[boundary] if boundary is not None else weight.params if weight else None
            if params is None:
                continue
            if params.type == "int32":
                if not self.dialect.integer_bias:
                    return f"refused: {self.dialect.name} reads no DQ from int32 ({name!r}); the bias must be float"
                continue
            kinds = self.dialect.types if weight else self.dialect.activation_types
            if params.type not in kinds:
                return f"refused: {self.dialect.name} reads no {params.type} ({boundary or name!r})"
            if weight and params.type in self.dialect.no_conv_types and node.op_type in CONVOLUTIONS:
                return f"refused: {self.dialect.name} reads no {params.type} in a convolution ({name!r})"
            free = self.dialect.weight_zero_point if weight else self.dialect.zero_point
            if not free and np.any(params.zero_point):
                return f"refused: {self.dialect.name} reads no zero point other than 0 ({boundary or name!r})"
        return ""

    def _lack(self, node: onnx.NodeProto) -> str:
        """Say why a node does not compute on integers, or nothing."""
        if not self._formats(node):
            return "is not quantised"
        if node.op_type not in self.dialect.integers:
            return f"{self.dialect.name} has no integer kernel for it"
        # The bias is no operand: it may be float.
        operands = [
            index for index, name in enumerate(node.input) if name and not (index == 2 and node.op_type in WEIGHTED)
        ]
        operands = operands[:1] if node.op_type not in WEIGHTED | {"Add", "Concat", "Mul"} else operands
        floats = [node.input[i] for i in operands
                  if (node.name, i) not in self.parts.edges and node.input[i] not in self.parts.weights]  # fmt: skip
        if floats and not (self.dialect.skip_only and node.op_type == "Add" and len(floats) == 1):
            return f"input {floats[0]!r} is float: no Q/DQ before it"
        wanted = self.dialect.outputs | self.dialect.both_sides
        if node.op_type in wanted and not self._is_written(self.view.tail(self.view.bias_tail(node))):
            return f"its output {self.view.tail(node)!r} carries no Q"
        return ""

    def _is_written(self, tensor: str) -> bool:
        """Tell whether a tensor carries Q, if only after it was moved."""
        if tensor in self.parts.tensor_of.values():
            return True
        after = self.view.only_reader(tensor)
        return after is not None and after.op_type in MOVES and self._is_written(after.output[0])

    def _slow(self, node: onnx.NodeProto) -> str:
        """Say what keeps the operators after a weighted one from melting into it."""
        if not self.dialect.skip_only or node.op_type not in WEIGHTED:
            return ""
        last = self.view.bias_tail(node)
        after = self.view.only_reader(last.output[0])
        if after is None or (after.name, self._index(after, last)) not in self.parts.edges:
            return ""
        if after.op_type == "Add" and any((after.name, i) not in self.parts.edges for i in range(2)):
            return ""  # this is the skip branch: the other operator melts with the addition
        if after.op_type in _EPILOGUE | {"Add"}:
            return f"Q/DQ between it and {after.op_type} {after.name!r} breaks their fusion"
        return ""

    def _index(self, reader: onnx.NodeProto, node: onnx.NodeProto) -> int:
        return list(reader.input).index(node.output[0])
