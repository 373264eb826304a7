"""A torch model named on the command line, with its example inputs, transformed for a backend."""

import importlib
import inspect
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import torch
from torch import fx, nn

from embedl_deploy import transform
from embedl_deploy.backend import Backend, discover_backends, get_backend
from embedl_deploy.cli.data import batches
from embedl_deploy.errors import BackendSelectionError, InputError, UnknownBackendError, known

Tensors = tuple[torch.Tensor, ...]
_FAMILIES = {"tensorrt": "tensorrt", "onnxruntime-x86": "onnxruntime", "onnxruntime-arm": "onnxruntime"}


def load_model(name: str) -> nn.Module:
    """Return the model behind ``package.module:callable`` or a ``.pt2`` file.

    Raises:
        InputError: There is no such thing.
    """
    if name.endswith(".pt2"):
        if not Path(name).is_file():
            raise InputError(f"There is no file {name!r}.")
        try:
            return torch.export.load(name).module()
        except Exception as exc:
            raise InputError(f"{name!r} is no exported program: {_line(exc)}") from exc
    module_name, _, attribute = name.partition(":")
    if not module_name or not attribute:
        raise InputError(f"{name!r} names no model; write package.module:callable, or the path of a .pt2 file.")
    return _made(_find(module_name, attribute), name)


def _find(module_name: str, attribute: str) -> Any:
    """Import an object; modules in the current folder count, as they do for python itself."""
    sys.path.insert(0, str(Path.cwd()))
    try:
        found: Any = importlib.import_module(module_name)
    except ModuleNotFoundError as exc:
        raise InputError(f"The module {module_name!r} cannot be imported: {exc}.") from exc
    finally:
        sys.path.pop(0)
    for part in attribute.split("."):
        if not hasattr(found, part):
            callables = [name for name in dir(found) if callable(getattr(found, name)) and not name.startswith("_")]
            raise InputError(f"{module_name!r} has no {attribute!r}; it has {known(callables[:20])}.")
        found = getattr(found, part)
    return found


def _made(found: Any, name: str) -> nn.Module:
    if isinstance(found, nn.Module):
        return found.eval()
    if not callable(found):
        raise InputError(f"{name!r} is a {type(found).__name__}; a torch.nn.Module or a callable for one is needed.")
    try:
        inspect.signature(found).bind()
    except TypeError as exc:
        raise InputError(f"{name!r} cannot be called without arguments: {exc}; name one that needs none.") from exc
    model = found()
    if not isinstance(model, nn.Module):
        raise InputError(f"{name!r} gives a {type(model).__name__}; a torch.nn.Module is needed.")
    return model.eval()


def _line(exc: Exception) -> str:
    return next((line.strip() for line in str(exc).splitlines() if line.strip()), type(exc).__name__)


def tensors(place: Path) -> Iterator[Tensors]:
    """Yield batches of data as tensors in the order of the model's inputs."""
    for batch in batches(place):
        arrays = batch.values() if isinstance(batch, dict) else batch
        yield tuple(torch.from_numpy(array) for array in arrays)


def example(place: Path | None, shapes: tuple[str, ...]) -> Tensors:
    """Return example inputs: the first batch, or random numbers of the shapes given.

    Raises:
        InputError: Neither is given, or a shape is none.
    """
    if place is not None:
        return next(tensors(place))
    if not shapes:
        raise InputError("Example inputs are needed: give --data, or --shape once per input.")
    made = []
    for shape in shapes:
        sizes = shape.replace(",", "x").split("x")
        if not all(size.isdigit() and int(size) > 0 for size in sizes):
            raise InputError(f"{shape!r} is no shape; write for instance 1x3x224x224.")
        made.append(torch.randn(*map(int, sizes), generator=torch.Generator().manual_seed(0)))
    return tuple(made)


def backend_for(name: str | None, dialect: str = "") -> Backend:
    """Return a backend by name, by what a dialect is for, or the only one there is.

    Raises:
        UnknownBackendError: None has this name.
        BackendSelectionError: Several are installed and none is chosen.
    """
    wanted = name or ("onnxruntime" if dialect.startswith("onnxruntime") else _FAMILIES.get(dialect, ""))
    found = {backend.name: backend for backend in discover_backends()}
    if wanted in found:
        return found[wanted]
    if name:
        raise UnknownBackendError(f"There is no backend {name!r}; installed are {known(found)}.")
    if len(found) > 1:
        raise BackendSelectionError(f"Several backends are installed, {known(found)}; choose one with --backend.")
    return get_backend()


def transformed(model: nn.Module, args: Tensors, backend: Backend) -> fx.GraphModule:
    """Convert and fuse a model for a backend."""
    return transform(model, args, backend).model
