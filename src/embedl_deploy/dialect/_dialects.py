"""What each runtime wants to read, as data, and what `check` says of a file; the rules are in `_qdq_placement`.

The facts come from the runtimes' documentation and from measurements; docs/reference/dialects.md has them as a table.
"""

from collections.abc import Callable
from dataclasses import asdict, dataclass, replace
from typing import TYPE_CHECKING

from embedl_deploy._extras import Registry
from embedl_deploy._table import Printed, table
from embedl_deploy.errors import DialectError, quoted_list

if TYPE_CHECKING:
    import onnx

# Operators that move or select values: input and output hold the same numbers, so they hold the same scale.
MOVES = frozenset({
    "Expand", "Flatten", "Gather", "GatherElements", "Identity", "MaxPool", "Reshape", "Slice", "Squeeze", "Tile",
    "Transpose", "Unsqueeze",
})  # fmt: skip
CONVOLUTIONS = frozenset({"Conv", "ConvTranspose"})
WEIGHTED = CONVOLUTIONS | {"Gemm", "MatMul"}
PAIR = ("QuantizeLinear", "DequantizeLinear")


@dataclass(frozen=True)
class Verdict:
    """One operator of a file."""

    node: str  # its name in the file
    operator: str
    module: str  # the module it was made from, where the file tells
    kernel: str  # the kernel it will land in
    # ``integer``; ``float``: not meant to be quantized; ``unfused``: it has Q/DQ and yet runs in float, or its Q/DQ
    # keep it from melting with its neighbors; ``rounded``: its weights are float in the file, and the runtime rounds
    # them; ``taken``: done by another operator's kernel
    state: str
    reason: str
    found: str = ""  # the kernel that the runtime really chose, empty where that is not known
    in_integers: bool | None = None  # whether that one computed in integers, where the runtime itself tells

    @property
    def is_integer(self) -> bool:
        """Whether it computes in integers: as the runtime tells, else as predicted."""
        return self.state == "integer" if self.in_integers is None else self.in_integers

    @property
    def agrees(self) -> bool:
        """Whether the runtime chose what was predicted, as far as is known."""
        if self.in_integers is not None:
            return self.in_integers == (self.state == "integer")
        if not self.found:
            return True
        # Nhwc… is the same kernel in another layout.
        same = self.found.removeprefix("Nhwc") == self.kernel
        return same or (self.state != "integer" and not self.found.startswith(("Q", "MatMulI")))


@dataclass(frozen=True, repr=False)
class Contract(Printed):
    """What a runtime will make of a file; prints as a table."""

    dialect: str  # whose rules were used
    rows: tuple[Verdict, ...]  # one verdict per operator
    confirmed: str  # how the prediction was confirmed, or why it was not
    refused: str = ""  # what the runtime said when it refused the file, empty otherwise
    left: tuple[int, int] | None = None  # Q and DQ that are left to run, where known

    @property
    def unfused(self) -> tuple[Verdict, ...]:
        """Operators that have Q/DQ and gain nothing by it."""
        return self.failures("unfused")

    @property
    def rounded(self) -> tuple[Verdict, ...]:
        """Operators whose float weights the runtime rounds."""
        return self.failures("rounded")

    @property
    def disagreements(self) -> tuple[Verdict, ...]:
        """Operators for which the runtime chose another kernel than predicted."""
        return self.failures("disagreement")

    @property
    def coverage(self) -> tuple[int, int]:
        """How many convolutions, linears and matrix products compute on integers, of how many."""
        weighted = [row for row in self.rows if row.operator in WEIGHTED]
        return sum(row.is_integer for row in weighted), len(weighted)

    def failures(self, what: str) -> tuple[Verdict, ...]:
        """Return the rows that fail a demand.

        Demands are ``unfused``, ``float`` (a weighted operator in float), ``rounded`` (float weights that the runtime
        rounds), ``disagreement``.

        Raises:
            DialectError: There is no such demand.
        """
        match what:
            case "unfused" | "rounded":
                return tuple(row for row in self.rows if row.state == what)
            case "float":
                weighted = (row for row in self.rows if row.operator in WEIGHTED)
                return tuple(row for row in weighted if not row.is_integer and row.state not in ("taken", "rounded"))
            case "disagreement":
                return tuple(row for row in self.rows if not row.agrees)
        raise DialectError(f"There is no demand {what!r}; known are unfused, float, rounded, disagreement.")

    def to_dict(self) -> dict[str, object]:
        """Return everything as JSON-able data."""
        return {**asdict(self), "coverage": list(self.coverage)}

    def _line(self) -> str:
        done, of = self.coverage
        if self.refused:
            return f"{self.dialect}: refused. Were it read, {done} of {of} weighted operators would be in integers."
        return f"{self.dialect}: {done} of {of} weighted operators in integers, {len(self.unfused)} unfused."

    def __str__(self) -> str:
        head = ["node", "operator", "kernel", "state", "reason"]
        rows = [
            [row.module or row.node, row.operator, row.kernel, row.state,
             row.reason if row.agrees else f"PREDICTION WRONG: the runtime chose {row.found}{_how(row)}. {row.reason}"]
            for row in self.rows
        ]  # fmt: skip
        lines = [table(head, rows), "", self._line()]
        if self.left is not None:
            lines.append(f"Left to run: {self.left[0]} Q, {self.left[1]} DQ.")
        if self.rounded:
            lines.append(f"ROUNDED: float weights of {len(self.rounded)} operators.")
        if self.refused:
            lines.append(f"REFUSED: {self.refused}")
        return "\n".join([*lines, self.confirmed])


