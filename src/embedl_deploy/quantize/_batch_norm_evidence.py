"""What a network remembers of its training data: the mean and the variance that its batch norms keep.

The input of every such layer is looked at, a mean and a mean of squares for each sample and channel. A channel's
distance is how far its mean lies from the stored one, in stored standard deviations, together with the logarithm of
the ratio of the standard deviations: 0.7 for twice as much, or half. Samples are independent, the positions within
one are not, so what chance alone gives is taken from the spread between samples, and is taken off again.

A fault of preprocessing enters at the input. The layers that are reached first see it before the network has had a
chance to level it out, and what a picture shows moves them least.
"""

import contextlib
import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import nn

from embedl_deploy._graph.run import evaluating
from embedl_deploy.quantize._rows import Sample, rows_of

ENTRY = 4  # layers from the input on that a verdict is made of; each counts half as much as the one before
_MOST = 5.0  # of a channel's distance: a few channels must not speak for all
_SHRUNK = 0.1  # of a covariance, towards equal variances: there are fewer samples than channels
_DEAD = 1e-4  # of the layer's median variance: a channel that hardly ever moves has no scale to measure by


class _ReachedError(Exception):
    """The layers that were asked for have been seen."""


@dataclass(frozen=True)
class Norm:
    """What one layer keeps of its training data."""

    name: str
    mean: torch.Tensor
    variance: torch.Tensor
    used: torch.Tensor  # channels that count


@dataclass(frozen=True)
class Moments:
    """What one layer is given: for every sample and channel the mean, and the mean of the squares."""

    mean: torch.Tensor
    square: torch.Tensor

    @property
    def samples(self) -> int:
        return len(self.mean)


_FAR = 0.99 * _MOST


@dataclass(frozen=True)
class LayerFit:
    """How far the input of one normalization layer lies from the statistics it keeps."""

    name: str
    channels: int
    distance: float  # in stored standard deviations, less what chance gives
    shift: float  # of the means alone
    spread: float  # of the standard deviations alone: the mean logarithm of their ratio, with its sign

    def row(self) -> tuple[str, ...]:
        """Return the cells of a table."""
        # What is farther off counts as that far: the numbers beyond it are not measured.
        ratio = f"{'> ' if self.spread >= _FAR else '< ' if self.spread <= -_FAR else ''}x{math.exp(self.spread):.2f}"
        shift = f"{'> ' if self.shift >= _FAR else ''}{self.shift:.2f}"
        return (self.name, str(self.channels), f"{self.distance:.2f}", shift, ratio)


def find_norms(model: nn.Module) -> tuple[dict[str, Norm], int]:
    """Return the layers that keep statistics of training data, and how many keep none that were ever set."""
    found: dict[str, Norm] = {}
    unset = 0
    for name, part in model.named_modules():
        mean, variance = (getattr(part, key, None) for key in ("running_mean", "running_var"))
        if not isinstance(mean, torch.Tensor) or not isinstance(variance, torch.Tensor) or mean.ndim != 1:
            continue
        if bool((mean == 0).all()) and bool((variance == 1).all()):
            unset += 1
            continue
        mean, variance = mean.detach().double().cpu(), variance.detach().double().cpu()
        used = variance > _DEAD * variance.median()
        if bool(used.any()) and bool(mean.isfinite().all()) and bool(variance.isfinite().all()):
            found[name] = Norm(name, mean, variance, used)
    return found, unset


def watch(model: nn.Module, norms: Mapping[str, Norm], calls: Sequence[Sample], most: int = 0) -> dict[str, Moments]:
    """Run calls and return what the layers were given, in the order they are reached; only the first `most` if set."""
    seen: dict[str, list[tuple[torch.Tensor, torch.Tensor]]] = {}
    with contextlib.ExitStack() as stack:
        stack.enter_context(evaluating([model]))
        stack.enter_context(torch.no_grad())
        run = _Run(most)
        for name, part in model.named_modules():
            if name in norms:
                stack.callback(part.register_forward_pre_hook(_Look(name, seen, run)).remove)
        for call in calls:
            run.begin(call)
            with contextlib.suppress(_ReachedError):
                model(*call[0], **call[1])
    return {name: Moments(*(torch.cat(parts) for parts in zip(*rows, strict=True))) for name, rows in seen.items()}


