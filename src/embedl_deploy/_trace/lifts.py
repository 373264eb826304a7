"""Which module an operator is a form of: one function per operator, whatever it was spelled like.

A lift gets the arguments by name and returns the module and its inputs, or a function for a data movement that is only
spelled anew, or `None` when an argument has no module form.
"""

import math
import operator
from collections.abc import Callable, Mapping
from collections.abc import Set as AbstractSet
from dataclasses import dataclass
from typing import Any

import torch
from torch import fx, nn

from embedl_deploy._graph.network import Network, owner_of
from embedl_deploy._trace.computed_weights import Constants
from embedl_deploy.nn import Add, Concat, MatMul, Multiply, ScaledDotProductAttention, linear_of

Made = tuple[nn.Module | Callable[..., Any], tuple[Any, ...]]


@dataclass(frozen=True)
class Call:
    """One call of an operator, however it was spelled."""

    network: Network
    original: nn.Module | None
    sizes: AbstractSet[fx.Node]
    node: fx.Node
    arguments: Mapping[str, Any]
    constants: Constants

    def __getitem__(self, name: str) -> Any:
        return self.arguments[name]

    def get(self, name: str, default: Any = None) -> Any:
        """Return an argument that not every spelling has."""
        return self.arguments.get(name, default)

    def tensor(self, name: str) -> torch.Tensor | None:
        """Return the parameter or buffer behind an argument; in eval mode also what is computed of these alone."""
        value = self.arguments[name]
        if not isinstance(value, fx.Node):
            return None
        found = self.network.tensor_of(value)
        return self.constants.tensor(value) if found is None and not self.training else found

    def affine(self) -> tuple[torch.Tensor | None, torch.Tensor | None, bool]:
        """Return weight and bias, and whether both are parameters where they are given."""
        weight, bias = self.tensor("weight"), self.tensor("bias")
        return weight, bias, [self["weight"] is None, self["bias"] is None] == [weight is None, bias is None]

    def is_tensor(self, value: object) -> bool:
        """Say whether an argument is a computed tensor rather than a number."""
        if not isinstance(value, fx.Node) or value in self.sizes:
            return False
        known = value.meta.get("val")
        return known is None or isinstance(known, torch.Tensor)

    def rank(self, value: fx.Node) -> int | None:
        """Return how many dimensions a value has; the graph is run where nothing else tells."""
        shape = shape_of(value)
        module = self.network.module_of(value)
        if shape is None and module is not None:
            known = {nn.Conv1d: 3, nn.Conv2d: 4, nn.Conv3d: 5}.get(type(module))  # type: ignore[arg-type]
            if known is not None:
                return known
        shape = self._measured(value) if shape is None else shape
        return None if shape is None else len(shape)

    def _measured(self, value: fx.Node) -> tuple[int, ...] | None:
        """Return the shape that the example inputs give a value, `None` where the graph cannot be run."""
        try:
            return self.network.shape_of(value)
        except Exception:  # noqa: BLE001 (a graph that torch.fx traced wrongly can fail in any operator)
            return None

    @property
    def training(self) -> bool:
        """The mode of the module whose code made the node."""
        owner = owner_module(self.original, self.node)
        return owner.training if owner is not None else self.network.training


def owner_module(original: nn.Module | None, node: fx.Node) -> nn.Module | None:
    try:
        return None if original is None else original.get_submodule(owner_of(node))
    except AttributeError:
        return None


def shape_of(node: fx.Node) -> tuple[Any, ...] | None:
    known = node.meta.get("val")
    return tuple(known.shape) if isinstance(known, torch.Tensor) else None


def _unary(make: Callable[[Call], nn.Module | None]) -> "Lift":
    """Lift a function of one tensor; `make` gives the module, or `None` when an argument has no module form."""

    def lift(call: Call) -> Made | None:
        others = [value for name, value in call.arguments.items() if name != "input"]
        if not call.is_tensor(call["input"]) or any(isinstance(value, fx.Node) for value in others):
            return None
        module = make(call)
        return None if module is None else (module, (call["input"],))

    return lift


def _binary(module: type[nn.Module]) -> "Lift":

    def lift(call: Call) -> Made | None:
        operands = (call["input"], call["other"])
        return (module(), operands) if call.get("alpha", 1) == 1 and all(map(call.is_tensor, operands)) else None

    return lift


