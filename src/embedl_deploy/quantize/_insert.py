"""Carry a placement out: stubs on values, quantisers on weights, batch norm folded into the layers that take it."""

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

import torch
from torch import fx, nn

from embedl_deploy._clone import copy_deep
from embedl_deploy._graph import Network
from embedl_deploy.errors import QuantizationError
from embedl_deploy.nn import (
    Add,
    FusedAdaptiveAvgPool2d,
    FusedAddReLU,
    FusedAttention,
    FusedConvBN,
    FusedConvBNAdd,
    FusedConvBNAddReLU,
    FusedConvBNReLU,
    FusedConvBNReLUMaxPool,
    FusedLinear,
    FusedLinearReLU,
    Grid,
    Multiply,
    QuantizedAttention,
    QuantizedConv,
    QuantizedJoint,
    QuantizedLinear,
    QuantStub,
    WeightQuantizer,
)
from embedl_deploy.nn.number import NumberFormat, Precision
from embedl_deploy.pattern import Point
from embedl_deploy.patterns import CLAMPS
from embedl_deploy.quantize._config import QuantConfig, TensorQuantConfig
from embedl_deploy.quantize._placement import Decision, Placement

CONVOLUTIONAL = (FusedConvBN, FusedConvBNReLU, FusedConvBNReLUMaxPool, FusedConvBNAdd, FusedConvBNAddReLU)
LINEAR = (FusedLinear, FusedLinearReLU)
JOINTS = (Add, FusedAddReLU, Multiply, FusedAdaptiveAvgPool2d)
_KEY = "embedl_deploy.quantize"


@dataclass(frozen=True)
class Setup:
    """How a network was quantised; travels with it.

    Attributes:
        placement: Every decision.
        config: What the user chose.
        symmetric: What the backend wants of activations.
        groups: Stub names that share a scale with an earlier stub, and which.
    """

    placement: Placement
    config: QuantConfig
    symmetric: bool
    groups: dict[str, str]


def network_of(model: nn.Module) -> Network:
    """Look at a transformed model as a network.

    Raises:
        QuantizationError: The model was not transformed.
    """
    if not isinstance(model, fx.GraphModule):
        raise QuantizationError(
            f"this {type(model).__name__} was not transformed, so nobody knows its kernels; "
            "call transform(model, args) first and give its .model."
        )
    modules = dict(model.named_modules(remove_duplicate=False))
    tensors: dict[str, Any] = {}
    for node in model.graph.nodes:
        if node.op == "get_attr":
            holder, _, name = str(node.target).rpartition(".")
            tensors[str(node.target)] = getattr(model.get_submodule(holder), name)
    return Network(model.graph, modules, tensors, type(model).__name__, model.training)


def setup_of(model: nn.Module) -> Setup:
    """Return how a model was quantised.

    Raises:
        QuantizationError: It was not.
    """
    found = model.meta.get(_KEY) if isinstance(model, fx.GraphModule) else None
    if not isinstance(found, Setup):
        raise QuantizationError(
            f"this {type(model).__name__} has no quantise/dequantise pairs; "
            "call quantize(model, args, ...) or insert_qdq first."
        )
    return found


def stubs_of(model: nn.Module) -> Iterator[tuple[str, QuantStub]]:
    """Yield the stubs of a model by name, each once."""
    return ((name, part) for name, part in model.named_modules() if isinstance(part, QuantStub))


def weighted_of(model: nn.Module) -> Iterator[tuple[str, QuantizedConv | QuantizedLinear]]:
    """Yield the layers whose weights are, or could be, quantised."""
    return ((name, part) for name, part in model.named_modules() if isinstance(part, QuantizedConv | QuantizedLinear))


def run_layer(
    layer: QuantizedConv | QuantizedLinear, value: torch.Tensor, weight: torch.Tensor, bias: torch.Tensor | None
) -> torch.Tensor:
    """Run a layer with other weights, without the stub behind it."""
    if isinstance(layer, QuantizedConv):
        return layer._convolve(value, weight, bias)
    return nn.functional.linear(value, weight, bias)


def insert_qdq(
    model: nn.Module, matches: Placement, config: QuantConfig | None = None, *, symmetric: bool | None = None
) -> fx.GraphModule:
    """Put quantise/dequantise pairs into a copy of a transformed model; they pass values on until it is calibrated.

    Args:
        model: A transformed model; it is not changed, and the copy has weights of its own.
        matches: Where the pairs go, from `plan_qdq`.
        config: How tensors are quantised.
        symmetric: What activations are when the config leaves it open; `None` for what the placement's backend wants.

    Raises:
        QuantizationError: The model was not transformed, has pairs already, or `matches` is no placement.
    """
    network_of(model)
    if not isinstance(matches, Placement):
        raise QuantizationError(
            f"matches is a {type(matches).__name__}; it is the Placement that plan_qdq(model, args) returns."
        )
    assert isinstance(model, fx.GraphModule)
    if _KEY in model.meta:
        raise QuantizationError("this model has quantise/dequantise pairs already; give the model that transform made.")
    config = config or QuantConfig()
    result = copy_deep(model)
    symmetric = matches.symmetric if symmetric is None else symmetric
    form = config.activation.format(symmetric=symmetric)
    nodes = {node.name: node for node in result.graph.nodes}
    for decision in matches.layers:
        if str(nodes[decision.node].target) in dict(result.named_modules()):
            _swap(result, nodes[decision.node], decision, config.weight, form)
    network, places = network_of(result), set[str]()
    groups = {}
    leaders: dict[str, str] = {}
    for boundary in matches.boundaries:
        place = _unused(places, network.place_of(nodes[boundary.value]))
        stub = QuantStub(place, form, quantizes=boundary.quantizes)
        name = _insert(result, nodes[boundary.value], boundary.readers, stub)
        groups[name] = leaders.setdefault(boundary.group, name)
    if matches.integer_kernels:
        _bind(result)
    result.graph.lint()
    result.recompile()
    result.meta[_KEY] = Setup(matches, config, symmetric, groups)
    return result


