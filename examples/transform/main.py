"""Plan, look, switch a row off, apply, and write the report page."""

import sys
from pathlib import Path

import torch
from torch import nn

from embedl_deploy import apply_plan, make_plan
from embedl_deploy.backend import set_backend


class Block(nn.Module):
    """A residual block."""

    def __init__(self, width: int) -> None:
        super().__init__()
        self.conv1, self.bn1 = nn.Conv2d(width, width, 3, padding=1), nn.BatchNorm2d(width)
        self.conv2, self.bn2 = nn.Conv2d(width, width, 3, padding=1), nn.BatchNorm2d(width)
        self.relu = nn.ReLU(inplace=True)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        """Add what two convolutions make of the input to it."""
        y = self.relu(self.bn1(self.conv1(x)))
        out: torch.Tensor = self.relu(self.bn2(self.conv2(y)) + x)
        return out


def main(folder: Path) -> None:
    """Run the example."""
    set_backend("tensorrt")
    stem = [nn.Conv2d(3, 16, 7, 2, 3), nn.BatchNorm2d(16), nn.ReLU(), nn.MaxPool2d(3, 2, 1)]
    head = [nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Dropout(0.2), nn.Linear(16, 10)]
    model = nn.Sequential(*stem, Block(16), Block(16), *head).eval()
    plan = make_plan(model, (torch.randn(1, 3, 64, 64),))
    print(plan)
    result = apply_plan(plan.without("FlattenLinearToConv1x1Pattern"))
    print()
    print(result.report)
    print("Page:", result.report.save_html(folder / "report.html").name)


if __name__ == "__main__":
    main(Path(sys.argv[1]) if len(sys.argv) > 1 else Path.cwd())
