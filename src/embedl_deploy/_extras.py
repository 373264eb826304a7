"""Faces whose bodies need an extra: imported on first use, and a missing package is answered with the install line."""

import importlib
from collections.abc import Callable, Mapping
from typing import Any

from embedl_deploy.errors import MissingExtraError

_EXTRAS = {
    "click": "onnx",
    "ml_dtypes": "onnx",
    "numpy": "onnx",
    "onnx": "onnx",
    "onnxruntime": "onnx",
    "onnxscript": "onnx",
    "ray": "ray",
    "tensorrt_rtx": "tensorrt-rtx",
}


def need(module: str) -> Any:
    """Import a module of an extra.

    Raises:
        MissingExtraError: The package is not installed.
    """
    try:
        return importlib.import_module(module)
    except ModuleNotFoundError as exc:
        package = (exc.name or "").partition(".")[0]
        if package not in _EXTRAS:
            raise
        raise MissingExtraError(
            f"This needs the package {package!r}; pip install 'edgeproof-deploy[{_EXTRAS[package]}]'."
        ) from exc


def lazy(package: str, homes: Mapping[str, str]) -> Callable[[str], Any]:
    """Make a face's ``__getattr__`` that imports a name's file when the name is first asked for."""

    def get(name: str) -> Any:
        if name not in homes:
            raise AttributeError(f"module {package!r} has no attribute {name!r}")
        return getattr(need(f"{package}.{homes[name]}"), name)

    return get
