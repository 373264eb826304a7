"""Layers led back to the source: which operators of the program each event of the runtime stands for.

A kernel of the runtime's own is an instruction of the program, and the compiler says which operator that is. A delegate
is one instruction too and tells its own operators by name alone, in the order they ran: the two orders are laid beside
each other so that as many as possible fit.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from embedl_hub.core.document import LayerRow

# What costs time in most networks.
_HEAVY = ("convolution", "linear", "addmm", "mm.", "bmm", "conv2d", "lstm", "gru")
_TABLES = ("sigmoid", "tanh", "hardswish", "leaky_relu", "gelu", "elu", "exp", "log", "sqrt", "rsqrt", "abs", "neg")
# By the start of what XNNPACK calls its operators, those of torch that become them.
_KINDS: tuple[tuple[str, tuple[str, ...]], ...] = (
    ("Convolution", ("convolution",)),
    ("Deconvolution", ("convolution",)),
    ("Fully Connected", ("linear", "addmm", "mm.", "convolution")),
    ("Dynamic Fully Connected", ("linear", "addmm", "mm.", "bmm")),
    ("Batch Matrix Multiply", ("bmm", "mm.")),
    ("Add", ("add", "_native_batch_norm")),
    ("Subtract", ("sub",)),
    ("Multiply", ("mul", "_native_batch_norm")),
    ("Divide", ("div",)),
    ("Maximum", ("maximum",)),
    ("Minimum", ("minimum",)),
    ("Clamp", ("relu", "hardtanh", "clamp")),
    ("Max Pooling", ("max_pool2d",)),
    ("Average Pooling", ("avg_pool2d",)),
    ("Mean", ("mean",)),
    ("Softmax", ("_softmax",)),
    ("Sigmoid", ("sigmoid",)),
    ("TanH", ("tanh",)),
    ("HardSwish", ("hardswish",)),
    ("GELU", ("gelu",)),
    ("ApproxGELU", ("gelu",)),
    ("LeakyReLU", ("leaky_relu",)),
    ("PReLU", ("prelu",)),
    ("ELU", ("elu",)),
    ("Exp", ("exp",)),
    ("Log", ("log",)),
    ("Negate", ("neg",)),
    ("Abs", ("abs",)),
    ("Floor", ("floor",)),
    ("Ceiling", ("ceil",)),
    ("Square Root", ("sqrt",)),
    ("Reciprocal Square Root", ("rsqrt",)),
    ("Square", ("pow",)),
    ("Power", ("pow",)),
    ("Sine", ("sin",)),
    ("Cosine", ("cos",)),
    ("Constant Pad", ("constant_pad_nd",)),
    ("Resize Bilinear", ("upsample_bilinear2d",)),
    ("Slice", ("slice_copy",)),
    ("Transpose", ("permute_copy",)),
    # A table of 256 integers: what stands between DQ and Q and reads one tensor, x times sigmoid of x included.
    ("Invalid Unary Op", _TABLES),
    ("Static Reshape", ("view_copy", "unsqueeze_copy", "squeeze_copy")),
    ("Static Expand Dims", ("unsqueeze_copy",)),
    ("Reduce Max", ("amax", "max")),
    ("Copy", ("view_copy", "cat", "clone", "_clone", "unsqueeze_copy", "squeeze_copy")),
    ("Convert", ("quantize_per", "dequantize_per")),
)
_MOVERS = ("Transpose", "Copy", "Convert", "Slice", "Static ")
_INTEGER_WORDS = ("Invalid Unary Op", "QS8", "QC8", "QU8", " S8", " U8")
_FLOAT_WORDS = ("F32", "F16")
# A match of what computes is worth more than one of what only moves, which the backend adds and drops at will.
_COMPUTES, _MOVES, _AGAIN = 10.0, 3.0, 1.0


@dataclass(frozen=True)
class Operator:
    """One operator of the program, as the compiler describes it."""

    operator: str
    nodes: tuple[str, ...] = ()
    modules: tuple[str, ...] = ()
    delegated: bool = False
    integer: bool | None = None
    melted: bool = False
    reason: str = ""
    instruction: int | None = None

    @property
    def title(self) -> str:
        """What messages call it: its module and node where they are known."""
        return " ".join(filter(None, (next(iter(self.modules), ""), next(iter(self.nodes), "")))) or self.operator


def read_operators(rows: Sequence[Mapping[str, Any]]) -> tuple[Operator, ...]:
    """Return the operators of a delegation report."""
    return tuple(
        Operator(
            str(row["operator"]), tuple(map(str, row.get("nodes", ()))), tuple(map(str, row.get("modules", ()))),
            bool(row.get("delegated")), row.get("integer"), bool(row.get("melted")), str(row.get("reason", "")),
            row.get("instruction"),
        )
        for row in rows
    )  # fmt: skip


def heavy_left(operators: Sequence[Operator]) -> list[Operator]:
    """Return the operators that cost time and that the backend did not take."""
    return [each for each in operators if not each.delegated and any(word in each.operator for word in _HEAVY)]


def led_back(rows: Sequence[LayerRow], operators: Sequence[Operator]) -> list[LayerRow]:
    """Return the layers with the source's nodes, modules, and whether they computed in integers."""
    found: list[LayerRow] = []
    for instruction in dict.fromkeys(row.extra.get("instruction") for row in rows):
        own = [row for row in rows if row.extra.get("instruction") == instruction]
        known = [each for each in operators if each.instruction == instruction]
        if own[0].provider == "portable":
            found += [_filled(row, known) for row in own]
        else:
            found += _delegate(own, [each for each in known if not each.melted])
    return found


