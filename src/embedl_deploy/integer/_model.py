"""A Q/DQ model run as ONNX Runtime runs it: fused kernels in integers, the rest in float.

Bit-exact: QLinearConv, QGemm, QLinearMatMul, MatMulIntegerToFloat, QLinearAdd, QLinearMul, QLinearConcat, both average
pools, LeakyRelu, Sigmoid, QLinearSoftmax, and what moves integers, on every family of processors, saturation included.
Not promised: operators that stay float, because ONNX Runtime fuses those further and sums in another order; a value
next to a rounding edge may then differ by one step.
"""

import os
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass

import numpy as np
import onnx
from onnx import numpy_helper

from embedl_deploy.dialect._files import load
from embedl_deploy.dialect._fuse import Kernel, fuse, propagated
from embedl_deploy.dialect._model import QdqModel, Weight, attribute, captured_names, read
from embedl_deploy.dialect._numbers import Params, change_sign
from embedl_deploy.dialect._observe import window_of
from embedl_deploy.errors import InputError
from embedl_deploy.integer import _kernels as kernels
from embedl_deploy.integer._single import SingleOperator
from embedl_kernels import Family, get_family


def _family(name: str) -> Family:
    try:
        return get_family(name)
    except KeyError as exc:
        raise InputError(str(exc.args[0])) from exc


Settle = Callable[[str, np.ndarray], np.ndarray]


@dataclass(frozen=True)
class IntegerRun:
    """The values of one run."""

    outputs: dict[str, np.ndarray]  # the model's outputs by name, as float
    boundaries: dict[str, np.ndarray]  # the integers at every quantized boundary that was reached


class IntegerModel:
    """A Q/DQ model in integers; reads the file once, runs often.

    Args:
        model: A file or a model in memory.
        family: The processor whose kernels are computed, one of ``embedl_kernels.families()`` or its name; those of x86
            with VNNI, which are exact, when left out.

    Raises:
        InputError: There is no such family.
    """

    def __init__(self, model: onnx.ModelProto | str | os.PathLike[str], *, family: str | Family = "x86-vnni") -> None:
        self.family = family if isinstance(family, Family) else _family(family)
        self.qdq: QdqModel = propagated(read(load(model)))
        self.kernels: tuple[Kernel, ...] = tuple(fuse(self.qdq, signed_kernels=self.family.signed))
        self._reads = Counter(self.qdq.edges.values())
        self._constants = {name: numpy_helper.to_array(value) for name, value in self.qdq.constants().items()}
        self._nodes = {node.name: node for node in self.qdq.graph.node}
        self._operators: dict[tuple[str, tuple[bool, ...]], SingleOperator] = {}

    @property
    def inexact(self) -> tuple[str, ...]:
        """Name the operators that are not reproduced to the bit."""
        interpolating = (
            kernel.node.name
            for kernel in self.kernels
            if kernel.node.op_type == "Resize" and attribute(kernel.node, "mode", b"nearest") != b"nearest"
        )
        floating = (
            kernel.node.name for kernel in self.kernels if not kernel.integer and kernel.node.op_type != "Identity"
        )
        return (*floating, *interpolating)

    def run(self, inputs: Mapping[str, np.ndarray], given: Mapping[str, np.ndarray] | None = None) -> IntegerRun:
        """Run the model.

        Args:
            inputs: Arrays by input name.
            given: Integers at boundaries, from another run. Every kernel then reads these instead of what the kernel
                before it wrote, so that a difference shows at the kernel that makes it and nowhere else.

        Raises:
            InputError: An input is missing or unknown.
        """
        wanted = [value.name for value in self.qdq.graph.input if value.name not in self._constants]
        if set(inputs) != set(wanted):
            raise InputError(f"The model wants the inputs {sorted(wanted)}, got {sorted(inputs)}.")
        run = _Run(self, {name: np.asarray(value) for name, value in inputs.items()}, dict(given or {}))
        for kernel in self.kernels:
            run.do(kernel)
        outputs = {value.name: run.real[value.name] for value in self.qdq.graph.output}
        return IntegerRun(outputs, run.whole)

    def run_float(
        self,
        inputs: Mapping[str, np.ndarray],
        given: Mapping[str, np.ndarray],
        weights: Mapping[str, Weight] | None = None,
        settle: Settle | None = None,
    ) -> dict[str, np.ndarray]:
        """Run the float graph, where edges with Q/DQ read given values; an edge without one reads what was computed.

        Args:
            inputs: Arrays by input name.
            given: Real values by tensor.
            weights: Weights to use instead of the file's own, by name.
            settle: Sees every tensor that was computed, by name, and returns what the operators after it read.

        Returns:
            Every tensor that was computed, before rounding.

        Raises:
            ModelFileError: Neither ONNX Runtime nor onnx's reference evaluator runs an operator.
        """
        real = {**self._constants, **{name: np.asarray(value) for name, value in inputs.items()}}
        real |= {name: weight.real for name, weight in {**self.qdq.weights, **(weights or {})}.items()}
        made = dict(real)
        for node in self.qdq.graph.node:
            values: list[np.ndarray | None] = []
            for index, name in enumerate(node.input):
                boundary = self.qdq.edges.get((node.name, index))
                held = given.get(self.qdq.tensor_of[boundary]) if boundary is not None else None
                values.append(held if held is not None else real[name] if name else None)
            names = [name for name in node.output if name]
            for name, value in zip(names, self.single(node, values, real), strict=True):
                made[name] = value
                real[name] = value if settle is None else settle(name, value)
        return made

    def single(
        self, node: onnx.NodeProto, arrays: Sequence[np.ndarray | None], outer: Mapping[str, np.ndarray] | None = None
    ) -> list[np.ndarray]:
        """Run one operator by ONNX Runtime, or by onnx's reference evaluator where that cannot.

        Args:
            node: The operator.
            arrays: Its inputs, None for one that is left out.
            outer: Tensors by name, for graphs inside the operator that read them.

        Raises:
            ModelFileError: Neither of them can.
        """
        constant = tuple(
            array is not None and name in self._constants and (node.name, index) not in self.qdq.edges
            for index, (name, array) in enumerate(zip(node.input, arrays, strict=True))
        )
        if any(array is not None and array.dtype == np.float16 for array in arrays):
            # Integer kernels and DQ give float32 here, where those of a file in half precision give halves.
            arrays = [
                array if array is None or is_constant or array.dtype != np.float32 else array.astype(np.float16)
                for array, is_constant in zip(arrays, constant, strict=True)
            ]
        key = node.name, constant
        if key not in self._operators:
            self._operators[key] = SingleOperator(self.qdq.model, node, constant)
        captured = (
            {name: outer[name] for name in captured_names(node) if name in outer} if outer and node.attribute else {}
        )
        return self._operators[key].run(arrays, captured)


