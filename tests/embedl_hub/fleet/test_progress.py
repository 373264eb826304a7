"""How far a sweep is, and how long it may still take."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest
from support.fleet import model_files, plain_sweep

from embedl_hub.errors import ConfigError
from embedl_hub.fleet import Outcome, Progress, StepKind, Target, Threads, expand, find_engine

if TYPE_CHECKING:
    from pathlib import Path


def test_what_is_left_is_estimated_by_kind_and_target(tmp_path: Path) -> None:
    """A target that did none of a kind yet is taken for as fast as the others; two boards halve the time."""
    plan = expand(plain_sweep(model_files(tmp_path, 4)), (Target("one", ("x",)), Target("two", ("y", "z"))))
    progress = Progress()
    first = next(key for key, step in plan.steps.items() if step.target.name == "two")
    progress.began("s", plan, {first: Outcome(first, "r")})
    assert progress.left_s() is None
    assert progress.targets["two"].reused == progress.targets["two"].ended == 1
    lasting_ms = {StepKind.COMPILE: 1_000, StepKind.PROFILE: 10_000}
    for step in [step for step in plan.steps.values() if step.target.name == "one"][:4]:
        progress.step_ended(step, Outcome(step.key, "r", claimed_ms=(0, lasting_ms[step.kind])))
    # Two compiles and two profiles are left for one board, three and four for two.
    assert progress.left_s() == pytest.approx(max(2 * 1 + 2 * 10, (3 * 1 + 4 * 10) / 2))
    failing = next(step for step in plan.steps.values() if step.target.name == "two" and step.key != first)
    progress.step_ended(failing, Outcome(failing.key, None, "no"))
    assert progress.targets["two"].failed == 1


def test_engines_are_found_by_name() -> None:
    """Ours is an entry point as any other; one that is not installed is answered with those that are."""
    assert find_engine("threads") == Threads()
    with pytest.raises(ConfigError, match=r"no engine 'horses'; known: .*'threads'"):
        find_engine("horses")
