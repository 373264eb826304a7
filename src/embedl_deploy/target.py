"""What a model is for, named once: patterns, backend and dialect follow from it.

    transform(model, args, target="onnxruntime-x86")      the backend's patterns
    quantize(network, args, target="onnxruntime-x86")     its placement
    export_onnx(model, args, path, target=...)            the dialect of the file
    verify(path, samples, target=...)                     the processors it is for

A target is known by the name of a dialect, of a backend or of a kernel family, as ``here``, or by a device that says
which processor it has. Your own are found by entry point (group ``embedl_deploy.targets``) or registered.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from importlib.metadata import entry_points
from typing import TYPE_CHECKING, Protocol

from embedl_deploy._extras import Registry, need
from embedl_deploy.dialect import Dialect, dialects, get_dialect
from embedl_deploy.errors import TargetError, quoted_list

if TYPE_CHECKING:
    from embedl_deploy.backend import Backend

__all__ = [
    "Device",
    "Target",
    "TargetLike",
    "choose_backend",
    "choose_dialect",
    "get_target",
    "register_target",
    "targets",
]


@dataclass(frozen=True)
class Target:
    """What a model is for."""

    name: str
    backend: "str | Backend" = ""  # whose patterns fuse and place: a backend or its name; empty for the active one
    dialect: str | Dialect = ""  # how its file is written: a dialect or its name; empty for a target that has none
    family: str = ""  # the kernel family of its processor, where it is known
    runtime_version: str = ""  # the version of its runtime, where it is known


class Device(Protocol):
    """What says which processor it has, as the hub's ``DeviceSpec`` does."""

    @property
    def architecture(self) -> str | None:
        """The machine's name, ``x86_64`` or ``aarch64``."""

    @property
    def features(self) -> Sequence[str]:
        """Instruction sets, as the system names them."""


TargetLike = Target | str | Device
_registry = Registry("embedl_deploy.targets", Target)


def register_target(target: Target) -> None:
    """Make a target of your own known by its name, in this process."""
    _registry.add(target.name, target)


def targets() -> tuple[Target, ...]:
    """Return the targets that are known by name: one per dialect, one per backend, and those of others."""
    found = {dialect.name: Target(dialect.name, dialect.backend, dialect.name) for dialect in dialects()}
    # By name alone: whoever works on ONNX files does not wait for torch, which backends import.
    for name in entry_points(group="embedl_deploy.backends").names:
        found.setdefault(name, Target(name, backend=name))
    return tuple({**found, **_registry.all()}.values())


def get_target(choice: TargetLike) -> Target:
    """Return a target by its name, of a kernel family or ``here``, or of a device; one of your own passes through.

    Raises:
        TargetError: Nothing is known by this name.
        DialectError: The device does not say which processor it has.
    """
    if isinstance(choice, Target):
        return choice
    if not isinstance(choice, str):
        return _of_device(choice)
    known = {target.name: target for target in targets()}
    if choice in known:
        return known[choice]
    from embedl_deploy.backend import discover_backends  # noqa: PLC0415 - imports torch
    from embedl_kernels import families  # noqa: PLC0415 - an extra

    if choice in (backend.name for backend in discover_backends()):
        return Target(choice, backend=choice)
    processors = [family.name for family in families()]
    if choice == "here" or choice in processors:
        return _of_device(choice)
    raise TargetError(f"There is no target {choice!r}; known are {quoted_list([*known, 'here', *processors])}.")


def _of_device(device: str | Device) -> Target:
    from embedl_deploy.dialect import dialect_for, family_for  # noqa: PLC0415 - needs the extra

    family = family_for(device)
    dialect = dialect_for(family)
    if device == "here":
        version = str(need("onnxruntime").__version__)
    else:
        version = str(getattr(device, "versions", {}).get(dialect.runtime, ""))
    return Target(family.name, dialect.backend, dialect.name, family.name, version)


def choose_dialect(dialect: str | Dialect | None, target: TargetLike | None) -> Dialect | None:
    """Return the dialect that is meant: itself, by name, or by a target; `None` when neither is given.

    Raises:
        TargetError: Both are given, or the target names no dialect.
        DialectError: No dialect has this name.
    """
    if target is None:
        return None if dialect is None else get_dialect(dialect)
    if dialect is not None:
        raise TargetError("give dialect or target, not both: a target names its dialect.")
    chosen = get_target(target)
    if not chosen.dialect:
        names = quoted_list(entry.name for entry in targets() if entry.dialect)
        raise TargetError(f"The target {chosen.name!r} names no dialect; those that do are {names}.")
    return get_dialect(chosen.dialect)


def choose_backend(backend: "str | Backend | None", target: TargetLike | None) -> "Backend":
    """Return the backend that is meant: itself, by name, by a target, or the active one.

    Raises:
        TargetError: Both are given.
        UnknownBackendError: No installed backend has this name.
        BackendSelectionError: None is given, and none or several are installed.
    """
    from embedl_deploy.backend import get_backend  # noqa: PLC0415 - imports torch

    if target is None:
        return get_backend(backend)
    if backend is not None:
        raise TargetError("give backend or target, not both: a target names its backend.")
    return get_backend(get_target(target).backend or None)
