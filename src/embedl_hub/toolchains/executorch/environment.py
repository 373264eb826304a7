"""Where ExecuTorch's packages are: in the Python that runs the hub, or in an environment of their own.

The wheel declares what its other backends need (coremltools, scikit-learn and more); of that, making programs with
XNNPACK and running them imports nothing, so executorch is installed without its dependencies beside those it imports.
"""

from __future__ import annotations

import importlib.metadata
import importlib.util
from typing import TYPE_CHECKING

from embedl_hub.machine.environment import Recipe

if TYPE_CHECKING:
    from embedl_hub.core.device import ProviderConfig

# tools/lock.py makes the locks from these.
EXECUTORCH = "executorch==1.5.1"
REQUIREMENTS = (
    "flatbuffers==25.12.19", "numpy==2.4.6", "onnx==1.23.2", "packaging==26.3", "pyyaml==6.0.3",
    "ruamel.yaml==0.19.1", "sympy==1.14.0", "tabulate==0.10.0", "torch==2.13.0", "torchao==0.18.0",
)  # fmt: skip

ENVIRONMENT = Recipe(
    "executorch",
    "ExecuTorch environment",
    EXECUTORCH,
    # Where torch has a build without CUDA, whose libraries would be gigabytes, among the files that we lock.
    pythons=((3, 11),),
    check=(
        "import onnx, executorch.exir, executorch.extension.pybindings._C; "
        "from executorch.backends.xnnpack.partition.xnnpack_partitioner import XnnpackPartitioner"
    ),
    duration="some minutes",
    otherwise=(
        "Install executorch and torch into a Python of yours, pip install 'edgeproof-hub[executorch]', or name one "
        "that has them: ExecuTorchConfig(executorch_python=...)."
    ),
)


def own_version() -> str | None:
    """Return the version of executorch in the Python that runs the hub; None where it is not, or torch is not."""
    if any(importlib.util.find_spec(name) is None for name in ("executorch", "torch")):
        return None
    try:
        return importlib.metadata.version("executorch")
    except importlib.metadata.PackageNotFoundError:
        return None


def interpreter(config: ProviderConfig) -> str | None:
    """Return the Python of this machine that has ExecuTorch; None for the one that runs the hub."""
    chosen = getattr(config, "executorch_python", None)
    if chosen is not None:
        return str(chosen)
    return None if own_version() is not None else str(ENVIRONMENT.need().python)
