"""The journal of a sustained run, which a device wrote: checked for the form that its readers count on."""

from __future__ import annotations

from typing import TYPE_CHECKING

from embedl_device.sustained import Recording, parse_journal
from embedl_hub.core.answer import Form, check_form

if TYPE_CHECKING:
    from pathlib import Path

_MOST_BYTES = 64_000_000
_START: Form = {
    "program": str,
    "version": str,
    "clock_s": float,
    "plan": {"seconds": float, "idle_seconds": float},
    "model": {"file_name": str},
    "power_problems?": [str],
    "power_sources?": [str],
    "warnings?": [str],
    "board?": object,
}
_END: Form = {
    "stopped": str,
    "missed?": int,
    "peak_memory_mb?": float,
    "memory_method?": str,
    "last?": {"end_s": [float], "us": [float]},
    "lease?": {"own_from_s?": float, "shared_from_s?": float},
}


def read_journal(path: Path) -> Recording:
    """Read a journal; a ValueError says what is wrong with it."""
    if (size := path.stat().st_size) > _MOST_BYTES:
        raise ValueError(f"it has {size} bytes, too many to read")
    with path.open("rb") as file:
        recording = parse_journal(file)
    check_form(recording.start, _START, "its first line")
    if recording.end is not None:
        check_form(recording.end, _END, "its last line")
    return recording
