"""A text task that every machine has: which package of Python's standard library does a passage come from?

Words are numbered by a hash; files of a package are either for training or for the test, never both.
"""

from __future__ import annotations

import re
import sysconfig
import zlib
from pathlib import Path

import torch

PACKAGES = ("asyncio", "email", "unittest", "logging")
_WORD = re.compile(r"[A-Za-z_]+|\d+|[^\sA-Za-z_\d]")
_EVERY = 4  # each fourth file is for the test


def passages(words: int, vocabulary: int, *, is_test: bool) -> tuple[torch.Tensor, torch.Tensor]:
    """Return passages as numbers of words, shuffled, and the package of each."""
    library = Path(sysconfig.get_path("stdlib"))
    rows, labels = [], []
    for label, package in enumerate(PACKAGES):
        for place, path in enumerate(sorted((library / package).rglob("*.py"))):
            if (place % _EVERY == 0) is not is_test:
                continue
            text = path.read_text(encoding="utf-8", errors="replace")
            numbers = [1 + zlib.crc32(word.encode()) % (vocabulary - 1) for word in _WORD.findall(text)]
            for start in range(0, len(numbers) - words, words):
                rows.append(numbers[start : start + words])
                labels.append(label)
    order = torch.randperm(len(rows), generator=torch.Generator().manual_seed(0))
    return torch.tensor(rows)[order], torch.tensor(labels)[order]
