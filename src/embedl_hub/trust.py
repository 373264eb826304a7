"""Which found ``.embedl`` folders this user trusts, by what is in them.

A home that is named (``--home``, EMBEDL_HUB_HOME, an argument) is the user's choice. One that lies in the current
folder or above it may have come with a stranger's repository or be another account's. It must belong to the user and
hold no links, and its devices, which name hosts and programs, are used after ``embedl-hub trust``. The user's own
folder keeps a hash of what was trusted, so changed content has to be trusted anew.
"""

from __future__ import annotations

import hashlib
import json
import os
import stat
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path

import platformdirs

from embedl_device.readers import UnreadableError, read_json, read_plain
from embedl_hub.errors import ConfigError, UntrustedError
from embedl_hub.paths import replacing
from embedl_hub.toml import parse_toml

__all__ = [
    "DEVICES_FILE",
    "Acting",
    "acting_parts",
    "check_devices",
    "check_place",
    "forget",
    "is_trusted",
    "trust",
    "trusted_homes",
]

DEVICES_FILE = "devices.toml"
_LARGEST_BYTES = 4 << 20
# What says what a device is, not what is done: nobody is asked to judge it.
_FACTS = ("type", "spec", "store_cap_bytes")


@dataclass(frozen=True)
class Acting:
    """What of a home acts on this machine or on others when it is used."""

    home: Path
    lines: tuple[str, ...]  # for people: a line for each device and each link
    digest: str  # of all of it, contents of the files it names in its folder included


def acting_parts(home: Path) -> Acting:
    """Return what of a home acts; nothing is run or changed."""
    links = _links(home)
    text = _read(home / DEVICES_FILE)
    tables = _tables(text)
    files = {str(path): _hash_of(path) for path in _named_files(home, tables)}
    lines = [f"{name} is a link to {target!r}" for name, target in sorted(links.items())]
    lines += [f"device {name!r}: {_words(table)}" for name, table in sorted(tables.items())]
    lines += [f"{name} is in this folder" for name in sorted(files)]
    # What it means, not how it is written; of a file that means nothing, every byte.
    facts = json.dumps([links, tables, files, "" if tables else str(text)], sort_keys=True, default=str)
    return Acting(home, tuple(lines), hashlib.sha256(facts.encode()).hexdigest())


def check_place(home: Path) -> None:
    """Raise UntrustedError for a found home that others can write in, or that leads somewhere else by links."""
    facts, user = home.lstat(), os.geteuid()
    # As for git: whoever is root by sudo works in the folders of the user who called it.
    own = {user, int(os.environ["SUDO_UID"])} if user == 0 and os.environ.get("SUDO_UID", "").isdigit() else {user}
    linked = bool(_links(home))
    if facts.st_uid not in own:
        _need_trust(home, f"belongs to another account (number {facts.st_uid})")
    elif not linked and facts.st_mode & stat.S_IWOTH:
        _need_trust(home, "can be written by every account of this machine")
    elif linked:
        _need_trust(home, "holds links that lead somewhere else")


def check_devices(home: Path) -> None:
    """Raise UntrustedError for a found home whose devices this user has not trusted as they are now."""
    if (home / DEVICES_FILE).exists():
        _need_trust(home, "has devices, which say what programs are run and which hosts are reached")


def _need_trust(home: Path, reason: str) -> None:
    found, known = acting_parts(home), trusted_homes().get(_name_of(home))
    if known == found.digest:
        return
    since = "is not trusted" if known is None else "has changed since you trusted it"
    lines = "".join(f"\n  {line}" for line in found.lines)
    raise UntrustedError(
        f"{home} was found in this folder or above it and {since}: it {reason}.{lines}\nIf you know who wrote it: "
        f"embedl-hub trust {home}. To leave it alone, work on this machine (--here) or name another home "
        "(--home FOLDER, EMBEDL_HUB_HOME)."
    )


def is_trusted(home: Path) -> bool:
    """Whether this user has trusted a home as it is now, or nothing in it acts."""
    found = acting_parts(home)
    return not found.lines or trusted_homes().get(_name_of(home)) == found.digest


