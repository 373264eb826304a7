"""Devices written down in a TOML file: read into devices, checked with the names that are known.

    [devices.kitchen]
    type = "my_board"
    ssh = { host = "192.168.1.20", username = "pi" }
    config = { threads = 4 }

Secrets have no place in it: keys stay with ssh and its agent, tokens where a vendor's client keeps them.
"""

from __future__ import annotations

import logging
import os
import re
from collections.abc import Mapping
from dataclasses import dataclass, fields
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeVar

from embedl_hub.core.device._device import Device, DeviceSpec
from embedl_hub.core.device._kind import DeviceKind, device_kind_names, find_device_kind, runner_names
from embedl_hub.core.device._query import DeviceQuery, same_size
from embedl_hub.errors import ConfigError, UnknownDeviceError, quoted_list
from embedl_hub.toml import read_toml
from embedl_hub.trust import PROJECT_FOLDER

if TYPE_CHECKING:
    from embedl_hub.core.device._runner import CommandRunner

_TABLES = ("devices", "pools")
# Settings of runners that are files on this machine.
_FILES_HERE = ("identity_file", "known_hosts", "config_file")
_KEYS = ("type", "runner", "spec", "config", "artifact_root", "store_cap_bytes", "lease_dir")
_SECRET = re.compile(r"pass(word|phrase)|secret|token|api_?key", re.IGNORECASE)

Record = TypeVar("Record")


def load_devices(path: str | os.PathLike[str]) -> list[Device]:
    """Return the devices of a file, in its order; a file that is not there has none."""
    tables, base = read_devices(path), base_of(path)
    return [make_device(name, table, where=str(path), base=base) for name, table in tables.items()]


def base_of(path: str | os.PathLike[str]) -> Path:
    """Return the folder that relative paths in a file of devices start from: the project's, or the file's own."""
    folder = Path(path).absolute().parent
    return folder.parent if folder.name == PROJECT_FOLDER else folder


def read_devices(path: str | os.PathLike[str]) -> dict[str, Mapping[str, Any]]:
    """Return the tables of a file's devices by name, as they are written."""
    return read_tables(path, "devices")


def read_tables(path: str | os.PathLike[str], group: str) -> dict[str, Mapping[str, Any]]:
    """Return the tables of one group of a file, ``devices`` or ``pools``, by name."""
    file = Path(path)
    try:
        document = read_toml(file)
    except FileNotFoundError:
        return {}
    except (OSError, ValueError) as error:
        raise ConfigError(f"The devices in {file} cannot be read: {error}.") from error
    if unknown := set(document) - set(_TABLES):
        raise ConfigError(
            f"{file} holds {quoted_list(unknown)}; devices go into tables [devices.NAME], pools into [pools.NAME]."
        )
    tables = document.get(group, {})
    if not isinstance(tables, dict) or not all(isinstance(table, dict) for table in tables.values()):
        raise ConfigError(f"{file}: each of the {group} is a table of its own: [{group}.NAME].")
    return tables


def make_device(name: str, table: Mapping[str, Any], *, where: str = "the device", base: Path | None = None) -> Device:
    """Return one device of a file, or say what is wrong with its table.

    Args:
        name: What it is called.
        table: Its table.
        where: The file, for messages.
        base: Where relative paths of files on this machine start from; the current folder if not given.
    """
    place = f"{where}, device {name!r}"
    if unknown := set(table) - set(_KEYS) - set(runner_names()):
        raise ConfigError(f"{place} has {quoted_list(unknown)}; known: {quoted_list({*_KEYS, *runner_names()})}.")
    _refuse_secrets(place, table)
    if not isinstance(table.get("type"), str):
        raise ConfigError(f"{place} needs a type, one of: {quoted_list(device_kind_names())}.")
    kind, config = find_device_kind(table["type"]), table.get("config")
    further = {key: table[key] for key in ("artifact_root", "store_cap_bytes") if key in table}
    if "lease_dir" in table:
        # TOML has no word for nothing.
        further["lease_dir"] = table["lease_dir"] or None
    try:
        return Device(
            name,
            _runner(place, kind, table, base),
            spec=_record(f"{place}: spec", DeviceSpec, table.get("spec", {})),
            provider_type=kind.type,
            provider_config=_record(f"{place}: config", kind.config_class, config) if config else None,
            **further,
        )
    except ConfigError as error:
        raise error if str(error).startswith(where) else ConfigError(f"{place}: {error}") from error


