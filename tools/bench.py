"""Measure again what the tables quote, and say how it stands to the last committed results.

    ./bench --list                    # what there is, with whom, how long
    ./bench [NAME ...]                # measure in full, write benchmarks/results/NAME.json, compare
    ./bench --quick [NAME ...]        # shorter and coarser; kept in the cache, never among the full results
    ./bench --compare [NAME ...]      # compare what lies here with what is committed, without measuring
    ./bench --tables                  # write the tables in README, docs and benchmarks from the results

Opponents are installed in environments of their own on first use, in edgeproof-bench in the user's cache or where
EDGEPROOF_BENCH points. One that cannot be installed is named with the reason, and its column says so.
"""

from __future__ import annotations

import argparse
import json
import subprocess
import sys
import time
import tomllib
from dataclasses import dataclass
from pathlib import Path
from typing import Any

ROOT = Path(__file__).resolve().parents[1]
sys.path.insert(0, str(ROOT / "benchmarks"))

import cache  # noqa: E402
import environments  # noqa: E402
import tables  # noqa: E402
from comparing import compared  # noqa: E402
from report import RESULTS, print_table  # noqa: E402 - found by the line above

LONGER = 4
"""A benchmark that takes so many times its estimate, and half an hour more, is ended."""


@dataclass(frozen=True)
class Bench:
    """A benchmark as benchmarks/benchmarks.toml describes it."""

    name: str
    script: str
    quick: str
    minutes: float
    quick_minutes: float
    opponents: tuple[str, ...] = ()
    gpu: bool = False

    @property
    def question(self) -> str:
        """Return the first line of the script: the question it answers."""
        return (ROOT / "benchmarks" / self.script).read_text().splitlines()[0].strip('"')

    def result(self, *, quick: bool) -> Path:
        """Return where its result is written: quick ones never lie among the full ones."""
        return (cache.folder("quick") if quick else RESULTS) / f"{self.name}.json"

    def estimate(self, *, quick: bool) -> float:
        """Return about how many minutes it takes."""
        return self.quick_minutes if quick else self.minutes


def quoted_list() -> dict[str, Bench]:
    """Read the list of benchmarks."""
    listed = tomllib.loads((ROOT / "benchmarks" / "benchmarks.toml").read_text())
    return {
        name: Bench(name, **{**facts, "opponents": tuple(facts.get("opponents", ()))}) for name, facts in listed.items()
    }


def chosen(names: list[str], *, gpu: bool) -> list[Bench]:
    """Return the benchmarks asked for; all of this machine's when none is named."""
    every = quoted_list()
    if wrong := [name for name in names if name not in every]:
        sys.exit(f"No such benchmark: {', '.join(wrong)}. There are: {', '.join(every)}.")
    if names:
        return [every[name] for name in names]
    return [bench for bench in every.values() if gpu or not bench.gpu]


def install(benches: list[Bench]) -> None:
    """Make the opponents' environments, and say which are missing and why."""
    for name in dict.fromkeys(opponent for bench in benches for opponent in bench.opponents):
        python, version = environments.find(environments.ALL[name])
        say(f"{name} {version}" if python else f"{name}: {version}; its columns will say so")


def measure(bench: Bench, *, quick: bool) -> str:
    """Run one benchmark; return what went wrong, or nothing."""
    argv = [sys.executable, "-W", "ignore", f"benchmarks/{bench.script}", *(bench.quick.split() if quick else ())]
    seconds = 60 * (LONGER * bench.estimate(quick=quick) + 30)
    try:
        done = subprocess.run([*argv, "--json", str(bench.result(quick=quick))], cwd=ROOT, check=False, timeout=seconds)
    except subprocess.TimeoutExpired:
        return f"no end within {seconds / 60:.0f} min"
    return f"exit code {done.returncode}" if done.returncode else ""


