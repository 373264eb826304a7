"""What a provider's own check says."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True)
class CheckResult:
    """One line of ``embedl-hub doctor``. A provider's package may have a function ``doctor`` that returns some.

    Attributes:
        title: What was looked at.
        is_ok: Whether it works; None when it is optional and not there.
        says: What was found.
        advice: What to do about it.
    """

    title: str
    is_ok: bool | None
    says: str
    advice: str = ""
