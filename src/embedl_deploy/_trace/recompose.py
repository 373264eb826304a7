"""One vocabulary whatever the front end: functions, methods and ATen operators become the modules they are forms of.

    F.relu(x), x.relu(), torch.relu(x), aten.relu(x)   →  nn.ReLU
    F.conv2d(x, self.w, self.b), aten.conv2d           →  nn.Conv2d holding those very parameters
    a + b, torch.add(a, b), aten.add.Tensor            →  Add
    x.view(x.size(0), -1), torch.flatten(x, 1)         →  nn.Flatten

Where torch.export recorded that an operator came from one of the user's modules, that module takes its place again,
under its own name. What has no module form stays a function. Nothing is rewritten here that changes a result.
"""

from dataclasses import dataclass, field

import torch
from torch import fx, nn

from embedl_deploy._graph.network import Network, join, owner_of
from embedl_deploy._trace.computed_weights import Constants
from embedl_deploy._trace.lifts import LIFTS, Call, owner_module
from embedl_deploy._trace.spelling import SPELLINGS

_CASTS = frozenset(
    {"to", "float", "double", "half", "bfloat16", torch.ops.aten.to.dtype, torch.ops.aten._to_copy.default}
)
_WEIGHTED = frozenset({"conv", "conv_transpose", "linear", "batch_norm", "layer_norm", "group_norm"})
_CHECKS = frozenset(
    {
        torch._assert,
        torch.ops.aten._assert_scalar.default,
        torch.ops.aten._assert_async.msg,
        torch.ops.aten._assert_tensor_metadata.default,
    }
)


def functions_left(network: Network) -> list[fx.Node]:
    """List layers with weights that stay calls of functions, where no pattern finds them."""
    found = []
    for node in network.graph.nodes:
        spelling = SPELLINGS.get(node.target) if node.op == "call_function" else None
        if spelling is not None and spelling.op in _WEIGHTED:
            found.append(node)
    return found


def recompose(network: Network, original: nn.Module | None) -> None:
    """Bring a network into the one vocabulary, in place.

    Args:
        network: Fresh from a front end.
        original: The structural copy of the user's model, when there is one, to take modules from.
    """
    lifter = _Lifter(network, original)
    for node in list(network.graph.nodes):
        lifter.see(node)
    lifter.drop_counters()
    lifter.drop_checks()
    lifter.constants.erase_unused()


