"""From the file back to the user's model: which modules a node comes from, and what quantising each of them costs."""

import ast
import json
import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Protocol

import onnx
from torch import fx, nn

from embedl_deploy._graph import COSTS, modules_of
from embedl_deploy.errors import ExportError, known

_SCOPES = "pkg.torch.onnx.name_scopes"
_VERSION = 1


class Cost(Protocol):
    """What quantising one layer costs."""

    @property
    def place(self) -> str:
        """Its name in the transformed model."""

    @property
    def noise(self) -> float:
        """The cost, in the unit of them all; costs of several layers add up."""


class Costs(Protocol):
    """What quantising each layer costs, as `embedl_deploy.quantize.sensitivity` returns it."""

    @property
    def layers(self) -> Sequence[Cost]:
        """One cost per layer."""

    @property
    def method(self) -> str:
        """How it was found out."""

    @property
    def unit(self) -> str:
        """What the numbers are."""


@dataclass(frozen=True)
class Origin:
    """Where nodes come from.

    Attributes:
        place: Names the nodes.
        modules: The user's modules, the main one first; empty is the model itself.
        whole: The user's own module is called as it is, so that names inside it are the user's too.
    """

    place: str
    modules: tuple[str, ...]
    whole: bool = False


class Scopes:
    """Finds the origin of a node by the scope that torch's exporter noted at it.

    A model that is no graph of ours is called as it is: every scope in it is a name of the user's.
    """

    def __init__(self, frozen: nn.Module) -> None:
        first = {id(part): name for name, part in frozen.named_modules()}
        self._first = {name: first[id(part)] for name, part in frozen.named_modules(remove_duplicate=False)}
        self._called = _called(frozen) if isinstance(frozen, fx.GraphModule) else {"": Origin("", ("",), whole=True)}

    def of(self, node: onnx.NodeProto) -> Origin | None:
        """Return where a node comes from; None when the exporter added it."""
        text = next((one.value for one in node.metadata_props if one.key == _SCOPES), "[]")
        # The last scope is the exporter's own name for the node.
        for scope in reversed(ast.literal_eval(text)[:-1]):
            for name in _prefixes(str(scope)):
                if (origin := self._called.get(name)) is not None:
                    return self._inside(node, str(scope), origin) if origin.whole else origin
        return None

    def _inside(self, node: onnx.NodeProto, scope: str, origin: Origin) -> Origin:
        """Return the innermost module of the user's on the way into one that is called as it is.

        torch's exporter folds a batch norm into the convolution and keeps the scope of the norm; the weight tells.
        """
        inner = next((self._first[name] for name in _prefixes(scope) if name in self._first), "")
        holders = (self._first.get(name.rpartition(".")[0], "") for name in node.input)
        modules = tuple(dict.fromkeys((*filter(None, holders), inner)))
        return Origin(modules[0], modules) if modules[0].startswith(origin.place) else origin


def _prefixes(scope: str) -> list[str]:
    parts = scope.split(".")
    return [".".join(parts[:end]) for end in range(len(parts), -1, -1)]


def _called(frozen: fx.GraphModule) -> dict[str, Origin]:
    """Return, for every module the graph calls, where it comes from."""
    places = {node: str(node.meta.get("place", node.target)) for node in frozen.graph.nodes}
    found = {}
    for node in frozen.graph.nodes:
        if node.op == "call_module":
            # A stub belongs to the value it stands on.
            source = node.args[0] if str(node.target).startswith("stubs.") else node
            modules = modules_of(source)
            whole = modules == (str(node.target),) and "origins" not in node.meta
            found[str(node.target)] = Origin(places[source], modules, whole=whole)
    return found


def costs_by_module(model: nn.Module, given: Costs | None) -> str:
    """Return what quantising each of the user's modules costs, as the file keeps it; empty when it is not known.

    What is not given may travel with the model: `quantize` found it out on the way to a goal.

    Raises:
        ExportError: The costs are those of another model.
    """
    graph, kept = (model.graph, model.meta) if isinstance(model, fx.GraphModule) else (fx.Graph(), {})
    costs: Costs | None = kept.get(COSTS) if given is None else given
    if costs is None:
        return ""
    places = {str(node.meta.get("place", node.target)): modules_of(node)[0] for node in graph.nodes}
    values: dict[str, float] = {}
    for one in costs.layers:
        if one.place not in places:
            raise ExportError(
                f"the sensitivity is of another model: this one has no layer {one.place!r}, it has: {known(places)}. "
                "Give what sensitivity(model, args) returned for the model that is exported."
            )
        if math.isfinite(one.noise):
            values[places[one.place]] = values.get(places[one.place], 0.0) + one.noise
    return json.dumps({"version": _VERSION, "method": costs.method, "unit": costs.unit, "modules": values})
