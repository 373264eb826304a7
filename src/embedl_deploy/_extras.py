"""What need not be installed: extras, imported on first use, and packages of others, found by entry point."""

import importlib
import warnings
from collections.abc import Callable
from importlib.metadata import entry_points
from typing import Any, Generic, TypeVar

from embedl_deploy.errors import MissingExtraError, PluginWarning

_T = TypeVar("_T")

_EXTRAS = dict.fromkeys(("click", "ml_dtypes", "numpy", "onnx", "onnxruntime", "onnxscript"), "onnx")
_EXTRAS |= {"ray": "ray", "safetensors": "safetensors", "tensorrt_rtx": "tensorrt-rtx"}


def need(module: str) -> Any:
    try:
        return importlib.import_module(module)
    except ModuleNotFoundError as exc:
        package = (exc.name or "").partition(".")[0]
        if package not in _EXTRAS:
            raise
        raise MissingExtraError(
            f"This needs the package {package!r}; pip install 'edgeproof-deploy[{_EXTRAS[package]}]'."
        ) from exc


class Registry(Generic[_T]):
    """Values by name: those of installed packages, found by entry point when first asked for, and those registered.

    A package that fails to load is left out with a `UserWarning`, and `broken` tells why.
    """

    def __init__(self, group: str, kind: type[_T]) -> None:
        self.group = group
        self.kind = kind
        self.broken: dict[str, str] = {}
        self._found: dict[str, _T] | None = None
        self._added: dict[str, _T] = {}

    def add(self, name: str, value: _T) -> None:
        self._added[name] = value

    def all(self) -> dict[str, _T]:
        """Return every value by name; what was registered comes before what is installed."""
        if self._found is None:
            self._found = {}
            for point in sorted(entry_points(group=self.group), key=lambda point: point.name):
                try:
                    value = point.load()
                except Exception as exc:  # noqa: BLE001 (a third party's import may raise anything)
                    self._leave_out(point.name, f"{type(exc).__name__}: {exc}")
                    continue
                if isinstance(value, self.kind):
                    self._found[getattr(value, "name", point.name)] = value
                else:
                    kind = f"a {type(value).__name__}, not a {self.kind.__name__}"
                    self._leave_out(point.name, f"its entry point '{point.value}' is {kind}")
        return dict(sorted({**self._found, **self._added}.items()))

    def _leave_out(self, name: str, reason: str) -> None:
        self.broken[name] = reason
        noun = self.kind.__name__.lower()
        warnings.warn(f"{noun} '{name}' could not be loaded and is left out: {reason}", PluginWarning, stacklevel=3)

    def clear(self) -> None:
        self._found, self._added, self.broken = None, {}, {}


def lazy(package: str, **names: str) -> Callable[[str], Any]:
    """Make a face's ``__getattr__`` that imports a name's file when the name is first asked for.

    Args:
        package: The face.
        names: The names that each file has, separated by spaces; two underscores stand for a dot in a file's path.
    """
    homes = {name: home.replace("__", ".") for home, listed in names.items() for name in listed.split()}

    def get(name: str) -> Any:
        if name not in homes:
            raise AttributeError(f"module {package!r} has no attribute {name!r}")
        return getattr(need(f"{package}.{homes[name]}"), name)

    return get