@dataclass
class _Lifter:
    """Looks at each node in turn; sizes are told from tensors on the way."""

    network: Network
    original: nn.Module | None
    sizes: set[fx.Node] = field(default_factory=set)
    lifted: dict[str, nn.Module] = field(default_factory=dict)

    def __post_init__(self) -> None:
        self.constants = Constants(self.network)

    def see(self, node: fx.Node) -> None:
        if node.op not in ("call_function", "call_method"):
            return
        if self._is_size(node):
            self.sizes.add(node)
            return
        if self._drop_cast(node) or self._fold(node):
            return
        spelling = SPELLINGS.get(node.target if node.op == "call_function" else f".{node.target}")
        if spelling is None:
            return
        bound = spelling.bind(node)
        if bound is None or (spelling.in_place(node) and self._is_seen_later(node)):
            return
        call = Call(self.network, self.original, self.sizes, node, bound, self.constants)
        made = LIFTS[spelling.op](call)
        if made is None:
            return
        what, inputs = made
        if isinstance(what, nn.Module):
            what.training = call.training
            name, module = self._identity(call, what)
            self.network.recast_module(node, name, module, inputs)
        else:
            self.network.recast_function(node, what, inputs)

    def _fold(self, node: fx.Node) -> bool:
        """Evaluate what is computed of buffers alone (the factors of a frozen batch norm), in eval mode."""
        reads = node.all_input_nodes
        if self.network.training or not reads or any(used.op != "get_attr" for used in reads):
            return False
        sources = [tensor for used in reads if (tensor := self.network.tensor_of(used)) is not None]
        if len(sources) < len(reads) or not all(tensor.is_floating_point() for tensor in sources):
            return False
        value = self.constants.tensor(node) if self.constants.is_fixed(node) else None
        if value is None or value.numel() > max(tensor.numel() for tensor in sources):
            return False
        self.network.recast_constant(node, f"constants.{node.name}", value)
        return True

    def _drop_cast(self, node: fx.Node) -> bool:
        """Remove a conversion to the number format that a value has already."""
        name = node.target if node.op == "call_method" else node.target if node.target in _CASTS else ""
        if name not in _CASTS or not node.args or not isinstance(node.args[0], fx.Node) or len(node.args) > 2:
            return False
        before, after = self._dtype(node.args[0]), self._dtype(node)
        if before is None or before != after or node.kwargs.get("copy") or "device" in node.kwargs:
            return False
        target = node.args[1] if len(node.args) > 1 else node.kwargs.get("dtype", before)
        if isinstance(target, torch.device | str) or (isinstance(target, fx.Node) and target not in self.sizes):
            return False
        source = node.args[0]
        node.replace_all_uses_with(source)
        self.network.erase([node])
        return True

    def _dtype(self, node: fx.Node) -> torch.dtype | None:
        known = node.meta.get("val")
        if known is not None:
            return known.dtype if isinstance(known, torch.Tensor) else None
        try:
            return self.network.dtype_of(node)
        except Exception:  # noqa: BLE001 (a graph that torch.fx traced wrongly can fail in any operator)
            return None

    def drop_counters(self) -> None:
        """Remove the batch counters that torch.export wrote out beside batch norms in training mode."""
        for node in reversed(list(self.network.graph.nodes)):
            if node.target is torch.ops.aten.add_.Tensor and not node.users:
                source = node.args[0]
                while isinstance(source, fx.Node) and source.target is torch.ops.aten.add_.Tensor:
                    source = source.args[0]
                if isinstance(source, fx.Node) and str(source.target).endswith("num_batches_tracked"):
                    self.network.erase([node])

    def drop_checks(self) -> None:
        """Remove assertions about shapes: they held for the example inputs, and hide a layer from the one behind it."""
        for node in reversed(list(self.network.graph.nodes)):
            if node.op == "call_function" and node.target in _CHECKS and not node.users:
                condition = node.args[0]
                about_form = node.target is torch.ops.aten._assert_tensor_metadata.default
                if about_form or not isinstance(condition, fx.Node) or condition in self.sizes:
                    self.network.erase([node])
        # Messages of assertions read sizes too, and are no node of the graph.
        self.network.sweep()

    def _identity(self, call: Call, made: nn.Module) -> tuple[str, nn.Module]:
        """Find the user's own module for a lifted one, else name the new one after where it stands."""
        node, owner = call.node, owner_module(self.original, call.node)
        if owner is not None and type(owner) is type(made) and _same_tensors(owner, made):
            return owner_of(node), owner
        weight = call.get("weight")
        base = join(owner_of(node), _stem(node))
        if isinstance(weight, fx.Node) and weight.op == "get_attr":
            name = str(weight.target).removesuffix("weight").rstrip("._") or base
            # Tied weights go by the name of one of their layers; another layer does not take that one's name.
            base = name if self._may_be_called(name, made) else base
        elif _recorded_type(node) == f"{type(made).__module__}.{type(made).__qualname__}":
            base = owner_of(node)
        earlier = self.lifted.get(base)
        if earlier is not None and repr(earlier) == repr(made) and _same_tensors(earlier, made):
            return base, earlier  # one module called at several sites
        name, number = base, 1
        while self.network.calls[name] or name in self.network.tensors:
            name, number = f"{base}_{number}", number + 1
        self.lifted[name] = made
        return name, made

    def _may_be_called(self, name: str, made: nn.Module) -> bool:
        """Say whether the user's model has no layer of another kind under a name."""
        try:
            found = None if self.original is None else self.original.get_submodule(name)
        except AttributeError:
            return True
        return found is None or type(found) is type(made) or not any(True for _ in found.parameters(recurse=False))

    def _is_size(self, node: fx.Node) -> bool:
        known = node.meta.get("val")
        if known is not None:
            return not isinstance(known, torch.Tensor | list | tuple)
        if node.op == "call_method":
            return node.target in ("size", "dim", "numel", "ndimension")
        if node.target is getattr:
            return node.args[1] in ("shape", "ndim", "dtype", "device")
        inputs = node.all_input_nodes
        arithmetic = getattr(node.target, "__module__", "") == "_operator"
        return arithmetic and bool(inputs) and all(used in self.sizes for used in inputs)

    def _is_seen_later(self, node: fx.Node) -> bool:
        """Say whether someone reads, after an in-place operator, a value that it changed under another name."""
        changed = node.args[0]
        while isinstance(changed, fx.Node):
            if any(user is not node and user > node for user in changed.users):
                return True
            if changed.op in ("placeholder", "get_attr"):
                return True
            name = changed.target if changed.op == "call_method" else getattr(changed.target, "__name__", "")
            viewing = str(name).partition(".")[0] in _VIEWS and changed.op in ("call_method", "call_function")
            if not viewing or not changed.args:
                return False
            changed = changed.args[0]
        return False


def _recorded_type(node: fx.Node) -> str:
    """Return the type of the module whose code made the node, as torch.export wrote it down."""
    stack = node.meta.get("nn_module_stack")
    found = next(reversed(stack.values()))[1] if stack else ""
    return found if isinstance(found, str) else f"{found.__module__}.{found.__qualname__}"


def _stem(node: fx.Node) -> str:
    """Name a function without the path that torch.fx puts before it."""
    name = node.target if node.op == "call_method" else getattr(node.target, "__name__", node.name)
    return str(name).partition(".")[0].strip("_")


_VIEWS = frozenset(
    {"view", "reshape", "transpose", "permute", "getitem", "select", "slice", "unsqueeze", "squeeze", "flatten",
     "expand",
     "chunk", "split", "unbind", "narrow", "detach", "contiguous", "t", "movedim", "swapaxes", "unflatten"}
)  # fmt: skip


def _same_tensors(one: nn.Module, other: nn.Module) -> bool:
    mine, theirs = dict(one.named_parameters()), dict(other.named_parameters())
    return mine.keys() == theirs.keys() and all(mine[name] is theirs[name] for name in mine)
