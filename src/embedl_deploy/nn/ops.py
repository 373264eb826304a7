"""Operators of two and more tensors as modules: sums, products, and attention in the shapes that a target fuses."""

from collections.abc import Sequence
from itertools import pairwise

import torch
from torch import nn
from torch.nn import functional

from embedl_deploy.nn import kernels
from embedl_deploy.nn.quantizable import ALL_INPUTS, ElementwiseModule, QuantizableModule, QuantSpec
from embedl_deploy.pattern import Point


class Add(ElementwiseModule):
    """The sum of two tensors."""

    passed_inputs = ALL_INPUTS

    def forward(self, one: torch.Tensor, other: torch.Tensor) -> torch.Tensor:
        """Add, broadcasting."""
        return self.finish(None, one, other)

    def on_integers(
        self, values: Sequence[torch.Tensor], inputs: Sequence[kernels.Scale], output: kernels.Scale
    ) -> torch.Tensor:
        """Add codes."""
        return kernels.add(values[0], inputs[0], values[1], inputs[1], output)


class Multiply(ElementwiseModule):
    """The product of two tensors, element by element."""

    def forward(self, one: torch.Tensor, other: torch.Tensor) -> torch.Tensor:
        """Multiply, broadcasting."""
        return one * other

    def on_integers(
        self, values: Sequence[torch.Tensor], inputs: Sequence[kernels.Scale], output: kernels.Scale
    ) -> torch.Tensor:
        """Multiply codes."""
        return kernels.multiply(values[0], inputs[0], values[1], inputs[1], output)


class MatMul(nn.Module):
    """The matrix product of two computed tensors."""

    def forward(self, one: torch.Tensor, other: torch.Tensor) -> torch.Tensor:
        """Multiply the last two dimensions."""
        return torch.matmul(one, other)


class Concat(QuantizableModule):
    """Tensors one after the other along a dimension."""

    watched = (Point.OUTPUT, Point.INPUT)

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
        if torch.compiler.is_exporting():
            return self._written_out(query, key, value, mask)
        dropout = self.dropout if self.training else 0.0
        return functional.scaled_dot_product_attention(
            query, key, value, mask, dropout, self.causal, scale=self.scale, enable_gqa=self.grouped
        )

    def _written_out(
        self, query: torch.Tensor, key: torch.Tensor, value: torch.Tensor, mask: torch.Tensor | None
    ) -> torch.Tensor:
        """Attend in plain operators: torch.export's own steps for it fail on some strides and ranks."""
        if self.grouped:
            key, value = (_repeated_heads(part, query.shape[-3]) for part in (key, value))
        scale = query.shape[-1] ** -0.5 if self.scale is None else self.scale
        scores = torch.matmul(query * scale, key.transpose(-2, -1))
        lowest = torch.finfo(scores.dtype).min
        if self.causal:
            seen = torch.ones(query.shape[-2], key.shape[-2], dtype=torch.bool, device=query.device).tril()
            scores = scores.masked_fill(torch.logical_not(seen), lowest)
        if mask is None:
            return torch.matmul(torch.softmax(scores, -1), value)
        if mask.dtype is not torch.bool:
            return torch.matmul(torch.softmax(scores + mask, -1), value)
        weights = torch.softmax(scores.masked_fill(torch.logical_not(mask), lowest), -1)
        # A row that may read nothing reads nothing, instead of everything alike.
        return torch.matmul(weights * mask.to(weights.dtype), value)

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


def _repeated_heads(value: torch.Tensor, heads: int) -> torch.Tensor:
    """Give every query head the key or value head of its group."""
    times = heads // value.shape[-3]
    if times == 1:
        return value
    spread = value.unsqueeze(-3).expand(*value.shape[:-2], times, *value.shape[-2:])
    return torch.flatten(spread, -4, -3)


class FusedAttention(QuantizableModule):
    """Scaled dot-product attention as one kernel."""

    def __init__(self, attention: ScaledDotProductAttention) -> None:
        super().__init__()
        self.attention: nn.Module = attention
        self.training = attention.training

    def forward(
        self, query: torch.Tensor, key: torch.Tensor, value: torch.Tensor, mask: torch.Tensor | None = None
    ) -> torch.Tensor:
        """Attend."""
        result: torch.Tensor = self.attention(*(query, key, value) if mask is None else (query, key, value, mask))
        return result

    def quantize(self, spec: QuantSpec) -> None:
        """Put pairs before the matrix products."""
        self.attention = spec.attention(self.attention)


