"""Fake quantization with gradients: the reference's own rules, and that others agree with it."""

import gc
import importlib.util
import json
import math
import os
import subprocess
import sys
import weakref
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
import torch
from support.debian import leave_off
from support.rounding_cases import compare

from embedl_deploy.nn.number import NumberFormat, Precision
from embedl_deploy.nn.rounding import (
    REFERENCE,
    Norm,
    fake_quantize,
    fake_quantize_after,
    fake_quantize_rows,
    implementation_for,
    implementations,
    inverse_deviation,
    kept_unrounded,
    traced_rows,
    traced_values,
)

INT8 = NumberFormat(Precision.INT8, signed=True)
ZERO = torch.zeros(())
_TRITON = "triton==3.7.1"  # in a folder of its own: with it beside torch, compilers would look for a GPU
NEEDS_GPU = pytest.mark.skipif(
    not torch.cuda.is_available() or importlib.util.find_spec("triton") is None,
    reason="Triton's kernels run on a GPU",
)


def test_half_precision_is_rounded_in_float32() -> None:
    """A bfloat16 value gets the code of its float32 self."""
    value = torch.linspace(-3, 3, 4001).bfloat16()
    scale = torch.tensor(0.0237)
    wide = fake_quantize(value.float(), scale, ZERO, INT8)
    assert torch.equal(fake_quantize(value, scale, ZERO, INT8), wide.bfloat16())


def test_rows_are_the_steps_one_by_one() -> None:
    """Folding, rounding and dividing back in one call gives what the three steps give, with their gradients."""
    torch.manual_seed(0)
    weight = torch.randn(6, 4, 3, 3, dtype=torch.float64, requires_grad=True)
    gamma, variance = torch.randn(6, dtype=torch.float64, requires_grad=True), torch.rand(6, dtype=torch.float64)
    twin, other = (part.detach().clone().requires_grad_() for part in (weight, gamma))
    ratio, norm = torch.full((6,), 0.8, dtype=torch.float64), Norm(gamma, variance, 1e-5)
    used = torch.empty(6, dtype=torch.float64)
    rounded = fake_quantize_rows(weight, norm, None, ratio, INT8, used)
    factor = (1 / (variance + 1e-5).sqrt() * other).reshape(-1, 1, 1, 1)
    folded = twin * factor
    scale = folded.detach().abs().amax((1, 2, 3), keepdim=True) * 0.8 / 127
    expected = fake_quantize(folded, scale, ZERO, INT8) / factor
    assert torch.equal(used, scale.flatten())
    torch.testing.assert_close(rounded, expected, rtol=1e-12, atol=0)
    towards = torch.randn_like(rounded)
    torch.autograd.backward(rounded, towards)
    torch.autograd.backward(expected, towards)
    torch.testing.assert_close(weight.grad, twin.grad, rtol=1e-12, atol=0)
    torch.testing.assert_close(gamma.grad, other.grad, rtol=1e-9, atol=1e-12)


def test_learned_rows_get_the_gradient_of_their_scale() -> None:
    """A scale per row is learned as a scale that broadcasts is."""
    torch.manual_seed(0)
    weight, scale = torch.randn(5, 12), torch.rand(5) * 0.01
    scale[2] *= -1
    one, other = (scale.clone().requires_grad_() for _ in range(2))
    towards = torch.randn(5, 12)
    torch.autograd.backward(fake_quantize_rows(weight, None, one, torch.ones(5), INT8), towards)
    torch.autograd.backward(fake_quantize(weight, other[:, None], ZERO, INT8), towards)
    torch.testing.assert_close(one.grad, other.grad, rtol=1e-6, atol=0)


def test_deviations_are_the_same_on_every_processor() -> None:
    """What weights are folded with is rounded right: torch's own square root is a bit off on some processors."""
    variance = torch.rand(10_000, generator=torch.Generator().manual_seed(0)) * 3
    total = (variance + 1e-5).numpy()
    assert torch.equal(inverse_deviation(variance, 1e-5), torch.from_numpy(1 / np.sqrt(total)))
    assert inverse_deviation(variance.half(), 1e-5).dtype == torch.float16


