"""One vocabulary: each operator in each spelling, by both front ends."""

import operator
from collections.abc import Callable

import pytest
import torch
from support.deploy_nets import image
from torch import nn
from torch.nn import functional as F  # noqa: N812

from embedl_deploy._graph.run import bind, evaluating, run_graph
from embedl_deploy._trace.tracing import Tracing, trace

Function = Callable[..., torch.Tensor]


class Written(nn.Module):
    """A model that is one function, with parameters to use in it."""

    def __init__(self, function: Function) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.randn(4, 3, 3, 3))
        self.back = nn.Parameter(torch.randn(3, 2, 2, 2))
        self.matrix = nn.Parameter(torch.randn(5, 16))
        self.scale = nn.Parameter(torch.rand(16))
        self.channels = nn.Parameter(torch.rand(3))
        self.register_buffer("mean", torch.rand(3))
        self.register_buffer("var", torch.rand(3) + 1)
        self.function = function

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.function(x, self)


def lifted(tracing: Tracing) -> list[str]:
    """Name the modules of a trace."""
    network = tracing.network
    return [type(network.module_of(node)).__name__ for node in network.graph.nodes if node.op == "call_module"]


SPELLINGS: dict[str, list[Function]] = {
    "ReLU": [lambda x, _: F.relu(x), lambda x, _: torch.relu(x), lambda x, _: x.relu(), lambda x, _: (x * 1).relu_()],
    "ReLU6": [lambda x, _: F.relu6(x), lambda x, _: F.hardtanh(x, 0.0, 6.0)],
    "Hardtanh": [lambda x, _: F.hardtanh(x)],
    "LeakyReLU": [lambda x, _: F.leaky_relu(x, 0.2), lambda x, _: F.leaky_relu(x, negative_slope=0.3)],
    "ELU": [lambda x, _: F.elu(x, 0.5)],
    "GELU": [lambda x, _: F.gelu(x), lambda x, _: F.gelu(x, approximate="tanh")],
    "SiLU": [lambda x, _: F.silu(x)],
    "Mish": [lambda x, _: F.mish(x)],
    "Hardswish": [lambda x, _: F.hardswish(x)],
    "Hardsigmoid": [lambda x, _: F.hardsigmoid(x)],
    "Sigmoid": [lambda x, _: torch.sigmoid(x), lambda x, _: x.sigmoid(), lambda x, _: F.sigmoid(x)],
    "Tanh": [lambda x, _: torch.tanh(x), lambda x, _: x.tanh()],
    "Softmax": [lambda x, _: F.softmax(x, dim=-1), lambda x, _: x.softmax(1), lambda x, _: torch.softmax(x, 1)],
    "Add": [
        lambda x, m: x + m.scale, lambda x, m: torch.add(x, m.scale), lambda x, m: x.add(m.scale),
        lambda x, m: operator.iadd(x.sin(), m.scale),  # type: ignore[no-untyped-call]
        lambda x, m: x.sin().add_(m.scale),
    ],
    "Multiply": [lambda x, m: x * m.scale, lambda x, m: torch.mul(x, m.scale), lambda x, m: x.mul(m.scale)],
    "MatMul": [lambda x, _: x @ x, lambda x, _: torch.matmul(x, x), lambda x, _: x.matmul(x)],
    "Concat": [lambda x, _: torch.cat([x, x], 1), lambda x, _: torch.cat((x, x), dim=-1)],
    "Flatten": [
        lambda x, _: torch.flatten(x, 1), lambda x, _: x.flatten(2), lambda x, _: x.view(x.size(0), -1),
        lambda x, _: x.reshape(x.shape[0], -1),
    ],
    "MaxPool2d": [lambda x, _: F.max_pool2d(x, 2), lambda x, _: F.max_pool2d(x, 3, stride=2, padding=1)],
    "AvgPool2d": [lambda x, _: F.avg_pool2d(x, 2)],
    "AdaptiveAvgPool2d": [lambda x, _: F.adaptive_avg_pool2d(x, 1), lambda x, _: F.adaptive_avg_pool2d(x, (2, 2))],
    "Conv2d": [
        lambda x, m: F.conv2d(x, m.weight), lambda x, m: F.conv2d(x, m.weight, None, 2, 1),
        lambda x, m: F.conv2d(x, m.weight, padding="same"), lambda x, m: F.conv2d(x, m.weight[:, :1][:3], groups=3),
    ],
    "ConvTranspose2d": [lambda x, m: F.conv_transpose2d(x, m.back, stride=2, output_padding=1)],
    "Linear": [lambda x, m: F.linear(x, m.matrix), lambda x, m: F.linear(x, m.matrix, bias=None)],
    "LayerNorm": [lambda x, m: F.layer_norm(x, (16,), m.scale, m.scale), lambda x, _: F.layer_norm(x, (16,))],
    "GroupNorm": [lambda x, m: F.group_norm(x, 3, m.channels, m.channels)],
    "ScaledDotProductAttention": [
        lambda x, _: F.scaled_dot_product_attention(x, x, x),
        lambda x, m: F.scaled_dot_product_attention(x, x, x, m.scale, scale=0.3),
        lambda x, _: F.scaled_dot_product_attention(x, x, x, is_causal=True),
    ],
    "Dropout": [lambda x, m: F.dropout(x, 0.3, m.training)],
    "Embedding": [lambda x, m: F.embedding((x > 0).long(), m.matrix)],
}  # fmt: skip


