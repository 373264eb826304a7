"""Write a plan into a TFLite model: integers in the file's formats, and conversions where floats begin and end."""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np

from .plan import PLACES, WEIGHT_AXES, Plan, fingerprint
from .qdq import Chain, Format, QdqFile, Refused

if TYPE_CHECKING:
    from .flat import Flat, Operator

QUANTIZED = "_quantized"  # behind the name of an output's integers, whose floats have its name
_RELUS = {"RELU": 1, "RELU6": 3}
_INT8_VERSIONS = {
    "CONV_2D": 3, "DEPTHWISE_CONV_2D": 3, "FULLY_CONNECTED": 5, "TRANSPOSE_CONV": 3, "ADD": 2, "SUB": 2, "MUL": 2,
    "MEAN": 2, "MAX_POOL_2D": 2, "AVERAGE_POOL_2D": 2, "CONCATENATION": 2, "RESHAPE": 1, "TRANSPOSE": 2, "PAD": 2,
    "LOGISTIC": 2, "TANH": 2, "SOFTMAX": 2, "RESIZE_NEAREST_NEIGHBOR": 2, "RESIZE_BILINEAR": 2, "SLICE": 2,
    "STRIDED_SLICE": 2, "GATHER": 2, "SPLIT": 2, "SPLIT_V": 2, "LEAKY_RELU": 2, "BATCH_MATMUL": 2, "QUANTIZE": 2,
    "DEQUANTIZE": 2, "RELU": 2, "RELU6": 2, "GELU": 2, "PACK": 2, "UNPACK": 2, "TILE": 2, "GATHER_ND": 2,
    "BROADCAST_TO": 2, "SPACE_TO_DEPTH": 2, "DEPTH_TO_SPACE": 2, "SPACE_TO_BATCH_ND": 2, "BATCH_TO_SPACE_ND": 2,
}  # fmt: skip


def fold_linear_layers(flat: Flat, file: QdqFile, boundaries: set[int]) -> None:
    """Turn products with the file's weights, and the bias and Relu after them, into fully connected layers.

    TFLite's product with a constant has one scale for it; only this operator has one per channel.

    Args:
        flat: The float model, changed in place.
        file: The Q/DQ file.
        boundaries: Tensors that the file rounds: what comes after them stays apart.
    """
    held = [each for each in file.constants.values() if each.codes.ndim == 2 and not each.zero_point]
    known = {fingerprint(constant.values) for constant in held}
    for operator in flat.operators:
        if flat.op_type(operator) != "BATCH_MATMUL" or len(operator.inputs) != 2:
            continue
        weight = flat.constant(int(operator.inputs[1]))
        options = operator.builtinOptions
        if weight is None or weight.ndim != 2 or fingerprint(weight) not in known or (options and options.adjX):
            continue
        matrix = weight if options is not None and options.adjY else weight.T
        name = f"{flat.name(int(operator.inputs[1]))}_fc"
        operator.opcodeIndex = flat.code("FULLY_CONNECTED")
        operator.inputs = [int(operator.inputs[0]), flat.add_constant(name, np.ascontiguousarray(matrix)), -1]
        made = flat.schema.FullyConnectedOptionsT()
        made.keepNumDims = True
        operator.builtinOptions = made
        operator.builtinOptionsType = flat.schema.BuiltinOptions.FullyConnectedOptions
    for operator in flat.operators:
        takes = flat.op_type(operator) in ("FULLY_CONNECTED", "TRANSPOSE_CONV")
        if takes and int(operator.outputs[0]) not in boundaries:
            _take_bias(flat, operator)
    for operator in flat.operators:
        takes = flat.op_type(operator) in (*WEIGHT_AXES, "ADD", "SUB", "MUL")
        if takes and int(operator.outputs[0]) not in boundaries:
            _take_relu(flat, operator)


def _only_reader(flat: Flat, index: int) -> Operator | None:
    found = [operator for operator in flat.graph.operators if index in [int(at) for at in operator.inputs]]
    return found[0] if len(found) == 1 and index not in flat.outputs else None


def _take_bias(flat: Flat, operator: Operator) -> None:
    after = _only_reader(flat, int(operator.outputs[0]))
    if after is None or flat.op_type(after) != "ADD" or operator.builtinOptions.fusedActivationFunction:
        return
    place = PLACES.get(flat.op_type(operator), (0, 1, 2))[2]
    if len(operator.inputs) > place and operator.inputs[place] >= 0:
        return
    others = [int(at) for at in after.inputs if int(at) != int(operator.outputs[0])]
    bias = flat.constant(others[0]) if others else None
    channels = flat.shape(int(operator.inputs[1]))[0]
    if bias is None or bias.size != channels or bias.shape[-1] != channels:
        return
    index = flat.add_constant(flat.name(others[0]), np.ascontiguousarray(bias.reshape(-1)))
    operator.inputs = [*(int(at) for at in operator.inputs[:place]), index]
    operator.builtinOptions.fusedActivationFunction = after.builtinOptions.fusedActivationFunction
    operator.outputs = after.outputs
    flat.graph.operators.remove(after)


