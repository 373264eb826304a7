"""The runner for this machine: the seam without a network, for real use and for tests."""

from __future__ import annotations

import contextlib
import functools
import os
import secrets
import shutil
import socket
from collections.abc import Iterator, Sequence
from pathlib import Path

from embedl_hub.core.device._bounded import FloodError
from embedl_hub.core.device._lease import LocalLease, keep_local_lease
from embedl_hub.core.device._process import ProcessGroup, execute
from embedl_hub.core.device._runner import AnyPath, CommandResult, Lease, as_argv, path_text
from embedl_hub.core.device._script import BEAT_LIMIT_S, SUPERVISE, WATCH
from embedl_hub.core.device._tree import remove
from embedl_hub.errors import CommandError, TransferError
from embedl_hub.tracking import walk_files


class LocalCommandRunner:
    """Runs commands and copies files on this machine, with the same promises as over SSH."""

    def __init__(self) -> None:
        self._leases: set[LocalLease] = set()

    @property
    def address(self) -> str:
        """This machine by name: a home may be shared by machines that all call themselves local."""
        return f"local {socket.gethostname()}"

    def run(
        self, argv: Sequence[AnyPath], cwd: AnyPath | None = None, *, hide: bool = False, timeout_s: float | None = None
    ) -> CommandResult:
        """Run a command; see :class:`CommandRunner`."""
        words = as_argv(argv)
        folder = "" if cwd is None else str(Path(cwd).absolute())
        limit, shell = _watch_shell()
        # By its path: looked for on PATH, it would be refused in the words for a folder there that may not be read.
        supervised = [shutil.which("sh") or "sh", "-c", SUPERVISE, "edgeproof", limit, shell, WATCH, folder, *words]
        try:
            outcome = execute(ProcessGroup(supervised), timeout_s=timeout_s, echo=not hide)
        except FloodError as error:
            raise CommandError(words, None, stderr=str(error)) from error
        except OSError as error:
            # Arguments that are too long, or no process left to have.
            raise CommandError(words, 126, stderr=str(error)) from error
        if outcome.exit_code != 0:
            is_late = outcome.exit_code is None and not outcome.is_stopped_by_other
            limit_s = timeout_s if is_late else None
            raise CommandError(words, outcome.exit_code, outcome.stdout, outcome.stderr, timeout_s=limit_s)
        return CommandResult(outcome.stdout, outcome.stderr, outcome.exit_code)

    def put(self, local: AnyPath, remote: AnyPath) -> None:
        """Copy a file or folder; see :class:`CommandRunner`."""
        _copy(Path(path_text(local)), Path(path_text(remote)))

    def get(self, remote: AnyPath, local: AnyPath) -> None:
        """Copy a file or folder; see :class:`CommandRunner`."""
        _copy(Path(path_text(remote)), Path(path_text(local)))

    @contextlib.contextmanager
    def lease(self, lock_dir: str, holder: str, *, wait_s: float) -> Iterator[Lease]:
        """Hold this machine's lease for the length of a block."""
        with keep_local_lease(lock_dir, holder, wait_s=wait_s) as lease:
            self._leases.add(lease)
            try:
                yield lease
            finally:
                self._leases.discard(lease)

    def close(self) -> None:
        """Let go of this machine: what a thread that hangs holds through this runner would stay taken."""
        for lease in list(self._leases):
            lease.let_go()


@functools.cache
def _watch_shell() -> tuple[str, str]:
    """Return the heartbeat limit and a shell that can wait for a beat; dash cannot."""
    return (str(BEAT_LIMIT_S), "bash") if shutil.which("bash") else ("", "sh")


def _copy(source: Path, target: Path) -> None:
    # Not made from the target's name, which may be as long as a name can be.
    part = target.with_name(f".{secrets.token_hex(6)}.part")
    try:
        if source.is_dir():
            for _ in walk_files(source):
                pass  # Names a link without an end; copytree would follow it.
            target.parent.mkdir(parents=True, exist_ok=True)
            shutil.copytree(source, part)
            if target.exists():
                # Only an empty folder may be replaced; anything else is somebody's data.
                target.rmdir()
        elif target.is_dir():
            raise TransferError(f"{target} is a folder; name the file it should become.")
        else:
            target.parent.mkdir(parents=True, exist_ok=True)
            shutil.copyfile(source, part)
            part.chmod(0o755 if os.access(source, os.X_OK) else 0o644)
        part.replace(target)
    except OSError as error:
        raise TransferError(f"{source} could not be copied to {target}: {error}.") from error
    finally:
        remove(part)
