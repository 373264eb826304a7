"""The networks of the INT8 comparisons: seven to time, with random weights, and four small enough to train here.

A network to time has random weights and batch norm statistics taken from pictures, so its activations are in range.
A network to train lists its links: where one layer's channels are read by others with nothing but positive scaling in
between. `rescaled` spreads the ranges along those links and leaves the function as it was.
"""

from __future__ import annotations

import copy
import itertools
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import torch
from deploy import text_data
from torch import nn
from torch.nn import functional as F  # noqa: N812

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

Slice = tuple[torch.Tensor, int]


@dataclass(frozen=True)
class Link:
    """Channels written by some tensors (scaled up along their axis) and read by others (scaled down)."""

    writers: Sequence[Slice]
    readers: Sequence[Slice]


def pictures(count: int, size: int, seed: int = 0) -> torch.Tensor:
    """Make pictures with the spectrum of photographs: noise whose power falls with frequency."""
    generator = torch.Generator().manual_seed(seed)
    noise = torch.randn(count, 3, size, size, generator=generator)
    grey = torch.randn(count, 1, size, size, generator=generator)
    rows = torch.fft.fftfreq(size)[:, None]
    columns = torch.fft.rfftfreq(size)[None, :]
    fall = 1 / (rows.square() + columns.square()).sqrt().clamp(min=1 / size)
    made = torch.fft.irfft2(torch.fft.rfft2(noise + 2 * grey) * fall, s=(size, size))
    return torch.div(made, made.std(dim=(1, 2, 3), keepdim=True))


