"""The demo: a network from PyTorch to a measured, verified INT8 model, as ``embedl-hub demo`` and ``./run`` show it."""

from embedl_demo._demo import DemoResult, Effort, run_demo
from embedl_demo._version import __version__

__all__ = ["DemoResult", "Effort", "__version__", "run_demo"]
