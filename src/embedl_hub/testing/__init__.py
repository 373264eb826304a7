"""For tests of providers and toolchains, ours and yours: a scripted board, a context, a conformance check."""

from embedl_hub.testing._conformance import (
    Answer,
    Check,
    ConformanceError,
    ScriptedRunner,
    check_provider,
    scripted_device,
    temporary_context,
)

__all__ = [
    "Answer",
    "Check",
    "ConformanceError",
    "ScriptedRunner",
    "check_provider",
    "scripted_device",
    "temporary_context",
]
