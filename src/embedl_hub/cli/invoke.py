"""``embedl-hub invoke``: run a compiled model on your data."""

from __future__ import annotations

from embedl_hub.cli._steps import StepGroup
from embedl_hub.core.component import RunType

command = StepGroup(
    RunType.INFERENCE,
    name="invoke",
    help="Run a compiled model on your data: one command per toolchain, with the options of its component.",
)
