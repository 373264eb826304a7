"""What every candidate's script shares: it reads a job, measures the quantization alone and writes a report.

Runs inside the peer's own environment: numpy and the standard library only.
"""

from __future__ import annotations

import importlib.metadata
import json
import os
import sys
import time
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

if TYPE_CHECKING:
    from collections.abc import Iterator

    from numpy.typing import NDArray

# One core for everyone, before any runtime counts the cores: spinning threads would be charged as work.
_CORES = sorted(os.sched_getaffinity(0))
os.sched_setaffinity(0, {_CORES[os.getpid() % len(_CORES)]})


def _status(key: str) -> float:
    """Read a figure of /proc/self/status, in MB."""
    lines = Path("/proc/self/status").read_text().splitlines()
    return next(int(line.split()[1]) / 1024 for line in lines if line.startswith(key))


@dataclass
class Job:
    """A float network as ONNX and as an exported program, pictures to calibrate on, and where the result goes."""

    float_onnx: str
    program: str
    calibration: str
    out: str
    report: str
    options: dict[str, Any]
    figures: dict[str, Any] = field(default_factory=dict)

    def batches(self) -> dict[str, NDArray[np.float32]]:
        """Return the calibration inputs by name; the first axis counts pictures."""
        with np.load(self.calibration) as stored:
            return {name: stored[name] for name in stored.files}

    @contextmanager
    def measured(self, name: str = "quantize") -> Iterator[None]:
        """Add up the CPU seconds of a step under its name, and the highest memory of all steps."""
        Path("/proc/self/clear_refs").write_text("5")
        before, start = _status("VmRSS"), time.process_time()
        yield
        spent = self.figures.setdefault("cpu_s", {})
        spent[name] = spent.get(name, 0.0) + time.process_time() - start
        peak = _status("VmHWM")
        self.figures["peak_mb"] = max(self.figures.get("peak_mb", 0.0), peak)
        self.figures["grown_mb"] = max(self.figures.get("grown_mb", 0.0), peak - before)

    def note(self, line: str) -> None:
        """Say what a reader must know about this row."""
        self.figures.setdefault("notes", []).append(line)

    def finish(self, *distributions: str) -> None:
        """Write the report."""
        self.figures["versions"] = {name: importlib.metadata.version(name) for name in distributions}
        Path(self.report).write_text(json.dumps(self.figures, indent=1))


def job() -> Job:
    """Read the job named on the command line."""
    return Job(**json.loads(Path(sys.argv[1]).read_text()))