class _Run:
    """One call of the model: the layers it has reached, and how many samples it has."""

    def __init__(self, most: int) -> None:
        self.most = most
        self.reached: set[str] = set()
        self.samples = 0

    def begin(self, call: Sample) -> None:
        self.reached.clear()
        self.samples = rows_of(call)


class _Look:
    """Keeps what one layer is given the first time in a call."""

    def __init__(self, name: str, seen: dict[str, list[tuple[torch.Tensor, torch.Tensor]]], run: _Run) -> None:
        self._name, self._seen, self._run = name, seen, run

    def __call__(self, _: nn.Module, args: tuple[Any, ...]) -> None:
        if self._name in self._run.reached or not args:
            return
        flat = args[0].detach().reshape(*args[0].shape[:2], -1).float()
        mean, square = flat.mean(2).double(), flat.square().mean(2).double()
        count = self._run.samples
        if len(mean) % count == 0:
            # Parts of one sample that were made rows, such as the frames of a video, are not independent.
            mean, square = (part.reshape(count, -1, part.shape[1]).mean(1) for part in (mean, square))
        self._seen.setdefault(self._name, []).append((mean.cpu(), square.cpu()))
        self._run.reached.add(self._name)
        if self._run.most and len(self._run.reached) >= self._run.most:
            raise _ReachedError


def fit_layer(norm: Norm, moments: Moments) -> LayerFit:
    """Compare what a layer was given with what it keeps."""
    shift, spread, noise = (part[0] for part in _parts(norm, moments, torch.ones(1, moments.samples)))
    return LayerFit(
        norm.name, len(norm.mean), float(_distance(shift, spread, noise)),
        float(shift.clamp(-_MOST, _MOST).square().mean().sqrt()), float(spread.clamp(-_MOST, _MOST).mean()),
    )  # fmt: skip


def _distance(shift: torch.Tensor, spread: torch.Tensor, noise: torch.Tensor) -> torch.Tensor:
    excess = (shift.square() + spread.square() - noise).clamp(-1.0, _MOST**2)
    return excess.mean(-1).clamp(min=0).sqrt()


