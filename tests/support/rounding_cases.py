"""Random quantizers, and how far an implementation of fake quantization is from the reference on them."""

import math
import random
from collections import Counter
from dataclasses import dataclass, field

import torch

from embedl_deploy.nn.number import NumberFormat, Precision
from embedl_deploy.nn.rounding import REFERENCE, Implementation, Norm, RowGradients, RowWeight, Unfinished

DTYPES: tuple[torch.dtype, ...] = (torch.float32, torch.float32, torch.float32, torch.bfloat16, torch.float16)
_FORMS = [NumberFormat(precision, signed) for precision in list(Precision)[:3] for signed in (True, False)]


@dataclass
class Apart:
    """The cases that were compared, the forward results that differ, and the largest difference of a gradient."""

    cases: int = 0
    values: int = 0
    unequal: int = 0
    gradient: float = 0.0
    where: Counter[str] = field(default_factory=Counter)
    gradients: dict[str, float] = field(default_factory=dict)

    def same(self, what: str, one: torch.Tensor | None, other: torch.Tensor | None) -> None:
        """Compare bits; zeros of either sign are one."""
        assert (one is None) == (other is None)
        if one is not None and other is not None:
            assert one.dtype == other.dtype
            self.values += one.numel()
            differ = (one != other) & ~(one.isnan() & other.isnan())
            self.unequal += int(differ.sum())
            self.where[what] += int(differ.sum())

    def near(self, what: str, one: torch.Tensor | None, other: torch.Tensor | None) -> None:
        """Compare gradients, relative to the largest of their tensor."""
        assert (one is None) == (other is None)
        if one is not None and other is not None:
            peak = float(other.detach().abs().double().max())
            apart = float((one.double() - other.double()).abs().max()) / max(peak, 1e-30)
            self.gradients[what] = max(self.gradients.get(what, 0.0), apart)
            self.gradient = max(self.gradient, apart)


def compare(by: Implementation, cases: int, device: str = "cpu", seed: int = 0, largest: int = 1 << 18) -> Apart:
    """Compare an implementation with the reference on random shapes, layouts, formats and scales."""
    found = Apart()
    for case in range(cases):
        chance, generator = random.Random(f"{seed}:{case}"), torch.Generator().manual_seed(seed * 1000003 + case)  # noqa: S311
        kind = (_value_case, _weight_case, _value_case, _weight_case, _together_case)[case % 5]
        kind(found, by, device, chance, generator, largest)
        found.cases += 1
    return found


def _tensor(
    device: str, chance: random.Random, generator: torch.Generator, dims: int, largest: int
) -> tuple[torch.Tensor, torch.Tensor]:
    shape = [chance.choice((1, 2, 3, 7, 16, 33, 64)) for _ in range(dims)]
    while torch.Size(shape).numel() * 4 < largest and chance.random() < 0.5:
        shape[chance.randrange(dims)] *= 2
    spread = 10.0 ** chance.uniform(-4, 4)
    dtype = chance.choice(DTYPES)
    made = [torch.randn(shape, generator=generator) * by for by in (spread, 10.0 ** chance.uniform(-4, 2))]
    made = [value.to(dtype).to(device) for value in made]
    if dims == 4 and chance.random() < 0.4:
        made = [value.to(memory_format=torch.channels_last) for value in made]
    if chance.random() < 0.2:
        made[1] = made[1].transpose(0, -1).contiguous().transpose(0, -1)
    return made[0], made[1]


