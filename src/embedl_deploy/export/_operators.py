"""ONNX operators inside a torch model: torch.export carries each through whole, and the file gets exactly that node."""

from typing import Any

import torch

DOMAIN = "edgeproof.mark"


def quantize_dequantize(value: torch.Tensor, scale: torch.Tensor, zero_point: torch.Tensor) -> torch.Tensor:
    """Quantise and dequantise; the zero point's type is the type of the codes."""
    codes = _node("QuantizeLinear", (value, scale, zero_point), zero_point.dtype, value)
    return _node("DequantizeLinear", (codes, scale, zero_point), value.dtype, value)


def dequantize(codes: torch.Tensor, scale: torch.Tensor, axis: int, block: int) -> torch.Tensor:
    """Turn stored codes into floats."""
    return _node("DequantizeLinear", (codes, scale), scale.dtype, codes, axis=axis, block_size=block)


def mark(value: torch.Tensor, label: str) -> torch.Tensor:
    """Name a value, so that it can be found again in the file; the marker is taken out there."""
    return _node(f"{DOMAIN}::Mark", (value,), value.dtype, value, label=label)


def _node(
    name: str, inputs: tuple[torch.Tensor, ...], dtype: torch.dtype, like: torch.Tensor, **attrs: Any
) -> torch.Tensor:
    """Put one ONNX node into the graph."""
    version = 1 if "::" in name else None
    return torch.onnx.ops.symbolic(name, inputs, attrs, dtype=dtype, shape=like.shape, version=version)
