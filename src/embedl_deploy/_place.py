"""Find the line of the user's own code in a traceback."""

import traceback
from pathlib import Path

import torch

_TORCH = str(Path(torch.__file__).parent)
_OURS = str(Path(__file__).parent)


def user_line(exc: BaseException) -> str:
    """Return ``file:line: source`` of the innermost frame that is neither torch's nor ours, or an empty string."""
    frames = traceback.extract_tb(exc.__traceback__)
    for frame in reversed(frames):
        name = frame.filename
        if not name.startswith((_TORCH, _OURS, "<")):
            return f"{name}:{frame.lineno}: {frame.line or frame.name}".rstrip()
    return ""