@pytest.mark.parametrize("signed", [True, False])
def test_what_compilers_see_is_the_reference(signed: bool) -> None:
    """The form without autograd functions has the reference's bits, and its gradients to a part in a million."""
    torch.manual_seed(0)
    form = NumberFormat(Precision.INT8, signed=signed)
    point = ZERO if signed else torch.tensor(97.0)
    found = []
    for rounding in (fake_quantize, traced_values):
        torch.manual_seed(1)
        value, scale = torch.randn(500, requires_grad=True), torch.tensor(-0.013, requires_grad=True)
        rounded = rounding(value, scale, point, form)
        torch.autograd.backward(rounded, torch.randn(500))
        found.append((rounded, value.grad, scale.grad))
    assert torch.equal(found[0][0], found[1][0])
    for one, two in zip(found[0][1:], found[1][1:], strict=True):
        torch.testing.assert_close(one, two, rtol=2e-6, atol=1e-7)


def test_what_compilers_see_of_rows_is_the_reference() -> None:
    """Likewise for weights with a batch norm folded in."""
    found = []
    for traced in (False, True):
        torch.manual_seed(1)
        weight, gamma = torch.randn(6, 4, 3, 3, requires_grad=True), torch.randn(6, requires_grad=True)
        norm, ratio, used = Norm(gamma, torch.rand(6), 1e-5), torch.full((6,), 0.8), torch.empty(6)
        if traced:
            rounded, used = traced_rows(weight, norm, None, ratio, INT8)
        else:
            rounded = fake_quantize_rows(weight, norm, None, ratio, INT8, used)
        torch.autograd.backward(rounded, torch.randn(6, 4, 3, 3))
        found.append((rounded, used, weight.grad, gamma.grad))
    assert torch.equal(found[0][0], found[1][0])
    assert torch.equal(found[0][1], found[1][1])
    torch.testing.assert_close(found[0][2], found[1][2], rtol=2e-6, atol=1e-7)
    torch.testing.assert_close(found[0][3], found[1][3], rtol=1e-4, atol=1e-5)  # a small difference of large sums


def test_a_rounded_value_is_not_kept_beside_what_its_maker_keeps() -> None:
    """Behind a ReLU, which keeps its result, a layer keeps that as well; its gradients are the same to the bit."""
    torch.manual_seed(0)
    scale = torch.tensor(0.05)
    value, weight = torch.randn(4, 8, requires_grad=True), torch.randn(3, 8, requires_grad=True)

    def run(*, saves: bool) -> tuple[list[torch.Tensor], bool]:
        for part in (value, weight):
            part.grad = None
        rounded = fake_quantize(value.relu(), scale, ZERO, INT8)
        kept = kept_unrounded(rounded) if saves else torch.enable_grad()
        assert kept is not None
        with kept:
            result = torch.nn.functional.linear(rounded, weight)
        alive = weakref.ref(rounded.untyped_storage())
        del rounded
        gc.collect()
        holds = alive() is not None
        torch.autograd.backward(result.pow(2).sum())
        assert value.grad is not None
        assert weight.grad is not None
        return [value.grad.clone(), weight.grad.clone()], holds

    (plain, holds), (saving, still_holds) = run(saves=False), run(saves=True)
    assert all(torch.equal(one, two) for one, two in zip(plain, saving, strict=True))
    assert holds
    assert not still_holds


def test_elsewhere_the_value_itself_goes() -> None:
    """What nobody else keeps is not kept: a mask gives its gradients."""
    value = torch.randn(4, 8, requires_grad=True)
    made = value * 1
    rounded = fake_quantize(made, torch.tensor(0.01), ZERO, INT8)
    assert kept_unrounded(rounded) is None
    alive = weakref.ref(made.untyped_storage())
    del made
    gc.collect()
    assert alive() is None
    towards = torch.randn(4, 8)
    torch.autograd.backward(rounded, towards)
    assert value.grad is not None
    inside = (value / 0.01 >= -128) & (value / 0.01 <= 127)
    assert torch.equal(value.grad, towards * inside)
    assert not bool(inside.all())


