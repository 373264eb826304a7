"""Which module an operator is a form of: one function per operator, whatever it was spelled like.

A lift gets the arguments by name and returns the module and its inputs, or a function for a data movement that is only
spelled anew, or `None` when an argument has no module form.
"""

import operator
from collections.abc import Callable
from typing import Any, Protocol

import torch
from torch import fx, nn

from embedl_deploy.nn import Add, Concat, MatMul, Multiply, ScaledDotProductAttention

Made = tuple[nn.Module | Callable[..., Any], tuple[Any, ...]]


class Facts(Protocol):
    """What a lift may ask about the graph."""

    def tensor(self, value: object) -> torch.Tensor | None:
        """Return the parameter or buffer behind an argument."""

    def is_tensor(self, value: object) -> bool:
        """Say whether an argument is a computed tensor rather than a number."""

    def shape(self, node: fx.Node) -> tuple[Any, ...] | None:
        """Return a shape that torch.export recorded."""

    def rank(self, node: fx.Node) -> int | None:
        """Return how many dimensions a value has."""

    def mode_of(self, node: fx.Node) -> bool:
        """Return the mode of the module whose code made the node."""


def _unary(make: Callable[[dict[str, Any]], nn.Module | None]) -> "Lift":
    """Lift a function of one tensor; `make` gives the module, or `None` when an argument has no module form."""

    def lift(facts: Facts, node: fx.Node, bound: dict[str, Any]) -> Made | None:
        del node
        if not facts.is_tensor(bound["input"]) or any(isinstance(v, fx.Node) for k, v in bound.items() if k != "input"):
            return None
        module = make(bound)
        return None if module is None else (module, (bound["input"],))

    return lift


def _binary(module: type[nn.Module]) -> "Lift":
    """Lift an operator of two tensors."""

    def lift(facts: Facts, node: fx.Node, bound: dict[str, Any]) -> Made | None:
        del node
        one, other = bound["input"], bound["other"]
        if bound.get("alpha", 1) != 1 or not (facts.is_tensor(one) and facts.is_tensor(other)):
            return None
        return module(), (one, other)

    return lift


def _hardtanh(bound: dict[str, Any]) -> nn.Module:
    low, high = bound["min_val"], bound["max_val"]
    return nn.ReLU6() if (low, high) == (0, 6) else nn.Hardtanh(low, high)


def _elu(bound: dict[str, Any]) -> nn.Module | None:
    return nn.ELU(bound["alpha"]) if bound.get("scale", 1) == 1 and bound.get("input_scale", 1) == 1 else None


def _softmax(bound: dict[str, Any]) -> nn.Module | None:
    return nn.Softmax(bound["dim"]) if bound["dtype"] is None and bound["dim"] is not None else None


def _lift_dropout(facts: Facts, node: fx.Node, bound: dict[str, Any]) -> Made | None:
    """Lift dropout only when its flag agrees with the mode: then it came from ``self.training``."""
    if not facts.is_tensor(bound["input"]) or bound["training"] is not facts.mode_of(node):
        return None
    return nn.Dropout(bound["p"]), (bound["input"],)


def _lift_cat(facts: Facts, node: fx.Node, bound: dict[str, Any]) -> Made | None:
    del node
    tensors = bound["tensors"]
    if not isinstance(tensors, list | tuple) or not all(facts.is_tensor(one) for one in tensors):
        return None
    return Concat(bound["dim"]), tuple(tensors)


def _lift_attention(facts: Facts, node: fx.Node, bound: dict[str, Any]) -> Made | None:
    mask, dropout = bound["attn_mask"], bound["dropout_p"]
    training = facts.mode_of(node)
    settled = not any(isinstance(bound[name], fx.Node) for name in ("dropout_p", "is_causal", "scale", "enable_gqa"))
    if not settled or (dropout and not training) or not (mask is None or isinstance(mask, fx.Node)):
        return None
    module = ScaledDotProductAttention(
        dropout=dropout, causal=bound["is_causal"], scale=bound["scale"], grouped=bound["enable_gqa"]
    )
    tensors = (bound["query"], bound["key"], bound["value"])
    return module, tensors if mask is None else (*tensors, mask)


def _lift_reshape(facts: Facts, node: fx.Node, bound: dict[str, Any]) -> Made | None:
    """Recognise a flattening in a reshape, else spell it as torch.reshape."""
    value, sizes = bound["input"], bound["shape"]
    if not facts.is_tensor(value) or not isinstance(sizes, list | tuple):
        return None
    if len(sizes) == 2 and _is_batch(facts, value, sizes[0]) and _is_rest(facts, node, value, sizes[1]):
        return nn.Flatten(1), (value,)
    return torch.reshape, (value, tuple(sizes))


