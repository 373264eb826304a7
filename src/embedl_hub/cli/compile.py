"""``embedl-hub compile``: compile a model for a runtime and a device."""

from __future__ import annotations

from embedl_hub.cli._steps import StepGroup
from embedl_hub.core.component import RunType

command = StepGroup(
    RunType.COMPILE,
    name="compile",
    help="Compile a model for a runtime and a device: one command per toolchain, with the options of its component.",
)
