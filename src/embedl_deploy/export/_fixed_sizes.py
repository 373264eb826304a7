"""Where a model settles a dimension that should stay open."""

from collections.abc import Mapping
from typing import Any

from torch import fx, nn

from embedl_deploy._graph.network import modules_of
from embedl_deploy._graph.run import bind, evaluating
from embedl_deploy._graph.shapes import Dims, open_dims, resized
from embedl_deploy.errors import first_line


def settled_at(model: nn.Module, args: tuple[Any, ...], kwargs: Mapping[str, Any], dims: Dims) -> str:
    """Say where a model does not take inputs whose open dimensions are twice as long."""
    wanted = ", ".join(dict.fromkeys(str(dim) for dim in open_dims(model, args, kwargs, dims)))
    longer, named = resized(args, kwargs, dims, factor=2)
    reached: list[fx.Node] = []
    try:
        with evaluating([model]):
            if isinstance(model, fx.GraphModule):
                _Runner(model, reached).run(*bind(model.graph, longer, named).values())
            else:
                model(*longer, **named)
    except Exception as exc:  # noqa: BLE001 - a size that was settled can fail in any operator
        place = f" at '{modules_of(reached[-1])[0] or reached[-1].name}'" if reached else ""
        return (
            f"the model settles an open dimension{place}: with twice the size it fails with {first_line(exc)} "
            f"Open are {wanted}. Compute sizes from the inputs' shapes there, give transform the same dynamic_shapes, "
            "or leave that dimension closed;"
        )
    return (
        f"torch cannot keep all open dimensions open: {wanted}. The model runs with twice the sizes, so its code asks "
        "for a size as a number or branches on one; leave that dimension closed;"
    )


class _Runner(fx.Interpreter):
    """Runs a graph and remembers how far it came."""

    def __init__(self, model: fx.GraphModule, reached: list[fx.Node]) -> None:
        super().__init__(model)
        self.extra_traceback = False
        self._reached = reached

    def run_node(self, n: fx.Node) -> Any:
        """Run one node."""
        self._reached.append(n)
        return super().run_node(n)
