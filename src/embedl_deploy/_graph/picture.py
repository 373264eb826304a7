"""A network in torch as the graph that pages draw."""

from torch import fx, nn

from embedl_deploy._graph.network import Network, modules_of
from embedl_graph import Coloring, ModelGraph, Node, Tensor

_SKIPPED = ("get_attr", "output")


def picture_of(network: Network, title: str, steps: dict[str, int] | None = None) -> ModelGraph:
    """Return a network as a graph; `steps` are the numbers of steps by the names of nodes, to color by."""
    nodes: list[Node] = []
    tensors: dict[str, Tensor] = {}
    inputs: list[str] = []
    colors: dict[int, float | str] = {}
    for node in network.graph.nodes:
        if node.op in _SKIPPED:
            continue
        tensors[node.name] = _tensor(network, node)
        if node.op == "placeholder":
            inputs.append(node.name)
            continue
        module = network.module_of(node)
        kind = type(module).__name__ if module is not None else getattr(node.target, "__name__", str(node.target))
        used = tuple(source.name for source in node.all_input_nodes if source.op != "get_attr")
        own = next(iter(modules_of(node)), "") or (node.target if module is not None else "")
        step = (steps or {}).get(node.name, node.meta.get("made_by", 0))
        if step:
            colors[len(nodes)] = f"step {step}"
        nodes.append(
            Node(network.place_of(node), kind, used, (node.name,), str(own), tensors[node.name].dtype, _facts(module))
        )
    ends = tuple(
        node.name for output in network.graph.nodes if output.op == "output" for node in output.all_input_nodes
    )
    colorings = (Coloring("step", "Step", colors, "", "The step of the transform that took or made the node."),)
    return ModelGraph(title, "PyTorch", tuple(nodes), tensors, tuple(inputs), ends, colorings if colors else ())


def _tensor(network: Network, node: fx.Node) -> Tensor:
    shape, dtype = network.shape_of(node), network.dtype_of(node)
    return Tensor(
        node.name,
        "" if dtype is None else str(dtype).removeprefix("torch."),
        None if shape is None else tuple(shape),
    )


def _facts(module: nn.Module | None) -> tuple[tuple[str, str], ...]:
    """Return what a module says of itself."""
    said = "" if module is None else module.extra_repr()
    return (("settings", said[:200]),) if said else ()
