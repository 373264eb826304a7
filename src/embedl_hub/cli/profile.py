"""``embedl-hub profile``: measure a compiled model on a device."""

from __future__ import annotations

from embedl_hub.cli._steps import StepGroup
from embedl_hub.core.component import RunType

command = StepGroup(
    RunType.PROFILE,
    name="profile",
    help="Measure a compiled model on a device: one command per toolchain, with the options of its component.",
)
