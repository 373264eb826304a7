"""A transformed model as the operators it will be in a file: what the rules of a dialect's placement look at.

A fused module is the operators that it computes with, as far as a stub can stand between them. What has no integer
kernel on any target keeps the name of its module or function: it runs in float whatever stands before it.
"""

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field

from torch import fx, nn

from embedl_deploy import nn as layers
from embedl_deploy._graph.network import Network
from embedl_deploy.dialect._placement import OUTPUT, Step

_ACTIVATIONS: dict[type[nn.Module], str] = {
    nn.ReLU: "Relu", nn.ReLU6: "Clip", nn.LeakyReLU: "LeakyRelu", nn.ELU: "Elu", nn.GELU: "Gelu",
    nn.Sigmoid: "Sigmoid", nn.Tanh: "Tanh", nn.Hardswish: "HardSwish", nn.Hardsigmoid: "HardSigmoid",
    nn.Softmax: "Softmax", nn.Hardtanh: "Clip",
}  # fmt: skip
_MODULES: dict[type[nn.Module], str] = {
    **_ACTIVATIONS,
    nn.Flatten: "Flatten", nn.Identity: "Identity", nn.Dropout: "Identity", nn.MaxPool1d: "MaxPool",
    nn.MaxPool2d: "MaxPool", nn.MaxPool3d: "MaxPool", nn.AvgPool1d: "AveragePool", nn.AvgPool2d: "AveragePool",
    nn.AvgPool3d: "AveragePool", nn.Upsample: "Resize", layers.Add: "Add", layers.Multiply: "Mul",
    layers.Concat: "Concat", layers.MatMul: "MatMul",
}  # fmt: skip
# By the name of a function or method, whatever torch calls its variants.
_FUNCTIONS = {
    **dict.fromkeys(("reshape", "view", "unflatten"), "Reshape"), "flatten": "Flatten", "squeeze": "Squeeze",
    "unsqueeze": "Unsqueeze", **dict.fromkeys(("permute", "transpose", "t", "movedim", "swapaxes"), "Transpose"),
    "expand": "Expand", **dict.fromkeys(("repeat", "tile"), "Tile"),
    **dict.fromkeys(("contiguous", "clone", "detach"), "Identity"),
    **dict.fromkeys(("select", "index_select"), "Gather"), **dict.fromkeys(("slice", "narrow", "getitem"), "Slice"),
    "interpolate": "Resize", "mean": "ReduceMean", "amax": "ReduceMax",
}  # fmt: skip
_TUPLES = frozenset({"chunk", "split", "split_with_sizes", "tensor_split", "unbind", "topk", "sort", "max", "min"})
_SIZES = frozenset({"size", "dim", "numel", "ndimension", "getattr", "sym_size", "shape"})


@dataclass
class Operators:
    """The operators of a model and where they come from; a tensor goes by the graph's name for the value."""

    steps: list[Step] = field(default_factory=list)
    owners: dict[str, str] = field(default_factory=dict)  # By operator, the graph's name of the layer it is part of.
    inner: dict[str, tuple[str, str]] = field(default_factory=dict)  # Tensors inside a layer: its name, and the stub's.
    constants: set[str] = field(default_factory=set)
    rounded: set[str] = field(default_factory=set)  # The constants among them that are stored in integers.
    # Layers of other authors that their pattern quantizes: nobody here knows their operators.
    own_kernels: set[str] = field(default_factory=set)


def operators_of(network: Network, quantized: Mapping[str, bool]) -> Operators:
    """Return a network as operators.

    Args:
        network: A transformed model.
        quantized: The layers that a pattern quantizes, and whether their weights are.
    """
    return _Builder(network, quantized).run()


