"""Shared by deploy's tests: one thread, fixed seeds, and torchvision beside a CPU torch."""

import sys
from collections.abc import Iterator

import pytest
import torch


def _declare_torchvision_operators() -> torch.library.Library:
    """Declare the two operators that torchvision's CUDA build registers fakes for; tests only."""
    library = torch.library.Library("torchvision", "FRAGMENT")  # type: ignore[no-untyped-call]
    for name in ("nms", "qnms"):
        library.define(f"{name}(Tensor dets, Tensor scores, float iou_threshold) -> Tensor")  # type: ignore[no-untyped-call]
    return library


_LIBRARY = _declare_torchvision_operators() if "torchvision" not in sys.modules else None


@pytest.fixture(autouse=True)
def _quiet_torch() -> Iterator[None]:
    """Keep to one thread and one sequence of random numbers."""
    threads = torch.get_num_threads()
    torch.set_num_threads(1)
    torch.manual_seed(0)
    yield
    torch.set_num_threads(threads)
