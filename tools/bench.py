"""Measure again what the tables quote, and say how it stands to the last committed results.

    ./bench --list [NAME ...]         # what there is, with whom, how long, and the last date of every family
    ./bench [NAME ...]                # measure in full, write benchmarks/results/FAMILY/NAME.json, compare
    ./bench --missing                 # only what has no full result of this processor's family
    ./bench --since WHEN              # the same, and what was measured before a commit or a date
    ./bench --quick [NAME ...]        # shorter and coarser; kept in the cache, never among the full results
    ./bench --compare [NAME ...]      # compare what lies here with what is committed, without measuring
    ./bench --tables                  # write the tables in README, docs and benchmarks from the results

Results are kept by kernel family (`x86-vnni`, `x86-avx2`: embedl_kernels), those of a GPU by its name: a run on one
leaves the others' alone, and is compared with its own.

Opponents are installed in environments of their own on first use, in edgeproof-bench in the user's cache or where
EDGEPROOF_BENCH points. One that cannot be installed is named with the reason, and its column says so.
"""

from __future__ import annotations

import argparse
import datetime as dt
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
from report import RESULTS, family_here, family_of, load_of, path_of, print_table, read_results  # noqa: E402

LONGER = 4
"""A benchmark that takes so many times its estimate, and half an hour more, is ended."""


@dataclass(frozen=True)
class Bench:
    """A benchmark as benchmarks/benchmarks.toml describes it."""

    name: str
    script: str
    quick: str
    quick_minutes: float
    minutes: float
    opponents: tuple[str, ...] = ()
    gpu: bool = False

    @property
    def question(self) -> str:
        """Return the first line of the script: the question it answers."""
        return (ROOT / "benchmarks" / self.script).read_text().splitlines()[0].strip('"')

    def result(self, *, quick: bool) -> Path:
        """Return where its result of this machine is written: quick ones never lie among the full ones."""
        return path_of(self.name, family_here(gpu=self.gpu), kept(quick=quick))

    def estimate(self, *, quick: bool) -> float:
        """Return about how many minutes it takes."""
        return self.quick_minutes if quick else self.minutes


def kept(*, quick: bool) -> Path:
    """Return the folder of full results, or of quick ones."""
    return cache.folder("quick") if quick else RESULTS


def quoted_list() -> dict[str, Bench]:
    """Read the list of benchmarks."""
    listed = tomllib.loads((ROOT / "benchmarks" / "benchmarks.toml").read_text())
    results = read_results()
    made = {}
    for name, facts in listed.items():
        took = [minutes for result in results.get(name, {}).values() if (minutes := minutes_of(result)) is not None]
        told = {"minutes": max(took)} if took else {}
        made[name] = Bench(name, **{**facts, **told, "opponents": tuple(facts.get("opponents", ()))})
    return made


def minutes_of(result: dict[str, Any]) -> float | None:
    """Return how long a result took; nothing when it was not made in one go by the benchmark's own defaults.

    Options stand for parts that were chosen, or kept from an earlier run.
    """
    words = str(result["command"]).split()
    if result["seconds"] is None or words[2:-1] != ["--json"]:
        return None
    return round(float(result["seconds"]) / 60, 1)


def chosen(names: list[str], *, gpu: bool) -> list[Bench]:
    """Return the benchmarks asked for; all of this machine's when none is named."""
    every = quoted_list()
    if wrong := [name for name in names if name not in every]:
        sys.exit(f"No such benchmark: {', '.join(wrong)}. There are: {', '.join(every)}.")
    if names:
        return [every[name] for name in names]
    return [bench for bench in every.values() if gpu or not bench.gpu]


def missing(benches: list[Bench], since: dt.datetime | None) -> list[Bench]:
    """Return what has no full result of this family, or none since a time."""
    return [bench for bench in benches if not _measured(bench.result(quick=False), since)]


def _measured(path: Path, since: dt.datetime | None) -> bool:
    if not path.exists():
        return False
    return since is None or dt.datetime.fromisoformat(json.loads(path.read_text())["date"]) >= since


def moment(said: str) -> dt.datetime:
    """Read a date, or a commit as the time it was made."""
    try:
        told = dt.datetime.fromisoformat(said)
    except ValueError:
        done = subprocess.run(
            ["git", "show", "-s", "--format=%cI", f"{said}^{{commit}}", "--"],
            cwd=ROOT, capture_output=True, text=True, check=False, timeout=60,
        )  # fmt: skip
        if done.returncode:
            raise argparse.ArgumentTypeError(f"{said!r} is neither a date (2026-11-18) nor a commit") from None
        told = dt.datetime.fromisoformat(done.stdout.strip())
    return told if told.tzinfo else told.replace(tzinfo=dt.UTC)


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


