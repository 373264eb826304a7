"""Does the predicted gain of INT8 hold the measured one, and is the interval narrow enough to decide by?

Twenty networks with random weights, small ones that lose included. INT8 is the hub's own (`compile --calibration-data`,
per tensor, min-max). The table of kernel costs is measured first, as a user's first compilation does. Then each network
is predicted before it is compiled, and both files are measured in turns, one thread, by the CPU time of the calling
thread: the mean of the fastest quarter. Everything runs on this machine; its kernel family is in the result.

    python benchmarks/hub/bench_predict.py [--only NAME ...] [--seconds 4] [--json FILE]
"""

from __future__ import annotations

import functools
import math
import os
import statistics
import sys
import tempfile
import time
import warnings
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
import onnxruntime
import torch
from torch import nn

from embedl_hub.core import HubContext
from embedl_hub.core.compile import ONNXRuntimeCompiler
from embedl_hub.core.device import Device, ONNXRuntimeConfig
from embedl_hub.machine.machine import open_machine
from embedl_hub.toolchains.onnxruntime.config import EmbedlONNXRuntimeConfig
from embedl_hub.toolchains.onnxruntime.predict import predict

sys.path.insert(0, str(Path(__file__).parents[1]))
from deploy import nets
from figures import Figure, bounded, rate
from report import Session, parser

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping, Sequence

LEAST_COVERED = 0.9
WIDEST = 0.25
_PICTURE = (3, 224, 224)
_ZOO = (
    "resnet18", "resnet50", "mobilenet_v2", "mobilenet_v3_small", "mobilenet_v3_large", "efficientnet_b0",
    "shufflenet_v2_x1_0", "squeezenet1_1", "regnet_y_400mf", "densenet121", "googlenet", "mnasnet0_5", "convnext_tiny",
    "swin_t",
)  # fmt: skip


class _Bert(nn.Module):
    """A text encoder of four blocks, from embeddings on."""

    def __init__(self) -> None:
        super().__init__()
        from transformers import BertConfig, BertModel  # noqa: PLC0415 - only this network needs it

        config = BertConfig(  # type: ignore[call-arg]
            vocab_size=1000, hidden_size=256, num_hidden_layers=4, num_attention_heads=4, intermediate_size=1024,
            attn_implementation="eager",
        )  # fmt: skip
        self.bert = BertModel(config, add_pooling_layer=False)  # type: ignore[no-untyped-call]
        self.head = nn.Linear(256, 2)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        """Classify embedded words."""
        hidden = self.bert.encoder(self.bert.embeddings(inputs_embeds=x))[0]
        return self.head(hidden[:, 0])  # type: ignore[no-any-return]


def _perceptron() -> nn.Module:
    return nn.Sequential(nn.Linear(64, 128), nn.ReLU(), nn.Linear(128, 64), nn.ReLU(), nn.Linear(64, 10))


NETWORKS: dict[str, tuple[Callable[[], nn.Module], tuple[int, ...]]] = {
    **{name: (functools.partial(nets._torchvision, name), _PICTURE) for name in _ZOO},  # noqa: SLF001 - our own file
    "vit_6x384": (nets._vit_224, _PICTURE),  # noqa: SLF001
    "unet": (lambda: nets.UNet(32, 3, 21), _PICTURE),
    "bert_4x256": (_Bert, (64, 256)),
    "resnet20": (nets.ResNet20, (3, 32, 32)),
    "toy": (nets.TOYS["toy"], (3, 16, 16)),
    "perceptron": (_perceptron, (64,)),
}


def export(name: str, folder: Path) -> Path:
    """Write a network as ONNX."""
    torch.manual_seed(0)
    build, shape = NETWORKS[name]
    path = folder / f"{name}.onnx"
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        torch.onnx.export(
            build().eval(), (torch.randn(1, *shape),), str(path), opset_version=17, dynamo=False, input_names=["x"],
            output_names=["y"],
        )  # fmt: skip
    return path


