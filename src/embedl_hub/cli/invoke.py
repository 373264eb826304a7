"""``embedl-hub invoke``: run a compiled model on your data."""

from embedl_hub.cli._steps import StepGroup
from embedl_hub.core.component import RunType

command = StepGroup("invoke", RunType.INFERENCE, "Run a compiled model on your data")
