"""Weight ranges by least squared error, a ratio per channel."""

import torch

from embedl_deploy.nn import WeightQuantizer
from embedl_deploy.nn.number import fake_quantize

_RATIOS = tuple(1.0 - step / 40 for step in range(25))


def best_ratio(quantizer: WeightQuantizer, weight: torch.Tensor) -> torch.Tensor:
    """Return, for every group of weights with one scale, the part of its peak with the least squared error."""
    peak = quantizer.peak(weight)
    best, least = torch.ones_like(peak), torch.full_like(peak, torch.inf)
    zero = torch.zeros((), device=weight.device)
    for ratio in _RATIOS:
        scale = peak * ratio / quantizer.form.high
        scale = torch.where(scale > 0, scale, torch.ones_like(scale))
        error = (fake_quantize(weight, quantizer.spread(scale, weight), zero, quantizer.form) - weight) ** 2
        total = _sum(quantizer, error)
        better = total < least
        best, least = torch.where(better, torch.full_like(best, ratio), best), torch.where(better, total, least)
    return best


def _sum(quantizer: WeightQuantizer, value: torch.Tensor) -> torch.Tensor:
    """Add up over every group of weights that has one scale."""
    if quantizer.block:
        return value.reshape(value.shape[0], -1, quantizer.block).sum(2)
    if quantizer.axis is None:
        return value.sum()
    return value.sum([at for at in range(value.ndim) if at != quantizer.axis])
