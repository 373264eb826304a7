"""Feed the readers of files that strangers made with mutated ones, guided by coverage where atheris is installed.

.venv/bin/python tools/fuzz.py READER [--count N] [--seed N] [--seconds S]
.venv/bin/python tools/fuzz.py --all [--count N] [--seconds S] [--jobs N]

An input must be read or refused within five seconds and 256 MB, with the reader's own error, and without a write, a
program or a connection of its own. What it did instead is printed, and the input kept in tests/fuzz_corpus/READER.
"""

from __future__ import annotations

import argparse
import hashlib
import importlib
import importlib.util
import itertools
import json
import os
import resource
import signal
import subprocess
import sys
import tempfile
import time
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

ROOT = Path(__file__).resolve().parents[1]
sys.path[:0] = [str(ROOT / "tests"), str(ROOT / "src")]

from support.fuzz import CORPUS, READERS, Find, Guard, Reader, mutations  # noqa: E402 - found by the line before

_COUNT = 100_000
_MOST_MEMORY_MB = 3072  # more than this above the start, and the allocation fails


class Campaign:
    """Counts inputs and keeps each kind of find once."""

    def __init__(self, name: str, reader: Reader, count: int, seconds: float | None) -> None:
        self._name = name
        self._guard = Guard(reader)
        self._count = count
        self._end = None if seconds is None else time.monotonic() + seconds
        self._start = time.monotonic()
        self._seen: dict[tuple[str, str], int] = {}
        self.inputs = 0

    def take(self, data: bytes) -> None:
        """Feed one input; the last one ends the process."""
        find = self._guard.feed(data)
        self.inputs += 1
        if find is not None:
            self._keep(find, data)
        if self.inputs >= self._count or (self._end is not None and time.monotonic() > self._end):
            self.finish()

    def _keep(self, find: Find, data: bytes) -> None:
        key = find.kind, find.place
        self._seen[key] = self._seen.get(key, 0) + 1
        if self._seen[key] > 1:
            return
        folder = CORPUS / self._name
        folder.mkdir(parents=True, exist_ok=True)
        path = folder / hashlib.sha256(data).hexdigest()[:12]
        path.write_bytes(data)
        print(f"{self._name}: {find.kind} {find.place} ({path.relative_to(ROOT)})\n{find.text}", flush=True)

    def finish(self) -> None:
        """Print the result as the last line, and end: atheris itself never returns."""
        took = time.monotonic() - self._start
        result = {
            "reader": self._name, "inputs": self.inputs, "seconds": round(took, 1),
            "ms_per_input": round(1e3 * took / max(1, self.inputs), 3),
            "finds": {" ".join(key): count for key, count in self._seen.items()},
            "memory_mb": round(self._guard.grown_mb, 1),
        }  # fmt: skip
        self._guard.close()
        print(json.dumps(result), flush=True)
        os._exit(1 if self._seen else 0)


def fuzz(name: str, count: int, seed: int, seconds: float | None, *, plain: bool) -> None:
    """Fuzz one reader in this process, and end it."""
    entry = READERS[name]
    if plain or importlib.util.find_spec("atheris") is None:
        reader = entry.make()
        _limit_memory()
        campaign = Campaign(name, reader, count, seconds)
        for data in mutations(reader, seed, entry.longest):
            campaign.take(data)
        return
    import atheris  # type: ignore[import-not-found, import-untyped, unused-ignore]  # noqa: PLC0415

    with atheris.instrument_imports(include=list(entry.modules)):
        for module in entry.modules:
            importlib.import_module(module)
        reader = entry.make()
    _limit_memory()
    with tempfile.TemporaryDirectory() as folder:
        start = Path(folder)
        kept = [path.read_bytes() for path in sorted((CORPUS / name).glob("*"))]
        # Some mutations of our own to begin with: they know the words of the format.
        for number, data in enumerate(
            [*reader.seeds, *kept, *itertools.islice(mutations(reader, seed, entry.longest), 500)]
        ):
            (start / f"{number:05d}").write_bytes(data)
        words = start.with_suffix(".words")
        words.write_text("".join(f'"{_escaped(word)}"\n' for word in (b"null", *reader.words) if len(word) < 60))
        campaign = Campaign(name, reader, count, seconds)
        options = [f"-seed={seed}", f"-max_len={entry.longest}", "-rss_limit_mb=0", "-verbosity=0",
                   f"-runs={4 * count}", f"-dict={words}", f"-artifact_prefix={CORPUS / name}-"]  # fmt: skip
        atheris.Setup([sys.argv[0], *options, folder], campaign.take)
        # As the first process of a fuzzer it would take signals for itself; the guard's alarm is ours.
        atheris.Fuzz()


def _escaped(word: bytes) -> str:
    return "".join(f"\\x{byte:02x}" for byte in word)


def _limit_memory() -> None:
    held = int(Path("/proc/self/statm").read_text().split()[0]) * os.sysconf("SC_PAGE_SIZE")
    resource.setrlimit(resource.RLIMIT_AS, (held + (_MOST_MEMORY_MB << 20), resource.RLIM_INFINITY))


def run_all(names: list[str], arguments: argparse.Namespace) -> int:
    """Fuzz readers in processes of their own, and print a table of what came of it."""

    def one(name: str) -> tuple[str, int, list[str]]:
        words = [sys.executable, "-P", __file__, name, f"--count={arguments.count}", f"--seed={arguments.seed}"]
        words += [] if arguments.seconds is None else [f"--seconds={arguments.seconds}"]
        words += ["--plain"] if arguments.plain else []
        done = subprocess.run(words, capture_output=True, text=True, check=False)
        return name, done.returncode, (done.stdout + done.stderr).splitlines()

    failed = []
    print(f"{'reader':14} {'inputs':>8} {'s':>7} {'ms each':>8} {'MB more':>8}  finds")
    with ThreadPoolExecutor(arguments.jobs) as pool:
        for name, code, lines in pool.map(one, names):
            results = [line for line in lines if line.startswith('{"reader"')]
            if not results:
                ended = f"signal {signal.Signals(-code).name}" if code < 0 else f"code {code}"
                print(f"{name:14} ended by {ended}: {' '.join(lines[-8:])[-600:]}")
            else:
                found = json.loads(results[-1])
                print(f"{name:14} {found['inputs']:8} {found['seconds']:7} {found['ms_per_input']:8} "
                      f"{found['memory_mb']:8}  {found['finds'] or 'none'}", flush=True)  # fmt: skip
            failed += [name] if code else []
    return 1 if failed else 0


def main() -> int:
    """Read the command line."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("reader", nargs="*", choices=[*READERS, []], help="one or several; --all for every one")
    parser.add_argument("--all", action="store_true")
    parser.add_argument("--count", type=int, default=_COUNT, help="inputs for each reader")
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument(
        "--seconds", type=float, help="no longer than this for each reader, however few inputs that are"
    )
    parser.add_argument("--jobs", type=int, default=2, help="readers at the same time")
    parser.add_argument("--plain", action="store_true", help="mutations without coverage, as without atheris")
    arguments = parser.parse_args()
    names = list(READERS) if arguments.all else arguments.reader
    if not names:
        parser.error(f"name a reader, or --all; there are {', '.join(READERS)}")
    if len(names) > 1:
        return run_all(names, arguments)
    fuzz(names[0], arguments.count, arguments.seed, arguments.seconds, plain=arguments.plain)
    return 0


if __name__ == "__main__":
    sys.exit(main())
