"""The dialect of a device: by the family of its integer kernels."""

from typing import Any

from embedl_deploy.dialect._dialects import ONNXRUNTIME_ARM, ONNXRUNTIME_X86, ONNXRUNTIME_X86_VNNI, Dialect
from embedl_deploy.errors import DialectError, known
from embedl_device import board
from embedl_kernels import Family, families, family_of, get_family, kernels_here


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

    options = onnxruntime.SessionOptions()
    options.intra_op_num_threads = 1
    here = board.describe()
    record = kernels_here(
        lambda model: onnxruntime.InferenceSession(model, options, providers=["CPUExecutionProvider"]),
        here["architecture"],
        here["cpu_features"],
    )
    if record["family"] is None:
        raise DialectError(f"It is not known what integer kernels {here['architecture']!r} has.")
    return get_family(record["family"])
