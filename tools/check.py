"""Run every check of the project, the fast ones first, and say which failed.

``--coverage`` measures the branches that the tests take, in every process that they start, and fails below the least
share; ``--all`` does so and adds the tests marked slow; ``--only NAME`` runs one check; everything else goes to pytest.
"""

import subprocess
import sys
import time
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
LEAST_COVERAGE = 90  # percent of the branches and statements of src
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
    coverage = "--coverage" in rest or "--all" in rest
    selected = {name: list(argv) for name, argv in CHECKS.items() if only in (None, name)}
    if not selected:
        sys.exit(f"--only {only}: no such check; known: {', '.join(CHECKS)}")
    if "tests" in selected:
        marker = [] if "--all" in rest else ["-m", "not slow"]
        if coverage:
            selected["tests"][1:2] = ["-m", "coverage", "run", "-m"]
        selected["tests"] += [*marker, *(word for word in rest if word not in ("--all", "--coverage"))]
    return selected


def report_coverage() -> int:
    """Print the share of branches taken, per package and of all, and return 1 when it is too small."""
    coverage = ["python", "-m", "coverage"]
    subprocess.run([*coverage, "combine", "--quiet"], cwd=ROOT, check=True)
    for package in sorted((ROOT / "src").glob("embedl_*")):
        argv = [*coverage, "report", "--format=total", "--precision=1", f"--include=src/{package.name}/*"]
        share = subprocess.run(argv, cwd=ROOT, capture_output=True, text=True, check=False)
        sys.stderr.write(f"[coverage] {package.name}: {share.stdout.strip() or '0'} %\n")
    argv = [*coverage, "report", "--format=total", "--precision=1", f"--fail-under={LEAST_COVERAGE}"]
    total = subprocess.run(argv, cwd=ROOT, capture_output=True, text=True, check=False)
    sys.stderr.write(f"[coverage] src: {total.stdout.strip()} % of branches and statements, least {LEAST_COVERAGE}\n")
    return total.returncode


def main() -> None:
    """Run the checks in order and exit with 1 when any failed."""
    failed = []
    for name, argv in commands(sys.argv[1:]).items():
        started = time.perf_counter()
        code = subprocess.run(argv, cwd=ROOT, check=False).returncode
        sys.stderr.write(f"[{name}] {'ok' if code == 0 else 'FAILED'} in {time.perf_counter() - started:.1f} s\n")
        if code:
            failed.append(name)
        if "coverage" in argv and report_coverage():
            failed.append("coverage")
    if failed:
        sys.exit(f"Failed: {', '.join(failed)}")


if __name__ == "__main__":
    main()
