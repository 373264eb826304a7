"""What is in use in a home: its project and device, written down in ``config.toml``."""

from __future__ import annotations

import os
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any

from embedl_device.readers import UnreadableError
from embedl_hub import trust
from embedl_hub.errors import ConfigError, quoted_list
from embedl_hub.paths import make_private
from embedl_hub.toml import read_toml
from embedl_hub.tracking import find_home

if TYPE_CHECKING:
    import tomlkit

SETTINGS_FILE = "config.toml"
DEFAULT_PROJECT = "default"
_KEYS = ("project", "device")


def read_settings(home: Path) -> dict[str, str]:
    """Return a home's settings; none when it has no file."""
    path = home / SETTINGS_FILE
    try:
        values = read_toml(path)
    except FileNotFoundError:
        return {}
    except (OSError, ValueError) as error:
        raise ConfigError(f"The settings in {path} cannot be read: {error}.") from error
    if unknown := set(values) - set(_KEYS):
        raise ConfigError(f"{path} holds {quoted_list(unknown)}; known: {quoted_list(_KEYS)}.")
    if wrong := [key for key, value in values.items() if not isinstance(value, str)]:
        raise ConfigError(f"{path}: {quoted_list(wrong)} must be text.")
    return values


def project_in_use(home: Path | None, given: str | None) -> str:
    """Return the project to record under: the one given, else the home's, else ``default``."""
    return given or read_settings(find_home(home, uses_devices=False)).get("project") or DEFAULT_PROJECT


def put_table(path: Path, group: str, name: str, values: Mapping[str, object]) -> None:
    """Write one table of a group, ``[group.name]``, into a TOML file; tables inside it stand on one line."""
    import tomlkit as kit  # noqa: PLC0415 - only for writing

    def put(document: kit.TOMLDocument) -> None:
        written = kit.table()
        for key, value in values.items():
            if isinstance(value, dict):
                inline = kit.inline_table()
                inline.update(value)
                written[key] = inline
            else:
                written[key] = value
        document.setdefault(group, kit.table(is_super_table=True))[name] = written

    change_toml(path, put)


def change_toml(path: Path, change: Callable[[tomlkit.TOMLDocument], Any]) -> None:
    """Change a TOML file and leave the rest of it, comments included, as its owner wrote it."""
    import tomlkit  # noqa: PLC0415 - only for writing
    from tomlkit.exceptions import TOMLKitError  # noqa: PLC0415

    try:
        document = tomlkit.document()
        if path.exists():
            read_toml(path)  # within bounds, which the library that keeps comments has not
            document = tomlkit.parse(path.read_text(encoding="utf-8"))
        change(document)
        make_private(path.parent)
        is_trusted = path.name == trust.DEVICES_FILE and trust.is_trusted(path.parent)
        part = path.with_name(f".{path.name}.{os.getpid()}")
        part.write_text(tomlkit.dumps(document), encoding="utf-8")
        part.replace(path)
        if is_trusted:
            # What the user changes by our commands needs no second word.
            trust.trust(path.parent)
    except (TOMLKitError, UnreadableError) as error:
        raise ConfigError(f"{path} cannot be changed: {error}.") from error
    except OSError as error:
        raise ConfigError(f"{path} cannot be written: {error}.") from error
