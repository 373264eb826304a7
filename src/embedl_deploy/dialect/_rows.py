"""What layers read on samples: rows of K numbers each, as their kernels see them."""

import itertools
from collections.abc import Iterable, Sequence

import numpy as np
import onnx
from onnx import helper

from embedl_deploy.dialect._model import Parts, attribute
from embedl_deploy.dialect._observe import by_input, float_model, make_session, run

Rows = dict[str, np.ndarray]
# Numbers that are kept of a layer's inputs; second moments of long rows need no more of them.
_NUMBERS = 1_000_000
_LEAST, _MOST = 256, 1024
# Samples that are run.
_SAMPLES = 16


def gather_rows(parts: Parts, nodes: Sequence[onnx.NodeProto], samples: Iterable[object] | None) -> Rows:
    """Return rows of the inputs of layers by node name, (groups, rows, K), rounded as the layer reads them."""
    if samples is None or not nodes:
        return {}
    model = float_model(parts)
    known = {value.name for value in model.graph.output} | {value.name for value in model.graph.input}
    names = list(dict.fromkeys(node.input[0] for node in nodes))
    for name in names:
        if name not in known:
            model.graph.output.append(helper.make_empty_tensor_value_info(name))
    session = make_session(model)
    inputs = [value.name for value in session.get_inputs()]
    given = [name for name in names if name in inputs]
    asked = [name for name in names if name not in inputs]
    random = np.random.default_rng(0)
    found: dict[str, list[np.ndarray]] = {}
    feeds = [by_input(sample, inputs) for sample in itertools.islice(samples, _SAMPLES)]
    for feed in feeds:
        values = {name: feed[name] for name in given}
        values |= dict(zip(asked, run(session, asked, feed), strict=True)) if asked else {}
        for node in nodes:
            found.setdefault(node.name, []).append(_rows(parts, node, values[node.input[0]], len(feeds), random))
    return {name: np.concatenate(pieces, axis=1) for name, pieces in found.items()}


def _rows(parts: Parts, node: onnx.NodeProto, value: np.ndarray, share: int, random: np.random.Generator) -> np.ndarray:
    """Draw some of the rows that a layer reads from one value."""
    weight = parts.weights[node.input[1]].values
    params = parts.params[parts.edges[node.name, 0]]
    if node.op_type == "Conv":
        drawn = _patches(node, value, weight.shape, share, random)
    else:
        turned = np.moveaxis(value, 0, -1) if node.op_type == "Gemm" and attribute(node, "transA", 0) else value
        flat = turned.reshape(-1, turned.shape[-1])
        drawn = flat[random.permutation(len(flat))[: _count(flat.shape[-1], share)]][None]
    return params.dequantize(params.quantize(drawn))


def _count(length: int, share: int) -> int:
    """Return how many rows of a length one of so many samples gives."""
    return max(1, -(-min(max(_NUMBERS // max(1, length), _LEAST), _MOST) // share))


def _patches(
    node: onnx.NodeProto, value: np.ndarray, shape: tuple[int, ...], share: int, random: np.random.Generator
) -> np.ndarray:
    """Draw what a convolution reads at some places: kernel positions, then channels."""
    rank = value.ndim - 2
    window = shape[2:]
    groups = int(attribute(node, "group", 1))
    strides = list(attribute(node, "strides") or [1] * rank)
    dilations = list(attribute(node, "dilations") or [1] * rank)
    pads = pads_of(node, value.shape[2:], window, strides, dilations)
    padded = np.pad(value, [(0, 0), (0, 0), *((pads[axis], pads[axis + rank]) for axis in range(rank))])
    places = [
        max(1, (size - (length - 1) * dilation - 1) // stride + 1)
        for size, length, dilation, stride in zip(padded.shape[2:], window, dilations, strides, strict=True)
    ]
    count = min(_count(shape[1] * int(np.prod(window)), share), len(value) * int(np.prod(places)))
    batch = random.integers(0, len(value), count)
    starts = [random.integers(0, size, count) * stride for size, stride in zip(places, strides, strict=True)]
    pieces = []
    for position in itertools.product(*(range(length) for length in window)):
        at = [start + step * dilation for start, step, dilation in zip(starts, position, dilations, strict=True)]
        picked = padded[(batch, slice(None), *at)]
        pieces.append(picked.reshape(count, groups, shape[1]))
    return np.stack(pieces, 2).transpose(1, 0, 2, 3).reshape(groups, count, -1)


def pads_of(
    node: onnx.NodeProto, sizes: Sequence[int], window: Sequence[int], strides: list[int], dilations: list[int]
) -> list[int]:
    """Return the padding of a window operator, before and after each axis."""
    rank = len(window)
    kind = attribute(node, "auto_pad", b"NOTSET")
    kind = kind.decode() if isinstance(kind, bytes) else kind
    if kind in ("NOTSET", "VALID", ""):
        return list(attribute(node, "pads") or [0] * (2 * rank)) if kind != "VALID" else [0] * (2 * rank)
    before, after = [], []
    for size, length, stride, dilation in zip(sizes, window, strides, dilations, strict=True):
        span = (length - 1) * dilation + 1
        total = max((-(-size // stride) - 1) * stride + span - size, 0)
        small, large = total // 2, total - total // 2
        before.append(small if kind == "SAME_UPPER" else large)
        after.append(large if kind == "SAME_UPPER" else small)
    return before + after
