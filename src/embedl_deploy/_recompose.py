"""One vocabulary whatever the front end: functions, methods and ATen operators become the modules they are forms of.

    F.relu(x), x.relu(), torch.relu(x), aten.relu(x)   →  nn.ReLU
    F.conv2d(x, self.w, self.b), aten.conv2d           →  nn.Conv2d holding those very parameters
    a + b, torch.add(a, b), aten.add.Tensor            →  Add
    x.view(x.size(0), -1), torch.flatten(x, 1)         →  nn.Flatten

Where torch.export recorded that an operator came from one of the user's modules, that module takes its place again,
under its own name. What has no module form stays a function. Nothing is rewritten here that changes a result.
"""

import operator
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

import torch
from torch import fx, nn

from embedl_deploy._graph import Network, join, owner_of
from embedl_deploy._spelling import SPELLINGS
from embedl_deploy.nn import Add, Concat, MatMul, Multiply, ScaledDotProductAttention

Made = tuple[nn.Module | Callable[..., Any], tuple[Any, ...]]


def recompose(network: Network, original: nn.Module | None) -> None:
    """Bring a network into the one vocabulary, in place.

    Args:
        network: Fresh from a front end.
        original: The structural copy of the user's model, when there is one, to take modules from.
    """
    lifter = _Lifter(network, original)
    for node in list(network.graph.nodes):
        lifter.see(node)
    lifter.drop_counters()


