"""Open INT8 files in ONNX Runtime on one thread, keep their answers, and time them turn by turn, as stdin says.

What `bench_families` starts once per family of processors. The first argument is a job in JSON: the files by candidate,
the inputs, and where the answers go. The first line of stdout is what was found, every later one the milliseconds of a
turn by candidate; a line on stdin asks for the next.
"""

from __future__ import annotations

import json
import sys
import time
from pathlib import Path
from typing import Any

import numpy as np
import onnxruntime

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))
from deploy import scoring

from embedl_kernels import probe


def main() -> None:
    """Answer until stdin ends."""
    job = json.loads(Path(sys.argv[1]).read_text())
    inputs = np.load(job["inputs"])
    sessions, failed = {}, {}
    answers: dict[str, Any] = {}
    for name, path in job["files"].items():
        try:
            sessions[name] = scoring.session(Path(path))
            answers[name] = scoring.outputs(sessions[name], inputs, 1)
        except Exception as error:  # noqa: BLE001 - a file the runtime refuses is a row that says so
            failed[name] = f"{type(error).__name__}: {str(error)[:120]}"
            sessions.pop(name, None)
    np.savez(job["answers"], **answers)
    found = probe(lambda model: onnxruntime.InferenceSession(model, providers=["CPUExecutionProvider"]))
    print(json.dumps({"probe": found.to_dict(), "failed": failed}), flush=True)
    names = list(sessions)
    feeds = {name: {opened.get_inputs()[0].name: inputs[:1]} for name, opened in sessions.items()}
    for number, _ in enumerate(sys.stdin):
        shift = number % len(names)
        times = {}
        for name in names[shift:] + names[:shift]:
            start = time.thread_time_ns()
            sessions[name].run(None, feeds[name])
            times[name] = (time.thread_time_ns() - start) / 1e6
        print(json.dumps(times), flush=True)


if __name__ == "__main__":
    main()