def _hardtanh(call: Call) -> nn.Module:
    low, high = call["min_val"], call["max_val"]
    return nn.ReLU6() if (low, high) == (0, 6) else nn.Hardtanh(low, high)


def _elu(call: Call) -> nn.Module | None:
    return nn.ELU(call["alpha"]) if call.get("scale", 1) == 1 and call.get("input_scale", 1) == 1 else None


def _softmax(call: Call) -> nn.Module | None:
    return nn.Softmax(call["dim"]) if call["dtype"] is None and call["dim"] is not None else None


def _lift_dropout(call: Call) -> Made | None:
    """Lift dropout only when its flag agrees with the mode: then it came from ``self.training``."""
    if not call.is_tensor(call["input"]) or call["training"] is not call.training:
        return None
    return nn.Dropout(call["p"]), (call["input"],)


def _lift_cat(call: Call) -> Made | None:
    tensors = call["tensors"]
    if not isinstance(tensors, list | tuple) or not all(map(call.is_tensor, tensors)):
        return None
    return Concat(call["dim"]), tuple(tensors)


def _lift_attention(call: Call) -> Made | None:
    mask, dropout = call["attn_mask"], call["dropout_p"]
    training = call.training
    settled = not any(isinstance(call[name], fx.Node) for name in ("dropout_p", "is_causal", "scale", "enable_gqa"))
    if not settled or (dropout and not training) or not (mask is None or isinstance(mask, fx.Node)):
        return None
    module = ScaledDotProductAttention(
        dropout=dropout, causal=call["is_causal"], scale=call["scale"], grouped=call["enable_gqa"]
    )
    tensors = (call["query"], call["key"], call["value"])
    return module, tensors if mask is None else (*tensors, mask)


def _lift_reshape(call: Call) -> Made | None:
    """Recognize a flattening in a reshape, else spell it as torch.reshape."""
    value, sizes = call["input"], call["shape"]
    if not call.is_tensor(value) or not isinstance(sizes, list | tuple):
        return None
    if len(sizes) == 2 and _is_batch(value, sizes[0]) and _is_rest(call.node, value, sizes[1]):
        return nn.Flatten(1), (value,)
    return torch.reshape, (value, tuple(sizes))


def _is_batch(value: fx.Node, size: object) -> bool:
    if isinstance(size, fx.Node):
        if size.op == "call_method" and size.target == "size":
            return size.args[:2] == (value, 0)
        if size.target is torch.ops.aten.sym_size.int:
            source, known = size.args[0], shape_of(value)
            origin = shape_of(source) if isinstance(source, fx.Node) and size.args[1] == 0 else None
            return origin is not None and known is not None and str(origin[0]) == str(known[0])
        if size.target is operator.getitem and isinstance(size.args[0], fx.Node):
            shape = size.args[0]
            return bool(size.args[1] == 0 and shape.target in (getattr, "size") and shape.args[0] is value)
        return False
    known = shape_of(value)
    return known is not None and isinstance(known[0], int) and known[0] == size


def _is_rest(node: fx.Node, value: fx.Node, size: object) -> bool:
    if size == -1:
        known = shape_of(value)
        return known is None or len(known) > 2
    known, result = shape_of(value), shape_of(node)
    if known is None or result is None or len(known) <= 2 or not all(isinstance(side, int) for side in known[1:]):
        return False
    return bool(math.prod(known[1:]) == size)


def _lift_mean(call: Call) -> Made | None:
    if not call.is_tensor(call["input"]) or call["dim"] is None or call["dtype"] is not None:
        return None
    dims = call["dim"]
    return torch.mean, (call["input"], tuple(dims) if isinstance(dims, list | tuple) else (dims,), call["keepdim"])


def _moved(function: Callable[..., Any], *names: str) -> "Lift":
    """Spell a data movement as one function."""

    def lift(call: Call) -> Made | None:
        if not call.is_tensor(call["input"]):
            return None
        return function, (call["input"], *(tuple(v) if isinstance(v := call[name], list) else v for name in names))

    return lift


