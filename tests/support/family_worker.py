"""Serve ONNX Runtime over stdin and stdout: what support.families starts once per processor family.

Needs numpy and onnxruntime alone, and runs in a userland that has nothing else. A message is the length of a JSON
header, the header, and as many blobs as the header has lengths.
"""

from __future__ import annotations

import collections
import ctypes
import io
import json
import os
import platform
import struct
import sys
from typing import IO, Any

sys.path[:0] = sys.argv[1:]

import numpy as np  # noqa: E402 - lies where the command line says
import onnxruntime as ort  # noqa: E402

_KEPT = 256
# Linux's uapi/asm/hwcap.h; numpy does not ask for these, and ONNX Runtime's kernels do.
_HWCAP2 = {13: "I8MM", 14: "BF16", 1: "SVE2"}
_AT_HWCAP2 = 26


class Missing(Exception):  # noqa: N818 - not an error: the other side sends the model and asks again
    """A model that came by its hash alone and is not kept."""


def read(stream: IO[bytes]) -> tuple[dict[str, Any], list[bytes]] | None:
    """Return the next message, or None at the end and when it is cut."""
    size = stream.read(4)
    if len(size) < 4:
        return None
    (length,) = struct.unpack("<I", size)
    text = stream.read(length)
    if len(text) < length:
        return None
    header = json.loads(text)
    blobs = [stream.read(length) for length in header["blobs"]]
    return (header, blobs) if [len(blob) for blob in blobs] == header["blobs"] else None


def write(stream: IO[bytes], header: dict[str, Any], blobs: list[bytes]) -> None:
    """Send a message."""
    text = json.dumps({**header, "blobs": [len(blob) for blob in blobs]}).encode()
    stream.write(struct.pack("<I", len(text)) + text + b"".join(blobs))
    stream.flush()


def pack(array: np.ndarray) -> bytes:
    """Return an array as a .npy file."""
    stream = io.BytesIO()
    np.save(stream, array, allow_pickle=False)
    return stream.getvalue()


def unpack(blob: bytes) -> np.ndarray:
    """Return the array of a .npy file."""
    array: np.ndarray = np.load(io.BytesIO(blob), allow_pickle=False)
    return array


class Worker:
    """The sessions of one process, the least recently used of which goes first."""

    def __init__(self) -> None:
        self._sessions: collections.OrderedDict[str, ort.InferenceSession] = collections.OrderedDict()

    def answer(self, header: dict[str, Any], blobs: list[bytes]) -> tuple[dict[str, Any], list[bytes]]:
        """Do what a request asks."""
        if header["ask"] == "features":
            return {"features": features()}, []
        session = self._session(header, blobs.pop(0) if header["sent"] else None)
        if header["ask"] == "load":
            return {}, []
        arrays = iter(blobs)
        rows = [
            session.run(header["outputs"], {name: unpack(next(arrays)) for name in names}) for names in header["feeds"]
        ]
        return {"rows": [len(row) for row in rows]}, [pack(np.asarray(array)) for row in rows for array in row]

    def _session(self, header: dict[str, Any], model: bytes | None) -> ort.InferenceSession:
        key = json.dumps([header["model"], header["optimize"], header["threads"], header["settings"]])
        if key not in self._sessions:
            if model is None:
                raise Missing
            options = ort.SessionOptions()
            options.log_severity_level = 3
            options.intra_op_num_threads = header["threads"]
            levels = ort.GraphOptimizationLevel
            options.graph_optimization_level = levels.ORT_ENABLE_ALL if header["optimize"] else levels.ORT_DISABLE_ALL
            for name, value in header["settings"].items():
                options.add_session_config_entry(name, value)
            self._sessions[key] = ort.InferenceSession(model, options, providers=["CPUExecutionProvider"])
            if len(self._sessions) > _KEPT:
                self._sessions.popitem(last=False)
        self._sessions.move_to_end(key)
        return self._sessions[key]


def features() -> list[str]:
    """Return what this processor says it can do: cpuid and the auxiliary vector, which an emulator answers for."""
    known = np._core._multiarray_umath.__cpu_features__  # type: ignore[attr-defined]
    found = [name for name, has in known.items() if has]
    if platform.machine() == "aarch64":
        bits = ctypes.CDLL(None).getauxval(_AT_HWCAP2)
        found += [name for bit, name in _HWCAP2.items() if bits >> bit & 1]
    return sorted(found)


def main() -> None:
    """Answer until the other side closes."""
    out = os.fdopen(os.dup(1), "wb")
    # What a library prints must not come between two messages.
    os.dup2(2, 1)
    worker = Worker()
    write(out, {"runtime": ort.__version__, "machine": platform.machine()}, [])
    while request := read(sys.stdin.buffer):
        try:
            header, blobs = worker.answer(*request)
        except Missing:
            header, blobs = {"missing": True}, []
        except Exception as error:  # noqa: BLE001 - the other side raises it
            header, blobs = {"error": f"{type(error).__name__}: {error}"}, []
        write(out, header, blobs)


if __name__ == "__main__":
    main()
