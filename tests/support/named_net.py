"""A network whose names are hard to keep: a module with two names, functions, residual sums, a loop over a shape."""

import torch
from torch import nn
from torch.nn import functional as F  # noqa: N812 (the name everybody uses)


class Block(nn.Module):
    """A convolution with a residual sum that has no module of its own."""

    def __init__(self, width: int) -> None:
        super().__init__()
        self.conv = nn.Conv2d(width, width, 3, padding=1, bias=False)
        self.bn = nn.BatchNorm2d(width)
        self.act = nn.ReLU()

    def forward(self, value: torch.Tensor) -> torch.Tensor:
        """Add and cut off."""
        return F.relu(value + self.act(self.bn(self.conv(value))))


class Loop(nn.Module):
    """Calls one convolution as often as a shape says, which symbolic tracing cannot follow."""

    def __init__(self, width: int) -> None:
        super().__init__()
        self.inner = nn.Conv2d(width, width, 1)

    def forward(self, value: torch.Tensor) -> torch.Tensor:
        """Convolve twice for a width of 32."""
        for _ in range(int(value.shape[1]) // 16):
            value = self.inner(value)
        return value


class NamedNet(nn.Module):
    """The network."""

    def __init__(self, *, loops: bool = False, width: int = 32) -> None:
        super().__init__()
        self.stem = nn.Sequential(nn.Conv2d(3, width, 3, padding=1), nn.ReLU())
        self.features = nn.Sequential(Block(width), Block(width))
        self.shared = nn.Conv2d(width, width, 3, padding=1)
        self.alias = self.shared
        self.odd = Loop(width) if loops else nn.Identity()
        self.head = nn.Linear(width, 10)

    def forward(self, value: torch.Tensor) -> torch.Tensor:
        """Classify."""
        value = self.features(self.stem(value))
        value = self.odd(self.alias(F.gelu(self.shared(value))))
        pooled = value.mean((2, 3)) - 0.5
        scores: torch.Tensor = self.head(torch.reshape(pooled, (-1, self.head.in_features)))
        return scores