def _is_batch(facts: Facts, value: fx.Node, size: object) -> bool:
    """Say whether a size is the first dimension of a value."""
    if isinstance(size, fx.Node):
        if size.op == "call_method" and size.target == "size":
            return size.args[:2] == (value, 0)
        if size.target is torch.ops.aten.sym_size.int:
            source, known = size.args[0], facts.shape(value)
            origin = facts.shape(source) if isinstance(source, fx.Node) and size.args[1] == 0 else None
            return origin is not None and known is not None and str(origin[0]) == str(known[0])
        if size.target is operator.getitem and isinstance(size.args[0], fx.Node):
            shape = size.args[0]
            return bool(size.args[1] == 0 and shape.target in (getattr, "size") and shape.args[0] is value)
        return False
    known = facts.shape(value)
    return known is not None and isinstance(known[0], int) and known[0] == size


def _is_rest(facts: Facts, node: fx.Node, value: fx.Node, size: object) -> bool:
    """Say whether a size takes in everything but the batch."""
    if size == -1:
        known = facts.shape(value)
        return known is None or len(known) > 2
    known, result = facts.shape(value), facts.shape(node)
    if known is None or result is None or len(known) <= 2 or not all(isinstance(one, int) for one in known[1:]):
        return False
    count = 1
    for one in known[1:]:
        count *= one
    return count == size


def _lift_mean(facts: Facts, node: fx.Node, bound: dict[str, Any]) -> Made | None:
    del node
    if not facts.is_tensor(bound["input"]) or bound["dim"] is None or bound["dtype"] is not None:
        return None
    dims = bound["dim"]
    return torch.mean, (bound["input"], tuple(dims) if isinstance(dims, list | tuple) else (dims,), bound["keepdim"])


def _moved(function: Callable[..., Any], *names: str) -> "Lift":
    """Spell a data movement as one function."""

    def lift(facts: Facts, node: fx.Node, bound: dict[str, Any]) -> Made | None:
        del node
        if not facts.is_tensor(bound["input"]):
            return None
        return function, (bound["input"], *(tuple(v) if isinstance(v := bound[name], list) else v for name in names))

    return lift


def _conv(kinds: dict[int, type[nn.Module]], *, transposed: bool = False) -> "Lift":
    """Lift a convolution whose weight is a parameter."""

    def lift(facts: Facts, node: fx.Node, bound: dict[str, Any]) -> Made | None:
        del node
        weight, bias = facts.tensor(bound["weight"]), facts.tensor(bound["bias"])
        if weight is None or (bound["bias"] is not None and bias is None) or not facts.is_tensor(bound["input"]):
            return None
        spatial = weight.dim() - 2
        out, into = weight.shape[:2] if not transposed else weight.shape[1::-1]
        groups = bound["groups"]
        out, into = (out, into * groups) if not transposed else (out * groups, into)
        extra = {"output_padding": _each(bound["output_padding"], spatial)} if transposed else {}
        padding = bound["padding"] if isinstance(bound["padding"], str) else _each(bound["padding"], spatial)
        module = kinds[spatial](
            into, out, tuple(weight.shape[2:]), stride=_each(bound["stride"], spatial), padding=padding, groups=groups,
            dilation=_each(bound["dilation"], spatial), bias=bias is not None, device="meta", **extra,
        )  # fmt: skip
        return _hold(module, weight=weight, bias=bias), (bound["input"],)

    return lift


def _each(value: Any, spatial: int) -> tuple[int, ...]:
    """Spell a setting once per dimension."""
    listed = tuple(value) if isinstance(value, list | tuple) else (value,)
    return listed * spatial if len(listed) == 1 else listed


def _lift_linear(facts: Facts, node: fx.Node, bound: dict[str, Any]) -> Made | None:
    del node
    weight, bias = facts.tensor(bound["weight"]), facts.tensor(bound["bias"])
    if weight is None or weight.dim() != 2 or (bound["bias"] is not None and bias is None):
        return None
    module = nn.Linear(weight.shape[1], weight.shape[0], bias=bias is not None, device="meta")
    return _hold(module, weight=weight, bias=bias), (bound["input"],)


def _lift_layer_norm(facts: Facts, node: fx.Node, bound: dict[str, Any]) -> Made | None:
    del node
    weight, bias = facts.tensor(bound["weight"]), facts.tensor(bound["bias"])
    shape = bound["normalized_shape"]
    given = [bound["weight"] is None, bound["bias"] is None]
    if given != [weight is None, bias is None] or any(isinstance(one, fx.Node) for one in shape):
        return None
    if weight is None and bias is not None:
        return None
    module = nn.LayerNorm(
        tuple(shape), eps=bound["eps"], elementwise_affine=weight is not None, bias=bias is not None, device="meta"
    )
    return _hold(module, weight=weight, bias=bias), (bound["input"],)


