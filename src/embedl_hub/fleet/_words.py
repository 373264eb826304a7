"""What messages call things."""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from embedl_hub.fleet._model import Step


def title(step: Step) -> str:
    """Return what people call a step."""
    return f"{step.kind} of {step.model!r} on {step.target.name!r}"


def first_line(text: str) -> str:
    """Return the first line of a message; the rest is in its run."""
    return text.strip().partition("\n")[0][:300]
