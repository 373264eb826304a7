"""Layers that a target runs as one kernel, built from the user's own modules.

Members are kept as they are and called in order, so a fused module computes what they computed, in train and in eval
mode. Batch norm is not folded: fine-tuning needs it; it is folded on export.
"""

import torch
from torch import nn


def _batch_norm(bn: nn.Module | None, value: torch.Tensor) -> torch.Tensor:
    """Apply a batch norm that may be absent."""
    result: torch.Tensor = value if bn is None else bn(value)
    return result


class _Fused(nn.Module):
    """Takes the mode of its first member, so that a fused part of an eval model is in eval mode."""

    def _follow(self, member: nn.Module) -> None:
        self.training = member.training


class FusedConvBN(_Fused):
    """Convolution, and batch norm where there is one."""

    def __init__(self, conv: nn.Module, bn: nn.Module | None = None) -> None:
        super().__init__()
        self.conv = conv
        self.bn = bn
        self._follow(conv)

    def forward(self, value: torch.Tensor) -> torch.Tensor:
        """Run the members in order."""
        return _batch_norm(self.bn, self.conv(value))


class FusedConvBNReLU(_Fused):
    """Convolution, batch norm where there is one, activation."""

    def __init__(self, conv: nn.Module, bn: nn.Module | None, act: nn.Module) -> None:
        super().__init__()
        self.conv = conv
        self.bn = bn
        self.act = act
        self._follow(conv)

    def forward(self, value: torch.Tensor) -> torch.Tensor:
        """Run the members in order."""
        result: torch.Tensor = self.act(_batch_norm(self.bn, self.conv(value)))
        return result


class FusedConvBNReLUMaxPool(_Fused):
    """Convolution, batch norm where there is one, activation, max pooling: the stem of many networks."""

    def __init__(self, conv: nn.Module, bn: nn.Module | None, act: nn.Module, pool: nn.Module) -> None:
        super().__init__()
        self.conv = conv
        self.bn = bn
        self.act = act
        self.pool = pool
        self._follow(conv)

    def forward(self, value: torch.Tensor) -> torch.Tensor:
        """Run the members in order."""
        result: torch.Tensor = self.pool(self.act(_batch_norm(self.bn, self.conv(value))))
        return result


class FusedConvBNAdd(_Fused):
    """Convolution, batch norm where there is one, plus a residual."""

    def __init__(self, conv: nn.Module, bn: nn.Module | None) -> None:
        super().__init__()
        self.conv = conv
        self.bn = bn
        self._follow(conv)

    def forward(self, value: torch.Tensor, residual: torch.Tensor) -> torch.Tensor:
        """Run the members in order."""
        return _batch_norm(self.bn, self.conv(value)) + residual


class FusedConvBNAddReLU(_Fused):
    """Convolution, batch norm where there is one, plus a residual, activation."""

    def __init__(self, conv: nn.Module, bn: nn.Module | None, act: nn.Module) -> None:
        super().__init__()
        self.conv = conv
        self.bn = bn
        self.act = act
        self._follow(conv)

    def forward(self, value: torch.Tensor, residual: torch.Tensor) -> torch.Tensor:
        """Run the members in order."""
        result: torch.Tensor = self.act(_batch_norm(self.bn, self.conv(value)) + residual)
        return result


class FusedAddReLU(_Fused):
    """The sum of two tensors, activation."""

    def __init__(self, act: nn.Module) -> None:
        super().__init__()
        self.act = act
        self._follow(act)

    def forward(self, one: torch.Tensor, other: torch.Tensor) -> torch.Tensor:
        """Add, then activate."""
        result: torch.Tensor = self.act(one + other)
        return result


class FusedConvTransposeBN(FusedConvBN):
    """Transposed convolution, and batch norm where there is one."""


class FusedConvTransposeBNReLU(FusedConvBNReLU):
    """Transposed convolution, batch norm where there is one, activation."""


class FusedBNReLU(_Fused):
    """Batch norm that no convolution takes in, and the activation where there is one."""

    def __init__(self, bn: nn.Module, act: nn.Module | None = None) -> None:
        super().__init__()
        self.bn = bn
        self.act = act
        self._follow(bn)

    def forward(self, value: torch.Tensor) -> torch.Tensor:
        """Run the members in order."""
        result: torch.Tensor = self.bn(value)
        return result if self.act is None else self.act(result)


class FusedAdaptiveAvgPool2d(_Fused):
    """Adaptive average pooling as one kernel."""

    def __init__(self, pool: nn.Module) -> None:
        super().__init__()
        self.pool = pool
        self._follow(pool)

    def forward(self, value: torch.Tensor) -> torch.Tensor:
        """Pool."""
        result: torch.Tensor = self.pool(value)
        return result


class FusedLinear(_Fused):
    """A fully connected layer as one kernel."""

    def __init__(self, linear: nn.Module) -> None:
        super().__init__()
        self.linear = linear
        self._follow(linear)

    def forward(self, value: torch.Tensor) -> torch.Tensor:
        """Multiply and add the bias."""
        result: torch.Tensor = self.linear(value)
        return result


class FusedLinearReLU(_Fused):
    """A fully connected layer and its activation."""

    def __init__(self, linear: nn.Module, act: nn.Module) -> None:
        super().__init__()
        self.linear = linear
        self.act = act
        self._follow(linear)

    def forward(self, value: torch.Tensor) -> torch.Tensor:
        """Run the members in order."""
        result: torch.Tensor = self.act(self.linear(value))
        return result


class FusedLayerNorm(_Fused):
    """Layer normalisation as one kernel."""

    def __init__(self, norm: nn.Module) -> None:
        super().__init__()
        self.norm = norm
        self._follow(norm)

    def forward(self, value: torch.Tensor) -> torch.Tensor:
        """Normalise."""
        result: torch.Tensor = self.norm(value)
        return result
