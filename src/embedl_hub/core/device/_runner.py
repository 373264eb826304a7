"""The seam between the hub and a board: run a command there, move files there and back."""

from __future__ import annotations

import os
import threading
from collections.abc import Iterable, Sequence
from contextlib import AbstractContextManager
from dataclasses import dataclass
from pathlib import PurePath
from typing import Protocol, TypeAlias, runtime_checkable

AnyPath: TypeAlias = "str | os.PathLike[str] | PurePath"


@dataclass(frozen=True)
class CommandResult:
    """What a command that ended with code 0 printed."""

    stdout: str
    stderr: str
    exit_code: int


@runtime_checkable
class CommandRunner(Protocol):
    """Runs argv lists and moves files. Two implementations ship: this machine, and SSH.

    Anything that can do these three things is a runner: adb, a serial console, a test double. One that also has an
    ``address``, text that tells boards apart, lets the hub remember what a board is.
    """

    def run(
        self, argv: Sequence[AnyPath], cwd: AnyPath | None = None, *, hide: bool = False, timeout_s: float | None = None
    ) -> CommandResult:
        """Run a command to its end; nothing in an argument is ever read by a shell.

        Args:
            argv: The program and its arguments.
            cwd: The folder to run in; the login folder when not given.
            hide: Keep the command's output off this terminal.
            timeout_s: Stop it, with everything it started, after this long.

        Raises:
            CommandError: It ended with another code than 0, by a signal or at its time limit.
            ConnectError: The board cannot be reached.
        """
        ...

    def put(self, local: AnyPath, remote: AnyPath) -> None:
        """Copy a file or folder to the board; it appears under its name whole or not at all."""
        ...

    def get(self, remote: AnyPath, local: AnyPath) -> None:
        """Copy a file or folder from the board; it appears under its name whole or not at all."""
        ...


class Lease:
    """The right to use a board. ``is_lost`` turns true when the board no longer honors it."""

    def __init__(self) -> None:
        self._lost = threading.Event()

    @property
    def is_lost(self) -> bool:
        """Whether somebody else may be using the board now."""
        return self._lost.is_set()

    def lose(self) -> None:
        """Note that the lease is gone."""
        self._lost.set()


@runtime_checkable
class LeasingRunner(CommandRunner, Protocol):
    """A runner that can also keep the board to itself for a while."""

    def lease(self, lock_dir: str, holder: str, *, wait_s: float) -> AbstractContextManager[Lease]:
        """Hold the board's one lock for the length of a block.

        Raises:
            BusyError: Somebody else held it for all of ``wait_s``.
            LeaseError: It cannot be had at all.
        """
        ...


def path_text(value: object) -> str:
    """Return a path or an argument as text, or say what to write instead."""
    from embedl_hub.errors import ConfigError  # noqa: PLC0415 - keeps the seam free of imports

    if isinstance(value, str | os.PathLike) and isinstance(text := os.fspath(value), str):
        return text
    advice = f"write {'os.fsdecode' if isinstance(value, bytes) else 'str'}({value!r:.50})"
    if artifact := next((name for name in ("path", "to_local") if hasattr(value, name)), ""):
        name = "model.path" if artifact == "path" else "artifact"
        advice = (
            f"write {name}.to_local(ctx).local() for the file on this machine, "
            f"{name}.to_remote(ctx, device_name=device).remote() for the one on the board"
        )
    raise ConfigError(f"A path or an argument of a command is text or a path, not {value!r:.100}; {advice}.")


def as_argv(argv: Sequence[AnyPath]) -> list[str]:
    """Return the command as plain strings, or say what is wrong with it."""
    from embedl_hub.errors import ConfigError  # noqa: PLC0415 - keeps the seam free of imports

    if isinstance(argv, str | bytes) or not isinstance(argv, Iterable):
        raise ConfigError(f"A command is a list of arguments such as ['tool', '-o', 'file'], not {argv!r}.")
    texts = [path_text(word) for word in argv]
    for text in texts:
        if "\0" in text:
            raise ConfigError(f"An argument must be text without NUL: {text!r}.")
    if not texts or not texts[0] or texts[0].startswith("-"):
        raise ConfigError(f"A command starts with the name of a program: {texts!r}.")
    return texts
