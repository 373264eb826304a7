"""LiteRT interpreters: the only file that knows the runtime's Python side."""

from __future__ import annotations

import contextlib
import importlib
import importlib.util
from pathlib import Path
from typing import Any, Callable, Dict, List, NamedTuple, Optional

import numpy as np

from embedl_device.arrays import Arrays, Tensor
from embedl_device.errors import BoardError, first_words
from embedl_litert.memory import arena_of, missing

PROGRAM = "embedl-litert"
DISTRIBUTION = "ai-edge-litert"
_MODULE = "ai_edge_litert"


class Settings(NamedTuple):
    """How the runtime is to run a model."""

    threads: Optional[int] = None  # threads within one operator; None leaves it to the runtime
    xnnpack: bool = True  # let the XNNPACK delegate take the operators it can


def runtime() -> Any:
    """Return LiteRT's interpreter module, or say how to get it."""
    try:
        return importlib.import_module(_MODULE + ".interpreter")
    except ImportError as error:
        raise BoardError(
            "LiteRT is not installed for this Python ({}). Install it with: python3 -m pip install {}".format(
                error, DISTRIBUTION
            )
        ) from error


def runtime_version() -> Optional[str]:
    """Return LiteRT's version; None when it does not say."""
    import importlib.metadata

    with contextlib.suppress(importlib.metadata.PackageNotFoundError):
        return importlib.metadata.version(DISTRIBUTION)
    return None


def runtime_folder() -> Optional[Path]:
    """Return where LiteRT is installed, without importing it."""
    spec = importlib.util.find_spec(_MODULE)
    places = None if spec is None else spec.submodule_search_locations
    return Path(list(places)[0]) if places else None  # noqa: RUF015 - a namespace path has no index


class Model:
    """A loaded model."""

    def __init__(self, path: Path, settings: Settings) -> None:
        module = runtime()
        if not path.is_file():
            raise BoardError("There is no model {}.".format(path))
        resolver = module.OpResolverType
        kind = resolver.AUTO if settings.xnnpack else resolver.BUILTIN_WITHOUT_DEFAULT_DELEGATES
        try:
            self._interpreter = module.Interpreter(
                model_path=str(path), num_threads=settings.threads, experimental_op_resolver_type=kind
            )
            self._interpreter.allocate_tensors()
        except Exception as error:  # the runtime raises ValueError and RuntimeError for everything
            raise BoardError(
                "LiteRT {} cannot load {}: {}".format(runtime_version(), path, first_words(error))
            ) from error
        self._inputs = {value["name"]: value for value in self._interpreter.get_input_details()}
        self._outputs = {value["name"]: value for value in self._interpreter.get_output_details()}

    @property
    def inputs(self) -> List[Tensor]:
        """The model's inputs."""
        return [_tensor(value) for value in self._inputs.values()]

    def run(self, feed: Arrays) -> Arrays:
        """Run the model once."""
        run = self.runner(feed)
        try:
            run()
        except Exception as error:  # the runtime raises ValueError and RuntimeError for everything
            raise BoardError("LiteRT failed while running the model: {}".format(first_words(error))) from error
        return {name: self._interpreter.get_tensor(value["index"]) for name, value in self._outputs.items()}

    def runner(self, feed: Arrays) -> Callable[[], object]:
        """Return a function that runs the model and nothing else, for timing."""
        for name, value in self._inputs.items():
            # One that needs another shape is laid out anew, which is no part of the measured time.
            if list(value["shape"]) != list(feed[name].shape):
                self._interpreter.resize_tensor_input(value["index"], list(feed[name].shape))
        self._interpreter.allocate_tensors()
        for name, value in self._inputs.items():
            self._interpreter.set_tensor(value["index"], np.ascontiguousarray(feed[name]))
        invoke: Callable[[], object] = self._interpreter.invoke
        return invoke

    def memory(self) -> Dict[str, Any]:
        """Return what the runtime shows of its arena."""
        try:
            return arena_of(self._interpreter)
        except (AttributeError, KeyError, TypeError, RuntimeError) as error:
            return missing("this version of LiteRT does not show it: {}".format(first_words(error)))


def _tensor(value: Dict[str, Any]) -> Tensor:
    open_sizes = value.get("shape_signature", value["shape"])
    shape = tuple(int(size) if size >= 0 else None for size in open_sizes)
    return Tensor(value["name"], np.dtype(value["dtype"]).name, shape)
