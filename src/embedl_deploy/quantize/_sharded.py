"""Calibration data in shards, each on whoever is free; the sum is the single pass, to the last bit."""

import io
from collections.abc import Iterable
from functools import partial

import torch
from torch import fx, nn

from embedl_deploy._graph.saved import parts_of, restored
from embedl_deploy._spread import Spread
from embedl_deploy.errors import CalibrationError, QuantizationError
from embedl_deploy.quantize._calibrate import ForwardLoop, collect
from embedl_deploy.quantize._histogram import Calibration
from embedl_deploy.quantize._quantization import Quantization, put_quantization, quantization_of


def pack(model: nn.Module) -> bytes:
    record = quantization_of(model)
    assert isinstance(model, fx.GraphModule)
    # A worker needs no statistics and no samples of earlier data.
    trimmed = Quantization(record.placement, record.config, record.symmetric, record.groups)
    parts, target = parts_of(model, {}), io.BytesIO()
    try:
        torch.save((parts, trimmed), target)
    except Exception as exc:
        raise QuantizationError(
            f"this {parts['name']} cannot be sent to another process: {exc}. "
            "Functions and classes that it refers to must be importable there: no lambdas, nothing of a notebook."
        ) from exc
    return target.getvalue()


def unpack(data: bytes) -> fx.GraphModule:
    """Return the model that `pack` was given. Only for bytes of our own: reading them runs code."""
    parts, record = torch.load(io.BytesIO(data), weights_only=False)
    model = restored(parts)
    put_quantization(model, record)
    return model


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
