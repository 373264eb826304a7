"""How fast do files and commands reach a board, next to the tools a user would take instead?

A real sshd on this machine's loopback. In turns within one run, the order turning with every round: one large file
there and back, ours against scp, as a user calls it and over a connection that is already there (ControlMaster); the
same artifact again through the board's content store; a thousand small files there and back, ours against rsync -a,
both ways; a command on a warm connection, ours against ssh with ControlMaster.

    python benchmarks/hub/bench_transfer.py [--rounds 9] [--command-rounds 60] [--folder DIR] [--json FILE]
"""

from __future__ import annotations

import hashlib
import secrets
import shutil
import subprocess
import sys
import tempfile
import time
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any

from embedl_hub.core.device import Board, CommandResult, Device, SSHCommandRunner

sys.path.insert(0, str(Path(__file__).parents[1]))
sys.path.insert(0, str(Path(__file__).parents[2] / "tests"))
from figures import Figure, against, alone, declared
from report import Session, parser
from support.debian import require
from support.sshd import SSHServer

if TYPE_CHECKING:
    import os
    from collections.abc import Callable, Sequence

    AnyPath = str | os.PathLike[str]

LARGE_BYTES = 256 << 20
FILES, FILE_BYTES = 1000, 4096
OURS = "ours"


@dataclass(frozen=True)
class Comparison:
    """One thing to do, by several means: ours first, and how ours must stand against each opponent."""

    what: str
    sides: dict[str, Callable[[], object]]
    limit: float
    before: Callable[[], object]
    check: Callable[[], object] = field(default=lambda: None)
    required_of: str = ""


class Bench:
    """The server, the folders, and the ways to reach them."""

    def __init__(self, folder: Path) -> None:
        self.server = SSHServer(folder / "sshd").start()
        self.here, self.there, self.back = (folder / name for name in ("here", "there", "back"))
        self.here.mkdir()
        self.clear()
        self.runner = SSHCommandRunner(self.server.config())
        self.plain = self._client_config(folder / "plain")
        self.warm = self._client_config(
            folder / "warm", "ControlMaster auto", f"ControlPath {folder}/cm", "ControlPersist 600"
        )
        self.large = self.here / "large.bin"
        self.large.write_bytes(secrets.token_bytes(LARGE_BYTES))
        self.small = self.here / "small"
        for number in range(FILES):
            path = self.small / f"{number % 10}" / f"{number}.bin"
            path.parent.mkdir(parents=True, exist_ok=True)
            path.write_bytes(secrets.token_bytes(FILE_BYTES))
        self.runner.run(["true"], hide=True)
        call("ssh", "-F", str(self.warm), "board", "true")

    def close(self) -> None:
        """End the connections and the server."""
        self.runner.close()
        call("ssh", "-F", str(self.warm), "-O", "exit", "board")
        self.server.stop()

    def clear(self) -> None:
        """Empty both targets; what was written and is deleted never costs the disk anything."""
        for folder in (self.there, self.back):
            shutil.rmtree(folder, ignore_errors=True)
            folder.mkdir()

    def _client_config(self, path: Path, *settings: str) -> Path:
        lines = [
            "Host board",
            "HostName 127.0.0.1",
            f"Port {self.server.port}",
            f"User {self.server.user}",
            f"IdentityFile {self.server.identity}",
            f"UserKnownHostsFile {self.server.known_hosts}",
            "IdentitiesOnly yes",
            *settings,
        ]
        path.write_text("\n".join(lines) + "\n")
        return path


def call(*argv: str) -> None:
    """Run an opponent."""
    subprocess.run(argv, check=True, capture_output=True, stdin=subprocess.DEVNULL, timeout=600)


def file_comparisons(bench: Bench) -> list[Comparison]:
    """Return one large file there and back against scp."""
    there, back, large = bench.there / "file", bench.back / "file", bench.large

    def same(path: Path) -> Callable[[], None]:
        return lambda: equal(path, large)

    def scp(config: Path, source: str, target: str) -> Callable[[], None]:
        return lambda: call("scp", "-q", "-F", str(config), source, target)

    return [
        Comparison(
            "put 256 MiB",
            {
                OURS: lambda: bench.runner.put(large, there),
                "scp": scp(bench.plain, str(large), f"board:{there}"),
                "scp, ControlMaster": scp(bench.warm, str(large), f"board:{there}"),
            },
            1 / 0.9, bench.clear, same(there), "scp",
        ),
        Comparison(
            "get 256 MiB",
            {
                OURS: lambda: bench.runner.get(large, back),
                "scp": scp(bench.plain, f"board:{large}", str(back)),
                "scp, ControlMaster": scp(bench.warm, f"board:{large}", str(back)),
            },
            1 / 0.9, bench.clear, same(back), "scp",
        ),
    ]  # fmt: skip


def folder_comparisons(bench: Bench) -> list[Comparison]:
    """Return a thousand small files there and back against rsync."""
    require("rsync", "rsync")
    there, back, small = bench.there / "folder", bench.back / "folder", bench.small

    def all_there(path: Path) -> Callable[[], None]:
        return lambda: equal_trees(path, small)

    def rsync(config: Path, source: str, target: str) -> Callable[[], None]:
        return lambda: call("rsync", "-a", "-e", f"ssh -F {config}", f"{source}/", target)

    return [
        Comparison(
            f"put {FILES} files",
            {
                OURS: lambda: bench.runner.put(small, there),
                "rsync -a": rsync(bench.plain, str(small), f"board:{there}"),
                "rsync -a, ControlMaster": rsync(bench.warm, str(small), f"board:{there}"),
            },
            1.0, bench.clear, all_there(there), "rsync -a",
        ),
        Comparison(
            f"get {FILES} files",
            {
                OURS: lambda: bench.runner.get(small, back),
                "rsync -a": rsync(bench.plain, f"board:{small}", str(back)),
                "rsync -a, ControlMaster": rsync(bench.warm, f"board:{small}", str(back)),
            },
            1.0, bench.clear, all_there(back), "rsync -a",
        ),
    ]  # fmt: skip


