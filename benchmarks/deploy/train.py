"""Train the small networks of the accuracy comparison and keep their weights outside the repository.

The learning rate falls to zero over the seconds given, so a short run is a complete one.

    python benchmarks/deploy/train.py [--only NET ...] [--device cpu|cuda] [--seconds 600] [--out FOLDER]
"""

from __future__ import annotations

import argparse
import itertools
import math
import sys
import time
from pathlib import Path

import torch
from torch import nn

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))
import cache
from deploy import data, nets

BATCH = 256
RATES = {"resnet20": 5e-3, "mobilenet": 4e-3, "vit": 1e-3, "segmentation": 3e-3}
DECAY = {"resnet20": 0.02, "mobilenet": 0.02, "vit": 0.05, "segmentation": 0.01}


def draw(
    name: str, pictures: torch.Tensor, targets: torch.Tensor, generator: torch.Generator
) -> tuple[torch.Tensor, torch.Tensor]:
    """Draw a training batch."""
    count = BATCH // 2 if name == "segmentation" else BATCH
    picked = torch.randint(0, len(pictures), (count,), generator=generator, device=pictures.device)
    inputs = data.normalize(pictures[picked])
    if name == "segmentation":
        return data.segmented(inputs, generator)
    return data.augment(inputs, generator), targets[picked]


def train(name: str, sheets: Path, device: str, seconds: float) -> nn.Module:
    """Train one network for a time."""
    torch.manual_seed(0)
    pictures, targets = (tensor.to(device) for tensor in data.train_set(sheets))
    model = nets.TRAINED[name]().to(device)
    generator = torch.Generator(device).manual_seed(0)
    optimizer = torch.optim.AdamW(model.parameters(), lr=RATES[name], weight_decay=DECAY[name])
    loss_of = nn.CrossEntropyLoss(label_smoothing=0.05)
    start = time.perf_counter()
    for step in itertools.count():
        done = (time.perf_counter() - start) / seconds
        if done >= 1:
            break
        warm = min(1.0, step / 300)
        for group in optimizer.param_groups:
            group["lr"] = RATES[name] * warm * (0.5 + 0.5 * math.cos(math.pi * done)) + 1e-6
        inputs, wanted = draw(name, pictures, targets, generator)
        with torch.autocast(device, dtype=torch.bfloat16, enabled=device == "cuda"):
            loss = loss_of(model(inputs), wanted)
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        if step % 500 == 0:
            seen = step * len(inputs) / len(pictures)
            print(f"{name}: step {step}, {seen:.1f} epochs, loss {loss.item():.3f}, {done:.0%}", flush=True)
    return model.eval()


def score(name: str, model: nn.Module, sheets: Path, device: str) -> float:
    """Return the share of test pictures, or of pixels, that are labeled right."""
    pictures, targets = data.test_set(sheets)
    right = total = 0
    generator = torch.Generator(device).manual_seed(1)
    with torch.no_grad():
        for inputs, wanted in zip(torch.split(pictures, 500), torch.split(targets, 500), strict=True):
            batch, classes = data.normalize(inputs.to(device)), wanted.to(device)
            if name == "segmentation":
                batch, classes = data.segmented(batch, generator)
            right += int((model(batch).argmax(1) == classes).sum())
            total += classes.numel()
    return right / total


def main() -> None:
    """Train what is asked for and save the weights."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--only", nargs="+", choices=nets.TRAINED, default=list(nets.TRAINED))
    parser.add_argument("--device", choices=("cpu", "cuda"), default="cpu")
    parser.add_argument("--seconds", type=float, default=600.0, help="training time of each network")
    parser.add_argument("--sheets", type=Path, help="the data set's folder, when it is here already")
    parser.add_argument("--out", type=Path, help="where the weights go; the cache unless told")
    options = parser.parse_args()
    sheets = options.sheets or data.fetch(cache.folder("cifar10"))
    out = options.out or cache.folder("weights")
    for name in options.only:
        model = train(name, sheets, options.device, options.seconds)
        print(f"{name}: {score(name, model, sheets, options.device):.2%} right on the test set", flush=True)
        state = {key: value.cpu() for key, value in model.state_dict().items()}
        torch.save(state, out / f"{name}.pt")


if __name__ == "__main__":
    main()
