"""What a model must be before it is deployed: in float32, and not random in eval mode."""

from collections.abc import Mapping
from typing import Any

import torch
from torch import fx, nn
from torch.utils import _pytree as pytree

from embedl_deploy._graph.network import Example, Network
from embedl_deploy.errors import TraceError

_OTHER = (torch.float16, torch.bfloat16, torch.float64)
_RANDOM = frozenset({
    "rand", "randn", "randint", "rand_like", "randn_like", "randint_like", "randperm", "bernoulli", "bernoulli_",
    "multinomial", "normal", "normal_", "uniform_", "exponential_", "rrelu", "gumbel_softmax",
})  # fmt: skip


def in_float32(model: nn.Module, example: Example | None) -> tuple[Example | None, tuple[str, ...]]:
    """Give a structural copy weights in float32, and the example inputs too; say so where they were not."""
    kinds = {parameter.dtype for parameter in model.parameters()} & set(_OTHER)
    if not kinds:
        return example, ()
    made: dict[int, torch.Tensor] = {}
    for part in model.modules():
        for held in (part._parameters, part._buffers):
            for name, tensor in held.items():
                if tensor is not None and tensor.dtype in _OTHER:
                    held[name] = made.setdefault(id(tensor), _float32(tensor))  # type: ignore[assignment]
    if example is not None:
        args, kwargs = pytree.tree_map_only(torch.Tensor, _input, (example.args, dict(example.kwargs)))
        example = Example(args, kwargs)
    names = ", ".join(sorted(str(kind).removeprefix("torch.") for kind in kinds))
    note = f"the model has {names} weights; they were converted to float32, and so must be its inputs from here on"
    return example, (note,)


def _float32(tensor: torch.Tensor) -> torch.Tensor:
    value = tensor.detach().float()
    return nn.Parameter(value, tensor.requires_grad) if isinstance(tensor, nn.Parameter) else value


def _input(tensor: torch.Tensor) -> torch.Tensor:
    return tensor.float() if tensor.dtype in _OTHER else tensor


def mode_note(model: nn.Module) -> tuple[str, ...]:
    """Say what becomes of a model that is training."""
    if not model.training:
        return ()
    note = (
        "the model is in training mode: proofs, calibration and export use eval mode, and what only eval mode settles "
        "(dropout, branches to merge) stays; call model.eval() first to deploy it"
    )
    return (note,)


def refuse_dropout(network: Network) -> None:
    """Refuse dropout that eval mode does not switch off.

    Raises:
        TraceError: There is one; it is named.
    """
    for node in network.graph.nodes:
        name = _name(node)
        if "dropout" in name and node.op == "call_function" and _drops(node):
            place = network.place_of(node)
            raise TraceError(
                f"'{place}' ({name}) drops values in eval mode too, so the model is random and nothing can be proved; "
                "write functional.dropout(x, p, self.training), or use nn.Dropout.",
                place=place,
            )


def random_note(network: Network) -> tuple[str, ...]:
    """Name the operators that make a model random."""
    places = [f"'{network.place_of(node)}' ({_name(node)})" for node in network.graph.nodes if _name(node) in _RANDOM]
    return (f"the model is random: {', '.join(places)}; what is proved holds for one draw only",) if places else ()


def _name(node: fx.Node) -> str:
    if node.op == "call_method":
        return str(node.target)
    return getattr(node.target, "__name__", "").partition(".")[0] if node.op == "call_function" else ""


def _drops(node: fx.Node) -> bool:
    """Say whether a dropout is on: it has a rate, and its flag is true (by default in torch.nn.functional)."""
    given: Mapping[str, Any] = {**dict(zip(("input", "p", "training"), node.args, strict=False)), **node.kwargs}
    flag = given.get("training", given.get("train", True))
    return bool(given.get("p", 0.5)) and flag is True
