"""TFLite files, read for their graph alone: no weights, and no package of the vendor."""

from __future__ import annotations

from typing import Dict, List, Tuple

from embedl_device.flatbuffer import FlatBuffer
from embedl_device.readers import PathLike, UnreadableError, read_plain, telling
from embedl_graph._model import GraphError, ModelGraph, Node, Size, Tensor
from embedl_graph._modules import SCOPED_NAMES, module_of_name, title_of

_MAGIC = b"TFL3"
_LARGEST_BYTES = 2 << 30  # where the format ends
_MOST_NODES = 20_000
_LONGEST_NAME = 1000
_CUSTOM = 32
_CONVERSIONS = ("QUANTIZE", "DEQUANTIZE")
# The schema's operators and types, in their order: https://github.com/google-ai-edge/LiteRT, schema.fbs.
OPERATORS = (
    "ADD", "AVERAGE_POOL_2D", "CONCATENATION", "CONV_2D", "DEPTHWISE_CONV_2D", "DEPTH_TO_SPACE", "DEQUANTIZE",
    "EMBEDDING_LOOKUP", "FLOOR", "FULLY_CONNECTED", "HASHTABLE_LOOKUP", "L2_NORMALIZATION", "L2_POOL_2D",
    "LOCAL_RESPONSE_NORMALIZATION", "LOGISTIC", "LSH_PROJECTION", "LSTM", "MAX_POOL_2D", "MUL", "RELU", "RELU_N1_TO_1",
    "RELU6", "RESHAPE", "RESIZE_BILINEAR", "RNN", "SOFTMAX", "SPACE_TO_DEPTH", "SVDF", "TANH", "CONCAT_EMBEDDINGS",
    "SKIP_GRAM", "CALL", "CUSTOM", "EMBEDDING_LOOKUP_SPARSE", "PAD", "UNIDIRECTIONAL_SEQUENCE_RNN", "GATHER",
    "BATCH_TO_SPACE_ND", "SPACE_TO_BATCH_ND", "TRANSPOSE", "MEAN", "SUB", "DIV", "SQUEEZE",
    "UNIDIRECTIONAL_SEQUENCE_LSTM", "STRIDED_SLICE", "BIDIRECTIONAL_SEQUENCE_RNN", "EXP", "TOPK_V2", "SPLIT",
    "LOG_SOFTMAX", "DELEGATE", "BIDIRECTIONAL_SEQUENCE_LSTM", "CAST", "PRELU", "MAXIMUM", "ARG_MAX", "MINIMUM", "LESS",
    "NEG", "PADV2", "GREATER", "GREATER_EQUAL", "LESS_EQUAL", "SELECT", "SLICE", "SIN", "TRANSPOSE_CONV",
    "SPARSE_TO_DENSE", "TILE", "EXPAND_DIMS", "EQUAL", "NOT_EQUAL", "LOG", "SUM", "SQRT", "RSQRT", "SHAPE", "POW",
    "ARG_MIN", "FAKE_QUANT", "REDUCE_PROD", "REDUCE_MAX", "PACK", "LOGICAL_OR", "ONE_HOT", "LOGICAL_AND",
    "LOGICAL_NOT", "UNPACK", "REDUCE_MIN", "FLOOR_DIV", "REDUCE_ANY", "SQUARE", "ZEROS_LIKE", "FILL", "FLOOR_MOD",
    "RANGE", "RESIZE_NEAREST_NEIGHBOR", "LEAKY_RELU", "SQUARED_DIFFERENCE", "MIRROR_PAD", "ABS", "SPLIT_V", "UNIQUE",
    "CEIL", "REVERSE_V2", "ADD_N", "GATHER_ND", "COS", "WHERE", "RANK", "ELU", "REVERSE_SEQUENCE", "MATRIX_DIAG",
    "QUANTIZE", "MATRIX_SET_DIAG", "ROUND", "HARD_SWISH", "IF", "WHILE", "NON_MAX_SUPPRESSION_V4",
    "NON_MAX_SUPPRESSION_V5", "SCATTER_ND", "SELECT_V2", "DENSIFY", "SEGMENT_SUM", "BATCH_MATMUL",
    "PLACEHOLDER_FOR_GREATER_OP_CODES", "CUMSUM", "CALL_ONCE", "BROADCAST_TO", "RFFT2D", "CONV_3D", "IMAG", "REAL",
    "COMPLEX_ABS", "HASHTABLE", "HASHTABLE_FIND", "HASHTABLE_IMPORT", "HASHTABLE_SIZE", "REDUCE_ALL",
    "CONV_3D_TRANSPOSE", "VAR_HANDLE", "READ_VARIABLE", "ASSIGN_VARIABLE", "BROADCAST_ARGS", "RANDOM_STANDARD_NORMAL",
    "BUCKETIZE", "RANDOM_UNIFORM", "MULTINOMIAL", "GELU", "DYNAMIC_UPDATE_SLICE", "RELU_0_TO_1",
    "UNSORTED_SEGMENT_PROD", "UNSORTED_SEGMENT_MAX", "UNSORTED_SEGMENT_SUM", "ATAN2", "UNSORTED_SEGMENT_MIN", "SIGN",
    "BITCAST", "BITWISE_XOR", "RIGHT_SHIFT", "STABLEHLO_LOGISTIC", "STABLEHLO_ADD", "STABLEHLO_DIVIDE",
    "STABLEHLO_MULTIPLY", "STABLEHLO_MAXIMUM", "STABLEHLO_RESHAPE", "STABLEHLO_CLAMP", "STABLEHLO_CONCATENATE",
    "STABLEHLO_BROADCAST_IN_DIM", "STABLEHLO_CONVOLUTION", "STABLEHLO_SLICE", "STABLEHLO_CUSTOM_CALL",
    "STABLEHLO_REDUCE", "STABLEHLO_ABS", "STABLEHLO_AND", "STABLEHLO_COSINE", "STABLEHLO_EXPONENTIAL",
    "STABLEHLO_FLOOR", "STABLEHLO_LOG", "STABLEHLO_MINIMUM", "STABLEHLO_NEGATE", "STABLEHLO_OR", "STABLEHLO_POWER",
    "STABLEHLO_REMAINDER", "STABLEHLO_RSQRT", "STABLEHLO_SELECT", "STABLEHLO_SUBTRACT", "STABLEHLO_TANH",
    "STABLEHLO_SCATTER", "STABLEHLO_COMPARE", "STABLEHLO_CONVERT", "STABLEHLO_DYNAMIC_SLICE",
    "STABLEHLO_DYNAMIC_UPDATE_SLICE", "STABLEHLO_PAD", "STABLEHLO_IOTA", "STABLEHLO_DOT_GENERAL",
    "STABLEHLO_REDUCE_WINDOW", "STABLEHLO_SORT", "STABLEHLO_WHILE", "STABLEHLO_GATHER", "STABLEHLO_TRANSPOSE",
    "DILATE", "STABLEHLO_RNG_BIT_GENERATOR", "REDUCE_WINDOW", "STABLEHLO_COMPOSITE", "STABLEHLO_SHIFT_LEFT",
    "STABLEHLO_CBRT", "STABLEHLO_CASE",
)  # fmt: skip
TYPES = (
    "float32", "float16", "int32", "uint8", "int64", "string", "bool", "int16", "complex64", "int8", "float64",
    "complex128", "uint64", "resource", "variant", "uint32", "uint16", "int4", "bfloat16", "int2", "uint4",
    "float8_e4m3fn", "float8_e5m2",
)  # fmt: skip


