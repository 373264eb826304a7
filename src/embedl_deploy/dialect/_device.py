"""The dialect of a device: by the family of its integer kernels."""

from embedl_deploy.dialect._dialects import ONNXRUNTIME_ARM, ONNXRUNTIME_X86, ONNXRUNTIME_X86_VNNI, Dialect
from embedl_deploy.errors import DialectError, quoted_list
from embedl_device import board
from embedl_kernels import Family, families, family_of, get_family, kernels_here


def dialect_for(device: object) -> Dialect:
    """Return the dialect in which ONNX Runtime is fast and right on a device.

    Args:
        device: ``here``, a kernel family or its name, or a description with ``architecture`` and ``features``.

    Raises:
        DialectError: The device is not known, or says nothing of its processor.
    """
    family = family_for(device)
    if family.signed:
        return ONNXRUNTIME_ARM
    return ONNXRUNTIME_X86_VNNI if family.name == "x86-vnni" else ONNXRUNTIME_X86


def family_for(device: object) -> Family:
    """Return the kernel family of a device, named or described as for `dialect_for`.

    Raises:
        DialectError: The device is not known, or says nothing of its processor.
    """
    if isinstance(device, Family):
        return device
    if device == "here":
        return family_here()
    known = {family.name: family for family in families()}
    if isinstance(device, str) and device in known:
        return known[device]
    if isinstance(device, str):
        raise DialectError(f"There is no kernel family {device!r}; known are {quoted_list(['here', *known])}.")
    architecture, features = getattr(device, "architecture", None), getattr(device, "features", None)
    if not architecture:
        raise DialectError(
            f"{device!r} does not say which architecture it has; give a DeviceSpec with architecture and features, "
            f"or one of {quoted_list(known)}."
        )
    family = family_of(str(architecture), tuple(features or ()))
    if family is None:
        raise DialectError(f"It is not known what integer kernels {architecture!r} has; known are x86_64 and aarch64.")
    return family


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
