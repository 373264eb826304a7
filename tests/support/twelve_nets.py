"""Twelve networks with random weights for proofs on a runtime: 5 CNNs, 3 transformers, a detector, a U-Net, 2 audio."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import torch
from deploy import nets
from torch import nn

from support.deploy_zoo import hugging_face, settle, yolo

Args = tuple[torch.Tensor, ...]


@dataclass(frozen=True)
class Net:
    """A network and what it reads: an example, and as many different samples as one likes."""

    model: nn.Module
    sample: Callable[[int], Args]  # inputs for a seed

    @property
    def example(self) -> Args:
        """Inputs to export with."""
        return self.sample(0)


class _Speech(nn.Module):
    """Keyword spotting on spectrograms: depthwise separable convolutions, as DS-CNN has them."""

    def __init__(self) -> None:
        super().__init__()
        self.stem = self._block(1, 32, (10, 4), stride=2)
        self.blocks = nn.Sequential(*(nn.Sequential(self._block(32, 32, (3, 3), groups=32), self._block(32, 32, (1, 1)))
                                      for _ in range(4)))  # fmt: skip
        self.pool = nn.AdaptiveAvgPool2d(1)
        self.head = nn.Linear(32, 12)

    @staticmethod
    def _block(into: int, out: int, kernel: tuple[int, int], stride: int = 1, groups: int = 1) -> nn.Sequential:
        pad = (kernel[0] // 2, kernel[1] // 2)
        conv = nn.Conv2d(into, out, kernel, stride, pad, groups=groups, bias=False)
        return nn.Sequential(conv, nn.BatchNorm2d(out), nn.ReLU())

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        scores: torch.Tensor = self.head(self.pool(self.blocks(self.stem(x))).flatten(1))
        return scores


class _Wave(nn.Module):
    """Sounds from raw samples: convolutions of one axis with pooling, as M5 has them."""

    def __init__(self) -> None:
        super().__init__()
        widths = (1, 16, 16, 32, 64)
        kernels = (80, 3, 3, 3)
        parts: list[nn.Module] = []
        for at, kernel in enumerate(kernels):
            conv = nn.Conv1d(widths[at], widths[at + 1], kernel, 4 if at == 0 else 1, kernel // 2, bias=False)
            parts += [conv, nn.BatchNorm1d(widths[at + 1]), nn.ReLU(), nn.MaxPool1d(4)]
        self.parts = nn.Sequential(*parts)
        self.head = nn.Linear(64, 10)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        scores: torch.Tensor = self.head(self.parts(x).mean(2))
        return scores


class _Plain(nn.Module):
    """A Hugging Face model that answers with one tensor."""

    def __init__(self, model: nn.Module, names: tuple[str, ...]) -> None:
        super().__init__()
        self.model = model
        self._names = names

    def forward(self, *args: torch.Tensor) -> torch.Tensor:
        answer: torch.Tensor = self.model(**dict(zip(self._names, args, strict=True)), return_dict=False)[0]
        return answer


def _seeded(seed: int) -> torch.Generator:
    return torch.Generator().manual_seed(seed)


def _pictures(make: Callable[[], nn.Module], size: int) -> Net:
    torch.manual_seed(0)
    model = make()
    if any(isinstance(part, nn.BatchNorm2d) for part in model.modules()):
        nets.settle(model, size)
    return Net(model.eval(), lambda seed: (nets.pictures(1, size, seed=seed),))


def _hugging_face(name: str) -> Net:
    model, kwargs = hugging_face(name)

    def sample(seed: int) -> Args:
        return tuple(
            torch.randn(value.shape, generator=_seeded(seed)) if value.is_floating_point()
            else value if int(value.max()) <= 1 else torch.randint(0, 200, value.shape, generator=_seeded(seed))
            for value in kwargs.values()
        )  # fmt: skip

    return Net(_Plain(model, tuple(kwargs)).eval(), sample)


def _sounds(make: Callable[[], nn.Module], *shape: int) -> Net:
    torch.manual_seed(0)
    model = make()

    def sample(seed: int) -> Args:
        return (torch.randn(1, *shape, generator=_seeded(seed)).cumsum(-1) / shape[-1] ** 0.5,)

    settle(model, torch.cat([sample(seed)[0] for seed in range(100, 116)]))
    return Net(model.eval(), sample)


def _detector() -> Net:
    model, (example,) = yolo()
    size = int(example.shape[-1])
    return Net(model.eval(), lambda seed: (nets.pictures(1, size, seed=seed),))


TWELVE: dict[str, Callable[[], Net]] = {
    "resnet20": lambda: _pictures(nets.ResNet20, 32),
    "mobilenet": lambda: _pictures(nets.MobileNet, 32),
    "resnet18": lambda: _pictures(lambda: nets._torchvision("resnet18"), 96),
    "mobilenet_v2": lambda: _pictures(lambda: nets._torchvision("mobilenet_v2"), 96),
    "convnext": lambda: _hugging_face("convnext"),
    "vit": lambda: _pictures(lambda: nets.ViT(32, 8, 64, 2, 2, 10), 32),
    "bert": lambda: _hugging_face("bert"),
    "swin": lambda: _hugging_face("swin"),
    "yolo": _detector,
    "unet": lambda: _pictures(lambda: nets.UNet(8, 3, 5), 32),
    "speech": lambda: _sounds(_Speech, 1, 49, 10),
    "wave": lambda: _sounds(_Wave, 1, 4000),
}
