"""Which function does each step, on this machine and for an Ethos-U in devices.toml."""

from embedl_hub.core.device import LOCAL
from vela_toolchain.compile import compile_model
from vela_toolchain.components import VelaCompiler, VelaInvoker, VelaProfiler
from vela_toolchain.config import TYPE
from vela_toolchain.invoke import invoke_model
from vela_toolchain.profile import profile_model

for _type in (LOCAL, TYPE):
    VelaCompiler.provider(_type, tools=("ethos-u-vela",))(compile_model)
    VelaProfiler.provider(_type, tools=("ethos-u-vela",))(profile_model)
    VelaInvoker.provider(_type, tools=("tflite-micro",))(invoke_model)