def _lift_group_norm(facts: Facts, node: fx.Node, bound: dict[str, Any]) -> Made | None:
    del node
    weight, bias = facts.tensor(bound["weight"]), facts.tensor(bound["bias"])
    if weight is None or bias is None:
        return None
    module = nn.GroupNorm(bound["num_groups"], weight.shape[0], eps=bound["eps"], device="meta")
    return _hold(module, weight=weight, bias=bias), (bound["input"],)


def _lift_batch_norm(facts: Facts, node: fx.Node, bound: dict[str, Any]) -> Made | None:
    """Lift a batch norm with running statistics; the statistics are copied, because training writes to them."""
    held = {name: facts.tensor(bound[name]) for name in ("weight", "bias", "running_mean", "running_var")}
    kind = {3: nn.BatchNorm1d, 4: nn.BatchNorm2d, 5: nn.BatchNorm3d}.get(facts.rank(bound["input"]) or 0)
    if kind is None or any(value is None for value in held.values()) or bound["training"] is not facts.mode_of(node):
        return None
    weight = held["weight"]
    assert weight is not None
    module = kind(weight.shape[0], eps=bound["eps"], momentum=bound["momentum"])
    for name in ("running_mean", "running_var"):
        value = held.pop(name)
        assert value is not None
        setattr(module, name, value.detach().clone())
    return _hold(module, **held), (bound["input"],)


def _lift_embedding(facts: Facts, node: fx.Node, bound: dict[str, Any]) -> Made | None:
    del node
    weight = facts.tensor(bound["weight"])
    if weight is None or bound["scale_grad_by_freq"] or bound["sparse"] or bound.get("max_norm") is not None:
        return None
    padding = bound["padding_idx"]
    module = nn.Embedding(
        weight.shape[0], weight.shape[1], padding_idx=None if padding in (None, -1) else padding, device="meta"
    )
    return _hold(module, weight=weight), (bound["input"],)


def _hold(module: nn.Module, **tensors: torch.Tensor | None) -> nn.Module:
    """Give a module made without memory the user's own tensors."""
    for name, value in tensors.items():
        if value is None:
            continue
        module.register_parameter(
            name, value if isinstance(value, nn.Parameter) else nn.Parameter(value, value.requires_grad)
        )
    return module


def _max_pool(bound: dict[str, Any]) -> nn.Module | None:
    if bound.get("return_indices"):
        return None
    return nn.MaxPool2d(
        bound["kernel_size"], bound["stride"] or None, bound["padding"], bound["dilation"], ceil_mode=bound["ceil_mode"]
    )


def _avg_pool(bound: dict[str, Any]) -> nn.Module:
    return nn.AvgPool2d(
        bound["kernel_size"], bound["stride"] or None, bound["padding"], bound["ceil_mode"], bound["count_include_pad"],
        bound["divisor_override"],
    )  # fmt: skip


Lift = Callable[[Facts, fx.Node, dict[str, Any]], Made | None]
_CONVS: dict[int, type[nn.Module]] = {1: nn.Conv1d, 2: nn.Conv2d, 3: nn.Conv3d}
_TRANSPOSED: dict[int, type[nn.Module]] = {1: nn.ConvTranspose1d, 2: nn.ConvTranspose2d, 3: nn.ConvTranspose3d}
LIFTS: dict[str, Lift] = {
    "relu": _unary(lambda _: nn.ReLU()),
    "relu6": _unary(lambda _: nn.ReLU6()),
    "hardtanh": _unary(_hardtanh),
    "leaky_relu": _unary(lambda bound: nn.LeakyReLU(bound["negative_slope"])),
    "elu": _unary(_elu),
    "gelu": _unary(lambda bound: nn.GELU(bound["approximate"])),
    "silu": _unary(lambda _: nn.SiLU()),
    "mish": _unary(lambda _: nn.Mish()),
    "hardswish": _unary(lambda _: nn.Hardswish()),
    "hardsigmoid": _unary(lambda _: nn.Hardsigmoid()),
    "sigmoid": _unary(lambda _: nn.Sigmoid()),
    "tanh": _unary(lambda _: nn.Tanh()),
    "softmax": _unary(_softmax),
    "flatten": _unary(lambda bound: nn.Flatten(bound["start_dim"], bound["end_dim"])),
    "max_pool2d": _unary(_max_pool),
    "avg_pool2d": _unary(_avg_pool),
    "adaptive_avg_pool2d": _unary(lambda bound: nn.AdaptiveAvgPool2d(bound["output_size"])),
    "dropout": _lift_dropout,
    "add": _binary(Add),
    "mul": _binary(Multiply),
    "matmul": _binary(MatMul),
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
    "group_norm": _lift_group_norm,
    "batch_norm": _lift_batch_norm,
    "embedding": _lift_embedding,
}
