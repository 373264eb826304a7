"""Weights that every processor's integer kernels multiply alike: the remedy that costs each layer least.

Kernels without VNNI add products of u8 and s8 in pairs of neighbors along K, in 16 bits, with saturation. Where a
layer's weights could saturate, `embedl_kernels.choose` finds others, on samples where there are some.
"""

import copy
import hashlib
import json
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import asdict, dataclass, replace

import numpy as np
import onnx
from onnx import numpy_helper

from embedl_deploy._groups import Groups
from embedl_deploy.dialect._constants import Layer, by_channel, integer_biases, keep_float_weights, layers, symmetric
from embedl_deploy.dialect._dialects import MOVES, Dialect
from embedl_deploy.dialect._fitting import fill_up
from embedl_deploy.dialect._float32 import additions_of, exact_additions
from embedl_deploy.dialect._fuse import Kernel, fuse, propagated
from embedl_deploy.dialect._model import REMEDIES, QdqModel, Weight, attribute, read_entry, replace_all
from embedl_deploy.dialect._numbers import Params, per_tensor
from embedl_deploy.dialect._observe import Rows, gather_rows
from embedl_deploy.dialect._qdq_placement import View
from embedl_deploy.errors import ModelFileError
from embedl_kernels import (
    Fitted,
    choose,
    conv_to_matrix,
    is_depthwise,
    matrix_to_conv,
    matrix_to_product,
    product_to_matrix,
)
from embedl_kernels import Layer as Problem
from embedl_kernels.remedies import unsigned


def make_additions_exact(qdq: QdqModel, *, change: bool = True) -> None:
    """Change scales so that every quantized addition is exact in float32; what cannot be changed is noted.

    Without `change` the scales stay, and every addition that is not exact is noted.
    """
    view = View(qdq)
    scales = {name: float(params.scale) for name, params in qdq.params.items() if params.axis is None}
    made = {tensor: name for name, tensor in reversed(list(qdq.tensor_of.items()))}
    additions = additions_of(view, qdq.edges, made)
    for boundary, node in exact_additions(additions, scales, _moved_together(qdq, view)):
        qdq.notes.append(
            f"{qdq.tensor_of[boundary]}: its scale is bound by two additions, so {node!r} may differ by "
            "one step on processors without fused multiply-add."
        )
    for name, scale in scales.items():
        params = qdq.params[name]
        if scale == float(params.scale):
            continue
        if not change:
            qdq.notes.append(f"{qdq.tensor_of[name]}: its scale makes an addition inexact; it may differ by one step.")
        else:
            qdq.params[name] = per_tensor(scale, int(params.zero_point), params.type)


def _moved_together(qdq: QdqModel, view: View) -> dict[str, set[str]]:
    """Return for every boundary those that must have its format: what moves values keeps their scale."""
    groups: Groups[str] = Groups()
    for node in qdq.graph.node:
        before = qdq.edges.get((node.name, 0))
        if node.op_type not in MOVES or before is None:
            continue
        after = {qdq.edges.get((reader.name, index)) for reader, index in view.readers.get(node.output[0], [])}
        for name in after - {None}:
            assert name is not None
            if qdq.params[name].same(qdq.params[before]):
                groups.join(before, name)
    return {name: set(members) for members in groups.sets(qdq.tensor_of) for name in members}


PAIRED = frozenset({"QLinearConv", "QGemm", "QLinearMatMul", "MatMulIntegerToFloat"})
"""Kernels of ONNX Runtime that add products in pairs; a depthwise QLinearConv does not."""


@dataclass(frozen=True)
class RemedyRow:
    """What was done to one layer so that no input can saturate it."""

    node: str  # the layer's name in the file
    weight: str
    remedy: str  # ``none`` where nothing had to be done, else the remedy's name
    cost_db: float  # by how much its noise grew over 8-bit weights on exact kernels
    sqnr_db: float  # its output against its noise
    measured: bool  # whether this was judged on samples; else on the weights alone
    tried: dict[str, float]  # the cost of every remedy that applied, by name
    digest: str = ""  # of the weights that it wrote, so that nobody takes others for them


def digest_of(weight: Weight) -> str:
    scale = np.ascontiguousarray(weight.params.scale, np.float32)
    return hashlib.sha256(np.ascontiguousarray(weight.values).tobytes() + scale.tobytes()).hexdigest()[:16]


def remedies_of(model: onnx.ModelProto) -> tuple[RemedyRow, ...]:
    """Return what a portable file's layers got, from its metadata; nothing for other files.

    Raises:
        ModelFileError: The metadata is damaged.
    """
    try:
        rows = [RemedyRow(**row) for row in read_entry(model, REMEDIES, "[]")]
        return tuple(replace(row, tried={str(name): float(cost) for name, cost in row.tried.items()}) for row in rows)
    except (ValueError, TypeError, AttributeError) as exc:
        raise ModelFileError(
            f"The metadata {REMEDIES!r} cannot be read ({type(exc).__name__}). Remove it to go on without."
        ) from exc


