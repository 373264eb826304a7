"""`check`: the kernel of every operator, predicted from the file and, where the runtime is here, confirmed by it."""

import os
import pkgutil
import re
import tempfile
from collections import Counter
from collections.abc import Iterable, Mapping
from dataclasses import replace
from pathlib import Path

import numpy as np
import onnx
import onnxruntime as ort
from onnx import numpy_helper

from embedl_deploy.dialect._ask import installed
from embedl_deploy.dialect._dialects import (
    CONVOLUTIONS,
    MOVES,
    WEIGHTED,
    Contract,
    Dialect,
    Verdict,
    get_dialect,
)
from embedl_deploy.dialect._files import load
from embedl_deploy.dialect._fuse import Kernel, fuse, propagated
from embedl_deploy.dialect._kernels import Carried, Kernels
from embedl_deploy.dialect._model import QdqModel, attribute, copy_model, name_nodes, read
from embedl_deploy.dialect._names import main_modules
from embedl_deploy.dialect._observe import make_session
from embedl_deploy.dialect._qdq_placement import View
from embedl_deploy.dialect._versions import by_version, find_version, unlearned
from embedl_deploy.errors import ModelFileError, first_line

_EPILOGUE = frozenset(
    {"Relu", "Clip", "Sigmoid", "LeakyRelu", "HardSwish", "HardSigmoid", "Mul", "Gelu", "Elu", "Tanh"}
)

# Why a kernel does not compute on the integers that it is given, where integers are handed on from kernel to kernel.
_NOT_TAKEN = {
    "AveragePool": "an average whose size is rounded up has no integer kernel",
    "ConvTranspose": "the integer kernel of a transposed convolution takes no zero point other than 0",
    "MatMul": "the product of two activations has an integer kernel for zero points of 0 alone, the second one signed",
    "Resize": "only the nearest value is resized in integers",
}
_NEARLY = 1e-3  # an exponent that was rounded
_EXACTLY = 1e-6  # a scale as float32


def predict(qdq: QdqModel, dialect: Dialect) -> list[Kernel]:
    """Return a kernel for every node, with the reason where one stays float."""
    rules = _Rules(qdq, dialect)
    found = [rules.kernel(node) for node in qdq.graph.node]
    covered = {name for kernel in found for name in kernel.covers}
    return [kernel for kernel in found if kernel.node.name not in covered]