def _delegate(rows: Sequence[LayerRow], operators: Sequence[Operator]) -> list[LayerRow]:
    of_row = _aligned([row.op_type for row in rows], operators)
    groups: list[list[Operator]] = [[] for _ in rows]
    place = -1
    for at, operator in enumerate(operators):
        found = [number for number, index in enumerate(of_row) if index == at]
        for number in found:
            groups[number].append(operator)
        if found:
            place = found[-1]
        elif place >= 0 and operator.integer is not None and not _is_mover(rows[place].op_type):
            # Melted with what stands before it: an activation, a reshape without work.
            groups[place].append(operator)
    return [_filled(row, group) for row, group in zip(rows, groups, strict=True)]


def _filled(row: LayerRow, operators: Sequence[Operator]) -> LayerRow:
    nodes = tuple(dict.fromkeys(node for each in operators for node in each.nodes))
    modules = tuple(dict.fromkeys(module for each in operators for module in each.modules))
    return replace(
        row,
        compute_unit=row.compute_unit or "CPU",
        source_nodes=nodes,
        modules=modules,
        added_by_runtime=not nodes and not modules and not operators,
        integer=_integer(row, operators),
    )


def _integer(row: LayerRow, operators: Sequence[Operator]) -> bool | None:
    if _is_mover(row.op_type) or (operators and all(each.integer is None for each in operators)):
        return None
    if any(word in row.op_type for word in _INTEGER_WORDS):
        return True
    if any(word in row.op_type for word in _FLOAT_WORDS) or row.provider == "portable":
        return False
    return bool(operators and operators[0].integer)


def _is_mover(kernel: str) -> bool:
    return kernel.startswith(_MOVERS)


def _fits(kernel: str, operator: Operator) -> bool:
    name = operator.operator.replace("aten.", "").replace("quantized_decomposed.", "")
    kinds = max((kind for kind in _KINDS if kernel.startswith(kind[0])), key=lambda kind: len(kind[0]), default=None)
    return kinds is not None and name.startswith(kinds[1])


def _aligned(kernels: Sequence[str], operators: Sequence[Operator]) -> list[int | None]:
    """Return for each kernel which operator it is, None for what the backend added; both keep their order.

    Several kernels may stand for one operator, each part of a concatenation for instance.
    """
    rows, columns = len(kernels), len(operators)
    best = [[0.0] * (columns + 1) for _ in range(rows + 1)]
    for row in range(rows - 1, -1, -1):
        worth = _MOVES if _is_mover(kernels[row]) else _COMPUTES
        for column in range(columns, -1, -1):
            score = best[row + 1][column]
            if column < columns:
                score = max(score, best[row][column + 1])
                if _fits(kernels[row], operators[column]):
                    score = max(score, worth + best[row + 1][column + 1], _AGAIN + best[row + 1][column])
            best[row][column] = score
    found: list[int | None] = []
    row = column = 0
    while row < rows:
        worth = _MOVES if _is_mover(kernels[row]) else _COMPUTES
        fits = column < columns and _fits(kernels[row], operators[column])
        if fits and best[row][column] == worth + best[row + 1][column + 1]:
            found.append(column)
            row, column = row + 1, column + 1
        elif column < columns and best[row][column] == best[row][column + 1]:
            column += 1
        elif fits and best[row][column] == _AGAIN + best[row + 1][column]:
            found.append(column)
            row += 1
        else:
            found.append(None)
            row += 1
    return found