def _runner(place: str, kind: DeviceKind, table: Mapping[str, Any], base: Path | None) -> CommandRunner | None:
    named = [name for name in runner_names() if name in table]
    runner = kind.runner(table.get("runner", named[0] if named else kind.reached_by[0]))
    if runner is None or runner.config_class is None:
        return None if runner is None else runner.make(None)
    if runner.name not in table:
        raise ConfigError(
            f"{place} is reached by {runner.name} and needs its settings: {runner.name} = {runner.example}."
        )
    settings = table[runner.name]
    if base is not None and isinstance(settings, Mapping):
        settings = {key: _from(base, value) if key in _FILES_HERE else value for key, value in settings.items()}
    return runner.make(_record(f"{place}: {runner.name}", runner.config_class, settings))


def _from(base: Path, value: object) -> object:
    """Return a path as it is meant from a folder; ``~`` and "none" mean what they mean to ssh."""
    is_relative = isinstance(value, str) and value not in ("", "none") and not value.startswith(("/", "~"))
    return str(base / str(value)) if is_relative else value


def _record(place: str, record: type[Record], table: object) -> Record:
    """Return a frozen record from a table whose keys are its fields; lists become tuples."""
    if not isinstance(table, Mapping):
        raise ConfigError(f"{place} must be a table, not {table!r:.100}.")
    names = [each.name for each in fields(record) if each.init]  # type: ignore[arg-type]
    if unknown := set(table) - set(names):
        raise ConfigError(f"{place} has {quoted_list(unknown)}; known: {quoted_list(names)}.")
    values = {key: tuple(value) if isinstance(value, list) else value for key, value in table.items()}
    try:
        return record(**values)
    except TypeError as error:
        raise ConfigError(f"{place}: {error}.") from error


def _refuse_secrets(place: str, table: Mapping[str, Any], path: str = "") -> None:
    for key, value in table.items():
        if _SECRET.search(key):
            raise ConfigError(
                f"{place} holds {path}{key!r}: secrets have no place in this file. Keys belong to ssh and its agent, "
                "tokens to the vendor's client."
            )
        if isinstance(value, Mapping):
            _refuse_secrets(place, value, f"{path}{key}.")


_POOL_KEYS = ("where", "devices", "mixed")
_EQUAL_IN = ("architecture", "cpu", "cores", "memory_bytes", "accelerators")
_LOG = logging.getLogger("embedl_hub")


@dataclass(frozen=True)
class Pool:
    """Boards under one name: those that a query means, or those that are listed."""

    name: str  # what sweeps call it
    query: DeviceQuery | None = None  # which devices it holds,
    names: tuple[str, ...] = ()  # or their names
    mixed: bool = False  # whether they may differ

    def __post_init__(self) -> None:
        if (self.query is None) == (not self.names):
            raise ConfigError(f"Pool {self.name!r} needs either a query (where) or names of devices, not both.")

    def members(self, devices: Mapping[str, tuple[str, DeviceSpec]]) -> list[str]:
        """Return the names of its boards, of all devices; refused if one is unknown, or they differ and may not."""
        if self.query is not None:
            found = self.query.select(devices)
        else:
            if missing := set(self.names) - set(devices):
                raise UnknownDeviceError(
                    f"Pool {self.name!r} names {quoted_list(missing)}, which is no device; there are: "
                    f"{quoted_list(devices)}."
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
                "embedl-hub device health does.", self.name, quoted_list(unknown),
            )  # fmt: skip


def load_pools(path: str | os.PathLike[str]) -> dict[str, Pool]:
    """Return the pools of a file of devices by name; a file that is not there has none."""
    return {name: make_pool(name, table, where=str(path)) for name, table in read_tables(path, "pools").items()}


def make_pool(name: str, table: Mapping[str, Any], *, where: str = "the pool") -> Pool:
    """Return one pool of a file, or say what is wrong with its table."""
    place = f"{where}, pool {name!r}"
    if unknown := set(table) - set(_POOL_KEYS):
        raise ConfigError(f"{place} has {quoted_list(unknown)}; known: {quoted_list(_POOL_KEYS)}.")
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
