"""What the three loops share: a small trained network with 4-bit weights, and digits to train it on with."""

import sys
from pathlib import Path

import torch
from torch import fx

sys.path.append(str(Path(__file__).resolve().parents[1] / "shared"))

import handwritten

from embedl_demo.digits import TRAINING, Batch, load_digits
from embedl_deploy import transform
from embedl_deploy.onnxruntime import ONNXRUNTIME
from embedl_deploy.quantize import Precision, QatRecipe, QuantConfig, TensorQuantConfig, quantize

RECIPE = QatRecipe.four_bits(distillation=0.0)  # the loops below have no teacher
BATCH = 50
STEPS = RECIPE.epochs * TRAINING // BATCH


def quantized() -> tuple[fx.GraphModule, Batch, Batch]:
    """Return a network with 4-bit weights, and digits to train and to test with."""
    torch.manual_seed(0)
    torch.set_num_threads(1)
    training, testing = load_digits()
    model = handwritten.network()
    handwritten.train(model, training, epochs=3, rate=0.01)
    example = (training[0][:1],)
    four_bits = QuantConfig(weight=TensorQuantConfig(precision=Precision.INT4))
    batches = torch.split(training[0][:256], 64)
    network = transform(model, example, ONNXRUNTIME).model
    return quantize(network, example, four_bits, batches, backend=ONNXRUNTIME), training, testing


def report(before: float, after: float) -> None:
    """Print what training gave back, and stop with an error if it was nothing."""
    print(f"quantized, 4-bit weights            {before:5.1f} %\ntrained with the pairs in place     {after:5.1f} %")
    if after <= before:
        sys.exit("training with the pairs in place must give accuracy back")
