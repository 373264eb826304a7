"""Shared by deploy's tests: one thread, fixed seeds, and torchvision beside a CPU torch."""

from collections.abc import Iterator

import pytest
import torch
from support.vision import declare_operators

declare_operators()


@pytest.fixture(autouse=True)
def _quiet_torch() -> Iterator[None]:
    """Keep to one thread and one sequence of random numbers."""
    threads = torch.get_num_threads()
    torch.set_num_threads(1)
    torch.manual_seed(0)
    yield
    torch.set_num_threads(threads)
