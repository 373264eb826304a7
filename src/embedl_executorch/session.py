"""ExecuTorch programs: the only file that knows the runtime's Python side.

The extension module is imported by itself: ``executorch.runtime`` would bring all of the compiler, ten seconds of
imports and packages that a board has no use for. torch must come first, whose libraries the extension is linked to; its
tensors are what the runtime takes and gives.
"""

from __future__ import annotations

import contextlib
import re
import tempfile
from pathlib import Path
from typing import Any, Callable, Dict, List, NamedTuple, Optional, Sequence

import numpy as np

from embedl_device.arrays import Arrays, Tensor
from embedl_device.errors import BoardError, first_words
from embedl_device.heap import allocated_bytes, grown
from embedl_device.readers import UnreadableError, parse_json

PROGRAM = "embedl-executorch"
METHOD = "forward"
# What our compiler writes into a file besides the network: names of inputs and outputs, as JSON.
NAMES_METHOD = "edgeproof_names"
_LARGEST_BYTES = 8 << 30
_MAGIC_AT = slice(4, 8)
_MAGIC = b"ET12"
# The runtime's numbers for types (its ScalarType).
_DTYPES = {
    0: "uint8", 1: "int8", 2: "int16", 3: "int32", 4: "int64", 5: "float16", 6: "float32", 7: "float64", 11: "bool",
}  # fmt: skip
# What the runtime's numbers of errors mean (its Error); it prints the words to stderr.
_CODE = re.compile(r"error:? 0x:?(?P<code>[0-9a-fA-F]+)")
_CAUSES = {
    0x14: "it needs an operator that this build of the runtime has no kernel for",
    0x20: "it was made for a backend that this build of the runtime does not have",
    0x21: "there is not enough memory for it",
    0x23: "it was made by another version of ExecuTorch, or it is damaged",
    0x30: "the backend refused what was made for it, which another version of ExecuTorch made perhaps",
}


class Settings(NamedTuple):
    """How the runtime is to run a model."""

    threads: Optional[int] = None  # threads within one operator; None leaves it to the runtime


def runtime() -> Any:
    """Return the runtime's extension module, or say how to get it."""
    try:
        import torch  # noqa: F401 - its libraries must be loaded first
        from executorch.extension.pybindings import _C
    except ImportError as error:
        raise BoardError(
            "ExecuTorch is not installed for this Python ({}). Install it with: python3 -m pip install "
            "executorch".format(error)
        ) from error
    return _C


def runtime_version() -> Optional[str]:
    """Return ExecuTorch's version; None when it does not say."""
    return _version("executorch")


def torch_version() -> Optional[str]:
    """Return torch's version; None when it does not say."""
    return _version("torch")


def _version(distribution: str) -> Optional[str]:
    import importlib.metadata

    with contextlib.suppress(importlib.metadata.PackageNotFoundError):
        return importlib.metadata.version(distribution)
    return None


def backends() -> List[str]:
    """Return the names of the backends that this build of the runtime has."""
    return sorted(str(name) for name in runtime()._get_registered_backend_names())  # noqa: SLF001 - it has no other


