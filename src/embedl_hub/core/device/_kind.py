"""Kinds of devices and ways to reach them: what a file of devices may say about one.

A kind belongs to a provider type and comes with its toolchain, or by an entry point of its own (group
``embedl_hub.device_kinds``); a way to reach devices comes by an entry point in ``embedl_hub.runners``. Nothing here
knows any of them by name, except this machine.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, TypeVar

from embedl_hub import plugins
from embedl_hub.core.device._device import Device, DeviceSpec, ProviderConfig
from embedl_hub.core.device._local import LocalCommandRunner
from embedl_hub.core.device._ssh import SSHCommandRunner
from embedl_hub.core.device._ssh_config import SSHConfig
from embedl_hub.core.faces import local_config
from embedl_hub.errors import ConfigError, quoted_list
from embedl_hub.plugins import DEVICE_KINDS, RUNNERS, TOOLCHAINS

if TYPE_CHECKING:
    import builtins

    from embedl_hub.core.device._runner import CommandRunner


@dataclass(frozen=True)
class CheckResult:
    """One line of ``embedl-hub doctor``. A toolchain and a kind of device may have some."""

    title: str  # what was looked at
    is_ok: bool | None  # whether it works; None when it is optional and not there
    message: str  # what was found
    advice: str = ""  # what to do about it


Kind = TypeVar("Kind")

LOCAL = "local"
NO_RUNNER = "none"
ANY_RUNNER = "any"


@dataclass(frozen=True)
class RunnerKind:
    """A way to reach devices."""

    name: str  # what ``runner = "..."`` in a file of devices says, and the key of its settings there
    summary: str  # one line for people
    make: Callable[[Any], CommandRunner]  # returns a runner for the settings
    config_class: type | None = None  # its settings, a frozen dataclass; None when it has none
    example: str = "{}"  # a settings table, for the message when one is missing


SSH_RUNNER = RunnerKind("ssh", "OpenSSH.", SSHCommandRunner, SSHConfig, "{ host = '...' } (--host)")
LOCAL_RUNNER = RunnerKind(LOCAL, "This machine.", lambda _: LocalCommandRunner())


def register_runner(kind: RunnerKind) -> None:
    """Make a way to reach devices known in this process; installed packages use an entry point instead."""
    plugins.register(RUNNERS, kind.name, kind)


def runner_names() -> list[str]:
    """Return the names of all ways to reach devices."""
    return plugins.plugin_names(RUNNERS)


def find_runner(name: str) -> RunnerKind:
    """Return a way to reach devices by name, or say which there are."""
    return _checked(RUNNERS, name, RunnerKind)


@dataclass(frozen=True)
class DeviceKind:
    """What devices of one provider type are."""

    type: str  # the provider type
    summary: str  # one line for people
    config_class: builtins.type[ProviderConfig] = ProviderConfig  # the settings such a device may have
    # Names of runners, the usual one first; ``any`` stands for every one that is installed, ``none`` for devices that
    # the provider's own client reaches.
    reached_by: tuple[str, ...] = ("ssh", ANY_RUNNER)
    # Commands that must work on a device before its provider can; by what they check.
    checks: Callable[[Device], Mapping[str, Sequence[str]]] = field(default=lambda _: {}, compare=False)
    # Checks what this machine needs for such devices.
    doctor: Callable[[], list[CheckResult]] = field(default=list, compare=False)
    # Returns the devices that the provider's service offers.
    catalog: Callable[[], Sequence[DeviceSpec]] | None = field(default=None, compare=False)

    def __post_init__(self) -> None:
        if not self.reached_by or type(self.reached_by) is not tuple:
            raise ConfigError(f"DeviceKind.reached_by is {self.reached_by!r}; it is a tuple of runners' names.")
        object.__setattr__(self, "type", plugins.plugin_name(self.type))

    def runner(self, name: str) -> RunnerKind | None:
        """Return the runner of a name if such devices are reached by it; None for ``none``."""
        if name == NO_RUNNER and NO_RUNNER in self.reached_by:
            return None
        if name not in self.reached_by and ANY_RUNNER not in self.reached_by:
            raise ConfigError(
                f"a device of type {self.type!r} is reached by {quoted_list(self.reached_by)}, not {name!r}."
            )
        return find_runner(name)


def register_device_kind(kind: DeviceKind) -> None:
    """Make a kind known in this process; installed packages use an entry point instead."""
    plugins.register(DEVICE_KINDS, kind.type, kind)


def device_kinds() -> list[DeviceKind]:
    """Return all kinds but this machine, which belongs to every toolchain."""
    own = [value for _, value in plugins.load_all(DEVICE_KINDS) if isinstance(value, DeviceKind)]
    return [*own, *(kind for _, toolchain in plugins.load_all(TOOLCHAINS) for kind in toolchain.device_kinds)]


def device_kind_names() -> list[str]:
    """Return the types of all kinds."""
    return sorted({LOCAL, *(kind.type for kind in device_kinds())})


def find_device_kind(provider_type: str) -> DeviceKind:
    """Return the kind of a provider type, or say which there are."""
    wanted = plugins.plugin_name(provider_type)
    if wanted == LOCAL:
        return _local_kind()
    if wanted in plugins.plugin_names(DEVICE_KINDS):
        return _checked(DEVICE_KINDS, wanted, DeviceKind)
    for kind in device_kinds():
        if kind.type == wanted:
            return kind
    raise ConfigError(
        f"There is no kind of device {provider_type!r}; known: {quoted_list(device_kind_names())}. A package adds one "
        f"by an entry point in the group {DEVICE_KINDS}."
    )


def _local_kind() -> DeviceKind:
    def doctor() -> list[CheckResult]:
        checks = (toolchain.doctor for _, toolchain in plugins.load_all(TOOLCHAINS))
        return [result for check in checks if check is not None for result in check()]

    return DeviceKind(LOCAL, "This machine.", local_config(), reached_by=(LOCAL, NO_RUNNER), doctor=doctor)


def _checked(group: str, name: str, kind: type[Kind]) -> Kind:
    value: object = plugins.load(group, name)
    if not isinstance(value, kind):
        raise ConfigError(f"{group} {name!r} is {value!r:.100}, not a {kind.__name__}.")
    return value
