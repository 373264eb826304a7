"""ONNX Runtime end to end: float and INT8, compiled, profiled, run and held against each other.

    python examples/own_onnx/main.py                              a made-up network on this machine
    python examples/own_onnx/main.py --model my.onnx --shape 1,3,224,224
    python examples/own_onnx/main.py --board user@board[:port]    on a board, by SSH

A board needs Python 3.8 or newer with numpy and onnxruntime; the hub brings the rest.
"""

from __future__ import annotations

import argparse
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import onnx
from onnx import TensorProto, helper, numpy_helper

from embedl_hub.core import HubContext
from embedl_hub.core.compile import ONNXRuntimeCompiler
from embedl_hub.core.device import (
    Device,
    EmbedlONNXRuntimeConfig,
    ONNXRuntimeConfig,
    SSHCommandRunner,
    SSHConfig,
)
from embedl_hub.core.invoke import ONNXRuntimeInvoker, Parity
from embedl_hub.core.profile import ONNXRuntimeProfiler, ONNXRuntimeProfilingResult

SAMPLES = 32


@dataclass(frozen=True)
class Report:
    """What the example found: two profiles, and how far INT8 is from float."""

    float_profile: ONNXRuntimeProfilingResult
    int8_profile: ONNXRuntimeProfilingResult
    parity: Parity


def make_model(path: Path) -> Path:
    """Write a small residual network with random weights."""
    random = np.random.default_rng(0)
    nodes, constants, tensor, into = [], [], "image", 3
    for number, out in enumerate((32, 64, 64, 64)):
        kernel = random.normal(size=(out, into, 3, 3)) * np.sqrt(2 / (9 * into))
        constants.append(numpy_helper.from_array(kernel.astype(np.float32), f"kernel{number}"))
        stride = [2, 2] if into != out else [1, 1]
        nodes.append(
            helper.make_node(
                "Conv",
                [tensor, f"kernel{number}"],
                [f"conv{number}"],
                name=f"conv{number}",
                pads=[1] * 4,
                strides=stride,
            )
        )
        if into == out:
            nodes.append(helper.make_node("Add", [f"conv{number}", tensor], [f"sum{number}"], name=f"sum{number}"))
        nodes.append(helper.make_node("Relu", [nodes[-1].output[0]], [f"relu{number}"], name=f"relu{number}"))
        tensor, into = f"relu{number}", out
    head = random.normal(size=(into, 10)) / np.sqrt(into)
    constants.append(numpy_helper.from_array(head.astype(np.float32), "head"))
    nodes += [
        helper.make_node("GlobalAveragePool", [tensor], ["pooled"], name="pool"),
        helper.make_node("Flatten", ["pooled"], ["flat"], name="flatten"),
        helper.make_node("MatMul", ["flat", "head"], ["scores"], name="classify"),
    ]
    graph = helper.make_graph(
        nodes,
        "residual",
        [helper.make_tensor_value_info("image", TensorProto.FLOAT, ["batch", 3, 64, 64])],
        [helper.make_tensor_value_info("scores", TensorProto.FLOAT, ["batch", 10])],
        constants,
    )
    onnx.save(helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=8), path)
    return path


def get_board(address: str, python: str) -> Device:
    """Return a device for ``user@host[:port]``."""
    user, _, rest = address.rpartition("@")
    host, _, port = rest.partition(":")
    config = SSHConfig(host=host, username=user or None, port=int(port) if port else None)
    settings = EmbedlONNXRuntimeConfig(python_path=python, threads=1)
    return Device("board", SSHCommandRunner(config), provider_type="embedl_onnxruntime", provider_config=settings)


def get_this_machine() -> Device:
    """Return this machine with settings of its own."""
    return Device("here", provider_type="local", provider_config=ONNXRuntimeConfig(threads=1))


def run_all(model: Path, shape: tuple[int, ...], device: Device, home: Path | None = None) -> Report:
    """Compile, profile and run a model with one float input, as float and as INT8."""
    name = onnx.load(model, load_external_data=False).graph.input[0].name
    samples = np.random.default_rng(1).normal(size=(SAMPLES, *shape[1:])).astype(np.float32)
    with HubContext("onnx runtime", devices=[device], home=home) as ctx:
        compiler = ONNXRuntimeCompiler(input_shape=shape, per_channel=True)
        plain = ONNXRuntimeCompiler(input_shape=shape).run(ctx, model)
        small = compiler.run(ctx, model, calibration_data={name: samples})
        profiles = [ONNXRuntimeProfiler().run(ctx, compiled) for compiled in (plain, small)]
        for title, compiled, profile in zip(("float", "INT8"), (plain, small), profiles, strict=True):
            median = profile.latency_median
            assert median is not None
            print(f"{title}: {compiled.path.size_bytes / 1e3:.0f} kB, {median.value:.3f} ms, {profile.verdict}")
            print(f"  {profile.verdict_reason}")
            for layer in sorted(profile.layers, key=lambda one: -(one.time_ms or 0))[:5]:
                print(f"  {layer.share or 0:6.1%} {layer.op_type:18} {', '.join(layer.source_nodes) or 'added'}")
        answer = ONNXRuntimeInvoker().run(ctx, small, {name: samples[: shape[0] * 8]})
        parity = answer.compare(model)
        print(f"INT8 against float: {parity}")
        print(f"runs stored in {ctx.home}")
    return Report(profiles[0], profiles[1], parity)


def main() -> None:
    """Run the example."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--model", type=Path)
    parser.add_argument("--shape", default="1,3,64,64")
    parser.add_argument("--board")
    parser.add_argument("--python", default="python3", help="the Python on the board")
    arguments = parser.parse_args()
    folder = Path(".embedl")
    folder.mkdir(exist_ok=True)
    device = get_board(arguments.board, arguments.python) if arguments.board else get_this_machine()
    shape = tuple(int(size) for size in arguments.shape.split(","))
    run_all(arguments.model or make_model(folder / "residual.onnx"), shape, device, home=folder)


if __name__ == "__main__":
    main()
