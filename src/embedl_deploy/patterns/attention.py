"""Attention: taken apart where a library hides it in one call, fused where it is in the open."""

import operator

import torch
from torch import fx, nn

from embedl_deploy.nn import (
    Add,
    DecomposedAttention,
    FusedAttention,
    FusedSoftmaxAttention,
    MatMul,
    ScaledDotProductAttention,
    WindowAttention,
    linear_of,
)
from embedl_deploy.pattern import (
    Call,
    Chain,
    Expand,
    Fork,
    Match,
    Maybe,
    Op,
    Pattern,
    Phase,
    Refusal,
    Replacement,
    Value,
)
from embedl_deploy.patterns.fusions import (
    AdaptiveAvgPoolPattern,
    BNReLUPattern,
    LayerNormPattern,
    LinearPattern,
    LinearReLUPattern,
)

_MHA_ARGUMENTS = (
    "query", "key", "value", "key_padding_mask", "need_weights", "attn_mask", "average_attn_weights", "is_causal",
)  # fmt: skip
_WINDOW_ARGUMENTS = (
    "input", "qkv_weight", "proj_weight", "relative_position_bias", "window_size", "num_heads", "shift_size",
    "attention_dropout", "dropout", "qkv_bias", "proj_bias", "logit_scale", "training",
)  # fmt: skip


def _arguments(node: fx.Node, names: tuple[str, ...]) -> dict[str, object]:
    return {**dict(zip(names, node.args, strict=False)), **node.kwargs}


class DecomposeMultiheadAttentionPattern(Pattern):
    """Take `nn.MultiheadAttention` apart, on the same parameters."""

    phase = Phase.CONVERSION
    tree = Op(nn.MultiheadAttention, name="attention")

    def check(self, match: Match) -> Refusal | None:
        """Refuse what the steps cannot express."""
        module = match.module("attention", nn.MultiheadAttention)
        node = match.node("attention")
        call = _arguments(node, _MHA_ARGUMENTS)
        if any(user.target is not operator.getitem for user in node.users):
            return Refusal("its results are passed on as a tuple")
        if any(user.args[1] == 1 and user.users for user in node.users):
            return Refusal("its attention weights are used")
        if module.bias_k is not None or module.add_zero_attn:
            return Refusal("it adds a learned key and value (bias_k, add_zero_attn)")
        if call.get("key_padding_mask") is not None and call.get("attn_mask") is not None:
            return Refusal("it has both a padding and an attention mask")
        for name in ("key_padding_mask", "attn_mask"):
            mask = call.get(name)
            if mask is not None and self._kind(match, name, mask) == "":
                return Refusal(f"{name} is not a boolean mask, or its type is unknown without example inputs")
        return None

    def _kind(self, match: Match, name: str, mask: object) -> str:
        """Name what a mask is: empty when it cannot be used."""
        dtype = match.dtype(mask) if isinstance(mask, fx.Node) else None
        shape = match.shape(mask) if isinstance(mask, fx.Node) else None
        if dtype is None or shape is None or len(shape) != 2:
            return ""
        if dtype is torch.bool:
            return "padding" if name == "key_padding_mask" else "boolean"
        return "" if name == "key_padding_mask" else "float"

    def replace(self, match: Match) -> Replacement:
        """Put the steps in place."""
        module = match.module("attention", nn.MultiheadAttention)
        call = _arguments(match.node("attention"), _MHA_ARGUMENTS)
        query, key, value = (call[name] for name in ("query", "key", "value"))
        distinct = 1 if query is key is value else 2 if key is value else 3
        roles = [query, key, value][:distinct]
        mask, kind = None, "none"
        for name in ("key_padding_mask", "attn_mask"):
            if call.get(name) is not None:
                mask, kind = call[name], self._kind(match, name, call[name])
        causal = bool(call.get("is_causal")) and mask is None
        steps = DecomposedAttention(module, distinct, kind, causal=causal)
        places: list[int | None] = [match.inputs.index(role) for role in roles]
        places += [None] * (3 - distinct)
        if isinstance(mask, fx.Node):
            places.append(match.inputs.index(mask))
        return Expand(
            steps, tuple(places), key=(distinct, kind, causal, module.batch_first, module.num_heads, steps.packed)
        )


