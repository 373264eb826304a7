"""The many ways to write one operator: torch functions, methods, Python operators, ATen overloads.

Each is listed once with the names of its arguments, so that `_recompose` reads every spelling the same way.
"""

import operator
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

import torch
from torch import fx
from torch.nn import functional as F  # noqa: N812 (the name everybody uses)

_MISSING = object()
_aten = torch.ops.aten


@dataclass(frozen=True)
class Spelling:
    """One way to write an operator."""

    op: str  # The operator it means.
    names: tuple[str, ...]  # Its arguments in order.
    defaults: Mapping[str, Any]  # Values of the arguments that may be left out.
    star: bool = False  # The last argument may also be written out as several (x.view(2, 3)).
    writes: bool = False  # It changes its first argument.

    def bind(self, node: fx.Node) -> Mapping[str, Any] | None:
        """Return the arguments of a call by name, `None` when it is called in a way that is not listed."""
        args = list(node.args)
        last = len(self.names) - 1
        # A single value may be a whole shape (x.view(y.shape)), so only several, or a number, are written out.
        if self.star and (len(args) > last + 1 or (len(args) == last + 1 and isinstance(args[last], int))):
            args = [*args[:last], tuple(args[last:])]
        if len(args) > len(self.names):
            return None
        bound = dict(zip(self.names, args, strict=False))
        for name, value in node.kwargs.items():
            key = self.names[0] if name in ("input", "self") else name
            if key not in self.names or key in bound:
                return None
            bound[key] = value
        for name in self.names:
            if bound.setdefault(name, self.defaults.get(name, _MISSING)) is _MISSING:
                return None
        return bound

    def in_place(self, node: fx.Node) -> bool:
        given = {**dict(zip(self.names, node.args, strict=False)), **node.kwargs}
        return self.writes or given.get("inplace") is True


_Target = Callable[..., Any] | str
SPELLINGS: dict[Any, Spelling] = {}


def _add(op: str, *targets: _Target, names: str, star: bool = False, writes: bool = False, **defaults: Any) -> None:
    for target in targets:
        SPELLINGS[target] = Spelling(op, tuple(names.split()), defaults, star, writes)


def _activation(name: str, *, extra: str = "", aten: str | None = None, **defaults: Any) -> None:
    """List every spelling of an activation, in place and not."""
    names = f"input {extra}".strip()
    if function := getattr(F, name, None):
        _add(name, function, names=f"{names} inplace", inplace=False, **defaults)
    for holder in (torch, F):
        if callable(function := getattr(holder, f"{name}_", None)):
            _add(name, function, names=names, writes=True, **defaults)
    if callable(function := getattr(torch, name, None)):
        _add(name, function, names=names, **defaults)
    if hasattr(torch.Tensor, name):
        _add(name, f".{name}", names=names, **defaults)
    if hasattr(torch.Tensor, f"{name}_"):
        _add(name, f".{name}_", names=names, writes=True, **defaults)
    _add(name, getattr(_aten, aten or name).default, names=names, **defaults)
    if hasattr(_aten, f"{name}_"):
        _add(name, getattr(_aten, f"{name}_").default, names=names, writes=True, **defaults)


for _name in ("relu", "relu6", "silu", "mish", "hardswish", "hardsigmoid", "sigmoid", "tanh"):
    _activation(_name)
_activation("leaky_relu", extra="negative_slope", negative_slope=0.01)
_activation("hardtanh", extra="min_val max_val", min_val=-1.0, max_val=1.0)
_activation("elu", extra="alpha", alpha=1.0)
for _target, _writes in ((_aten.elu.default, False), (_aten.elu_.default, True)):
    _add("elu", _target, names="input alpha scale input_scale", writes=_writes, alpha=1.0, scale=1, input_scale=1)
_add("gelu", F.gelu, _aten.gelu.default, names="input approximate", approximate="none")
_add("softmax", F.softmax, names="input dim _stacklevel dtype", dim=None, _stacklevel=3, dtype=None)
_add("softmax", torch.softmax, ".softmax", _aten.softmax.int, names="input dim dtype", dtype=None)

_add("add", operator.add, names="input other")
_add("add", operator.iadd, names="input other", writes=True)
_add("add", torch.add, ".add", _aten.add.Tensor, names="input other alpha", alpha=1)
_add("add", ".add_", _aten.add_.Tensor, names="input other alpha", alpha=1, writes=True)
_add("mul", operator.mul, torch.mul, torch.multiply, ".mul", ".multiply", _aten.mul.Tensor, names="input other")
_add("mul", operator.imul, ".mul_", _aten.mul_.Tensor, names="input other", writes=True)
_add("matmul", operator.matmul, torch.matmul, torch.bmm, torch.mm, ".matmul", ".bmm", ".mm", names="input other")
_add("matmul", _aten.matmul.default, _aten.bmm.default, _aten.mm.default, names="input other")
_add("addmm", torch.addmm, _aten.addmm.default, names="bias input weight beta alpha", beta=1, alpha=1)
_add("cat", torch.cat, torch.concat, torch.concatenate, _aten.cat.default, names="tensors dim", dim=0)

