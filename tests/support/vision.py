"""torchvision beside a CPU torch."""

import functools
import importlib.util
from pathlib import Path

import torch


@functools.cache
def declare_operators() -> torch.library.Library | None:
    """Make torchvision's next import work, and return what must be kept for it.

    Its wheels are built for CUDA. Beside the CPU torch their library cannot be loaded, and the import fails at the
    fakes for two operators that nobody has declared: so we declare them. Beside the CUDA torch the library loads and
    declares them itself, and the process aborts when somebody else was there first.
    """
    found = importlib.util.find_spec("torchvision")
    if found is None or found.origin is None:
        return None
    for compiled in Path(found.origin).parent.glob("_C*.so"):
        try:
            torch.ops.load_library(compiled)  # type: ignore[no-untyped-call]
        except OSError:
            continue
        return None
    library = torch.library.Library("torchvision", "FRAGMENT")  # type: ignore[no-untyped-call]
    for name in ("nms", "qnms"):
        library.define(f"{name}(Tensor dets, Tensor scores, float iou_threshold) -> Tensor")  # type: ignore[no-untyped-call]
    return library