@pytest.mark.parametrize("top", [None, math.inf, 6.0])
@pytest.mark.parametrize("adds", [False, True])
def test_one_step_is_the_steps_one_by_one(top: float | None, adds: bool) -> None:
    """An add, an activation and the rounding in one step give the bits and the gradients of the three."""
    found = []
    for together in (False, True):
        torch.manual_seed(0)
        value, other = ((torch.randn(500) * 4).requires_grad_() for _ in range(2))
        scale, form, point = torch.tensor(0.02), NumberFormat(Precision.INT8, signed=False), torch.tensor(3.0)
        if together:
            rounded = fake_quantize_after(other if adds else None, top, value, scale, point, form)
        else:
            total = value + other if adds else value * 1
            if top is not None:
                total = total.relu() if math.isinf(top) else torch.nn.functional.relu6(total)
            rounded = fake_quantize(total, scale, point, form)
        torch.autograd.backward(rounded, torch.randn(500))
        found.append((rounded, value.grad, other.grad if adds else value.grad))
    for one, two in zip(*found, strict=True):
        assert one is not None
        assert two is not None
        assert torch.equal(one, two)


def test_hooks_of_others_are_left_in_place() -> None:
    """Under checkpointing or offloading, whose hooks decide what is kept, ours stay away."""
    rounded = fake_quantize(torch.randn(4, requires_grad=True).relu(), torch.tensor(0.1), ZERO, INT8)
    seen: list[torch.Tensor] = []

    def pack(tensor: torch.Tensor) -> torch.Tensor:
        seen.append(tensor)
        return tensor

    with torch.autograd.graph.saved_tensors_hooks(pack, lambda tensor: tensor):
        assert kept_unrounded(rounded) is None
    assert not seen


def test_the_reference_agrees_with_itself() -> None:
    """The comparison that other implementations must pass runs over every kind of case."""
    found = compare(REFERENCE, 60, largest=1 << 12)
    assert (found.cases, found.unequal, found.gradient) == (60, 0, 0.0)


def test_the_comparison_finds_torchs_own_operator() -> None:
    """It multiplies by 1/scale: the reason why it is no implementation."""

    def values(value: torch.Tensor, scale: torch.Tensor, point: torch.Tensor, form: NumberFormat) -> torch.Tensor:
        size = scale.abs().clamp(min=2.0**-100)
        low, high = int(form.low), int(form.high)
        return torch.fake_quantize_per_tensor_affine(value.float(), size, point.int(), low, high).to(value.dtype)

    assert compare(replace(REFERENCE, name="torch", values=values), 200, largest=1 << 16).unequal > 0


def test_a_processor_uses_the_reference() -> None:
    """Kernels for a GPU are not looked for elsewhere."""
    assert implementation_for(torch.ones(3), INT8) is REFERENCE
    assert "reference" in implementations()


@NEEDS_GPU
def test_triton_gives_the_reference_bits() -> None:
    """1,000 random shapes, layouts, formats and scales: equal forward, gradients to a part in a million."""
    found = compare(implementations()["triton"], 1000, "cuda", largest=1 << 20)
    assert (found.cases, found.unequal) == (1000, 0)
    assert found.gradient <= 1e-6


@pytest.mark.slow
def test_triton_interpreted_gives_the_reference_bits(tmp_path: Path) -> None:
    """Without a GPU, Triton's interpreter runs the same kernels; it adds an epsilon to a variance a bit apart."""
    install = [sys.executable, "-m", "pip", "install", "--quiet", "--no-deps", "--target", str(tmp_path), _TRITON]
    done = subprocess.run(install, capture_output=True, text=True, check=False, timeout=600)
    if done.returncode != 0:
        leave_off(_TRITON, f"pip said: {done.stderr.strip()[-300:]}")
    program = Path(__file__).parents[2] / "support" / "interpreted_kernels.py"
    paths = os.pathsep.join((str(tmp_path), os.environ.get("PYTHONPATH", "")))
    ran = subprocess.run(
        [sys.executable, str(program), "20"],
        capture_output=True,
        text=True,
        check=False,
        timeout=1200,
        env={**os.environ, "TRITON_INTERPRET": "1", "PYTHONPATH": paths},
    )
    assert ran.returncode == 0, ran.stderr[-2000:]
    found = json.loads(ran.stdout.splitlines()[-1])
    assert found["cases"] == 20
    assert {"masked values", "rows together", "seen", "finished", "counts"} <= set(found["where"])
    assert found["unequal"] <= 1e-4 * found["values"]
    assert found["gradient"] <= 1e-6