_add(
    "flatten", torch.flatten, ".flatten", _aten.flatten.using_ints,
    names="input start_dim end_dim", start_dim=0, end_dim=-1,
)  # fmt: skip
_add(
    "reshape", torch.reshape, _aten.reshape.default, _aten.view.default, _aten._unsafe_view.default, names="input shape"
)
_add("reshape", ".reshape", ".view", names="input shape", star=True)
_add("permute", torch.permute, _aten.permute.default, names="input dims")
_add("permute", ".permute", names="input dims", star=True)
_add("transpose", torch.transpose, ".transpose", _aten.transpose.int, names="input dim0 dim1")
_add("mean", torch.mean, ".mean", _aten.mean.dim, names="input dim keepdim dtype", dim=None, keepdim=False, dtype=None)

_DROPOUT = "input p training"
_add("dropout", F.dropout, names=f"{_DROPOUT} inplace", p=0.5, training=True, inplace=False)
_add("dropout", torch.dropout, _aten.dropout.default, names=_DROPOUT)
_ATTENTION = "query key value attn_mask dropout_p is_causal scale enable_gqa"
_add(
    "attention", F.scaled_dot_product_attention, _aten.scaled_dot_product_attention.default, names=_ATTENTION,
    attn_mask=None, dropout_p=0.0, is_causal=False, scale=None, enable_gqa=False,
)  # fmt: skip

_CONV = "input weight bias stride padding dilation groups"
_add(
    "conv", F.conv1d, F.conv2d, F.conv3d, _aten.conv1d.default, _aten.conv2d.default, _aten.conv3d.default,
    _aten.conv1d.padding, _aten.conv2d.padding, _aten.conv3d.padding,
    names=_CONV, bias=None, stride=1, padding=0, dilation=1, groups=1,
)  # fmt: skip
_add(
    "conv_transpose", F.conv_transpose1d, F.conv_transpose2d, F.conv_transpose3d, _aten.conv_transpose1d.default,
    _aten.conv_transpose2d.input, _aten.conv_transpose3d.input,
    names="input weight bias stride padding output_padding groups dilation",
    bias=None, stride=1, padding=0, output_padding=0, groups=1, dilation=1,
)  # fmt: skip
_add("linear", F.linear, _aten.linear.default, names="input weight bias", bias=None)
_add("layer_norm", F.layer_norm, names="input normalized_shape weight bias eps", weight=None, bias=None, eps=1e-5)
_add(
    "layer_norm", torch.layer_norm, _aten.layer_norm.default,
    names="input normalized_shape weight bias eps cudnn_enable", weight=None, bias=None, eps=1e-5, cudnn_enable=True,
)  # fmt: skip
_add("rms_norm", F.rms_norm, torch.rms_norm, _aten.rms_norm.default,
     names="input normalized_shape weight eps", weight=None, eps=None)  # fmt: skip
_add("group_norm", F.group_norm, names="input num_groups weight bias eps", weight=None, bias=None, eps=1e-5)
_add(
    "group_norm", _aten.group_norm.default, names="input num_groups weight bias eps cudnn_enabled",
    weight=None, bias=None, eps=1e-5, cudnn_enabled=True,
)  # fmt: skip
_add(
    "batch_norm", F.batch_norm, names="input running_mean running_var weight bias training momentum eps",
    weight=None, bias=None, training=False, momentum=0.1, eps=1e-5,
)  # fmt: skip
_add(
    "batch_norm", _aten.batch_norm.default,
    names="input weight bias running_mean running_var training momentum eps cudnn_enabled",
)  # fmt: skip
_add(
    "embedding", F.embedding, names="input weight padding_idx max_norm norm_type scale_grad_by_freq sparse",
    padding_idx=None, max_norm=None, norm_type=2.0, scale_grad_by_freq=False, sparse=False,
)  # fmt: skip
_add(
    "embedding", _aten.embedding.default, names="weight input padding_idx scale_grad_by_freq sparse",
    padding_idx=-1, scale_grad_by_freq=False, sparse=False,
)  # fmt: skip

_POOL = "input kernel_size stride padding dilation ceil_mode"
_add(
    "max_pool2d", F.max_pool2d, names=f"{_POOL} return_indices",
    stride=None, padding=0, dilation=1, ceil_mode=False, return_indices=False,
)  # fmt: skip
_add(
    "max_pool2d", torch.max_pool2d, _aten.max_pool2d.default, names=_POOL,
    stride=(), padding=0, dilation=1, ceil_mode=False,
)  # fmt: skip
_add(
    "avg_pool2d", F.avg_pool2d, _aten.avg_pool2d.default,
    names="input kernel_size stride padding ceil_mode count_include_pad divisor_override",
    stride=(), padding=0, ceil_mode=False, count_include_pad=True, divisor_override=None,
)  # fmt: skip
_add("adaptive_avg_pool2d", F.adaptive_avg_pool2d, _aten.adaptive_avg_pool2d.default, names="input output_size")
