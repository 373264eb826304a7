"""Run ONNX Runtime's kernels for older x86 processors at full speed on a newer one.

The runtime asks the processor by the instruction `cpuid` which kernels it may use. `environment` makes a program see an
older processor there: ``cpuid.c``, compiled into the cache, hides what came later. Times are then those of this very
processor with the older kernels: right for comparing files, not those of an old machine.

    masked.run([sys.executable, "worker.py"], "x86-avx2")
    python -m deploy.masked x86-avx2 python worker.py

Linux on x86 only; gcc and objdump (binutils) are needed.
"""

from __future__ import annotations

import hashlib
import importlib.util
import os
import shutil
import subprocess
from pathlib import Path
from typing import TYPE_CHECKING, Any

import cache

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

EAX, EBX, ECX, EDX = range(4)
SOURCE = Path(__file__).with_name("cpuid.c")
COMPILE_SECONDS = 60
DISASSEMBLE_SECONDS = 300

# Bits of `cpuid` by leaf, subleaf and register.
Hidden = dict[tuple[int, int, int], tuple[int, ...]]
_NO_VNNI: Hidden = {
    # avx512_vbmi, vbmi2, vnni, bitalg, vpopcntdq; avx512_4vnniw, 4fmaps, vp2intersect, amx_bf16, avx512_fp16, amx_tile,
    # amx_int8: what came with or after VNNI. Of subleaf 1: avx_vnni, avx512_bf16, amx_fp16, avx_ifma and their like.
    (7, 0, ECX): (1, 6, 11, 12, 14),
    (7, 0, EDX): (2, 3, 8, 22, 23, 24, 25),
    (7, 1, EAX): (4, 5, 21, 23),
    (7, 1, EDX): (4, 5, 8, 10, 19),
}
# avx512_f, dq, ifma, pf, er, cd, bw, vl.
_NO_AVX512: Hidden = {**_NO_VNNI, (7, 0, EBX): (16, 17, 21, 26, 27, 28, 30, 31)}
HIDDEN: dict[str, Hidden] = {
    "x86-avx512": {**_NO_VNNI, (7, 0, EBX): (21, 26, 27)},
    "x86-avx2": _NO_AVX512,
    # avx2; fma, avx, f16c.
    "x86-sse": {**_NO_AVX512, (7, 0, EBX): (5, *_NO_AVX512[7, 0, EBX]), (1, 0, ECX): (12, 28, 29)},
}
"""What a processor of a family lacks. ``x86-avx512`` has AVX-512 without VNNI (Skylake's), a case of ``x86-avx2``."""


class MaskError(RuntimeError):
    """This machine cannot do it; the message says what is missing."""


def environment(family: str, base: Mapping[str, str] | None = None) -> dict[str, str]:
    """Return the environment in which a program's ONNX Runtime takes the kernels of a family.

    Args:
        family: One of `HIDDEN`, or ``host`` for this processor as it is.
        base: The environment to add to; this process's unless told.

    Raises:
        MaskError: A tool is missing, or this is not Linux on x86.
    """
    made = dict(os.environ if base is None else base)
    if family == "host":
        return made
    if family not in HIDDEN:
        raise MaskError(f"There is no family {family!r}; there are: host, {', '.join(HIDDEN)}.")
    if os.uname().sysname != "Linux" or os.uname().machine != "x86_64":
        raise MaskError(f"Only Linux on x86-64 hides features of its processor; this is {' '.join(os.uname()[::4])}.")
    words = [
        f"{leaf:x}:{subleaf:x}:{register:x}:{sum(1 << bit for bit in bits):x}"
        for (leaf, subleaf, register), bits in HIDDEN[family].items()
    ]
    made |= {
        "LD_AUDIT": str(_compiled()),
        "MASKED_CPUID_SITES": str(_sites()),
        "MASKED_CPUID_BITS": " ".join(words),
    }
    return made


def run(
    argv: Sequence[str],
    family: str,
    *,
    check: bool = True,
    env: Mapping[str, str] | None = None,
    **options: Any,  # noqa: ANN401
) -> subprocess.CompletedProcess[Any]:
    """Run a program on a family and return how it ended; options are those of `subprocess.run`."""
    return subprocess.run(list(argv), check=check, env=environment(family, env), **options)


def _compiled() -> Path:
    """Return the library for the loader, compiled once per source."""
    made = cache.folder("masked") / f"cpuid-{hashlib.sha256(SOURCE.read_bytes()).hexdigest()[:12]}.so"
    if not made.exists():
        scratch = made.with_suffix(f".{os.getpid()}")
        _tool(["gcc", "-O2", "-shared", "-fPIC", "-o", str(scratch), str(SOURCE)], "gcc", COMPILE_SECONDS)
        scratch.replace(made)
    return made


def _sites() -> Path:
    """Return the list of where ONNX Runtime's library has `cpuid`, disassembled once per library."""
    spec = importlib.util.find_spec("onnxruntime")
    if spec is None or spec.origin is None:
        raise MaskError("onnxruntime is not installed.")
    folder = Path(spec.origin).parent / "capi"
    libraries = [path.resolve() for path in sorted(folder.glob("onnxruntime_pybind11_state*.so"))]
    marks = "\n".join(f"{path} {path.stat().st_size} {path.stat().st_mtime_ns}" for path in libraries)
    made = cache.folder("masked") / f"sites-{hashlib.sha256(marks.encode()).hexdigest()[:12]}.txt"
    if not made.exists():
        lines = [f"{path} {address}" for path in libraries for address in _addresses(path)]
        if not lines:
            raise MaskError(f"No library in {folder} asks the processor by cpuid.")
        scratch = made.with_suffix(f".{os.getpid()}")
        scratch.write_text("\n".join(lines) + "\n")
        scratch.replace(made)
    return made


def _addresses(library: Path) -> list[str]:
    command = ["objdump", "--disassemble", "--no-show-raw-insn", str(library)]
    said = _tool(command, "binutils", DISASSEMBLE_SECONDS)
    found = (line.split() for line in said.splitlines() if line.endswith("cpuid"))
    return [words[0].rstrip(":") for words in found if len(words) == 2 and words[1] == "cpuid"]


def _tool(command: list[str], package: str, seconds: int) -> str:
    if shutil.which(command[0]) is None:
        raise MaskError(f"{command[0]} is not installed; it comes with the system's package {package}.")
    done = subprocess.run(command, capture_output=True, text=True, timeout=seconds, check=False)
    if done.returncode:
        raise MaskError(f"{command[0]} failed: {done.stderr[-500:]}")
    return done.stdout
