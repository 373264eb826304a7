"""Which dimensions of a model's inputs stay open, by name, and inputs of another size to try that on."""

import inspect
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import fx, nn
from torch.export import Dim
from torch.utils import _pytree as pytree

from embedl_deploy.errors import InputError, quoted_list

DimLike = str | Dim | object
"""A name, a ``torch.export.Dim``, or ``Dim.AUTO`` and ``Dim.DYNAMIC``, which get a name of their own."""
DynamicShapes = Mapping[str, Mapping[int, DimLike] | None] | Sequence[Mapping[int, DimLike] | None]
"""Open dimensions by the name of an input, or in the order of the inputs; None for an input that has none."""
Dims = tuple[Mapping[int, str], ...]
_INPUT = "edgeproof.input"
_SMALLEST = 2  # torch.export settles sizes of 0 and 1 for good


@dataclass(frozen=True)
class OpenDim:
    """One open dimension of one input."""

    input: str
    dim: int
    name: str
    size: int

    def __str__(self) -> str:
        return f"'{self.name}' (dimension {self.dim} of '{self.input}', {self.size} in the example inputs)"


def read_dynamic_shapes(
    model: nn.Module, args: tuple[Any, ...], kwargs: Mapping[str, Any], given: DynamicShapes | None
) -> Dims:
    """Return the names of the open dimensions of every tensor that a model is called with, in the order of the call.

    A name means every tensor behind that input: the list ``past``, or one of it, ``past_0``.

    Raises:
        InputError: An input or a dimension does not exist, or one name means two sizes.
    """
    if given is None:
        return ()
    leaves = pytree.tree_leaves((args, dict(kwargs)))
    places = _places(model, args, kwargs)
    named = given if isinstance(given, Mapping) else _by_position(given, places)
    found: list[dict[int, str]] = [{} for _ in leaves]
    for wanted, dims in named.items():
        matching = [index for index, names in enumerate(places) if wanted in names]
        if not matching:
            known = dict.fromkeys(name for names in places for name in names)
            raise InputError(
                f"dynamic_shapes names the input {wanted!r}, which the model does not have; "
                f"its inputs are {quoted_list(known)}."
            )
        for index in matching:
            found[index] |= _named_dims(places[index][-1], leaves[index], dims)
    dims = tuple(found)
    _check_sizes(open_dims(model, args, kwargs, dims))
    return dims


def _by_position(given: Sequence[Any], places: Sequence[tuple[str, ...]]) -> dict[str, Any]:
    names = list(dict.fromkeys(names[0] for names in places))
    if isinstance(given, str) or not isinstance(given, Sequence):
        raise InputError(f"dynamic_shapes is {given!r}; give {{input name: {{dimension: name}}}}, or a tuple of those.")
    if len(given) > len(names):
        raise InputError(
            f"dynamic_shapes has {len(given)} entries, the model {len(names)} inputs: {quoted_list(names)}."
        )
    return dict(zip(names, given, strict=False))


def _places(model: nn.Module, args: tuple[Any, ...], kwargs: Mapping[str, Any]) -> list[tuple[str, ...]]:
    """Return the names of every leaf of a call: that of the input first, that of the leaf itself last."""
    leaves, spec = pytree.tree_flatten((args, dict(kwargs)))
    order = pytree.tree_unflatten(list(range(len(leaves))), spec)
    places: list[tuple[str, ...]] = [()] * len(leaves)
    for parameter, tree in inspect.signature(model.forward).bind(*order[0], **order[1]).arguments.items():
        for path, index in pytree.tree_flatten_with_path(tree)[0]:
            keys = [str(getattr(key, "idx", getattr(key, "key", key))) for key in path]
            places[index] = (parameter, "_".join((parameter, *keys)))
    inputs = list(_inputs(model))
    if len(inputs) == len(places):
        places = [
            (node.meta.get(_INPUT, names[0]), str(node.target)) for names, node in zip(places, inputs, strict=True)
        ]
    return places


