"""What layers read on samples: rows of K numbers each, as their kernels see them."""

import itertools
from collections.abc import Iterable, Sequence

import numpy as np
import onnx
from onnx import helper

from embedl_deploy.dialect._model import Parts, attribute
from embedl_deploy.dialect._observe import by_input, float_model, make_session, run
from embedl_kernels import Window, sample_patches, sample_rows, window_pads

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
    count = _count(int(np.prod(weight.shape[1:])) if node.op_type == "Conv" else weight.shape[-1], share)
    if node.op_type == "Conv":
        drawn = sample_patches(value, window_of(node, value.shape[2:], weight.shape[2:]), count, random)
    else:
        is_turned = node.op_type == "Gemm" and attribute(node, "transA", 0)
        drawn = sample_rows(np.moveaxis(value, 0, -1) if is_turned else value, count, random)
    return params.dequantize(params.quantize(drawn))


def _count(length: int, share: int) -> int:
    """Return how many rows of a length one of so many samples gives."""
    return max(1, -(-min(max(_NUMBERS // max(1, length), _LEAST), _MOST) // share))


def window_of(node: onnx.NodeProto, sizes: Sequence[int], kernel: Sequence[int]) -> Window:
    """Return how a window operator walks over an input of some size."""
    rank = len(kernel)
    strides = list(attribute(node, "strides") or [1] * rank)
    dilations = list(attribute(node, "dilations") or [1] * rank)
    auto_pad = attribute(node, "auto_pad", b"NOTSET")
    auto_pad = auto_pad.decode() if isinstance(auto_pad, bytes) else auto_pad
    pads = window_pads(auto_pad, attribute(node, "pads") or [], sizes, kernel, strides, dilations)
    return Window(tuple(kernel), strides, pads, dilations, int(attribute(node, "group", 1)))
