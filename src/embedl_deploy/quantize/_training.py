"""Training with the pairs in place: which ranges move, and what is baked in at the end.

A calibrated model trains with an ordinary loop. Rounding passes gradients straight through. Scales of weights follow
the weights, scales of activations stay as calibrated, unless `learn_ranges` makes them parameters.
"""

import torch
from torch import nn

from embedl_deploy.nn import QuantizedConv, Quantizer, WeightQuantizer
from embedl_deploy.quantize._insert import layers_of, stubs_of
from embedl_deploy.quantize._quantization import quantization_of


def learn_ranges(model: nn.Module, *, activations: bool = True, weights: bool = False) -> list[nn.Parameter]:
    """Let gradient move scales, in place, and return them (give them to the optimizer, with a small rate).

    Args:
        model: A calibrated model.
        activations: Scales of activations; pairs that share a scale share the parameter.
        weights: Scales of weights; they no longer follow the weights then.

    Raises:
        QuantizationError: The model has no pairs.
    """
    groups = quantization_of(model).groups
    made: dict[str, nn.Parameter] = {}
    if activations:
        for name, stub in stubs_of(model):
            if stub.quantizes and stub.calibrated and stub.fixed is None:
                leader = groups.get(name, name)
                made[leader] = made.get(leader) or _learn(stub)
                _share(stub, made[leader])
    if weights:
        for name, layer in layers_of(model):
            if layer.weight_quantizer is not None and layer.weight_quantizer.calibrated:
                made[f"{name}.weight"] = _learn(layer.weight_quantizer)
    return list(made.values())


def freeze_ranges(model: nn.Module) -> None:
    """Stop every scale from moving, in place: learned ones stay where they are, those of weights no longer follow."""
    quantization_of(model)
    for part in model.modules():
        if isinstance(part, Quantizer) and part.learned:
            scale = part.scale.detach().clone()
            del part.scale
            part.register_buffer("scale", scale)
        if isinstance(part, WeightQuantizer):
            part.follows = False


def freeze_batch_norm(model: nn.Module) -> None:
    """Stop batch norm statistics from moving, in place; `model.train()` keeps them still. For the last epochs."""
    quantization_of(model)
    for _, layer in layers_of(model):
        if isinstance(layer, QuantizedConv):
            layer.batch_norm_frozen = True


def freeze_weights(model: nn.Module) -> None:
    """Bake the quantized weights in, in place: batch norm is folded and every weight is a multiple of its scale.

    The model computes what it computed in eval mode, and exports the same file; it is no longer made for training.

    Raises:
        QuantizationError: The model has no pairs.
    """
    quantization_of(model)
    with torch.no_grad():
        for _, layer in layers_of(model):
            weight, bias = layer.folded()
            if layer.weight_quantizer is not None and layer.weight_quantizer.calibrated:
                training, layer.weight_quantizer.training = layer.weight_quantizer.training, False
                weight = layer.weight_quantizer(weight)
                layer.weight_quantizer.training = training
                layer.weight_quantizer.follows = False
            layer.source.weight = nn.Parameter(weight.detach().clone(), requires_grad=False)
            if bias is not None:
                layer.source.bias = nn.Parameter(bias.detach().clone(), requires_grad=False)
            if isinstance(layer, QuantizedConv):
                layer.bn = None


def _learn(part: Quantizer) -> nn.Parameter:
    if isinstance(part.scale, nn.Parameter):
        return part.scale
    scale = nn.Parameter(part.scale.detach().clone())
    _share(part, scale)
    return scale


def _share(part: Quantizer, scale: nn.Parameter) -> None:
    if part.scale is not scale:
        del part.scale
        part.register_parameter("scale", scale)