def _conv(kinds: dict[int, type[nn.Module]], *, transposed: bool = False) -> "Lift":
    """Lift a convolution whose weight is a parameter."""

    def lift(call: Call) -> Made | None:
        weight, bias, whole = call.affine()
        if weight is None or not whole or not call.is_tensor(call["input"]):
            return None
        spatial = weight.dim() - 2
        out, into = weight.shape[:2] if not transposed else weight.shape[1::-1]
        groups = call["groups"]
        out, into = (out, into * groups) if not transposed else (out * groups, into)
        extra = {"output_padding": _each(call["output_padding"], spatial)} if transposed else {}
        padding = call["padding"] if isinstance(call["padding"], str) else _each(call["padding"], spatial)
        module = kinds[spatial](
            into, out, tuple(weight.shape[2:]), stride=_each(call["stride"], spatial), padding=padding, groups=groups,
            dilation=_each(call["dilation"], spatial), bias=bias is not None, device="meta", **extra,
        )  # fmt: skip
        return _hold(module, weight=weight, bias=bias), (call["input"],)

    return lift


def _each(value: Any, spatial: int) -> tuple[int, ...]:
    listed = tuple(value) if isinstance(value, list | tuple) else (value,)
    return listed * spatial if len(listed) == 1 else listed


def _lift_linear(call: Call) -> Made | None:
    weight, bias, whole = call.affine()
    if weight is None or weight.dim() != 2 or not whole:
        return None
    module = nn.Linear(weight.shape[1], weight.shape[0], bias=bias is not None, device="meta")
    return _hold(module, weight=weight, bias=bias), (call["input"],)


def _lift_addmm(call: Call) -> Made | None:
    """Lift a product with a matrix that lies the other way round than a linear layer's (Hugging Face's Conv1D)."""
    weight, bias, whole = call.affine()
    if weight is None or bias is None or not whole or (call["alpha"], call["beta"]) != (1, 1):
        return None
    if weight.dim() != 2 or bias.shape != weight.shape[1:] or not call.is_tensor(call["input"]):
        return None
    return linear_of(weight.t(), bias), (call["input"],)


def _lift_matmul(call: Call) -> Made | None:
    """Lift a product with a matrix of parameters to a linear layer, and any other to a matrix product."""
    operands = (call["input"], call["other"])
    if not all(map(call.is_tensor, operands)):
        return None
    matrix = call.tensor("other")
    if matrix is not None and matrix.dim() == 2 and matrix.is_floating_point() and call.tensor("input") is None:
        return linear_of(matrix.t(), None), (call["input"],)
    return MatMul(), operands


def _lift_rms_norm(call: Call) -> Made | None:
    weight = call.tensor("weight")
    shape = call["normalized_shape"]
    if (weight is None) != (call["weight"] is None) or any(isinstance(size, fx.Node) for size in shape):
        return None
    module = nn.RMSNorm(tuple(shape), eps=call["eps"], elementwise_affine=weight is not None, device="meta")
    return _hold(module, weight=weight), (call["input"],)


def _lift_layer_norm(call: Call) -> Made | None:
    weight, bias, whole = call.affine()
    shape = call["normalized_shape"]
    if not whole or any(isinstance(size, fx.Node) for size in shape) or (weight is None and bias is not None):
        return None
    module = nn.LayerNorm(
        tuple(shape), eps=call["eps"], elementwise_affine=weight is not None, bias=bias is not None, device="meta"
    )
    return _hold(module, weight=weight, bias=bias), (call["input"],)


def _lift_group_norm(call: Call) -> Made | None:
    weight, bias = call.tensor("weight"), call.tensor("bias")
    if weight is None or bias is None:
        return None
    module = nn.GroupNorm(call["num_groups"], weight.shape[0], eps=call["eps"], device="meta")
    return _hold(module, weight=weight, bias=bias), (call["input"],)


def _lift_batch_norm(call: Call) -> Made | None:
    """Lift a batch norm with running statistics; the statistics are copied, because training writes to them."""
    weight, bias, whole = call.affine()
    mean, variance = call.tensor("running_mean"), call.tensor("running_var")
    if not whole or mean is None or variance is None or call["training"] is not call.training:
        return None
    ranks: dict[int, type[nn.modules.batchnorm._BatchNorm]] = {
        2: nn.BatchNorm1d, 3: nn.BatchNorm1d, 4: nn.BatchNorm2d, 5: nn.BatchNorm3d,
    }  # fmt: skip
    kind = ranks.get(call.rank(call["input"]) or 0)
    if kind is None:
        return None
    module = kind(mean.shape[0], eps=call["eps"], momentum=call["momentum"], affine=False)
    module.running_mean, module.running_var = mean.detach().clone(), variance.detach().clone()
    module.affine = weight is not None
    return _hold(module, weight=weight, bias=bias), (call["input"],)