def _parts(norm: Norm, moments: Moments, weights: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
    """Return per channel the shift, the logarithm of the ratio of deviations, and the squares chance alone gives.

    A row of weights says how often each sample counts; every row has its own answer.
    """
    rows, squares = moments.mean[:, norm.used], moments.square[:, norm.used]
    variance, count = norm.variance[norm.used], len(rows)
    weights = weights.double() / weights.sum(1, keepdim=True)
    mean = weights @ rows
    # A value that is the same everywhere has a variance of rounding errors.
    found = (weights @ squares - mean.square()).clamp(min=0) + 1e-9 * variance
    shift = (mean - norm.mean[norm.used]) / variance.sqrt()
    spread = 0.5 * (found / variance).log()
    if count < 2:
        return shift, spread, torch.zeros_like(shift)
    # The spread between samples: of their means, and of what each adds to the variance around the mean of all.
    of_means = weights @ rows.square() - mean.square()
    cross, fourth = weights @ (squares * rows), weights @ squares.square()
    added = fourth - 4 * mean * cross + 4 * mean.square() * (weights @ rows.square())
    of_added = added - (weights @ squares - 2 * mean.square()).square()
    noise = of_means.clamp(min=0) / variance + of_added.clamp(min=0) / (4 * found.square())
    return shift, spread, noise / (count - 1)


def score(fits: Sequence[LayerFit]) -> float:
    """Return one distance for the layers from the input on."""
    weights = [0.5**index for index in range(min(len(fits), ENTRY))]
    pairs = zip(weights, fits, strict=False)
    return math.sqrt(sum(weight * fit.distance**2 for weight, fit in pairs) / sum(weights)) if weights else 0.0


def fit_all(norms: Mapping[str, Norm], moments: Mapping[str, Moments]) -> tuple[LayerFit, ...]:
    """Compare all layers, in the order they are reached."""
    return tuple(fit_layer(norms[name], found) for name, found in moments.items())


def resampled(norms: Mapping[str, Norm], moments: Mapping[str, Moments], times: int, seed: int = 0) -> torch.Tensor:
    """Return the score for samples that are drawn again with replacement; the same draws for the same seed."""
    first = list(moments.items())[:ENTRY]
    count = min(found.samples for _, found in first)
    drawn = torch.randint(count, (times, count), generator=torch.Generator().manual_seed(seed))
    weights = torch.zeros(times, count).scatter_add_(1, drawn, torch.ones(times, count))
    squares = torch.zeros(times, dtype=torch.float64)
    total = 0.0
    for index, (name, found) in enumerate(first):
        squares += 0.5**index * _distance(*_parts(norms[name], found, weights)).square()
        total += 0.5**index
    return (squares / total).sqrt()


def prefers(norms: Mapping[str, Norm], given: Mapping[str, Moments], other: Mapping[str, Moments]) -> float:
    """Return how clearly the stored statistics take the other of two versions of the same samples; below 0: the given.

    What pictures show moves all channels of a layer together, by light and contrast most. So distances are measured in
    the spread between samples, where a direction counts as much as samples rarely differ in it. Along the line from
    one version to the other lies the evidence; what is off across that line no version explains, and what pictures
    show may have moved the statistics as far along it. The result is the square of the first over that of the second.
    """
    squares = torch.zeros(3, dtype=torch.float64)
    for name in given:
        squares += _apart(_standard(norms[name], given[name]), _standard(norms[name], other[name]))
    here, there, between = (float(part) for part in squares)
    if between <= 0:
        return 0.0
    along = (here - there) / between  # 1 where the other version is what is stored, -1 where the given is
    across = max(here - (1 + along) ** 2 * between / 4, 1e-6 * between)
    return along * between / (2 * across)


def _standard(norm: Norm, moments: Moments) -> torch.Tensor:
    """Return for every sample its means and variances around the stored ones, in stored units."""
    mean, variance = norm.mean[norm.used], norm.variance[norm.used]
    rows, squares = moments.mean[:, norm.used], moments.square[:, norm.used]
    power = (squares - 2 * mean * rows + mean.square()) / variance - 1
    return torch.cat([(rows - mean) / variance.sqrt(), power.clamp(-1.0, 8.0) / 2], 1)


def _apart(given: torch.Tensor, other: torch.Tensor) -> torch.Tensor:
    """Return the mean squares of two versions from what is stored, and from each other, in the samples' own spread."""
    means = given.mean(0), other.mean(0)
    around = torch.cat([given - means[0], other - means[1]])
    count, width = len(around) - 2, around.shape[1]
    scale = float(around.square().sum()) / (count * width)
    if scale <= 0:
        return torch.zeros(3, dtype=torch.float64)
    away = torch.stack([*means, means[0] - means[1]], 1)
    # The inverse of the shrunk covariance, by way of the samples, which are fewer than the channels (Woodbury).
    floor = _SHRUNK * scale
    seen = around @ away
    inner = around @ around.T + floor * count / (1 - _SHRUNK) * torch.eye(len(around), dtype=around.dtype)
    explained = (seen * torch.linalg.solve(inner, seen)).sum(0)
    squares: torch.Tensor = (away.square().sum(0) - explained).clamp(min=0) / (floor * width)
    return squares
