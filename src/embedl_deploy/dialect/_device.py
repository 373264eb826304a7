"""The dialect of a device: by the family of its integer kernels."""

import os
import platform
from pathlib import Path
from typing import Any

from embedl_deploy.dialect._dialects import ONNXRUNTIME_ARM, ONNXRUNTIME_X86, ONNXRUNTIME_X86_VNNI, Dialect
from embedl_deploy.errors import DialectError, known
from embedl_kernels import Family, families, family_of, probe, same_family

_FLAGS = ("flags", "Features")


def dialect_for(device: Any) -> Dialect:
    """Return the dialect in which ONNX Runtime is fast and right on a device.

    Args:
        device: ``here``, the name of a kernel family, or a description with ``architecture`` and ``features``.

    Raises:
        DialectError: The device is not known, or says nothing of its processor.
    """
    family = family_for(device)
    if family.signed:
        return ONNXRUNTIME_ARM
    return ONNXRUNTIME_X86_VNNI if family.name == "x86-vnni" else ONNXRUNTIME_X86


def family_for(device: Any) -> Family:
    """Return the kernel family of a device, named or described as for `dialect_for`.

    Raises:
        DialectError: The device is not known, or says nothing of its processor.
    """
    if isinstance(device, str):
        if device == "here":
            return family_here()
        for one in families():
            if one.name == device:
                return one
        names = known(["here", *(one.name for one in families())])
        raise DialectError(f"There is no kernel family {device!r}; known are {names}.")
    architecture, features = getattr(device, "architecture", None), getattr(device, "features", None)
    if not architecture:
        raise DialectError(
            f"{device!r} does not say which architecture it has; give a DeviceSpec with architecture and features, "
            f"or one of {known(one.name for one in families())}."
        )
    found = family_of(str(architecture), tuple(features or ()))
    if found is None:
        raise DialectError(f"It is not known what integer kernels {architecture!r} has; known are x86_64 and aarch64.")
    return found


def family_here() -> Family:
    """Return this machine's family, confirmed by asking ONNX Runtime.

    Raises:
        DialectError: The architecture is not known.
    """
    import onnxruntime  # noqa: PLC0415 - an extra

    found = family_of(platform.machine(), features_here())
    if found is None:
        raise DialectError(f"It is not known what integer kernels {platform.machine()!r} has.")
    options = onnxruntime.SessionOptions()
    options.intra_op_num_threads = 1
    asked = probe(lambda model: onnxruntime.InferenceSession(model, options, providers=["CPUExecutionProvider"]))
    family = same_family(found, asked)
    assert family is not None
    return family


def features_here() -> tuple[str, ...]:
    """Return what this machine's processor says it can do."""
    path = Path(os.sep, "proc", "cpuinfo")
    lines = path.read_text(errors="replace").splitlines() if path.exists() else []
    found = (line.partition(":")[2].split() for line in lines if line.split(":")[0].strip() in _FLAGS)
    return tuple(next(found, ()))
