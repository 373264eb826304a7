"""``embedl-hub profile``: measure a compiled model on a device."""

from embedl_hub.cli._steps import StepGroup
from embedl_hub.core.component import RunType

command = StepGroup("profile", RunType.PROFILE, "Measure a compiled model on a device")
