"""Weights that are computed become plain ones: parametrizations, hooks, and what a graph computes of constants.

In eval mode a computed weight is the same at every call, so it can be quantized like any other. A layer that is
training keeps its parametrization.
"""

from collections.abc import Iterator, Sequence
from typing import Any

import torch
from torch import fx, nn
from torch.nn.utils.prune import BasePruningMethod
from torch.nn.utils.spectral_norm import SpectralNorm
from torch.nn.utils.weight_norm import WeightNorm

from embedl_deploy._graph.network import Network, writes

_RANDOM = ("rand", "dropout", "bernoulli", "normal", "multinomial", "empty")


def settle_weights(model: nn.Module) -> tuple[str, ...]:
    """Evaluate computed weights of a structural copy, in place; return a note for every layer."""
    notes = []
    for place, part in list(model.named_modules()):
        if part.training or place.endswith("parametrizations") or ".parametrizations." in f".{place}.":
            continue
        found = [*_parametrized(part), *_hooked(part)]
        notes += [f"'{place}': {name} is computed ({how}); it is evaluated to a plain weight" for name, how in found]
    return tuple(notes)


def _parametrized(part: nn.Module) -> Iterator[tuple[str, str]]:
    """Evaluate what torch.nn.utils.parametrize computes; the class it made belongs to the user's module as well."""
    holder: Any = part._modules.get("parametrizations")
    if holder is None:
        return
    with torch.no_grad():
        values = {name: getattr(part, name).detach().clone() for name in holder}
    trained = {name: any(weight.requires_grad for weight in holder[name].parameters()) for name in holder}
    kinds = {name: ", ".join(type(step).__name__.strip("_") for step in holder[name]) for name in holder}
    del part._modules["parametrizations"]
    part.__class__ = type(part).__mro__[1]
    for name, value in values.items():
        part.register_parameter(name, nn.Parameter(value, requires_grad=trained[name]))
        yield name, kinds[name]


def _hooked(part: nn.Module) -> Iterator[tuple[str, str]]:
    """Evaluate what a hook of torch computes before every call."""
    for key, hook in list(part._forward_pre_hooks.items()):
        evaluated = _evaluated(part, hook)
        if evaluated is None:
            continue
        name, value, sources = evaluated
        del part._forward_pre_hooks[key]
        trained = any(part._parameters[source].requires_grad for source in sources if source in part._parameters)  # type: ignore[union-attr]
        for source in sources:
            part._parameters.pop(source, None)
            part._buffers.pop(source, None)
        part.__dict__.pop(name, None)
        part.register_parameter(name, nn.Parameter(value.detach().clone(), requires_grad=trained))
        yield name, type(hook).__name__


def _evaluated(part: nn.Module, hook: Any) -> tuple[str, torch.Tensor, Sequence[str]] | None:
    """Return the name and the value of the tensor that a hook computes, and what it computes it from."""
    with torch.no_grad():
        if isinstance(hook, WeightNorm):
            return hook.name, hook.compute_weight(part), (f"{hook.name}_g", f"{hook.name}_v")
        if isinstance(hook, SpectralNorm):
            value = hook.compute_weight(part, do_power_iteration=False)
            return hook.name, value, (f"{hook.name}_orig", f"{hook.name}_u", f"{hook.name}_v")
        if isinstance(hook, BasePruningMethod):
            name = hook._tensor_name
            value = hook.apply_mask(part)  # type: ignore[no-untyped-call]
            return name, value, (f"{name}_orig", f"{name}_mask")
    return None


class Constants:
    """What nodes of a graph are, where they are computed from parameters and buffers alone."""

    def __init__(self, network: Network) -> None:
        self._network = network
        self._known: dict[fx.Node, Any] = {}

    def tensor(self, node: object) -> torch.Tensor | None:
        """Return a node's value as a tensor; a view shares the memory of its parameter."""
        value = self._value(node) if isinstance(node, fx.Node) else None
        return value if isinstance(value, torch.Tensor) and value.is_floating_point() else None

    def is_fixed(self, node: fx.Node) -> bool:
        """Say whether a node is computed from tensors alone that no training changes."""
        sources = self._sources(node)
        return self._value(node) is not None and not any(source.requires_grad for source in sources)

    def erase_unused(self) -> None:
        """Erase the nodes whose values were taken over and that nobody reads any more."""
        for node in sorted(self._known, reverse=True):
            if not node._erased and not node.users and node.op != "placeholder":
                self._network.erase([node])

    def _sources(self, node: fx.Node) -> list[torch.Tensor]:
        own = self._network.tensor_of(node)
        if own is not None:
            return [own]
        return [source for used in node.all_input_nodes for source in self._sources(used)]

    def _value(self, node: fx.Node) -> Any:
        if node.op == "get_attr":
            return self._network.tensor_of(node)
        if node not in self._known:
            value = self._computed(node)
            if value is None:
                return None
            self._known[node] = value
        return self._known[node]

    def _computed(self, node: fx.Node) -> Any:
        inputs = node.all_input_nodes
        name = str(node.target) if node.op == "call_method" else getattr(node.target, "__name__", "")
        if node.op in ("placeholder", "output") or not inputs or any(word in name for word in _RANDOM):
            return None
        module = self._network.module_of(node)
        if writes(self._network, node) or (module is not None and next(module.parameters(), None) is not None):
            return None
        values = {used: self._value(used) for used in inputs}
        if any(value is None for value in values.values()):
            return None
        args, kwargs = fx.node.map_arg((node.args, node.kwargs), values.__getitem__)
        with torch.no_grad():
            if module is not None:
                value = module(*args, **kwargs)
            elif node.op == "call_method":
                value = getattr(args[0], str(node.target))(*args[1:], **kwargs)
            else:
                value = node.target(*args, **kwargs)  # type: ignore[operator]
        if isinstance(value, torch.Tensor) and value.is_floating_point():
            trained = any(source.requires_grad for source in self._sources(node))
            return value.detach().requires_grad_(trained)
        return value