def remedies_text(rows: Sequence[RemedyRow]) -> str:
    return json.dumps([asdict(row) for row in rows], separators=(",", ":")) if rows else ""


def is_paired(kernel: Kernel, qdq: QdqModel) -> bool:
    """Tell whether a kernel adds products in pairs: dense, in integers, with signed 8-bit weights."""
    node = kernel.node
    weight = qdq.weights.get(node.input[1]) if len(node.input) > 1 else None
    if not kernel.integer or kernel.name not in PAIRED or weight is None or weight.params.type != "int8":
        return False
    return not _is_depthwise(node, weight.values.shape)


def _is_depthwise(node: onnx.NodeProto, shape: Sequence[int]) -> bool:
    return node.op_type == "Conv" and is_depthwise(shape, int(attribute(node, "group", 1)))


def make_portable(
    qdq: QdqModel,
    dialect: Dialect,
    samples: Iterable[dict[str, np.ndarray]] | None,
    decided: Mapping[str, RemedyRow] | None = None,
) -> list[RemedyRow]:
    """Give every layer whose kernel adds in pairs weights that no input can saturate; say what was done.

    Args:
        qdq: The model.
        dialect: The dialect it is written in.
        samples: Inputs to judge on.
        decided: What the model in torch decided already, by weight: it is written as it is.
    """
    found, written = _targets(qdq, dialect)
    decided = decided or {}
    open_ones = [layer for layer in found if layer.weight not in decided]
    rows = gather_rows(qdq, [layer.node for layer in open_ones], samples)
    readers: dict[str, list[Layer]] = {}
    for layer in found:
        readers.setdefault(layer.weight, []).append(layer)
    report = []
    for weight, layers_of in readers.items():
        first = layers_of[0]
        if np.any(qdq.weights[weight].params.zero_point):
            # Pairs are of the integers as they are stored: without a zero point these are the weights themselves.
            qdq.weights[weight] = symmetric(qdq.weights[weight])
        if qdq.weights[weight].params.axis not in (None, first.weight_axis):
            # Scales along K are no kernel's: ONNX Runtime takes them for those of channels, and fails.
            qdq.notes.append(f"{weight}: rounded again, with a scale per output channel instead of along its inputs.")
            qdq.weights[weight] = by_channel(qdq.weights[weight], first.weight_axis)
        views = {(item.node.op_type, attribute(item.node, "transB", 0), attribute(item.node, "group", 1))
                 for item in layers_of}  # fmt: skip
        # Read along two axes, unsigned weights are exact whatever the order.
        among = None if len(views) == 1 else [unsigned.REMEDY]
        before = decided.get(weight)
        if before is not None and before.remedy == unsigned.REMEDY.name:
            among = [unsigned.REMEDY]
        alone, whole = len(layers_of) == 1, dialect.whole_channels and len(views) == 1
        choice = choose(_problem(qdq, first, rows, written, alone=alone, whole=whole), among)
        if choice.remedy != "none":
            _write(qdq, layers_of, choice.fitted)
        kept = qdq.weights.get(weight)
        if before is not None and choice.remedy in ("none", before.remedy):
            digest = "" if kept is None else digest_of(kept)
            report += [replace(before, node=layer.node.name, digest=digest) for layer in layers_of]
            continue
        report += [
            RemedyRow(
                layer.node.name, weight, choice.remedy, round(choice.cost_db, 3), round(choice.sqnr_db, 2),
                choice.measured, {name: round(cost, 2) for name, cost in choice.tried.items()},
                "" if kept is None else digest_of(kept),
            )
            for layer in layers_of
        ]  # fmt: skip
    return report


def _targets(qdq: QdqModel, dialect: Dialect) -> tuple[list[Layer], set[str]]:
    """Return the layers whose kernels add in pairs, and the boundaries that integer kernels write."""
    trial = copy.deepcopy(qdq)
    if dialect.integer_bias:
        integer_biases(trial)
    keep_float_weights(trial, dialect)
    trial = propagated(trial)
    found = fuse(trial, signed_kernels=False)
    written = {kernel.boundary for kernel in found if kernel.integer and kernel.boundary is not None}
    names = {kernel.node.name for kernel in found if is_paired(kernel, trial)}
    if not dialect.is_onnxruntime:
        # Rules of other runtimes do not say which kernel it is: whatever could be one is treated as one.
        names = {
            layer.node.name for layer in layers(qdq)
            # A transposed convolution adds what falls on one place: no pairs that its weight alone tells of.
            if qdq.weights[layer.weight].params.type == "int8" and layer.node.op_type != "ConvTranspose"
            and not _is_depthwise(layer.node, qdq.weights[layer.weight].values.shape)
        }  # fmt: skip
    return [layer for layer in layers(qdq) if layer.node.name in names], written


def to_matrix(node: onnx.NodeProto, values: np.ndarray, *, whole: bool = False) -> np.ndarray:
    """Return a weight as (groups, channels, K), K in the order in which kernels add."""
    if node.op_type == "Conv":
        return conv_to_matrix(values, int(attribute(node, "group", 1)), whole=whole)
    found = product_to_matrix(values, transposed=bool(attribute(node, "transB", 0)))
    # Several matrices read the same rows: they are channels of one.
    return found.reshape(1, -1, found.shape[-1])


