"""Every error deploy raises for something a user can act on.

A rewrite that is not done is no error: it is a `Refusal` with its reason in the plan and the report.
Anything else that escapes is a bug of ours and keeps its traceback.
"""

from collections.abc import Iterable

__all__ = [
    "BackendSelectionError",
    "CalibrationError",
    "DeployError",
    "DialectError",
    "ExportError",
    "InputError",
    "MissingExtraError",
    "ModelFileError",
    "PatternError",
    "PlanError",
    "PluginWarning",
    "QuantizationError",
    "TargetError",
    "TraceError",
    "UnknownBackendError",
    "first_line",
    "quoted_list",
]


def quoted_list(names: Iterable[object]) -> str:
    """List names for a message: sorted, quoted, or the word "none"."""
    return ", ".join(sorted(repr(str(name)) for name in names)) or "none"


def first_line(exc: BaseException) -> str:
    """Return the first line of an exception's text, its class where it has none."""
    return next((line.strip() for line in str(exc).splitlines() if line.strip()), type(exc).__name__)


class DeployError(Exception):
    """Root of everything a user can act on."""


class PluginWarning(UserWarning):
    """A backend, dialect or target of an installed package could not be loaded; the others still work."""


class UnknownBackendError(DeployError, ValueError):
    """No installed backend has this name."""


class BackendSelectionError(DeployError, RuntimeError):
    """No backend is installed, or several are and none was chosen."""


class PatternError(DeployError, ValueError):
    """A pattern is declared wrongly or stands in the wrong list."""


class TraceError(DeployError):
    """The model could not be turned into a graph.

    Attributes:
        place: Qualified name of the module that stopped the trace, empty for the model itself.
        line: ``file:line`` of the model's own code, when one was found.
    """

    def __init__(self, message: str, *, place: str = "", line: str = "") -> None:
        super().__init__(message)
        self.place = place
        self.line = line


class InputError(DeployError, ValueError):
    """The example inputs do not fit the model."""


class PlanError(DeployError):
    """No plan can be made, or a plan is used wrongly."""


class TargetError(DeployError, ValueError):
    """A target is unknown, or named beside what it names itself."""


class DialectError(DeployError, ValueError):
    """A dialect is unknown, or cannot express what a file says.

    Attributes:
        dialect: The dialect's name, empty when none was found.
        places: The tensors or nodes concerned.
    """

    def __init__(self, message: str, *, dialect: str = "", places: Iterable[str] = ()) -> None:
        super().__init__(message)
        self.dialect = dialect
        self.places = tuple(places)


class ModelFileError(DeployError, ValueError):
    """A file is no ONNX model, or one that cannot be worked on.

    Attributes:
        path: The file, empty for a model in memory.
    """

    def __init__(self, message: str, *, path: str = "") -> None:
        super().__init__(message)
        self.path = path


class MissingExtraError(DeployError, ImportError):
    """A package of an extra is not installed."""


class QuantizationError(DeployError, ValueError):
    """A choice about quantization that cannot be met."""


class CalibrationError(DeployError):
    """The calibration data is missing or unusable.

    Attributes:
        place: The value at which it was noticed, empty when it is about the whole run.
        batch: The batch that the model does not take, counted from 1; None when it is about something else.
    """

    def __init__(self, message: str, *, place: str = "", batch: int | None = None) -> None:
        super().__init__(message)
        self.place = place
        self.batch = batch


class ExportError(DeployError):
    """The model cannot be written as ONNX."""