class DecomposeWindowAttentionPattern(Pattern):
    """Take torchvision's shifted-window attention apart, for the spatial size of the example inputs."""

    phase = Phase.CONVERSION
    needs_shapes = True
    tree = Op("torchvision.models.swin_transformer.shifted_window_attention", name="attention")

    def check(self, match: Match) -> Refusal | None:
        """Refuse weights that are computed, and dropout that is on."""
        call = _arguments(match.node("attention"), _WINDOW_ARGUMENTS)
        tensors = [call.get(name) for name in ("qkv_weight", "proj_weight", "qkv_bias", "proj_bias", "logit_scale")]
        if any(tensor is not None and self._tensor(match, tensor) is None for tensor in tensors):
            return Refusal("its weights are computed, not parameters")
        if call.get("training", True) and (call.get("attention_dropout") or call.get("dropout")):
            return Refusal("the model is in training mode and this attention drops out; call eval() first")
        return None

    def _tensor(self, match: Match, value: object) -> torch.Tensor | None:
        return match.view.tensor_of(value) if isinstance(value, fx.Node) else None

    def replace(self, match: Match) -> Replacement:
        """Put the steps in place."""
        call = _arguments(match.node("attention"), _WINDOW_ARGUMENTS)
        value, bias = call["input"], call["relative_position_bias"]
        assert isinstance(value, fx.Node)
        shape = match.shape(value)
        assert shape is not None
        qkv_bias, logit_scale = (self._tensor(match, call.get(name)) for name in ("qkv_bias", "logit_scale"))
        if logit_scale is not None and qkv_bias is not None:
            # Cosine attention has no bias on the keys.
            qkv_bias = qkv_bias.detach().clone()
            qkv_bias[qkv_bias.numel() // 3 : 2 * qkv_bias.numel() // 3] = 0
        qkv_weight, proj_weight = self._tensor(match, call["qkv_weight"]), self._tensor(match, call["proj_weight"])
        assert qkv_weight is not None
        assert proj_weight is not None
        steps = WindowAttention(
            qkv=linear_of(qkv_weight, qkv_bias),
            proj=linear_of(proj_weight, self._tensor(match, call.get("proj_bias"))),
            size=(shape[1], shape[2]),
            window=tuple(call["window_size"]),  # type: ignore[arg-type]
            shift=tuple(call["shift_size"]),  # type: ignore[arg-type]
            heads=call["num_heads"],  # type: ignore[arg-type]
            logit_scale=logit_scale,
        )
        places = tuple(match.inputs.index(role) for role in (value, bias))
        steps.train(bool(call.get("training", True)))
        key = (steps.size, steps.window, steps.shift, steps.heads, steps.cosine, shape[3])
        return Expand(steps, places, key)


class AttentionPattern(Pattern):
    """Scaled dot-product attention."""

    phase = Phase.FUSION
    tree = Op(ScaledDotProductAttention, name="attention")

    def replace(self, match: Match) -> Replacement:
        """Hold it as one kernel, whichever inputs are the same tensor."""
        module = match.module("attention", ScaledDotProductAttention)
        places = tuple(
            match.inputs.index(value) for value in match.node("attention").args if isinstance(value, fx.Node)
        )
        return Call(FusedAttention(module), places)


_MULTIPLY = (operator.mul, torch.mul, torch.ops.aten.mul.Tensor)
_DIVIDE = (operator.truediv, torch.div, torch.ops.aten.div.Tensor)
_SCORES = Chain(Op(MatMul, name="scores"), Maybe(Op(*_MULTIPLY, *_DIVIDE, name="scale")))
_WEIGHTS = (Op(nn.Softmax, name="softmax"), Maybe(Op(nn.Dropout, name="dropout")))


class _WrittenOut(Pattern):
    """What both forms of written-out attention share."""

    phase = Phase.FUSION

    def check(self, match: Match) -> Refusal | None:
        softmax = match.module("softmax", nn.Softmax)
        if softmax.dim != -1 and softmax.dim != len(match.shape("softmax") or ()) - 1:
            return Refusal(f"its softmax runs over dimension {softmax.dim}, not the last")
        if "scale" in match and not isinstance(match.node("scale").args[1], int | float):
            return Refusal("its scale is computed")
        return None

    def _module(self, match: Match) -> FusedSoftmaxAttention:
        scale = 1.0
        if "scale" in match:
            node = match.node("scale")
            factor = node.args[1]
            assert isinstance(factor, int | float)
            scale = 1.0 / factor if node.target in _DIVIDE else float(factor)
        return FusedSoftmaxAttention(match.module("softmax"), match.module_or_none("dropout"), scale)

    def _places(self, match: Match, *names: str) -> tuple[int, ...]:
        """Order the inputs: query, key, value, mask."""
        query, key = match.node("scores").args
        return tuple(match.inputs.index(value) for value in (query, key, *map(match.input, names)))


class SoftmaxAttentionPattern(_WrittenOut):
    """Attention written out, without a mask."""

    tree = Chain(Fork(Op(MatMul, name="mix"), Chain(*_SCORES.parts, *_WEIGHTS), Value("value"), ordered=True))

    def replace(self, match: Match) -> Replacement:
        """Hold all in one module of three inputs."""
        return Call(self._module(match), self._places(match, "value"))


class MaskedSoftmaxAttentionPattern(_WrittenOut):
    """Attention written out, with a mask or a position bias added to the scores."""

    tree = Chain(
        Fork(
            Op(MatMul, name="mix"),
            Chain(Fork(Op(Add, name="add"), _SCORES, Value("mask")), *_WEIGHTS),
            Value("value"),
            ordered=True,
        )
    )

    def replace(self, match: Match) -> Replacement:
        """Hold all in one module of four inputs."""
        return Call(self._module(match), self._places(match, "value", "mask"))


COMMON_FUSIONS = (
    MaskedSoftmaxAttentionPattern,
    SoftmaxAttentionPattern,
    AttentionPattern,
    LinearReLUPattern,
    LinearPattern,
    BNReLUPattern,
    LayerNormPattern,
    AdaptiveAvgPoolPattern,
)
"""What every target that fuses has after its convolutions."""
