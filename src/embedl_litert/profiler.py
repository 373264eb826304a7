"""LiteRT's own profiler, through its C library: what each operator of a run took.

The Python side of LiteRT has no way to it. The C functions and the event's layout are those of the versions named here
(litert/c/litert_profiler.h and litert_profiler_event.h of google-ai-edge/LiteRT); another version is not tried, because
a wrong layout would give wrong numbers instead of an error.
"""

from __future__ import annotations

import ctypes
from pathlib import Path
from typing import Any, Dict, List, NamedTuple, Sequence

from embedl_device.arrays import Arrays
from embedl_device.statistics import percentile
from embedl_litert.session import Settings, runtime_folder, runtime_version

KNOWN_VERSIONS = ("2.3.0",)
_CPU = 1
_OPERATOR, _DELEGATE_OPERATOR, _DELEGATE_PROFILED = 2, 4, 8
_BUILTIN_KERNELS = 2
_READ_WRITE = 1


class NoLayersError(Exception):
    """The layers cannot be had; the text says why."""


class Event(NamedTuple):
    """One operator in one run; ``node`` is its index in the graph, or within its delegate."""

    name: str
    is_delegated: bool
    time_us: float
    node: int


class _Memory(ctypes.Structure):
    _fields_ = [("values", ctypes.c_int64 * 3)]


class _RawEvent(ctypes.Structure):
    _fields_ = [
        ("tag", ctypes.c_char_p),
        ("type", ctypes.c_int),
        ("start_us", ctypes.c_uint64),
        ("elapsed_us", ctypes.c_uint64),
        ("memory_before", _Memory),
        ("memory_after", _Memory),
        ("metadata1", ctypes.c_uint64),
        ("metadata2", ctypes.c_uint64),
        ("source", ctypes.c_int),
    ]


class _Type(ctypes.Structure):
    """An element's type and its tensor's shape; only handed on."""

    _fields_ = [("words", ctypes.c_uint32 * 18)]


def profile_layers(path: Path, settings: Settings, feed: Arrays, runs: int) -> List[List[Event]]:
    """Return the operators of each of so many warm runs, in the order they ran."""
    version, folder = runtime_version(), runtime_folder()
    if version not in KNOWN_VERSIONS or folder is None:
        raise NoLayersError(
            "the profiler of LiteRT {} is not known; it is for {}".format(version, ", ".join(KNOWN_VERSIONS))
        )
    library = folder / "libLiteRt.so"
    if not library.is_file():
        raise NoLayersError("this build of LiteRT has no C library ({})".format(library.name))
    return _Session(library, path, settings).profile(feed, runs)


