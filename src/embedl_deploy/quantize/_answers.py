"""What a network's answers say of its data: a classifier is surer of pictures that are prepared as in training."""

import contextlib
from collections.abc import Sequence

import torch
from torch import nn

from embedl_deploy._graph.run import evaluating
from embedl_deploy.quantize._rows import Sample

_LEAST = 4  # samples


def surer(model: nn.Module, given: Sequence[Sample], other: Sequence[Sample]) -> float:
    """Return by how many standard errors a model is surer of the other of two versions of the same samples.

    The entropies of its answers are compared sample by sample. What is no table of classes, one row for a sample,
    says nothing: 0.
    """
    here, there = _entropies(model, given), _entropies(model, other)
    if here is None or there is None or len(here) < _LEAST:
        return 0.0
    gained = here - there
    error = float(gained.std()) / len(gained) ** 0.5
    return float(gained.mean()) / error if error else 0.0


def _entropies(model: nn.Module, calls: Sequence[Sample]) -> torch.Tensor | None:
    found = []
    with contextlib.ExitStack() as stack:
        stack.enter_context(evaluating([model]))
        stack.enter_context(torch.no_grad())
        for args, kwargs in calls:
            answer = model(*args, **kwargs)
            if not isinstance(answer, torch.Tensor) or not answer.is_floating_point():
                return None
            if answer.ndim < 2 or answer.shape[1] < 2:
                return None
            found.append(_entropy(answer.double()).cpu())
    return torch.cat(found)


def _entropy(answer: torch.Tensor) -> torch.Tensor:
    """Return a number for each sample; the mean over positions where there is an answer for each."""
    total = answer.sum(1, keepdim=True)
    are_shares = bool((answer >= 0).all()) and torch.allclose(total, torch.ones_like(total), atol=1e-3)
    shares = answer if are_shares else answer.softmax(1)
    entropies: torch.Tensor = torch.special.entr(shares).sum(1).reshape(len(answer), -1).mean(1)
    return entropies
