"""A model in torch while it is verified: called as its own signature wants it, its layers' values recorded."""

import inspect
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import torch
from torch import fx, nn
from torch.utils import _pytree as pytree

from embedl_deploy._graph.network import modules_of
from embedl_deploy._graph.run import evaluating
from embedl_deploy.dialect._observe import to_array
from embedl_deploy.nn import QuantStub
from embedl_deploy.nn.quantized import QuantizedElementwise, QuantizedLayer

Stage = Callable[..., Any]


@dataclass(frozen=True)
class Feed:
    """One sample, by the names of the file's inputs and in their order."""

    arrays: Mapping[str, np.ndarray]
    names: Sequence[str]
    by_name: bool  # whether the user gave it by name

    def call(self, stage: Stage) -> Any:
        """Call a model: by name what was given by name, where its signature has these names."""
        tensors = {name: torch.from_numpy(np.array(self.arrays[name], order="C")) for name in self.names}
        if self.by_name and _takes(stage, self.names):
            return stage(**tensors)
        return stage(*tensors.values())

    def positional(self, placeholders: Sequence[str]) -> list[torch.Tensor]:
        """Return the tensors in the order of a graph's inputs."""
        names = placeholders if self.by_name and set(placeholders) == set(self.names) else self.names
        return [torch.from_numpy(np.array(self.arrays[name], order="C")) for name in names]


def _takes(stage: Stage, names: Sequence[str]) -> bool:
    try:
        parameters = inspect.signature(stage.forward if isinstance(stage, nn.Module) else stage).parameters.values()
    except (TypeError, ValueError):
        return False
    named = {one.name for one in parameters if one.kind in (one.POSITIONAL_OR_KEYWORD, one.KEYWORD_ONLY)}
    return set(names) <= named or any(one.kind is one.VAR_KEYWORD for one in parameters)


@dataclass
class StubValue:
    """What a stub of a quantized model made of a value."""

    stub: QuantStub
    before: np.ndarray
    after: np.ndarray


@dataclass
class Recording:
    """The values of one call."""

    outputs: list[np.ndarray]
    # By place, in the order of the calls; one that is called twice has the values of both
    values: dict[str, list[np.ndarray]] = field(default_factory=dict)
    modules: dict[str, tuple[str, ...]] = field(default_factory=dict)  # the user's modules of each place
    stubs: dict[str, StubValue] = field(default_factory=dict)  # by label
    inputs: dict[str, list[np.ndarray]] = field(default_factory=dict)  # of the modules of a model that is not a graph


def _modules(stage: Stage) -> tuple[nn.Module, ...]:
    return (stage,) if isinstance(stage, nn.Module) else ()


def call(stage: Stage, feed: Feed) -> list[np.ndarray]:
    """Call a model and return its outputs."""
    with evaluating(_modules(stage)):
        return _arrays(feed.call(stage))


def record(stage: Stage, feed: Feed) -> Recording:
    """Call a model in the arithmetic of its file's operators, in float between roundings, and record its layers."""
    stubs: dict[str, StubValue] = {}

    def keep(stub: nn.Module, args: Any, value: Any) -> None:
        assert isinstance(stub, QuantStub)
        if isinstance(value, torch.Tensor) and value.is_floating_point():
            stubs[stub.label] = StubValue(stub, _copy(args[0]), _copy(value))

    with ExitStack() as stack:
        stack.enter_context(evaluating(_modules(stage)))
        if not isinstance(stage, nn.Module):
            return Recording(_arrays(feed.call(stage)))
        stack.enter_context(_float_kernels(stage))
        for part in stage.modules():
            if isinstance(part, QuantStub):
                stack.callback(part.register_forward_hook(keep).remove)
        found = _record_graph(stage, feed) if isinstance(stage, fx.GraphModule) else _record_modules(stage, feed, stack)
    found.stubs.update(stubs)
    return found


@contextmanager
def _float_kernels(model: nn.Module) -> Iterator[None]:
    """Let layers that compute what integer kernels do compute in float, as the operators of the file are written."""
    with ExitStack() as stack:
        for part in model.modules():
            if isinstance(part, QuantizedLayer):
                stack.callback(setattr, part, "grid", part.grid)
                part.grid = None
            elif isinstance(part, QuantizedElementwise):
                part.training = True
        yield


class _Recorder(fx.Interpreter):
    def __init__(self, model: fx.GraphModule) -> None:
        super().__init__(model)
        self.seen: dict[str, list[np.ndarray]] = {}
        self.modules_of: dict[str, tuple[str, ...]] = {}

    def run_node(self, n: fx.Node) -> Any:
        value = super().run_node(n)
        if n.op in ("call_module", "call_function", "call_method") and not str(n.target).startswith("stubs."):
            place = str(n.meta.get("place", n.target if n.op == "call_module" else n.name))
            _put(self.seen, place, value)
            self.modules_of.setdefault(place, modules_of(n))
        return value


def _record_graph(model: fx.GraphModule, feed: Feed) -> Recording:
    recorder = _Recorder(model)
    names = [str(node.target) for node in model.graph.nodes if node.op == "placeholder"]
    result = recorder.run(*feed.positional(names))
    return Recording(_arrays(result), recorder.seen, recorder.modules_of)


def _record_modules(model: nn.Module, feed: Feed, stack: ExitStack) -> Recording:
    seen: dict[str, list[np.ndarray]] = {}
    inputs: dict[str, list[np.ndarray]] = {}

    def keep(name: str) -> Callable[..., None]:
        def look(_: nn.Module, args: Any, kwargs: Any, value: Any) -> None:
            _put(seen, name, value)
            inputs[name] = _arrays((args, kwargs))

        return look

    for name, part in model.named_modules():
        if name:
            stack.callback(part.register_forward_hook(keep(name), with_kwargs=True).remove)
    outputs = _arrays(feed.call(model))
    return Recording(outputs, seen, {name: (name,) for name in seen}, inputs=inputs)


def _put(seen: dict[str, list[np.ndarray]], place: str, value: Any) -> None:
    seen.setdefault(place, []).extend(_arrays(value))


def _copy(value: Any) -> np.ndarray:
    return np.array(to_array(value))


def _arrays(value: Any) -> list[np.ndarray]:
    """Return the tensors of a result, in its order; copies, because later layers may work in place."""
    return [_copy(leaf) for leaf in pytree.tree_leaves(value) if leaf is not None]


def first_random_layer(stage: Stage, feed: Feed) -> str | None:
    """Return the first layer that answers otherwise when it is asked again; None if every answer is the same."""
    if _same(call(stage, feed), call(stage, feed)):
        return None
    first, again = record(stage, feed), record(stage, feed)
    for place, values in first.values.items():
        if place in again.values and not _same(values, again.values[place]):
            own = place not in first.inputs or _same(first.inputs[place], again.inputs[place])
            modules = first.modules.get(place) or (place,)
            # What changed lies before this module: in the code of the module that calls it.
            return modules[0] or place if own else place.rpartition(".")[0]
    return ""


def _same(first: Sequence[np.ndarray], second: Sequence[np.ndarray]) -> bool:
    return len(first) == len(second) and all(_alike(one, two) for one, two in zip(first, second, strict=True))


def _alike(one: np.ndarray, two: np.ndarray) -> bool:
    """Tell whether two arrays are the same but for sums that several threads added up in another order."""
    if one.shape != two.shape or one.dtype.kind != "f" or np.array_equal(one, two, equal_nan=True):
        return one.shape == two.shape
    with np.errstate(invalid="ignore", over="ignore"):
        return bool(np.max(np.abs(one - two)) <= 1e-4 * np.max(np.abs(one)))
