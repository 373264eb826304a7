"""A PostgreSQL cluster of a test's own, run by the user postgres."""

import os
import shutil
import subprocess
import tempfile
from pathlib import Path

from support.debian import require
from support.hub_server import free_port

_LIMIT_S = 120


class Cluster:
    """A database server on loopback that a test may stop and start."""

    def __init__(self) -> None:
        self._bin = postgres_programs()
        # Not below pytest's folders: initdb refuses to run as root, and those let no other user through.
        self._folder = folder = Path(tempfile.mkdtemp(prefix="edgeproof-postgres-"))
        self.port = free_port()
        if os.geteuid() == 0:
            shutil.chown(folder, "postgres", "postgres")
        self._run("initdb", "-D", str(folder / "data"), "-A", "trust", "-U", "edgeproof", "--no-sync", "-E", "UTF8")

    def start(self) -> "Cluster":
        """Start it."""
        options = f"-p {self.port} -c listen_addresses=127.0.0.1 -k {self._folder} -c fsync=on -c max_connections=100"
        self._run(
            "pg_ctl", "-D", str(self._folder / "data"), "-w", "-o", options, "-l", str(self._folder / "log"), "start"
        )
        return self

    def stop(self) -> None:
        """Stop it, whoever is connected."""
        self._run("pg_ctl", "-D", str(self._folder / "data"), "-w", "-m", "immediate", "stop")

    def end(self) -> None:
        """Stop it if it runs, and remove it."""
        if (self._folder / "data" / "postmaster.pid").exists():
            self.stop()
        shutil.rmtree(self._folder)

    def database(self, name: str) -> str:
        """Make an empty database and return its address."""
        self._run("createdb", "-h", "127.0.0.1", "-p", str(self.port), "-U", "edgeproof", name)
        return f"postgresql://edgeproof@127.0.0.1:{self.port}/{name}"

    def _run(self, program: str, *arguments: str) -> None:
        argv = [str(self._bin / program), *arguments]
        if os.geteuid() == 0:
            argv = ["runuser", "-u", "postgres", "--", *argv]
        done = subprocess.run(
            argv, cwd=self._folder, stdin=subprocess.DEVNULL, stdout=subprocess.DEVNULL, stderr=subprocess.PIPE,
            text=True, timeout=_LIMIT_S, check=False,
        )  # fmt: skip
        assert done.returncode == 0, f"{program}: {done.stderr}"


def postgres_programs() -> Path:
    """Return the folder of the server's programs; a test that starts them elsewhere asks here first."""
    found = sorted(Path("/usr/lib/postgresql").glob("*/bin/initdb"))
    if not found:
        require("psql", "postgresql")
        found = sorted(Path("/usr/lib/postgresql").glob("*/bin/initdb"))
    return found[-1].parent
