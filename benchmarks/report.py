"""What every benchmark shares: the machine it ran on, one shape of result, and tables in print.

Standard library only: the workers of opponents import it in environments that lack the project.
"""

from __future__ import annotations

import argparse
import contextlib
import datetime as dt
import importlib.metadata
import json
import os
import platform
import re
import sqlite3
import subprocess
import sys
import time
from pathlib import Path
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from figures import Figure

FORMAT = 1
LONG_MS = 10_000
ROOT = Path(__file__).resolve().parents[1]
RESULTS = ROOT / "benchmarks" / "results"
BUSY = "busy machine"
OURS = ("edgeproof-hub", "edgeproof-deploy", "edgeproof-device")
PLACES = frozenset(("json", "folder", "fresh", "picture", "without_peers", "traces", "runtimes"))
"""Options that say where or with whom, not how much: a run that differs from the defaults in others is a quick one."""


def parser(doc: str | None) -> argparse.ArgumentParser:
    """Return the options that every benchmark has."""
    made = argparse.ArgumentParser(description=doc, formatter_class=argparse.RawDescriptionHelpFormatter)
    made.add_argument("--json", type=Path, help="write the result there, with every single number")
    return made


class Session:
    """One run of a benchmark, from the first look at the machine to the result file."""

    def __init__(
        self, name: str, options: argparse.ArgumentParser, arguments: argparse.Namespace, *, gpu: bool = False
    ) -> None:
        self._name = name
        self._path: Path | None = arguments.json
        self._is_quick = is_quick(options, arguments)
        self._started = time.monotonic()
        self._date = dt.datetime.now(dt.UTC).isoformat(timespec="seconds")
        self._machine = machine(gpu=gpu)
        if self._path is not None:
            self._refuse_to_overwrite(self._path)

    def _refuse_to_overwrite(self, path: Path) -> None:
        if not path.exists() or (kept := json.loads(path.read_text())).get("quick", False):
            return
        if self._is_quick:
            sys.exit(f"{path} holds a full result, and these options make a quick one: write it somewhere else.")
        if (family := family_of(kept)) != self._machine["family"]:
            sys.exit(f"{path} holds a result of {family}, and this is {self._machine['family']}: write it elsewhere.")

    def finish(
        self,
        data: Mapping[str, Any],
        figures: Sequence[Figure],
        *,
        packages: Sequence[str] = (),
        facts: Mapping[str, Any] | None = None,
        peers: Mapping[str, str] | None = None,
    ) -> None:
        """Say where this ran, and write the result if a file was named.

        Args:
            data: Every single number, as the benchmark keeps it.
            figures: What is quoted.
            packages: Distributions of this environment whose versions matter.
            facts: More versions: programs, databases.
            peers: For each opponent its version, or "missing: " and why.
        """
        here = {**self._machine, "load_after": round(os.getloadavg()[0], 2)}
        versions = {name: version_of(name) for name in (*OURS, *packages)}
        versions = {name: version for name, version in versions.items() if version} | dict(facts or {})
        print_figures(figures)
        print(f"machine: {', '.join(f'{key} {value}' for key, value in here.items())}")
        for peer, version in (peers or {}).items():
            print(f"opponent: {peer} {version}")
        if self._path is None:
            return
        commit, changed = commit_of(ROOT)
        result = {
            "format": FORMAT,
            "name": self._name,
            "quick": self._is_quick,
            "date": self._date,
            "seconds": round(time.monotonic() - self._started, 1),
            "command": " ".join(("python", *_told_argv())),
            "commit": commit,
            "uncommitted_changes": changed,
            "machine": here,
            "versions": versions,
            "peers": dict(peers or {}),
            "figures": [figure.as_dict() for figure in figures],
            "data": data,
        }
        self._path.parent.mkdir(parents=True, exist_ok=True)
        self._path.write_text(json.dumps(result, indent=1) + "\n")


def is_quick(options: argparse.ArgumentParser, arguments: argparse.Namespace) -> bool:
    """Tell whether less was asked for than the benchmark's own defaults."""
    asked = {key: value for key, value in vars(arguments).items() if key not in PLACES}
    return any(_plain(value) != _plain(options.get_default(key)) for key, value in asked.items())


def _plain(value: object) -> object:
    return list(value) if isinstance(value, tuple) else value


def _told_argv() -> list[str]:
    """Return the command line without this machine's folders."""
    words = list(sys.argv)
    for index, word in enumerate(words):
        path = Path(word)
        if path.is_absolute():
            words[index] = str(path.relative_to(ROOT)) if path.is_relative_to(ROOT) else path.name
    return words


def commit_of(folder: Path) -> tuple[str | None, bool | None]:
    """Return the commit of a checkout and whether files differ from it; nothing outside of one."""
    answers = []
    for words in (("rev-parse", "HEAD"), ("status", "--porcelain", "--untracked-files=no")):
        try:
            done = subprocess.run(
                ["git", "-C", str(folder), *words], capture_output=True, text=True, check=True, timeout=30
            )
        except (OSError, subprocess.SubprocessError):
            return None, None
        answers.append(done.stdout.strip())
    return answers[0], bool(answers[1])


