"""A board that is a folder, and a context that is gone afterwards."""

from __future__ import annotations

import contextlib
import os
import tempfile
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any

from embedl_hub.core import HubContext
from embedl_hub.core.device import BOARD_LABEL, CommandResult, Device, DeviceSpec, LocalCommandRunner
from embedl_hub.errors import CommandError, ConfigError, known

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Sequence

    from embedl_hub.core.device import AnyPath


@dataclass(frozen=True)
class Answer:
    """What the scripted board does when a command starts with certain words.

    Attributes:
        starts_with: The first words of the command, compared one by one.
        stdout: What it prints.
        stderr: What it complains about.
        exit_code: How it ends.
        does: Called with the command and the board's folder, for a command that writes files.
    """

    starts_with: Sequence[str]
    stdout: str = ""
    stderr: str = ""
    exit_code: int = 0
    does: Callable[[list[str], Path], object] | None = None


@dataclass
class ScriptedRunner:
    """A board that is a folder on this machine and knows the commands it was told.

    Files really move, into and out of ``folder``; absolute remote paths are taken inside it. The hub's own
    housekeeping (run folders, content store) works for real. A command that no answer fits is an error that
    lists the known ones. ``commands`` holds what was asked, in order.
    """

    folder: Path
    answers: Sequence[Answer] = ()
    commands: list[list[str]] = field(default_factory=list)

    def run(
        self,
        argv: Sequence[AnyPath],
        cwd: AnyPath | None = None,
        *,
        hide: bool = False,
        timeout_s: float | None = None,
    ) -> CommandResult:
        """Answer a command from the script."""
        words = [os.fspath(word) for word in argv]
        if words[:2] == ["sh", "-c"] and words[3:4] == [BOARD_LABEL]:
            return LocalCommandRunner().run(words, cwd, hide=hide, timeout_s=timeout_s)
        self.commands.append(words)
        for answer in self.answers:
            if words[: len(answer.starts_with)] == list(answer.starts_with):
                if answer.does is not None:
                    answer.does(words, self.folder)
                if answer.exit_code:
                    raise CommandError(
                        words, answer.exit_code, answer.stdout, answer.stderr, place="the scripted board"
                    )
                return CommandResult(answer.stdout, answer.stderr, 0)
        expected = known(" ".join(answer.starts_with) for answer in self.answers)
        raise ConfigError(f"The scripted board was not told what to do with {words}; it knows: {expected}.")

    def put(self, local: AnyPath, remote: AnyPath) -> None:
        """Copy into the board's folder."""
        LocalCommandRunner().put(local, self.place(remote))

    def get(self, remote: AnyPath, local: AnyPath) -> None:
        """Copy out of the board's folder."""
        LocalCommandRunner().get(self.place(remote), local)

    def place(self, remote: AnyPath) -> Path:
        """Return where a remote path is on this machine."""
        path = Path(remote)
        return path if path.is_relative_to(self.folder) else self.folder / str(path).lstrip("/")


def scripted_device(
    folder: Path,
    answers: Sequence[Answer] = (),
    *,
    name: str = "board",
    provider_type: str = "local",
    **settings: Any,  # noqa: ANN401 - any further field of Device
) -> Device:
    """Return a device on a scripted board."""
    runner = ScriptedRunner(folder, answers)
    spec = settings.pop("spec", DeviceSpec(device_name="scripted board"))
    return Device(name, runner, spec, provider_type, artifact_root=folder / "edgeproof", lease_dir=None, **settings)


@contextlib.contextmanager
def temporary_context(
    devices: Sequence[Device] = (), *, project_name: str = "test", tracking: bool = True
) -> Iterator[HubContext]:
    """Open a context with a store of its own that is gone afterwards."""
    with (
        tempfile.TemporaryDirectory(prefix="edgeproof-test-") as home,
        HubContext(project_name, devices, tracking, home=home) as ctx,
    ):
        yield ctx
