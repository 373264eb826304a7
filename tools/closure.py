"""What a list of requirements really brings, as it is installed here: distributions, versions, who needs whom."""

from __future__ import annotations

import importlib.metadata
import re
import sys
import tomllib
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

from packaging.requirements import Requirement
from packaging.utils import canonicalize_name

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator

ROOT = Path(__file__).resolve().parents[1]
# Installed here without what they ask for: of that, what is not here is left out.
ALONE = ROOT / "requirements" / "test-nodeps.txt"


@dataclass(frozen=True)
class Installed:
    """A distribution in this environment: its metadata, and the names of those it needs directly."""

    name: str
    version: str
    metadata: importlib.metadata.PackageMetadata
    needs: frozenset[str]

    @property
    def public_version(self) -> str:
        """Return the version without the local part: an index knows no ``+cpu``."""
        return self.version.partition("+")[0]


def ours() -> dict[str, Path]:
    """Return our distributions and their folders."""
    return {path.parent.name: path.parent for path in sorted(ROOT.glob("dists/*/pyproject.toml"))}


def requirements_in(path: Path) -> Iterator[str]:
    """Yield the requirements of a file and of those it names; our own editable ones by their names and extras."""
    for line in path.read_text().splitlines():
        words = line.partition(" #")[0].strip()
        if words.startswith("-r "):
            yield from requirements_in(path.parent / words[3:])
        elif words.startswith("-e "):
            yield Path(words[3:]).name
        elif words and not words.startswith("#"):
            yield words


def dependencies_of(folder: Path, extras: Iterable[str] = ()) -> list[str]:
    """Return what a distribution of ours asks for, by its pyproject.toml."""
    project = tomllib.loads((folder / "pyproject.toml").read_text())["project"]
    optional = project.get("optional-dependencies", {})
    return [*project.get("dependencies", ()), *(each for extra in extras for each in optional[extra])]


def closure(wanted: Iterable[str]) -> dict[str, Installed]:
    """Return every distribution that requirements bring, ours left out; a missing one ends the program by name."""
    found: dict[str, Installed] = {}
    extras: dict[str, set[str]] = {}
    waiting = [(Requirement(line), "") for line in wanted]
    own = ours()
    while waiting:
        requirement, extra = waiting.pop()
        if requirement.marker and not requirement.marker.evaluate({"extra": extra}):
            continue
        name = canonicalize_name(requirement.name)
        new = {"", *requirement.extras} - extras.setdefault(name, set())
        extras[name] |= new
        for each in new:
            waiting += [(Requirement(line), each) for line in _needs(name, each, own)]
        if new and name not in own:
            found[name] = _installed(name, extras[name])
    return found


def _needs(name: str, extra: str, own: dict[str, Path]) -> list[str]:
    if name in own:
        every = dependencies_of(own[name], [extra] if extra else [])
        return every if not extra else [line for line in every if line not in dependencies_of(own[name])]
    lines = importlib.metadata.requires(name) if _is_here(name) else sys.exit(_missing(name))
    asked = [line for line in lines or () if (extra == "") == ("extra" not in _marker(line))]
    alone = {canonicalize_name(Requirement(line).name) for line in requirements_in(ALONE)}
    return [line for line in asked if _is_here(Requirement(line).name)] if name in alone else asked


def _marker(line: str) -> str:
    return line.partition(";")[2]


def _is_here(name: str) -> bool:
    try:
        importlib.metadata.version(name)
    except importlib.metadata.PackageNotFoundError:
        return False
    return True


def _missing(name: str) -> str:
    return f"{name} is required and not installed here: ./test --only format sets the environment up."


def _installed(name: str, extras: set[str]) -> Installed:
    needs = set()
    for line in importlib.metadata.requires(name) or ():
        requirement = Requirement(line)
        if any(requirement.marker is None or requirement.marker.evaluate({"extra": extra}) for extra in extras):
            needs.add(canonicalize_name(requirement.name))
    metadata = importlib.metadata.metadata(name)
    return Installed(re.sub(r"[-_.]+", "-", metadata["Name"]), metadata["Version"], metadata, frozenset(needs))