def _problem(
    qdq: QdqModel, layer: Layer, rows: Rows, written: set[str], *, alone: bool, whole: bool = False
) -> Problem:
    """Describe a layer; `alone` tells that nobody else reads its weight, so its input may be narrowed for it."""
    weight = qdq.weights[layer.weight]
    real = weight.real.astype(np.float64)
    exact = qdq.exact.get(layer.weight)
    if exact is not None and exact.shape == real.shape:
        step, _ = weight.params.spread(real.shape)
        # Where rounding was learned or the weight was clipped on purpose, the code is what was meant.
        real = np.where(np.abs(exact - real) <= 0.501 * step, exact, real)
    codes = to_matrix(layer.node, weight.values, whole=whole)
    many = weight.values.ndim > 2 and layer.node.op_type != "Conv"
    given = weight.params.scale.astype(np.float64).reshape(-1)
    scale = np.broadcast_to(np.max(given) if many else given, (codes.shape[0] * codes.shape[1],))
    boundary = qdq.edges[layer.node.name, 0]
    one_reader = sum(name == boundary for name in qdq.edges.values()) == 1
    return Problem(
        to_matrix(layer.node, real, whole=whole), codes, scale.reshape(codes.shape[:2]),
        _filled(rows.get(layer.node.name), layer.node, weight.values.shape, whole=whole),
        float(layer.input.scale), clippable=alone and one_reader and boundary not in written, shared=many,
        rounded=exact is None,
    )  # fmt: skip


def _filled(rows: np.ndarray | None, node: onnx.NodeProto, shape: tuple[int, ...], *, whole: bool) -> np.ndarray | None:
    """Fill up rows as their weight is."""
    if rows is None or not whole or node.op_type != "Conv" or not shape[1] % 2:
        return rows
    return fill_up(rows, shape[1])


def _write(qdq: QdqModel, readers: Sequence[Layer], fitted: Fitted) -> None:
    """Put the new weights of layers that share them into the model."""
    layer = readers[0]
    node, weight = layer.node, qdq.weights[layer.weight]
    if fitted.kind == "float":
        real = qdq.exact.get(layer.weight, weight.real)
        qdq.graph.initializer.append(numpy_helper.from_array(np.asarray(real, np.float32), layer.weight))
        del qdq.weights[layer.weight]
        names = {reader.node.name for reader in readers}
        for edge in [edge for edge in qdq.edges if edge[0] in names]:
            del qdq.edges[edge]
        qdq.prune()
        return
    if fitted.kind == "uint8":
        shifted = replace(weight.params, zero_point=weight.params.zero_point + 128, type="uint8")
        qdq.weights[layer.weight] = Weight((weight.values.astype(np.int16) + 128).astype(np.uint8), shifted)
        return
    assert fitted.codes is not None
    codes, shape = np.maximum(fitted.codes, -127), weight.values.shape
    is_turned = bool(attribute(node, "transB", 0))
    is_conv = node.op_type == "Conv"
    values = matrix_to_conv(codes, shape) if is_conv else matrix_to_product(codes, shape, transposed=is_turned)
    scale = fitted.scale.reshape(-1).astype(np.float32)
    axis: int | None = layer.weight_axis
    if len(shape) > 2 and not is_conv:
        scale, axis = scale[0], None
    qdq.weights[layer.weight] = Weight(values, Params(scale, np.zeros(scale.shape, np.int64), "int8", axis))
    if fitted.levels < 255:
        _reduce_levels(qdq, qdq.edges[node.name, 0], fitted.levels)


def _reduce_levels(qdq: QdqModel, boundary: str, levels: int) -> None:
    """Give an input fewer levels, and a Clip before it that no value gets past."""
    tensor, params = qdq.tensor_of[boundary], qdq.params[boundary]
    scale = np.float32(float(params.scale) * 255 / levels)
    zero = int(np.rint(int(params.zero_point) * levels / 255))
    clipped = f"{tensor}/reduced"
    bounds = {f"{clipped}/low": -zero * scale, f"{clipped}/high": (levels - zero) * scale}
    for name, value in bounds.items():
        qdq.graph.initializer.append(numpy_helper.from_array(np.asarray(value, np.float32), name))
    for node in qdq.graph.node:
        for index in range(len(node.input)):
            if qdq.edges.get((node.name, index)) == boundary:
                node.input[index] = clipped
    clip = onnx.helper.make_node("Clip", [tensor, *bounds], [clipped], name=f"reduced/{tensor}")
    nodes = list(qdq.graph.node)
    index = next((place + 1 for place, node in enumerate(nodes) if tensor in node.output), 0)
    nodes.insert(index, clip)
    replace_all(qdq.graph.node, nodes)
    qdq.tensor_of[boundary] = clipped
    qdq.params[boundary] = per_tensor(float(scale), zero, params.type)