def _how(row: Verdict) -> str:
    return "" if row.in_integers is None else ", in integers" if row.in_integers else ", in float"


# ``embedl_kernels.EXACT_U8S8``, which comes with the extra; names and data of dialects need none.
_EXACT = "u8s8=exact"

Confirm = Callable[["onnx.ModelProto", "Dialect", tuple[Verdict, ...]], Contract]


@dataclass(frozen=True)
class Dialect:
    """How one runtime wants its Q/DQ file."""

    name: str
    activation: str  # integer type of activations that have 8 bits, ``int8`` or ``uint8``
    zero_point: bool  # whether an activation may have a zero point other than 0
    # Whether a range that starts at 0 must have its zero point at the type's minimum, so that the runtime sees that the
    # Relu before it does nothing
    relu_at_minimum: bool
    narrow_weights: bool  # whether int8 weights stay within -127..127
    integer_bias: bool  # whether a bias is int32 behind a DQ with scale input × weight; else it is float
    integers: frozenset[str]  # operators that can run in integers; Q/DQ in front of others is cost without gain
    weight_zero_point: bool = False  # whether weights may have a zero point other than 0
    # Whether a constant that is no weight, as one that is added, may have a zero point other than 0
    constant_zero_point: bool = False
    outputs: frozenset[str] = frozenset()  # operators whose output must carry Q for them to run in integers
    one_output: bool = False  # whether whoever reads an integer kernel's result must read it rounded, in one format
    # Operators that run in integers only with Q on all inputs and on the output
    both_sides: frozenset[str] = frozenset()
    # Operators that run in integers too where a file has Q on all inputs and on the output; ours have none there. Of a
    # power it is the square.
    between: frozenset[str] = frozenset()
    # Operators among those that stay float where nothing rounded their output in simulation: to round a residual stream
    # costs much and gains little
    keeps_float: frozenset[str] = frozenset()
    one_scale: frozenset[str] = frozenset()  # operators whose inputs and output must have one scale
    constant_weights: bool = False  # whether a product of two activations has no integer kernel
    skip_only: bool = False  # whether a residual addition has Q/DQ on the skip branch alone
    # Activations that melt into the weighted operator or the addition before them
    epilogue: frozenset[str] = frozenset()
    # Activations that melt so too where their input is multiplied with them, as SiLU is x · Sigmoid(x): no Q/DQ inside
    gates: frozenset[str] = frozenset()
    # Whether the five operators that GELU is made of become one kernel
    joins_gelu: bool = False
    # The most axes that a convolution's weight may have for an integer kernel; 0 for any
    most_weight_axes: int = 0
    # Whether kernels hand integers on to each other, so that what pointwise operators compute in follows from the whole
    # graph
    carries: bool = False
    # Whether pooling has an integer kernel only for the paddings that TensorFlow calls VALID and SAME
    same_padding: bool = False
    # Output scale and zero point (of int8) that the runtime prescribes, by operator
    fixed: tuple[tuple[str, float, int], ...] = ()
    types: frozenset[str] = frozenset({"int8", "uint8"})  # types of quantized tensors that the runtime can read at all
    activation_types: frozenset[str] = frozenset({"int8", "uint8"})  # the ones among them that activations may have
    no_conv_types: frozenset[str] = frozenset()  # the ones among them that weights of convolutions may not have
    weight_blocks: bool = False  # whether weights may have one scale per block
    float_types: tuple[str, ...] = ("float32",)  # types the rest of the graph may have
    # Whether the runtime rounds float weights between Q/DQ, unless the DQ has a scale per channel
    rounds_float_weights: bool = False
    # Whether weights are chosen so that no processor's kernels saturate and additions are exact, so that every one of
    # them gives the same bits
    portable: bool = False
    # Whether kernels begin a new pair at every position of a convolution, where ONNX Runtime's go on with the next
    # position's channels; it matters where their number is odd
    whole_channels: bool = False
    requires: str = ""  # what the processor's kernels must be able to do, written into the file; empty for nothing
    opset: int = 13  # lowest opset of the written file
    # Who runs the file. Kernels of ``onnxruntime`` are predicted by the rules of its CPU provider, those of others by
    # their documentation.
    runtime: str = ""
    backend: str = ""  # whose networks it is written from where nobody says otherwise, by name
    # Who confirms the prediction: a function of model, dialect and verdicts that returns a `Contract`, or its name,
    # ``module:function``; by default the runtime itself is asked, where an installed package can
    confirm: str | Confirm = "embedl_deploy.dialect._ask:confirm"

    @property
    def is_onnxruntime(self) -> bool:
        """Whether ONNX Runtime's own kernels run the file."""
        return self.runtime == "onnxruntime"


