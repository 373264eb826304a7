"""Mixed precision to a goal: quantize as much as a metric of one's own allows, and leave the rest in float.

Weights of four bits with one scale each cost this network accuracy. With `goal=MaxDrop(...)` layers stay float, the
most expensive first, until the metric is at most so far below the float model's; those not needed are put back.

    python examples/mixed_precision/main.py
"""

import sys
import tempfile
from pathlib import Path

import onnxruntime
import torch
from torch import nn

sys.path.append(str(Path(__file__).resolve().parents[1] / "shared"))

import handwritten

from embedl_demo.digits import load_digits, share_right
from embedl_deploy import transform
from embedl_deploy.export import export_onnx
from embedl_deploy.onnxruntime import ONNXRUNTIME
from embedl_deploy.quantize import (
    MaxDrop,
    Precision,
    QuantConfig,
    TensorQuantConfig,
    quantization_of,
    quantize,
    sensitivity,
)

DROP = 1.0


def main() -> None:
    """Print the accuracy in float, quantized throughout, and within the goal."""
    torch.manual_seed(1)
    torch.set_num_threads(1)
    (images, labels), testing = load_digits()
    # The goal is judged on digits that nothing was trained with, and the result on others still.
    training, held_out = (images[:3000], labels[:3000]), (images[3000:], labels[3000:])
    model = handwritten.network()
    handwritten.train(model, training, epochs=5, rate=0.01)
    example = (training[0][:1],)
    network = transform(model, example, ONNXRUNTIME).model
    batches = torch.split(training[0][:512], 64)
    four_bits = QuantConfig(weight=TensorQuantConfig(precision=Precision.INT4))

    def metric(candidate: nn.Module) -> float:
        return handwritten.accuracy(candidate, held_out)

    whole = quantize(network, example, four_bits, forward_loop=batches, backend=ONNXRUNTIME)
    print(sensitivity(whole, (batches[0],)))
    mixed = quantize(
        network, example, four_bits, forward_loop=batches, backend=ONNXRUNTIME, goal=MaxDrop(metric, drop=DROP)
    )
    search = quantization_of(mixed).search
    assert search is not None
    print(search)
    with tempfile.TemporaryDirectory() as folder:
        path = export_onnx(mixed, example, Path(folder) / "mixed.onnx", dynamic_batch=True)
        session = onnxruntime.InferenceSession(path, providers=["CPUExecutionProvider"])
        (scores,) = session.run(None, {session.get_inputs()[0].name: testing[0].numpy()})
    print(f"{'on the test set: float':<40} {handwritten.accuracy(network, testing):5.1f} %")
    print(f"{'4-bit weights in every layer':<40} {handwritten.accuracy(whole, testing):5.1f} %")
    print(
        f"{f'4-bit weights but for {len(search.islands)} layer(s)':<40} {handwritten.accuracy(mixed, testing):5.1f} %"
    )
    print(f"{'the same file in ONNX Runtime':<40} {share_right(scores, testing[1]):5.1f} %")
    assert search.met, "the search must reach the goal"


if __name__ == "__main__":
    main()
