"""Use a backend that came with another package."""

import torch
from torch import nn

from embedl_deploy import transform
from embedl_deploy.backend import set_backend

set_backend("clamp")
model = nn.Sequential(
    nn.Conv2d(3, 8, 3), nn.BatchNorm2d(8), nn.ReLU6(), nn.Dropout(), nn.Conv2d(8, 8, 3, groups=8), nn.ReLU()
).eval()
print(transform(model, (torch.randn(1, 3, 16, 16),)).report)
