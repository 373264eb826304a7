"""Random small networks made of the supported layers; a seed always gives the same one."""

import random

import torch
from torch import nn
from torch.nn import functional

_ACTIVATIONS = (
    nn.ReLU, nn.ReLU6, nn.LeakyReLU, nn.ELU, nn.GELU, nn.SiLU, nn.Hardswish, nn.Hardsigmoid, nn.Sigmoid, nn.Tanh,
)  # fmt: skip


class Conv(nn.Module):
    """Convolution with random settings, perhaps batch norm, perhaps an activation."""

    def __init__(self, rng: random.Random, width: int) -> None:
        super().__init__()
        kernel = rng.choice([1, 3, 3, 5, 7])
        dilation = rng.choice([1, 1, 2])
        groups = rng.choice([1, 1, 2, width])
        pad = dilation * (kernel // 2)
        mode = rng.choice(["zeros", "zeros", "reflect"]) if pad < 4 else "zeros"
        self.conv = nn.Conv2d(
            width,
            width,
            kernel,
            padding=pad,
            dilation=dilation,
            groups=groups,
            bias=rng.random() < 0.5,
            padding_mode=mode,  # type: ignore[arg-type]
        )
        self.bn = nn.BatchNorm2d(width) if rng.random() < 0.7 else None
        self.act = rng.choice(_ACTIVATIONS)() if rng.random() < 0.7 else None

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        x = self.conv(x)
        x = x if self.bn is None else self.bn(x)
        return x if self.act is None else self.act(x)


class Skip(nn.Module):
    """A branch added to, concatenated with or multiplied by its input."""

    def __init__(self, rng: random.Random, width: int) -> None:
        super().__init__()
        self.body = nn.Sequential(*(Conv(rng, width) for _ in range(rng.randint(1, 2))))
        self.down = nn.Sequential(nn.Conv2d(width, width, 1), nn.BatchNorm2d(width)) if rng.random() < 0.3 else None
        self.how = rng.choice(["add", "add", "swapped", "in place", "cat", "gate"])
        self.mix = nn.Conv2d(2 * width, width, 1)
        self.relu = nn.ReLU(inplace=rng.random() < 0.5)
        self.active = rng.random() < 0.6

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        y = self.body(x)
        skip = x if self.down is None else self.down(x)
        match self.how:
            case "add":
                y = y + skip
            case "swapped":
                y = torch.add(skip, y)
            case "in place":
                y += skip
            case "cat":
                y = self.mix(torch.cat([y, skip], dim=1))
            case _:
                y = y * torch.sigmoid(skip)
        out: torch.Tensor = self.relu(y) if self.active else y
        return out


class SqueezeExcite(nn.Module):
    """Pool, squeeze, excite, scale."""

    def __init__(self, rng: random.Random, width: int) -> None:
        super().__init__()
        self.down, self.up = nn.Conv2d(width, 2, 1), nn.Conv2d(2, width, 1)
        self.gate = rng.choice([nn.Sigmoid, nn.Hardsigmoid])()
        self.written_out = rng.random() < 0.5

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        pooled = x.mean((2, 3), keepdim=True) if self.written_out else functional.adaptive_avg_pool2d(x, 1)
        out: torch.Tensor = x * self.gate(self.up(functional.relu(self.down(pooled))))
        return out


class Tokens(nn.Module):
    """Attention and a feed-forward part on the map as tokens."""

    def __init__(self, rng: random.Random, width: int) -> None:
        super().__init__()
        self.norm, self.norm2 = nn.LayerNorm(width), nn.LayerNorm(width)
        self.attention = nn.MultiheadAttention(width, 2, batch_first=True, bias=rng.random() < 0.7)
        self.feed = nn.Sequential(nn.Linear(width, 2 * width), nn.GELU(), nn.Dropout(0.1), nn.Linear(2 * width, width))
        self.written_out = rng.random() < 0.4

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        tokens = x.flatten(2).transpose(1, 2)
        y = self.norm(tokens)
        if self.written_out:
            scores = torch.matmul(y, y.transpose(-2, -1)) / 2.0
            tokens = tokens + torch.softmax(scores, -1) @ y
        else:
            tokens = tokens + self.attention(y, y, y, need_weights=False)[0]
        tokens = tokens + self.feed(self.norm2(tokens))
        out: torch.Tensor = tokens.transpose(1, 2).reshape(x.shape)
        return out


class UpDown(nn.Module):
    """Pooling down and a transposed convolution up again."""

    def __init__(self, rng: random.Random, width: int) -> None:
        super().__init__()
        pools = [nn.MaxPool2d(2), nn.AvgPool2d(2), nn.MaxPool2d(3, 2, 1), nn.MaxPool2d(5, 2, 2)]
        self.down = rng.choice(pools)
        self.up = nn.ConvTranspose2d(width, width, 2, 2)
        self.bn = nn.BatchNorm2d(width) if rng.random() < 0.5 else nn.Identity()

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return functional.leaky_relu(self.bn(self.up(self.down(x))), 0.1)


class Reused(nn.Module):
    """One convolution and one activation called several times."""

    def __init__(self, rng: random.Random, width: int) -> None:
        super().__init__()
        self.conv, self.act = nn.Conv2d(width, width, 3, padding=1), rng.choice(_ACTIVATIONS)()
        self.times = rng.randint(2, 3)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        for _ in range(self.times):
            x = self.act(self.conv(x))
        return x


class Head(nn.Module):
    """One of the common heads."""

    def __init__(self, rng: random.Random, width: int) -> None:
        super().__init__()
        self.how = rng.choice(["flatten", "view", "mean", "none"])
        self.pool, self.dropout = nn.AdaptiveAvgPool2d(1), nn.Dropout(0.2)
        self.fc = nn.Linear(width, 3)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        match self.how:
            case "flatten":
                x = torch.flatten(self.pool(x), 1)
            case "view":
                x = self.pool(x)
                x = x.view(x.size(0), -1)
            case "mean":
                x = x.mean([2, 3])
            case _:
                return x
        out: torch.Tensor = self.fc(self.dropout(x))
        return out


def random_network(seed: int) -> tuple[nn.Module, torch.Tensor]:
    """Build a network and an example input from a seed."""
    rng = random.Random(seed)  # noqa: S311 (tests)
    torch.manual_seed(seed)
    width = rng.choice([4, 6, 8])
    kinds = (Conv, Conv, Skip, Skip, SqueezeExcite, Tokens, UpDown, Reused)
    blocks: list[nn.Module] = [nn.Conv2d(3, width, rng.choice([3, 5, 7]), padding=2)]
    blocks += [rng.choice(kinds)(rng, width) for _ in range(rng.randint(1, 4))]
    model = nn.Sequential(*blocks, Head(rng, width))
    for module in model.modules():
        if isinstance(module, nn.BatchNorm2d):
            assert module.running_mean is not None
            assert module.running_var is not None
            module.running_mean.normal_(0, 0.2)
            module.running_var.uniform_(0.5, 1.5)
    size = rng.choice([8, 12])
    size = size + (4 - size) % 2
    return model.eval(), torch.randn(rng.choice([1, 2]), 3, size, size)
