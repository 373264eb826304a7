"""Run a graph node by node on given inputs, letting a visitor see every value once.

Values are dropped after their last use, so a run needs no more memory than the model itself would.
"""

import contextlib
import time
from collections.abc import Callable, Iterable, Iterator, Mapping
from typing import Any

import torch
from torch import fx, nn
from torch.utils import _pytree as pytree

from embedl_deploy.errors import InputError


class Clock:
    """Adds up the time spent inside ``with clock:``."""

    def __init__(self) -> None:
        self.seconds = 0.0
        self._started = 0

    def __enter__(self) -> None:
        self._started = time.perf_counter_ns()

    def __exit__(self, *_: object) -> None:
        self.seconds += (time.perf_counter_ns() - self._started) / 1e9


Visit = Callable[[fx.Node, Any], None]


def bind(graph: fx.Graph, args: tuple[Any, ...], kwargs: Mapping[str, Any]) -> dict[fx.Node, Any]:
    """Pair the graph's placeholders with the values of a call."""
    placeholders = [node for node in graph.nodes if node.op == "placeholder"]
    info = getattr(graph._codegen, "pytree_info", None)
    if info is not None:
        return dict(zip(placeholders, flatten_call(info.in_spec, args, kwargs), strict=True))
    names = [str(node.target) for node in placeholders]
    bound = {}
    if len(args) > len(names):
        raise InputError(f"{len(args)} positional inputs were given, the model takes {len(names)}: {', '.join(names)}.")
    if unknown := set(kwargs) - set(names[len(args) :]):
        raise InputError(f"the model takes no input called {', '.join(sorted(unknown))}; it takes: {', '.join(names)}.")
    for position, node in enumerate(placeholders):
        if position < len(args):
            bound[node] = args[position]
        elif node.target in kwargs:
            bound[node] = kwargs[str(node.target)]
        elif node.args:
            bound[node] = node.args[0]
        else:
            raise InputError(
                f"no example value was given for the input '{node.target}'; the model takes: {', '.join(names)}."
            )
    return bound


def flatten_call(spec: pytree.TreeSpec, args: tuple[Any, ...], kwargs: Mapping[str, Any]) -> list[Any]:
    """Flatten a call the way torch.export did when it made the graph."""
    order = spec.child(1).context
    if set(order) != set(kwargs):
        raise InputError(f"the model was exported with the keyword inputs {list(order)}, this call has {list(kwargs)}.")
    flat, found = pytree.tree_flatten((args, {name: kwargs[name] for name in order}))
    if found != spec:
        raise InputError(f"the model was exported for inputs like {spec}, this call has {found}.")
    return flat


def run_graph(
    graph: fx.Graph,
    modules: Mapping[str, nn.Module],
    tensors: Mapping[str, Any],
    inputs: Mapping[fx.Node, Any],
    visit: Visit | None = None,
) -> Any:
    """Run every node and return what the output node holds (flat for exported graphs)."""
    values: dict[fx.Node, Any] = {}
    waiting = {node: len(node.users) for node in graph.nodes}
    for node in graph.nodes:
        args, kwargs = fx.node.map_arg((node.args, node.kwargs), values.__getitem__)
        match node.op:
            case "placeholder":
                value = inputs[node]
            case "get_attr":
                value = tensors[str(node.target)]
            case "call_module":
                value = modules[str(node.target)](*args, **kwargs)
            case "call_function":
                value = node.target(*args, **kwargs)
            case "call_method":
                value = getattr(args[0], str(node.target))(*args[1:], **kwargs)
            case _:
                return args[0]
        values[node] = value
        if visit is not None:
            visit(node, value)
        for used in node.all_input_nodes:
            waiting[used] -= 1
            if not waiting[used]:
                del values[used]
    raise AssertionError("a graph without an output node")


@contextlib.contextmanager
def evaluating(modules: Iterable[nn.Module]) -> Iterator[None]:
    """Put modules in eval mode without gradients, and give every one its own mode back."""
    with evaluating_parts([part for module in modules for part in module.modules()]):
        yield


@contextlib.contextmanager
def evaluating_parts(parts: Iterable[nn.Module]) -> Iterator[None]:
    """Put modules, but not those inside them, in eval mode without gradients, and give every one its own mode back."""
    modes = {part: part.training for part in parts}
    try:
        # Past `nn.Module.__setattr__`, which looks for parameters first: there are hundreds of modules.
        for part in modes:
            vars(part)["training"] = False
        with torch.no_grad():
            yield
    finally:
        for part, mode in modes.items():
            vars(part)["training"] = mode
