"""From a model to a program: exported, its operators given to a backend, written; and told what became of each."""

from __future__ import annotations

import json
import time
from argparse import Namespace
from typing import Any, Callable, Dict, List, NamedTuple, Sequence, Tuple

import numpy as np
import torch
import torch.ao.quantization.fx._decomposed  # the operators of quantized programs, which loading one needs

from embedl_device.errors import BoardError, first_words
from embedl_device.exported import load_exported
from embedl_device.program import say
from embedl_device.readers import UnreadableError
from embedl_executorch.compiler.report import Reasons, described
from embedl_executorch.session import NAMES_METHOD, PROGRAM, Model, Settings, backends, runtime_version, torch_version

_PORTABLE = "portable"


class Source(NamedTuple):
    """A program to lower: names of its inputs and outputs, examples, and which nodes its modules stand for."""

    program: Any
    inputs: Sequence[str]
    outputs: Sequence[str]
    examples: Tuple[Any, ...]
    nodes: Dict[str, List[Dict[str, str]]]


def compile_file(arguments: Namespace, settings: Settings) -> Dict[str, Any]:
    """Make a program of a file, check it, and tell what became of each operator."""
    partitioner = _partitioners(arguments.backend)
    started = time.perf_counter()
    say(PROGRAM, "reading {}".format(arguments.model))
    source = _from_exported(arguments.model) if arguments.model.suffix == ".pt2" else _from_onnx(arguments.model)
    say(PROGRAM, "lowering to {}".format(arguments.backend))
    names = {"inputs": list(source.inputs), "outputs": list(source.outputs)}
    with Reasons() as reasons:
        edge = _lowered(source.program, partitioner(), json.dumps(names))
        rows = described(edge, source.nodes, reasons)
        made = _written(edge)
    arguments.output.write_bytes(made.buffer)
    report = rows.with_instructions(made)
    return {
        "inputs": _ends(source.inputs, source.examples),
        "output_names": list(source.outputs),
        "backend": arguments.backend,
        "nodes": [row._asdict() for row in report],
        "check": _check(arguments.output, settings, source),
        "size_bytes": arguments.output.stat().st_size,
        "seconds": round(time.perf_counter() - started, 3),
        "runtime_version": runtime_version(),
        "versions": {"executorch": runtime_version(), "torch": torch_version()},
    }


def _xnnpack() -> List[Any]:
    from executorch.backends.xnnpack.partition.xnnpack_partitioner import XnnpackPartitioner

    return [XnnpackPartitioner()]


_BACKENDS: Dict[str, Callable[[], List[Any]]] = {"xnnpack": _xnnpack, _PORTABLE: list}


def _partitioners(name: str) -> Callable[[], List[Any]]:
    if name not in _BACKENDS:
        raise BoardError(
            "There is no backend {!r} here; models are made for {}. The runtime of this Python has {}.".format(
                name, ", ".join(sorted(_BACKENDS)), ", ".join(backends())
            )
        )
    return _BACKENDS[name]


def _from_onnx(path: Any) -> Source:
    from embedl_executorch.compiler.graph import import_onnx

    imported = import_onnx(path)
    graph = imported.graph
    try:
        with torch.no_grad():
            program = torch.export.export(graph, imported.examples, strict=False)
    except Exception as error:
        raise BoardError("torch cannot export the model: {}".format(first_words(error))) from error
    nodes = {
        name: [{"name": node.name, "operator": node.operator, "module": node.module} for node in members]
        for name, members in graph.sources.items()
    }
    return Source(program, graph.input_names, graph.output_names, imported.examples, nodes)


def _from_exported(path: Any) -> Source:
    try:
        program = load_exported(path)
    except UnreadableError as error:
        raise BoardError(str(error)) from error
    signature = program.graph_signature
    inputs = [str(name) for name in signature.user_inputs]
    outputs = [str(name) for name in signature.user_outputs]
    values = {node.name: node.meta.get("val") for node in program.graph.nodes if node.op == "placeholder"}
    examples = tuple(_example(name, values.get(name)) for name in inputs)
    return Source(program, inputs, outputs, examples, {})


def _example(name: str, value: Any) -> torch.Tensor:
    if not isinstance(value, torch.Tensor):
        raise BoardError("Input {!r} of the exported program is no tensor, and a program takes tensors.".format(name))
    sizes = [int(size) for size in value.shape]
    if value.dtype.is_floating_point:
        return torch.randn(sizes, generator=torch.Generator().manual_seed(0)).to(value.dtype)
    return torch.ones(sizes, dtype=value.dtype)


def _lowered(program: Any, partitioners: List[Any], names: str) -> Any:
    from executorch.exir import EdgeCompileConfig, to_edge_transform_and_lower

    config = EdgeCompileConfig(_check_ir_validity=False)
    try:
        return to_edge_transform_and_lower(
            program, partitioner=partitioners, compile_config=config, constant_methods={NAMES_METHOD: names}
        )
    except Exception as error:
        raise BoardError("ExecuTorch refuses the model: {}".format(first_words(error))) from error


def _written(edge: Any) -> Any:
    try:
        return edge.to_executorch()
    except Exception as error:
        raise BoardError("ExecuTorch has no kernel for a part of the model: {}".format(first_words(error))) from error


def _ends(names: Sequence[str], values: Sequence[Any]) -> List[Dict[str, Any]]:
    return [
        {"name": name, "dtype": str(value.dtype).replace("torch.", ""), "shape": [int(size) for size in value.shape]}
        for name, value in zip(names, values)
    ]


def _check(path: Any, settings: Settings, source: Source) -> List[Dict[str, Any]]:
    """Return how far the program's answers are from torch's on made-up data."""
    feed = {name: value.numpy() for name, value in zip(source.inputs, source.examples)}
    found = Model(path, settings).run(feed)
    with torch.no_grad():
        expected = source.program.module()(*source.examples)
    if isinstance(expected, torch.Tensor):
        expected = (expected,)
    elif isinstance(expected, dict):
        expected = tuple(expected.values())
    rows = []
    for name, wanted in zip(source.outputs, expected):
        want, got = wanted.numpy().astype(np.float64), np.asarray(found[name], np.float64)
        span = float(want.max() - want.min()) if want.size else 0.0
        noise = float(np.max(np.abs(want - got))) if want.size else 0.0
        power = float(np.mean((want - got) ** 2)) if want.size else 0.0
        sqnr = None if not power or not want.size else float(10 * np.log10(np.mean(want**2) / power))
        rows.append({"name": name, "share_of_range": noise / span if span else noise, "sqnr_db": sqnr})
    return rows
