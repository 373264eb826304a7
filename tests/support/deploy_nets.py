"""Small networks for tests, each with one property worth its name."""

import torch
from torch import nn
from torch.nn import functional


class ConvBNAct(nn.Module):
    """Convolution, batch norm, activation."""

    def __init__(self, act: nn.Module | None = None, width: int = 8, groups: int = 1) -> None:
        super().__init__()
        self.conv = nn.Conv2d(3, width, 3, padding=1, groups=groups)
        self.bn = nn.BatchNorm2d(width)
        self.act = act if act is not None else nn.ReLU()

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        out: torch.Tensor = self.act(self.bn(self.conv(x)))
        return out


class Residual(nn.Module):
    """A residual block that reuses its ReLU, with the operands of the add in either order."""

    def __init__(self, *, swapped: bool = False, inplace: bool = True) -> None:
        super().__init__()
        self.stem = nn.Conv2d(3, 8, 1)
        self.conv1 = nn.Conv2d(8, 8, 3, padding=1)
        self.bn1 = nn.BatchNorm2d(8)
        self.conv2 = nn.Conv2d(8, 8, 3, padding=1)
        self.bn2 = nn.BatchNorm2d(8)
        self.relu = nn.ReLU(inplace=inplace)
        self.swapped = swapped

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        skip = self.stem(x)
        out = self.bn2(self.conv2(self.relu(self.bn1(self.conv1(skip)))))
        out = skip + out if self.swapped else out + skip
        result: torch.Tensor = self.relu(out)
        return result


class Head(nn.Module):
    """Convolution, global pooling, flatten in one of its spellings, linear."""

    def __init__(self, spelling: str = "flatten", pool: int = 1) -> None:
        super().__init__()
        self.conv = nn.Conv2d(3, 8, 3, padding=1)
        self.pool = nn.AdaptiveAvgPool2d(pool)
        self.dropout = nn.Dropout(0.2)
        self.fc = nn.Linear(8 * pool * pool, 4)
        self.spelling = spelling

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        x = self.pool(self.conv(x))
        match self.spelling:
            case "flatten":
                x = torch.flatten(x, 1)
            case "view":
                x = x.view(x.size(0), -1)
            case _:
                x = x.reshape(x.shape[0], -1)
        out: torch.Tensor = self.fc(self.dropout(x))
        return out


class Functional(nn.Module):
    """The same layers written as functions on parameters."""

    def __init__(self) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.randn(8, 3, 3, 3))
        self.bias = nn.Parameter(torch.randn(8))
        self.head = nn.Parameter(torch.randn(4, 8))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        x = functional.relu(functional.conv2d(x, self.weight, self.bias, padding=1))
        x = functional.adaptive_avg_pool2d(x, 1)
        return functional.linear(torch.flatten(x, 1), self.head)


class Branching(nn.Module):
    """Has a branch on a tensor's values: no graph."""

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        if x.sum() > 0:
            return x * 2
        return x


class WithBranch(nn.Module):
    """A traceable network around a part that is not."""

    def __init__(self) -> None:
        super().__init__()
        self.first = ConvBNAct()
        self.odd = Branching()
        self.second = nn.Conv2d(8, 4, 1)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        out: torch.Tensor = self.second(self.odd(self.first(x)))
        return out


def image(batch: int = 2, size: int = 16) -> torch.Tensor:
    """Make an example input."""
    return torch.randn(batch, 3, size, size, generator=torch.Generator().manual_seed(1))


def warm(model: nn.Module) -> nn.Module:
    """Give batch norms real statistics, and put the model in eval mode."""
    generator = torch.Generator().manual_seed(2)
    for module in model.modules():
        if isinstance(module, nn.BatchNorm1d | nn.BatchNorm2d | nn.BatchNorm3d):
            assert module.running_mean is not None
            assert module.running_var is not None
            module.running_mean.normal_(0, 0.2, generator=generator)
            module.running_var.uniform_(0.5, 1.5, generator=generator)
    return model.eval()


def kinds(model: nn.Module) -> list[str]:
    """List the types of the modules a graph calls, in order."""
    assert isinstance(model, torch.fx.GraphModule)
    return [type(model.get_submodule(str(n.target))).__name__ for n in model.graph.nodes if n.op == "call_module"]
