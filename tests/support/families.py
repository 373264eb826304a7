"""ONNX Runtime on every family of processors: a worker of it under QEMU's user mode, whatever this machine is.

    with Emulated(FAMILIES["haswell"]) as haswell:
        (outputs,) = haswell.run(model.SerializeToString(), [{"x": x}])

Tests take the fixture ``emulated``, which starts a family once: ``emulated("haswell").run(...)``. A start takes some
seconds, a request milliseconds; times say nothing about a real processor, values are the family's own kernels'.
"""

from __future__ import annotations

import contextlib
import hashlib
import os
import platform
import subprocess
import sys
import tempfile
import threading
from dataclasses import dataclass
from pathlib import Path
from typing import IO, TYPE_CHECKING, Any, Self

import numpy as np

from embedl_deploy.dialect import family_here
from support import family_worker
from support.aarch64 import userland
from support.debian import leave_off, require

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    import onnx

_START_LIMIT_S = 120.0
_LIMIT_S = 120.0
# Where a machine chooses kernels for its own processor by these, they would be taken on another one unasked.
_CHOSEN = "OPENBLAS_CORETYPE,NPY_DISABLE_CPU_FEATURES,NPY_ENABLE_CPU_FEATURES"
_SOURCES = Path(__file__).resolve().parents[2] / "src"


@dataclass(frozen=True)
class Family:
    """Processors that compute alike, and how to have one.

    Attributes:
        name: What tests call it.
        emulator: The program, or nothing for this machine itself.
        cpu: The emulator's name of the processor.
        architecture: As uname says it.
    """

    name: str
    emulator: str = ""
    cpu: str = ""
    architecture: str = platform.machine()


# What QEMU cannot emulate of a Haswell it says on every start, unless it is asked for less; none of it computes.
_HASWELL = "Haswell-noTSX,-pcid,-x2apic,-tsc-deadline,-invpcid"
FAMILIES = {
    family.name: family
    for family in (
        Family("host"),
        Family("haswell", "qemu-x86_64", _HASWELL, "x86_64"),
        Family("nehalem", "qemu-x86_64", "Nehalem", "x86_64"),
        Family("cortex-a53", "qemu-aarch64", "cortex-a53", "aarch64"),
        Family("cortex-a72", "qemu-aarch64", "cortex-a72", "aarch64"),
        Family("arm-max", "qemu-aarch64", "max", "aarch64"),
    )
}


class FamilyError(RuntimeError):
    """What the runtime said in the worker."""


class FamilyGoneError(FamilyError):
    """The worker ended, or was ended at its timeout; the next request starts another."""