_SAME_SCALE = MOVES | {"AveragePool", "Concat", "Pad", "Resize"}
_ORT_BOTH = frozenset({"Add", "AveragePool", "Concat", "GlobalAveragePool", "LeakyRelu", "Mul", "Sigmoid", "Softmax"})

# What a residual stream is made of.
_RESIDUAL = frozenset({"Add", "Mul"})

_WIDE_TYPES = frozenset({"int8", "uint8", "int16", "uint16"})

_ACTIVATIONS = frozenset({"Clip", "Elu", "Gelu", "HardSwish", "LeakyRelu", "Relu", "Sigmoid", "Tanh"})

TENSORRT = Dialect(
    name="tensorrt", runtime="tensorrt", backend="tensorrt", confirm="embedl_deploy.dialect._build:confirm",
    activation="int8", zero_point=False, relu_at_minimum=False, narrow_weights=False, integer_bias=False,
    integers=WEIGHTED | MOVES | {"Add", "AveragePool", "Concat", "GlobalAveragePool", "Pad", "Resize"},
    both_sides=frozenset({"AveragePool", "GlobalAveragePool"}), one_scale=frozenset({"Concat"}), skip_only=True,
    epilogue=_ACTIVATIONS | {"HardSigmoid"},
    types=frozenset({"int8", "int4", "float8e4m3fn"}), activation_types=frozenset({"int8", "float8e4m3fn"}),
    no_conv_types=frozenset({"int4"}), weight_blocks=True, float_types=("float32", "float16"),
)  # fmt: skip

ONNXRUNTIME_X86 = Dialect(
    name="onnxruntime-x86", runtime="onnxruntime", backend="onnxruntime",
    confirm="embedl_deploy.dialect._check:confirm",
    activation="uint8", zero_point=True, relu_at_minimum=True, narrow_weights=True, integer_bias=True,
    integers=_ORT_BOTH | MOVES | {"Conv", "Gemm", "MatMul", "Resize"},
    outputs=frozenset({"Conv"}), both_sides=_ORT_BOTH, keeps_float=_RESIDUAL,
    types=_WIDE_TYPES | {"int4", "uint4"}, activation_types=_WIDE_TYPES,
    weight_zero_point=True, weight_blocks=True, rounds_float_weights=True, portable=True,
)  # fmt: skip

# All 8 bits of the weights: exact where the processor has VNNI or AMX, and only there.
ONNXRUNTIME_X86_VNNI = replace(
    ONNXRUNTIME_X86, name="onnxruntime-x86-vnni", narrow_weights=False, portable=False, requires=_EXACT
)

# The same kernels, with signed activations: ARM has fast ones for them. Those for processors without dot products wrap
# around where two products of -128 and -128 meet, so weights go without that integer.
ONNXRUNTIME_ARM = replace(ONNXRUNTIME_X86, name="onnxruntime-arm", activation="int8", portable=False)

