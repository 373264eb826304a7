"""For authors of patterns and backends: checks that run the real pipeline and say what went wrong.

Tolerances have no defaults: how close is close enough is part of what a test states.
"""

from collections.abc import Mapping, Sequence
from typing import Any

import torch
from torch import nn
from torch.utils import _pytree as pytree

from embedl_deploy._graph.proof import compare
from embedl_deploy._transform.pipeline import TransformResult, transform
from embedl_deploy.backend import Backend
from embedl_deploy.pattern import Pattern

__all__ = ["assert_same_outputs", "check_backend", "check_pattern"]


def assert_same_outputs(one: nn.Module, other: nn.Module, args: tuple[Any, ...], *, tolerance: float) -> None:
    """Assert that two models agree on inputs, within a part of the output's range.

    Raises:
        AssertionError: They differ in structure, shape, type or by more than `tolerance`.
    """
    with torch.no_grad():
        proof = compare(one(*args), other(*args))
    assert not proof.fault, f"the second model's output {proof.fault}"
    assert proof.relative_error <= tolerance, f"the outputs differ by {proof.relative_error:.2e} of their range"


def check_pattern(
    pattern: type[Pattern],
    model: nn.Module,
    args: tuple[Any, ...],
    *,
    matches: int,
    tolerance: float,
    refuses: Sequence[str] = (),
) -> TransformResult:
    """Run one pattern alone over a model and assert what it does.

    Args:
        pattern: The pattern under test.
        model: A model that has what it matches, in eval mode.
        args: Example inputs.
        matches: How many times it must be carried out.
        tolerance: The most each rewrite may change its result, as a part of the range.
        refuses: Texts that must each stand in some refusal's reason.

    Returns:
        The result, for further assertions.

    Raises:
        AssertionError: It did anything else, or changed the model it was given.
    """
    before = pytree.tree_map_only(torch.Tensor, torch.clone, dict(model.state_dict()))
    result = transform(model, args, [pattern], allow_lossy=pattern.lossy)
    report = result.report
    assert len(report.done) == matches, f"{pattern.__name__} matched {len(report.done)} times, not {matches}:\n{report}"
    for done in report.done:
        assert done.proof is not None
        error = done.proof.relative_error
        assert error <= tolerance, f"{pattern.__name__} changes '{done.step.place}' by {error:.2e} of its range"
    for text in refuses:
        reasons = [refusal.reason for refusal in report.refusals]
        assert any(text in reason for reason in reasons), f"no refusal says {text!r}; they say {reasons}"
    after = model.state_dict()
    changed = [name for name, value in before.items() if not torch.equal(value, after[name])]
    assert not changed, f"{pattern.__name__} changed the model it was given: {changed}"
    return result


def check_backend(
    backend: Backend, models: Mapping[str, tuple[nn.Module, tuple[Any, ...]]], *, tolerance: float
) -> dict[str, TransformResult]:
    """Transform every model with a backend's patterns and assert that the outputs stay the same.

    Raises:
        AssertionError: An output changed by more than `tolerance`, or a result cannot be transformed again unchanged.
    """
    results = {}
    for name, (model, args) in models.items():
        result = transform(model, args, backend.patterns)
        proof = result.report.proof
        assert proof is not None
        assert not proof.fault, f"{backend.name} on {name}: the output {proof.fault}"
        assert proof.relative_error <= tolerance, f"{backend.name} on {name}: the output changes by {proof}"
        again = transform(result.model, args, backend.conversion_patterns)
        assert not again.report.done, f"{backend.name} on {name}: conversions are not finished:\n{again.report}"
        results[name] = result
    return results
