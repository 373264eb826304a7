"""Calibration and batch norm over the processes of `torch.distributed`: all have the same numbers, to the last bit."""

from typing import Any

import torch
from torch import distributed, nn

from embedl_deploy.errors import CalibrationError
from embedl_deploy.nn import QuantizedConv
from embedl_deploy.quantize._histogram import Calibration, Histogram
from embedl_deploy.quantize._insert import layers_of


def has_ranks() -> bool:
    """Say whether this process is one of several."""
    return distributed.is_available() and distributed.is_initialized() and distributed.get_world_size() > 1


def merge_ranks(calibration: Calibration | CalibrationError, group: Any = None) -> Calibration:
    """Return the statistics of all processes; every process must call this, and gets the same.

    Args:
        calibration: What this process found in its part of the data, or why it found nothing: then all raise that.
        group: A process group; `None` for all processes.

    Raises:
        CalibrationError: One of the processes had no data, or they calibrated different models.
    """
    sent: object = str(calibration)
    if isinstance(calibration, Calibration):
        sent = {name: histogram.to_state() for name, histogram in calibration.statistics.items()}
    found: list[Any] = [None] * distributed.get_world_size(group)
    distributed.all_gather_object(found, sent, group=group)
    for rank, part in enumerate(found):
        if isinstance(part, str):
            raise CalibrationError(f"process {rank} of {len(found)} could not calibrate: {part}")
    first, *others = (
        Calibration({name: Histogram.from_state(state) for name, state in part.items()}) for part in found
    )
    return first.merge(*others)


def average_batch_norm(model: nn.Module, group: Any = None) -> None:
    """Give every process the mean of all processes' running statistics, in place; call it everywhere, after an epoch.

    `DistributedDataParallel` copies those of the first process to the others: one part of the data decides. On GPUs,
    `nn.SyncBatchNorm` shares the statistics of every batch and needs no averaging.
    """
    kept = [
        value
        for _, layer in layers_of(model)
        if isinstance(layer, QuantizedConv) and layer.bn is not None
        for value in (layer.bn.running_mean, layer.bn.running_var)
        if isinstance(value, torch.Tensor)
    ]
    if not kept:
        return
    mine = torch.cat([value.detach().flatten().double() for value in kept])
    parts = [torch.empty_like(mine) for _ in range(distributed.get_world_size(group))]
    # Gathered and added in the order of ranks: a reduction may add in another order on every process.
    distributed.all_gather(parts, mine, group=group)
    mean = torch.stack(parts).sum(0) / len(parts)
    with torch.no_grad():
        for value, part in zip(kept, torch.split(mean, [value.numel() for value in kept]), strict=True):
            value.copy_(part.reshape(value.shape))
