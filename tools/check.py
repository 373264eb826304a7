"""Run every check of the project, the fast ones first, and say which failed.

``--all`` adds the tests marked slow; ``--only NAME`` runs one check; everything else goes to pytest.
"""

import subprocess
import sys
import time
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
CHECKS: dict[str, list[str]] = {
    "format": ["ruff", "format", "--check", "."],
    "lint": ["ruff", "check", "."],
    "types": ["mypy"],
    "imports": ["lint-imports", "--no-cache"],
    "tests": ["python", "-m", "pytest"],
}


def commands(arguments: list[str]) -> dict[str, list[str]]:
    """Translate the command line into the checks to run."""
    only = None
    rest = list(arguments)
    if "--only" in rest:
        at = rest.index("--only")
        only = rest[at + 1]
        del rest[at : at + 2]
    selected = {name: list(argv) for name, argv in CHECKS.items() if only in (None, name)}
    if not selected:
        sys.exit(f"--only {only}: no such check; known: {', '.join(CHECKS)}")
    if "tests" in selected:
        marker = [] if "--all" in rest else ["-m", "not slow"]
        selected["tests"] += [*marker, *(word for word in rest if word != "--all")]
    return selected


def main() -> None:
    """Run the checks in order and exit with 1 when any failed."""
    failed = []
    for name, argv in commands(sys.argv[1:]).items():
        started = time.perf_counter()
        code = subprocess.run(argv, cwd=ROOT, check=False).returncode
        sys.stderr.write(f"[{name}] {'ok' if code == 0 else 'FAILED'} in {time.perf_counter() - started:.1f} s\n")
        if code:
            failed.append(name)
    if failed:
        sys.exit(f"Failed: {', '.join(failed)}")


if __name__ == "__main__":
    main()
