"""Networks with batch norm to try calibration data on: fifteen small ones of different families, and how each is fed.

Networks have preprocessing of several kinds, so that a fault of one is right for another. Six are for development
(``DEVELOPED``): thresholds may be looked at on them. The others are reported on.

    python benchmarks/deploy/calibration_nets.py [--only NET ...] [--device cpu|cuda] [--seconds 120]

trains what is missing and keeps the weights outside the repository; EfficientNet-Lite0 has weights of its own.
"""

from __future__ import annotations

import argparse
import hashlib
import itertools
import math
import sys
import time
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING

import torch
from torch import nn
from torch.nn import functional

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))
import cache
from deploy import data, nets

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Mapping

BATCH = 32
SECONDS = 120.0  # of training, for each network
TRAINED_ON = {"cifar10": 12_000, "fashion": 6_000, "mnist": 6_000, "motion": 6_000}
"""How many samples of a training set are used, at most."""
CIFAR = (0.4914, 0.4822, 0.4465), (0.2470, 0.2435, 0.2616)
IMAGENET = (0.485, 0.456, 0.406), (0.229, 0.224, 0.225)
MNIST = (0.1307,), (0.3081,)


@dataclass(frozen=True)
class Preparation:
    """How a sample of numbers from 0 to 1 becomes an input: scale, then (x - mean) / deviation, then channel order."""

    mean: tuple[float, ...] = (0.0,)
    deviation: tuple[float, ...] = (1.0,)
    scale: float = 1.0
    swapped: bool = False

    def __call__(self, samples: torch.Tensor) -> torch.Tensor:
        """Prepare samples of N x C x anything."""
        shape = (1, -1, *[1] * (samples.ndim - 2))
        mean, deviation = (
            torch.tensor(part, device=samples.device).reshape(shape) for part in (self.mean, self.deviation)
        )
        made = (samples * self.scale - mean) / deviation
        return made.flip(1) if self.swapped else made

    def but(self, **changes: object) -> Preparation:
        """Return another one."""
        return replace(self, **changes)  # type: ignore[arg-type]


