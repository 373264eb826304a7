"""``embedl-hub compile``: compile a model for a runtime and a device."""

from embedl_hub.cli._steps import StepGroup
from embedl_hub.core.component import RunType

command = StepGroup("compile", RunType.COMPILE, "Compile a model for a runtime and a device")