def _conv_bn(inputs: int, outputs: int, kernel: int, stride: int = 1, groups: int = 1) -> nn.Sequential:
    return nn.Sequential(
        nn.Conv2d(inputs, outputs, kernel, stride, kernel // 2, groups=groups, bias=False), nn.BatchNorm2d(outputs)
    )


def _writes(conv_bn: nn.Module) -> list[Slice]:
    """Name what scales the channels that a convolution with batch norm writes."""
    assert isinstance(conv_bn, nn.Sequential)
    norm = conv_bn[1]
    assert isinstance(norm, nn.BatchNorm2d)
    return [(norm.weight, 0), (norm.bias, 0)]


def _weight(module: nn.Module) -> torch.Tensor:
    weight = module.weight
    assert isinstance(weight, torch.Tensor)
    return weight


class BasicBlock(nn.Module):
    """Two convolutions and a skip."""

    def __init__(self, inputs: int, outputs: int, stride: int) -> None:
        super().__init__()
        self.first = _conv_bn(inputs, outputs, 3, stride)
        self.second = _conv_bn(outputs, outputs, 3)
        self.skip = _conv_bn(inputs, outputs, 1, stride) if stride > 1 or inputs != outputs else nn.Identity()
        self.relu1 = nn.ReLU()
        self.relu2 = nn.ReLU()

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        """Add the convolved input to the input."""
        return self.relu2(self.second(self.relu1(self.first(x))) + self.skip(x))  # type: ignore[no-any-return]

    def links(self) -> list[Link]:
        """Scale between the two convolutions."""
        return [Link(_writes(self.first), [(_weight(self.second[0]), 1)])]


class ResNet20(nn.Module):
    """ResNet-20 for 32 x 32 pictures."""

    def __init__(self, classes: int = 10) -> None:
        super().__init__()
        self.stem = _conv_bn(3, 16, 3)
        self.relu = nn.ReLU()
        shapes = [(16, 16, 1)] * 3 + [(16, 32, 2)] + [(32, 32, 1)] * 2 + [(32, 64, 2)] + [(64, 64, 1)] * 2
        self.blocks = nn.Sequential(*[BasicBlock(*shape) for shape in shapes])
        self.pool = nn.AdaptiveAvgPool2d(1)
        self.head = nn.Linear(64, classes)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        """Classify pictures."""
        return self.head(self.pool(self.blocks(self.relu(self.stem(x)))).flatten(1))  # type: ignore[no-any-return]

    def links(self) -> list[Link]:
        """Scale inside every block."""
        return [link for block in self.blocks for link in block.links()]  # type: ignore[operator]


class SqueezeExcite(nn.Module):
    """Weigh the channels by what the whole picture says."""

    def __init__(self, channels: int) -> None:
        super().__init__()
        inner = max(8, channels // 4)
        self.pool = nn.AdaptiveAvgPool2d(1)
        self.down = nn.Conv2d(channels, inner, 1)
        self.relu = nn.ReLU()
        self.up = nn.Conv2d(inner, channels, 1)
        self.gate = nn.Hardsigmoid()

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        """Gate the channels."""
        return x * self.gate(self.up(self.relu(self.down(self.pool(x)))))  # type: ignore[no-any-return]


class Inverted(nn.Module):
    """MobileNetV3's block: widen, depthwise, squeeze-and-excite, narrow."""

    def __init__(self, inputs: int, outputs: int, kernel: int, stride: int, *, hard: bool, squeeze: bool) -> None:
        super().__init__()
        hidden = inputs * 4
        self.residual = stride == 1 and inputs == outputs
        self.hard = hard
        self.widen = _conv_bn(inputs, hidden, 1)
        self.depthwise = _conv_bn(hidden, hidden, kernel, stride, groups=hidden)
        self.squeeze = SqueezeExcite(hidden) if squeeze else nn.Identity()
        self.narrow = _conv_bn(hidden, outputs, 1)
        self.act1 = nn.Hardswish() if hard else nn.ReLU()
        self.act2 = nn.Hardswish() if hard else nn.ReLU()

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        """Run the block."""
        y = self.act2(self.depthwise(self.act1(self.widen(x))))
        y = self.narrow(self.squeeze(y))
        return x + y if self.residual else y  # type: ignore[no-any-return]

    def links(self) -> list[Link]:
        """Scale before the depthwise convolution, where ReLU lets it through."""
        if self.hard:
            return []
        return [Link(_writes(self.widen), [(_weight(self.depthwise[0]), 0)])]


class MobileNet(nn.Module):
    """A small MobileNetV3: depthwise convolutions, hard-swish, squeeze-and-excite."""

    STAGES = (
        # outputs, kernel, stride, blocks, hard-swish, squeeze
        (24, 3, 1, 2, False, False),
        (40, 5, 2, 3, False, True),
        (80, 3, 2, 3, True, False),
        (112, 3, 1, 2, True, True),
    )

    def __init__(self, classes: int = 10) -> None:
        super().__init__()
        self.stem = _conv_bn(3, 16, 3)
        self.act = nn.Hardswish()
        width, stages = 16, []
        for outputs, kernel, stride, count, hard, squeeze in self.STAGES:
            blocks = []
            for index in range(count):
                step = stride if index == 0 else 1
                blocks.append(Inverted(width, outputs, kernel, step, hard=hard, squeeze=squeeze))
                width = outputs
            stages.append(nn.Sequential(*blocks))
        self.stages = nn.Sequential(*stages)
        self.last = _conv_bn(width, 320, 1)
        self.act_last = nn.Hardswish()
        self.pool = nn.AdaptiveAvgPool2d(1)
        self.inner = nn.Linear(320, 256)
        self.act_inner = nn.Hardswish()
        self.head = nn.Linear(256, classes)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        """Classify pictures."""
        x = self.act_last(self.last(self.stages(self.act(self.stem(x)))))
        return self.head(self.act_inner(self.inner(self.pool(x).flatten(1))))  # type: ignore[no-any-return]

    def links(self) -> list[Link]:
        """Scale inside the ReLU blocks, and the trunk of each stage, which only adds."""
        links: list[Link] = []
        stages: list[Any] = list(self.stages)
        for index, stage in enumerate(stages):
            after = stages[index + 1][0].widen if index + 1 < len(stages) else self.last
            readers = [*[block.widen for block in stage][1:], after]
            written = [slice_ for block in stage for slice_ in _writes(block.narrow)]
            links.append(Link(written, [(_weight(reader[0]), 1) for reader in readers]))
            links.extend(link for block in stage for link in block.links())
        return links


class Attention(nn.Module):
    """Self-attention with one projection for queries, keys and values."""

    def __init__(self, width: int, heads: int) -> None:
        super().__init__()
        self.heads = heads
        self.qkv = nn.Linear(width, 3 * width)
        self.out = nn.Linear(width, width)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        """Attend."""
        batch, tokens, width = x.shape
        parts = self.qkv(x).reshape(batch, tokens, 3, self.heads, width // self.heads).permute(2, 0, 3, 1, 4)
        y = F.scaled_dot_product_attention(parts[0], parts[1], parts[2])
        return self.out(y.transpose(1, 2).reshape(batch, tokens, width))  # type: ignore[no-any-return]


class Block(nn.Module):
    """A pre-norm transformer block."""

    def __init__(self, width: int, heads: int) -> None:
        super().__init__()
        self.norm1 = nn.LayerNorm(width, eps=1e-6)
        self.attention = Attention(width, heads)
        self.norm2 = nn.LayerNorm(width, eps=1e-6)
        self.fc1 = nn.Linear(width, 4 * width)
        self.act = nn.GELU()
        self.fc2 = nn.Linear(4 * width, width)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        """Attend, then think."""
        x = x + self.attention(self.norm1(x))
        return x + self.fc2(self.act(self.fc1(self.norm2(x))))  # type: ignore[no-any-return]

    def links(self) -> list[Link]:
        """Scale what the norms hand to the linears, the usual home of outliers."""
        pairs = [(self.norm1, self.attention.qkv), (self.norm2, self.fc1)]
        return [Link([(norm.weight, 0), (norm.bias, 0)], [(linear.weight, 1)]) for norm, linear in pairs]


class ViT(nn.Module):
    """A vision transformer with a class token."""

    def __init__(self, size: int, patch: int, width: int, depth: int, heads: int, classes: int) -> None:
        super().__init__()
        self.embed = nn.Conv2d(3, width, patch, patch)
        self.token = nn.Parameter(torch.zeros(1, 1, width))
        self.position = nn.Parameter(torch.randn(1, (size // patch) ** 2 + 1, width) * 0.02)
        self.blocks = nn.Sequential(*[Block(width, heads) for _ in range(depth)])
        self.norm = nn.LayerNorm(width, eps=1e-6)
        self.head = nn.Linear(width, classes)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        """Classify pictures."""
        x = self.embed(x).flatten(2).transpose(1, 2)
        x = torch.cat([self.token.expand(x.shape[0], -1, -1), x], dim=1) + self.position
        return self.head(self.norm(self.blocks(x))[:, 0])  # type: ignore[no-any-return]

    def links(self) -> list[Link]:
        """Scale inside every block."""
        return [link for block in self.blocks for link in block.links()]  # type: ignore[operator]


class Double(nn.Module):
    """Two convolutions of a U-Net."""

    def __init__(self, inputs: int, outputs: int) -> None:
        super().__init__()
        self.first = _conv_bn(inputs, outputs, 3)
        self.relu1 = nn.ReLU()
        self.second = _conv_bn(outputs, outputs, 3)
        self.relu2 = nn.ReLU()

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        """Convolve twice."""
        return self.relu2(self.second(self.relu1(self.first(x))))  # type: ignore[no-any-return]

    def links(self) -> list[Link]:
        """Scale between the two."""
        return [Link(_writes(self.first), [(_weight(self.second[0]), 1)])]


class UNet(nn.Module):
    """A U-Net that goes up by transposed convolutions and joins by concatenation."""

    def __init__(self, width: int, depth: int, classes: int) -> None:
        super().__init__()
        widths = [width << level for level in range(depth + 1)]
        self.entry = Double(3, width)
        self.pools = nn.ModuleList(nn.MaxPool2d(2) for _ in range(depth))
        self.downs = nn.ModuleList(Double(a, b) for a, b in itertools.pairwise(widths))
        self.ups = nn.ModuleList(nn.ConvTranspose2d(b, a, 2, 2) for a, b in itertools.pairwise(widths))
        self.joins = nn.ModuleList(Double(2 * a, a) for a in widths[:-1])
        self.head = nn.Conv2d(width, classes, 1)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        """Label every pixel."""
        levels = [self.entry(x)]
        for pool, down in zip(self.pools, self.downs, strict=True):
            levels.append(down(pool(levels[-1])))
        y = levels.pop()
        for up, join in zip(reversed(self.ups), reversed(self.joins), strict=True):
            y = join(torch.cat([levels.pop(), up(y)], dim=1))
        return self.head(y)  # type: ignore[no-any-return]

    def links(self) -> list[Link]:
        """Scale inside every pair of convolutions."""
        doubles = [self.entry, *self.downs, *self.joins]
        return [link for double in doubles for link in double.links()]


def rescaled(model: nn.Module, seed: int = 0) -> nn.Module:
    """Return a copy with the same function and spread ranges: one channel in eight is sixteen times as large."""
    model = copy.deepcopy(model)
    generator = torch.Generator().manual_seed(seed)
    with torch.no_grad():
        for link in model.links():  # type: ignore[operator]
            tensor, axis = link.writers[0]
            scale = torch.exp2(torch.rand(tensor.shape[axis], generator=generator) * 2 - 1)
            scale[torch.rand(len(scale), generator=generator) < 1 / 8] = 16.0
            for written, at in link.writers:
                written.mul_(_along(scale, written, at))
            for read, at in link.readers:
                read.div_(_along(scale, read, at))
    return model


def _along(scale: torch.Tensor, like: torch.Tensor, axis: int) -> torch.Tensor:
    return scale.reshape([-1 if index == axis else 1 for index in range(like.dim())])


def _torchvision(name: str) -> nn.Module:
    """Build one of torchvision's networks."""
    if torch.version.cuda is None and not _KEPT and not hasattr(torch.ops.torchvision, "nms"):
        # torchvision's CUDA build registers fakes for these two; a CPU torch lacks the operators themselves.
        library = torch.library.Library("torchvision", "FRAGMENT")  # type: ignore[no-untyped-call]
        for operator in ("nms", "qnms"):
            library.define(f"{operator}(Tensor dets, Tensor scores, float iou_threshold) -> Tensor")  # type: ignore[no-untyped-call]
        _KEPT.append(library)
    import torchvision.models as zoo  # noqa: PLC0415

    model: nn.Module = zoo.get_model(name, weights=None)
    return model


_KEPT: list[Any] = []


def _torchvision_vit() -> nn.Module:
    """Build torchvision's vision transformer; its head starts at zero and would answer nothing."""
    _torchvision("resnet18")
    from torchvision.models import VisionTransformer  # noqa: PLC0415

    torch.manual_seed(0)
    model: nn.Module = VisionTransformer(224, 16, 6, 6, 384, 1536)
    nn.init.trunc_normal_(model.heads.head.weight, std=0.02)  # type: ignore[union-attr, arg-type]
    return model


def _vit_224() -> nn.Module:
    return ViT(224, 16, 384, 6, 6, 1000)


class TextEncoder(nn.Module):
    """A transformer over words; what it answers is the mean of its tokens through a classifier."""

    def __init__(self, vocabulary: int, words: int, width: int, depth: int, heads: int, classes: int) -> None:
        super().__init__()
        self.embed = nn.Embedding(vocabulary, width)
        self.position = nn.Parameter(torch.randn(1, words, width) * 0.02)
        self.blocks = nn.Sequential(*[Block(width, heads) for _ in range(depth)])
        self.norm = nn.LayerNorm(width, eps=1e-6)
        self.head = nn.Linear(width, classes)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        """Classify passages."""
        return self.head(self.norm(self.blocks(self.embed(x) + self.position)).mean(1))  # type: ignore[no-any-return]


class Detector(nn.Module):
    """One stage: a body that halves five times, a feature pyramid, and a shared head for classes and boxes."""

    def __init__(self, classes: int, anchors: int = 3, width: int = 64) -> None:
        super().__init__()
        widths = (32, 64, 128, 256, 256)
        steps = [_conv_bn(i, o, 3, 2) for i, o in zip((3, *widths), widths, strict=False)]
        self.body = nn.ModuleList(
            nn.Sequential(step, nn.ReLU(), BasicBlock(o, o, 1)) for step, o in zip(steps, widths, strict=True)
        )
        self.sideways = nn.ModuleList(nn.Conv2d(channels, width, 1) for channels in widths[2:])
        self.smooth = nn.ModuleList(nn.Sequential(_conv_bn(width, width, 3), nn.ReLU()) for _ in widths[2:])
        self.tower = nn.Sequential(_conv_bn(width, width, 3), nn.ReLU(), _conv_bn(width, width, 3), nn.ReLU())
        self.answer = nn.Conv2d(width, anchors * (classes + 4), 3, padding=1)
        self.per_anchor = classes + 4

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        """Return classes and box of every anchor; picking the best of them is left to the caller."""
        levels = []
        for step in self.body:
            x = step(x)
            levels.append(x)
        wide = [side(level) for side, level in zip(self.sideways, levels[2:], strict=True)]
        for place in (1, 0):
            wide[place] = wide[place] + F.interpolate(wide[place + 1], scale_factor=2.0, mode="nearest")
        found = [self.answer(self.tower(smooth(level))) for smooth, level in zip(self.smooth, wide, strict=True)]
        return torch.cat([one.permute(0, 2, 3, 1).reshape(one.shape[0], -1, self.per_anchor) for one in found], dim=1)


TIMED: dict[str, Callable[[], nn.Module]] = {
    "resnet50": lambda: _torchvision("resnet50"),
    "mobilenet_v2": lambda: _torchvision("mobilenet_v2"),
    "vit_6x384": _vit_224,
    "convnext_tiny": lambda: _torchvision("convnext_tiny"),
    "unet": lambda: UNet(32, 3, 21),
}
WORDS, VOCABULARY = 128, 8192
OTHER_TASKS: dict[str, Callable[[], nn.Module]] = {
    "text_6x256": lambda: TextEncoder(VOCABULARY, WORDS, 256, 6, 4, 4),
    "detector_320": lambda: Detector(20),
}
"""Timed too, but no classifiers of pictures."""
TOYS: dict[str, Callable[[], nn.Module]] = {"toy": lambda: nn.Sequential(_conv_bn(3, 16, 3), nn.ReLU(), _Pooled())}
PLAIN: dict[str, Callable[[], nn.Module]] = {
    "resnet50-plain": TIMED["resnet50"],
    "mobilenet_v2-plain": TIMED["mobilenet_v2"],
    "vit_6x384-plain": _torchvision_vit,
}
"""As torchvision draws them: batch norm sees a few passes of noise with its own momentum and keeps its affine part."""
TRAINED: dict[str, Callable[[], nn.Module]] = {
    "resnet20": ResNet20,
    "mobilenet": MobileNet,
    "vit": lambda: ViT(32, 4, 192, 6, 3, 10),
    "segmentation": lambda: UNet(16, 3, 5),
}
SIZES = {
    **dict.fromkeys((*TIMED, *PLAIN), 224),
    "detector_320": 320,
    "toy": 16,
    **dict.fromkeys(TRAINED, 32),
    "segmentation": 64,
}


def inputs_for(name: str, count: int, seed: int = 0) -> torch.Tensor:
    """Make inputs for a network to time: noise for the plain ones, of mean 0 for the one without batch norm.

    Passages of Python's standard library for the one that reads.
    """
    if name not in SIZES:
        rows, _ = text_data.passages(WORDS, VOCABULARY, is_test=seed != 0)
        return rows[:count]
    if name not in PLAIN:
        return pictures(count, SIZES[name], seed)
    draw = torch.randn if "vit" in name else torch.rand
    return draw(count, 3, SIZES[name], SIZES[name], generator=torch.Generator().manual_seed(seed))


class _Pooled(nn.Module):
    """A second convolution and a classifier."""

    def __init__(self) -> None:
        super().__init__()
        self.conv = _conv_bn(16, 16, 3, 2)
        self.relu = nn.ReLU()
        self.pool = nn.AdaptiveAvgPool2d(1)
        self.head = nn.Linear(16, 10)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.head(self.pool(self.relu(self.conv(x))).flatten(1))  # type: ignore[no-any-return]


def _passed(model: nn.Module, passes: int = 3) -> nn.Module:
    """Show batch norm a few batches of noise."""
    model.train()
    with torch.no_grad():
        for seed in range(passes if any(isinstance(module, nn.BatchNorm2d) for module in model.modules()) else 0):
            model(torch.rand(8, 3, 224, 224, generator=torch.Generator().manual_seed(1000 + seed)))
    return model.eval()


def settle(model: nn.Module, size: int) -> None:
    """Draw batch norm's affine part at random and take its statistics from pictures."""
    for module in model.modules():
        if isinstance(module, nn.BatchNorm2d):
            nn.init.uniform_(module.weight, 0.5, 1.5)
            nn.init.normal_(module.bias, std=0.2)
            module.momentum = None
            module.reset_running_stats()
    model.train()
    with torch.no_grad():
        for seed in range(2):
            model(pictures(8, size, seed=1000 + seed))


def timed(name: str) -> nn.Module:
    """Build a network to time, the same on every call."""
    torch.manual_seed(0)
    if name in PLAIN:
        return _passed(PLAIN[name]())
    model = (TIMED | OTHER_TASKS | TOYS)[name]()
    if any(isinstance(module, nn.BatchNorm2d) for module in model.modules()):
        settle(model, SIZES[name])
    return model.eval()
