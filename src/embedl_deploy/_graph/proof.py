"""Is a rewrite right? Run what was there and what comes, on the same example values, and compare.

A proof is about one rewrite alone: both sides get the values that really reach that place, so errors do not add up.
"""

import math
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any

import torch
from torch import fx
from torch.utils import _pytree as pytree

from embedl_deploy._graph.network import Example, Network, as_call
from embedl_deploy._graph.run import evaluating
from embedl_deploy.pattern import Match, PassThrough, Replacement

_FLOAT_NOISE = 1e-5


@dataclass(frozen=True)
class Proof:
    """The measured difference between two ways to compute a value."""

    max_error: float
    scale: float  # range of the reference values (largest minus smallest, or largest magnitude if that is more)
    fault: str = ""  # why the two cannot be compared at all; empty when they can

    @property
    def relative_error(self) -> float:
        return self.max_error / self.scale if self.scale else self.max_error

    @property
    def verdict(self) -> str:
        """``exact`` to the bit, ``equal`` up to float rounding, or ``approximate``."""
        if self.fault:
            return "wrong"
        if self.max_error == 0:
            return "exact"
        return "equal" if self.relative_error <= _FLOAT_NOISE else "approximate"

    def __str__(self) -> str:
        text = "exact" if self.max_error == 0 else f"{self.verdict} ({self.relative_error:.1e} of range)"
        return self.fault or text


def compare(reference: Any, candidate: Any) -> Proof:
    """Measure the difference between two results, whatever structure they have."""
    wanted, got = _tensors(reference), _tensors(candidate)
    if len(wanted) != len(got):
        return Proof(0.0, 0.0, f"has {len(got)} results instead of {len(wanted)}")
    worst = Proof(0.0, 0.0)
    for one, other in zip(wanted, got, strict=True):
        if one.shape != other.shape:
            return Proof(0.0, 0.0, f"has the shape {tuple(other.shape)} instead of {tuple(one.shape)}")
        if one.dtype != other.dtype:
            return Proof(0.0, 0.0, f"has the type {other.dtype} instead of {one.dtype}")
        proof = _difference(one, other)
        if proof.fault:
            return proof
        if worst.scale == 0 or proof.relative_error > worst.relative_error:
            worst = proof
    return worst


def prove(
    network: Network, rewrites: Sequence[tuple[Match, Replacement]], example: Example | None = None
) -> list[Proof]:
    """Run the network once and, wherever a rewrite is planned, what would take the place, on the same values.

    Where dimensions stay open, longer inputs are run as well, and the worse of the two counts.
    """
    planned = {match.output: (match, replacement) for match, replacement in rewrites}
    waiting = Counter(source for match, _ in rewrites for source in set(match.inputs))
    # An in-place node changes the very value a rewrite reads, so such a value is copied when it comes up.
    written = {source for source in waiting if network.writers_of(source)}
    held: dict[fx.Node, Any] = {}
    proofs: dict[fx.Node, Proof] = {}

    def visit(node: fx.Node, value: Any) -> None:
        if node in waiting:
            held[node] = pytree.tree_map_only(torch.Tensor, torch.clone, value) if node in written else value
        if node in planned:
            match, replacement = planned[node]
            proofs[node] = _compare_at(value, replacement, [held[source] for source in match.inputs])
            for source in set(match.inputs):
                waiting[source] -= 1
                if not waiting[source]:
                    del held[source]

    calls = (as_call(replacement) for _, replacement in rewrites if not isinstance(replacement, PassThrough))
    with evaluating([call.module for call in calls]):
        network.run(visit, example)
    found = [proofs[match.output] for match, _ in rewrites]
    other = network.example.other if network.example is not None and example is None else None
    return found if other is None else list(map(_worse, found, prove(network, rewrites, other)))


def _worse(proof: Proof, other: Proof) -> Proof:
    if proof.fault or not other.fault:
        return max(proof, other, key=lambda each: (bool(each.fault), each.relative_error))
    return replace(other, fault=f"the replacement is for one size only: {other.fault}")


def _compare_at(value: Any, replacement: Replacement, inputs: list[Any]) -> Proof:
    if isinstance(replacement, PassThrough):
        return compare(value, inputs[replacement.position])
    call = as_call(replacement)
    try:
        result = call.module(*call.select(inputs))
    except Exception as exc:  # noqa: BLE001 (a pattern author's module may raise anything; the reason goes to the report)
        return Proof(0.0, 0.0, f"the replacement fails on the example inputs: {type(exc).__name__}: {exc}")
    if isinstance(value, tuple) and isinstance(result, tuple) and len(value) == len(result):
        # A part nobody reads may be left out of a tuple as None.
        pairs = [(one, other) for one, other in zip(value, result, strict=True) if other is not None]
        return compare([one for one, _ in pairs], [other for _, other in pairs])
    return compare(value, result)


def _tensors(value: Any) -> list[torch.Tensor]:
    return [leaf for leaf in pytree.tree_leaves(value) if isinstance(leaf, torch.Tensor)]


def _difference(one: torch.Tensor, other: torch.Tensor) -> Proof:
    if one.numel() == 0:
        return Proof(0.0, 0.0)
    if not (one.is_floating_point() or one.is_complex()):
        wrong = int((one != other).sum())
        return Proof(0.0, 1.0, f"differs in {wrong} of {one.numel()} elements" if wrong else "")
    one, other = one.detach(), other.detach()
    if torch.equal(one, other):  # most rewrites; needs no memory for the difference
        return Proof(0.0, _range(one))
    alike = (one == other) | (one.isnan() & other.isnan())
    if not bool((one.isfinite() | alike).all()) or not bool((other.isfinite() | alike).all()):
        return Proof(0.0, 0.0, "is not finite where the original is, or the other way round")
    error = float(torch.where(alike, torch.zeros_like(one), one - other).abs().max())
    return Proof(error, _range(one))


def _range(value: torch.Tensor) -> float:
    """Return the largest minus the smallest value, or the largest magnitude if that is more."""
    value = value.abs() if value.is_complex() else value
    low, high = (float(end) for end in value.aminmax())
    if not math.isfinite(high - low):
        finite = value[value.isfinite()]
        low, high = (float(end) for end in finite.aminmax()) if finite.numel() else (0.0, 0.0)
    return max(high - low, abs(high), abs(low))