def _lift_embedding(call: Call) -> Made | None:
    weight = call.tensor("weight")
    if weight is None or call["scale_grad_by_freq"] or call["sparse"] or call.get("max_norm") is not None:
        return None
    padding = call["padding_idx"]
    module = nn.Embedding(
        weight.shape[0], weight.shape[1], padding_idx=None if padding in (None, -1) else padding, device="meta"
    )
    return _hold(module, weight=weight), (call["input"],)


def _hold(module: nn.Module, **tensors: torch.Tensor | None) -> nn.Module:
    """Give a module made without memory the user's own tensors."""
    for name, value in tensors.items():
        if value is None:
            continue
        module.register_parameter(
            name, value if isinstance(value, nn.Parameter) else nn.Parameter(value, value.requires_grad)
        )
    return module


def _max_pool(call: Call) -> nn.Module | None:
    if call.get("return_indices"):
        return None
    return nn.MaxPool2d(
        call["kernel_size"], call["stride"] or None, call["padding"], call["dilation"], ceil_mode=call["ceil_mode"]
    )


def _avg_pool(call: Call) -> nn.Module:
    return nn.AvgPool2d(
        call["kernel_size"], call["stride"] or None, call["padding"], call["ceil_mode"], call["count_include_pad"],
        call["divisor_override"],
    )  # fmt: skip


Lift = Callable[[Call], Made | None]
_CONVS: dict[int, type[nn.Module]] = {1: nn.Conv1d, 2: nn.Conv2d, 3: nn.Conv3d}
_TRANSPOSED: dict[int, type[nn.Module]] = {1: nn.ConvTranspose1d, 2: nn.ConvTranspose2d, 3: nn.ConvTranspose3d}
LIFTS: dict[str, Lift] = {
    "relu": _unary(lambda _: nn.ReLU()),
    "relu6": _unary(lambda _: nn.ReLU6()),
    "hardtanh": _unary(_hardtanh),
    "leaky_relu": _unary(lambda call: nn.LeakyReLU(call["negative_slope"])),
    "elu": _unary(_elu),
    "gelu": _unary(lambda call: nn.GELU(call["approximate"])),
    "silu": _unary(lambda _: nn.SiLU()),
    "mish": _unary(lambda _: nn.Mish()),
    "hardswish": _unary(lambda _: nn.Hardswish()),
    "hardsigmoid": _unary(lambda _: nn.Hardsigmoid()),
    "sigmoid": _unary(lambda _: nn.Sigmoid()),
    "tanh": _unary(lambda _: nn.Tanh()),
    "softmax": _unary(_softmax),
    "flatten": _unary(lambda call: nn.Flatten(call["start_dim"], call["end_dim"])),
    "max_pool2d": _unary(_max_pool),
    "avg_pool2d": _unary(_avg_pool),
    "adaptive_avg_pool2d": _unary(lambda call: nn.AdaptiveAvgPool2d(call["output_size"])),
    "dropout": _lift_dropout,
    "add": _binary(Add),
    "mul": _binary(Multiply),
    "matmul": _lift_matmul,
    "addmm": _lift_addmm,
    "cat": _lift_cat,
    "attention": _lift_attention,
    "reshape": _lift_reshape,
    "mean": _lift_mean,
    "permute": _moved(torch.permute, "dims"),
    "transpose": _moved(torch.transpose, "dim0", "dim1"),
    "conv": _conv(_CONVS),
    "conv_transpose": _conv(_TRANSPOSED, transposed=True),
    "linear": _lift_linear,
    "layer_norm": _lift_layer_norm,
    "rms_norm": _lift_rms_norm,
    "group_norm": _lift_group_norm,
    "batch_norm": _lift_batch_norm,
    "embedding": _lift_embedding,
}