class _Session:
    """A model compiled for profiling. The process ends soon after: what C made is left to it."""

    def __init__(self, library: Path, path: Path, settings: Settings) -> None:
        # What C points to must live as long as this object.
        self._kept: List[Any] = []
        try:
            self._library = ctypes.CDLL(str(library))
        except OSError as error:
            raise NoLayersError("LiteRT's C library cannot be loaded: {}".format(error)) from error
        self._environment = self._make("LiteRtCreateEnvironment", ctypes.c_int(0), None)
        self._model = self._make("LiteRtCreateModelFromFile", self._environment, str(path).encode())
        self._compiled = self._make(
            "LiteRtCreateCompiledModel", self._environment, self._model, self._options(settings)
        )
        self._signature = self._make("LiteRtGetModelSignature", self._model, ctypes.c_size_t(0))

    def profile(self, feed: Arrays, runs: int) -> List[List[Event]]:
        inputs, outputs = self._buffers("Input"), self._buffers("Output")
        self._fill(inputs, feed)
        profiler = self._make("LiteRtCompiledModelGetProfiler", self._compiled)
        self._run(inputs, outputs)
        found = []
        for _ in range(runs):
            # One run at a time: where a run begins needs no guessing, and no event is dropped.
            self._call("LiteRtResetProfiler", profiler)
            self._call("LiteRtStartProfiler", profiler)
            self._run(inputs, outputs)
            self._call("LiteRtStopProfiler", profiler)
            found.append(self._events(profiler))
        return found

    def _options(self, settings: Settings) -> ctypes.c_void_p:
        options = self._make("LiteRtCreateOptions")
        self._call("LiteRtSetOptionsHardwareAccelerators", options, ctypes.c_int(_CPU))
        words = [] if settings.threads is None else ["num_threads = {}".format(settings.threads)]
        if not settings.xnnpack:
            words.append("kernel_mode = {}".format(_BUILTIN_KERNELS))
        for name, lines in ((b"runtime_options_string", ["enable_profiling = true"]), (b"xnnpack", words)):
            if lines:
                text = ctypes.create_string_buffer("\n".join([*lines, ""]).encode())
                self._kept.append(text)
                opaque = self._make("LiteRtCreateOpaqueOptions", name, ctypes.cast(text, ctypes.c_void_p), _KEEP)
                self._call("LiteRtAddOpaqueOptions", options, opaque)
        return options

    def _buffers(self, kind: str) -> Any:
        count = ctypes.c_size_t()
        self._call("LiteRtGetNumSignature{}s".format(kind), self._signature, ctypes.byref(count))
        buffers = (ctypes.c_void_p * count.value)()
        for index in range(count.value):
            tensor = self._make(
                "LiteRtGetSignature{}TensorByIndex".format(kind), self._signature, ctypes.c_size_t(index)
            )
            shape = _Type()
            self._call("LiteRtGetRankedTensorType", tensor, ctypes.byref(shape))
            needs = self._make(
                "LiteRtGetCompiledModel{}BufferRequirements".format(kind),
                self._compiled,
                ctypes.c_size_t(0),
                ctypes.c_size_t(index),
            )
            buffers[index] = self._make(
                "LiteRtCreateManagedTensorBufferFromRequirements", self._environment, ctypes.byref(shape), needs
            )
        return buffers

    def _fill(self, buffers: Any, feed: Arrays) -> None:
        for index, buffer in enumerate(buffers):
            tensor = self._make("LiteRtGetSignatureInputTensorByIndex", self._signature, ctypes.c_size_t(index))
            name = ctypes.c_char_p()
            self._call("LiteRtGetTensorName", tensor, ctypes.byref(name))
            title = (name.value or b"").decode("utf-8", "replace")
            array = feed.get(title)
            size = ctypes.c_size_t()
            self._call("LiteRtGetTensorBufferPackedSize", ctypes.c_void_p(buffer), ctypes.byref(size))
            if array is None or array.nbytes != size.value:
                raise NoLayersError("the data does not fit what the profiler takes for {!r}".format(title))
            place = ctypes.c_void_p()
            self._call(
                "LiteRtLockTensorBuffer", ctypes.c_void_p(buffer), ctypes.byref(place), ctypes.c_int(_READ_WRITE)
            )
            ctypes.memmove(place, array.tobytes(), array.nbytes)
            self._call("LiteRtUnlockTensorBuffer", ctypes.c_void_p(buffer))

    def _run(self, inputs: Any, outputs: Any) -> None:
        self._call(
            "LiteRtRunCompiledModel", self._compiled, ctypes.c_size_t(0),
            ctypes.c_size_t(len(inputs)), inputs, ctypes.c_size_t(len(outputs)), outputs,
        )  # fmt: skip

    def _events(self, profiler: ctypes.c_void_p) -> List[Event]:
        count = ctypes.c_int()
        self._call("LiteRtGetNumProfilerEvents", profiler, ctypes.byref(count))
        events = (_RawEvent * count.value)()
        self._call("LiteRtGetProfilerEvents", profiler, count, events)
        return without_doubles(
            [
                Event(
                    (event.tag or b"").decode("utf-8", "replace"),
                    event.type != _OPERATOR,
                    float(event.elapsed_us),
                    int(event.metadata1),
                )
                for event in events
                if event.type in (_OPERATOR, _DELEGATE_OPERATOR, _DELEGATE_PROFILED)
            ]
        )

    def _make(self, name: str, *arguments: Any) -> ctypes.c_void_p:
        """Call a function whose last argument is where to put what it makes."""
        made = ctypes.c_void_p()
        self._call(name, *arguments, ctypes.byref(made))
        return made

    def _call(self, name: str, *arguments: Any) -> None:
        try:
            function = getattr(self._library, name)
        except AttributeError:
            raise NoLayersError("LiteRT's C library has no {}".format(name)) from None
        function.restype = ctypes.c_int
        status = function(*arguments)
        if status:
            raise NoLayersError("LiteRT's {} ended with status {}".format(name, status))


# Frees nothing: the text belongs to Python.
_KEEP = ctypes.CFUNCTYPE(None, ctypes.c_void_p)(lambda _: None)


def without_doubles(events: Sequence[Event]) -> List[Event]:
    """Drop what stands for a whole delegate when the delegate tells about its own operators."""
    tells = any(event.is_delegated for event in events)
    return [event for event in events if event.is_delegated or not (tells and "delegate" in event.name.lower())]


def as_rows(runs: Sequence[Sequence[Event]]) -> Dict[str, Any]:
    """Return the table of layers: medians over the runs, in the order they ran."""
    shapes = {tuple((event.name, event.is_delegated, event.node) for event in run) for run in runs}
    if len(shapes) != 1 or not runs[0]:
        raise NoLayersError("the runs were not alike, or had no operators")
    times = [percentile([run[at].time_us for run in runs], 50) for at in range(len(runs[0]))]
    whole = sum(event.time_us for run in runs for event in run)
    total = sum(times) or 1.0
    rows = [
        {
            "name": "{}:{}".format(event.name, event.node),
            "op_type": event.name,
            "provider": "XNNPACK" if event.is_delegated else "builtin",
            "node": None if event.is_delegated else event.node,
            "time_ms": time_us / 1e3,
            "share": time_us / total,
        }
        for event, time_us in zip(runs[0], times)
    ]
    return {"runs": len(runs), "mean_run_ms": whole / len(runs) / 1e3, "rows": rows}
