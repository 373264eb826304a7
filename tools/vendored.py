"""Bring the files of others that are in this tree, in another version: requirements/vendored.toml says which they are.

    .venv/bin/python tools/vendored.py            # check them
    .venv/bin/python tools/vendored.py dagre 3.1.3  # bring a version with npm, and write its hashes down

Needs npm for the second. A new version comes with its license; look at that, and at the page, before it is kept.
"""

from __future__ import annotations

import hashlib
import subprocess
import sys
import tarfile
import tempfile
import tomllib
from dataclasses import dataclass
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
TABLE = ROOT / "requirements" / "vendored.toml"
_LIMIT_S = 120
_LARGEST_BYTES = 4 << 20


@dataclass(frozen=True)
class VendoredFile:
    """A file of a package, where it is here, and what it holds."""

    source: str
    path: str
    sha256: str

    @property
    def found(self) -> str:
        """The hash of the file that is here."""
        return hashlib.sha256((ROOT / self.path).read_bytes()).hexdigest()


@dataclass(frozen=True)
class Vendored:
    """A package of others, of which files are in this tree."""

    name: str
    package: str
    version: str
    license: str
    archive_sha256: str
    files: tuple[VendoredFile, ...]


def vendored() -> tuple[Vendored, ...]:
    """Return what is in the tree."""
    table = tomllib.loads(TABLE.read_text())
    return tuple(
        Vendored(
            name, entry["package"], entry["version"], entry["license"], entry["archive_sha256"],
            tuple(VendoredFile(file["from"], file["to"], file["sha256"]) for file in entry["files"]),
        )
        for name, entry in table.items()
    )  # fmt: skip


def bring(one: Vendored, version: str) -> Vendored:
    """Put the files of a version in place and return what they are."""
    with tempfile.TemporaryDirectory(prefix="edgeproof-vendored-") as folder:
        argv = ["npm", "pack", "--silent", f"{one.package}@{version}"]
        subprocess.run(argv, cwd=folder, check=True, timeout=_LIMIT_S, stdout=subprocess.DEVNULL)
        (archive,) = Path(folder).glob("*.tgz")
        digest = hashlib.sha256(archive.read_bytes()).hexdigest()
        files = []
        with tarfile.open(archive) as packed:
            for file in one.files:
                member = packed.extractfile(file.source)
                if member is None:
                    sys.exit(f"{one.package} {version} has no file {file.source}.")
                content = member.read(_LARGEST_BYTES)
                (ROOT / file.path).write_bytes(content)
                files.append(VendoredFile(file.source, file.path, hashlib.sha256(content).hexdigest()))
    return Vendored(one.name, one.package, version, one.license, digest, tuple(files))


def as_toml(all_of_them: tuple[Vendored, ...]) -> str:
    """Return the table as text."""
    lines = [TABLE.read_text().splitlines()[0]]
    for one in all_of_them:
        lines += ["", f"[{one.name}]", f'package = "{one.package}"', f'version = "{one.version}"',
                  f'license = "{one.license}"', f'archive_sha256 = "{one.archive_sha256}"', "files = ["]  # fmt: skip
        lines += [
            f'    {{ from = "{file.source}", to = "{file.path}", sha256 = "{file.sha256}" }},' for file in one.files
        ]
        lines.append("]")
    return "\n".join(lines) + "\n"


def main() -> None:
    """Check the files, or bring a version."""
    known = {one.name: one for one in vendored()}
    if len(sys.argv) == 3:
        name, version = sys.argv[1:]
        if name not in known:
            sys.exit(f"There is no {name!r}; there are: {', '.join(known)}.")
        known[name] = bring(known[name], version)
        TABLE.write_text(as_toml(tuple(known.values())))
    for one in known.values():
        for file in one.files:
            if file.found != file.sha256:
                sys.exit(f"{file.path} is not as it came with {one.package} {one.version}.")
        print(f"{one.package} {one.version} ({one.license}): {len(one.files)} files")


if __name__ == "__main__":
    main()
