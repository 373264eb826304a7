"""Some of the calibration data, kept with a model: what is decided after calibration is decided on it too."""

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import torch
from torch import nn

_KEY = "embedl_deploy.samples"
_SAMPLES = 16
_BYTES = 64 * 2**20


@contextmanager
def keeping_samples(model: nn.Module) -> Iterator[None]:
    """Keep the first inputs that a model is given, a few and never many megabytes."""
    kept: list[tuple[torch.Tensor, ...]] = []
    space = [_SAMPLES, _BYTES]

    def look(_: nn.Module, args: tuple[Any, ...], kwargs: dict[str, Any]) -> None:
        plain = not kwargs and all(isinstance(one, torch.Tensor) for one in args)
        if not plain or space[0] <= 0 or any(not one.ndim for one in args):
            return
        rows = min([space[0], *map(len, args)])
        for row in range(rows):
            sample = tuple(one[row : row + 1].detach().cpu().clone() for one in args)
            space[1] -= sum(one.numel() * one.element_size() for one in sample)
            if space[1] < 0:
                space[0] = 0
                return
            kept.append(sample)
            space[0] -= 1

    handle = model.register_forward_pre_hook(look, with_kwargs=True)
    try:
        yield
    finally:
        handle.remove()
    meta = getattr(model, "meta", None)
    if isinstance(meta, dict) and kept:
        meta[_KEY] = kept


def kept_samples(model: nn.Module, batch: int = 1) -> list[tuple[torch.Tensor, ...]] | None:
    """Return the samples that were kept with a model, in batches of a size; None for none, or for too few."""
    found: list[tuple[torch.Tensor, ...]] = (getattr(model, "meta", None) or {}).get(_KEY) or []
    groups = [found[at : at + batch] for at in range(0, len(found) - batch + 1, max(1, batch))]
    joined = [tuple(torch.cat(parts) for parts in zip(*group, strict=True)) for group in groups]
    return joined or None


def carry_samples(source: nn.Module, target: nn.Module) -> None:
    """Let one model have the samples that were kept with another."""
    found = (getattr(source, "meta", None) or {}).get(_KEY)
    meta = getattr(target, "meta", None)
    if found and isinstance(meta, dict):
        meta.setdefault(_KEY, found)