class _Run:
    """The values of one run while it goes on."""

    def __init__(self, model: IntegerModel, inputs: dict[str, np.ndarray], given: dict[str, np.ndarray]) -> None:
        self.given = given
        self.model = model
        self.qdq = model.qdq
        self.real: dict[str, np.ndarray] = {**model._constants, **inputs}
        self.whole: dict[str, np.ndarray] = {}
        self.doers: dict[str, Callable[[Kernel], np.ndarray]] = {
            "QLinearConv": self._conv,
            "QGemm": self._gemm,
            "QLinearMatMul": self._matmul,
            "MatMulIntegerToFloat": self._matmul,
            "QLinearAdd": self._add_or_multiply,
            "QLinearMul": self._add_or_multiply,
            "QLinearConcat": self._concat,
            "QLinearGlobalAveragePool": self._global_average,
            "QLinearAveragePool": self._average,
            "QLinearSoftmax": self._softmax,
        }

    def do(self, kernel: Kernel) -> None:
        if not kernel.integer:
            self._float(kernel.node)
            return
        doer = self.doers.get(kernel.name)
        if doer is not None:
            result = doer(kernel)
        elif kernel.name.startswith("QLinear"):
            result = self._by_table(kernel)
        else:
            result = self._move(kernel)
        if kernel.boundary is None:
            self.real[kernel.output] = result
        else:
            self.whole[kernel.boundary] = result

    def _operand(self, node: onnx.NodeProto, index: int) -> tuple[np.ndarray, Params]:
        boundary = self.qdq.edges.get((node.name, index))
        if boundary is None:
            weight = self.qdq.weights[node.input[index]]
            return weight.values, weight.params
        params = self.qdq.params[boundary]
        if boundary not in self.whole:
            self.whole[boundary] = params.quantize(self.real[self.qdq.tensor_of[boundary]])
        return self.given.get(boundary, self.whole[boundary]), params

    def _seen(self, node: onnx.NodeProto, index: int, values: np.ndarray, params: Params) -> tuple[np.ndarray, Params]:
        """Return an operand as the kernel sees it: x86 turns an int8 pair with one reader into uint8."""
        boundary = self.qdq.edges.get((node.name, index))
        alone = boundary is not None and self.model._reads[boundary] == 1
        if params.type != "int8" or self.model.family.signed or not alone:
            return values, params
        return np.asarray(values.astype(np.int16) + 128, np.uint8), change_sign(params, "uint8")

    def _value(self, node: onnx.NodeProto, index: int) -> np.ndarray | None:
        name = node.input[index]
        if not name:
            return None
        if (node.name, index) in self.qdq.edges or name in self.qdq.weights:
            values, params = self._operand(node, index)
            return params.dequantize(values)
        return self.real[name]

    def _float(self, node: onnx.NodeProto) -> None:
        values = [self._value(node, index) for index in range(len(node.input))]
        names = [name for name in node.output if name]
        self.real.update(zip(names, self.model.single(node, values, self.real), strict=True))

    def _format(self, kernel: Kernel) -> Params:
        assert kernel.boundary is not None
        return self.qdq.params[kernel.boundary]

    def _bias(self, name: str, first: Params, second: Params) -> np.ndarray:
        """Return a bias in integers; a convolution's float bias is rounded as ONNX Runtime rounds it."""
        if name in self.qdq.weights:
            return self.qdq.weights[name].values.astype(np.float64)
        scale = np.asarray(first.scale * second.scale, np.float32)
        return np.asarray(np.rint(self.real[name].astype(np.float32) / scale), np.float64)

    def _conv(self, kernel: Kernel) -> np.ndarray:
        node = kernel.node
        (values, x), (weight, w) = self._operand(node, 0), self._operand(node, 1)
        rank = weight.ndim - 2
        window = window_of(node, values.shape[2:], weight.shape[2:])
        total = kernels.convolve(
            kernels.centered(values, x), kernels.centered(weight, w), strides=list(window.strides),
            pads=list(window.pads), dilations=list(window.dilations), group=window.groups,
        )  # fmt: skip
        total = total + kernels.convolution(self.model.family, *self._seen(node, 0, values, x), weight, w, window)
        channels = (-1, *([1] * rank))
        if len(node.input) > 2 and node.input[2]:
            total = total + self._bias(node.input[2], x, w).reshape(channels)
        output = self._format(kernel)
        scale = kernels.combined_scale(x, w, output)
        return kernels.requantize(total, scale.reshape(channels) if scale.ndim else scale, output)

    def _matmul(self, kernel: Kernel) -> np.ndarray:
        (first, a), (second, b) = self._operand(kernel.node, 0), self._operand(kernel.node, 1)
        total = np.asarray(kernels.centered(first, a) @ kernels.centered(second, b))
        total = total + kernels.product(self.model.family, *self._seen(kernel.node, 0, first, a), second, b)
        return self._finish(kernel, total, kernels.combined_scale(a, b, None))

    def _finish(self, kernel: Kernel, total: np.ndarray, scale: np.ndarray) -> np.ndarray:
        if kernel.boundary is None:
            return np.asarray(total.astype(np.float32) * scale, np.float32)
        output = self._format(kernel)
        return kernels.requantize(total, np.asarray(scale / output.scale, np.float32), output)

    def _gemm(self, kernel: Kernel) -> np.ndarray:
        node = kernel.node
        (first, a), (second, b) = self._operand(node, 0), self._operand(node, 1)
        product_a, product_b = kernels.centered(first, a), kernels.centered(second, b)
        scale = kernels.combined_scale(a, b, None)
        if node.op_type == "Gemm":
            if attribute(node, "transA", 0):
                first, product_a = first.T, product_a.T
            if attribute(node, "transB", 0):
                second, product_b = second.T, product_b.T
            alpha = np.float32(attribute(node, "alpha", 1.0))
            scale = np.asarray(np.float32(alpha * a.scale) * b.scale, np.float32)
        total = np.asarray(product_a @ product_b)
        total = total + kernels.product(self.model.family, *self._seen(node, 0, first, a), second, b)
        biases = node.input[2:] if node.op_type == "Gemm" else self.model._nodes[kernel.covers[0]].input
        for name in biases:
            if name and name != node.output[0]:
                total = total + self._bias(name, a, b)
        return self._finish(kernel, total, scale)

    def _add_or_multiply(self, kernel: Kernel) -> np.ndarray:
        operands = (*self._operand(kernel.node, 0), *self._operand(kernel.node, 1))
        if kernel.name == "QLinearAdd":
            return kernels.add(*operands, self._format(kernel), self.model.family.add)
        return kernels.multiply(*operands, self._format(kernel))

    def _concat(self, kernel: Kernel) -> np.ndarray:
        output = self._format(kernel)
        pieces = []
        for index in range(len(kernel.node.input)):
            values, params = self._operand(kernel.node, index)
            pieces.append(values if params.same(output) else output.quantize(params.dequantize(values)))
        return np.concatenate(pieces, int(attribute(kernel.node, "axis")))

    def _global_average(self, kernel: Kernel) -> np.ndarray:
        return kernels.global_average(*self._operand(kernel.node, 0), self._format(kernel))

    def _average(self, kernel: Kernel) -> np.ndarray:
        node = kernel.node
        values, params = self._operand(node, 0)
        window = list(attribute(node, "kernel_shape"))
        walk = window_of(node, values.shape[2:], window)
        return kernels.average(
            values, params, self._format(kernel), kernel=window, strides=list(walk.strides), pads=list(walk.pads),
            include_pad=bool(attribute(node, "count_include_pad", 0)),
        )  # fmt: skip

    def _softmax(self, kernel: Kernel) -> np.ndarray:
        values, params = self._operand(kernel.node, 0)
        axis = int(attribute(kernel.node, "axis", -1))
        return kernels.softmax(values, params, self._format(kernel), axis)

    def _by_table(self, kernel: Kernel) -> np.ndarray:
        """Run an operator of one operand through float, as a table of all integers would."""
        values, params = self._operand(kernel.node, 0)
        (real,) = self.model.single(kernel.node, [params.dequantize(values)])
        return self._format(kernel).quantize(real)

    def _move(self, kernel: Kernel) -> np.ndarray:
        node = kernel.node
        values, _ = self._operand(node, 0)
        rest = [self._value(node, index) for index in range(1, len(node.input))]
        (result, *_) = self.model.single(node, [values, *rest])
        return result