class Model:
    """A loaded program; with ``trace`` it keeps what each operator took."""

    def __init__(self, path: Path, settings: Settings, *, trace: bool = False) -> None:
        if not path.is_file():
            raise BoardError("There is no model {}.".format(path))
        _check_file(path)
        module = runtime()
        if settings.threads is not None:
            module._unsafe_reset_threadpool(settings.threads)  # noqa: SLF001 - it has no other
        try:
            verification = module.Verification.InternalConsistency
            load = module._load_program  # noqa: SLF001 - it has no other
            self._heap = [allocated_bytes()]
            self._program = load(str(path), enable_etdump=trace, program_verification=verification)
            # Its planned buffers are allocated now; what its delegates take comes with the method and the first run.
            self._heap.append(allocated_bytes())
            self._method = self._program.load_method(METHOD)
            meta = self._method.method_meta()
            names = _names(self._program)
        except Exception as error:  # the runtime raises RuntimeError for everything
            raise BoardError(
                "ExecuTorch {} cannot load {}: {}".format(runtime_version(), path, _cause(error))
            ) from error
        inputs = [meta.input_tensor_meta(at) for at in range(meta.num_inputs())]
        self._inputs = [_tensor(value, _name(names, "inputs", at)) for at, value in enumerate(inputs)]
        self._outputs = [_name(names, "outputs", at) for at in range(meta.num_outputs())]

    @property
    def inputs(self) -> List[Tensor]:
        """The model's inputs."""
        return list(self._inputs)

    def run(self, feed: Arrays) -> Arrays:
        """Run the model once."""
        import torch

        try:
            values = self._method.call(self._tensors(feed))
        except Exception as error:  # the runtime raises RuntimeError for everything
            raise BoardError("ExecuTorch failed while running the model: {}".format(_cause(error))) from error
        arrays = [value.numpy() if isinstance(value, torch.Tensor) else np.asarray(value) for value in values]
        return dict(zip(self._outputs, arrays))

    def runner(self, feed: Arrays) -> Callable[[], object]:
        """Return a function that runs the model and nothing else, for timing.

        Inputs are given each time: the runtime lays its own data over theirs while it runs.
        """
        tensors, call = self._tensors(feed), self._method.call
        return lambda: call(tensors, clone_outputs=False)

    def memory(self) -> Dict[str, Any]:
        """Return what loading and running the program allocated, by the C library's count."""
        before, loaded, now = self._heap[0], self._heap[1], allocated_bytes()
        arena = grown(before, loaded)
        reason = None if arena is not None else "the C library of this system does not count what is allocated"
        return {
            "method": "the C library's count of what ExecuTorch allocated for the program's planned buffers",
            "arena_bytes": arena, "allocated_bytes": grown(before, now), "peak_layer": None, "rows": [],
            "missing_because": reason,
        }  # fmt: skip

    def trace(self) -> bytes:
        """Return the runtime's own event dump of the runs so far."""
        with tempfile.TemporaryDirectory(prefix="edgeproof-") as folder:
            path = Path(folder) / "events.etdp"
            self._program.write_etdump_result_to_file(str(path), None)
            return path.read_bytes() if path.is_file() else b""

    def _tensors(self, feed: Arrays) -> Sequence[Any]:
        import torch

        return tuple(torch.from_numpy(np.array(feed[tensor.name], order="C")) for tensor in self._inputs)


def _check_file(path: Path) -> None:
    with path.open("rb") as file:
        start = file.read(8)
        size = file.seek(0, 2)
    if size > _LARGEST_BYTES:
        raise BoardError("{} has {} bytes, which is no model for a device.".format(path, size))
    if start[_MAGIC_AT][:2] != _MAGIC[:2]:
        raise BoardError("{} is not an ExecuTorch program (.pte): it does not begin as one.".format(path))
    if start[_MAGIC_AT] != _MAGIC:
        raise BoardError(
            "{} has format {!r}, and ExecuTorch {} reads {!r}. Compile the model anew.".format(
                path, start[_MAGIC_AT].decode("ascii", "replace"), runtime_version(), _MAGIC.decode()
            )
        )


def _names(program: Any) -> Dict[str, List[str]]:
    """Return the names that our compiler wrote into the file; another's has none."""
    if NAMES_METHOD not in [program.get_method_name(at) for at in range(program.num_methods())]:
        return {}
    try:
        told = parse_json(program.load_method(NAMES_METHOD).call(())[0])
        return {key: [str(name) for name in told[key]] for key in ("inputs", "outputs")}
    except (UnreadableError, KeyError, TypeError, IndexError, RuntimeError):
        return {}


def _name(names: Dict[str, List[str]], kind: str, at: int) -> str:
    known = names.get(kind, [])
    return known[at] if at < len(known) else "{}_{}".format(kind[:-1], at)


def _tensor(value: Any, name: str) -> Tensor:
    number = int(value.dtype())
    if number not in _DTYPES:
        raise BoardError("Input {!r} has a type (ScalarType {}) that arrays do not have.".format(name, number))
    return Tensor(name, _DTYPES[number], tuple(int(size) for size in value.sizes()))


def _cause(error: Exception) -> str:
    """Return what a failure means."""
    words = first_words(error)
    code = _CODE.search(words)
    found = None if code is None else _CAUSES.get(int(code["code"], 16))
    return words if found is None else "{} ({})".format(found, words)