def _bind(model: fx.GraphModule) -> None:
    """Tell every layer that runs on integers the stubs around it."""
    calls: dict[str, list[fx.Node]] = {}
    for node in model.graph.nodes:
        if node.op == "call_module":
            calls.setdefault(str(node.target), []).append(node)
    modules = dict(model.named_modules())
    for target, (node, *others) in calls.items():
        layer = modules[target]
        inputs = tuple(_stub_at(modules, one) for one in node.args)
        # A layer that is called twice has other stubs each time.
        if others or not inputs or None in inputs:
            continue
        found = tuple(one for one in inputs if one is not None)
        output = _stub_behind(modules, node)
        if isinstance(layer, LINEAR) and isinstance(layer.linear, QuantizedLinear):
            layer.linear.grid = Grid(found, None)
        elif isinstance(layer, CONVOLUTIONAL) and isinstance(layer.conv, QuantizedConv):
            own = layer.conv.output
            output = output if own is None else own
            if output is not None and output.quantizes:
                layer.conv.grid = Grid(found[:1], output)
        elif isinstance(layer, JOINTS) and output is not None:
            model.set_submodule(target, QuantizedJoint(layer, Grid(found, output)))


def _stub_at(modules: dict[str, nn.Module], node: Any) -> QuantStub | None:
    """Return the stub that a node is, if it carries a pair."""
    found = modules.get(str(node.target)) if isinstance(node, fx.Node) and node.op == "call_module" else None
    return found if isinstance(found, QuantStub) and found.quantizes else None


def _stub_behind(modules: dict[str, nn.Module], node: fx.Node) -> QuantStub | None:
    """Return the stub that everyone reads a value through."""
    readers = list(node.users)
    return _stub_at(modules, readers[0]) if len(readers) == 1 else None


def _unused(taken: set[str], place: str) -> str:
    """Return the place, with a number when it is taken: a module that is called twice makes two values."""
    name, number = place, 1
    while name.replace(".", "_") in taken:
        number += 1
        name = f"{place}:{number}"
    taken.add(name.replace(".", "_"))
    return name


def _insert(model: fx.GraphModule, value: fx.Node, readers: tuple[str, ...], stub: QuantStub) -> str:
    """Put a stub behind a value; return its name."""
    name = f"stubs.{stub.label.replace('.', '_')}"
    model.add_submodule(name, stub)
    stub.training = model.training
    users = [user for user in value.users if not readers or user.name in readers]
    with model.graph.inserting_after(value):
        node = model.graph.create_node("call_module", name, (value,))
    node.meta = {"place": name}
    for user in users:
        user.replace_input_with(value, node)
    return name


def _swap(
    model: fx.GraphModule, node: fx.Node, decision: Decision, config: TensorQuantConfig, form: NumberFormat
) -> None:
    """Give a fused layer quantised weights, and fold its batch norm."""
    layer = model.get_submodule(str(node.target))
    weights = Point.WEIGHT in decision.points
    if isinstance(layer, CONVOLUTIONAL) and not isinstance(layer.conv, QuantizedConv):
        quantizer = _conv_quantizer(layer.conv, config) if weights else None
        output = _interior(layer, decision, form)
        if isinstance(layer, FusedConvBNReLUMaxPool):
            layer.act = nn.Sequential(layer.act, QuantStub(f"{decision.place}.act", form, quantizes=False))
            output = None
        layer.conv = QuantizedConv(layer.conv, layer.bn, quantizer, output)
        layer.bn = None
    elif isinstance(layer, FusedAttention) and Point.PRODUCT in decision.points:
        if not isinstance(layer.attention, QuantizedAttention):
            layer.attention = QuantizedAttention(layer.attention, form, decision.place)
    elif isinstance(layer, LINEAR) and not isinstance(layer.linear, QuantizedLinear) and weights:
        layer.linear = QuantizedLinear(layer.linear, _linear_quantizer(layer.linear, config))


def _interior(layer: nn.Module, decision: Decision, form: NumberFormat) -> QuantStub | None:
    """Return the stub between a convolution and the rest of its layer, where a target might cut there."""
    act = getattr(layer, "act", None)
    if not isinstance(layer, FusedConvBNAdd | FusedConvBNAddReLU) and (act is None or isinstance(act, CLAMPS)):
        return None
    return QuantStub(f"{decision.place}.conv", form, quantizes=Point.OUTPUT in decision.points)


def _conv_quantizer(conv: nn.Module, config: TensorQuantConfig) -> WeightQuantizer:
    """Return a quantiser for a convolution's weight; a transposed one gets one scale, which every target accepts."""
    transposed = isinstance(conv, nn.ConvTranspose1d | nn.ConvTranspose2d | nn.ConvTranspose3d)
    return WeightQuantizer(NumberFormat(config.precision), None if transposed or not config.per_channel else 0)


def _linear_quantizer(linear: nn.Module, config: TensorQuantConfig) -> WeightQuantizer:
    """Return a quantiser for a fully connected layer's weight: by blocks where they were asked for and fit."""
    width = linear.in_features
    fits = config.precision is Precision.INT4 and config.block_size and width % config.block_size == 0  # type: ignore[operator]
    return WeightQuantizer(
        NumberFormat(config.precision), 0 if config.per_channel else None, config.block_size if fits else 0
    )
