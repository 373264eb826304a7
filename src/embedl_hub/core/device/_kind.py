"""Kinds of devices: what a file of devices may say about one. Whoever owns a provider type registers its kind.

A kind is found by its entry point (group ``embedl_hub.device_kinds``, the name is the provider type), so a package
that brings a provider brings its kind of device too, and nothing here knows of it.
"""

from __future__ import annotations

import functools
import importlib.metadata
import sys
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from embedl_hub.core.device._config import ProviderConfig
from embedl_hub.errors import ConfigError, known

if TYPE_CHECKING:
    import builtins
    from collections.abc import Callable, Mapping, Sequence

    from embedl_hub.core.device._device import Device

GROUP = "embedl_hub.device_kinds"
REACHED_BY = ("ssh", "local", "none")


def _nothing_to_check(_: Device) -> Mapping[str, Sequence[str]]:
    return {}


@dataclass(frozen=True)
class DeviceKind:
    """What devices of one provider type are.

    Attributes:
        type: The provider type.
        summary: One line for people.
        config_class: The settings such a device may have.
        reached_by: How commands get there, the usual way first: ``ssh``, ``local`` for this machine, ``none`` where
            the provider's own client does everything.
        checks: Commands that must work on a device before its provider can; by what they check.
    """

    type: str
    summary: str
    config_class: builtins.type[ProviderConfig] = ProviderConfig
    reached_by: tuple[str, ...] = ("ssh",)
    checks: Callable[[Device], Mapping[str, Sequence[str]]] = field(default=_nothing_to_check, compare=False)

    def __post_init__(self) -> None:
        if not self.reached_by or not set(self.reached_by) <= set(REACHED_BY):
            raise ConfigError(f"DeviceKind.reached_by is {self.reached_by!r}; known: {known(REACHED_BY)}.")
        object.__setattr__(self, "type", self.type.replace("-", "_"))


_REGISTERED: dict[str, DeviceKind] = {}


def register_device_kind(kind: DeviceKind) -> None:
    """Make a kind known in this process; installed packages use an entry point instead."""
    _REGISTERED[kind.type] = kind


def device_kind_names() -> list[str]:
    """Return the types of all kinds, without loading any."""
    return sorted({*_REGISTERED, *_entry_points(tuple(sys.path))})


def find_device_kind(provider_type: str) -> DeviceKind:
    """Return the kind of a provider type, or say which there are."""
    name = provider_type.replace("-", "_")
    if name in _REGISTERED:
        return _REGISTERED[name]
    entry = _entry_points(tuple(sys.path)).get(name)
    if entry is None:
        raise ConfigError(
            f"There is no kind of device {provider_type!r}; known: {known(device_kind_names())}. A package that "
            f"brings one has an entry point in the group {GROUP}."
        )
    try:
        kind = entry.load()
    except (ImportError, AttributeError) as error:
        raise ConfigError(f"The kind of device {provider_type!r} ({entry.value}) cannot be loaded: {error}.") from error
    if not isinstance(kind, DeviceKind):
        raise ConfigError(f"The kind of device {provider_type!r} ({entry.value}) is {kind!r}, not a DeviceKind.")
    return kind


@functools.lru_cache(maxsize=8)
def _entry_points(_path: tuple[str, ...]) -> dict[str, importlib.metadata.EntryPoint]:
    """Return the installed kinds by type; asked anew when the import path changes."""
    return {entry.name.replace("-", "_"): entry for entry in importlib.metadata.entry_points(group=GROUP)}
