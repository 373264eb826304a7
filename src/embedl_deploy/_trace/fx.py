"""The first front end: symbolic tracing by torch.fx.

Modules of torch.nn are one step each, composites such as Sequential and TransformerEncoderLayer are looked into.
An input that has a default and was not given keeps its default, instead of becoming an input that is never None.
"""

import functools
import inspect
import traceback
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from torch import fx, nn

from embedl_deploy._graph.network import Example, Network, attribute_of, is_one_step, plain_base
from embedl_deploy.errors import first_line

_TORCH = str(Path(torch.__file__).parent)
_OURS = str(Path(__file__).parent.parent)


def user_line(exc: BaseException) -> str:
    """Return ``file:line: source`` of the innermost frame that is neither torch's nor ours, or an empty string."""
    frames = traceback.extract_tb(exc.__traceback__)
    theirs = (frame for frame in reversed(frames) if not frame.filename.startswith((_TORCH, _OURS, "<")))
    return next((f"{frame.filename}:{frame.lineno}: {frame.line or frame.name}".rstrip() for frame in theirs), "")


@dataclass(frozen=True)
class TraceFailure:
    """Where and why a front end gave up."""

    place: str
    line: str
    reason: str

    def __str__(self) -> str:
        return f"{self.line}: {self.reason}" if self.line else self.reason


class TraceFailedError(Exception):
    """Carries a `TraceFailure` out of the tracer; never leaves this package."""

    def __init__(self, failure: TraceFailure) -> None:
        super().__init__(failure.reason)
        self.failure = failure


def trace_fx(
    model: nn.Module, example: Example | None, opaque: frozenset[str] = frozenset()
) -> tuple[Network, list[str]]:
    """Trace a structural copy of the user's model; `opaque` submodules are kept whole.

    Returns:
        The network, and the places whose code asks whether the model is training.
    """
    tracer = _Tracer(model, example, opaque)
    try:
        graph = tracer.trace(model)
    except Exception as exc:
        place = tracer.entered[-1] if tracer.entered else ""
        raise TraceFailedError(TraceFailure(place, user_line(exc), f"{type(exc).__name__}: {first_line(exc)}")) from exc
    # A pickled graph module is traced again by its tracer class; ours needs the model, the default one does not.
    graph._tracer_cls = None
    modules = dict(model.named_modules(remove_duplicate=False))
    tensors = {
        str(node.target): attribute_of(tracer.root, str(node.target)) for node in graph.nodes if node.op == "get_attr"
    }
    return Network(graph, modules, tensors, type(model).__name__, model.training, example), tracer.mode_readers


class _Tracer(fx.Tracer):
    """Decides what is one step, what is an input, and remembers where it is."""

    def __init__(self, model: nn.Module, example: Example | None, opaque: frozenset[str]) -> None:
        super().__init__()
        self.entered: list[str] = []
        self.mode_readers: list[str] = []
        self._leaves: dict[nn.Module, bool] = {}
        self._opaque = {model.get_submodule(place) for place in opaque}
        self._inputs = _inputs(model, example)

    def is_leaf_module(self, m: nn.Module, module_qualified_name: str) -> bool:
        """Say whether a module is one step; asked several times for each, so remembered."""
        known = self._leaves.get(m)
        if known is None:
            known = self._leaves[m] = self._is_leaf(m, module_qualified_name)
        return known

    def _is_leaf(self, m: nn.Module, module_qualified_name: str) -> bool:
        if m in self._opaque or is_one_step(m) or "parametrizations" in m._modules:
            return True
        if isinstance(m, nn.MultiheadAttention):
            return type(m) is nn.MultiheadAttention
        if super().is_leaf_module(m, module_qualified_name) or plain_base(type(m)) is not None:
            return next(m.children(), None) is None
        # A childless module that asks for the mode (stochastic depth, say) would be frozen in the mode of the trace.
        return _reads_mode(type(m).forward) and next(m.children(), None) is None and next(m.parameters(), None) is None

    def call_module(self, m: nn.Module, forward: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
        """Note which module is being traced, so that a failure has a place."""
        place = self.path_of_module(m)
        leaf = self.is_leaf_module(m, place)
        self.entered.append(place)
        is_norm = isinstance(m, nn.modules.batchnorm._NormBase)
        if not leaf and is_norm:
            # A subclass with another forward is looked into; torch's own check of the rank would branch on a value.
            m.__dict__["_check_input_dim"] = _accept
        # A batch norm becomes a module again, which follows train() and eval().
        if not leaf and not is_norm and _reads_mode(type(m).forward) and place not in self.mode_readers:
            self.mode_readers.append(place)
        result = super().call_module(m, forward, args, kwargs)
        self.entered.pop()
        return result

    def create_proxy(self, kind: str, target: Any, args: Any, kwargs: Any, *rest: Any, **named: Any) -> Any:
        if kind != "placeholder":
            return super().create_proxy(kind, target, args, kwargs, *rest, **named)
        if target.startswith("*"):
            raise TypeError(f"forward takes {target}, which symbolic tracing cannot see into")
        settled = self._inputs[target]
        if not settled.given:
            return settled.value
        proxy = super().create_proxy(kind, target, args, kwargs, *rest, **named)
        return settled.value if settled.constant else proxy


@dataclass(frozen=True)
class _Input:
    """What the tracer makes of one parameter of forward."""

    given: bool
    constant: bool = False
    value: Any = None


def _inputs(model: nn.Module, example: Example | None) -> Mapping[str, _Input]:
    """Decide for every parameter of forward whether it is an input, a constant, or left at its default."""
    parameters = inspect.signature(model.forward).parameters
    given: Mapping[str, object] = {}
    if example is not None:
        names = [name for name, parameter in parameters.items() if parameter.kind is not inspect.Parameter.KEYWORD_ONLY]
        given = {**dict(zip(names, example.args, strict=False)), **example.kwargs}
    inputs = {}
    for name, parameter in parameters.items():
        if name in given:
            plain = isinstance(given[name], bool | int | float | str | None)
            inputs[name] = _Input(given=True, constant=plain, value=given[name])
        else:
            needed = parameter.default is inspect.Parameter.empty
            inputs[name] = _Input(given=needed, value=None if needed else parameter.default)
    return inputs


def _accept(_: object) -> None:
    """Check nothing: the example inputs have shown that the rank is right."""


@functools.cache
def _reads_mode(forward: Callable[..., Any]) -> bool:
    """Say whether a module's own forward looks at ``self.training``."""
    code = getattr(inspect.unwrap(forward), "__code__", None)
    return code is not None and "training" in code.co_names