@dataclass
class _Lifter:
    """Looks at each node in turn; sizes are told from tensors on the way."""

    network: Network
    original: nn.Module | None
    sizes: set[fx.Node] = field(default_factory=set)
    lifted: dict[str, nn.Module] = field(default_factory=dict)

    def see(self, node: fx.Node) -> None:
        """Give one node its module form, if it has one."""
        if node.op not in ("call_function", "call_method"):
            return
        if self._is_size(node):
            self.sizes.add(node)
            return
        spelling = SPELLINGS.get(node.target if node.op == "call_function" else f".{node.target}")
        if spelling is None:
            return
        bound = spelling.bind(node)
        if bound is None or (spelling.in_place(node) and self._is_seen_later(node)):
            return
        made = _LIFTS[spelling.op](self, node, bound)
        if made is None:
            return
        what, inputs = made
        if isinstance(what, nn.Module):
            what.training = self._mode_of(node)
            name, module = self._identity(node, what, bound)
            self.network.recast_module(node, name, module, inputs)
        else:
            self.network.recast_function(node, what, inputs)

    def drop_counters(self) -> None:
        """Remove the batch counters that torch.export wrote out beside batch norms in training mode."""
        for node in reversed(list(self.network.graph.nodes)):
            if node.target is torch.ops.aten.add_.Tensor and not node.users:
                source = node.args[0]
                while isinstance(source, fx.Node) and source.target is torch.ops.aten.add_.Tensor:
                    source = source.args[0]
                if isinstance(source, fx.Node) and str(source.target).endswith("num_batches_tracked"):
                    self.network.erase(node)

    def tensor(self, value: object) -> torch.Tensor | None:
        """Return the parameter or buffer behind an argument."""
        return self.network.tensor_of(value) if isinstance(value, fx.Node) else None

    def is_tensor(self, value: object) -> bool:
        """Say whether an argument is a computed tensor rather than a number."""
        if not isinstance(value, fx.Node) or value in self.sizes:
            return False
        known = value.meta.get("val")
        return known is None or isinstance(known, torch.Tensor)

    def shape(self, node: fx.Node) -> tuple[Any, ...] | None:
        """Return a shape that torch.export recorded."""
        known = node.meta.get("val")
        return tuple(known.shape) if isinstance(known, torch.Tensor) else None

    def rank(self, node: fx.Node) -> int | None:
        """Return how many dimensions a value has, when that can be told without running anything."""
        shape = self.shape(node)
        if shape is not None:
            return len(shape)
        module = self.network.module_of(node)
        return {nn.Conv1d: 3, nn.Conv2d: 4, nn.Conv3d: 5}.get(type(module)) if module is not None else None  # type: ignore[arg-type]

    def _mode_of(self, node: fx.Node) -> bool:
        """Return the mode of the module whose code made the node."""
        owner = self._owner(node)
        return owner.training if owner is not None else self.network.training

    def _owner(self, node: fx.Node) -> nn.Module | None:
        """Return the user's module whose code made the node."""
        if self.original is None:
            return None
        try:
            return self.original.get_submodule(owner_of(node))
        except AttributeError:
            return None

    def _identity(self, node: fx.Node, made: nn.Module, bound: dict[str, Any]) -> tuple[str, nn.Module]:
        """Find the user's own module for a lifted one, else name the new one after where it stands."""
        owner = self._owner(node)
        if owner is not None and type(owner) is type(made) and _same_tensors(owner, made):
            return owner_of(node), owner
        weight = bound.get("weight")
        base = join(owner_of(node), _stem(node))
        if isinstance(weight, fx.Node) and weight.op == "get_attr":
            base = str(weight.target).removesuffix("weight").rstrip("._") or base
        elif _recorded_type(node) == f"{type(made).__module__}.{type(made).__qualname__}":
            base = owner_of(node)
        earlier = self.lifted.get(base)
        if earlier is not None and repr(earlier) == repr(made) and _same_tensors(earlier, made):
            return base, earlier  # one module called at several sites
        name = self._fresh(base)
        self.lifted[name] = made
        return name, made

    def _fresh(self, base: str) -> str:
        """Make a name that no called module and no tensor has."""
        name, number = base, 1
        calls, tensors = self.network.calls, self.network.tensors
        while calls[name] or name in tensors:
            name, number = f"{base}_{number}", number + 1
        return name

    def _is_size(self, node: fx.Node) -> bool:
        """Say whether a node is a number or a shape rather than a tensor."""
        known = node.meta.get("val")
        if known is not None:
            return not isinstance(known, torch.Tensor | list | tuple)
        if node.op == "call_method":
            return node.target in ("size", "dim", "numel", "ndimension")
        if node.target is getattr:
            return node.args[1] in ("shape", "ndim", "dtype", "device")
        inputs = node.all_input_nodes
        arithmetic = getattr(node.target, "__module__", "") == "_operator"
        return arithmetic and bool(inputs) and all(used in self.sizes for used in inputs)

    def _is_seen_later(self, node: fx.Node) -> bool:
        """Say whether someone reads, after an in-place operator, a value that it changed under another name."""
        changed = node.args[0]
        while isinstance(changed, fx.Node):
            if any(user is not node and user > node for user in changed.users):
                return True
            if changed.op in ("placeholder", "get_attr"):
                return True
            name = changed.target if changed.op == "call_method" else getattr(changed.target, "__name__", "")
            viewing = str(name).partition(".")[0] in _VIEWS and changed.op in ("call_method", "call_function")
            if not viewing or not changed.args:
                return False
            changed = changed.args[0]
        return False


def _recorded_type(node: fx.Node) -> str:
    """Return the type of the module whose code made the node, as torch.export wrote it down."""
    stack = node.meta.get("nn_module_stack")
    found = next(reversed(stack.values()))[1] if stack else ""
    return found if isinstance(found, str) else f"{found.__module__}.{found.__qualname__}"


def _stem(node: fx.Node) -> str:
    """Name a function without the path that torch.fx puts before it."""
    name = node.target if node.op == "call_method" else getattr(node.target, "__name__", node.name)
    return str(name).partition(".")[0].strip("_")


_VIEWS = frozenset(
    {"view", "reshape", "transpose", "permute", "getitem", "select", "slice", "unsqueeze", "squeeze", "flatten",
     "expand",
     "chunk", "split", "unbind", "narrow", "detach", "contiguous", "t", "movedim", "swapaxes", "unflatten"}
)  # fmt: skip


def _same_tensors(one: nn.Module, other: nn.Module) -> bool:
    """Say whether two modules hold the very same parameters."""
    mine, theirs = dict(one.named_parameters()), dict(other.named_parameters())
    return mine.keys() == theirs.keys() and all(mine[name] is theirs[name] for name in mine)


