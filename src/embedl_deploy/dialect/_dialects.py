"""What each runtime wants to read, as data; the rules that use it are in `_place`.

The facts come from the runtimes' documentation and from measurements; docs/reference/dialects.md has them as a table.
"""

from dataclasses import dataclass, replace

from embedl_deploy.errors import DialectError, known

# ``embedl_kernels.EXACT_U8S8``, which comes with the extra; names and data of dialects need none.
_EXACT = "u8s8=exact"

# Operators that move or select values: input and output hold the same numbers, so they hold the same scale.
MOVES = frozenset({
    "Expand", "Flatten", "Gather", "GatherElements", "Identity", "MaxPool", "Reshape", "Slice", "Squeeze", "Tile",
    "Transpose", "Unsqueeze",
})  # fmt: skip


@dataclass(frozen=True)
class Dialect:
    """How one runtime wants its Q/DQ file.

    Attributes:
        name: The name to ask for it by.
        activation: Integer type of activations that have 8 bits, ``int8`` or ``uint8``.
        zero_point: Whether an activation may have a zero point other than 0.
        relu_at_minimum: Whether a range that starts at 0 must have its zero point at the type's minimum, so that the
            runtime sees that the Relu before it does nothing.
        narrow_weights: Whether int8 weights stay within -127..127.
        integer_bias: Whether a bias is int32 behind a DQ with scale input × weight; else it is float.
        weight_zero_point: Whether weights may have a zero point other than 0.
        integers: Operators that can run in integers; Q/DQ in front of others is cost without gain.
        outputs: Operators whose output must carry Q for them to run in integers.
        both_sides: Operators that run in integers only with Q on all inputs and on the output.
        one_scale: Operators whose inputs and output must have one scale.
        skip_only: Whether a residual addition has Q/DQ on the skip branch alone.
        fixed: Output scale and zero point (of int8) that the runtime prescribes, by operator.
        types: Types of quantised tensors that the runtime can read at all.
        activation_types: The ones among them that activations may have.
        no_conv_types: The ones among them that weights of convolutions may not have.
        weight_blocks: Whether weights may have one scale per block.
        float_types: Types the rest of the graph may have.
        rounds_float_weights: Whether the runtime rounds float weights between Q/DQ, unless the DQ has a scale per
            channel.
        portable: Whether weights are chosen so that no processor's kernels saturate and additions are exact, so that
            every one of them gives the same bits.
        whole_channels: Whether kernels begin a new pair at every position of a convolution, where ONNX Runtime's go on
            with the next position's channels; it matters where their number is odd.
        requires: What the processor's kernels must be able to do, written into the file; empty for nothing.
        opset: Lowest opset of the written file.
    """

    name: str
    activation: str
    zero_point: bool
    relu_at_minimum: bool
    narrow_weights: bool
    integer_bias: bool
    integers: frozenset[str]
    weight_zero_point: bool = False
    outputs: frozenset[str] = frozenset()
    both_sides: frozenset[str] = frozenset()
    one_scale: frozenset[str] = frozenset()
    skip_only: bool = False
    fixed: tuple[tuple[str, float, int], ...] = ()
    types: frozenset[str] = frozenset({"int8", "uint8"})
    activation_types: frozenset[str] = frozenset({"int8", "uint8"})
    no_conv_types: frozenset[str] = frozenset()
    weight_blocks: bool = False
    float_types: tuple[str, ...] = ("float32",)
    rounds_float_weights: bool = False
    portable: bool = False
    whole_channels: bool = False
    requires: str = ""
    opset: int = 13


_WEIGHTED = frozenset({"Conv", "ConvTranspose", "Gemm", "MatMul"})
_SAME_SCALE = MOVES | {"AveragePool", "Concat", "Pad", "Resize"}
_ORT_BOTH = frozenset({"Add", "AveragePool", "Concat", "GlobalAveragePool", "LeakyRelu", "Mul", "Sigmoid", "Softmax"})

