"""Build a release: for every distribution a source archive, a wheel made from it, and a bill of materials.

    .venv/bin/python tools/release.py [--out dist] [NAME ...]

Each distribution is first copied into a folder of its own with its packages, license and README, so that the archive is
whole without this repository. The bill of materials is CycloneDX JSON, checked against its schema: everything that the
distribution and its extras brought in the tested environment, with versions and licenses, and every file that it
installs by itself, with its hash. SHA256SUMS names all files.
Nothing is downloaded and nothing is uploaded.
"""

from __future__ import annotations

import argparse
import gzip
import hashlib
import io
import re
import shutil
import subprocess
import sys
import tempfile
import tomllib
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parent))

from closure import ROOT, ours
from sbom import bill_of_materials

# Not tarfile's own extractall: Python 3.11.3 and older have no filter for it.
from embedl_hub.core.device._tree import unpack

BUILD_S = 300
HOOK = "import setuptools.build_meta as backend, sys; print(getattr(backend, sys.argv[1])(sys.argv[2]))"


def stage(dist: Path, target: Path) -> Path:
    """Copy a distribution with all that belongs to it, so that it stands alone."""
    target.mkdir(parents=True)
    text = (dist / "pyproject.toml").read_text()
    for name in ("README.md", "LICENSE"):
        shutil.copyfile(dist / name, target / name)
    (target / "pyproject.toml").write_text(text.replace("../../src", "src"))
    for package in packages(dist):
        source = ROOT / "src" / package.replace(".", "/")
        copy = target / "src" / package.replace(".", "/")
        copy.mkdir(parents=True, exist_ok=True)
        for path in source.iterdir():
            if path.is_file() and path.suffix != ".pyc":
                shutil.copyfile(path, copy / path.name)
            elif path.is_dir() and not any(path.glob("*.py")) and path.name != "__pycache__":
                shutil.copytree(path, copy / path.name)
    # setuptools reads the version of a backend from the package it extends.
    version = target / "src" / version_file(text)
    version.parent.mkdir(parents=True, exist_ok=True)
    shutil.copyfile(ROOT / "src" / version_file(text), version)
    (target / "MANIFEST.in").write_text("graft src\nglobal-exclude *.pyc\n")
    return target


def packages(dist: Path) -> list[str]:
    """Return the packages of a distribution, as its pyproject.toml selects them."""
    from setuptools import find_packages  # noqa: PLC0415 - slow to import

    find = tomllib.loads((dist / "pyproject.toml").read_text())["tool"]["setuptools"]["packages"]["find"]
    return sorted(find_packages(str(ROOT / "src"), exclude=find.get("exclude", ()), include=find["include"]))


def version_file(pyproject: str) -> str:
    """Return the file that a distribution reads its version from, below src."""
    attribute: str = tomllib.loads(pyproject)["tool"]["setuptools"]["dynamic"]["version"]["attr"]
    return attribute.rpartition(".")[0].replace(".", "/") + ".py"


def hook(name: str, folder: Path, out: Path) -> Path:
    """Call setuptools' build hook in a folder and return what it made."""
    done = subprocess.run(
        [sys.executable, "-W", "ignore", "-c", HOOK, name, str(out)],
        cwd=folder, capture_output=True, text=True, check=False, timeout=BUILD_S,
    )  # fmt: skip
    if done.returncode:
        sys.exit(f"{name} of {folder.name} failed:\n{done.stderr[-2000:]}")
    return out / done.stdout.splitlines()[-1]


def build(name: str, out: Path) -> list[Path]:
    """Build one distribution: the archive, the wheel from what the archive holds, the bill of materials."""
    dist = ours()[name]
    with tempfile.TemporaryDirectory(prefix="edgeproof-release-") as folder:
        archive = hook("build_sdist", stage(dist, Path(folder) / name), out)
        with io.BufferedReader(gzip.open(archive)) as packed:
            unpack(packed, Path(folder))
        wheel = hook("build_wheel", Path(folder) / archive.name.removesuffix(".tar.gz"), out)
    bill = out / f"{wheel.name.partition('-py3')[0]}.cdx.json"
    bill.write_text(bill_of_materials(name, wheel))
    return [archive, wheel, bill]


def version() -> str:
    """Return the version that every distribution has."""
    found = re.search(r'__version__ = "([^"]+)"', (ROOT / "src/embedl_device/_version.py").read_text())
    assert found is not None  # noqa: S101 - our own file
    return found[1]


def main() -> None:
    """Build everything."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("names", nargs="*", metavar="NAME", help="distributions; all unless told")
    parser.add_argument("--out", type=Path, default=ROOT / "dist", help="where the files go (default: dist)")
    options = parser.parse_args()
    if wrong := [name for name in options.names if name not in ours()]:
        sys.exit(f"No such distribution: {', '.join(wrong)}. There are: {', '.join(ours())}.")
    out: Path = options.out.resolve()
    out.mkdir(parents=True, exist_ok=True)
    made = []
    for name in options.names or ours():
        made += build(name, out)
        print(f"{name} {version()}: {', '.join(path.name for path in made[-3:])}", flush=True)
    sums = "".join(f"{hashlib.sha256(path.read_bytes()).hexdigest()}  {path.name}\n" for path in sorted(made))
    (out / "SHA256SUMS").write_text(sums)
    if not re.search(rf"^## {re.escape(version())} - ", (ROOT / "CHANGELOG.md").read_text(), re.MULTILINE):
        print(f"CHANGELOG.md has no section for {version()}: this is a trial, not a release.")


if __name__ == "__main__":
    main()
