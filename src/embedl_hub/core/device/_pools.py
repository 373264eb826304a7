"""Pools: equal boards under one name, in the file of the devices.

    [pools.pis]
    where = "arch=aarch64, name=pi-*"

    [pools.lab]
    devices = ["kitchen", "attic"]
    mixed = true

Boards of a pool serve one queue, so what one of them measures must hold for the others: they are equal, or the pool
says that it is mixed.
"""

from __future__ import annotations

import logging
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from embedl_hub.core.device._devices_file import read_tables
from embedl_hub.core.device._query import DeviceQuery, same_size
from embedl_hub.errors import ConfigError, UnknownDeviceError, known

if TYPE_CHECKING:
    import os
    from collections.abc import Mapping

    from embedl_hub.core.device._spec import DeviceSpec

_KEYS = ("where", "devices", "mixed")
_EQUAL_IN = ("architecture", "cpu", "cores", "memory_bytes", "accelerators")
_LOG = logging.getLogger("embedl_hub")


@dataclass(frozen=True)
class Pool:
    """Boards under one name: those that a query means, or those that are listed.

    Attributes:
        name: What sweeps call it.
        query: Which devices it holds,
        names: or their names.
        mixed: Whether they may differ.
    """

    name: str
    query: DeviceQuery | None = None
    names: tuple[str, ...] = ()
    mixed: bool = False

    def __post_init__(self) -> None:
        if (self.query is None) == (not self.names):
            raise ConfigError(f"Pool {self.name!r} needs either a query (where) or names of devices, not both.")

    def members(self, devices: Mapping[str, tuple[str, DeviceSpec]]) -> list[str]:
        """Return the names of its boards, of all devices' names with provider type and spec.

        Raises:
            UnknownDeviceError: It names a device that there is not, or its query means none.
            ConfigError: Its boards differ, and it is not mixed.
        """
        if self.query is not None:
            found = self.query.select(devices)
        else:
            if missing := set(self.names) - set(devices):
                raise UnknownDeviceError(
                    f"Pool {self.name!r} names {known(missing)}, which is no device; there are: {known(devices)}."
                )
            found = list(self.names)
        if not self.mixed:
            self._check_equal({name: devices[name] for name in found})
        return found

    def _check_equal(self, members: Mapping[str, tuple[str, DeviceSpec]]) -> None:
        first, *others = members
        kind, spec = members[first]
        differences = [
            f"{name}'s {what} is {theirs}, {first}'s is {ours}"
            for name in others
            for what, ours, theirs in _differences(kind, spec, *members[name])
        ]
        if differences:
            raise ConfigError(
                f"The boards of pool {self.name!r} are not equal, so what one measures does not hold for the others: "
                f"{'; '.join(differences)}. Make a pool of each kind, or set mixed = true."
            )
        if unknown := [name for name, (_, its) in members.items() if its.architecture is None]:
            _LOG.warning(
                "Pool %r: nobody asked %s yet whether they are equal to the others; "
                "embedl-hub device health does.", self.name, known(unknown),
            )  # fmt: skip


def load_pools(path: str | os.PathLike[str]) -> dict[str, Pool]:
    """Return the pools of a file of devices by name; a file that is not there has none."""
    return {name: make_pool(name, table, where=str(path)) for name, table in read_tables(path, "pools").items()}


def make_pool(name: str, table: Mapping[str, Any], *, where: str = "the pool") -> Pool:
    """Return one pool of a file, or say what is wrong with its table."""
    place = f"{where}, pool {name!r}"
    if unknown := set(table) - set(_KEYS):
        raise ConfigError(f"{place} has {known(unknown)}; known: {known(_KEYS)}.")
    query, names, mixed = table.get("where"), table.get("devices", []), table.get("mixed", False)
    if query is not None and not isinstance(query, str):
        raise ConfigError(f"{place}: where is a query such as 'arch=aarch64, memory>=4GB', not {query!r:.100}.")
    if not isinstance(names, list) or not all(isinstance(each, str) for each in names):
        raise ConfigError(f"{place}: devices is a list of names, not {names!r:.100}.")
    if not isinstance(mixed, bool):
        raise ConfigError(f"{place}: mixed is true or false, not {mixed!r:.100}.")
    if len(set(names)) < len(names):
        raise ConfigError(f"{place} names a device twice: {names}.")
    try:
        return Pool(name, None if query is None else DeviceQuery.parse(query), tuple(names), mixed)
    except ConfigError as error:
        raise ConfigError(f"{place}: {error}") from error


def _differences(kind: str, spec: DeviceSpec, their_kind: str, theirs: DeviceSpec) -> list[tuple[str, object, object]]:
    found: list[tuple[str, object, object]] = [("type", kind, their_kind)] if kind != their_kind else []
    if spec.architecture is None or theirs.architecture is None:
        return found
    for what in _EQUAL_IN:
        one, other = getattr(spec, what), getattr(theirs, what)
        same = one == other
        if what == "memory_bytes" and one and other:
            same = same_size(one, other)
        if not same:
            found.append((what, one or "none", other or "none"))
    return found
