"""Write requirements/sizes.txt: what ./run and ./test download and fill, for the pinned versions.

    .venv/bin/python tools/sizes.py

Every wheel is fetched once more, past pip's cache, into a folder that is removed; the size on disk is that of the
tested environment. Run it after tools/constraints.py.
"""

from __future__ import annotations

import importlib.metadata
import subprocess
import sys
import tempfile
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parent))

from closure import ROOT, Installed, closure, requirements_in

TARGET = ROOT / "requirements/sizes.txt"
HEAD = "# Written by tools/sizes.py. Set, packages, MB to download, MB on disk; for x86-64.\n"
FETCH_S = 1800


def packages(name: str) -> dict[str, Installed]:
    """Return what a set installs, ours left out."""
    wanted = list(requirements_in(ROOT / f"requirements/{name}.txt"))
    alone = ROOT / f"requirements/{name}-nodeps.txt"
    found = closure(wanted)
    for line in requirements_in(alone) if alone.exists() else ():
        found.update({key: one for key, one in closure([line]).items() if key == line.partition("==")[0]})
    return found


def downloaded(found: dict[str, Installed]) -> int:
    """Return how many bytes pip fetches for these versions."""
    with tempfile.TemporaryDirectory() as folder:
        pins = [f"{one.name}=={one.public_version}" for one in found.values()]
        pip = [sys.executable, "-m", "pip", "download", "--quiet", "--no-deps", "--no-cache-dir", "--dest", folder]
        subprocess.run([*pip, *pins], check=True, timeout=FETCH_S)
        return sum(path.stat().st_size for path in Path(folder).iterdir())


def unpacked(found: dict[str, Installed]) -> int:
    """Return how many bytes the packages have here."""
    return sum(
        path.stat().st_size
        for name in found
        for file in importlib.metadata.files(name) or ()
        if (path := Path(str(file.locate()))).is_file()
    )


def main() -> None:
    """Measure both sets."""
    lines = []
    for name in ("run", "test"):
        found = packages(name)
        lines.append(f"{name} {len(found)} {downloaded(found) / 1e6:.0f} {unpacked(found) / 1e6:.0f}")
        print(lines[-1])
    TARGET.write_text(HEAD + "\n".join(lines) + "\n")


if __name__ == "__main__":
    main()
