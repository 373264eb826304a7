"""Arm's Vela as a toolchain: INT8 TFLite models become command streams for Ethos-U.

Vela compiles and estimates; no Ethos-U is reached. What it says of time is marked as estimated, and answers come from
the model before it was compiled, run by tflite-micro on this machine.
"""

from embedl_hub.core.device import LOCAL
from embedl_hub.core.toolchain import Toolchain
from vela_toolchain.components import VelaCompiledModel, VelaCompiler, VelaInvoker, VelaProfiler
from vela_toolchain.config import KIND, TYPE, check_packages

__all__ = ["TOOLCHAIN"]

TOOLCHAIN = Toolchain(
    name="vela",
    title="Vela",
    compiler=VelaCompiler,
    compiled_model=VelaCompiledModel,
    suffixes=("_vela.tflite",),
    profiler=VelaProfiler,
    invoker=VelaInvoker,
    providers=dict.fromkeys((LOCAL, TYPE), "vela_toolchain.providers"),
    device_kinds=(KIND,),
    doctor=check_packages,
)
