"""What of a model is still outside the accelerator's set, layer by layer."""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from embedl_deploy._table import table
from embedl_deploy._trace import Model, trace
from embedl_deploy.lattice.rules import outside


@dataclass(frozen=True)
class Layer:
    """One layer of a model: where, what, and why it is outside the set (empty when it is inside)."""

    place: str
    kind: str
    reason: str


@dataclass(frozen=True)
class Check:
    """Every layer of a model against the accelerator's set; prints as a table of what is outside."""

    layers: tuple[Layer, ...]

    @property
    def outside(self) -> tuple[Layer, ...]:
        """The layers that the accelerator does not take."""
        return tuple(layer for layer in self.layers if layer.reason)

    def __bool__(self) -> bool:
        return not self.outside

    def __str__(self) -> str:
        inside = len(self.layers) - len(self.outside)
        head = f"{inside} of {len(self.layers)} layers are inside the set"
        if not self.outside:
            return head
        rows = [(layer.place, layer.kind, layer.reason) for layer in self.outside]
        return f"{head}\n{table(('place', 'layer', 'reason'), rows)}"


def check(model: Model, args: tuple[Any, ...] | None = None, kwargs: Mapping[str, Any] | None = None) -> Check:
    """List a model's layers with why the accelerator does not take them.

    Data movement (reshape, slice, pad) is no layer and is not listed.

    Raises:
        TraceError: The model cannot be turned into a graph.
    """
    network = trace(model, args, kwargs).network
    layers = []
    for node in network.graph.nodes:
        module = network.module_of(node)
        if module is not None:
            layers.append(Layer(network.place_of(node), type(module).__name__, outside(module)))
    return Check(tuple(layers))
