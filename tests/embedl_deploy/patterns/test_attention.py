"""Attention: decomposed, fused, or refused with a reason."""

import importlib
from collections.abc import Callable
from typing import Any

import pytest
import torch
from support.deploy_nets import kinds
from torch import nn
from torch.nn import functional

from embedl_deploy import transform
from embedl_deploy.patterns import (
    AttentionPattern,
    DecomposeMultiheadAttentionPattern,
    DecomposeWindowAttentionPattern,
    MaskedSoftmaxAttentionPattern,
    SoftmaxAttentionPattern,
)
from embedl_deploy.tensorrt import TENSORRT_PATTERNS
from embedl_deploy.testing import check_pattern

GENERATOR = torch.Generator().manual_seed(0)
X = torch.randn(2, 5, 8, generator=GENERATOR)
Y = torch.randn(2, 7, 8, generator=GENERATOR)


class Attends(nn.Module):
    """Calls an attention module in a given way."""

    def __init__(self, call: Callable[..., Any], **settings: Any) -> None:
        super().__init__()
        settings.setdefault("batch_first", True)
        self.attention = nn.MultiheadAttention(8, 2, **settings)
        self.register_buffer("causal", torch.ones(5, 5, dtype=torch.bool).triu(1))
        self.register_buffer("slope", torch.linspace(-1, 1, 25).view(5, 5))
        self.call = call

    def forward(self, *args: torch.Tensor) -> Any:
        raise NotImplementedError


class One(Attends):
    """With one input."""

    def forward(self, x: torch.Tensor) -> Any:  # type: ignore[override]
        return self.call(self, x)


class Two(Attends):
    """With two inputs."""

    def forward(self, x: torch.Tensor, y: torch.Tensor) -> Any:  # type: ignore[override]
        return self.call(self, x, y)


WAYS: dict[str, tuple[nn.Module, tuple[torch.Tensor, ...], list[str]]] = {
    "self": (
        One(lambda m, x: m.attention(x, x, x, need_weights=False)[0]),
        (X,),
        ["Linear", "ScaledDotProductAttention", "Linear"],
    ),
    "weights not used": (
        One(lambda m, x: m.attention(x, x, x)[0]),
        (X,),
        ["Linear", "ScaledDotProductAttention", "Linear"],
    ),
    "no bias, length first": (
        One(lambda m, x: m.attention(x, x, x, need_weights=False)[0], bias=False, batch_first=False),
        (X,),
        ["Linear", "ScaledDotProductAttention", "Linear"],
    ),
    "cross": (
        Two(lambda m, x, y: m.attention(x, y, y, need_weights=False)[0]),
        (X, Y),
        ["Linear", "Linear", "Linear", "ScaledDotProductAttention", "Linear"],
    ),
    "other widths": (
        Two(lambda m, x, y: m.attention(x, y, y.sin(), need_weights=False)[0], kdim=8, vdim=8),
        (X, Y),
        ["Linear", "Linear", "Linear", "ScaledDotProductAttention", "Linear"],
    ),
    "boolean mask": (
        One(lambda m, x: m.attention(x, x, x, need_weights=False, attn_mask=m.causal)[0]),
        (X,),
        ["Linear", "ScaledDotProductAttention", "Linear"],
    ),
    "float mask": (
        One(lambda m, x: m.attention(x, x, x, need_weights=False, attn_mask=m.slope)[0]),
        (X,),
        ["Linear", "ScaledDotProductAttention", "Linear"],
    ),
    "padding mask": (
        Two(lambda m, x, y: m.attention(x, x, x, key_padding_mask=y[:, :5, 0] > 1.0, need_weights=False)[0]),
        (X, Y),
        ["Linear", "ScaledDotProductAttention", "Linear"],
    ),
}


@pytest.mark.parametrize("way", WAYS)
def test_decomposition(way: str) -> None:
    """Every way of calling it gives the same numbers in steps, on the same parameters."""
    model, args, expected = WAYS[way]
    result = check_pattern(DecomposeMultiheadAttentionPattern, model.eval(), args, matches=1, tolerance=1e-5)
    assert kinds(result.model) == expected
    memory = {parameter.untyped_storage().data_ptr() for parameter in model.parameters()}
    assert {parameter.untyped_storage().data_ptr() for parameter in result.model.parameters()} <= memory


@pytest.mark.parametrize(
    ("model", "reason"),
    [
        (One(lambda m, x: m.attention(x, x, x)[1]), "its attention weights are used"),
        (One(lambda m, x: m.attention(x, x, x)), "its results are passed on as a tuple"),
        (One(lambda m, x: m.attention(x, x, x)[0], add_zero_attn=True), "it adds a learned key and value"),
        (
            One(lambda m, x: m.attention(x, x, x, key_padding_mask=x[..., 0] > 1, attn_mask=m.causal)[0]),
            "it has both a padding and an attention mask",
        ),
        (
            One(lambda m, x: m.attention(x, x, x, key_padding_mask=x[..., 0])[0]),
            "key_padding_mask is not a boolean mask",
        ),
    ],
)
def test_refused_decompositions(model: nn.Module, reason: str) -> None:
    """What the steps cannot express stays whole."""
    check_pattern(DecomposeMultiheadAttentionPattern, model.eval(), (X,), matches=0, tolerance=0, refuses=[reason])


