"""Operators of two and more tensors as modules, so that a pattern, a report and a quantiser see them as layers."""

import torch
from torch import nn
from torch.nn import functional


class Add(nn.Module):
    """The sum of two tensors."""

    def forward(self, one: torch.Tensor, other: torch.Tensor) -> torch.Tensor:
        """Add, broadcasting."""
        return one + other


class Multiply(nn.Module):
    """The product of two tensors, element by element."""

    def forward(self, one: torch.Tensor, other: torch.Tensor) -> torch.Tensor:
        """Multiply, broadcasting."""
        return one * other


class MatMul(nn.Module):
    """The matrix product of two computed tensors."""

    def forward(self, one: torch.Tensor, other: torch.Tensor) -> torch.Tensor:
        """Multiply the last two dimensions."""
        return torch.matmul(one, other)


class Concat(nn.Module):
    """Tensors one after the other along a dimension."""

    def __init__(self, dim: int = 0) -> None:
        super().__init__()
        self.dim = dim

    def forward(self, *tensors: torch.Tensor) -> torch.Tensor:
        """Concatenate."""
        return torch.cat(tensors, self.dim)

    def extra_repr(self) -> str:
        """Name the dimension."""
        return f"dim={self.dim}"


class ScaledDotProductAttention(nn.Module):
    """softmax(query · keyᵀ · scale + mask) · value, as torch computes it."""

    def __init__(
        self, *, dropout: float = 0.0, causal: bool = False, scale: float | None = None, grouped: bool = False
    ) -> None:
        super().__init__()
        self.dropout = dropout
        self.causal = causal
        self.scale = scale
        self.grouped = grouped

    def forward(
        self, query: torch.Tensor, key: torch.Tensor, value: torch.Tensor, mask: torch.Tensor | None = None
    ) -> torch.Tensor:
        """Attend; dropout only while training."""
        return functional.scaled_dot_product_attention(
            query,
            key,
            value,
            attn_mask=mask,
            dropout_p=self.dropout if self.training else 0.0,
            is_causal=self.causal,
            scale=self.scale,
            enable_gqa=self.grouped,
        )

    def extra_repr(self) -> str:
        """Name what differs from the defaults."""
        parts = []
        if self.dropout:
            parts.append(f"dropout={self.dropout}")
        if self.causal:
            parts.append("causal=True")
        if self.scale is not None:
            parts.append(f"scale={self.scale:g}")
        return ", ".join(parts)
