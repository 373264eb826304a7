"""Small files of the kernel that are read again and again: opened once, so that reading costs one system call."""

from __future__ import annotations

import os
import re
from pathlib import Path
from typing import Optional

_MOST_BYTES = 4096
_LARGEST = 1 << 63


class KernelFile:
    """A file of sysfs or procfs, kept open."""

    def __init__(self, path: Path) -> None:
        self.path = path
        # A pipe or a device in its place must not keep us waiting.
        self._file = os.open(str(path), os.O_RDONLY | getattr(os, "O_NONBLOCK", 0) | getattr(os, "O_CLOEXEC", 0))

    def text(self) -> str:
        """Return what it says now; an OSError when its device is gone."""
        return os.pread(self._file, _MOST_BYTES, 0).decode("utf-8", "replace").strip("\0\n ")

    def number(self) -> int:
        """Return the whole number it holds; a ValueError for anything else."""
        text = self.text()
        value = int(text) if re.fullmatch(r"[+-]?[0-9]{1,20}", text) else _LARGEST
        if abs(value) >= _LARGEST:
            raise ValueError("{} says {!r:.60}, which is no number".format(self.path, text))
        return value

    def close(self) -> None:
        """Close it."""
        os.close(self._file)


def opened(path: Path) -> Optional[KernelFile]:
    """Return a file that can be opened and read now; None for one that cannot."""
    try:
        file = KernelFile(path)
    except OSError:
        return None
    try:
        file.text()
    except OSError:
        file.close()
        return None
    return file


def read_text(path: Path) -> Optional[str]:
    """Return what a file says, once; None where there is none, or none that can be read."""
    file = opened(path)
    if file is None:
        return None
    try:
        return file.text()
    except OSError:
        return None
    finally:
        file.close()