class FusedSoftmaxAttention(QuantizableModule):
    """Attention written out: matrix product, scale, mask, softmax, matrix product.

    The key comes in transposed, as the user's code has it.
    """

    def __init__(self, softmax: nn.Module, dropout: nn.Module | None, scale: float) -> None:
        super().__init__()
        self.softmax = softmax
        self.dropout = dropout
        self.scale = scale
        self.training = softmax.training

    def forward(
        self, query: torch.Tensor, key: torch.Tensor, value: torch.Tensor, mask: torch.Tensor | None = None
    ) -> torch.Tensor:
        """Attend."""
        scores = torch.matmul(query, key)
        if self.scale != 1.0:
            scores = scores * self.scale
        if mask is not None:
            scores = scores + mask
        weights = self.softmax(scores)
        if self.dropout is not None:
            weights = self.dropout(weights)
        return torch.matmul(weights, value)

    def extra_repr(self) -> str:
        """Name the scale."""
        return f"scale={self.scale:g}"


class DecomposedAttention(nn.Module):
    """`nn.MultiheadAttention` as in-projections, attention and out-projection, on the same parameters.

    Which inputs are one and the same tensor is settled when it is built: with one input it is self-attention and has
    one packed projection; with two, key and value share the second; with three, each has its own.
    """

    def __init__(self, source: nn.MultiheadAttention, distinct: int, mask: str, *, causal: bool) -> None:
        super().__init__()
        self.heads = source.num_heads
        self.head_width = source.head_dim
        self.batch_first = source.batch_first
        self.distinct = distinct
        self.mask = mask
        self.in_proj: nn.Module | None = None
        self.q_proj: nn.Module | None = None
        self.k_proj: nn.Module | None = None
        self.v_proj: nn.Module | None = None
        weights, biases = _projections(source)
        self.packed = distinct == 1 and source.in_proj_weight is not None
        if self.packed:
            self.in_proj = linear_of(source.in_proj_weight, source.in_proj_bias)
        else:
            self.q_proj, self.k_proj, self.v_proj = (
                linear_of(weight, bias) for weight, bias in zip(weights, biases, strict=True)
            )
        self.attention = ScaledDotProductAttention(dropout=source.dropout, causal=causal)
        self.out_proj = linear_of(source.out_proj.weight, source.out_proj.bias)
        for part in self.modules():
            part.training = source.training

    def forward(
        self,
        query: torch.Tensor,
        key: torch.Tensor | None = None,
        value: torch.Tensor | None = None,
        mask: torch.Tensor | None = None,
    ) -> tuple[torch.Tensor, None]:
        """Attend; the weights are never returned."""
        key = query if self.distinct == 1 else key
        value = key if self.distinct < 3 else value
        if self.in_proj is not None:
            # By position: unpacking a traced value makes torch.fx read bytecode, which is slow.
            parts = torch.chunk(self.in_proj(query), 3, -1)
            q, k, v = parts[0], parts[1], parts[2]
        else:
            assert self.q_proj is not None
            assert self.k_proj is not None
            assert self.v_proj is not None
            q, k, v = self.q_proj(query), self.k_proj(key), self.v_proj(value)
        mixed = self.attention(self._split(q), self._split(k), self._split(v), *self._spread(mask))
        return self.out_proj(self._join(mixed)), None

    def _split(self, value: torch.Tensor) -> torch.Tensor:
        """(batch, length, width) to (batch, heads, length, head width); the batch may come second."""
        split = torch.unflatten(value, -1, (self.heads, self.head_width))
        return torch.permute(split, (0, 2, 1, 3) if self.batch_first else (1, 2, 0, 3))

    def _join(self, value: torch.Tensor) -> torch.Tensor:
        return torch.flatten(torch.permute(value, (0, 2, 1, 3) if self.batch_first else (2, 0, 1, 3)), -2)

    def _spread(self, mask: torch.Tensor | None) -> tuple[torch.Tensor, ...]:
        """Bring a mask into the shape and meaning that attention takes."""
        if self.mask == "none" or mask is None:
            return ()
        if self.mask == "padding":
            # True means "leave out" for MultiheadAttention and "take part" for attention itself.
            return (torch.logical_not(mask)[:, None, None, :],)
        if self.mask == "boolean":
            return (torch.logical_not(mask),)
        return (mask,)


def _projections(source: nn.MultiheadAttention) -> tuple[list[torch.Tensor], list[torch.Tensor | None]]:
    """Return query, key and value weights and biases; slices share the memory of a packed parameter."""
    width = source.embed_dim
    packed: torch.Tensor | None = source.in_proj_weight
    if packed is not None:
        weights = [packed[index * width : (index + 1) * width] for index in range(3)]
    else:
        weights = [source.q_proj_weight, source.k_proj_weight, source.v_proj_weight]
    bias: torch.Tensor | None = source.in_proj_bias
    biases: list[torch.Tensor | None] = [
        None if bias is None else bias[index * width : (index + 1) * width] for index in range(3)
    ]
    return weights, biases


def linear_of(weight: torch.Tensor, bias: torch.Tensor | None) -> nn.Linear:
    """Build a linear layer around existing tensors."""
    layer = nn.Linear(weight.shape[1], weight.shape[0], bias=bias is not None, device="meta")
    layer.weight = _parameter(weight)
    if bias is not None:
        layer.bias = _parameter(bias)
    return layer


