"""Nets and devices for bisections: ends on this machine that differ in settings and in a file."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import onnx
from onnx import TensorProto, helper, numpy_helper

from embedl_hub.core import HubContext
from embedl_hub.core.device import Device, ONNXRuntimeConfig
from embedl_hub.core.profile import ONNXRuntimeProfiler
from embedl_hub.core.steps import keep_model, run_of
from support.models import residual_net, save

_QUICK: dict[str, Any] = {
    "iterations": 10,
    "min_seconds": 0.0,
    "max_warmup_seconds": 0.05,
    "layer_runs": 2,
    "threads": 1,
}


def device(name: str, **settings: Any) -> Device:
    """Return this machine under a name, with settings of its own."""
    return Device(name, provider_config=ONNXRuntimeConfig(**{**_QUICK, **settings}), lease_dir=None)


def with_weight(model: onnx.ModelProto, name: str, factor: float) -> onnx.ModelProto:
    """Return a model with one weight multiplied."""
    made = onnx.ModelProto()
    made.CopyFrom(model)
    for tensor in made.graph.initializer:
        if tensor.name == name:
            values = numpy_helper.to_array(tensor) * factor
            tensor.CopyFrom(numpy_helper.from_array(values.astype("float32"), name))
    return made


def slow_net(*, steps: int, size: int = 32) -> onnx.ModelProto:
    """Return a net of three convolutions; the last is followed by so many soft steps, which take long."""
    nodes, weights, tensor = [], [], "x"
    base = residual_net()
    kernel = numpy_helper.to_array(base.graph.initializer[0])[:3, :3]
    for number in range(3):
        weights.append(numpy_helper.from_array(kernel.copy(), f"w{number}"))
        nodes.append(helper.make_node("Conv", [tensor, f"w{number}"], [f"c{number}"], f"conv{number}", pads=[1] * 4))
        tensor = f"c{number}"
        for step in range(steps if number == 2 else 0):
            nodes.append(helper.make_node("Softplus", [tensor], [f"p{step}"], f"soft{step}"))
            tensor = f"p{step}"
        nodes.append(helper.make_node("Relu", [tensor], [f"r{number}"], f"relu{number}"))
        tensor = f"r{number}"
    shape = [1, 3, size, size]
    graph = helper.make_graph(
        nodes, "net", [helper.make_tensor_value_info("x", TensorProto.FLOAT, shape)],
        [helper.make_tensor_value_info(tensor, TensorProto.FLOAT, shape)], weights,
    )  # fmt: skip
    return helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=8)


def profiled(ctx: HubContext, model: onnx.ModelProto, where: str, folder: Path) -> str:
    """Profile a model on a device and return the run's id."""
    kept = keep_model(ctx, ONNXRuntimeProfiler, save(model, folder / f"{where}.onnx"))
    return run_of(ctx, ONNXRuntimeProfiler().run(ctx, kept, device=where)).id  # type: ignore[arg-type]