def family_here(*, gpu: bool = False) -> str:
    """Return what results are kept by: the kernel family of this processor, or the name of this GPU."""
    if gpu:
        return _gpu_here()
    # Here, for the workers of opponents lack both.
    from embedl_device import board  # noqa: PLC0415
    from embedl_kernels import family_of as by_features  # noqa: PLC0415

    here = board.describe()
    family = by_features(here["architecture"], here["cpu_features"])
    return here["architecture"].lower() if family is None else family.name


def _gpu_here() -> str:
    try:
        done = subprocess.run(
            ["nvidia-smi", "--query-gpu=name", "--format=csv,noheader"],
            capture_output=True, text=True, check=True, timeout=60,
        )  # fmt: skip
    except (OSError, subprocess.SubprocessError):
        sys.exit("nvidia-smi names no GPU here.")
    return named(done.stdout.splitlines()[0])


def named(gpu: str) -> str:
    """Return a GPU's name as that of a folder."""
    return re.sub(r"[^a-z0-9]+", "-", gpu.lower()).strip("-")


def family_of(result: Mapping[str, Any]) -> str:
    """Return the family that a result was measured on."""
    return str(result["machine"]["family"])


def path_of(name: str, family: str, folder: Path = RESULTS) -> Path:
    """Return where a benchmark's result of a family is kept."""
    return folder / family / f"{name}.json"


def read_results(folder: Path = RESULTS) -> dict[str, dict[str, dict[str, Any]]]:
    """Return every result by its benchmark's name and its family."""
    kept: dict[str, dict[str, dict[str, Any]]] = {}
    for path in sorted(folder.glob("*/*.json")):
        kept.setdefault(path.stem, {})[path.parent.name] = json.loads(path.read_text())
    return kept


def load_of(machine: Mapping[str, Any]) -> str:
    """Return the load before a measurement in words: more than one process a core makes a busy machine.

    The only place that decides it. Empty where no load was taken.
    """
    load, cores = machine.get("load_before"), machine.get("cores")
    if load is None:
        return ""
    return f"load {load:g}" + (f": {BUSY}" if cores and load > cores else "")


def machine(*, gpu: bool = False) -> dict[str, Any]:
    """Return what a reader needs to judge a number."""
    cpuinfo = Path("/proc/cpuinfo")
    models = [line.partition(": ")[2] for line in cpuinfo.read_text().splitlines() if line.startswith("model name")]
    governor = "unknown"
    with contextlib.suppress(OSError):
        governor = Path("/sys/devices/system/cpu/cpu0/cpufreq/scaling_governor").read_text().strip()
    return {
        "family": family_here(gpu=gpu),
        "cpu": models[0] if models else platform.processor(),
        "cores": os.cpu_count(),
        "memory_gb": round(os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES") / 1e9, 1),
        "governor": governor,
        "system": platform.platform(),
        "python": platform.python_version(),
        "sqlite": sqlite3.sqlite_version,
        "load_before": round(os.getloadavg()[0], 2),
    }


def version_of(distribution: str) -> str | None:
    """Return an installed distribution's version."""
    try:
        return importlib.metadata.version(distribution)
    except importlib.metadata.PackageNotFoundError:
        return None


def print_figures(figures: Sequence[Figure]) -> None:
    """Print both sides of every figure, the ratio and its spread."""
    rows = []
    for figure in figures:
        theirs = "-" if figure.theirs is None else number(figure.theirs, figure.unit)
        ratio = "-" if figure.ratio is None else f"{figure.ratio:.3g}"
        ends = f"{figure.low:.3g} to {figure.high:.3g}"
        met = "-" if figure.met is None else "yes" if figure.met else "NO"
        opponent = f"{figure.opponent} (none: {figure.failed})" if figure.failed else figure.opponent
        rows.append(
            (
                figure.what,
                number(figure.ours, figure.unit),
                opponent or "-",
                theirs,
                ratio,
                ends,
                figure.limit or "-",
                met,
            )
        )
    print_table(("what", "ours", "opponent", "its figure", "ours/its", "spread", "required", "met"), rows)


def number(value: float, unit: str) -> str:
    """Return a number with three digits and its unit."""
    if unit == "ms" and value >= LONG_MS:
        value, unit = value / 1000, "s"
    text = f"{value:,.0f}" if abs(value) >= 100 or value == int(value) else f"{value:#.3g}".rstrip(".")
    return f"{text} {unit}".strip()


def print_table(titles: Sequence[str], rows: Sequence[Sequence[str]]) -> None:
    """Print rows as a Markdown table with aligned columns."""
    print(table(titles, rows))


def table(titles: Sequence[str], rows: Sequence[Sequence[str]]) -> str:
    """Return rows as a Markdown table with aligned columns."""
    widths = [max(len(row[index]) for row in (titles, *rows)) for index in range(len(titles))]

    def line(cells: Sequence[str]) -> str:
        return "| " + " | ".join(cell.ljust(width) for cell, width in zip(cells, widths, strict=True)) + " |"

    return "\n".join((line(titles), "|" + "|".join("-" * (width + 2) for width in widths) + "|", *map(line, rows)))
