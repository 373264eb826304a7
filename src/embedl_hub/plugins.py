"""What packages bring: values found by entry points, imported on use. The hub's own are found the same way.

A group is the name of an entry-point group, such as ``embedl_hub.toolchains``; names are compared with underscores, so
``qai-hub`` and ``qai_hub`` are the same.
"""

from __future__ import annotations

import functools
import importlib.metadata
import sys
from collections.abc import Iterator
from typing import TYPE_CHECKING, Any

from embedl_hub.errors import ConfigError, quoted_list

if TYPE_CHECKING:
    from importlib.metadata import EntryPoint

TOOLCHAINS = "embedl_hub.toolchains"
PROVIDERS = "embedl_hub.providers"
DEVICE_KINDS = "embedl_hub.device_kinds"
RUNNERS = "embedl_hub.runners"
ENGINES = "embedl_hub.engines"
COMMANDS = "embedl_hub.commands"

_REGISTERED: dict[str, dict[str, object]] = {}


def register(group: str, name: str, value: object) -> None:
    """Make a value known in this process; installed packages use an entry point instead."""
    _REGISTERED.setdefault(group, {})[plugin_name(name)] = value


def plugin_name(name: str) -> str:
    """Return the one spelling used inside."""
    return str(name).replace("-", "_")


def plugin_names(group: str) -> list[str]:
    """Return the names in a group, without importing anything."""
    return sorted({*_REGISTERED.get(group, ()), *entries(group)})


def entries(group: str) -> dict[str, EntryPoint]:
    """Return the entry points of a group by name."""
    return _entries(group, tuple(sys.path))


def load(group: str, name: str) -> Any:  # noqa: ANN401 - whatever the group holds
    """Return the value of a name.

    Raises:
        ConfigError: There is none, or its package cannot be imported.
    """
    name = plugin_name(name)
    if name in _REGISTERED.get(group, ()):
        return _REGISTERED[group][name]
    entry = entries(group).get(name)
    kind = group.rpartition(".")[2].replace("_", " ").removesuffix("s")
    if entry is None:
        raise ConfigError(
            f"There is no {kind} {name!r}; known: {quoted_list(plugin_names(group))}. A package adds one by an entry "
            f"point in the group {group}."
        )
    try:
        return entry.load()
    except (ImportError, AttributeError) as error:
        raise ConfigError(f"The {kind} {name!r} of {origin(entry)} cannot be loaded: {error}.") from error


def load_all(group: str) -> Iterator[tuple[str, Any]]:
    """Return every value of a group by name; one that cannot be loaded is left out and must not hide the others."""
    for name in plugin_names(group):
        if _is_importing(group, name):
            continue
        try:
            yield name, load(group, name)
        except Exception as error:  # noqa: BLE001 - whatever somebody's package does on import
            _warn_once(group, name, f"{error}")


def _is_importing(group: str, name: str) -> bool:
    """Tell whether a name's module is being imported now: it asks for the others before it has its own value."""
    entry = None if name in _REGISTERED.get(group, ()) else entries(group).get(name)
    module = None if entry is None else sys.modules.get(entry.module)
    return bool(getattr(getattr(module, "__spec__", None), "_initializing", False))


def origin(entry: EntryPoint) -> str:
    """Return the package that an entry point comes from."""
    return entry.dist.name if entry.dist is not None else entry.value


@functools.lru_cache(maxsize=64)
def _warn_once(group: str, name: str, problem: str) -> None:
    import logging  # noqa: PLC0415 - only where something is wrong

    logging.getLogger("embedl_hub").warning("%s %r is left out: %s", group, name, problem)


@functools.lru_cache(maxsize=64)
def _entries(group: str, _path: tuple[str, ...]) -> dict[str, EntryPoint]:
    """Read a group once; read it again when the import path changes."""
    return {plugin_name(entry.name): entry for entry in importlib.metadata.entry_points(group=group)}
