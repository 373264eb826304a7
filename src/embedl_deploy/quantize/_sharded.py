"""Calibration data in shards, each on whoever is free; the sum is the single pass, to the last bit."""

import importlib
import io
import os
import secrets
from collections.abc import Callable, Iterable, Iterator
from functools import partial
from pathlib import Path
from typing import Any, Protocol

import torch
from torch import fx, nn

from embedl_deploy._extras import need
from embedl_deploy.errors import CalibrationError, QuantizationError
from embedl_deploy.quantize._calibrate import ForwardLoop, collect
from embedl_deploy.quantize._histogram import Calibration
from embedl_deploy.quantize._quantization import Quantization, put_quantization, quantization_of

_GRAPH = ("_graph", "_code", "_lineno_map", "_prologue_start")


def pack(model: nn.Module) -> bytes:
    record = quantization_of(model)
    assert isinstance(model, fx.GraphModule)
    place = {node: _Place(number) for number, node in enumerate(model.graph.nodes)}
    parts = {
        "nodes": [
            (node.name, node.op, node.target, *fx.node.map_arg((node.args, node.kwargs), place.__getitem__), node.type)
            for node in model.graph.nodes
        ],
        "codegen": model.graph._codegen,
        "state": {name: value for name, value in model.__dict__.items() if name not in (*_GRAPH, "meta")},
        "record": Quantization(record.placement, record.config, record.symmetric, record.groups),
        "name": type(model).__name__,
    }
    target = io.BytesIO()
    try:
        torch.save(parts, target)
    except Exception as exc:
        raise QuantizationError(
            f"this {parts['name']} cannot be sent to another process: {exc}. "
            "Functions and classes that it refers to must be importable there: no lambdas, nothing of a notebook."
        ) from exc
    return target.getvalue()


def unpack(data: bytes) -> fx.GraphModule:
    """Return the model that `pack` was given. Only for bytes of our own: reading them runs code."""
    parts = torch.load(io.BytesIO(data), weights_only=False)
    root = nn.Module()
    root.__dict__.update(parts["state"])
    graph = fx.Graph()
    nodes: list[fx.Node] = []
    for name, op, target, args, kwargs, kind in parts["nodes"]:
        nodes.append(graph.create_node(op, target, _as_nodes(args, nodes), _as_nodes(kwargs, nodes), name, kind))
    graph.set_codegen(parts["codegen"])
    model = fx.GraphModule(root, graph, parts["name"])
    # The constructor takes what the graph mentions; names and order are those of the original.
    model.__dict__.update(parts["state"])
    put_quantization(model, parts["record"])
    return model


class _Place(int):
    """The number of a node, where a node stood."""


def _as_nodes(value: Any, nodes: list[fx.Node]) -> Any:
    return fx.node.map_aggregate(value, lambda item: nodes[item] if isinstance(item, _Place) else item)


class Spread(Protocol):
    """Calls a function on every item, somewhere: ``map``, an executor's ``map``, `over_ray`."""

    def __call__(self, function: Callable[[Any], Any], items: Iterable[Any], /) -> Iterable[Any]:
        """Return the results, in any order."""
        ...


def collect_sharded(model: nn.Module, shards: Iterable[ForwardLoop], *, spread: Spread = map) -> Calibration:
    """Keep the statistics of every stub over data in shards, each run by a worker of its own.

    The result is the one of `collect` over all shards, to the last bit: workers compute with as many threads as this
    process does, and counts are added as whole numbers. Processors of another make may round otherwise.

    Args:
        model: What `insert_qdq` made; it is not changed. Workers get a copy, and need what it is made of installed.
        shards: For each worker the batches, or a function that runs batches through the model it is given, which
            then need not be loaded here.
        spread: Who works: ``ThreadPoolExecutor(...).map``, ``ProcessPoolExecutor(...).map``, ``over_ray()``, or
            ``map`` for one shard after the other.

    Raises:
        CalibrationError: There was no shard, a shard has no batch, or a batch does not fit.
        QuantizationError: The model has no pairs, or cannot be sent to another process.
    """
    work = partial(_collect_shard, pack(model), torch.get_num_threads())
    found: list[Calibration] = list(spread(work, shards))
    if not found:
        raise CalibrationError("there is no shard to calibrate with; give a list of lists or loaders of batches.")
    return found[0].merge(*found[1:])


def _collect_shard(packed: bytes, threads: int, shard: ForwardLoop) -> Calibration:
    before = torch.get_num_threads()
    # How a sum is split over threads decides how it is rounded.
    torch.set_num_threads(threads)
    try:
        return collect(unpack(packed), shard)
    finally:
        torch.set_num_threads(before)


def over_ray(address: str | None = None, *, cpus: float = 1.0) -> Spread:
    """Spread over the processors of a Ray cluster; one that this process has joined already is used as it is.

    Args:
        address: ``host:port`` of the cluster's head, ``auto`` for the one that this host belongs to, or None for a Ray
            on this machine alone.
        cpus: How many of a host's processors one item takes.

    Raises:
        MissingExtraError: Ray is not installed.
    """
    ray = need("ray")

    def spread(function: Callable[[Any], Any], items: Iterable[Any], /) -> Iterator[Any]:
        if not ray.is_initialized():
            _join(ray, address)
        # Once into the object store, from where each host fetches it once.
        sent = ray.put(function)
        call = ray.remote(num_cpus=cpus)(_call)
        waiting = [call.remote(sent, item) for item in items]
        try:
            while waiting:
                done, waiting = ray.wait(waiting, num_returns=1)
                yield ray.get(done[0])
        finally:
            for job in waiting:
                ray.cancel(job, force=True)

    return spread


def _join(ray: Any, address: str | None) -> None:
    # Nothing is reported to Ray's makers, and its advice about its own future is no warning of ours.
    os.environ.update(RAY_USAGE_STATS_ENABLED="0", RAY_ACCEL_ENV_VAR_OVERRIDE_ON_ZERO="0")
    has_token = "RAY_AUTH_TOKEN" in os.environ or (Path.home() / ".ray" / "auth_token").is_file()
    if address is None and not has_token:
        # Whoever reaches a Ray runs programs in it: this one takes only those who know its token.
        os.environ["RAY_AUTH_TOKEN"] = secrets.token_hex(32)
    if address is None or has_token:
        os.environ.setdefault("RAY_AUTH_MODE", "token")
    # Ray read the variables when it was imported.
    raylet: Any = importlib.import_module("ray._raylet")
    raylet.Config.initialize("")
    raylet.AuthenticationTokenLoader.instance().reset_cache()
    alone = {} if address is not None else {"include_dashboard": False}
    ray.init(address=address or "local", log_to_driver=False, logging_level="error", **alone)


def _call(function: Callable[[Any], Any], item: Any) -> Any:
    return function(item)