def committed(name: str, family: str) -> dict[str, Any] | None:
    """Return the result of a family as it is committed, or nothing: a new one, or no checkout."""
    path = path_of(name, family).relative_to(ROOT).as_posix()
    done = subprocess.run(
        ["git", "show", f"HEAD:{path}"], cwd=ROOT, capture_output=True, text=True, check=False, timeout=60
    )
    result: dict[str, Any] = json.loads(done.stdout) if done.returncode == 0 else {}
    return result if "figures" in result else None


def compare(paths: list[Path]) -> int:
    """Print old and new of every figure, each with its own family, and return how many fell outside what was stated."""
    outside = 0
    for path in paths:
        new = json.loads(path.read_text())
        name, family = new["name"], family_of(new)
        old = committed(name, family)
        if old is None:
            others = [other for other in read_results().get(name, {}) if other != family]
            there = f"; there is one of {', '.join(others)}, which is not compared" if others else ""
            say(f"{name}: nothing to compare with: no committed result of {family}{there}")
            continue
        if new == old:
            say(f"{name}, {family}: as committed, measured {old['date']}")
            continue
        rows = compared(old, new)
        if new["quick"]:
            rows = [row for row in rows if row.old is not None and row.new is not None]
        outside += sum(row.verdict.startswith("outside") for row in rows)
        mark = " (QUICK: coarser, and only what both have)" if new["quick"] else ""
        print(f"\n{name}, {family}{mark}: {_when(old)} -> {_when(new)}")
        print_table(("figure", "old", "new", "stated", "how", "verdict"), [row.cells() for row in rows])
    print(f"\n{outside} figures outside their stated uncertainty")
    return outside


def lying(benches: list[Bench], *, quick: bool) -> list[Path]:
    """Return the results of benchmarks that lie here, of every family, and name those that have none."""
    found = []
    for bench in benches:
        paths = sorted(kept(quick=quick).glob(f"*/{bench.name}.json"))
        if not paths:
            say(f"{bench.name}: nothing to compare: no {'quick ' if quick else ''}result lies here")
        found += paths
    return found


def _when(result: dict[str, Any]) -> str:
    load = load_of(result["machine"]) or "load unknown"
    return f"{result['date']} at {str(result['commit'])[:8]}, {load}"


def show_list(benches: list[Bench]) -> None:
    """Print what there is, and when each family was measured last."""
    results = read_results()
    rows = []
    for bench in benches:
        dates = [f"{family} {result['date'][:10]}" for family, result in results.get(bench.name, {}).items()]
        who = ", ".join(bench.opponents) or "-"
        times = f"{bench.minutes:g} min, quick {bench.quick_minutes:g}"
        rows.append(
            (bench.name, bench.question, who, times + (", GPU" if bench.gpu else ""), ", ".join(dates) or "never")
        )
    print_table(("name", "question", "installs", "takes about", "last"), rows)
    sums = [sum(bench.estimate(quick=quick) for bench in benches) for quick in (False, True)]
    print(f"\n{len(benches)} benchmarks, {spoken(sums[0])}, quick {spoken(sums[1])}")


def spoken(minutes: float) -> str:
    """Return a duration as people say it."""
    return f"{minutes:.0f} min" if minutes < 90 else f"{minutes / 60:.1f} h"


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
    parser.add_argument("--missing", action="store_true", help="only what has no full result of this family")
    parser.add_argument("--since", type=moment, metavar="WHEN", help="what was measured before a commit or date too")
    parser.add_argument("--compare", action="store_true", help="compare without measuring")
    parser.add_argument("--tables", action="store_true", help="write the tables from the results")
    options = parser.parse_args()
    if options.tables:
        for page in tables.write(ROOT):
            say(f"wrote the figures of {page.relative_to(ROOT)}")
        return
    only_missing = options.missing or options.since is not None
    benches = chosen(options.names, gpu=options.gpu or (not only_missing and (options.list or options.compare)))
    if only_missing:
        benches = missing(benches, options.since)
    if options.list:
        show_list(benches)
        return
    if options.compare:
        compare(lying(benches, quick=options.quick))
        return
    install(benches)
    failed = measure_all(benches, quick=options.quick)
    compare([bench.result(quick=options.quick) for bench in benches if bench.name not in failed])
    if failed:
        sys.exit("Failed: " + "; ".join(f"{name} ({reason})" for name, reason in failed.items()))


if __name__ == "__main__":
    main()