def _unary(make: Callable[[dict[str, Any]], nn.Module | None]) -> "_Lift":
    """Lift a function of one tensor; `make` gives the module, or `None` when an argument has no module form."""

    def lift(lifter: _Lifter, node: fx.Node, bound: dict[str, Any]) -> Made | None:
        del node
        if not lifter.is_tensor(bound["input"]) or any(
            isinstance(v, fx.Node) for k, v in bound.items() if k != "input"
        ):
            return None
        module = make(bound)
        return None if module is None else (module, (bound["input"],))

    return lift


def _binary(module: type[nn.Module]) -> "_Lift":
    """Lift an operator of two tensors."""

    def lift(lifter: _Lifter, node: fx.Node, bound: dict[str, Any]) -> Made | None:
        del node
        one, other = bound["input"], bound["other"]
        if bound.get("alpha", 1) != 1 or not (lifter.is_tensor(one) and lifter.is_tensor(other)):
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


def _lift_dropout(lifter: _Lifter, node: fx.Node, bound: dict[str, Any]) -> Made | None:
    """Lift dropout only when its flag agrees with the mode: then it came from ``self.training``."""
    if not lifter.is_tensor(bound["input"]) or bound["training"] is not lifter._mode_of(node):
        return None
    return nn.Dropout(bound["p"]), (bound["input"],)


def _lift_cat(lifter: _Lifter, node: fx.Node, bound: dict[str, Any]) -> Made | None:
    del node
    tensors = bound["tensors"]
    if not isinstance(tensors, list | tuple) or not all(lifter.is_tensor(one) for one in tensors):
        return None
    return Concat(bound["dim"]), tuple(tensors)


def _lift_attention(lifter: _Lifter, node: fx.Node, bound: dict[str, Any]) -> Made | None:
    mask, dropout = bound["attn_mask"], bound["dropout_p"]
    training = lifter._mode_of(node)
    settled = not any(isinstance(bound[name], fx.Node) for name in ("dropout_p", "is_causal", "scale", "enable_gqa"))
    if not settled or (dropout and not training) or not (mask is None or isinstance(mask, fx.Node)):
        return None
    module = ScaledDotProductAttention(
        dropout=dropout, causal=bound["is_causal"], scale=bound["scale"], grouped=bound["enable_gqa"]
    )
    tensors = (bound["query"], bound["key"], bound["value"])
    return module, tensors if mask is None else (*tensors, mask)


def _lift_reshape(lifter: _Lifter, node: fx.Node, bound: dict[str, Any]) -> Made | None:
    """Recognise a flattening in a reshape, else spell it as torch.reshape."""
    value, sizes = bound["input"], bound["shape"]
    if not lifter.is_tensor(value) or not isinstance(sizes, list | tuple):
        return None
    if len(sizes) == 2 and _is_batch(lifter, value, sizes[0]) and _is_rest(lifter, node, value, sizes[1]):
        return nn.Flatten(1), (value,)
    return torch.reshape, (value, tuple(sizes))


def _is_batch(lifter: _Lifter, value: fx.Node, size: object) -> bool:
    """Say whether a size is the first dimension of a value."""
    if isinstance(size, fx.Node):
        if size.op == "call_method" and size.target == "size":
            return size.args[:2] == (value, 0)
        if size.target is torch.ops.aten.sym_size.int:
            source, known = size.args[0], lifter.shape(value)
            origin = lifter.shape(source) if isinstance(source, fx.Node) and size.args[1] == 0 else None
            return origin is not None and known is not None and str(origin[0]) == str(known[0])
        if size.target is operator.getitem and isinstance(size.args[0], fx.Node):
            shape = size.args[0]
            return bool(size.args[1] == 0 and shape.target in (getattr, "size") and shape.args[0] is value)
        return False
    known = lifter.shape(value)
    return known is not None and isinstance(known[0], int) and known[0] == size


def _is_rest(lifter: _Lifter, node: fx.Node, value: fx.Node, size: object) -> bool:
    """Say whether a size takes in everything but the batch."""
    if size == -1:
        known = lifter.shape(value)
        return known is None or len(known) > 2
    known, result = lifter.shape(value), lifter.shape(node)
    if known is None or result is None or len(known) <= 2 or not all(isinstance(one, int) for one in known[1:]):
        return False
    count = 1
    for one in known[1:]:
        count *= one
    return count == size