def read_tflite(path: PathLike) -> ModelGraph:
    """Return the main graph of a TFLite file."""
    try:
        with telling():
            return _Reader(read_plain(path, _LARGEST_BYTES)).graph(title_of(path))
    except UnreadableError as error:
        raise GraphError("{} is not a TFLite model, or it was cut short: {}.".format(path, error)) from error


class _Reader:
    """Reads the tables that are needed, by their numbers in the schema."""

    def __init__(self, content: bytes) -> None:
        if content[4:8] != _MAGIC:
            raise UnreadableError("it does not begin as one")
        self._buffer = FlatBuffer(content)
        model = self._buffer.root
        self._codes = [self._code(table) for table in self._buffer.tables(model, 1)]
        self._weights = [self._has_data(table) for table in self._buffer.tables(model, 4)]
        graphs = self._buffer.tables(model, 2)
        if not graphs:
            raise UnreadableError("it holds no graph")
        self._main = graphs[0]

    def graph(self, title: str) -> ModelGraph:
        tensors = self._tensors()
        names = [tensor.name for tensor in tensors]

        def named(table: int, index: int) -> Tuple[str, ...]:
            places = [place for place in self._buffer.numbers(table, index, "<i") if place >= 0]  # -1 is left out
            if any(place >= len(names) for place in places):
                raise UnreadableError("it names a tensor that it does not have")
            return tuple(names[place] for place in places)

        operators = self._buffer.tables(self._main, 3)
        if len(operators) > _MOST_NODES:
            raise UnreadableError("it has {} nodes; at most {} are shown".format(len(operators), _MOST_NODES))
        by_name = {tensor.name: tensor for tensor in tensors}
        constants = {tensor.name for tensor in tensors if tensor.is_constant}
        ends = [named(table, 2) for table in operators]
        has_scopes = sum(1 for outputs in ends if outputs and SCOPED_NAMES.match(_first(outputs[0]))) * 2 > len(ends)
        nodes = []
        for number, (table, outputs) in enumerate(zip(operators, ends)):
            inputs, op_type = named(table, 1), self._op_type(table)
            is_constant = bool(inputs) and all(name in constants for name in inputs)
            constants.update(outputs if is_constant else ())
            dtype = by_name[outputs[0]].dtype if outputs else ""
            name = outputs[0] if outputs else "{}_{}".format(op_type, number)
            nodes.append(Node(
                name, op_type, inputs, outputs, module_of_name(_first(name)) if has_scopes else "",
                "conversion" if op_type in _CONVERSIONS else dtype, (), is_constant,
            ))  # fmt: skip
        notes = ("Modules are taken from the names of the tensors.",) if has_scopes else ()
        if not nodes:
            raise UnreadableError("it holds no operator")
        return ModelGraph(title, "TFLite", tuple(nodes), by_name, named(self._main, 1), named(self._main, 2), (), notes)

    def _tensors(self) -> List[Tensor]:
        found: List[Tensor] = []
        taken: Dict[str, int] = {}
        for table in self._buffer.tables(self._main, 0):
            base = self._buffer.text(table, 3)[:_LONGEST_NAME] or "tensor"
            count = taken[base] = taken.get(base, -1) + 1
            name = base if count == 0 else "{}#{}".format(base, count)
            sizes = self._buffer.numbers(table, 7, "<i") or self._buffer.numbers(table, 0, "<i")
            shape: Tuple[Size, ...] = tuple(None if size < 0 else size for size in sizes)
            code, buffer = self._buffer.scalar(table, 1, "<b"), self._buffer.scalar(table, 2, "<I")
            dtype = TYPES[code] if 0 <= code < len(TYPES) else "type {}".format(code)
            found.append(Tensor(name, dtype, shape, buffer < len(self._weights) and self._weights[buffer]))
        return found

    def _code(self, table: int) -> str:
        code = max(self._buffer.scalar(table, 0, "<b"), self._buffer.scalar(table, 3, "<i"))
        if code == _CUSTOM:
            return self._buffer.text(table, 1)[:100] or "CUSTOM"
        return OPERATORS[code] if 0 <= code < len(OPERATORS) else "operator {}".format(code)

    def _has_data(self, table: int) -> bool:
        at = self._buffer.field(table, 0)
        # Large models keep their weights behind the buffer, and a place in the table.
        inside = at is not None and self._buffer.number("<I", self._buffer.pointer(at)) > 0
        return inside or self._buffer.scalar(table, 1, "<Q") > 1

    def _op_type(self, table: int) -> str:
        index = self._buffer.scalar(table, 0, "<I")
        if index >= len(self._codes):
            raise UnreadableError("it names operator {}, and has {}".format(index, len(self._codes)))
        return self._codes[index]


def _first(name: str) -> str:
    """Return the first of the names that a converter joined when it fused operators."""
    return name.partition(";")[0]