def command_comparison(bench: Bench) -> Comparison:
    """Return a command on a warm connection against ssh."""
    return Comparison(
        "warm command (true)",
        {
            OURS: lambda: bench.runner.run(["true"], hide=True),
            "ssh, ControlMaster": lambda: call("ssh", "-F", str(bench.warm), "board", "true"),
        },
        1.1, lambda: None, required_of="ssh, ControlMaster",
    )  # fmt: skip


def measure(comparison: Comparison, rounds: int) -> dict[str, list[float]]:
    """Return each side's times in seconds, measured in turns."""
    names = list(comparison.sides)
    times: dict[str, list[float]] = {name: [] for name in names}
    for number in range(-1, rounds):
        turn = number % len(names)
        for name in names[turn:] + names[:turn]:
            comparison.before()
            start = time.perf_counter_ns()
            comparison.sides[name]()
            took_s = (time.perf_counter_ns() - start) / 1e9
            comparison.check()
            if number >= 0:  # The first round warms up.
                times[name].append(took_s)
    return times


def measure_same_again(bench: Bench, rounds: int) -> tuple[list[float], int]:
    """Return the times of sending the same artifact again, and the commands each took."""
    counting = CountingRunner(bench.server.config())
    board = Board(Device("board", runner=counting, artifact_root=bench.server.folder / "root"), counting)
    sha256 = file_hash(bench.large)
    board.send(bench.large, sha256, "model.bin")
    times = []
    for _ in range(rounds):
        counting.trips = 0
        start = time.perf_counter_ns()
        board.send(bench.large, sha256, "model.bin")
        times.append((time.perf_counter_ns() - start) / 1e9)
    counting.close()
    return times, counting.trips


class CountingRunner(SSHCommandRunner):
    """A runner that counts the sessions it opens: each is one round trip."""

    trips = 0

    def run(
        self,
        argv: Sequence[AnyPath],
        cwd: AnyPath | None = None,
        *,
        hide: bool = False,
        timeout_s: float | None = None,
    ) -> CommandResult:
        """Run a command, and count it."""
        self.trips += 1
        return super().run(argv, cwd, hide=hide, timeout_s=timeout_s)

    def put(self, local: AnyPath, remote: AnyPath) -> None:
        """Send a file, and count it."""
        self.trips += 1
        super().put(local, remote)


def file_hash(path: Path) -> str:
    with path.open("rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()


def equal(path: Path, original: Path) -> None:
    """Fail when a copy has another size; contents are each side's own promise."""
    assert path.stat().st_size == original.stat().st_size, f"{path} is not whole"


def equal_trees(folder: Path, original: Path) -> None:
    """Fail when a copy lacks a file."""
    assert sum(1 for path in folder.rglob("*") if path.is_file()) == FILES, f"{folder} lacks files of {original}"


def version(*argv: str) -> str:
    """Return the first line of what a program says about itself."""
    done = subprocess.run(argv, capture_output=True, text=True, check=True)
    return (done.stdout or done.stderr).splitlines()[0]


def figures(data: dict[str, Any]) -> list[Figure]:
    """Return what is quoted."""
    made = []
    for what, times in data["seconds"].items():
        required = data["required"][what]
        for name in list(times)[1:]:
            scale, unit = (1e3, "ms") if what.startswith("warm") else (1.0, "s")
            sides = [[value * scale for value in times[side]] for side in (OURS, name)]
            one = against(f"{what}, against {name}", unit, sides[0], f"`{name}`", sides[1])
            made.append((one.at_most(required["ratio"]) if name == required["opponent"] else one).in_short())
    again = data["same artifact again"]
    return [
        *made,
        alone("the same artifact again", "ms", [value * 1e3 for value in again[OURS]]).at_most(300).in_short(),
        declared("round trips of the same artifact again", "", again["round_trips"], 0).at_most(1),
    ]


def main() -> None:
    """Measure and report."""
    options = parser(__doc__)
    options.add_argument("--rounds", type=int, default=9, help="rounds of each transfer (default 9)")
    options.add_argument("--command-rounds", type=int, default=60, help="rounds of the command (default 60)")
    options.add_argument("--folder", type=Path, help="where to work; 1 GiB is needed (default: the temporary folder)")
    arguments = options.parse_args()
    session = Session("transfer", options, arguments)
    facts = {"openssh": version("ssh", "-V"), "rsync": version(require("rsync", "rsync"), "--version")}
    data: dict[str, Any] = {"rounds": arguments.rounds, "seconds": {}, "required": {}}
    with tempfile.TemporaryDirectory(dir=arguments.folder, prefix="bench-transfer-") as name:
        bench = Bench(Path(name))
        try:
            for comparison in (*file_comparisons(bench), *folder_comparisons(bench), command_comparison(bench)):
                is_command = comparison.what.startswith("warm")
                rounds = arguments.command_rounds if is_command else arguments.rounds
                data["seconds"][comparison.what] = measure(comparison, rounds)
                data["required"][comparison.what] = {"opponent": comparison.required_of, "ratio": comparison.limit}
            again, trips = measure_same_again(bench, arguments.rounds)
        finally:
            bench.close()
    data["same artifact again"] = {OURS: again, "round_trips": trips}
    session.finish(data, figures(data), facts=facts)


if __name__ == "__main__":
    main()
