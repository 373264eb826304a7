"""Even out channels between a layer and those that read it, so that one scale fits all of them.

A channel c of a value is divided by s where it is made and multiplied by s where it is read:

    W₂ · act(W₁x) = (W₂·diag(s)) · act(diag(1/s)·W₁x)        for any act with act(a·x) = a·act(x), a > 0

ReLU6 is such an act below its top: channels that reach it stay as they are, the others grow and stay below.

From a normalization into fully connected layers this is SmoothQuant, from convolution to convolution it is cross-layer
equalization; the arithmetic is one and the same, and the function of the network is kept. Values that are added share
their factors: every layer that writes to a residual trunk and every layer that reads from it takes part.
"""

from collections import Counter
from collections.abc import Iterator, Mapping
from dataclasses import dataclass

import torch
from torch import fx, nn

from embedl_deploy._groups import Groups
from embedl_deploy.nn import (
    ALL_INPUTS,
    NO_INPUTS,
    FusedLayerNorm,
    QuantizableModule,
    QuantizedElementwise,
    QuantizedLayer,
    QuantStub,
)

_LEAST = 1e-5
_BELOW_TOP = 0.9
Modules = Mapping[str, nn.Module]


@dataclass(frozen=True)
class Site:
    """Values with the same channels, which can be evened out."""

    stubs: tuple[str, ...]  # Names of the stubs on them.
    place: str  # The first layer that makes one.
    smooth: bool  # Whether it follows a normalization.
    makers: tuple[list[torch.Tensor], ...]  # The parameters, by channel, of each layer that makes one.
    readers: tuple[QuantizedLayer, ...]
    top: float | None = None  # Where the values are cut off.

    @property
    def dim(self) -> int:
        return self.readers[0].channel_dim


def sites(model: fx.GraphModule) -> Iterator[Site]:
    """Return every set of values whose channels can be evened out without changing what the network computes."""
    modules = dict(model.named_modules(remove_duplicate=False))
    calls = Counter(str(node.target) for node in model.graph.nodes if node.op == "call_module")
    groups: Groups[fx.Node] = Groups()
    for node in model.graph.nodes:
        for other in _same_channels(modules, node):
            groups.join(other, node)
    found = (_site(values, modules, calls) for values in groups.sets(model.graph.nodes))
    return (site for site in found if site is not None)


def _layer(modules: Modules, node: fx.Node) -> nn.Module | None:
    """Return the layer that a node calls; an RMS norm plays the part of a layer norm."""
    found = modules.get(str(node.target)) if node.op == "call_module" else None
    if isinstance(found, nn.RMSNorm):
        return FusedLayerNorm(found)
    return found.layer if isinstance(found, QuantizedElementwise) else found


def _passed_inputs(layer: nn.Module | None) -> slice:
    """Return which inputs' channels a layer passes on."""
    if isinstance(layer, QuantStub | nn.MaxPool2d):
        return ALL_INPUTS
    return layer.passed_inputs if isinstance(layer, QuantizableModule) else NO_INPUTS


def _same_channels(modules: Modules, node: fx.Node) -> list[fx.Node]:
    """Return the values whose channels a node passes on: through a stub, a sum, a maximum."""
    return [value for value in node.args[_passed_inputs(_layer(modules, node))] if isinstance(value, fx.Node)]


def _site(values: list[fx.Node], modules: Modules, calls: Counter[str]) -> Site | None:
    """Return what can be done about values with the same channels, `None` when someone cannot take part."""
    inside = set(values)
    makers = [node for node in values if not _passes_on(modules, node, inside)]
    readers: list[QuantizedLayer] = []
    for value in values:
        for user in value.users:
            if user in inside and (_passes_on(modules, user, inside) or user.args[0] is not value):
                continue
            reader = _reader(modules, value, user)
            if reader is None or calls[str(user.target)] > 1:
                return None
            readers.append(reader)
    layers = [layer for layer in (_layer(modules, node) for node in makers) if isinstance(layer, QuantizableModule)]
    parameters = [found for layer in layers if (found := layer.output_parameters()) is not None]
    targets = {str(node.target): _layer(modules, node) for node in values}
    stubs = [name for name, part in targets.items() if isinstance(part, QuantStub) and part.quantizes]
    once = all(calls[str(node.target)] == 1 for node in makers)
    smooth = any(layer.normalizes for layer in layers)
    if not (readers and stubs and parameters and once) or len(parameters) < len(makers):
        return None
    tops = [layer.output_top for layer in layers if layer.output_top is not None]
    if tops and len(makers) > 1:
        return None  # the peaks of a sum do not tell which of its parts was cut off
    if (smooth and len(makers) > 1) or any(type(reader) is not type(readers[0]) for reader in readers):
        return None
    return Site(
        tuple(stubs), str(makers[0].target), smooth, tuple(parameters), tuple(readers), tops[0] if tops else None
    )


def _passes_on(modules: Modules, node: fx.Node, inside: set[fx.Node]) -> bool:
    """Say whether a node makes no values of its own."""
    everything = _passed_inputs(_layer(modules, node)) == ALL_INPUTS
    return everything and any(value in inside for value in _same_channels(modules, node))


def _reader(modules: Modules, value: fx.Node, user: fx.Node) -> QuantizedLayer | None:
    """Return the weights that read a value as their main input, `None` when something else reads it."""
    layer = modules.get(str(user.target)) if user.op == "call_module" else None
    if not isinstance(layer, QuantizableModule) or user.args[0] is not value or value in user.args[1:]:
        return None
    return layer.input_layer()


def factors(site: Site, peaks: torch.Tensor) -> torch.Tensor:
    """Return what each channel is divided by: the geometric middle of what values and weights would want."""
    wanted = torch.stack([reader.input_peaks() for reader in site.readers]).amax(0)
    peaks = peaks.to(wanted).clamp(min=_LEAST)
    scale = (peaks / wanted.clamp(min=_LEAST)).sqrt()
    # The middle of all factors is 1, so that a network that is even already stays as it is.
    scale = scale / scale.log().mean().exp()
    if site.top is None:
        return scale
    # Values that were never cut off must not be after it: other data than this may reach a little further.
    free = torch.maximum(scale.clamp(max=1.0), peaks / (_BELOW_TOP * site.top))
    return torch.where(peaks < _BELOW_TOP * site.top, free, torch.ones_like(free))


def balance(site: Site, scale: torch.Tensor) -> None:
    """Divide where the value is made, multiply where it is read, in place."""
    with torch.no_grad():
        for tensor in (tensor for parameters in site.makers for tensor in parameters):
            tensor.div_(scale.reshape(-1, *[1] * (tensor.ndim - 1)))
        for reader in site.readers:
            reader.scale_inputs(scale)