TENSORRT = Dialect(
    name="tensorrt",
    activation="int8",
    zero_point=False,
    relu_at_minimum=False,
    narrow_weights=False,
    integer_bias=False,
    integers=_WEIGHTED | MOVES | {"Add", "AveragePool", "Concat", "GlobalAveragePool", "Pad", "Resize"},
    both_sides=frozenset({"AveragePool", "GlobalAveragePool"}),
    one_scale=frozenset({"Concat"}),
    skip_only=True,
    types=frozenset({"int8", "int4", "float8e4m3fn"}),
    activation_types=frozenset({"int8", "float8e4m3fn"}),
    no_conv_types=frozenset({"int4"}),
    weight_blocks=True,
    float_types=("float32", "float16"),
)

ONNXRUNTIME_X86 = Dialect(
    name="onnxruntime-x86",
    activation="uint8",
    zero_point=True,
    relu_at_minimum=True,
    narrow_weights=True,
    integer_bias=True,
    integers=_ORT_BOTH | MOVES | {"Conv", "Gemm", "MatMul", "Resize"},
    weight_zero_point=True,
    outputs=frozenset({"Conv"}),
    both_sides=_ORT_BOTH,
    types=frozenset({"int8", "uint8", "int4", "uint4", "int16", "uint16"}),
    activation_types=frozenset({"int8", "uint8", "int16", "uint16"}),
    weight_blocks=True,
    rounds_float_weights=True,
    portable=True,
)

# All 8 bits of the weights: exact where the processor has VNNI or AMX, and only there.
ONNXRUNTIME_X86_VNNI = replace(
    ONNXRUNTIME_X86, name="onnxruntime-x86-vnni", narrow_weights=False, portable=False, requires=_EXACT
)

# The same kernels, with signed activations: ARM has fast ones for them. Those for processors without dot products wrap
# around where two products of -128 and -128 meet, so weights go without that integer.
ONNXRUNTIME_ARM = replace(ONNXRUNTIME_X86, name="onnxruntime-arm", activation="int8", portable=False)

LITERT = Dialect(
    name="litert",
    activation="int8",
    zero_point=True,
    relu_at_minimum=True,
    narrow_weights=True,
    integer_bias=True,
    integers=_WEIGHTED | _ORT_BOTH | MOVES | {"Pad", "Resize", "Tanh"},
    outputs=_WEIGHTED,
    both_sides=_ORT_BOTH,
    one_scale=_SAME_SCALE,
    fixed=(("Softmax", 1 / 256, -128), ("Sigmoid", 1 / 256, -128), ("Tanh", 1 / 128, 0)),
    types=frozenset({"int8", "int16"}),
    activation_types=frozenset({"int8", "int16"}),
)

OPENVINO = Dialect(
    name="openvino",
    activation="uint8",
    zero_point=True,
    relu_at_minimum=True,
    narrow_weights=True,
    integer_bias=False,
    integers=_WEIGHTED | _SAME_SCALE | {"Add", "GlobalAveragePool", "Mul"},
    weight_zero_point=True,
    both_sides=frozenset({"Add", "Concat", "Mul"}),
    one_scale=frozenset({"Concat"}),
    types=frozenset({"int8", "uint8", "int4", "uint4", "int16", "uint16"}),
    activation_types=frozenset({"int8", "uint8", "int16", "uint16"}),
    weight_blocks=True,
    portable=True,
    whole_channels=True,
)

DIALECTS: tuple[Dialect, ...] = (
    TENSORRT, ONNXRUNTIME_X86, ONNXRUNTIME_X86_VNNI, ONNXRUNTIME_ARM, LITERT, OPENVINO,
)  # fmt: skip


def get_dialect(name: str | Dialect) -> Dialect:
    """Return a dialect by its name; one of your own passes through.

    Raises:
        DialectError: No dialect has this name.
    """
    if isinstance(name, Dialect):
        return name
    for dialect in DIALECTS:
        if dialect.name == name:
            return dialect
    raise DialectError(f"There is no dialect {name!r}; known are {known(d.name for d in DIALECTS)}.")