def _lift_mean(lifter: _Lifter, node: fx.Node, bound: dict[str, Any]) -> Made | None:
    del node
    if not lifter.is_tensor(bound["input"]) or bound["dim"] is None or bound["dtype"] is not None:
        return None
    dims = bound["dim"]
    return torch.mean, (bound["input"], tuple(dims) if isinstance(dims, list | tuple) else (dims,), bound["keepdim"])


def _moved(function: Callable[..., Any], *names: str) -> "_Lift":
    """Spell a data movement as one function."""

    def lift(lifter: _Lifter, node: fx.Node, bound: dict[str, Any]) -> Made | None:
        del node
        if not lifter.is_tensor(bound["input"]):
            return None
        return function, (bound["input"], *(tuple(v) if isinstance(v := bound[name], list) else v for name in names))

    return lift


def _conv(kinds: dict[int, type[nn.Module]], *, transposed: bool = False) -> "_Lift":
    """Lift a convolution whose weight is a parameter."""

    def lift(lifter: _Lifter, node: fx.Node, bound: dict[str, Any]) -> Made | None:
        del node
        weight, bias = lifter.tensor(bound["weight"]), lifter.tensor(bound["bias"])
        if weight is None or (bound["bias"] is not None and bias is None) or not lifter.is_tensor(bound["input"]):
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


def _lift_linear(lifter: _Lifter, node: fx.Node, bound: dict[str, Any]) -> Made | None:
    del node
    weight, bias = lifter.tensor(bound["weight"]), lifter.tensor(bound["bias"])
    if weight is None or weight.dim() != 2 or (bound["bias"] is not None and bias is None):
        return None
    module = nn.Linear(weight.shape[1], weight.shape[0], bias=bias is not None, device="meta")
    return _hold(module, weight=weight, bias=bias), (bound["input"],)


def _lift_layer_norm(lifter: _Lifter, node: fx.Node, bound: dict[str, Any]) -> Made | None:
    del node
    weight, bias = lifter.tensor(bound["weight"]), lifter.tensor(bound["bias"])
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


def _lift_group_norm(lifter: _Lifter, node: fx.Node, bound: dict[str, Any]) -> Made | None:
    del node
    weight, bias = lifter.tensor(bound["weight"]), lifter.tensor(bound["bias"])
    if weight is None or bias is None:
        return None
    module = nn.GroupNorm(bound["num_groups"], weight.shape[0], eps=bound["eps"], device="meta")
    return _hold(module, weight=weight, bias=bias), (bound["input"],)


def _lift_batch_norm(lifter: _Lifter, node: fx.Node, bound: dict[str, Any]) -> Made | None:
    """Lift a batch norm with running statistics; the statistics are copied, because training writes to them."""
    held = {name: lifter.tensor(bound[name]) for name in ("weight", "bias", "running_mean", "running_var")}
    kind = {3: nn.BatchNorm1d, 4: nn.BatchNorm2d, 5: nn.BatchNorm3d}.get(lifter.rank(bound["input"]) or 0)
    if kind is None or any(value is None for value in held.values()) or bound["training"] is not lifter._mode_of(node):
        return None
    weight = held["weight"]
    assert weight is not None
    module = kind(weight.shape[0], eps=bound["eps"], momentum=bound["momentum"])
    for name in ("running_mean", "running_var"):
        value = held.pop(name)
        assert value is not None
        setattr(module, name, value.detach().clone())
    return _hold(module, **held), (bound["input"],)


def _lift_embedding(lifter: _Lifter, node: fx.Node, bound: dict[str, Any]) -> Made | None:
    del node
    weight = lifter.tensor(bound["weight"])
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


_Lift = Callable[[_Lifter, fx.Node, dict[str, Any]], Made | None]
_CONVS: dict[int, type[nn.Module]] = {1: nn.Conv1d, 2: nn.Conv2d, 3: nn.Conv3d}
_TRANSPOSED: dict[int, type[nn.Module]] = {1: nn.ConvTranspose1d, 2: nn.ConvTranspose2d, 3: nn.ConvTranspose3d}
_LIFTS: dict[str, _Lift] = {
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
