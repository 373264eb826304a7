"""Invokers: what a compiled model answers on a device. The toolchains' own names are found on use."""

from embedl_hub.core.faces import lazy_face
from embedl_hub.core.invoke._invoker import (
    InvocationResult,
    Invoker,
    OutputDifference,
    Parity,
    compare_outputs,
    is_ruined,
)
from embedl_hub.errors import InvokeError

__all__ = ["InvocationResult", "InvokeError", "Invoker", "OutputDifference", "Parity", "compare_outputs", "is_ruined"]

__getattr__, __dir__ = lazy_face(__name__, __all__)
