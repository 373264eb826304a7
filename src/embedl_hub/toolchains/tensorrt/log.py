"""What trtexec prints: its version and options, the GPU, the headline numbers, and why it failed.

Lines are as NVIDIA/TensorRT writes them at v8.6.1, v10.16 and v11.1: samples/common/logging.h (the ``&&&&`` lines),
sampleDevice.h and sampleDevice.cpp (the GPU), sampleReporting.cpp (the numbers), sampleInference.cpp (raw bindings);
what the library itself says is known from the project's issue threads (#4258, #2041, #2176).
"""

from __future__ import annotations

import re
from typing import NamedTuple

_RUNNING = re.compile(r"&&&& RUNNING \S+ \[TensorRT v(\d{4,9})\](?: \[b(\d+)\])?")
_OPTION = re.compile(r"^\s*(--\w+(?:\s*,\s*--\w+)*)", re.MULTILINE)
_PREFIX = re.compile(r"^\[\d\d/\d\d/\d{4}-\d\d:\d\d:\d\d\] ")
_STATISTIC = re.compile(r"(\w+(?:\([\d.]+%\))?) = ([-+]?\d+\.?\d*(?:[eE][-+]?\d+)?|nan|inf) (\w+)")
_MEMORY = re.compile(r"TensorRT-managed allocation in .*now: CPU \d+, GPU (\d+) \(MiB\)")
_RAW = re.compile(
    r"Writing file for output binding (.*) \(with datatype (\w+) and dimensions ([\d.]*)\) to (\S.*?)\s*$", re.MULTILINE
)

_FACTS = {
    "gpu": r"Selected Device: (.+?)\s*$",
    "compute_capability": r"Compute Capability: (\d+\.\d+)",
    "memory_mib": r"Device Global Memory: (\d+) MiB",
    "tensorrt": r"TensorRT version: (\d+(?:\.\d+)+)",
}


class Capabilities(NamedTuple):
    """What one trtexec can do: TensorRT's version, NVIDIA's build number, and every option its help lists."""

    version: tuple[int, int, int]
    build: int | None
    options: frozenset[str]

    @property
    def version_text(self) -> str:
        """The version as people write it."""
        return ".".join(map(str, self.version))

    @property
    def is_strongly_typed(self) -> bool:
        """Whether the model's own types are all there is: no option lowers the precision."""
        return "--best" not in self.options

    def takes(self, option: str) -> bool:
        """Tell whether an option is there."""
        return option in self.options


class RawFile(NamedTuple):
    """An output written as it lies in memory: its name, TensorRT's word for its type, its shape and the file."""

    name: str
    dtype: str
    shape: tuple[int, ...]
    file: str


def parse_help(text: str) -> Capabilities | None:
    """Return what the help says, or None where it is not trtexec's."""
    running = _RUNNING.search(text)
    options = {word.strip() for found in _OPTION.findall(text) for word in found.split(",")}
    if running is None or "--onnx" not in options:
        return None
    return Capabilities(_version(int(running[1])), int(running[2]) if running[2] else None, frozenset(options))


def _version(number: int) -> tuple[int, int, int]:
    """Return the parts of NV_TENSORRT_VERSION: 8601 is 8.6.1; from 10 on, 101600 is 10.16.0."""
    scale = 10_000 if number >= 100_000 else 1_000
    major, rest = divmod(number, scale)
    return major, rest // 100, rest % 100


def parse_facts(text: str) -> dict[str, str]:
    """Return what it says about the GPU and the library."""
    found = {name: re.search(pattern, text, re.MULTILINE) for name, pattern in _FACTS.items()}
    return {name: match[1] for name, match in found.items() if match is not None}


def parse_statistics(text: str, title: str) -> dict[str, tuple[float, str]]:
    """Return the numbers of a line as ``Latency: min = 1.2 ms, …`` with their units, by name and never by position."""
    for line in text.splitlines():
        _, found, rest = _PREFIX.sub("", line).partition(f"[I] {title}: ")
        if found:
            return {name: (float(value), unit) for name, value, unit in _STATISTIC.findall(rest)}
    return {}


def parse_seconds(text: str, title: str) -> float | None:
    """Return the time of a line as ``Engine deserialized in 0.02 sec``."""
    found = re.search(rf"{re.escape(title)} in (\d+(?:\.\d+)?(?:[eE][-+]?\d+)?) sec", text)
    return float(found[1]) if found else None


def parse_warmups(text: str) -> int | None:
    """Return how many queries the warm-up had."""
    found = re.search(r"Warmup completed (\d{1,12}) queries", text)
    return int(found[1]) if found else None


def parse_memory_mib(text: str) -> int | None:
    """Return the most GPU memory that TensorRT says it held."""
    return max((int(size) for size in _MEMORY.findall(text)), default=None)


def parse_raw_files(text: str) -> tuple[RawFile, ...]:
    """Return the outputs that were written as raw files."""
    return tuple(
        RawFile(name, dtype, tuple(int(size) for size in shape.split(".") if size), file)
        for name, dtype, shape, file in _RAW.findall(text)
    )


def warnings(text: str) -> list[str]:
    """Return what trtexec warned of, each once."""
    found = (line.partition("] [W] ")[2].strip() for line in text.splitlines())
    return list(dict.fromkeys(line for line in found if line))


def errors(text: str) -> list[str]:
    """Return what trtexec called errors, each once, in its order."""
    found = (line.partition("[E] ")[2].strip() for line in text.splitlines())
    return list(dict.fromkeys(line for line in found if line))


_MISMATCH = re.compile(
    "Version tag does not match|[Ss]erialization assertion|not compatible with this version of TensorRT|"
    "generated on an incompatible device|Serialization version is not supported|Platform specific tag mismatch|"
    "Engine deserialization failed"
)
_NO_MEMORY = re.compile("OutOfMemory|out of memory|could not be allocated|std::bad_alloc")


def is_mismatch(text: str) -> bool:
    """Tell whether an engine was refused because it was built for something else."""
    return _MISMATCH.search(text) is not None


def is_out_of_memory(text: str) -> bool:
    """Tell whether memory ran out."""
    return _NO_MEMORY.search(text) is not None


def unknown_options(text: str) -> list[str]:
    """Return the options that this trtexec does not have."""
    return [line.removeprefix("Unknown option: ").split()[0] for line in errors(text) if "Unknown option: -" in line]