def test_dropout_in_training_is_kept() -> None:
    """The decomposed attention drops out while training, as the module did."""
    model = One(lambda m, x: m.attention(x, x, x, need_weights=False)[0], dropout=0.5).train()
    result = transform(model, (X,), [DecomposeMultiheadAttentionPattern]).model
    torch.manual_seed(1)
    wanted = model(X)
    torch.manual_seed(1)
    torch.testing.assert_close(result(X), wanted, rtol=1e-5, atol=1e-6)


class WrittenOut(nn.Module):
    """Attention in plain operators."""

    def __init__(self, scale: str = "", *, mask: bool = False, dim: int = -1) -> None:
        super().__init__()
        self.scale = scale
        self.dim = dim
        self.bias = nn.Parameter(torch.randn(5, 5)) if mask else None
        self.dropout = nn.Dropout(0.1)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        q, k, v = x.sin(), x.cos(), x * 2
        scores = q @ k.transpose(-2, -1)
        match self.scale:
            case "divide":
                scores = scores / 2.5
            case "multiply":
                scores = scores * 0.3
            case "computed":
                scores = scores * x.mean()
        if self.bias is not None:
            scores = scores + self.bias
        out: torch.Tensor = self.dropout(functional.softmax(scores, self.dim)) @ v
        return out


@pytest.mark.parametrize("scale", ["", "divide", "multiply"])
def test_written_out_attention(scale: str) -> None:
    """With and without a mask, in every way to scale."""
    plain = check_pattern(SoftmaxAttentionPattern, WrittenOut(scale).eval(), (X,), matches=1, tolerance=1e-6)
    assert kinds(plain.model) == ["FusedSoftmaxAttention"]
    masked = WrittenOut(scale, mask=True).eval()
    fused = check_pattern(MaskedSoftmaxAttentionPattern, masked, (X,), matches=1, tolerance=1e-6)
    assert kinds(fused.model) == ["FusedSoftmaxAttention"]


def test_written_out_attention_that_is_another() -> None:
    """A softmax over another dimension is refused; a computed scale does not fit the tree."""
    other = WrittenOut(dim=-2).eval()
    reason = "its softmax runs over dimension -2, not the last"
    check_pattern(SoftmaxAttentionPattern, other, (X,), matches=0, tolerance=0, refuses=[reason])
    check_pattern(SoftmaxAttentionPattern, WrittenOut("computed").eval(), (X,), matches=0, tolerance=0)


def test_fused_attention_with_repeated_inputs() -> None:
    """Query, key and value may be one tensor."""

    class Model(nn.Module):
        def forward(self, x: torch.Tensor) -> torch.Tensor:
            return functional.scaled_dot_product_attention(x, x.sin(), x)

    assert kinds(check_pattern(AttentionPattern, Model(), (X,), matches=1, tolerance=0).model) == ["FusedAttention"]


@pytest.mark.parametrize("version", ["ShiftedWindowAttention", "ShiftedWindowAttentionV2"])
@pytest.mark.parametrize("shift", [[0, 0], [2, 2]])
@pytest.mark.parametrize("size", [(8, 8), (7, 10), (4, 9)])
def test_window_attention(version: str, shift: list[int], size: tuple[int, int]) -> None:
    """Both published versions, shifted or not, with and without padding, one window high."""
    swin = importlib.import_module("torchvision.models.swin_transformer")
    model = nn.Sequential(getattr(swin, version)(12, [4, 4], shift, 3)).eval()
    x = torch.randn(2, *size, 12, generator=torch.Generator().manual_seed(4))
    result = check_pattern(DecomposeWindowAttentionPattern, model, (x,), matches=1, tolerance=1e-5)
    assert "ScaledDotProductAttention" in kinds(result.model)
    torch.testing.assert_close(result.model(x[:1]), model(x[:1]), rtol=1e-4, atol=1e-5)


def test_window_attention_without_shapes() -> None:
    """Its steps depend on the spatial size; the refusal says what to do."""
    swin = importlib.import_module("torchvision.models.swin_transformer")
    model = nn.Sequential(swin.ShiftedWindowAttention(12, [4, 4], [0, 0], 3, dropout=0.5))
    no_shapes = transform(model.eval(), None, [DecomposeWindowAttentionPattern]).report.refusals
    assert "call transform(model, args)" in no_shapes[0].reason


def test_window_attention_while_training() -> None:
    """torch.fx freezes its dropout in the mode of the trace, so torch.export's graph is taken, and train() works."""
    swin = importlib.import_module("torchvision.models.swin_transformer")
    model = nn.Sequential(swin.ShiftedWindowAttention(12, [4, 4], [0, 0], 3, dropout=0.5)).train()
    x = torch.randn(1, 8, 8, 12)
    result = transform(model, (x,), [DecomposeWindowAttentionPattern])
    assert result.report.route == "export"
    for mode in (True, False):
        result.model.train(mode)
        model.train(mode)
        torch.manual_seed(5)
        wanted = model(x)
        torch.manual_seed(5)
        torch.testing.assert_close(result.model(x), wanted, rtol=1e-5, atol=1e-6)


def test_a_transformer_layer_of_torch() -> None:
    """nn.TransformerEncoderLayer goes through torch.export and is fused in full."""
    model = nn.TransformerEncoder(
        nn.TransformerEncoderLayer(8, 2, 16, batch_first=True), 2, enable_nested_tensor=False
    ).eval()
    result = transform(model, (X,), TENSORRT_PATTERNS)
    counts = result.report.counts()
    assert counts["AttentionPattern"] == 2
    assert counts["LayerNormPattern"] == 4
    assert not result.report.left
    assert result.report.proof is not None
    assert result.report.proof.relative_error < 1e-5
