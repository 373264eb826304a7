"""Copy a model's structure without copying its weights.

The copy may be traced, switched between train and eval, and taken apart; the user's model stays as it was.
Parameters and buffers are the same tensors, except statistics that a forward pass updates: those are copied.
"""

import copy
import types
import warnings
from collections import OrderedDict
from collections.abc import Mapping
from typing import TypeVar

import torch
from torch import nn

_Model = TypeVar("_Model", bound=nn.Module)
_PLAIN = (bool, int, float, str, type(None), torch.dtype)
_STATISTICS = (nn.modules.batchnorm._NormBase,)


def clone_module(model: nn.Module) -> nn.Module:
    """Return a structural copy of `model` that shares its weights."""
    return clone_modules({"": model})[""]


def copy_deep(model: _Model) -> _Model:
    """Return a copy with weights of its own; torch's pytree complains of its own code when a graph of its is copied."""
    with warnings.catch_warnings():
        warnings.filterwarnings("ignore", "`isinstance\\(treespec, LeafSpec\\)`", FutureWarning)
        return copy.deepcopy(model)


def clone_modules(modules: Mapping[str, nn.Module]) -> dict[str, nn.Module]:
    """Return structural copies of several modules; what they have in common, the copies have in common too."""
    found = {id(part): part for module in modules.values() for part in module.modules()}
    twins: dict[int, nn.Module] = {key: object.__new__(type(part)) for key, part in found.items()}
    for part in found.values():
        _fill(part, twins)
    return {name: twins[id(module)] for name, module in modules.items()}


def _fill(module: nn.Module, twins: Mapping[int, nn.Module]) -> None:
    """Give a twin its own dictionaries, pointing at other twins."""
    state = module.__dict__.copy()
    for name, value in state.items():
        kind = type(value)
        if kind is OrderedDict:
            state[name] = value.copy()  # hooks
        elif kind is dict and not value:
            state[name] = {}
        elif kind not in _PLAIN and not (kind is tuple and all(type(item) in _PLAIN for item in value)):
            state[name] = _copy_value(value, twins)
    if isinstance(module, _STATISTICS):
        state["_buffers"] = {
            name: None if buffer is None else buffer.clone() for name, buffer in module._buffers.items()
        }
    twins[id(module)].__dict__.update(state)


def _copy_value(value: object, twins: Mapping[int, nn.Module]) -> object:
    """Replace modules by their twins in the places where models keep them."""
    if isinstance(value, nn.Module):
        return twins.get(id(value), value)
    if isinstance(value, types.MethodType) and id(value.__self__) in twins:
        return types.MethodType(value.__func__, twins[id(value.__self__)])
    if type(value) is dict:
        return {key: _copy_value(item, twins) for key, item in value.items()}
    if isinstance(value, list | tuple) and type(value) in (list, tuple):
        return type(value)(_copy_value(item, twins) for item in value)
    return value