class _Builder:
    def __init__(self, network: Network, quantized: Mapping[str, bool]) -> None:
        self.network = network
        self.quantized = quantized
        self.found = Operators()
        self.tensors: set[str] = set()

    def run(self) -> Operators:
        for node in self.network.graph.nodes:
            if node.op == "placeholder":
                self.tensors.add(node.name)
            elif node.op == "get_attr":
                self.tensors.add(node.name)
                self.found.constants.add(node.name)
            elif node.op == "output":
                for value in node.all_input_nodes:
                    self._add(node, f"{OUTPUT}{value.name}", "Output", (value.name,), "")
            elif _stem(node) not in _SIZES:
                self._node(node)
        return self.found

    def _node(self, node: fx.Node) -> None:
        module = self.network.module_of(node)
        # A sum of a value with itself reads it twice.
        listed = [value for value in node.args if isinstance(value, fx.Node)] if module is not None else []
        values = listed if set(listed) == set(node.all_input_nodes) else node.all_input_nodes
        inputs = tuple(value.name for value in values if value.name in self.tensors)
        self.tensors.add(node.name)
        if isinstance(module, layers.QuantizableModule):
            self._fused(node, module, inputs)
        elif module is not None:
            self._act(node, module, inputs, node.name)
        else:
            self._add(node, node.name, self._function(node), inputs, node.name)

    def _function(self, node: fx.Node) -> str:
        stem = _stem(node)
        source = node.args[0] if node.args else None
        if stem == "getitem" and isinstance(source, fx.Node) and _stem(source) in _TUPLES:
            return "Split"
        if stem == "getitem" and isinstance(source, fx.Node) and self._gives_several(source):
            # A value among several moves nothing: there is no one value before it that could be rounded instead.
            return "Member"
        return _FUNCTIONS.get(stem, stem)

    def _gives_several(self, node: fx.Node) -> bool:
        """Say whether a node gives a tuple, as a recurrent layer does."""
        if isinstance(self.network.module_of(node), nn.RNNBase | nn.RNNCellBase | nn.MultiheadAttention):
            return True
        if (known := node.meta.get("val")) is not None:
            return isinstance(known, tuple | list)
        return self.network.example is not None and self.network.shape_of(node) is None

    def _fused(self, node: fx.Node, module: nn.Module, inputs: tuple[str, ...]) -> None:
        match module:
            case layers.FusedConvBNReLUMaxPool() | layers.FusedConvBNAdd():
                self._conv_then_more(node, module, inputs)
            case layers.FusedConvBN():
                self._then_act(node, module.act, _conv(module.conv), inputs, "conv")
            case layers.FusedLinear():
                self._then_act(node, module.act, "MatMul", inputs, "linear")
            case layers.FusedSiLU():
                self._add(node, f"{node.name}/Sigmoid", "Sigmoid", inputs[:1], self._inside(node, "sigmoid"))
                self._add(node, f"{node.name}/Mul", "Mul", (*inputs[:1], f"{node.name}/sigmoid"), node.name)
            case layers.FusedAddReLU():
                self._add(node, f"{node.name}/Add", "Add", inputs, f"{node.name}/add")
                self._act(node, module.act, (f"{node.name}/add",), node.name)
            case layers.FusedAdaptiveAvgPool2d():
                whole = getattr(module.pool, "output_size", None) in (1, (1, 1), [1, 1])
                kind = "GlobalAveragePool" if whole else "AdaptiveAveragePool"
                self._add(node, node.name, kind, inputs, node.name)
            case _:
                self._add(node, node.name, _MODULES.get(type(module), type(module).__name__), inputs, node.name)
                if node.name in self.quantized and type(module) not in _MODULES:
                    self.found.own_kernels.add(node.name)

    def _conv_then_more(
        self, node: fx.Node, module: layers.FusedConvBNReLUMaxPool | layers.FusedConvBNAdd, inputs: tuple[str, ...]
    ) -> None:
        """List a convolution with what its layer goes on with: an activation and a pooling, or a sum."""
        if isinstance(module, layers.FusedConvBNReLUMaxPool):
            self._weighted(node, _conv(module.conv), inputs[:1], f"{node.name}/conv")
            self._act(node, module.act, (f"{node.name}/conv",), self._inside(node, "act"))
            self._act(node, module.pool, (f"{node.name}/act",), node.name)
            return
        self._weighted(node, _conv(module.conv), inputs[:1], self._inside(node, "conv"))
        summed = node.name if module.act is None else f"{node.name}/add"
        self._add(node, f"{node.name}/Add", "Add", (f"{node.name}/conv", *inputs[1:]), summed)
        if module.act is not None:
            self._act(node, module.act, (summed,), node.name)

    def _inside(self, node: fx.Node, stub: str) -> str:
        """Name a tensor inside a layer that has a stub of its own."""
        tensor = f"{node.name}/{stub}"
        self.found.inner[tensor] = node.name, stub
        return tensor

    def _then_act(self, node: fx.Node, act: nn.Module | None, op_type: str, inputs: tuple[str, ...], stub: str) -> None:
        if act is None:
            self._weighted(node, op_type, inputs[:1], node.name)
            return
        # A stub stands before an activation that a kernel's own limits cannot do.
        cut = not isinstance(act, layers.CLAMPS)
        made = self._inside(node, stub) if cut else f"{node.name}/{stub}"
        self._weighted(node, op_type, inputs[:1], made)
        self._act(node, act, (made,), node.name)

    def _weighted(self, node: fx.Node, op_type: str, inputs: tuple[str, ...], output: str) -> None:
        weight = f"{node.name}:weight"
        self.found.constants.add(weight)
        if self.quantized.get(node.name):
            self.found.rounded.add(weight)
        self._add(node, f"{node.name}/{op_type}", op_type, (*inputs, weight), output)

    def _act(self, node: fx.Node, act: nn.Module | None, inputs: Sequence[str], output: str) -> None:
        assert act is not None
        kind = _MODULES.get(type(act), type(act).__name__)
        if getattr(act, "ceil_mode", False) and kind == "AveragePool":
            # ONNX Runtime's integer kernel divides by the wrong count where a window goes beyond the padding.
            kind = type(act).__name__
        if isinstance(act, nn.Softmax) and not self._is_last(node, act.dim):
            # ONNX Runtime's integer kernel is right over the last dimension only.
            kind = type(act).__name__ + "Across"
        low = high = None
        if isinstance(act, nn.Hardtanh):  # ReLU6 is one
            low, high = float(act.min_val), float(act.max_val)
        name = output if output == node.name and len(inputs) == 1 else f"{output}/{kind}"
        self._add(node, name, kind, tuple(inputs), output, low, high)

    def _is_last(self, node: fx.Node, dim: int | None) -> bool:
        shape = self.network.shape_of(node)
        return dim == -1 or (shape is not None and dim == len(shape) - 1)

    def _add(
        self,
        node: fx.Node,
        name: str,
        op_type: str,
        inputs: Iterable[str],
        output: str,
        low: float | None = None,
        high: float | None = None,
    ) -> None:
        self.found.steps.append(Step(name, op_type, tuple(inputs), (output,) if output else (), low, high))
        self.found.owners[name] = node.name


def _conv(conv: nn.Module) -> str:
    source = conv.source if isinstance(conv, layers.QuantizedConv) else conv
    transposed = isinstance(source, nn.ConvTranspose1d | nn.ConvTranspose2d | nn.ConvTranspose3d)
    return "ConvTranspose" if transposed else "Conv"


def _stem(node: fx.Node) -> str:
    """Return what a function or method is called, without the variant."""
    if node.op not in ("call_function", "call_method"):
        return ""
    name = str(node.target) if node.op == "call_method" else getattr(node.target, "__name__", str(node.target))
    return name.partition(".")[0].strip("_")
