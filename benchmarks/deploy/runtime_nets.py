"""Twelve networks that every runtime is proved on: five CNNs, three transformers, a detector, a U-Net, two for audio.

Random weights, also of the norms; batch norms have statistics taken from data, so activations are in range. A forward
pass takes milliseconds.

    model = build("resnet")                 # in evaluation mode, the same on every call
    args = inputs("resnet", seed=0)         # a tuple of tensors with a batch of one
"""

from __future__ import annotations

import sys
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

import torch
from torch import nn
from torch.nn import functional as F  # noqa: N812

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))
from deploy import nets

if TYPE_CHECKING:
    from collections.abc import Callable

TOKENS = 32
VOCABULARY = 512


def _conv(
    inputs: int, outputs: int, kernel: int, stride: int = 1, groups: int = 1, act: Callable[[], nn.Module] = nn.ReLU
) -> nn.Sequential:
    """Convolution, batch norm and an activation."""
    conv = nn.Conv2d(inputs, outputs, kernel, stride, kernel // 2, groups=groups, bias=False)
    return nn.Sequential(conv, nn.BatchNorm2d(outputs), act())


class Inverted(nn.Module):
    """MobileNetV2's block: widen, depthwise, narrow without an activation."""

    def __init__(self, inputs: int, outputs: int, stride: int) -> None:
        super().__init__()
        hidden = inputs * 4
        self.widen = _conv(inputs, hidden, 1, act=nn.ReLU6)
        self.depthwise = _conv(hidden, hidden, 3, stride, groups=hidden, act=nn.ReLU6)
        self.narrow = _conv(hidden, outputs, 1, act=nn.Identity)
        self.residual = stride == 1 and inputs == outputs

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        """Run the block."""
        y: torch.Tensor = self.narrow(self.depthwise(self.widen(x)))
        return x + y if self.residual else y


class MobileNetV2(nn.Module):
    """Depthwise convolutions with ReLU6."""

    def __init__(self) -> None:
        super().__init__()
        self.stem = _conv(3, 16, 3, 2, act=nn.ReLU6)
        shapes = [(16, 16, 1), (16, 24, 2), (24, 24, 1), (24, 48, 2), (48, 48, 1), (48, 48, 1)]
        self.blocks = nn.Sequential(*[Inverted(*shape) for shape in shapes])
        self.last = _conv(48, 192, 1, act=nn.ReLU6)
        self.pool = nn.AdaptiveAvgPool2d(1)
        self.head = nn.Linear(192, 10)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        """Classify pictures."""
        return self.head(self.pool(self.last(self.blocks(self.stem(x)))).flatten(1))  # type: ignore[no-any-return]


class Inception(nn.Module):
    """Branches of several kernel sizes and an average pool, joined."""

    def __init__(self, inputs: int, width: int) -> None:
        super().__init__()
        self.one = _conv(inputs, width, 1)
        self.three = nn.Sequential(_conv(inputs, width, 1), _conv(width, width, 3))
        self.five = nn.Sequential(_conv(inputs, width, 1), _conv(width, width, 3), _conv(width, width, 3))
        self.pool = nn.Sequential(nn.AvgPool2d(3, 1, 1, count_include_pad=False), _conv(inputs, width, 1))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        """Join the branches."""
        return torch.cat([self.one(x), self.three(x), self.five(x), self.pool(x)], dim=1)


class InceptionNet(nn.Module):
    """Concatenations, max pools and average pools."""

    def __init__(self) -> None:
        super().__init__()
        self.stem = _conv(3, 32, 3, 2)
        self.first, self.second, self.third = Inception(32, 16), Inception(64, 24), Inception(96, 32)
        self.pool1, self.pool2 = nn.MaxPool2d(2), nn.MaxPool2d(2)
        self.average = nn.AdaptiveAvgPool2d(1)
        self.head = nn.Linear(128, 10)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        """Classify pictures."""
        x = self.third(self.pool2(self.second(self.pool1(self.first(self.stem(x))))))
        return self.head(self.average(x).flatten(1))  # type: ignore[no-any-return]


class Efficient(nn.Module):
    """EfficientNet's block: SiLU, and channels weighed by a sigmoid."""

    def __init__(self, inputs: int, outputs: int, stride: int) -> None:
        super().__init__()
        hidden = inputs * 4
        self.widen = _conv(inputs, hidden, 1, act=nn.SiLU)
        self.depthwise = _conv(hidden, hidden, 3, stride, groups=hidden, act=nn.SiLU)
        self.pool = nn.AdaptiveAvgPool2d(1)
        self.down, self.act = nn.Conv2d(hidden, hidden // 8, 1), nn.SiLU()
        self.up, self.gate = nn.Conv2d(hidden // 8, hidden, 1), nn.Sigmoid()
        self.narrow = _conv(hidden, outputs, 1, act=nn.Identity)
        self.residual = stride == 1 and inputs == outputs

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        """Run the block."""
        y = self.depthwise(self.widen(x))
        y = self.narrow(y * self.gate(self.up(self.act(self.down(self.pool(y))))))
        return x + y if self.residual else y  # type: ignore[no-any-return]


class EfficientNet(nn.Module):
    """SiLU and squeeze-and-excite."""

    def __init__(self) -> None:
        super().__init__()
        self.stem = _conv(3, 16, 3, 2, act=nn.SiLU)
        shapes = [(16, 16, 1), (16, 24, 2), (24, 24, 1), (24, 48, 2), (48, 48, 1)]
        self.blocks = nn.Sequential(*[Efficient(*shape) for shape in shapes])
        self.last = _conv(48, 192, 1, act=nn.SiLU)
        self.pool = nn.AdaptiveAvgPool2d(1)
        self.head = nn.Linear(192, 10)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        """Classify pictures."""
        return self.head(self.pool(self.last(self.blocks(self.stem(x)))).flatten(1))  # type: ignore[no-any-return]


class TextEncoder(nn.Module):
    """BERT's shape: embeddings of tokens and positions, post-norm blocks, a pooled head with tanh."""

    def __init__(self, width: int = 96, depth: int = 3, heads: int = 4) -> None:
        super().__init__()
        self.words = nn.Embedding(VOCABULARY, width)
        self.positions = nn.Parameter(torch.randn(1, TOKENS, width) * 0.5)
        self.norm = nn.LayerNorm(width)
        self.attentions = nn.ModuleList(nets.Attention(width, heads) for _ in range(depth))
        self.norms1 = nn.ModuleList(nn.LayerNorm(width) for _ in range(depth))
        self.ups = nn.ModuleList(nn.Linear(width, 4 * width) for _ in range(depth))
        self.acts = nn.ModuleList(nn.GELU() for _ in range(depth))
        self.downs = nn.ModuleList(nn.Linear(4 * width, width) for _ in range(depth))
        self.norms2 = nn.ModuleList(nn.LayerNorm(width) for _ in range(depth))
        self.pooler, self.tanh, self.head = nn.Linear(width, width), nn.Tanh(), nn.Linear(width, 4)

    def forward(self, tokens: torch.Tensor) -> torch.Tensor:
        """Classify a text."""
        x = self.norm(self.words(tokens) + self.positions)
        layers = zip(self.attentions, self.norms1, self.ups, self.acts, self.downs, self.norms2, strict=True)
        for attention, norm1, up, act, down, norm2 in layers:
            x = norm1(x + attention(x))
            x = norm2(x + down(act(up(x))))
        return self.head(self.tanh(self.pooler(x[:, 0])))  # type: ignore[no-any-return]


class Hybrid(nn.Module):
    """Convolutions, then attention over what they leave, then a convolution again, as in MobileViT."""

    def __init__(self, width: int = 64) -> None:
        super().__init__()
        self.stem = nn.Sequential(_conv(3, 16, 3, 2, act=nn.SiLU), _conv(16, 32, 3, 2, act=nn.SiLU))
        self.local = _conv(32, width, 3, 2, act=nn.SiLU)
        self.blocks = nn.Sequential(nets.Block(width, 4), nets.Block(width, 4))
        self.norm = nn.LayerNorm(width, eps=1e-6)
        self.project = _conv(width, width, 1, act=nn.SiLU)
        self.join = _conv(2 * width, width, 3, act=nn.SiLU)
        self.pool, self.head = nn.AdaptiveAvgPool2d(1), nn.Linear(width, 10)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        """Classify pictures."""
        x = self.local(self.stem(x))
        batch, width, height, columns = x.shape
        y = self.norm(self.blocks(x.flatten(2).transpose(1, 2)))
        y = self.project(y.transpose(1, 2).reshape(batch, width, height, columns))
        return self.head(self.pool(self.join(torch.cat([x, y], dim=1))).flatten(1))  # type: ignore[no-any-return]


class Bottleneck(nn.Module):
    """YOLO's cross-stage block."""

    def __init__(self, width: int) -> None:
        super().__init__()
        half = width // 2
        self.left, self.right = _conv(width, half, 1, act=nn.SiLU), _conv(width, half, 1, act=nn.SiLU)
        self.first, self.second = _conv(half, half, 3, act=nn.SiLU), _conv(half, half, 3, act=nn.SiLU)
        self.join = _conv(width, width, 1, act=nn.SiLU)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        """Run the block."""
        left = self.left(x)
        left = left + self.second(self.first(left))
        return self.join(torch.cat([left, self.right(x)], dim=1))  # type: ignore[no-any-return]


class Detector(nn.Module):
    """YOLO's shape: pyramid pooling, upsampling, two scales; boxes and scores for every place."""

    def __init__(self, classes: int = 8) -> None:
        super().__init__()
        self.stem, self.down1 = _conv(3, 16, 3, 2, act=nn.SiLU), _conv(16, 32, 3, 2, act=nn.SiLU)
        self.stage1, self.down2 = Bottleneck(32), _conv(32, 64, 3, 2, act=nn.SiLU)
        self.stage2, self.squeeze = Bottleneck(64), _conv(64, 32, 1, act=nn.SiLU)
        self.pool1, self.pool2, self.pool3 = nn.MaxPool2d(5, 1, 2), nn.MaxPool2d(5, 1, 2), nn.MaxPool2d(5, 1, 2)
        self.spread = _conv(128, 32, 1, act=nn.SiLU)
        self.up = nn.Upsample(scale_factor=2)
        self.merge = _conv(64, 32, 3, act=nn.SiLU)
        self.boxes = nn.ModuleList(nn.Conv2d(32, 4, 1) for _ in range(2))
        self.scores = nn.ModuleList(nn.Conv2d(32, classes, 1) for _ in range(2))

    def forward(self, x: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        """Find boxes and scores."""
        high = self.stage1(self.down1(self.stem(x)))
        low = self.squeeze(self.stage2(self.down2(high)))
        pool1 = self.pool1(low)
        pool2 = self.pool2(pool1)
        low = self.spread(torch.cat([low, pool1, pool2, self.pool3(pool2)], dim=1))
        high = self.merge(torch.cat([high, self.up(low)], dim=1))
        levels = (high, low)
        boxes = torch.cat([head(y).flatten(2) for head, y in zip(self.boxes, levels, strict=True)], dim=2)
        scores = torch.cat([head(y).flatten(2) for head, y in zip(self.scores, levels, strict=True)], dim=2)
        return boxes, torch.sigmoid(scores)


class Keywords(nn.Module):
    """DS-CNN for keywords: depthwise separable convolutions over a spectrogram."""

    def __init__(self, width: int = 64) -> None:
        super().__init__()
        self.stem = nn.Sequential(
            nn.Conv2d(1, width, (10, 4), (2, 2), (5, 1), bias=False), nn.BatchNorm2d(width), nn.ReLU()
        )
        self.blocks = nn.Sequential(
            *[nn.Sequential(_conv(width, width, 3, groups=width), _conv(width, width, 1)) for _ in range(4)]
        )
        self.pool, self.head = nn.AdaptiveAvgPool2d(1), nn.Linear(width, 12)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        """Name the keyword."""
        return self.head(self.pool(self.blocks(self.stem(x))).flatten(1))  # type: ignore[no-any-return]


class Temporal(nn.Module):
    """A residual block of dilated convolutions over time."""

    def __init__(self, width: int, dilation: int) -> None:
        super().__init__()
        self.first = nn.Conv1d(width, width, 3, padding=dilation, dilation=dilation, bias=False)
        self.norm1, self.act1 = nn.BatchNorm1d(width), nn.ReLU()
        self.second = nn.Conv1d(width, width, 1, bias=False)
        self.norm2, self.act2 = nn.BatchNorm1d(width), nn.ReLU()

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        """Run the block."""
        y = self.norm2(self.second(self.act1(self.norm1(self.first(x)))))
        return self.act2(x + y)  # type: ignore[no-any-return]


class Enhancer(nn.Module):
    """A temporal network that gives a mask for every frequency and frame, as speech enhancement does."""

    def __init__(self, frequencies: int = 64, width: int = 96) -> None:
        super().__init__()
        self.entry, self.norm, self.act = nn.Conv1d(frequencies, width, 1), nn.BatchNorm1d(width), nn.ReLU()
        self.blocks = nn.Sequential(*[Temporal(width, 1 << (index % 4)) for index in range(6)])
        self.exit, self.mask = nn.Conv1d(width, frequencies, 1), nn.Sigmoid()

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        """Weigh frequencies and frames."""
        return x * self.mask(self.exit(self.blocks(self.act(self.norm(self.entry(x))))))  # type: ignore[no-any-return]


def _pictures(size: int) -> Callable[[int, int], tuple[torch.Tensor, ...]]:
    return lambda count, seed: (nets.pictures(count, size, seed),)


def _tokens(count: int, seed: int) -> tuple[torch.Tensor, ...]:
    """Make texts whose words are as unevenly frequent as words are."""
    generator = torch.Generator().manual_seed(seed)
    frequency = 1 / torch.arange(1, VOCABULARY + 1)
    drawn = torch.multinomial(frequency, count * TOKENS, replacement=True, generator=generator)
    return (drawn.reshape(count, TOKENS),)


def _sound(count: int, frames: int, frequencies: int, seed: int) -> torch.Tensor:
    """Make log spectrograms: smooth in time and frequency, louder at low frequencies, of mean 0."""
    generator = torch.Generator().manual_seed(seed)
    noise = torch.randn(count, 1, frames, frequencies, generator=generator)
    smooth = F.avg_pool2d(noise, 5, 1, 2) * 4 + 0.3 * noise
    tilt = torch.linspace(1, -1, frequencies)
    return smooth + tilt


def _spectrograms(count: int, seed: int) -> tuple[torch.Tensor, ...]:
    return (_sound(count, 98, 40, seed),)


def _frames(count: int, seed: int) -> tuple[torch.Tensor, ...]:
    return (_sound(count, 100, 64, seed)[:, 0].transpose(1, 2).contiguous(),)


@dataclass(frozen=True)
class Network:
    """One of the twelve: what kind it is, how to make it, and data for it."""

    kind: str
    make: Callable[[], nn.Module]
    data: Callable[[int, int], tuple[torch.Tensor, ...]]


NETWORKS: dict[str, Network] = {
    "resnet": Network("cnn", nets.ResNet20, _pictures(32)),
    "mobilenet_v2": Network("cnn", MobileNetV2, _pictures(96)),
    "mobilenet_v3": Network("cnn", nets.MobileNet, _pictures(48)),
    "inception": Network("cnn", InceptionNet, _pictures(64)),
    "efficientnet": Network("cnn", EfficientNet, _pictures(96)),
    "vit": Network("transformer", lambda: nets.ViT(64, 8, 128, 4, 4, 10), _pictures(64)),
    "text": Network("transformer", TextEncoder, _tokens),
    "hybrid": Network("transformer", Hybrid, _pictures(96)),
    "detector": Network("detector", Detector, _pictures(96)),
    "unet": Network("segmentation", lambda: nets.UNet(16, 3, 5), _pictures(64)),
    "keywords": Network("audio", Keywords, _spectrograms),
    "enhancer": Network("audio", Enhancer, _frames),
}


def inputs(name: str, seed: int, count: int = 1) -> tuple[torch.Tensor, ...]:
    """Return arguments for a network, the same for the same seed."""
    return NETWORKS[name].data(count, seed)


def build(name: str) -> nn.Module:
    """Build a network, the same on every call."""
    torch.manual_seed(0)
    network = NETWORKS[name]
    model = network.make()
    norms = [module for module in model.modules() if isinstance(module, (nn.BatchNorm1d, nn.BatchNorm2d))]
    for norm in norms:
        nn.init.uniform_(norm.weight, 0.5, 1.5)
        nn.init.normal_(norm.bias, std=0.2)
        norm.momentum = None
        norm.reset_running_stats()
    for module in model.modules():
        if isinstance(module, nn.LayerNorm):
            nn.init.uniform_(module.weight, 0.5, 1.5)
            nn.init.normal_(module.bias, std=0.2)
    model.train()
    with torch.no_grad():
        for seed in range(2 if norms else 0):
            model(*network.data(8, 1000 + seed))
    return model.eval()