class _Rules:
    def __init__(self, qdq: QdqModel, dialect: Dialect) -> None:
        self.qdq = qdq
        self.dialect = dialect
        self.view = View(qdq)
        self.kernels = Kernels(qdq, self.view) if dialect.carries else None
        found = [self.view.gelu_around(node) for node in qdq.graph.node if node.op_type == "Erf" and dialect.joins_gelu]
        self.gelus = {gelu[1].name: gelu for gelu in found if gelu is not None}

    def kernel(self, node: onnx.NodeProto) -> Kernel:
        if (gelu := self.gelus.get(node.name)) is not None:
            return self._gelu(gelu)
        carried = None if self.kernels is None else self.kernels.of(node)
        reason = self._refusal(node) or (self._why_float(node) if carried is None else self._why_not(node, carried))
        if reason:
            return Kernel(node, node.op_type, False, reason, (), node.output[0], None)
        kind = next((kind for kind in self._formats(node) if kind != "int32"), "float" if carried is None else "int8")
        covers = self._epilogue(node) if self.kernels is None else self.kernels.taken_by(node)
        return Kernel(
            node, f"{kind.upper()} {node.op_type}", True, self._why_unfused(node), covers, node.output[0], None
        )

    def _gelu(self, gelu: tuple[onnx.NodeProto, ...]) -> Kernel:
        """Return the kernel that stands for the operators of a GELU; roundings between them are left out."""
        before, erf, last = gelu[0], gelu[1], gelu[-1]
        is_rounded = (before.name, 0) in self.qdq.edges
        reason = "" if is_rounded else f"input {before.input[0]!r} is float: no Q/DQ before it"
        if not reason and not self._is_written(last.output[0]):
            reason = f"its output {last.output[0]!r} carries no Q"
        covers = tuple(node.name for node in gelu if node is not erf)
        return Kernel(erf, "float Gelu" if reason else "INT8 Gelu", not reason, reason, covers, last.output[0], None)

    def _why_not(self, node: onnx.NodeProto, carried: Carried) -> str:
        """Say why the kernel that does an operator's work computes in float, as far as the whole graph tells."""
        if carried.is_integer:
            return ""
        if carried.root and carried.root != node.name:
            return f"the kernel of {carried.root!r} computes in float"
        if carried.root:
            return self._why_float(node) or _NOT_TAKEN.get(node.op_type, "its kernel takes no such integers")
        return "its kernel writes floats" if carried.reads_integers else "its kernel reads floats alone"

    def _epilogue(self, node: onnx.NodeProto) -> tuple[str, ...]:
        """Name what melts into an integer operator: the addition of a bias, and the activation after it."""
        if node.op_type not in WEIGHTED | {"Add"}:
            return ()
        last = self._bias_tail(node)
        found = [] if last is node else [last.name]
        gated = self.view.gated_by(last, self.dialect.gates) or ()
        inside = [(each.name, index) for each in gated for index in range(len(each.input))]
        if not any(edge in self.qdq.edges for edge in inside):
            found += [each.name for each in gated]
        after = self.view.only_reader(last.output[0])
        if after is not None and (after.name, 0) not in self.qdq.edges:
            found += [after.name] if after.op_type in self.dialect.epilogue or self.view.is_relu_like(after) else []
        return tuple(found)

    def _bias_tail(self, node: onnx.NodeProto) -> onnx.NodeProto:
        """Return the addition of a bias that melts into a product: with no rounding between them."""
        last = self.view.bias_tail(node)
        between = last is not node and (last.name, list(last.input).index(node.output[0])) in self.qdq.edges
        return node if between else last

    def _formats(self, node: onnx.NodeProto) -> list[str]:
        found = [self.qdq.edges[node.name, i] for i in range(len(node.input)) if (node.name, i) in self.qdq.edges]
        kinds = [self.qdq.params[name].type for name in found]
        return kinds + [self.qdq.weights[name].params.type for name in node.input if name in self.qdq.weights]

    def _refusal(self, node: onnx.NodeProto) -> str:
        """Say what the runtime does not read at all."""
        for index, name in enumerate(node.input):
            boundary = self.qdq.edges.get((node.name, index))
            weight = self.qdq.weights.get(name)
            params = self.qdq.params[boundary] if boundary is not None else weight.params if weight else None
            if params is None:
                continue
            if params.type == "int32":
                if not self.dialect.integer_bias and not self.dialect.carries:
                    return f"refused: {self.dialect.name} reads no DQ from int32 ({name!r}); the bias must be float"
                continue
            kinds = self.dialect.types if weight else self.dialect.activation_types
            if params.type not in kinds:
                return f"refused: {self.dialect.name} reads no {params.type} ({boundary or name!r})"
            if weight and params.type in self.dialect.no_conv_types and node.op_type in CONVOLUTIONS:
                return f"refused: {self.dialect.name} reads no {params.type} in a convolution ({name!r})"
            free = self.dialect.weight_zero_point if weight else self.dialect.zero_point
            if weight and node.op_type not in WEIGHTED and params.scale.size == 1:
                free |= self.dialect.constant_zero_point
            if not free and np.any(params.zero_point):
                return f"refused: {self.dialect.name} reads no zero point other than 0 ({boundary or name!r})"
        return ""

    def _why_float(self, node: onnx.NodeProto) -> str:
        if not self._formats(node):
            return "is not quantized"
        is_between = node.op_type in self.dialect.between and (node.op_type != "Pow" or self._is_square(node))
        if not self.view.has_kernel(node, self.dialect) and not is_between:
            return f"{self.dialect.name} has no integer kernel for it"
        # The bias is no operand: it may be float.
        operands = [
            index for index, name in enumerate(node.input) if name and not (index == 2 and node.op_type in WEIGHTED)
        ]
        operands = operands[:1] if node.op_type not in WEIGHTED | {"Add", "Concat", "Mul", "Sub"} else operands
        floats = [node.input[i] for i in operands
                  if (node.name, i) not in self.qdq.edges and node.input[i] not in self.qdq.weights]  # fmt: skip
        if floats and not (self.dialect.skip_only and node.op_type == "Add" and len(floats) == 1):
            return f"input {floats[0]!r} is float: no Q/DQ before it"
        wanted = self.dialect.outputs | self.dialect.both_sides | self.dialect.between
        if node.op_type in wanted and not self._is_written(self.view.tail(self._bias_tail(node))):
            return f"its output {self.view.tail(node)!r} carries no Q"
        return self._why_not_prescribed(node)

    def _why_not_prescribed(self, node: onnx.NodeProto) -> str:
        """Say what an integer kernel prescribes and a file does otherwise: the format of its result, or its padding."""
        for kind, scale, zero in self.dialect.fixed:
            held = [self.qdq.params[name] for name, tensor in self.qdq.tensor_of.items() if tensor == node.output[0]]
            is_so = (
                np.allclose(each.scale, scale, rtol=_EXACTLY, atol=0) and np.all(each.zero_point == zero)
                for each in held
            )
            if kind == node.op_type and not all(is_so):
                return f"its kernel writes scale {scale:.8g} and zero point {zero} alone"
        weight = self.qdq.weights.get(node.input[1]) if node.op_type in CONVOLUTIONS else None
        if weight is not None and 0 < self.dialect.most_weight_axes < weight.values.ndim:
            return f"{self.dialect.name} has no integer kernel for {weight.values.ndim - 2} dimensions"
        if self.dialect.same_padding and not self._is_padded_as_tensorflow(node):
            return "its kernel pads as TensorFlow does, VALID or SAME"
        return ""

    def _is_square(self, node: onnx.NodeProto) -> bool:
        """Tell whether a power is the product of a value with itself."""
        if (rounded := self.qdq.weights.get(node.input[1])) is not None:
            exponent = rounded.real
        elif (plain := self.view.constants.get(node.input[1])) is not None:
            exponent = numpy_helper.to_array(plain)
        else:
            return False
        return exponent.size == 1 and abs(float(exponent.reshape(-1)[0]) - 2) < _NEARLY

    def _is_padded_as_tensorflow(self, node: onnx.NodeProto) -> bool:
        """Tell whether an operator that pads by itself, or a padding that has a name in TensorFlow."""
        pads = [int(each) for each in attribute(node, "pads", [])]
        if node.op_type == "ConvTranspose":
            return not any(pads)  # others are cut off by an operator of its own
        if node.op_type not in ("AveragePool", "MaxPool"):
            return True
        ceils, counts = attribute(node, "ceil_mode", 0), attribute(node, "count_include_pad", 0)
        shape = self.view.shape(node.input[0])
        if shape is None:
            return not ceils and not any(pads)
        kernel = [int(each) for each in attribute(node, "kernel_shape")]
        strides = [int(each) for each in attribute(node, "strides", [1] * len(kernel))]
        places = zip(shape[2:], kernel, strides, strict=True)
        if ceils and any((size - width) % stride for size, width, stride in places):
            return False
        if not any(pads):
            return True
        needed = [max((-(-size // stride) - 1) * stride + width - size, 0)
                  for size, stride, width in zip(shape[2:], strides, kernel, strict=True)]  # fmt: skip
        same = [each // 2 for each in needed] + [each - each // 2 for each in needed]
        return pads == same and not (counts and node.op_type == "AveragePool")

    def _is_written(self, tensor: str) -> bool:
        """Tell whether a tensor carries Q, if only after it was moved, as far as the kernel that makes it needs."""
        if not self.dialect.one_output:
            return self._carries(tensor)
        found = self._formats_read(tensor)
        return len(found) == 1 and None not in found

    def _formats_read(self, tensor: str) -> set[tuple[str, bytes, bytes] | None]:
        """Return the formats that a tensor is read in, also after it was moved; None is one of floats."""
        found: set[tuple[str, bytes, bytes] | None] = {None} if tensor in self.view.outputs else set()
        for reader, index in self.view.readers.get(tensor, []):
            boundary = self.qdq.edges.get((reader.name, index))
            if boundary is not None:
                params = self.qdq.params[boundary]
                found.add((params.type, params.scale.tobytes(), params.zero_point.tobytes()))
            elif reader.op_type in MOVES:
                found |= self._formats_read(reader.output[0])
            else:
                found.add(None)
        return found

    def _carries(self, tensor: str) -> bool:
        if tensor in self.qdq.tensor_of.values():
            return True
        after = self.view.only_reader(tensor)
        return after is not None and after.op_type in MOVES and self._carries(after.output[0])

    def _why_unfused(self, node: onnx.NodeProto) -> str:
        """Say what keeps the operators after a weighted one from melting into it."""
        if not self.dialect.skip_only or node.op_type not in WEIGHTED:
            return ""
        last = self._bias_tail(node)
        after = self.view.only_reader(last.output[0])
        if after is None or (after.name, list(after.input).index(last.output[0])) not in self.qdq.edges:
            return ""
        if after.op_type == "Add" and any((after.name, i) not in self.qdq.edges for i in range(2)):
            return ""  # this is the skip branch: the other operator melts with the addition
        if after.op_type in _EPILOGUE | {"Add"}:
            return f"Q/DQ between it and {after.op_type} {after.name!r} breaks their fusion"
        return ""


# What ONNX Runtime hangs on a node's name when it replaces the node.
_SUFFIX = re.compile(r"(_token_\d+|/MatMulAddFusion|/duplicated|_nchwc|/reshape)+$")


def confirm(model: onnx.ModelProto, dialect: Dialect, rows: tuple[Verdict, ...]) -> Contract:
    """Compare a prediction with the graph that ONNX Runtime writes, where this machine has the dialect's processor."""
    is_arm = os.uname().machine.lower().startswith(("aarch64", "arm"))
    if (dialect.activation == "int8") != is_arm:
        return Contract(dialect.name, rows, "Predicted from rules; this machine has the other kind of processor.")
    graph = _optimized(model).graph
    # A node that replaced several stands under the name of the first.
    seen = {_SUFFIX.sub("", node.name): node.op_type for node in reversed(graph.node)}
    # A file that went through ONNX Runtime before has such names itself.
    seen |= {node.name: node.op_type for node in graph.node}
    confirmed = tuple(row if row.state == "taken" else replace(row, found=seen.get(row.node, "")) for row in rows)
    agreeing = [row.agrees for row in confirmed if row.found]
    summary = f"{sum(agreeing)} of {len(agreeing)} operators found there agree."
    counts = Counter(node.op_type for node in graph.node)
    left = counts["QuantizeLinear"], counts["DequantizeLinear"]
    word = "Confirmed" if all(agreeing) else "Contradicted"
    return Contract(dialect.name, confirmed, f"{word} by ONNX Runtime's optimized graph: {summary}", left=left)


def _optimized(model: onnx.ModelProto) -> onnx.ModelProto:
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "optimized.onnx"
        try:
            make_session(model, optimized_model_filepath=str(path))
        except Exception as exc:
            raise ModelFileError(f"ONNX Runtime does not take the model: {first_line(exc)}") from exc
        return onnx.load(path)


def check(
    model: onnx.ModelProto | str | os.PathLike[str], dialect: str | Dialect, *, runtime_version: str = ""
) -> Contract:
    """Predict for every operator of a Q/DQ file the kernel it will land in.

    The dialect says who confirms it. For ONNX Runtime the prediction is compared with the graph it writes after
    optimizing; for TensorRT the file is parsed and built with TensorRT-RTX where that is installed (no GPU is needed);
    others are asked what they really run, where an installed package can ask them (``embedl_deploy.runtimes``).

    Args:
        model: A file or a model.
        dialect: The name of a dialect, or one of your own.
        runtime_version: The version of the runtime that will run it, by whose learned rules it is judged then; it is
            asked itself only where it is the one that is installed.

    Raises:
        DialectError: The dialect is unknown, or the version is none.
        ModelFileError: The file cannot be read.
    """
    target = get_dialect(dialect)
    proto = copy_model(load(model))
    name_nodes(proto.graph)
    qdq = read(proto)
    if target.is_onnxruntime:
        qdq = propagated(qdq)
        kernels = fuse(qdq, signed_kernels=target.activation == "int8")
    else:
        kernels = predict(qdq, target)
    rows = _verdicts(qdq, kernels, target, main_modules(proto))
    version = find_version(target.runtime, runtime_version) if runtime_version else None
    is_learned = version is not None and not version.note
    is_asked = version is None or (is_learned and ort.__version__ == version.table.version)
    if version is not None and not is_asked:
        return by_version(read(proto), rows, version, target.name, None)
    function = pkgutil.resolve_name(target.confirm) if isinstance(target.confirm, str) else target.confirm
    contract: Contract = function(proto, target, rows)
    if version is not None:
        return by_version(read(proto), rows, version, target.name, contract)
    note = unlearned(target.runtime, runtime_version, installed(target.runtime)) if runtime_version else ""
    return replace(contract, confirmed=f"{contract.confirmed} {note}") if note else contract


def _verdicts(
    qdq: QdqModel, found: Iterable[Kernel], dialect: Dialect, modules: Mapping[str, str]
) -> tuple[Verdict, ...]:
    by_name = {}
    for kernel in found:
        node = kernel.node
        by_name[node.name] = kernel.name, _state(qdq, kernel, dialect), kernel.reason
        by_name |= dict.fromkeys(kernel.covers, (kernel.name, "taken", f"fused into {node.op_type} {node.name}"))
    nodes = qdq.graph.node
    return tuple(Verdict(node.name, node.op_type, modules.get(node.name, ""), *by_name[node.name]) for node in nodes)


def _state(qdq: QdqModel, kernel: Kernel, dialect: Dialect) -> str:
    if kernel.node.op_type == "Identity":
        return "taken"
    if kernel.rounded:
        return "rounded"
    if kernel.integer:
        return "unfused" if "breaks" in kernel.reason else "integer"
    lost = kernel.reason.startswith("refused") or _could_gain(qdq, kernel, dialect)
    return "unfused" if lost else "float"


def _could_gain(qdq: QdqModel, kernel: Kernel, dialect: Dialect) -> bool:
    """Tell whether an operator in float behind a DQ is a loss.

    Moving floats costs no more than moving integers, and an operator that also reads floats was not meant to be
    quantized: its DQ belongs to the kernel before it.
    """
    node = kernel.node
    if not any((node.name, index) in qdq.edges for index in range(len(node.input))):
        return False
    if (node.name, 0) in qdq.spread and node.input[1] not in qdq.weights:
        return False  # its weight is float, and was meant to be
    if node.op_type in MOVES:
        return "different scales" in kernel.reason
    whole = all(
        (node.name, index) in qdq.edges or name in qdq.weights or name in qdq.constants()
        for index, name in enumerate(node.input)
        if name
    )
    return View(qdq).has_kernel(node, dialect) and (whole or node.op_type in WEIGHTED)
