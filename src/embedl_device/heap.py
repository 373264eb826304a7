"""What a process has allocated, as its C library counts it: for runtimes that do not tell their memory themselves."""

from __future__ import annotations

import ctypes
from typing import Optional


class _Counts(ctypes.Structure):
    _fields_ = [
        (name, ctypes.c_size_t)
        for name in (
            "arena",
            "ordblks",
            "smblks",
            "hblks",
            "hblkhd",
            "usmblks",
            "fsmblks",
            "uordblks",
            "fordblks",
            "keepcost",
        )
    ]


def allocated_bytes() -> Optional[int]:
    """Return what is allocated in this process, by the C library's own count; None where it does not count so."""
    try:
        count = ctypes.CDLL(None).mallinfo2
    except (AttributeError, OSError, TypeError):
        return None
    count.restype = _Counts
    counts = count()
    return int(counts.uordblks + counts.hblkhd)


def grown(before: Optional[int], after: Optional[int]) -> Optional[int]:
    """Return what was allocated and kept in between; None if nobody counted, or others gave more back."""
    return None if before is None or after is None or after < before else after - before
