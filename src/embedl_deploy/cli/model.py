"""A torch model named on the command line, and its example inputs."""

import importlib
import inspect
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import torch
from torch import nn

from embedl_deploy._trace.archive import load_exported
from embedl_deploy.cli.data import batches
from embedl_deploy.errors import InputError, quoted_list

Tensors = tuple[torch.Tensor, ...]


def load_model(name: str) -> nn.Module:
    """Return the model behind ``package.module:callable`` or a ``.pt2`` file."""
    if name.endswith(".pt2"):
        return load_exported(Path(name)).module()
    module_name, _, attribute = name.partition(":")
    if not module_name or not attribute:
        raise InputError(f"{name!r} names no model; write package.module:callable, or the path of a .pt2 file.")
    return _made(_find(module_name, attribute), name)


def _find(module_name: str, attribute: str) -> Any:
    """Import an object; modules in the current folder count, after installed ones, so that none stands in for torch."""
    here = str(Path.cwd())
    sys.path.append(here)
    try:
        found: Any = importlib.import_module(module_name)
    except ModuleNotFoundError as exc:
        raise InputError(f"The module {module_name!r} cannot be imported: {exc}.") from exc
    finally:
        sys.path.remove(here)
    for part in attribute.split("."):
        if not hasattr(found, part):
            callables = [name for name in dir(found) if callable(getattr(found, name)) and not name.startswith("_")]
            raise InputError(f"{module_name!r} has no {attribute!r}; it has {quoted_list(callables[:20])}.")
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


def tensors(path: Path) -> Iterator[Tensors]:
    """Yield batches of data as tensors in the order of the model's inputs."""
    for batch in batches(path):
        arrays = batch.values() if isinstance(batch, dict) else batch
        yield tuple(torch.from_numpy(array) for array in arrays)


def example(path: Path | None, shapes: tuple[str, ...]) -> Tensors:
    """Return example inputs: the first batch, or random numbers of the shapes given."""
    if path is not None:
        return next(tensors(path))
    if not shapes:
        raise InputError("Example inputs are needed: give --data, or --shape once per input.")
    made = []
    for shape in shapes:
        sizes = shape.replace(",", "x").split("x")
        if not all(size.isdigit() and int(size) > 0 for size in sizes):
            raise InputError(f"{shape!r} is no shape; write for instance 1x3x224x224.")
        made.append(torch.randn(*map(int, sizes), generator=torch.Generator().manual_seed(0)))
    return tuple(made)