@pytest.mark.parametrize("front_end", ["fx", "export"])
@pytest.mark.parametrize("name", SPELLINGS)
def test_every_spelling_is_one_module(name: str, front_end: str) -> None:
    """Each spelling gives the module, the same result and no leftover parameter node."""
    for number, function in enumerate(SPELLINGS[name]):
        model = Written(function).eval()
        x = image(2, 16)
        given = model if front_end == "fx" else torch.export.export(model, (x,))
        tracing = trace(given, (x,), None)
        assert lifted(tracing) == [name], f"spelling {number} of {name}"
        network = tracing.network
        with evaluating(network.modules.values()):
            out = run_graph(network.graph, network.modules, network.tensors, bind(network.graph, (x,), {}))
        torch.testing.assert_close(out[0] if front_end == "export" else out, model(x), rtol=1e-6, atol=1e-6)


def test_numbers_are_not_tensors() -> None:
    """Sums and products of sizes stay as they are."""
    model = Written(lambda x, _: x.reshape(x.size(0) * x.size(1), x.shape[2] + 0, -1) * 2 + 1)
    assert lifted(trace(model, (image(),), None)) == []


def test_a_reshape_to_another_value_s_shape_stays() -> None:
    """A shape as a whole is no list of sizes."""
    model = Written(lambda x, _: x.flatten(1).sin().view(x.shape))
    tracing = trace(model, (image(),), None)
    assert lifted(tracing) == ["Flatten"]
    assert tracing.route == "fx"


def test_batch_norm_as_a_function() -> None:
    """With a known number of dimensions, F.batch_norm is a module with its own copy of the statistics."""
    model = Written(lambda x, m: F.batch_norm(x, m.mean, m.var, m.channels, m.channels)).eval()
    tracing = trace(torch.export.export(model, (image(),)), (image(),), None)
    assert lifted(tracing) == ["BatchNorm2d"]


def test_what_has_no_module_form_stays() -> None:
    """An unusual argument keeps the function."""
    for function in (
        lambda x, _: F.softmax(x, dim=-1, dtype=torch.float64),
        lambda x, m: torch.add(x, m.scale, alpha=2),
        lambda x, m: F.linear(x, m.matrix.div(x.shape[0])),
    ):
        assert lifted(trace(Written(function).eval(), None, None)) == []
