"""Make .venv match requirements/<name>.txt, then run a command in it.

Standard library only: it runs before anything is installed.
"""

import fcntl
import hashlib
import os
import subprocess
import sys
import time
import venv
from collections import deque
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
VENV = ROOT / ".venv"
NEEDED = (3, 11)
VERSION = "src/embedl_device/_version.py"
CONSTRAINTS = "requirements/constraints.txt"
SIZES = "requirements/sizes.txt"
SHOWN_MB = 20


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


def size_of(name: str) -> str:
    """Say what will be downloaded; tools/sizes.py measured it for the pinned versions on x86-64."""
    for line in (ROOT / SIZES).read_text().splitlines():
        words = line.split()
        if words[:1] == [name]:
            packages, download, disk = words[1:]
            return (
                f"{packages} packages, about {download} MB to download where pip has none of them yet, {disk} MB on "
                "disk; most of it is torch and the runtimes."
            )
    return "some minutes, most of it torch."


class Progress:
    """Shows pip at work in a line: pip's own pages of output, warnings included, are kept in a file."""

    def __init__(self) -> None:
        self._started = time.monotonic()
        self._is_terminal = sys.stderr.isatty()
        self._count = 0

    def line(self, text: str) -> None:
        """Take a line of pip's."""
        word, _, rest = text.partition(" ")
        if word in ("Collecting", "Obtaining"):
            self._count += 1
            self._show(f"{self._count} packages found, now {rest.split()[0]}", lasting=False)
        elif word == "Downloading" and is_large(rest):
            self._show(f"downloading {rest}", lasting=True)
        elif text.startswith("Installing collected packages"):
            self._show(f"unpacking {text.count(',') + 1} packages", lasting=True)

    def end(self) -> None:
        """Leave the terminal's last line as it was."""
        if self._is_terminal:
            sys.stderr.write("\r\x1b[K")

    def _show(self, text: str, *, lasting: bool) -> None:
        text = f"{time.monotonic() - self._started:5.0f} s  {text}"
        if self._is_terminal:
            sys.stderr.write(f"\r\x1b[K{text[:100]}")
            sys.stderr.flush()
        elif lasting:
            sys.stderr.write(text + "\n")


def is_large(text: str) -> bool:
    """Tell whether what pip downloads, as in ``torch-2.13.0.whl (190.2 MB)``, is worth a line."""
    words = text.rstrip(")").rpartition("(")[2].split()
    try:
        return len(words) == 2 and (words[1] == "GB" or (words[1] == "MB" and float(words[0]) >= SHOWN_MB))
    except ValueError:
        return False


def install(argv: list[str], log: Path) -> None:
    """Run pip, show how far it is, keep what it says; its last lines are shown when it fails."""
    argv = [*argv, "--progress-bar", "off"]
    progress, last = Progress(), deque[str](maxlen=20)
    with (
        log.open("a", encoding="utf-8") as kept,
        subprocess.Popen(
            argv, cwd=ROOT, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True, errors="replace"
        ) as pip,
    ):
        assert pip.stdout is not None  # noqa: S101 - it was asked for
        for line in pip.stdout:
            kept.write(line)
            text = line.strip()
            progress.line(text)
            if text and not text.startswith(("WARNING", "[notice]")):
                last.append(text)
    progress.end()
    if pip.returncode:
        sys.stderr.write("\n".join([*last, f"All that pip said is in {log}.", ""]))
        raise subprocess.CalledProcessError(pip.returncode, argv)


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
        sys.stderr.write(f"Setting up .venv from requirements/{name}.txt, once: {size_of(name)}\n")
        other = made_with()
        if other not in (None, sys.version_info[:2]):
            found, this = (".".join(map(str, version)) for version in (other, sys.version_info[:2]))
            sys.exit(f".venv was made with Python {found}, this is {this}: remove the folder {VENV} and try again.")
        if not (VENV / "bin" / "python").exists():
            # Links, as `python -m venv` makes them: a copied program may not find its shared library.
            venv.create(VENV, symlinks=True, with_pip=True)
        pip = [str(VENV / "bin" / "python"), "-m", "pip", "install", "--disable-pip-version-check"]
        log = VENV / f"setup-{name}.log"
        log.unlink(missing_ok=True)
        install([*pip, *constraints(), "--requirement", f"requirements/{name}.txt"], log)
        alone = f"requirements/{name}-nodeps.txt"
        if (ROOT / alone).exists():
            # Packages whose own pins would replace what the first file installed.
            install([*pip, "--no-deps", "--requirement", alone], log)
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