def note_inputs(graph: fx.GraphModule, model: nn.Module, args: tuple[Any, ...], kwargs: Mapping[str, Any]) -> None:
    """Note at the inputs of an exported graph which parameters of the model they belong to."""
    for node, names in zip(_inputs(graph), _places(model, args, kwargs), strict=True):
        node.meta[_INPUT] = names[0]


def _inputs(model: nn.Module) -> Iterator[fx.Node]:
    return (
        node for node in (model.graph.nodes if isinstance(model, fx.GraphModule) else ()) if node.op == "placeholder"
    )


def _named_dims(name: str, value: object, dims: object) -> dict[int, str]:
    if dims is None:
        return {}
    if not isinstance(dims, Mapping):
        raise InputError(f"dynamic_shapes of the input '{name}' is {dims!r}; give {{dimension: name}}.")
    if not isinstance(value, torch.Tensor):
        raise InputError(f"dynamic_shapes names the input '{name}', which is {value!r} and no tensor.")
    for dim in dims:
        if not isinstance(dim, int) or not -value.ndim <= dim < value.ndim:
            raise InputError(
                f"dynamic_shapes opens the dimension {dim!r} of the input '{name}', which has {value.ndim} dimensions."
            )
    return {dim % value.ndim: _name_of(chosen, f"{name}_{dim % value.ndim}") for dim, chosen in dims.items()}


def _name_of(chosen: object, default: str) -> str:
    if isinstance(chosen, str) and chosen:
        return chosen
    if isinstance(chosen, Dim):
        return str(chosen.__name__)
    if type(chosen) is type(Dim.AUTO) and chosen is not Dim.STATIC:
        return default
    raise InputError(f"a dimension of dynamic_shapes is {chosen!r}; give a name or a torch.export.Dim.")


def open_dims(model: nn.Module, args: tuple[Any, ...], kwargs: Mapping[str, Any], dims: Dims) -> tuple[OpenDim, ...]:
    """List the open dimensions of a call."""
    leaves, places = pytree.tree_leaves((args, dict(kwargs))), _places(model, args, kwargs)
    return tuple(
        OpenDim(names[-1], dim, name, leaf.shape[dim])
        for leaf, names, chosen in zip(leaves, places, dims, strict=True)
        for dim, name in sorted(chosen.items())
    )


def _check_sizes(dims: Sequence[OpenDim]) -> None:
    """Refuse one name for two sizes: the file would then say that they are equal."""
    first: dict[str, OpenDim] = {}
    for dim in dims:
        other = first.setdefault(dim.name, dim)
        if other.size != dim.size:
            raise InputError(f"dynamic_shapes gives one name to two sizes: {other} and {dim}; name them apart.")


def shapes_of_call(
    model: nn.Module, args: tuple[Any, ...], kwargs: Mapping[str, Any], leaves: Sequence[Any]
) -> dict[str, Any]:
    """Return what torch wants as dynamic shapes: by the parameters of forward, in the structure of the call."""
    _, spec = pytree.tree_flatten((args, dict(kwargs)))
    order = pytree.tree_unflatten(list(leaves), spec)
    return dict(inspect.signature(model.forward).bind(*order[0], **order[1]).arguments)


def resized(args: tuple[Any, ...], kwargs: Mapping[str, Any], dims: Dims, factor: int = 1) -> tuple[Any, Any]:
    """Return a call whose open dimensions are some times as long, and never shorter than torch.export can leave open.

    Values are repeated, so that numbers of tokens stay numbers of tokens.
    """
    leaves, spec = pytree.tree_flatten((args, dict(kwargs)))
    longer = [
        _resize(leaf, {dim: max(_SMALLEST, factor * leaf.shape[dim]) for dim in chosen})
        for leaf, chosen in zip(leaves, dims, strict=True)
    ]
    call: tuple[Any, Any] = pytree.tree_unflatten(longer, spec)
    return call


def _resize(leaf: Any, sizes: Mapping[int, int]) -> Any:
    for dim, size in sizes.items():
        if not leaf.shape[dim]:
            leaf = leaf.new_zeros([size if place == dim else side for place, side in enumerate(leaf.shape)])
        elif leaf.shape[dim] != size:
            leaf = leaf.index_select(dim, torch.arange(size, device=leaf.device) % leaf.shape[dim])
    return leaf
