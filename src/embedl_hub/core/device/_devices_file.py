"""Devices written down in a TOML file: read into devices, checked with the names that are known.

    [devices.kitchen]
    type = "embedl_onnxruntime"
    ssh = { host = "192.168.1.20", username = "pi" }
    config = { threads = 4 }

Secrets have no place in it: keys stay with ssh and its agent, tokens where a vendor's client keeps them.
"""

from __future__ import annotations

import re
import tomllib
from collections.abc import Mapping
from dataclasses import fields
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeVar

from embedl_hub.core.device._device import Device
from embedl_hub.core.device._kind import DeviceKind, find_device_kind
from embedl_hub.core.device._local import LocalCommandRunner
from embedl_hub.core.device._spec import DeviceSpec
from embedl_hub.core.device._ssh import SSHCommandRunner
from embedl_hub.core.device._ssh_config import SSHConfig
from embedl_hub.errors import ConfigError, known

if TYPE_CHECKING:
    import os

    from embedl_hub.core.device._config import ProviderConfig
    from embedl_hub.core.device._runner import CommandRunner

DEVICES_FILE = "devices.toml"
_TABLES = ("devices", "pools")
_KEYS = ("type", "runner", "ssh", "spec", "config", "artifact_root", "store_cap_bytes", "lease_dir")
_SECRET = re.compile(r"pass(word|phrase)|secret|token|api_?key", re.IGNORECASE)

Record = TypeVar("Record")


def load_devices(path: str | os.PathLike[str]) -> list[Device]:
    """Return the devices of a file, in its order; a file that is not there has none."""
    return [make_device(name, table, where=str(path)) for name, table in read_devices(path).items()]


def read_devices(path: str | os.PathLike[str]) -> dict[str, Mapping[str, Any]]:
    """Return the tables of a file's devices by name, as they are written."""
    return read_tables(path, "devices")


def read_tables(path: str | os.PathLike[str], group: str) -> dict[str, Mapping[str, Any]]:
    """Return the tables of one group of a file, ``devices`` or ``pools``, by name."""
    file = Path(path)
    try:
        document = tomllib.loads(file.read_text(encoding="utf-8"))
    except FileNotFoundError:
        return {}
    except (OSError, ValueError) as error:
        raise ConfigError(f"The devices in {file} cannot be read: {error}.") from error
    if unknown := set(document) - set(_TABLES):
        raise ConfigError(
            f"{file} holds {known(unknown)}; devices go into tables [devices.NAME], pools into [pools.NAME]."
        )
    tables = document.get(group, {})
    if not isinstance(tables, dict) or not all(isinstance(table, dict) for table in tables.values()):
        raise ConfigError(f"{file}: each of the {group} is a table of its own: [{group}.NAME].")
    return tables


def make_device(name: str, table: Mapping[str, Any], *, where: str = "the device") -> Device:
    """Return one device of a file, or say what is wrong with its table."""
    place = f"{where}, device {name!r}"
    if unknown := set(table) - set(_KEYS):
        raise ConfigError(f"{place} has {known(unknown)}; known: {known(_KEYS)}.")
    _refuse_secrets(place, table)
    if not isinstance(table.get("type"), str):
        raise ConfigError(f"{place} needs a type, for example type = 'embedl_onnxruntime'.")
    kind = find_device_kind(table["type"])
    further = {key: table[key] for key in ("artifact_root", "store_cap_bytes") if key in table}
    if "lease_dir" in table:
        # TOML has no word for nothing.
        further["lease_dir"] = table["lease_dir"] or None
    try:
        return Device(
            name,
            _runner(place, kind, table),
            spec=_record(f"{place}: spec", DeviceSpec, table.get("spec", {})),
            provider_type=kind.type,
            provider_config=_config(place, kind, table.get("config", {})),
            **further,
        )
    except ConfigError as error:
        raise error if str(error).startswith(where) else ConfigError(f"{place}: {error}") from error


def _runner(place: str, kind: DeviceKind, table: Mapping[str, Any]) -> CommandRunner | None:
    how = table.get("runner", "ssh" if "ssh" in table else kind.reached_by[0])
    if how not in kind.reached_by:
        raise ConfigError(
            f"{place}: a device of type {kind.type!r} is reached by {known(kind.reached_by)}, not {how!r}."
        )
    if how == "none":
        return None
    if how == "local":
        return LocalCommandRunner()
    if "ssh" not in table:
        raise ConfigError(f"{place} is reached by ssh and needs a host: ssh = {{ host = '...' }} (--host).")
    return SSHCommandRunner(_record(f"{place}: ssh", SSHConfig, table["ssh"]))


def _config(place: str, kind: DeviceKind, table: object) -> ProviderConfig | None:
    return _record(f"{place}: config", kind.config_class, table) if table else None


def _record(place: str, record: type[Record], table: object) -> Record:
    """Return a frozen record from a table whose keys are its fields; lists become tuples."""
    if not isinstance(table, Mapping):
        raise ConfigError(f"{place} must be a table, not {table!r:.100}.")
    names = [each.name for each in fields(record) if each.init]  # type: ignore[arg-type]
    if unknown := set(table) - set(names):
        raise ConfigError(f"{place} has {known(unknown)}; known: {known(names)}.")
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