def trust(home: Path) -> Acting:
    """Remember what acts in a home as trusted by this user."""
    found = acting_parts(home)
    _write({**trusted_homes(), _name_of(home): found.digest})
    return found


def forget(home: Path) -> bool:
    """Trust a home no longer; tell whether it was trusted."""
    kept = trusted_homes()
    if kept.pop(_name_of(home), None) is None:
        return False
    _write(kept)
    return True


def trusted_homes() -> dict[str, str]:
    """Return the hashes of what is trusted, by home."""
    path = _file()
    try:
        kept = read_json(path)
    except FileNotFoundError:
        return {}
    except (OSError, UnreadableError) as error:
        raise ConfigError(f"{path} cannot be read ({error}); remove it and trust your folders anew.") from error
    if not isinstance(kept, dict) or not all(isinstance(value, str) for value in kept.values()):
        raise ConfigError(f"{path} is not a list of folders; remove it and trust your folders anew.")
    return kept


def _file() -> Path:
    return Path(platformdirs.user_config_dir("edgeproof")) / "trusted.json"


def _write(homes: Mapping[str, str]) -> None:
    path = _file()
    try:
        path.parent.mkdir(parents=True, exist_ok=True, mode=0o700)
        with replacing(path) as part:
            part.write_text(json.dumps(homes, indent=1, sort_keys=True), encoding="utf-8")
            part.chmod(0o600)
    except OSError as error:
        raise ConfigError(
            f"{path} cannot be written: {error}. Name the home instead: --home, EMBEDL_HUB_HOME."
        ) from error


def _name_of(home: Path) -> str:
    # The folder's own place, not where a link leads: a link that is turned elsewhere is another thing to trust.
    return str(home.parent.resolve() / home.name)


def _links(home: Path) -> dict[str, str]:
    """Return where the links of a home lead, the home itself included."""
    with os.scandir(home) as entries:
        paths = {entry.name: Path(entry.path) for entry in entries if entry.is_symlink()}
    if home.is_symlink():
        paths["."] = home
    return {name: str(path.readlink()) for name, path in paths.items()}


def _read(path: Path) -> bytes | None:
    """Return a file of a found home; a pipe or a device there must not be waited for."""
    try:
        return read_plain(path, _LARGEST_BYTES)
    except FileNotFoundError:
        return None
    except (OSError, UnreadableError) as error:
        raise ConfigError(f"{path} cannot be read: {error}.") from error


def _tables(text: bytes | None) -> dict[str, Mapping[str, object]]:
    """Return the tables of the devices; those of a broken file are read, and refused, by whoever uses them."""
    try:
        devices = parse_toml(text or b"").get("devices", {})
    except UnreadableError:
        return {}
    if not isinstance(devices, dict):
        return {}
    return {str(name): table for name, table in devices.items() if isinstance(table, dict)}


def _named_files(home: Path, tables: Mapping[str, object]) -> Iterator[Path]:
    """Yield the files in the project's folder that devices name: whoever changes the folder changes those as well."""
    project = home.parent.resolve()
    for _, value in _leaves(tables):
        for base in (Path.cwd(), project, home):
            try:
                path = (base / Path(value).expanduser()).resolve()
                if path.is_file() and path.is_relative_to(project):
                    yield path
            except (OSError, ValueError, RuntimeError):
                continue


def _leaves(value: object, name: str = "") -> Iterator[tuple[str, str]]:
    if isinstance(value, Mapping):
        for key, inner in value.items():
            if name or key not in _FACTS:
                yield from _leaves(inner, f"{name}.{key}" if name else str(key))
    elif isinstance(value, list):
        for inner in value:
            yield from _leaves(inner, name)
    elif isinstance(value, str):
        yield name, value


def _words(table: Mapping[str, object]) -> str:
    return ", ".join(f"{name} = {value!r}" for name, value in _leaves(table)) or "on this machine"


def _hash_of(path: Path) -> str:
    with path.open("rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()