def _block(inputs: int, outputs: int, act: nn.Module, kernel: int = 3, stride: int = 1, groups: int = 1) -> nn.Module:
    conv = nn.Conv2d(inputs, outputs, kernel, stride, kernel // 2, groups=groups, bias=False)
    return nn.Sequential(conv, nn.BatchNorm2d(outputs), act)


class _Head(nn.Module):
    def __init__(self, width: int, classes: int = 10) -> None:
        super().__init__()
        self.linear = nn.Linear(width, classes)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.linear(x.flatten(2).mean(2))  # type: ignore[no-any-return]


def vgg() -> nn.Module:
    """Build plain convolutions with batch norm and pooling."""
    layers: list[nn.Module] = []
    width = 3
    for outputs, pools in ((32, False), (32, True), (64, False), (64, True), (96, False), (96, False)):
        layers += [_block(width, outputs, nn.ReLU(), stride=1 if layers else 2), *([nn.MaxPool2d(2)] if pools else [])]
        width = outputs
    return nn.Sequential(*layers, _Head(width))


class _Dense(nn.Module):
    def __init__(self, inputs: int, growth: int) -> None:
        super().__init__()
        self.norm, self.conv = nn.BatchNorm2d(inputs), nn.Conv2d(inputs, growth, 3, padding=1, bias=False)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return torch.cat([x, self.conv(functional.relu(self.norm(x)))], 1)


def densenet() -> nn.Module:
    """Build blocks that concatenate; batch norm comes before the convolution."""
    layers: list[nn.Module] = [nn.Conv2d(3, 24, 3, 2, 1, bias=False)]
    width = 24
    for stage in range(3):
        for _ in range(4):
            layers.append(_Dense(width, 12))
            width += 12
        if stage < 2:
            layers += [nn.BatchNorm2d(width), nn.ReLU(), nn.Conv2d(width, width // 2, 1, bias=False), nn.AvgPool2d(2)]
            width //= 2
    return nn.Sequential(*layers, nn.BatchNorm2d(width), nn.ReLU(), _Head(width))


class _Inverted(nn.Module):
    def __init__(self, inputs: int, outputs: int, stride: int, act: Callable[[], nn.Module], *, squeeze: bool) -> None:
        super().__init__()
        hidden = inputs * 4
        parts = [_block(inputs, hidden, act(), 1), _block(hidden, hidden, act(), 3, stride, hidden)]
        if squeeze:
            parts.append(nets.SqueezeExcite(hidden))
        self.body = nn.Sequential(*parts, _block(hidden, outputs, nn.Identity(), 1))
        self.adds = stride == 1 and inputs == outputs

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        y = self.body(x)
        return x + y if self.adds else y  # type: ignore[no-any-return]


def efficientnet() -> nn.Module:
    """Build inverted residuals with SiLU and squeeze-and-excite."""
    shapes = ((16, 16, 1), (16, 24, 2), (24, 24, 1), (24, 48, 2), (48, 48, 1))
    blocks = [_Inverted(*shape, nn.SiLU, squeeze=True) for shape in shapes]
    return nn.Sequential(_block(3, 16, nn.SiLU(), stride=2), *blocks, _block(48, 160, nn.SiLU(), 1), _Head(160))


def mobilenet() -> nn.Module:
    """Build inverted residuals with hard-swish."""
    shapes = ((16, 24, 1), (24, 24, 1), (24, 40, 2), (40, 40, 1))
    blocks = [_Inverted(*shape, nn.Hardswish, squeeze=False) for shape in shapes]
    return nn.Sequential(
        _block(3, 16, nn.Hardswish(), stride=2), *blocks, _block(40, 128, nn.Hardswish(), 1), _Head(128)
    )


def digits() -> nn.Module:
    """Build inverted residuals with ReLU6 for grey pictures."""
    shapes = ((16, 16, 1), (16, 24, 2), (24, 24, 1), (24, 32, 2), (32, 32, 1))
    blocks = [_Inverted(*shape, nn.ReLU6, squeeze=False) for shape in shapes]
    return nn.Sequential(_block(1, 16, nn.ReLU6(), stride=2), *blocks, _block(32, 96, nn.ReLU6(), 1), _Head(96))


class _Preact(nn.Module):
    def __init__(self, inputs: int, outputs: int, stride: int) -> None:
        super().__init__()
        self.norm1, self.conv1 = nn.BatchNorm2d(inputs), nn.Conv2d(inputs, outputs, 3, stride, 1, bias=False)
        self.norm2, self.conv2 = nn.BatchNorm2d(outputs), nn.Conv2d(outputs, outputs, 3, 1, 1, bias=False)
        changes = stride > 1 or inputs != outputs
        self.skip = nn.Conv2d(inputs, outputs, 1, stride, bias=False) if changes else nn.Identity()

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        y = self.conv1(functional.relu(self.norm1(x)))
        return self.skip(x) + self.conv2(functional.relu(self.norm2(y)))  # type: ignore[no-any-return]


def preact(inputs: int = 3) -> nn.Module:
    """Build a wide residual network whose batch norm stands before each convolution."""
    shapes = ((32, 32, 1), (32, 32, 1), (32, 64, 2), (64, 64, 1), (64, 96, 2))
    stem = nn.Conv2d(inputs, 32, 3, 2, 1, bias=False)
    return nn.Sequential(stem, *[_Preact(*shape) for shape in shapes], nn.BatchNorm2d(96), nn.ReLU(), _Head(96))


class _Added(nn.Module):
    def __init__(self, body: nn.Module) -> None:
        super().__init__()
        self.body = body

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return x + self.body(x)  # type: ignore[no-any-return]


def convmixer() -> nn.Module:
    """Build patches, large depthwise kernels and GELU; batch norm stands after the activation."""
    width = 48

    def after(conv: nn.Module) -> nn.Module:
        return nn.Sequential(conv, nn.GELU(), nn.BatchNorm2d(width))

    layers = [after(nn.Conv2d(3, width, 2, 2))]
    for _ in range(3):
        layers += [
            _Added(after(nn.Conv2d(width, width, 5, padding=2, groups=width))),
            after(nn.Conv2d(width, width, 1)),
        ]
    return nn.Sequential(*layers, _Head(width))


class _Shuffle(nn.Module):
    def __init__(self, width: int) -> None:
        super().__init__()
        half = width // 2
        self.body = nn.Sequential(
            _block(half, half, nn.ReLU(), 1), _block(half, half, nn.Identity(), 3, 1, half),
            _block(half, half, nn.ReLU(), 1),
        )  # fmt: skip

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        kept, changed = x.chunk(2, 1)
        y = torch.stack([kept, self.body(changed)], 2)
        return y.flatten(1, 2)


def shufflenet() -> nn.Module:
    """Build halves that are shuffled."""
    layers: list[nn.Module] = [_block(3, 32, nn.ReLU(), stride=2)]
    for inputs, outputs in ((32, 64), (64, 128)):
        layers += [_Shuffle(inputs), _Shuffle(inputs), _block(inputs, outputs, nn.ReLU(), 3, 2)]
    return nn.Sequential(*layers, _Shuffle(128), _Head(128))


def motion() -> nn.Module:
    """Build a one-dimensional network for windows of six-axis motion."""

    def block(inputs: int, outputs: int, stride: int) -> nn.Module:
        conv = nn.Conv1d(inputs, outputs, 5, stride, 2, bias=False)
        return nn.Sequential(conv, nn.BatchNorm1d(outputs), nn.ReLU())

    return nn.Sequential(block(6, 32, 1), block(32, 48, 2), block(48, 64, 2), block(64, 64, 2), _Head(64, 7))


def strided() -> nn.Module:
    """Build plain strided convolutions with ELU."""
    widths = (3, 24, 48, 64, 96)
    pairs = itertools.pairwise(widths)
    return nn.Sequential(*[_block(*pair, nn.ELU(), stride=1 + (pair[0] > 3)) for pair in pairs], _Head(widths[-1]))


class _Scenes(nn.Module):
    """Context of a coarse branch over a fine one, for classes of pixels."""

    def __init__(self) -> None:
        super().__init__()
        self.fine = nn.Sequential(_block(3, 16, nn.ReLU(), stride=2), _block(16, 32, nn.ReLU()))
        self.coarse = nn.Sequential(_block(32, 48, nn.ReLU(), stride=2), _block(48, 32, nn.ReLU()))
        self.head = nn.Conv2d(32, 5, 1)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        fine = self.fine(x)
        whole = fine + functional.interpolate(self.coarse(fine), scale_factor=2.0)
        return functional.interpolate(self.head(whole), scale_factor=2.0)


@dataclass(frozen=True)
class Net:
    """A network to train."""

    build: Callable[[], nn.Module]
    data: str  # "cifar10", "fashion", "mnist" or "motion"
    prepare: Preparation
    segments: bool = False


NETS: dict[str, Net] = {
    "resnet20": Net(nets.ResNet20, "cifar10", Preparation(*CIFAR)),
    "shufflenet": Net(shufflenet, "cifar10", Preparation((0.5,) * 3, (0.5,) * 3)),
    "digits": Net(digits, "mnist", Preparation(*MNIST)),
    "strided": Net(strided, "cifar10", Preparation(*IMAGENET)),
    "scenes": Net(_Scenes, "cifar10", Preparation(*CIFAR), segments=True),
    # As Caffe's networks are fed: blue first, 0 to 255, less the mean.
    "caffe": Net(nets.ResNet20, "cifar10", Preparation((123.68, 116.78, 103.94), (1.0,) * 3, 255.0, swapped=True)),
    "mobilenet": Net(mobilenet, "cifar10", Preparation(*IMAGENET)),
    "vgg": Net(vgg, "cifar10", Preparation(*CIFAR)),
    "densenet": Net(densenet, "cifar10", Preparation()),
    "efficientnet": Net(efficientnet, "cifar10", Preparation((0.5,) * 3, (0.5,) * 3)),
    "unet": Net(lambda: nets.UNet(8, 2, 5), "cifar10", Preparation(*CIFAR), segments=True),
    "preact": Net(preact, "cifar10", Preparation((123.68, 116.78, 103.94), (1.0,) * 3, 255.0, swapped=True)),
    "convmixer": Net(convmixer, "cifar10", Preparation(*IMAGENET)),
    "fashion": Net(lambda: preact(1), "fashion", Preparation()),
    "motion": Net(motion, "motion", Preparation()),
}
DEVELOPED = ("resnet20", "shufflenet", "digits", "strided", "scenes", "caffe")


def augmented(samples: torch.Tensor, generator: torch.Generator, kind: str) -> torch.Tensor:
    """Shift a batch at random, and flip pictures that may be flipped; motion stays as it is."""
    if kind == "motion":
        return samples
    count, side, device = len(samples), samples.shape[-1], samples.device
    padded = functional.pad(samples, (3, 3, 3, 3), mode="reflect" if kind == "cifar10" else "constant")
    at = torch.randint(0, 7, (2, count, 1), generator=generator, device=device)
    rows = (at[0] + torch.arange(side, device=device))[:, None, :, None]
    columns = (at[1] + torch.arange(side, device=device))[:, None, None, :]
    if kind != "mnist":
        flip = torch.rand(count, 1, 1, 1, generator=generator, device=device) < 0.5
        columns = torch.where(flip, columns.flip(3), columns)
    batch = torch.arange(count, device=device)[:, None, None, None]
    channel = torch.arange(samples.shape[1], device=device)[None, :, None, None]
    return padded[batch, channel, rows, columns]


def train(
    name: str, samples: torch.Tensor, targets: torch.Tensor, device: str, seconds: float, seed: int = 0
) -> nn.Module:
    """Train one network for a time; samples are numbers from 0 to 1, or bytes."""
    torch.manual_seed(seed)
    net = NETS[name]
    samples, targets = samples.to(device), targets.to(device)
    model = net.build().to(device)
    generator = torch.Generator(device).manual_seed(seed)
    optimizer = torch.optim.AdamW(model.parameters(), lr=3e-3, weight_decay=0.02)
    loss_of = nn.CrossEntropyLoss(label_smoothing=0.05)
    size = BATCH if device == "cpu" else 4 * BATCH
    began = time.perf_counter()
    for step in itertools.count():
        done = (time.perf_counter() - began) / seconds
        if done >= 1:
            break
        optimizer.param_groups[0]["lr"] = 3e-3 * min(1.0, step / 100) * (0.5 + 0.5 * math.cos(math.pi * done)) + 1e-6
        picked = torch.randint(0, len(samples), (size,), generator=generator, device=device)
        drawn, wanted = as_numbers(samples[picked]), targets[picked]
        drawn = augmented(drawn, generator, net.data)
        if net.segments:
            drawn, wanted = data.segmented(drawn, generator)
        loss = loss_of(model(net.prepare(drawn)), wanted)
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
    print(f"{name}: {step} steps, loss {loss.item():.3f}", flush=True)
    return model.eval()


def as_numbers(samples: torch.Tensor) -> torch.Tensor:
    """Return bytes as numbers from 0 to 1, and numbers as they are."""
    return samples.float() / 255 if samples.dtype == torch.uint8 else samples


def trained(name: str) -> nn.Module:
    """Return a network with the weights of the cache."""
    path = cache.folder("calibration") / f"{name}.pt"
    if not path.exists():
        sys.exit(f"there are no weights of {name}; train them with benchmarks/deploy/calibration_nets.py.")
    model = NETS[name].build()
    model.load_state_dict(torch.load(path, weights_only=True))
    return model.eval()


def train_missing(
    names: Iterable[str], device: str = "cpu", seconds: float = SECONDS, seed: int = 0,
    packed: Mapping[str, tuple[torch.Tensor, torch.Tensor]] | None = None, out: Path | None = None,
) -> None:  # fmt: skip
    """Train the networks that have no weights in the cache yet."""
    out = out or cache.folder("calibration")
    for name in names:
        if (out / f"{name}.pt").exists():
            continue
        kind = NETS[name].data
        if packed is None:
            from deploy.calibration_data import training_set  # noqa: PLC0415

            samples, targets = training_set(kind, TRAINED_ON[kind])
        else:
            samples, targets = packed[kind]
        model = train(name, samples, targets, device, seconds, seed)
        torch.save({key: value.cpu() for key, value in model.state_dict().items()}, out / f"{name}.pt")


def digest(name: str) -> str:
    """Return what tells the weights of a network from those of another training."""
    return hashlib.sha256((cache.folder("calibration") / f"{name}.pt").read_bytes()).hexdigest()[:12]


def main() -> None:
    """Train what is missing."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--only", nargs="+", choices=NETS, default=list(NETS))
    parser.add_argument("--device", choices=("cpu", "cuda"), default="cpu")
    parser.add_argument("--seconds", type=float, default=SECONDS, help="training time of each network")
    parser.add_argument("--seed", type=int, default=0, help="of the weights and of the order of samples")
    parser.add_argument("--data", type=Path, help="a file with the training sets, when they were packed before")
    parser.add_argument("--out", type=Path, help="where the weights go; the cache unless told")
    options = parser.parse_args()
    packed = torch.load(options.data, weights_only=True) if options.data else None
    train_missing(options.only, options.device, options.seconds, options.seed, packed, options.out)


if __name__ == "__main__":
    main()
