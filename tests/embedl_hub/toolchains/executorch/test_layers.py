"""Layers led back: kernels of a delegate laid beside the operators it took."""

from __future__ import annotations

from embedl_hub.core.document import LayerRow
from embedl_hub.toolchains.executorch.layers import Operator, led_back


def _row(kernel: str, instruction: int = 0, provider: str = "XNNPACK") -> LayerRow:
    return LayerRow(f"{kernel} #1", kernel, provider=provider, extra={"instruction": instruction})


def _operator(name: str, node: str, *, integer: bool | None = False, instruction: int = 0) -> Operator:
    return Operator(f"aten.{name}", (node,), (), delegated=True, integer=integer, instruction=instruction)


def test_what_a_backend_adds_fuses_and_repeats_is_told_apart() -> None:
    """Layout changes are added, an activation melts into what is before it, a concatenation is a copy per part."""
    kernels = [
        "Transpose (ND, X32)", "Convolution (NHWC, F32) IGEMM", "Fully Connected (NC, F32) GEMM", "Copy (NC, X32)",
        "Copy (NC, X32)", "Sigmoid (NC, F32)", "Transpose (ND, X32)",
    ]  # fmt: skip
    operators = [
        _operator("convolution.default", "conv"), _operator("relu.default", "relu"),
        _operator("convolution.default", "point"), _operator("cat.default", "cat"),
        _operator("sigmoid.default", "sigmoid"),
    ]  # fmt: skip
    found = led_back([_row(kernel) for kernel in kernels], operators)
    assert [row.source_nodes for row in found] == [
        (), ("conv", "relu"), ("point",), ("cat",), ("cat",), ("sigmoid",), (),
    ]  # fmt: skip
    assert [row.added_by_runtime for row in found] == [True, False, False, False, False, False, True]
    assert [row.integer for row in found] == [None, False, False, None, None, False, None]


def test_a_table_of_integers_stands_for_all_that_it_does() -> None:
    """The sigmoid, the rounding behind it, and the product with what it was made from."""
    rows = [_row("Convolution (NHWC, QC8) IGEMM"), _row("Invalid Unary Op"), _row("Add (ND)")]
    operators = [
        _operator("convolution.default", "conv", integer=True), _operator("sigmoid.default", "sigmoid"),
        _operator("mul.Tensor", "mul", integer=True), _operator("add.Tensor", "sum", integer=True),
    ]  # fmt: skip
    found = led_back(rows, operators)
    assert [row.source_nodes for row in found] == [("conv",), ("sigmoid", "mul"), ("sum",)]
    assert all(row.integer for row in found)


def test_each_delegate_is_laid_beside_its_own_operators() -> None:
    """Instructions keep them apart; a kernel of the runtime's own is its instruction's operator."""
    rows = [
        _row("Fully Connected (NC, QS8, QC8W) GEMM", 0),
        _row("native_layer_norm.out", 1, "portable"),
        _row("Add (ND)", 2),
    ]
    operators = [
        _operator("linear.default", "first", integer=True, instruction=0),
        Operator("aten.native_layer_norm.default", ("norm",), ("net.norm",), instruction=1, integer=False),
        _operator("add.Tensor", "sum", integer=True, instruction=2),
    ]
    found = led_back(rows, operators)
    assert [(row.source_nodes, row.integer) for row in found] == [
        (("first",), True),
        (("norm",), False),
        (("sum",), True),
    ]
    assert found[1].modules == ("net.norm",)


def test_what_only_converts_is_nobodys() -> None:
    """The scale that a linear layer finds for its input is no part of what stands before it."""
    rows = [_row("GELU (NC)"), _row("Convert (NC)"), _row("Fully Connected (NC, QD8, F32, QC8W) GEMM")]
    operators = [
        _operator("gelu.default", "gelu"), _operator("choose_qparams.tensor", "linear", integer=None),
        _operator("linear.default", "linear", integer=True),
    ]  # fmt: skip
    assert [row.source_nodes for row in led_back(rows, operators)] == [("gelu",), (), ("linear",)]


def test_without_a_report_layers_stand_for_themselves() -> None:
    """A program that another made."""
    (row,) = led_back([_row("Convolution (NHWC, QC8) IGEMM")], [])
    assert row.source_nodes == ()
    assert row.integer