def _parameter(tensor: torch.Tensor) -> nn.Parameter:
    """Return the parameter itself, or one that shares a slice's memory."""
    if isinstance(tensor, nn.Parameter):
        return tensor
    return nn.Parameter(tensor.detach(), requires_grad=tensor.requires_grad)


class WindowAttention(nn.Module):
    """Shifted-window attention (Swin) for one spatial size, in steps a target can fuse.

    pad → shift → cut into windows → qkv → attention with the position bias and the shift's mask → projection → put
    together → shift back → crop. Windows are a dimension of their own, so the mask is added by broadcasting.
    """

    mask: torch.Tensor | None

    def __init__(
        self,
        qkv: nn.Linear,
        proj: nn.Linear,
        size: tuple[int, int],
        window: tuple[int, int],
        shift: tuple[int, int],
        heads: int,
        logit_scale: torch.Tensor | None = None,
    ) -> None:
        super().__init__()
        self.qkv = qkv
        self.proj = proj
        self.size = size
        self.window = window
        self.padded = tuple(-(-side // span) * span for side, span in zip(size, window, strict=True))
        # A window as large as the picture is never shifted.
        self.shift = tuple(
            0 if span >= side else step for span, side, step in zip(window, self.padded, shift, strict=True)
        )
        self.heads = heads
        self.cosine = logit_scale is not None
        self.attention = ScaledDotProductAttention(scale=1.0 if self.cosine else None)
        if logit_scale is not None:
            self.logit_scale = _parameter(logit_scale)
        self.register_buffer("mask", self._shift_mask(qkv.weight), persistent=False)

    def forward(self, value: torch.Tensor, bias: torch.Tensor) -> torch.Tensor:
        """Attend within shifted windows of a (batch, height, width, channels) tensor."""
        (height, width), (tall, wide) = self.padded, self.window
        rows, columns, channels = height // tall, width // wide, self.qkv.in_features
        below, right = height - self.size[0], width - self.size[1]
        if below or right:
            value = functional.pad(value, (0, 0, 0, right, 0, below))
        if any(self.shift):
            value = torch.roll(value, (-self.shift[0], -self.shift[1]), (1, 2))
        value = torch.permute(torch.reshape(value, (-1, rows, tall, columns, wide, channels)), (0, 1, 3, 2, 4, 5))
        value = self.qkv(torch.reshape(value, (-1, rows * columns, tall * wide, channels)))
        value = torch.reshape(value, (-1, rows * columns, tall * wide, 3, self.heads, channels // self.heads))
        packed = torch.permute(value, (3, 0, 1, 4, 2, 5))
        q, k, v = packed[0], packed[1], packed[2]
        if self.cosine:
            q = functional.normalize(q, dim=-1) * torch.exp(torch.clamp(self.logit_scale, max=_LARGEST_LOGIT))
            k = functional.normalize(k, dim=-1)
        mask = bias if self.mask is None else bias + self.mask
        value = torch.permute(self.attention(q, k, v, mask), (0, 1, 3, 2, 4))
        value = self.proj(torch.reshape(value, (-1, rows * columns, tall * wide, channels)))
        value = torch.permute(torch.reshape(value, (-1, rows, columns, tall, wide, channels)), (0, 1, 3, 2, 4, 5))
        value = torch.reshape(value, (-1, height, width, channels))
        if any(self.shift):
            value = torch.roll(value, (self.shift[0], self.shift[1]), (1, 2))
        if below or right:
            value = value[:, : self.size[0], : self.size[1], :]
        return value

    def _shift_mask(self, like: torch.Tensor) -> torch.Tensor | None:
        """Build the mask that keeps apart what the shift brought together: (windows, 1, span, span)."""
        if not any(self.shift):
            return None
        regions = torch.zeros(self.padded, dtype=like.dtype, device=like.device)
        (height, width), (tall, wide) = self.padded, self.window
        number = 0
        for top, bottom in _bands(height, tall, self.shift[0]):
            for left, end in _bands(width, wide, self.shift[1]):
                regions[top:bottom, left:end] = number
                number += 1
        spread = regions.view(height // tall, tall, width // wide, wide).permute(0, 2, 1, 3).reshape(-1, tall * wide)
        apart = spread[:, None, :] != spread[:, :, None]
        return torch.zeros_like(apart, dtype=like.dtype).masked_fill(apart, _FAR_APART)[:, None]


_FAR_APART = -100.0
_LARGEST_LOGIT = 4.605170185988092  # log(100), the published bound of cosine attention's temperature


def _bands(length: int, window: int, shift: int) -> list[tuple[int, int]]:
    """Cut a side into the three bands that a shift makes; a side without a shift is cut the same way."""
    edges = [0, length - window, length - shift, length]
    return [(low, high) for low, high in pairwise(edges) if high > low]
