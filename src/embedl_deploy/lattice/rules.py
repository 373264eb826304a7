"""What Lattice's CNN accelerator takes, as rules over single layers.

Convolutions of 1×1 and 3×3, stride 1 or 2, padding of at most half the kernel, dense or depthwise; batch norm; ReLU and
LeakyReLU; max pooling of 2×2 and 3×3; global average pooling; fully connected layers; sums and concatenations.
"""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from torch import nn

from embedl_deploy._table import table
from embedl_deploy._trace.tracing import Model, trace
from embedl_deploy.nn import Add, Concat

_TAKEN = (
    nn.BatchNorm2d, nn.ReLU, nn.LeakyReLU, nn.Linear, nn.Flatten, nn.Identity, nn.ZeroPad2d, Add, Concat,
)  # fmt: skip
_STRIDES = ((1, 1), (2, 2))


@dataclass(frozen=True)
class Layer:
    """One layer of a model: where, what, and why it is outside the set (empty when it is inside)."""

    place: str
    kind: str
    reason: str


def outside(module: nn.Module) -> str:
    """Say why the accelerator does not take a layer; empty when it does."""
    if type(module) is nn.Conv2d:
        return outside_conv(module)
    if type(module) is nn.MaxPool2d:
        return outside_max_pool(module)
    if type(module) is nn.AdaptiveAvgPool2d:
        return "" if module.output_size in (1, (1, 1)) else f"it pools to {module.output_size}, not to 1×1"
    if type(module) in _TAKEN or (isinstance(module, nn.Dropout) and not module.training):
        return ""
    return f"{type(module).__name__} is not in the set"


def outside_conv(conv: nn.Conv2d) -> str:
    """Say why the accelerator does not take a convolution; the first reason, in the order conversions settle them."""
    most = conv.kernel_size[0] // 2
    paddings = {(side, side) for side in range(most + 1)}
    depthwise = conv.groups == conv.in_channels == conv.out_channels
    reasons = {
        f"its kernel is {_pair(conv.kernel_size)}, not 1×1 or 3×3": conv.kernel_size not in ((1, 1), (3, 3)),
        f"its dilation is {_pair(conv.dilation)}, not 1×1": conv.dilation != (1, 1),
        f"its stride is {_pair(conv.stride)}, not 1×1 or 2×2": conv.stride not in _STRIDES,
        f"it pads by {conv.padding_mode}, not with zeros": conv.padding_mode != "zeros",
        f"its padding is {conv.padding}, not at most {most} on every side": conv.padding not in paddings,
        f"it has {conv.groups} groups, neither dense nor depthwise": conv.groups != 1 and not depthwise,
    }
    return next((reason for reason, holds in reasons.items() if holds), "")


def outside_max_pool(pool: nn.MaxPool2d) -> str:
    """Say why the accelerator does not take a max pooling."""
    kernel, stride, padding, dilation = (
        both(value) for value in (pool.kernel_size, pool.stride, pool.padding, pool.dilation)
    )
    if kernel not in ((2, 2), (3, 3)):
        return f"its kernel is {_pair(kernel)}, not 2×2 or 3×3"
    if stride not in _STRIDES:
        return f"its stride is {_pair(stride)}, not 1×1 or 2×2"
    if dilation != (1, 1) or pool.return_indices or pool.ceil_mode:
        return "it is dilated, rounds up or returns indices"
    if padding[0] != padding[1] or padding[0] > kernel[0] // 2:
        return f"its padding is {_pair(padding)}"
    return ""


def both(value: int | tuple[int, ...]) -> tuple[int, int]:
    """Spell a setting for height and width."""
    return (value, value) if isinstance(value, int) else (value[0], value[-1])


def _pair(value: tuple[int, ...]) -> str:
    return "×".join(str(side) for side in value)


@dataclass(frozen=True)
class Check:
    """Every layer of a model against the accelerator's set; prints as a table of what is outside."""

    layers: tuple[Layer, ...]

    @property
    def outside(self) -> tuple[Layer, ...]:
        """The layers that the accelerator does not take."""
        return tuple(layer for layer in self.layers if layer.reason)

    def __bool__(self) -> bool:
        return not self.outside

    def __str__(self) -> str:
        inside = len(self.layers) - len(self.outside)
        head = f"{inside} of {len(self.layers)} layers are inside the set"
        if not self.outside:
            return head
        rows = [(layer.place, layer.kind, layer.reason) for layer in self.outside]
        return f"{head}\n{table(('place', 'layer', 'reason'), rows)}"


def check(model: Model, args: tuple[Any, ...] | None = None, kwargs: Mapping[str, Any] | None = None) -> Check:
    """List a model's layers with why the accelerator does not take them.

    Data movement (reshape, slice, pad) is no layer and is not listed.

    Raises:
        TraceError: The model cannot be turned into a graph.
    """
    network = trace(model, args, kwargs).network
    layers = []
    for node in network.graph.nodes:
        module = network.module_of(node)
        if module is not None:
            layers.append(Layer(network.place_of(node), type(module).__name__, outside(module)))
    return Check(tuple(layers))
