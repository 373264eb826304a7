"""Even out channels between a layer and those that read it, so that one scale fits all of them.

A channel c of a value is divided by s where it is made and multiplied by s where it is read:

    W₂ · act(W₁x) = (W₂·diag(s)) · act(diag(1/s)·W₁x)        for any act with act(a·x) = a·act(x), a > 0

From a normalisation into fully connected layers this is SmoothQuant, from convolution to convolution it is cross-layer
equalisation; the arithmetic is one and the same, and the function of the network is kept.
"""

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

import torch
from torch import fx, nn

from embedl_deploy.nn import (
    FusedConvBN,
    FusedConvBNAdd,
    FusedConvBNAddReLU,
    FusedConvBNReLU,
    FusedLayerNorm,
    FusedLinear,
    FusedLinearReLU,
    QuantizedConv,
    QuantizedLinear,
    QuantStub,
)

_LEAST = 1e-5


@dataclass(frozen=True)
class Site:
    """A value whose channels can be evened out.

    Attributes:
        stub: Name of the stub on it.
        place: The layer that makes it.
        maker: That layer.
        readers: The layers that read it.
        dim: The dimension of its channels.
    """

    stub: str
    place: str
    maker: nn.Module
    readers: tuple[QuantizedConv | QuantizedLinear, ...]
    dim: int

    @property
    def smooth(self) -> bool:
        """Whether it follows a normalisation."""
        return isinstance(self.maker, FusedLayerNorm | nn.RMSNorm)


def sites(model: fx.GraphModule) -> Iterator[Site]:
    """Yield every value whose channels can be evened out without changing what the network computes."""
    modules = dict(model.named_modules(remove_duplicate=False))
    for node in model.graph.nodes:
        stub = modules.get(str(node.target)) if node.op == "call_module" else None
        if not isinstance(stub, QuantStub) or not stub.quantizes:
            continue
        made = node.args[0]
        if made.op != "call_module" or len(made.users) != 1 or not node.users:
            continue
        maker = modules[str(made.target)]
        readers = [_reader(modules, node, user) for user in node.users]
        if _scalable(maker) and all(one is not None for one in readers):
            kept = tuple(one for one in readers if one is not None)
            dim = -1 if isinstance(kept[0], QuantizedLinear) else 1
            if all(isinstance(one, type(kept[0])) for one in kept):
                yield Site(str(node.target), str(made.target), maker, kept, dim)


def _scalable(maker: nn.Module) -> bool:
    """Say whether a layer's result can be divided per channel by changing its parameters."""
    if isinstance(maker, FusedLayerNorm | nn.RMSNorm):
        return getattr(_norm(maker), "weight", None) is not None
    if isinstance(maker, FusedConvBN):
        return isinstance(maker.conv, QuantizedConv) and not maker.conv.transposed
    if isinstance(maker, FusedConvBNReLU):
        return isinstance(maker.conv, QuantizedConv) and not maker.conv.transposed and isinstance(maker.act, nn.ReLU)
    if isinstance(maker, FusedLinearReLU):
        return isinstance(maker.linear, QuantizedLinear) and isinstance(maker.act, nn.ReLU)
    return False


def _norm(maker: nn.Module) -> nn.Module:
    """Return the normalisation that has the parameters."""
    return maker.norm if isinstance(maker, FusedLayerNorm) else maker


def _reader(modules: dict[str, nn.Module], value: fx.Node, user: fx.Node) -> QuantizedConv | QuantizedLinear | None:
    """Return the weights that read a value as their main input, `None` when something else reads it."""
    layer = modules.get(str(user.target)) if user.op == "call_module" else None
    if layer is None or user.args[0] is not value or value in user.args[1:]:
        return None
    if isinstance(layer, FusedLinear | FusedLinearReLU) and isinstance(layer.linear, QuantizedLinear):
        return layer.linear
    if isinstance(layer, FusedConvBN | FusedConvBNReLU | FusedConvBNAdd | FusedConvBNAddReLU):
        found = layer.conv
        if isinstance(found, QuantizedConv) and not found.transposed and _plain(found.conv):
            return found
    return None


def _plain(conv: Any) -> bool:
    """Say whether input channels can be told apart in the weight: all in one group, or one channel in each."""
    return conv.groups in (1, conv.in_channels)


def factors(site: Site, peaks: torch.Tensor) -> torch.Tensor:
    """Return what each channel is divided by: the geometric middle of what values and weights would want."""
    wanted = torch.stack([_peak_in(reader) for reader in site.readers]).amax(0)
    peaks = peaks.to(wanted).clamp(min=_LEAST)
    scale = (peaks / wanted.clamp(min=_LEAST)).sqrt()
    # The middle of all factors is 1, so that a network that is even already stays as it is.
    return scale / scale.log().mean().exp()


def _peak_in(reader: QuantizedConv | QuantizedLinear) -> torch.Tensor:
    """Return the largest weight that reads each input channel."""
    weight = reader.folded()[0].detach().abs()
    if isinstance(reader, QuantizedConv) and reader.conv.groups != 1:
        return weight.flatten(1).amax(1)
    return weight.transpose(0, 1).flatten(1).amax(1)


def balance(site: Site, scale: torch.Tensor) -> None:
    """Divide where the value is made, multiply where it is read, in place."""
    with torch.no_grad():
        for tensor in _made_by(site.maker):
            tensor.div_(scale.reshape(-1, *[1] * (tensor.ndim - 1)))
        for reader in site.readers:
            weight: Any = reader.conv.weight if isinstance(reader, QuantizedConv) else reader.linear.weight
            depthwise = isinstance(reader, QuantizedConv) and reader.conv.groups != 1
            shape = [-1, *[1] * (weight.ndim - 1)] if depthwise else [1, -1, *[1] * (weight.ndim - 2)]
            weight.mul_(scale.reshape(shape))


def _made_by(maker: nn.Module) -> list[torch.Tensor]:
    """Return the parameters, per output channel, that a layer's result is proportional to."""
    if isinstance(maker, FusedLayerNorm | nn.RMSNorm):
        holder: Any = _norm(maker)
    elif isinstance(maker, FusedLinearReLU):
        holder = maker.linear.linear
    else:
        layer: Any = maker
        bn = layer.conv.bn
        holder = layer.conv.conv if bn is None or bn.weight is None else bn
    return [one for one in (holder.weight, getattr(holder, "bias", None)) if one is not None]