class Emulated:
    """ONNX Runtime on one family; one worker process, started by the first request and again after its end."""

    def __init__(self, family: Family) -> None:
        self.family = family
        self._process: subprocess.Popen[bytes] | None = None
        self._log: IO[bytes] | None = None
        self._command: tuple[list[str], list[str]] | None = None

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    @property
    def pid(self) -> int | None:
        """The worker's process, while there is one."""
        return self._process.pid if self._process else None

    @property
    def command(self) -> list[str]:
        """The words before Python's own arguments: the emulator, its processor, the interpreter."""
        return self._prepared()[0]

    @property
    def python_path(self) -> list[str]:
        """Where that interpreter finds packages beside its own."""
        return self._prepared()[1]

    def run(
        self,
        model: bytes,
        feeds: Sequence[Mapping[str, np.ndarray]],
        *,
        outputs: list[str] | None = None,
        optimize: bool = True,
        threads: int = 1,
        settings: Mapping[str, str] | None = None,
        timeout_s: float = _LIMIT_S,
    ) -> list[list[np.ndarray]]:
        """Return the outputs for each of the feeds; the session is kept for the next call with the same model."""
        arrays = [family_worker.pack(np.asarray(array)) for feed in feeds for array in feed.values()]
        header = {"ask": "run", "outputs": outputs, "feeds": [list(feed) for feed in feeds]}
        options = {"optimize": optimize, "threads": threads, "settings": dict(settings or {})}
        answer, blobs = self._ask_with(model, {**header, **options}, arrays, timeout_s)
        left = iter(blobs)
        return [[family_worker.unpack(next(left)) for _ in range(count)] for count in answer["rows"]]

    def load(
        self, model: bytes, *, optimize: bool = True, threads: int = 1, settings: Mapping[str, str] | None = None
    ) -> str:
        """Return nothing when the runtime takes the model, else what it said."""
        header = {"ask": "load", "optimize": optimize, "threads": threads, "settings": dict(settings or {})}
        try:
            self._ask_with(model, header, [], _LIMIT_S)
        except FamilyGoneError:
            raise
        except FamilyError as error:
            return str(error)
        return ""

    def features(self) -> tuple[str, ...]:
        """Return what the processor says it can do, as numpy names it (AVX2, ASIMDDP ...), and I8MM and its like."""
        answer, _ = self._ask({"ask": "features"}, [], _LIMIT_S)
        return tuple(answer["features"])

    def python(self, code: str, *arguments: str, timeout_s: float = _LIMIT_S) -> str:
        """Run code in an interpreter of its own on the family and return what it printed."""
        return self.program(["-c", code, *arguments], timeout_s=timeout_s).stdout

    def program(
        self, arguments: Sequence[str], *, timeout_s: float = _LIMIT_S, check: bool = True, text: str | None = None
    ) -> subprocess.CompletedProcess[str]:
        """Run Python with arguments on the family, our packages importable: ``["-m", "embedl_onnxruntime", ...]``.

        A process that the program starts itself is not emulated.
        """
        environment = {**self._environment(), "PYTHONPATH": os.pathsep.join((str(_SOURCES), *self.python_path))}
        try:
            done = subprocess.run(
                [*self.command, *arguments], env=environment, input=text or "", capture_output=True, text=True,
                timeout=timeout_s, check=False,
            )  # fmt: skip
        except subprocess.TimeoutExpired as error:
            raise FamilyGoneError(f"{self.family.name}: no end within {timeout_s:g} s: {error.stderr!r}") from error
        if check and done.returncode:
            raise FamilyError(f"{self.family.name}: ended with {done.returncode}:\n{done.stderr[-2000:]}")
        return done

    def close(self) -> None:
        """End the worker; a request after that starts another."""
        if self._process is not None:
            self._process.kill()
            self._process.wait(20)
            for stream in (self._process.stdin, self._process.stdout):
                # A request that the worker did not read is still in the buffer.
                with contextlib.suppress(OSError):
                    stream.close()  # type: ignore[union-attr]
            self._process = None
        if self._log is not None:
            self._log.close()
            self._log = None

    def _ask_with(
        self, model: bytes, header: dict[str, Any], blobs: list[bytes], limit_s: float
    ) -> tuple[dict[str, Any], list[bytes]]:
        named = {**header, "model": hashlib.sha256(model).hexdigest()}
        answer = self._ask({**named, "sent": False}, blobs, limit_s)
        return self._ask({**named, "sent": True}, [model, *blobs], limit_s) if answer[0].get("missing") else answer

    def _ask(self, header: dict[str, Any], blobs: list[bytes], limit_s: float) -> tuple[dict[str, Any], list[bytes]]:
        if self._process is None:
            self._start()
        answer = self._exchange((header, blobs), limit_s)
        if "error" in answer[0]:
            raise FamilyError(f"{self.family.name}: {answer[0]['error']}")
        return answer

    def _environment(self) -> dict[str, str]:
        """Return this process's environment; what is loaded into every program here is not for another processor."""
        left_out = ("LD_AUDIT", "LD_PRELOAD") if self.family.emulator else ()
        return {name: value for name, value in os.environ.items() if name not in left_out}

    def _start(self) -> None:
        command, path = self._prepared()
        self._log = tempfile.TemporaryFile()  # noqa: SIM115 - open as long as the worker lives
        self._process = subprocess.Popen(
            # Isolated: a developer's PYTHONPATH is of another architecture.
            [*command, "-I", family_worker.__file__, *path],
            env=self._environment(),
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=self._log,
        )
        self._exchange(None, _START_LIMIT_S)

    def _exchange(
        self, request: tuple[dict[str, Any], list[bytes]] | None, limit_s: float
    ) -> tuple[dict[str, Any], list[bytes]]:
        """Send a request, if any, and return the next message; the worker is killed when that takes too long."""
        process = self._process
        assert process is not None
        assert process.stdin is not None
        assert process.stdout is not None
        late = threading.Event()

        def end() -> None:
            late.set()
            process.kill()

        answer = None
        timer = threading.Timer(limit_s, end)
        timer.start()
        try:
            # A dead worker shows as a broken pipe here, or as an answer that is cut.
            with contextlib.suppress(BrokenPipeError):
                if request is not None:
                    family_worker.write(process.stdin, *request)
                answer = family_worker.read(process.stdout)
        finally:
            timer.cancel()
            if answer is None:
                said = self._last_words()
                self.close()
        if answer is None:
            why = f"no answer within {limit_s:g} s" if late.is_set() else f"ended with {process.returncode}"
            raise FamilyGoneError(f"{self.family.name}: the worker {why}: {said}")
        return answer

    def _last_words(self) -> str:
        if self._log is None:
            return ""
        self._log.seek(0)
        return self._log.read().decode(errors="replace")[-2000:]

    def _prepared(self) -> tuple[list[str], list[str]]:
        if self._command is None:
            self._command = _prepare(self.family)
        return self._command


def _prepare(family: Family) -> tuple[list[str], list[str]]:
    """Return the command of the interpreter and where it finds packages; skips the test when it cannot be had."""
    if not family.emulator:
        return [sys.executable], []
    if family.architecture == "x86_64" and platform.machine() != "x86_64":
        leave_off("an x86-64 machine", f"{family.name} runs this very Python under an emulator")
    emulator = [require(family.emulator, "qemu-user"), "-U", _CHOSEN, "-cpu", family.cpu]
    if family.architecture == "x86_64":
        return [*emulator, sys.executable], []
    root = userland()
    return [*emulator, "-L", str(root / "seen-by" / family.cpu), str(root / "usr/bin/python3.11")], [str(root / "site")]


def exact_outputs(model: onnx.ModelProto, feeds: list[dict[str, np.ndarray]]) -> list[list[np.ndarray]]:
    """Run a model in ONNX Runtime where u8 x s8 kernels add up exactly: here, or on an emulated processor.

    For files of the dialect ``onnxruntime-x86-vnni``, whose answers are right on such processors only.
    """
    family = FAMILIES["nehalem" if family_here().saturates else "host"]
    with Emulated(family) as runtime:
        return runtime.run(model.SerializeToString(), feeds)
