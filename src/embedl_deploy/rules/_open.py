"""Which probe asks a runtime, and where what it answered is kept."""

from contextlib import AbstractContextManager
from pathlib import Path

from embedl_deploy.dialect._ask import installed
from embedl_deploy.errors import DialectError
from embedl_deploy.rules._layers import LayersProbe
from embedl_deploy.rules._learn import Journal
from embedl_deploy.rules._probe import OnnxRuntimeProbe, Probe


def open_probe(runtime: str, python: Path | None = None) -> AbstractContextManager[Probe]:
    """Return what asks a runtime: ONNX Runtime by the graph that it writes, others by the layers that they run.

    Raises:
        DialectError: Nobody can ask it, or not in another environment.
    """
    if runtime == "onnxruntime":
        return OnnxRuntimeProbe(python)
    if python is not None:
        raise DialectError(f"{runtime} is asked in this environment; --python is for onnxruntime.")
    probe = LayersProbe(runtime)
    probe.version = installed(runtime)
    if not probe.version:
        raise DialectError(f"{runtime} is not installed here.")
    return probe


def open_journal(folder: Path, probe: Probe) -> Journal:
    """Return the journal of a probe's version in a folder.

    Raises:
        DialectError: It cannot be read.
    """
    return Journal.open(folder / f"{probe.runtime}-{probe.version}.jsonl")
