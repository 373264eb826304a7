"""Make .venv match requirements/<name>.txt, then run a command in it.

Standard library only: it runs before anything is installed.
"""

import fcntl
import hashlib
import os
import subprocess
import sys
import venv
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
VENV = ROOT / ".venv"
NEEDED = (3, 11)
VERSION = "src/embedl_device/_version.py"
CONSTRAINTS = "requirements/constraints.txt"


def fingerprint(name: str) -> str:
    """Hash everything that decides what must be installed."""
    digest = hashlib.sha256(sys.version.encode())
    sources = [*ROOT.glob("requirements/*.txt"), *ROOT.glob("dists/*/pyproject.toml"), ROOT / VERSION]
    for path in sorted(sources):
        digest.update(path.relative_to(ROOT).as_posix().encode() + b"\0" + path.read_bytes())
    digest.update(name.encode())
    return digest.hexdigest()


def constraints() -> list[str]:
    """Return pip's options for the tested versions; they were tested with one Python and hold for that one."""
    if sys.version_info[:2] != NEEDED:
        tested = ".".join(map(str, NEEDED))
        sys.stderr.write(
            f"Python {sys.version.split()[0]}: {CONSTRAINTS} was tested with {tested}; taking the newest in range.\n"
        )
        return []
    return ["--constraint", CONSTRAINTS]


def made_with() -> tuple[int, int] | None:
    """Return the Python that .venv was made with; packages of another one do not work in it."""
    folders = sorted(VENV.glob("lib/python3.*/site-packages"))
    return (3, int(folders[0].parent.name.partition(".")[2])) if folders else None


def prepare(name: str) -> None:
    """Create or update .venv unless its stamp already matches."""
    stamp = VENV / f"stamp-{name}"
    wanted = fingerprint(name)
    VENV.mkdir(exist_ok=True)
    with (VENV / "lock").open("w") as lock:
        # Two commands started at once must not install into one environment together.
        fcntl.flock(lock, fcntl.LOCK_EX)
        if stamp.exists() and stamp.read_text() == wanted:
            return
        sys.stderr.write(f"Setting up .venv from requirements/{name}.txt (once; some minutes, most of it torch) ...\n")
        other = made_with()
        if other not in (None, sys.version_info[:2]):
            found, this = (".".join(map(str, version)) for version in (other, sys.version_info[:2]))
            sys.exit(f".venv was made with Python {found}, this is {this}: remove the folder {VENV} and try again.")
        if not (VENV / "bin" / "python").exists():
            # Links, as `python -m venv` makes them: a copied program may not find its shared library.
            venv.create(VENV, symlinks=True, with_pip=True)
        pip = [str(VENV / "bin" / "python"), "-m", "pip", "install", "--quiet", "--disable-pip-version-check"]
        subprocess.run([*pip, *constraints(), "--requirement", f"requirements/{name}.txt"], cwd=ROOT, check=True)
        alone = f"requirements/{name}-nodeps.txt"
        if (ROOT / alone).exists():
            # Packages whose own pins would replace what the first file installed.
            subprocess.run([*pip, "--no-deps", "--requirement", alone], cwd=ROOT, check=True)
        stamp.write_text(wanted)


def main() -> None:
    """Run ``bootstrap.py <requirements name> <command> [argument ...]``."""
    if sys.version_info < NEEDED:
        sys.exit(f"Edgeproof needs Python {NEEDED[0]}.{NEEDED[1]} or newer, this is {sys.version.split()[0]}.")
    name, *command = sys.argv[1:]
    try:
        prepare(name)
    except subprocess.CalledProcessError as error:
        sys.exit(f"Installing requirements/{name}.txt failed (pip exit code {error.returncode}); see above.")
    environment = dict(os.environ, PATH=f"{VENV / 'bin'}{os.pathsep}{os.environ.get('PATH', '')}")
    environment["VIRTUAL_ENV"] = str(VENV)
    environment.pop("PYTHONHOME", None)
    os.execvpe(str(VENV / "bin" / command[0]), command, environment)


if __name__ == "__main__":
    main()
