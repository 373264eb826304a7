"""Small networks for tests of the quantizer, with what transform makes of them."""

import torch
from torch import fx, nn

from embedl_deploy import transform
from embedl_deploy.backend import Backend


class Residual(nn.Module):
    """A stem, a residual block with and one without a downsample, a head."""

    def __init__(self, width: int = 16) -> None:
        super().__init__()
        self.stem, self.bn, self.relu = nn.Conv2d(3, width, 3, padding=1), nn.BatchNorm2d(width), nn.ReLU()
        self.pool = nn.MaxPool2d(2)
        self.conv1, self.bn1 = nn.Conv2d(width, width, 3, padding=1, bias=False), nn.BatchNorm2d(width)
        self.conv2, self.bn2 = nn.Conv2d(width, width, 3, padding=1, bias=False), nn.BatchNorm2d(width)
        # In two groups, so that it cannot become one convolution with the downsample.
        self.conv3, self.bn3 = nn.Conv2d(width, 2 * width, 3, 2, 1, groups=2, bias=False), nn.BatchNorm2d(2 * width)
        self.down, self.bn4 = nn.Conv2d(width, 2 * width, 1, 2, bias=False), nn.BatchNorm2d(2 * width)
        self.average, self.flatten, self.head = nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(2 * width, 16)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        """Classify."""
        x = self.pool(self.relu(self.bn(self.stem(x))))
        x = self.relu(self.bn2(self.conv2(self.relu(self.bn1(self.conv1(x))))) + x)
        x = self.relu(self.bn3(self.conv3(x)) + self.bn4(self.down(x)))
        out: torch.Tensor = self.head(self.flatten(self.average(x)))
        return out


class Mixer(nn.Module):
    """Normalization into two fully connected layers with a GELU between, and a residual: half a transformer block."""

    def __init__(self, width: int = 32) -> None:
        super().__init__()
        self.norm, self.up, self.down = nn.LayerNorm(width), nn.Linear(width, 64), nn.Linear(64, width)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        """Mix channels."""
        out: torch.Tensor = x + self.down(nn.functional.gelu(self.up(self.norm(x))))
        return out


def settled(model: nn.Module, *shape: int) -> nn.Module:
    """Give batch norms statistics that differ from their defaults."""
    with torch.no_grad():
        model.train()
        for part in model.modules():
            if isinstance(part, nn.BatchNorm2d):
                part.weight.uniform_(0.5, 1.5)
                part.bias.normal_(0, 0.3)
        for _ in range(3):
            model(torch.randn(shape))
    return model.eval()


def residual(backend: Backend) -> tuple[fx.GraphModule, torch.Tensor]:
    """Return a transformed residual network and a batch."""
    model = settled(Residual(), 8, 3, 16, 16)
    return transform(model, (torch.randn(2, 3, 16, 16),), backend).model, torch.randn(8, 3, 16, 16)


def ratio_db(reference: torch.Tensor, found: torch.Tensor) -> float:
    """Return the signal-to-noise ratio in dB."""
    noise = float((reference - found).double().pow(2).sum())
    return float("inf") if noise == 0 else float(10 * torch.log10(reference.double().pow(2).sum() / noise))


def shifted() -> nn.Sequential:
    """Return two convolutions whose weights all lie just above a step of four bits: rounding shifts every output."""
    model = nn.Sequential(nn.Conv2d(16, 16, 1), nn.ReLU(), nn.Conv2d(16, 16, 1)).eval()
    with torch.no_grad():
        for layer in (model[0], model[2]):
            assert isinstance(layer, nn.Conv2d)
            layer.weight.copy_((torch.randint(-6, 7, layer.weight.shape) + 0.45) / 40)
            layer.weight[:, 0] = 7 / 40
    return model
