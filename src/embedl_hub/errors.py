"""Every error the hub raises for something a user can act on.

HubError
├─ ConfigError (ValueError)          a setting, a name or a value given by the user is wrong
│  ├─ UnknownDeviceError (KeyError)  the context has no device of that name
│  └─ UntrustedError                 a folder that was found may be somebody else's
├─ DeviceError                       something between us and a board
│  ├─ ConnectError                   no connection: host, key, network
│  ├─ CommandError                   a command ended with a code, a signal or its time limit
│  ├─ TransferError                  a file did not arrive, or was refused
│  └─ LeaseError                     the lease on a board cannot be had, or was lost
│     └─ BusyError                   somebody else is using the board
├─ ComponentError
│  ├─ SignatureError (TypeError)     a component or provider is declared wrongly
│  ├─ NoProviderError                no provider for this step on this device
│  ├─ OutputError                    a result lacks a field
│  └─ CompileError ProfileError InvokeError    a step failed
├─ TrackingError                     the store or the current run
│  ├─ StoreUnusableError             the store does not answer: locked, full, its database gone
│  └─ TooSlowError                   a question to the store was cut off at its time limit
└─ WorkerLostError                   the process that ran a job is gone

Anything else that escapes is a bug of ours and keeps its traceback.
"""

import signal
from collections.abc import Iterable, Sequence

from embedl_device.terminal import printable
from embedl_hub import terminal  # noqa: F401 - guards the log of whoever can raise one of these

__all__ = [
    "BusyError",
    "CommandError",
    "CompileError",
    "ComponentError",
    "ConfigError",
    "ConnectError",
    "DeviceError",
    "HubError",
    "InvokeError",
    "LeaseError",
    "NoProviderError",
    "OutputError",
    "ProfileError",
    "SignatureError",
    "StoreUnusableError",
    "TooSlowError",
    "TrackingError",
    "TransferError",
    "UnknownDeviceError",
    "UntrustedError",
    "WorkerLostError",
    "blames_board",
    "quoted_list",
]

_TAIL_CHARACTERS = 2000
_TAIL_LINES = 20


def quoted_list(names: Iterable[object]) -> str:
    """List names for a message: sorted, quoted, or the word "none"."""
    return ", ".join(sorted(repr(str(name)) for name in names)) or "none"


class HubError(Exception):
    """Root of everything a user can act on. What a board said of it can be printed: nothing in it moves a terminal."""

    def __init__(self, *args: object) -> None:
        super().__init__(*(printable(each) if isinstance(each, str) else each for each in args))


class ConfigError(HubError, ValueError):
    """A setting, a name or a value given by the user is wrong."""


class UnknownDeviceError(ConfigError, KeyError):
    """The context has no device of that name."""

    # KeyError shows its argument's repr; ours is a sentence.
    __str__ = Exception.__str__


class UntrustedError(ConfigError):
    """A home that was found, not named, may be somebody else's: ``embedl-hub trust`` says that it is not."""


class DeviceError(HubError):
    """Something between this machine and a board went wrong."""


class ConnectError(DeviceError):
    """No connection to the board could be made, or it was lost."""


class TransferError(DeviceError):
    """A file or folder did not arrive whole, or was refused."""


class LeaseError(DeviceError):
    """The lease on a board cannot be had, or was lost."""


class BusyError(LeaseError):
    """Somebody else is using the board: nothing is wrong with it.

    Attributes:
        holder: Who it is, as far as the board knows.
    """

    def __init__(self, message: str, holder: str = "an unknown user") -> None:
        super().__init__(message)
        self.holder = holder

    def __reduce__(self) -> tuple[object, ...]:
        return (type(self), (str(self), self.holder))


class CommandError(DeviceError):
    """A command ended with a non-zero code, by a signal or at its time limit.

    Attributes:
        argv: The command as it was asked for.
        exit_code: Its code, or None when it was stopped at its time limit.
        stdout: What it printed, as far as it came.
        stderr: What it complained about, as far as it came.
        timeout_s: The limit that stopped it, if one did.
    """

    def __init__(
        self,
        argv: Sequence[str],
        exit_code: int | None,
        stdout: str = "",
        stderr: str = "",
        *,
        timeout_s: float | None = None,
        place: str = "this machine",
    ) -> None:
        self.argv = list(argv)
        self.exit_code = exit_code
        self.stdout = stdout
        self.stderr = stderr
        self.timeout_s = timeout_s
        self.place = place
        super().__init__(self._text())

    def __reduce__(self) -> tuple[object, ...]:
        # Exceptions rebuild themselves from args, which here hold only the finished text.
        return (_rebuild_command_error, (self.__dict__.copy(),))

    def _text(self) -> str:
        lines = [f"Command {self._ending()} on {self.place}: {' '.join(map(repr, self.argv))[:_TAIL_CHARACTERS]}"]
        for label, text in (("stderr", self.stderr), ("stdout", self.stdout)):
            if tail := _tail(text):
                lines.append(f"{label}: {tail}")
        return "\n".join(lines)

    def _ending(self) -> str:
        if self.timeout_s is not None:
            return f"was stopped at its time limit of {self.timeout_s:g} s (pass a larger timeout_s if it needs longer)"
        if self.exit_code is None:
            return "was stopped"
        if self.exit_code == 127:
            return "was not found (exit code 127; is it installed there and on PATH?)"
        if 128 < self.exit_code <= 128 + 64:
            try:
                name = signal.Signals(self.exit_code - 128).name
            except ValueError:
                name = f"signal {self.exit_code - 128}"
            return f"ended by {name} (exit code {self.exit_code})"
        return f"failed with exit code {self.exit_code}"


def _tail(text: str) -> str:
    return "\n".join(text.strip()[-_TAIL_CHARACTERS:].splitlines()[-_TAIL_LINES:])


def _rebuild_command_error(state: dict[str, object]) -> CommandError:
    error = CommandError.__new__(CommandError)
    error.__dict__.update(state)
    error.args = (printable(error._text()),)  # noqa: SLF001 - same class, same module
    return error


class ComponentError(HubError):
    """A component is declared wrongly, or its step failed."""


class SignatureError(ComponentError, TypeError):
    """A component or provider is declared with the wrong parameters."""


class NoProviderError(ComponentError):
    """No provider for this step on this device.

    Also the body of every component's ``run``: raised bare it marks what dispatch replaces.
    """

    def __init__(self, message: str = "This method is a declaration; dispatch to a provider takes its place.") -> None:
        super().__init__(message)


class OutputError(ComponentError):
    """A result could not be built from what its run logged."""


class CompileError(ComponentError):
    """A model could not be compiled."""


class ProfileError(ComponentError):
    """A model could not be profiled."""


class InvokeError(ComponentError):
    """A model could not be invoked."""


class TrackingError(HubError):
    """The store cannot be used, or no run is active."""


class StoreUnusableError(TrackingError):
    """The store does not answer now: it is locked or full, or its database is gone. It may come back."""


class TooSlowError(TrackingError):
    """A question to the store was cut off at its time limit."""


class WorkerLostError(HubError):
    """The process that ran a job is gone, so its outcome is unknown."""


def blames_board(error: BaseException) -> bool:
    """Tell whether an error, or what it was made from, lies between us and a board and not in the model."""
    link: BaseException | None = error
    while link is not None:
        if isinstance(link, ConnectError | LeaseError | TransferError):
            return True
        link = link.__cause__
    return False