def measure_all(benches: list[Bench], *, quick: bool) -> dict[str, str]:
    """Run the benchmarks in order, with the time that is left; return what failed."""
    failed = {}
    total, begun = sum(bench.estimate(quick=quick) for bench in benches), time.monotonic()
    for number, bench in enumerate(benches, 1):
        left = sum(each.estimate(quick=quick) for each in benches[number - 1 :])
        say(f"[{number}/{len(benches)}] {bench.name}: {bench.question} (about {left:.0f} of {total:.0f} min left)")
        started = time.monotonic()
        if reason := measure(bench, quick=quick):
            failed[bench.name] = reason
        took = (time.monotonic() - started) / 60
        say(f"[{number}/{len(benches)}] {bench.name}: {reason or 'done'} after {took:.1f} min")
    say(f"{len(benches)} benchmarks in {(time.monotonic() - begun) / 60:.1f} min")
    return failed


def committed(name: str) -> dict[str, Any] | None:
    """Return the result as it is committed, or nothing: a new one, or no checkout."""
    done = subprocess.run(
        ["git", "show", f"HEAD:benchmarks/results/{name}.json"],
        cwd=ROOT, capture_output=True, text=True, check=False, timeout=60,
    )  # fmt: skip
    result: dict[str, Any] = json.loads(done.stdout) if done.returncode == 0 else {}
    return result if "figures" in result else None


def compare(benches: list[Bench], *, quick: bool) -> int:
    """Print old and new of every figure, and return how many fell outside what was stated."""
    outside = 0
    for bench in benches:
        path, old = bench.result(quick=quick), committed(bench.name)
        if not path.exists() or old is None:
            say(
                f"{bench.name}: nothing to compare: {'not committed' if path.exists() else f'{path.name} is not there'}"
            )
            continue
        new = json.loads(path.read_text())
        if new == old:
            say(f"{bench.name}: as committed, measured {old['date']}")
            continue
        rows = compared(old, new)
        if new["quick"]:
            rows = [row for row in rows if row.old is not None and row.new is not None]
        outside += sum(row.verdict.startswith("outside") for row in rows)
        mark = " (QUICK: coarser, and only what both have)" if new["quick"] else ""
        print(f"\n{bench.name}{mark}: {_when(old)} -> {_when(new)}")
        print_table(("figure", "old", "new", "stated", "how", "verdict"), [row.cells() for row in rows])
    print(f"\n{outside} figures outside their stated uncertainty")
    return outside


def _when(result: dict[str, Any]) -> str:
    load = result["machine"].get("load_before", "unknown")
    return f"{result['date']} at {str(result['commit'])[:8]}, load {load}"


def show_list() -> None:
    """Print what there is."""
    rows = []
    for bench in quoted_list().values():
        path = bench.result(quick=False)
        last = json.loads(path.read_text())["date"][:10] if path.exists() else "never"
        who = ", ".join(bench.opponents) or "-"
        times = f"{bench.minutes:g} min, quick {bench.quick_minutes:g}"
        rows.append((bench.name, bench.question, who, times + (", GPU" if bench.gpu else ""), last))
    print_table(("name", "question", "installs", "takes about", "last"), rows)


def say(line: str) -> None:
    """Tell the user, between the benchmarks' own output."""
    print(line, file=sys.stderr, flush=True)


def main() -> None:
    """Do what is asked."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("names", nargs="*", metavar="NAME", help="benchmarks; all but the GPU's unless told")
    parser.add_argument("--list", action="store_true", help="show the benchmarks")
    parser.add_argument("--quick", action="store_true", help="shorter and coarser, not among the full results")
    parser.add_argument("--gpu", action="store_true", help="also what needs a GPU")
    parser.add_argument("--compare", action="store_true", help="compare without measuring")
    parser.add_argument("--tables", action="store_true", help="write the tables from the results")
    options = parser.parse_args()
    if options.list:
        show_list()
        return
    if options.tables:
        for page in tables.write(ROOT):
            say(f"wrote the figures of {page.relative_to(ROOT)}")
        return
    benches = chosen(options.names, gpu=options.gpu)
    failed: dict[str, str] = {}
    if not options.compare:
        install(benches)
        failed = measure_all(benches, quick=options.quick)
    compare([bench for bench in benches if bench.name not in failed], quick=options.quick)
    if failed:
        sys.exit("Failed: " + "; ".join(f"{name} ({reason})" for name, reason in failed.items()))


if __name__ == "__main__":
    main()
