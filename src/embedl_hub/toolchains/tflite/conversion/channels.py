"""Channels that a converter reorders behind a convolution, written in that order by the convolution itself.

A pixel shuffle of ONNX counts channels otherwise than TFLite's, so onnx2tf puts a GATHER before DEPTH_TO_SPACE; it has
no fast kernel and costs more than the convolution.
"""

from __future__ import annotations

from pathlib import Path

import numpy as np

from .flat import Flat, Operator


def reorder_in_weights(path: Path) -> None:
    """Let every convolution before a GATHER of all its channels write them in that order, and drop the GATHER."""
    flat = Flat(path)
    readers = flat.readers()
    makers = {int(out): operator for operator in flat.operators for out in operator.outputs}
    gone: list[Operator] = []
    for operator in flat.operators:
        order = _order_of(flat, operator)
        if order is None:
            continue
        source = int(operator.inputs[0])
        before, alone = makers.get(source), len(readers[source]) == 1 and source not in flat.outputs
        if before is None or flat.op_type(before) != "CONV_2D" or not alone:
            continue
        inputs = [int(index) for index in before.inputs]
        held = {place: flat.constant(inputs[place]) for place in (1, 2) if place < len(inputs) and inputs[place] >= 0}
        ordered = {place: values[order] for place, values in held.items()
                   if values is not None and len(values) == order.size}  # fmt: skip
        if len(ordered) != len(held):
            continue
        for place, values in ordered.items():
            name = f"{flat.name(inputs[place])}_ordered"
            inputs[place] = flat.add_constant(name, np.ascontiguousarray(values))
        before.inputs = inputs
        before.outputs = [int(operator.outputs[0])]
        gone.append(operator)
    if gone:
        flat.graph.operators = [each for each in flat.operators if not any(each is other for other in gone)]
        flat.write(path)


def _order_of(flat: Flat, operator: Operator) -> np.ndarray | None:
    """Return the order in which a GATHER takes all channels; None for any other operator."""
    if flat.op_type(operator) != "GATHER" or operator.builtinOptions.batchDims:
        return None
    rank = len(flat.shape(int(operator.inputs[0])))
    indices = flat.constant(int(operator.inputs[1]))
    if indices is None or indices.ndim != 1 or operator.builtinOptions.axis % rank != rank - 1:
        return None
    is_whole = np.array_equal(np.sort(indices), np.arange(flat.shape(int(operator.inputs[0]))[-1]))
    return np.asarray(indices, np.int64) if is_whole else None
