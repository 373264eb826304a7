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
import re
import stat
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path

import platformdirs

from embedl_device.readers import UnreadableError, read_json, read_plain
from embedl_hub.errors import ConfigError, UntrustedError
from embedl_hub.paths import write_private
from embedl_hub.toml import parse_toml

__all__ = [
    "DEVICES_FILE",
    "PROJECT_FOLDER",
    "Acting",
    "acting_parts",
    "check_devices",
    "check_place",
    "forget",
    "is_trusted",
    "trust",
    "trusted_homes",
]

PROJECT_FOLDER = ".embedl"
DEVICES_FILE = "devices.toml"
_LARGEST_BYTES = 4 << 20
_LARGEST_TEXT_BYTES = 64 << 10
_LONGEST_WORD = 500
_MOST_FILES = 200
# What says what a device is, not what is done: nobody is asked to judge it.
_FACTS = ("type", "spec", "store_cap_bytes")


@dataclass(frozen=True)
class Acting:
    """What of a home acts on this machine or on others when it is used."""

    home: Path
    lines: Mapping[str, str]  # for people: a line for each device, each link and each file of the project
    digests: Mapping[str, str]  # of each of them

    def changes(self, trusted: Mapping[str, str]) -> list[str]:
        """Return the lines of what is not as it was trusted."""
        words = {True: "changed", False: "new"}
        found = [
            f"{line} ({words[part in trusted]})"
            for part, line in self.lines.items()
            if trusted.get(part) != self.digests[part]
        ]
        return found + [f"{part} is gone" for part in trusted if part not in self.lines]


def acting_parts(home: Path) -> Acting:
    """Return what of a home acts; nothing is run or changed."""
    lines, digests = {}, {}
    for name, target in sorted(_links(home).items()):
        lines[f"link {name}"], digests[f"link {name}"] = f"{name} is a link to {target!r}", _digest(target)
    text = _read(home / DEVICES_FILE)
    tables = _tables(text)
    for name, table in sorted(tables.items()):
        # What it means, not how it is written.
        meaning = json.dumps(table, sort_keys=True, default=str)
        lines[f"device {name}"], digests[f"device {name}"] = f"device {name!r}: {_words(table)}", _digest(meaning)
    if text is not None and not tables:
        lines[DEVICES_FILE], digests[DEVICES_FILE] = f"{DEVICES_FILE} without devices", _digest(str(text))
    for path in sorted(_named_files(home, tables)):
        lines[f"file {path}"] = f"{path}, a file of the project that these name"
        digests[f"file {path}"] = _hash_of(path)
    return Acting(home, lines, digests)


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
    if known == found.digests:
        return
    since, shown = f"is not trusted: it {reason}", list(found.lines.values())
    if known is not None:
        since, shown = "has changed since you trusted it", found.changes(known)
    lines = "".join(f"\n  {line}" for line in shown)
    raise UntrustedError(
        f"{home} was found in this folder or above it and {since}.{lines}\nIf this is yours, or you know who wrote it: "
        f"embedl-hub trust {home}. If not, work on this machine (--here) or name another home (--home FOLDER, "
        "EMBEDL_HUB_HOME)."
    )


def is_trusted(home: Path) -> bool:
    """Whether this user has trusted a home as it is now, or nothing in it acts."""
    found = acting_parts(home)
    return not found.lines or trusted_homes().get(_name_of(home)) == found.digests


def trust(home: Path) -> Acting:
    """Remember what acts in a home as trusted by this user."""
    found = acting_parts(home)
    _write({**trusted_homes(), _name_of(home): found.digests})
    return found


def forget(home: Path) -> bool:
    """Trust a home no longer; tell whether it was trusted."""
    kept = trusted_homes()
    if kept.pop(_name_of(home), None) is None:
        return False
    _write(kept)
    return True


def trusted_homes() -> dict[str, Mapping[str, str]]:
    """Return the hashes of what is trusted, by home and part."""
    path = _file()
    try:
        kept = read_json(path)
    except FileNotFoundError:
        return {}
    except (OSError, UnreadableError) as error:
        raise ConfigError(f"{path} cannot be read ({error}); remove it and trust your folders anew.") from error
    if not isinstance(kept, dict) or not all(isinstance(value, dict) for value in kept.values()):
        raise ConfigError(f"{path} is not a list of folders; remove it and trust your folders anew.")
    return kept


def _file() -> Path:
    return Path(platformdirs.user_config_dir("edgeproof")) / "trusted.json"


def _write(homes: Mapping[str, Mapping[str, str]]) -> None:
    path = _file()
    try:
        write_private(path, json.dumps(homes, indent=1, sort_keys=True, default=dict).encode())
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


def _named_files(home: Path, tables: Mapping[str, object]) -> set[Path]:
    """Return the files in the project's folder that devices name, and those that these name in turn.

    Whoever changes the folder changes those as well: an ssh configuration, what it includes, a program it runs.
    """
    project = home.parent.resolve()
    found: set[Path] = set()
    words = [value for _, value in _leaves(tables)]
    while words and len(found) < _MOST_FILES:
        for path in _files_of(words.pop(), project, home):
            if path not in found:
                found.add(path)
                words += _words_in(path)
    return found


def _files_of(word: str, project: Path, home: Path) -> Iterator[Path]:
    """Yield the files of the project that a word may mean, from wherever it is read."""
    for base in (Path.cwd(), project, home):
        try:
            path = base / Path(word).expanduser()
            # An Include of ssh may be a pattern.
            paths = sorted(path.parent.glob(path.name)) if "*" in path.name or "?" in path.name else [path]
            yield from (each for each in (one.resolve() for one in paths) if each.is_file() and project in each.parents)
        except (OSError, ValueError, RuntimeError, NotImplementedError):
            continue


def _words_in(path: Path) -> list[str]:
    """Return the words of a small text that could be paths."""
    try:
        text = read_plain(path, _LARGEST_TEXT_BYTES).decode("utf-8")
    except (OSError, ValueError):
        return []
    return [word for word in re.split(r"[\s=\"',;|&<>()]+", text) if 0 < len(word) < _LONGEST_WORD and "/" in word]


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


def _digest(text: str) -> str:
    return hashlib.sha256(text.encode("utf-8", "surrogatepass")).hexdigest()


def _hash_of(path: Path) -> str:
    with path.open("rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()