def _value_case(
    found: Apart, by: Implementation, device: str, chance: random.Random, generator: torch.Generator, largest: int
) -> None:
    form = chance.choice(_FORMS)
    value, grad = _tensor(device, chance, generator, chance.choice((1, 2, 3, 4)), largest)
    if value.ndim > 1 and chance.random() < 0.2:
        value, grad = value.transpose(0, 1), grad.transpose(0, 1)
    if value.ndim > 1 and value.shape[1] > 2 and chance.random() < 0.1:
        value, grad = value[:, ::2], grad[:, ::2]
    if chance.random() < 0.05:
        value = value.contiguous().clone()
        value.view(-1)[0] = chance.choice((float("inf"), float("-inf"), float("nan")))
    top = float(value.float().nan_to_num(0, 1e3, -1e3).abs().max()) * chance.choice((0.3, 1.0, 1.7))
    size = max(top, 1e-6) / form.high * chance.choice((-1.0, 1.0, 1.0))
    scale = torch.tensor(0.0 if chance.random() < 0.02 else size, device=device)
    if chance.random() < 0.2:
        # Values that lie on the edge between two codes.
        value = ((torch.randn(value.shape, generator=generator) * 40).round() + 0.5).to(value.dtype).to(device)
        scale = torch.tensor(chance.choice((1.0, 0.5, 2.0)), device=device)
    point = torch.tensor(0.0 if form.signed else float(chance.randint(0, int(form.high))), device=device)
    found.same(
        f"values {value.dtype}", by.values(value, scale, point, form), REFERENCE.values(value, scale, point, form)
    )
    other = (
        torch.randn(value.shape, generator=generator).to(value.dtype).to(device) * top
        if chance.random() < 0.3
        else None
    )
    # A height that half precision has too, as an activation's: what lies between two numbers is cut at either.
    cut = chance.choice((None, None, math.inf, 2.0 ** (math.frexp(max(top, 1e-3))[1] - 2), 6.0))
    mine, theirs = (one.masked_values(value, scale, point, form, other, cut) for one in (by, REFERENCE))
    found.same("masked values", mine[0], theirs[0])
    passed = [one.inside_gradients(grad, part[1], part[0].stride()) for one, part in ((by, mine), (REFERENCE, theirs))]
    found.near(f"masked {value.dtype} {cut}", *passed)
    flat, step = value.contiguous(), chance.choice((1, 1, 2, 7, 13))
    first, place = min(step // 2, flat.numel() - 1), chance.randint(0, 9)
    seen = []
    for one in (by, REFERENCE):
        bounds, samples = torch.empty(3, 2, one.parts, device=device), torch.zeros(flat.numel() + 9, device=device)
        one.see(flat, first, step, bounds, 1, samples, place)
        seen.append((bounds[1, 0].amin(), bounds[1, 1].amax(), samples))
    for here, there in zip(*seen, strict=True):
        found.same("seen", here, there)
    if by.see_finished is not None:
        _finish_case(found, by, flat, chance, generator)
    value = value.nan_to_num(0.0, 1.0, -1.0)
    _count_case(found, by, value.contiguous().reshape(-1), chance)
    learned = chance.random() < 0.5
    rest = (grad, value, scale, point, form, learned)
    for given, wanted in zip(by.value_gradients(*rest), REFERENCE.value_gradients(*rest), strict=True):
        found.near(f"values {value.dtype}", given, wanted)


def _finish_case(
    found: Apart, by: Implementation, value: torch.Tensor, chance: random.Random, generator: torch.Generator
) -> None:
    assert by.see_finished is not None

    def drawn(shape: torch.Size) -> torch.Tensor | None:
        made = torch.randn(shape, generator=generator).to(value.dtype).to(value.device)
        return made if chance.random() < 0.6 else None

    bias = drawn(value.shape[1:2]) if value.ndim > 1 else None
    other, top = drawn(value.shape), chance.choice((None, math.inf, 6.0))
    total = value if bias is None else value + bias.reshape(-1, *[1] * (value.ndim - 2))
    total = total if other is None else total + other
    wanted = total if top is None else total.clamp(0.0, top)
    step = chance.choice((1, 2, 7))
    first, place = min(step // 2, value.numel() - 1), chance.randint(0, 9)
    seen = []
    for one in (by, REFERENCE):
        bounds = torch.empty(3, 2, one.parts, device=value.device)
        samples = torch.zeros(value.numel() + 9, device=value.device)
        if one is by:
            result = torch.empty_like(value)
            by.see_finished(Unfinished(value, bias, other, top), result, first, step, bounds, 1, samples, place)
            found.same("finished", result, wanted)
        else:
            one.see(wanted, first, step, bounds, 1, samples, place)
        seen.append((bounds[1, 0].amin(), bounds[1, 1].amax(), samples))
    for here, there in zip(*seen, strict=True):
        found.same("seen finished", here, there)


def _weight_case(
    found: Apart, by: Implementation, device: str, chance: random.Random, generator: torch.Generator, largest: int
) -> None:
    form = NumberFormat(chance.choice(list(Precision)[:3]), signed=True)
    weight, grad = _tensor(device, chance, generator, chance.choice((2, 4)), largest)
    rows = weight.shape[0]
    norm = None
    if chance.random() < 0.7:
        gamma = torch.randn(rows, generator=generator).to(device)
        gamma[chance.randrange(rows)] = 0.0 if chance.random() < 0.2 else 1.0
        variance = (torch.rand(rows, generator=generator) * 10.0 ** chance.uniform(-3, 2)).to(device)
        norm = Norm(gamma if chance.random() < 0.9 else None, variance, 1e-5)
    ratio = (1 - 0.4 * torch.rand(rows, generator=generator)).to(device)
    scale = None
    if chance.random() < 0.4:
        scale = REFERENCE.rows(weight, norm, None, ratio, form, None)[1] * chance.choice((0.5, 1.0, -1.0))
    copies = [torch.empty(rows, device=device) for _ in range(2)]
    mine = by.rows(weight, norm, scale, ratio, form, copies[0])
    theirs = REFERENCE.rows(weight, norm, scale, ratio, form, copies[1])
    for part, one, other in zip(("rows", "scales", "inverses"), mine, theirs, strict=True):
        found.same(f"{part} {weight.dtype}", one, other)
    found.same("noted scales", *copies)
    _, used, inverse = theirs
    gamma_given = None if norm is None else norm.gamma
    wants = (gamma_given is not None, scale is not None)
    rest = (weight, gamma_given, inverse, used, form, *wants)
    here, there = by.row_gradients(grad, *rest), REFERENCE.row_gradients(grad, *rest)
    for name in RowGradients._fields:
        found.near(f"rows {name} {weight.dtype}", getattr(here, name), getattr(there, name))


def _together_case(
    found: Apart, by: Implementation, device: str, chance: random.Random, generator: torch.Generator, largest: int
) -> None:
    form = NumberFormat(chance.choice(list(Precision)[:3]), signed=True)
    made = [
        _tensor(device, chance, generator, chance.choice((2, 4)), largest // 4) for _ in range(chance.randint(2, 8))
    ]
    dtype = chance.choice((torch.float32, torch.float32, made[0][0].dtype))
    weights, grads = ([pair[side].to(dtype) for pair in made] for side in (0, 1))
    has_norm, has_gamma = chance.random() < 0.7, chance.random() < 0.8
    gammas, results = list[torch.Tensor | None](), []
    for weight in weights:
        gamma = torch.randn(len(weight), generator=generator).to(device)
        gamma[chance.randrange(len(weight))] = 0.0 if chance.random() < 0.2 else 1.0
        gammas.append(gamma if has_norm and has_gamma else None)
    variances = [torch.rand(len(weight), generator=generator).to(device) for weight in weights]
    ratios = [(1 - 0.4 * torch.rand(len(weight), generator=generator)).to(device) for weight in weights]
    grads_given: list[torch.Tensor | None] = [None if chance.random() < 0.02 else grad for grad in grads]
    wants = [gammas[0] is not None and chance.random() < 0.8] * len(weights)
    for one in (by, REFERENCE):
        parts = [
            RowWeight(weight, Norm(gamma, variance, 1e-5) if has_norm else None, ratio, form, torch.empty_like(ratio))
            for weight, gamma, variance, ratio in zip(weights, gammas, variances, ratios, strict=True)
        ]
        rounded, kept = one.rows_together(parts)
        slopes = one.together_gradients(grads_given, weights, gammas, kept, form, wants)
        results.append((rounded, [part.copy for part in parts], slopes))
    for place in range(len(weights)):
        mine, theirs = results
        found.same("rows together", mine[0][place], theirs[0][place])
        found.same("noted scales together", mine[1][place], theirs[1][place])
        for name in RowGradients._fields:
            slopes_of = (None if each[2][place] is None else getattr(each[2][place], name) for each in results)
            found.near(f"together {name} {dtype}", *slopes_of)


def _count_case(found: Apart, by: Implementation, value: torch.Tensor, chance: random.Random) -> None:
    cut = chance.randint(0, value.numel() - 1)
    lengths = [value.numel() - cut, cut] if cut else [value.numel()]
    top = math.frexp(max(float(value.float().abs().max()), 1e-30))[1]
    exponents = [top - 11, top - 10]
    rows = [chance.randrange(2) for _ in lengths]
    starts = [0, lengths[0]][: len(lengths)]
    both = (one.counted(value, starts, lengths, rows, exponents, 2048).long() for one in (by, REFERENCE))
    found.same("counts", *both)