_LITERT_BOTH = _ORT_BOTH | {"Gelu", "HardSwish", "Tanh"}
LITERT = Dialect(
    name="litert", runtime="litert", backend="onnxruntime",
    activation="int8", zero_point=True, relu_at_minimum=True, narrow_weights=True, integer_bias=True,
    integers=WEIGHTED | _LITERT_BOTH | MOVES | {"Pad", "Resize"},
    outputs=WEIGHTED, both_sides=_LITERT_BOTH,
    between=frozenset({"DepthToSpace", "Pow", "ReduceMean", "Relu", "SpaceToDepth", "Sub"}),
    keeps_float=_RESIDUAL, one_scale=_SAME_SCALE, same_padding=True, joins_gelu=True, most_weight_axes=4,
    constant_zero_point=True, one_output=True,
    fixed=(("Softmax", 1 / 256, -128), ("Sigmoid", 1 / 256, -128), ("Tanh", 1 / 128, 0)),
    types=frozenset({"int8", "int16"}), activation_types=frozenset({"int8", "int16"}),
)  # fmt: skip

OPENVINO = Dialect(
    name="openvino", runtime="openvino", backend="onnxruntime",
    activation="uint8", zero_point=True, relu_at_minimum=True, narrow_weights=True, integer_bias=False,
    integers=WEIGHTED | _SAME_SCALE | {"Add", "GlobalAveragePool", "Mul"},
    both_sides=frozenset({"Add", "Concat", "Mul"}), keeps_float=_RESIDUAL, one_scale=frozenset({"Concat"}),
    epilogue=_ACTIVATIONS, gates=frozenset({"Sigmoid"}), carries=True, types=_WIDE_TYPES | {"int4", "uint4"},
    activation_types=_WIDE_TYPES, weight_zero_point=True, weight_blocks=True, portable=True, whole_channels=True,
)  # fmt: skip

# XNNPACK's kernels, by the rules of its partitioner: an operator is taken in as integers with DQ on every input and Q
# behind it or behind its one reader, a Relu or Clip. It makes the int32 bias itself. Linear layers need no Q behind
# them: one without has a kernel that takes integers and gives float. What reads one tensor between DQ and Q becomes a
# table of integers.
_EXECUTORCH_TABLES = frozenset({"HardSwish", "LeakyRelu", "Sigmoid", "Tanh"})
_EXECUTORCH_MOVES = frozenset({"Flatten", "MaxPool", "Reshape", "Slice", "Squeeze", "Transpose", "Unsqueeze"})
EXECUTORCH = Dialect(
    name="executorch", runtime="executorch", backend="onnxruntime",
    activation="int8", zero_point=True, relu_at_minimum=True, narrow_weights=True, integer_bias=False,
    integers=WEIGHTED | _EXECUTORCH_MOVES | _EXECUTORCH_TABLES | {"Add", "Concat", "GlobalAveragePool", "Mul"},
    outputs=CONVOLUTIONS | _EXECUTORCH_TABLES, both_sides=frozenset({"Add", "Concat", "GlobalAveragePool", "Mul"}),
    keeps_float=_RESIDUAL,
    one_scale=_EXECUTORCH_MOVES | {"Concat"}, constant_weights=True,
    types=frozenset({"int8"}), activation_types=frozenset({"int8"}),
)  # fmt: skip

_OURS = (TENSORRT, ONNXRUNTIME_X86, ONNXRUNTIME_X86_VNNI, ONNXRUNTIME_ARM, LITERT, OPENVINO, EXECUTORCH)
_registry = Registry("embedl_deploy.dialects", Dialect)


def register_dialect(dialect: Dialect) -> None:
    """Make a dialect of your own known by its name, in this process; a package does it by entry point."""
    _registry.add(dialect.name, dialect)


def dialects() -> tuple[Dialect, ...]:
    """Return the dialects that are known by name: ours, those of installed packages, and registered ones."""
    return tuple({**{dialect.name: dialect for dialect in _OURS}, **_registry.all()}.values())


def get_dialect(name: str | Dialect) -> Dialect:
    """Return a dialect by its name; one of your own passes through.

    Raises:
        DialectError: No dialect has this name.
    """
    if isinstance(name, Dialect):
        return name
    found = {dialect.name: dialect for dialect in dialects()}
    if name not in found:
        raise DialectError(f"There is no dialect {name!r}; known are {quoted_list(found)}.")
    return found[name]
