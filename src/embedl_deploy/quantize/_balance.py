"""Even out channels between a layer and those that read it, so that one scale fits all of them.

A channel c of a value is divided by s where it is made and multiplied by s where it is read:

    W₂ · act(W₁x) = (W₂·diag(s)) · act(diag(1/s)·W₁x)        for any act with act(a·x) = a·act(x), a > 0

From a normalisation into fully connected layers this is SmoothQuant, from convolution to convolution it is cross-layer
equalisation; the arithmetic is one and the same, and the function of the network is kept. Values that are added share
their factors: every layer that writes to a residual trunk and every layer that reads from it takes part.
"""

from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

import torch
from torch import fx, nn

from embedl_deploy.nn import (
    Add,
    FusedAddReLU,
    FusedConvBN,
    FusedConvBNAdd,
    FusedConvBNAddReLU,
    FusedConvBNReLU,
    FusedLayerNorm,
    FusedLinear,
    FusedLinearReLU,
    QuantizedConv,
    QuantizedJoint,
    QuantizedLinear,
    QuantStub,
)

_LEAST = 1e-5


@dataclass(frozen=True)
class Site:
    """Values with the same channels, which can be evened out.

    Attributes:
        stubs: Names of the stubs on them.
        place: The first layer that makes one.
        makers: All layers that make them.
        readers: The layers that read them.
        dim: The dimension of their channels.
    """

    stubs: tuple[str, ...]
    place: str
    makers: tuple[nn.Module, ...]
    readers: tuple[QuantizedConv | QuantizedLinear, ...]
    dim: int

    @property
    def smooth(self) -> bool:
        """Whether it follows a normalisation."""
        return isinstance(self.makers[0], FusedLayerNorm | nn.RMSNorm)


def sites(model: fx.GraphModule) -> Iterator[Site]:
    """Yield every set of values whose channels can be evened out without changing what the network computes."""
    modules = dict(model.named_modules(remove_duplicate=False))
    calls = Counter(str(node.target) for node in model.graph.nodes if node.op == "call_module")
    for values in _joined(model, modules):
        found = _site(values, modules, calls)
        if found is not None:
            yield found


def _joined(model: fx.GraphModule, modules: dict[str, nn.Module]) -> Iterator[list[fx.Node]]:
    """Yield the values of the graph, those that must have the same factors together."""
    group: dict[fx.Node, list[fx.Node]] = {}
    for node in model.graph.nodes:
        group[node] = [node]
        for other in _same_channels(modules, node):
            if group[other] is not group[node]:
                group[other].extend(group[node])
                for moved in group[node]:
                    group[moved] = group[other]
    yield from (sorted(values) for values in {id(values): values for values in group.values()}.values())


def _same_channels(modules: dict[str, nn.Module], node: fx.Node) -> list[fx.Node]:
    """Return the values whose channels a node passes on: through a stub, a sum, a maximum."""
    layer = _layer(modules, node)
    if isinstance(layer, FusedConvBNAdd | FusedConvBNAddReLU):
        return [one for one in node.args[1:] if isinstance(one, fx.Node)]
    plain = isinstance(layer, QuantStub | Add | nn.MaxPool2d) or (
        isinstance(layer, FusedAddReLU) and isinstance(layer.act, nn.ReLU)
    )
    return [one for one in node.args if isinstance(one, fx.Node)] if plain else []


def _layer(modules: dict[str, nn.Module], node: fx.Node) -> nn.Module | None:
    """Return the layer that a node calls."""
    found = modules.get(str(node.target)) if node.op == "call_module" else None
    return found.layer if isinstance(found, QuantizedJoint) else found


def _site(values: list[fx.Node], modules: dict[str, nn.Module], calls: Counter[str]) -> Site | None:
    """Return what can be done about values with the same channels, `None` when someone cannot take part."""
    inside = set(values)
    makers = [node for node in values if not _passes_on(modules, node, inside)]
    readers: list[QuantizedConv | QuantizedLinear] = []
    for value in values:
        for user in value.users:
            if user in inside and (_passes_on(modules, user, inside) or user.args[0] is not value):
                continue
            found = _reader(modules, value, user)
            if found is None or calls[str(user.target)] > 1:
                return None
            readers.append(found)
    layers = [_layer(modules, node) for node in makers]
    kept = [one for one in layers if one is not None and _scalable(one)]
    stubs = [str(node.target) for node in values if _quantizes(_layer(modules, node))]
    once = all(calls[str(node.target)] == 1 for node in makers)
    norms = sum(isinstance(one, FusedLayerNorm | nn.RMSNorm) for one in kept)
    if not (readers and stubs and kept and once) or len(kept) < len(layers) or (norms and len(kept) > 1):
        return None
    if any(not isinstance(one, type(readers[0])) for one in readers):
        return None
    dim = -1 if isinstance(readers[0], QuantizedLinear) else 1
    return Site(tuple(stubs), str(makers[0].target), tuple(kept), tuple(readers), dim)


def _quantizes(layer: nn.Module | None) -> bool:
    """Say whether a layer is a stub with a pair."""
    return isinstance(layer, QuantStub) and layer.quantizes


def _passes_on(modules: dict[str, nn.Module], node: fx.Node, inside: set[fx.Node]) -> bool:
    """Say whether a node makes no values of its own."""
    if isinstance(_layer(modules, node), FusedConvBNAdd | FusedConvBNAddReLU):
        return False
    return any(one in inside for one in _same_channels(modules, node))


def _scalable(maker: nn.Module) -> bool:
    """Say whether a layer's result can be divided per channel by changing its parameters."""
    if isinstance(maker, FusedLayerNorm | nn.RMSNorm):
        return getattr(_norm(maker), "weight", None) is not None
    if isinstance(maker, FusedConvBNReLU | FusedConvBNAddReLU) and not isinstance(maker.act, nn.ReLU):
        return False
    if isinstance(maker, FusedConvBN | FusedConvBNReLU | FusedConvBNAdd | FusedConvBNAddReLU):
        return isinstance(maker.conv, QuantizedConv) and not maker.conv.transposed and _affine(maker.conv.bn)
    if isinstance(maker, FusedLinearReLU):
        return isinstance(maker.linear, QuantizedLinear) and isinstance(maker.act, nn.ReLU)
    return False


def _affine(bn: nn.Module | None) -> bool:
    """Say whether a batch norm that may be absent has parameters of its own to change."""
    return bn is None or getattr(bn, "weight", None) is not None


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
        for tensor in [one for maker in site.makers for one in _made_by(maker)]:
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
        holder = layer.conv.conv if bn is None else bn
    return [one for one in (holder.weight, getattr(holder, "bias", None)) if one is not None]