def in_turns(paths: Sequence[Path], shape: tuple[int, ...], seconds: float) -> list[float]:
    """Return the CPU time of each file in ms."""
    options = onnxruntime.SessionOptions()
    options.intra_op_num_threads = 1
    options.log_severity_level = 3
    sessions = [onnxruntime.InferenceSession(str(path), options) for path in paths]
    feed = {"x": np.random.default_rng(0).normal(size=(1, *shape)).astype(np.float32)}
    times: list[list[float]] = [[] for _ in paths]
    end = time.monotonic() + seconds
    while time.monotonic() < end or len(times[0]) < 8:
        for session, own in zip(sessions, times, strict=True):
            session.run(None, feed)
            start = time.thread_time_ns()
            session.run(None, feed)
            own.append((time.thread_time_ns() - start) / 1e6)
    return [statistics.fmean(sorted(own)[: max(len(own) // 4, 1)]) for own in times]


def _processor_time() -> float:
    """Return the seconds of processor time that this process and those it waited for have used."""
    used = os.times()
    return used.user + used.system + used.children_user + used.children_system


def one(ctx: HubContext, name: str, folder: Path, seconds: float) -> dict[str, Any]:
    """Predict, compile and measure a network."""
    path, shape = export(name, folder), NETWORKS[name][1]
    started = _processor_time()
    with open_machine(ctx, "here", ONNXRuntimeCompiler, ONNXRuntimeConfig, EmbedlONNXRuntimeConfig) as place:
        told = predict(ctx, place, path)
    took = _processor_time() - started
    data = {"x": np.random.default_rng(1).normal(size=(2, *shape)).astype(np.float32)}
    plain = ONNXRuntimeCompiler().run(ctx, path)
    int8 = ONNXRuntimeCompiler().run(ctx, path, calibration_data=data)
    float_ms, int8_ms = in_turns([plain.path.local(), int8.path.local()], shape, seconds)
    gain, measured = told.gain, float_ms / int8_ms
    print(
        f"{name:20} predicted {gain} measured {measured:.2f} {'' if gain.low <= measured <= gain.high else 'OUTSIDE'}",
        flush=True,
    )
    return {
        **told.to_dict(),
        "name": name,
        "measured": measured,
        "measured_float_ms": float_ms,
        "measured_int8_ms": int8_ms,
        "is_covered": gain.low <= measured <= gain.high,
        "predict_cpu_seconds": took,
    }


def figures(data: Mapping[str, Any]) -> list[Figure]:
    """Return coverage, width, error and time."""
    rows = data["networks"]
    covered = sum(row["is_covered"] for row in rows)
    right = sum((row["speedup"] > 1) == (row["measured"] > 1) for row in rows)
    width = statistics.median(math.sqrt(row["high"] / row["low"]) - 1 for row in rows)
    error = math.sqrt(statistics.fmean(math.log(row["speedup"] / row["measured"]) ** 2 for row in rows))
    cached = statistics.median(row["predict_cpu_seconds"] for row in rows if not row["measured_now"])
    first = data["table_cpu_seconds"]
    least = math.ceil(LEAST_COVERED * len(rows))
    return [
        rate("INT8 speed-up measured within the predicted interval", covered, len(rows))
        .required(f"at least {LEAST_COVERED:.0%}", covered >= least)
        .in_short(),
        bounded("half the interval, middle of the networks", "%", 100 * width, 5.0)
        .required(f"at most {WIDEST:.0%}", width <= WIDEST)
        .in_short(),
        bounded("prediction off the measured speed-up, root mean square", "%", 100 * error, 6.0),
        rate("INT8 pays, or does not, as predicted", right, len(rows)),
        bounded("processor time of a prediction with a table at hand, middle of the networks", "s", cached, cached / 2),
        bounded("processor time of a first prediction, table included", "s", first, first / 2),
    ]


def main() -> None:
    """Measure."""
    options = parser(__doc__)
    options.add_argument("--only", nargs="+", choices=list(NETWORKS), default=list(NETWORKS), help="some of them")
    options.add_argument("--seconds", type=float, default=4.0, help="for the turns of each network")
    arguments = options.parse_args()
    session = Session("predict", options, arguments)
    torch.set_num_threads(1)
    device = Device("here", provider_type="local", provider_config=ONNXRuntimeConfig(threads=1))
    with (
        tempfile.TemporaryDirectory() as name,
        HubContext("predict", [device], home=Path(name) / "home") as ctx,
    ):
        folder = Path(name)
        started = _processor_time()
        with open_machine(ctx, "here", ONNXRuntimeCompiler, ONNXRuntimeConfig, EmbedlONNXRuntimeConfig) as place:
            first = predict(ctx, place, export("perceptron", folder))
        data: dict[str, Any] = {
            "family": first.family,
            "runtime_version": first.runtime_version,
            "table_cpu_seconds": _processor_time() - started,
            "networks": [one(ctx, network, folder, arguments.seconds) for network in arguments.only],
        }
    packages = ("onnx", "onnxruntime", "torch", "torchvision", "transformers", "numpy")
    session.finish(data, figures(data), packages=packages, facts={"kernel family": data["family"], "threads": 1})


if __name__ == "__main__":
    main()
