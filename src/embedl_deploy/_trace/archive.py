"""A .pt2 file from a stranger: read as data by ``embedl_device.exported``, or refused."""

from pathlib import Path

from torch.export import ExportedProgram

from embedl_deploy.errors import TraceError
from embedl_device.exported import load_exported as load
from embedl_device.readers import UnreadableError


def load_exported(path: Path) -> ExportedProgram:
    """Return the program of a file that ``torch.export.save`` wrote.

    Raises:
        TraceError: There is no such file, it is none, or it holds more than numbers and torch's own operators.
    """
    try:
        program: ExportedProgram = load(path)
    except UnreadableError as exc:
        raise TraceError(str(exc)) from exc
    return program
