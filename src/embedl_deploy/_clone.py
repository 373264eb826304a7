"""Copy a model's structure without copying its weights.

The copy may be traced, switched between train and eval, and taken apart; the user's model stays as it was.
Parameters and buffers are the same tensors, except statistics that a forward pass updates: those are copied.
"""

import types
from collections.abc import Mapping

from torch import nn

_STATISTICS = (nn.modules.batchnorm._NormBase,)


def clone_module(model: nn.Module) -> nn.Module:
    """Return a structural copy of `model` that shares its weights."""
    return clone_modules({"": model})[""]


def clone_modules(modules: Mapping[str, nn.Module]) -> dict[str, nn.Module]:
    """Return structural copies of several modules; what they have in common, the copies have in common too."""
    found = {id(part): part for module in modules.values() for part in module.modules()}
    twins: dict[int, nn.Module] = {key: object.__new__(type(part)) for key, part in found.items()}
    for part in found.values():
        _fill(part, twins)
    return {name: twins[id(module)] for name, module in modules.items()}


def _fill(module: nn.Module, twins: Mapping[int, nn.Module]) -> None:
    """Give a twin its own dictionaries, pointing at other twins."""
    twin = twins[id(module)]
    for name, value in module.__dict__.items():
        if name == "_buffers":
            copied = isinstance(module, _STATISTICS)
            twin.__dict__[name] = {k: v.clone() if copied and v is not None else v for k, v in value.items()}
        else:
            twin.__dict__[name] = _mirror(value, twins)


def _mirror(value: object, twins: Mapping[int, nn.Module]) -> object:
    """Replace modules by their twins in the places where models keep them."""
    if isinstance(value, nn.Module):
        return twins.get(id(value), value)
    if isinstance(value, types.MethodType) and id(value.__self__) in twins:
        return types.MethodType(value.__func__, twins[id(value.__self__)])
    if type(value) is dict:
        return {key: _mirror(one, twins) for key, one in value.items()}
    if type(value) is list:
        return [_mirror(one, twins) for one in value]
    if type(value) is tuple:
        return tuple(_mirror(one, twins) for one in value)
    return value.copy() if isinstance(value, dict) else value
