"""Learned rounding: for every weight, up or down is chosen so that the layer's result errs least.

    min over h in [0, 1]   ‖ ((floor(W/s) + h)·s)x - Wx ‖² + pull of h towards 0 or 1

Follows the idea of adaptive rounding: a soft choice, a pull that grows, and a hard choice at the end.
"""

from typing import Any

import torch

from embedl_deploy.nn import QuantizedConv, QuantizedLinear
from embedl_deploy.quantize._insert import run_layer

_LOW, _HIGH = -0.1, 1.1
_PULL = 0.01


def learn_rounding(
    layer: QuantizedConv | QuantizedLinear, value: torch.Tensor, target: torch.Tensor, *, steps: int
) -> None:
    """Choose the rounding of a layer's weights, in place: for inputs `value` it should give `target`."""
    quantizer = layer.weight_quantizer
    assert quantizer is not None
    weight, bias = (None if one is None else one.detach() for one in layer.folded())
    assert weight is not None
    scale = quantizer.spread(quantizer.scale.detach(), weight)
    floor = torch.floor(weight / scale)
    rest = (weight / scale - floor).clamp(1e-4, 1 - 1e-4)
    choice = torch.logit((rest - _LOW) / (_HIGH - _LOW)).requires_grad_()
    optimizer = torch.optim.Adam([choice], lr=0.02)
    norm = target.detach().pow(2).mean().clamp(min=1e-12)
    with torch.enable_grad():
        for step in range(steps):
            soft = _soft(choice)
            rounded = (floor + soft).clamp(quantizer.form.low, quantizer.form.high) * scale
            error = (run_layer(layer, value, rounded, bias) - target).pow(2).mean() / norm
            sharp = 20 - 18 * step / steps
            pull = (1 - (2 * soft - 1).abs().pow(sharp)).mean() if step > steps // 5 else torch.zeros(())
            optimizer.zero_grad()
            (error + _PULL * pull).backward()  # type: ignore[no-untyped-call]
            optimizer.step()
    with torch.no_grad():
        codes = (floor + (_soft(choice) >= 0.5)).clamp(quantizer.form.low, quantizer.form.high)
        put_folded(layer, codes * scale)


def _soft(choice: torch.Tensor) -> torch.Tensor:
    """Return the soft choice between 0 and 1; the stretched sigmoid can reach both ends."""
    return (torch.sigmoid(choice) * (_HIGH - _LOW) + _LOW).clamp(0, 1)


def put_folded(layer: QuantizedConv | QuantizedLinear, weight: torch.Tensor) -> None:
    """Give a layer the weights that fold to these."""
    holder: Any = layer.conv if isinstance(layer, QuantizedConv) else layer.linear
    with torch.no_grad():
        if isinstance(layer, QuantizedConv) and layer.bn is not None:
            factor = layer._spread(layer._factor())
            weight = torch.where(factor.abs() > 0, weight / factor, holder.weight)
        holder.weight.copy_(weight)