def _take_relu(flat: Flat, operator: Operator) -> None:
    after = _only_reader(flat, int(operator.outputs[0]))
    if after is None or flat.op_type(after) not in _RELUS or operator.builtinOptions.fusedActivationFunction:
        return
    operator.builtinOptions.fusedActivationFunction = _RELUS[flat.op_type(after)]
    operator.outputs = after.outputs
    flat.graph.operators.remove(after)


class Rewriter:
    """Writes a plan into a model, in place."""

    def __init__(self, flat: Flat, plan: Plan, file: QdqFile, *, quantize_io: bool) -> None:
        self._flat, self._plan, self._file, self._quantize_io = flat, plan, file, quantize_io
        self._before = flat.operators
        self._operators: list[Operator] = []
        self.numbers: list[int] = []  # what each operator was before
        self._made: dict[tuple[int, Chain], int] = {}  # a tensor in a format; the empty chain is float
        self._int32 = {
            constant.values.tobytes(): constant
            for constant in file.constants.values()
            if constant.codes.dtype == np.int32 and constant.codes.size
        }

    def run(self) -> None:
        """Change the model."""
        flat, plan = self._flat, self._plan
        inputs = []
        for index in flat.inputs:
            form = plan.written.get(index)
            if form is not None and self._quantize_io:
                inputs.append(self._as_integers(index, form, flat.name(index)))
                self._made[index, (form,)] = inputs[-1]
            else:
                inputs.append(index)
                self._made[index, ()] = index
        for number, operator in enumerate(self._before):
            self._write(number, operator)
            self.numbers += [number] * (len(self._operators) - len(self.numbers))
        outputs = [self._output(index) for index in flat.outputs]
        self._point_signatures(
            dict(zip(flat.inputs, inputs, strict=True)), dict(zip(flat.outputs, outputs, strict=True))
        )
        flat.graph.inputs, flat.graph.outputs, flat.graph.operators = inputs, outputs, self._operators
        flat.drop_unread()
        for number, code in enumerate(flat.model.operatorCodes):
            kinds = {flat.op_type(op) for op in self._operators if op.opcodeIndex == number}
            code.version = max([code.version, *(_INT8_VERSIONS.get(kind, 1) for kind in kinds)])

    def _point_signatures(self, inputs: dict[int, int], outputs: dict[int, int]) -> None:
        """Let the signature name the tensors that the graph's ends have become."""
        for signature in self._flat.model.signatureDefs or []:
            for entries, moved in ((signature.inputs, inputs), (signature.outputs, outputs)):
                for entry in entries or []:
                    entry.tensorIndex = moved.get(int(entry.tensorIndex), int(entry.tensorIndex))

    def _write(self, number: int, operator: Operator) -> None:
        flat, plan = self._flat, self._plan
        data = dict(flat.data_inputs(operator))
        form = plan.integer.get(number)
        inputs = [int(index) for index in operator.inputs]
        for at, index in data.items():
            chain = plan.reads.get((number, at))
            if chain is None:
                written = plan.written.get(index)
                chain = () if written is None else (written,)
            inputs[at] = self._read(index, chain, as_float=form is None)
        if form is not None:
            self._quantize_constants(number, operator, inputs, data)
        operator.inputs = inputs
        outputs = [int(index) for index in operator.outputs]
        for at, index in enumerate(outputs):
            if form is not None:
                name = flat.name(index)
                outputs[at] = self._as_integers(index, form, f"{name}{QUANTIZED}" if index in flat.outputs else name)
                self._made[index, (form,)] = outputs[at]
            else:
                self._made[index, ()] = index
        operator.outputs = outputs
        self._operators.append(operator)

    def _as_integers(self, index: int, form: Format, name: str) -> int:
        return self._flat.add_tensor(index, name, np.array([form.scale]), np.array([form.zero_point]))

    def _read(self, index: int, chain: Chain, *, as_float: bool) -> int:
        """Return a tensor after the roundings of a chain, as integers or as the floats they stand for."""
        now = self._start(index, chain)
        for length in range(1, len(chain) + 1):
            now = self._rounded(index, chain[:length], now)
        if not as_float or not chain:
            return now if chain else self._floats(index, now)
        return self._dequantized(index, chain, now)

    def _start(self, index: int, chain: Chain) -> int:
        """Return the tensor as it was made: in the chain's first format, in another, or as floats."""
        if chain and (index, chain[:1]) in self._made:
            return self._made[index, chain[:1]]
        if (index, ()) in self._made:
            return self._made[index, ()]
        made = (made for (at, formats), made in self._made.items() if at == index and len(formats) == 1)
        return next(made, index)  # what no operator makes is there as it is: what a recurrent one keeps

    def _rounded(self, index: int, chain: Chain, now: int) -> int:
        if (index, chain) not in self._made:
            name = f"{self._flat.name(index)}_q{len(self._made)}"
            made = self._as_integers(index, chain[-1], name)
            self._operators.append(self._flat.make("QUANTIZE", [now], [made]))
            self._made[index, chain] = made
        return self._made[index, chain]

    def _floats(self, index: int, now: int) -> int:
        if self._flat.is_float(now):
            return now
        return self._dequantized(index, (), now)

    def _dequantized(self, index: int, chain: Chain, now: int) -> int:
        key = (-1 - index, chain)  # the floats of a rounded tensor are another tensor
        if key not in self._made:
            made = self._flat.add_float(index, f"{self._flat.name(index)}_dq{len(self._made)}")
            self._operators.append(self._flat.make("DEQUANTIZE", [now], [made]))
            self._made[key] = made
        return self._made[key]

    def _output(self, index: int) -> int:
        """Return what the graph gives out under an output's name."""
        flat, chain = self._flat, self._plan.outputs[index]
        if (index, ()) in self._made and not chain:
            return self._made[index, ()]
        now = self._read(index, chain, as_float=False)
        if flat.is_float(now):
            return now
        name = flat.graph.tensors[index].name
        if self._quantize_io:
            flat.graph.tensors[now].name = name
            return now
        made = flat.add_float(index, "")
        flat.graph.tensors[made].name = name
        if (index, ()) in self._made:
            flat.graph.tensors[index].name = name + b"_float"
        self._operators.append(flat.make("DEQUANTIZE", [now], [made]))
        return made

    def _quantize_constants(
        self,
        number: int,
        operator: Operator,
        inputs: list[int],
        data: dict[int, int],
    ) -> None:
        flat, plan = self._flat, self._plan
        for at, index in enumerate(inputs):
            constant = plan.operands.get((number, at))
            values = None if constant is None else flat.constant(index)
            if constant is not None and values is not None:
                codes = (np.rint(values / constant.scale[0]) + constant.zero_point).astype(np.int8)
                inputs[at] = flat.add_constant(f"{flat.name(index)}_q", codes, constant.scale, 0, constant.zero_point)
        if number not in plan.weights:
            return
        kind = flat.op_type(operator)
        at_data, at_weight, at_bias = PLACES.get(kind, (0, 1, 2))
        codes, weight = plan.weights[number]
        scale = float(_format_of(plan, number, at_data, data[at_data]).scale) * weight.scale.astype(np.float64)
        scale = scale.astype(np.float32)
        inputs[at_weight] = flat.add_constant(
            f"{flat.name(inputs[at_weight])}_q", codes, weight.scale, WEIGHT_AXES[kind]
        )
        values = flat.constant(inputs[at_bias]) if len(inputs) > at_bias and inputs[at_bias] >= 0 else None
        if values is not None:
            name = f"{flat.name(inputs[at_bias])}_q"
            inputs[at_bias] = flat.add_constant(name, self._bias(number, values, scale), scale)

    def _bias(self, number: int, values: np.ndarray, scale: np.ndarray) -> np.ndarray:
        """Return the file's int32 bias; one that it has as floats, or in another scale, is rounded and named."""
        held = self._int32.get(values.tobytes())
        if held is not None and np.allclose(held.scale, scale, rtol=1e-5, atol=0):
            return held.codes.reshape(-1)
        limits = np.iinfo(np.int32)
        codes = np.asarray(np.clip(np.rint(values.astype(np.float64) / scale), limits.min, limits.max), np.int32)
        if not np.allclose(codes * scale.astype(np.float64), values, rtol=1e-5, atol=0):
            reason = "its bias is float in the file, or in another scale than input times weight: rounded to int32"
            op_type = self._flat.op_type(self._before[number])
            self._plan.refused.append(Refused(", ".join(self._plan.sources[number]), op_type, reason))
        return codes


def _format_of(plan: Plan, number: int, at: int, index: int) -> Format:
    chain = plan.reads.get((number, at))
    return plan.written[index] if chain is None else chain[-1]
