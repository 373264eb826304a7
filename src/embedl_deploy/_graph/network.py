"""The network while it is worked on: an fx graph and what its nodes refer to.

The only file that edits graph nodes. Nothing here decides what to rewrite.
"""

import functools
import operator
from collections import Counter
from collections.abc import Callable, Hashable, Mapping
from dataclasses import dataclass, field
from typing import Any, TypedDict
from weakref import WeakKeyDictionary

import torch
from torch import fx, nn
from torch.utils._pytree import TreeSpec, tree_unflatten

from embedl_deploy._graph.clone import clone_modules
from embedl_deploy._graph.run import Clock, Visit, bind, evaluating, flatten_call, run_graph
from embedl_deploy._graph.saved import SavableGraphModule
from embedl_deploy._graph.shapes import Dims
from embedl_deploy.pattern import Call, Expand, Match, PassThrough, Replacement, Shape, View

_IN_PLACE = frozenset({"iadd", "imul", "isub", "itruediv", "ifloordiv", "setitem"})
_PURE = frozenset({
    "size", "dim", "getattr", "getitem", "sym_size", "mul", "floordiv", "add", "sub", "numel", "shape", "mod",
    "truediv", "eq", "ne", "lt", "le", "gt", "ge", "and_", "or_", "not_", "ndimension",
})  # fmt: skip
_CONTAINERS = (nn.Sequential, nn.ModuleList, nn.ModuleDict)
# Methods a subclass may write anew and still compute what its base does.
_HARMLESS = frozenset({
    "__init__", "__repr__", "__module__", "__doc__", "__annotations__", "__qualname__", "__dict__", "__weakref__",
    "extra_repr", "reset_parameters", "_load_from_state_dict", "_save_to_state_dict",
})  # fmt: skip


@dataclass(frozen=True)
class Example:
    """One call of the model."""

    args: tuple[Any, ...]
    kwargs: Mapping[str, Any] = field(default_factory=dict)
    clock: Clock = field(default_factory=Clock, compare=False)
    dims: Dims = ()  # names of the dimensions that stay open, for every leaf of the call; empty for none
    other: "Example | None" = None  # the same call with longer open dimensions, where the model takes it
    result: Any = field(default=None, repr=False)  # what the model returns for it, where that is kept


@dataclass(frozen=True)
class _Form:
    """What is known of a value for the example inputs."""

    shape: Shape | None = None
    dtype: torch.dtype | None = None


class _Marks(TypedDict):
    """What a node that a step made knows of where it comes from."""

    origins: tuple[str, ...]
    made_by: int
    modules: tuple[str, ...]


@dataclass(eq=False)
class Network(View):
    """An fx graph together with the modules and tensors its nodes name.

    Modules are our own shallow copies; the tensors inside them are the user's. `names` are the modules of the user's
    model, where they are known.
    """

    graph: fx.Graph
    modules: dict[str, nn.Module]
    tensors: dict[str, object]
    title: str
    training: bool
    example: Example | None = None
    names: frozenset[str] = frozenset()
    _forms: dict[fx.Node, _Form] = field(default_factory=dict)
    _readers: dict[int, list[str]] | None = None
    _writers: dict[fx.Node, list[fx.Node]] | None = None
    _calls: Counter[str] | None = None
    _replaced: dict[fx.Node, fx.Node] = field(default_factory=dict)
    _traced: dict[Hashable, fx.Graph] = field(default_factory=dict)

    def module_of(self, node: fx.Node) -> nn.Module | None:
        return self.modules[str(node.target)] if node.op == "call_module" else None

    def tensor_of(self, node: fx.Node) -> torch.Tensor | None:
        found = self.tensors.get(str(node.target)) if node.op == "get_attr" else None
        return found if isinstance(found, torch.Tensor) else None

    def place_of(self, node: fx.Node) -> str:
        place = node.meta.get("place")
        if place is None:
            place = str(node.target) if node.op in ("call_module", "get_attr") else join(owner_of(node), node.name)
            node.meta["place"] = place
        return str(place)

    def shape_of(self, node: fx.Node) -> Shape | None:
        return self._form_of(node).shape

    def dtype_of(self, node: fx.Node) -> torch.dtype | None:
        return self._form_of(node).dtype

    def _form_of(self, node: fx.Node) -> _Form:
        """Look a value's form up, running the example inputs for values that came up since the last run."""
        if self.example is None:
            return _Form()
        if node not in self._forms:
            self.measure()
        return self._forms.get(node, _Form())

    def measure(self) -> Any:
        """Run the example inputs, keep every value's form, and return the result."""
        return self.run(lambda node, value: self._forms.__setitem__(node, _form(value)))

    def run(self, visit: Visit | None = None, example: Example | None = None) -> Any:
        example = example or self.example
        assert example is not None
        inputs = bind(self.graph, example.args, example.kwargs)
        with example.clock, evaluating(self.modules.values()):
            return run_graph(self.graph, self.modules, self.tensors, inputs, visit)

    def sharers_of(self, node: fx.Node) -> tuple[str, ...]:
        module = self.module_of(node)
        if module is None:
            return ()
        if self._readers is None:
            self._readers = self._index_readers()
        found = {place for parameter in module.parameters() for place in self._readers[id(parameter)]}
        # A module called at several sites has one place but as many readings.
        sites = max((self._readers[id(p)].count(self.place_of(node)) for p in module.parameters()), default=1)
        mine = {self.place_of(node)}
        return tuple(sorted(found - mine) + [f"another call of {place}" for place in mine if sites > 1])

    def writers_of(self, node: fx.Node) -> tuple[fx.Node, ...]:
        if self._writers is None:
            self._writers = {}
            for writer in self.graph.nodes:
                if writes(self, writer):
                    for used in writer.all_input_nodes:
                        self._writers.setdefault(used, []).append(writer)
        return tuple(self._writers.get(node, ()))

    def _index_readers(self) -> dict[int, list[str]]:
        readers: dict[int, list[str]] = {}
        for node in self.graph.nodes:
            module = self.module_of(node)
            tensor = self.tensor_of(node)
            for parameter in module.parameters() if module is not None else [] if tensor is None else [tensor]:
                readers.setdefault(id(parameter), []).append(self.place_of(node))
        return readers

    @property
    def calls(self) -> Counter[str]:
        if self._calls is None:
            self._calls = Counter(str(node.target) for node in self.graph.nodes if node.op == "call_module")
        return self._calls

    def copy(self) -> "Network":
        """Return a network that can be edited and switched between modes without touching this one."""
        graph = fx.Graph()
        twin: dict[fx.Node, fx.Node] = {}
        for node in self.graph.nodes:
            twin[node] = graph.node_copy(node, twin.__getitem__)
        graph.set_codegen(self.graph._codegen)
        forms = {twin[node]: form for node, form in self._forms.items() if node in twin}
        modules = clone_modules({target: self.modules[target] for target in self.calls})
        return Network(
            graph, modules, dict(self.tensors), self.title, self.training, self.example, self.names, forms
        )  # fmt: skip

    def to_graph_module(self) -> fx.GraphModule:
        targets = {str(node.target): node.op for node in self.graph.nodes if node.op in ("call_module", "get_attr")}
        used = {name: (self.modules if op == "call_module" else self.tensors)[name] for name, op in targets.items()}
        result = SavableGraphModule(used, self.graph, class_name=self.title)
        inner = {part for value in used.values() if isinstance(value, nn.Module) for part in value.modules()}
        for part in result.modules():
            if part not in inner:
                part.training = self.training
        return result

    def origins_of(self, node: fx.Node) -> tuple[str, ...]:
        """Return the places in the user's model that a node stands for."""
        return tuple(node.meta.get("origins", ())) or (self.place_of(node),)

    def note_modules(self, model: nn.Module) -> None:
        """Note at every node which module of the user's model made it; a module with two names goes by the first."""
        first = {id(part): name for name, part in model.named_modules()}
        every = {name: first[id(part)] for name, part in model.named_modules(remove_duplicate=False)}
        self.names = frozenset(first.values())
        for node in self.graph.nodes:
            module = self.module_of(node)
            # A function that was given a module's form may have a name that is a module's by chance.
            own = module is not None and _is_same(module, model, str(node.target))
            name = str(node.target) if own else owner_of(node)
            while name not in every:
                name = name.rpartition(".")[0]
            node.meta["modules"] = (every[name],)

    def recast_module(self, node: fx.Node, target: str, module: nn.Module, inputs: tuple[Any, ...]) -> None:
        """Turn a call of a function into a call of the module it is a form of."""
        before = node.all_input_nodes
        self.modules[target] = module
        node.op, node.target, node.args, node.kwargs = "call_module", target, inputs, {}
        node.meta["place"] = target
        if self._calls is not None:
            self._calls[target] += 1
        self._readers = self._writers = None
        self._sweep(before)

    def recast_constant(self, node: fx.Node, target: str, tensor: torch.Tensor) -> None:
        """Turn a computation of constants into the constant it gives."""
        before = node.all_input_nodes
        self.place_of(node)
        self.tensors[target] = tensor
        node.op, node.target, node.args, node.kwargs = "get_attr", target, (), {}
        self._readers = self._writers = None
        self._sweep(before)

    def recast_function(self, node: fx.Node, function: Callable[..., Any], inputs: tuple[Any, ...]) -> None:
        self.place_of(node)
        node.op, node.target, node.args, node.kwargs = "call_function", function, inputs, {}

    def substitute(self, match: Match, replacement: Replacement, *, made_by: int) -> None:
        """Put `replacement` in the place of the match's members, marking new nodes with a step's number."""
        members = list(match.ops.values())
        origins = tuple(dict.fromkeys(name for node in members for name in self.origins_of(node)))
        inputs = tuple(self._current(node) for node in match.inputs)
        # The leader's module first: what the others do is done in its kernel.
        modules = tuple(dict.fromkeys(name for node in (match.leader, *members) for name in modules_of(node)))
        marks: _Marks = {"origins": origins, "made_by": made_by, "modules": modules}
        if isinstance(replacement, PassThrough):
            self._hand_over(match.output, inputs[replacement.position])
        elif isinstance(replacement, Expand):
            self._expand(match, replacement.select(inputs), replacement, marks)
        else:
            call = as_call(replacement)
            self._call(match, call.select(inputs), call.module, marks)
        self.erase(members)
        self._readers = self._writers = None

    def _current(self, node: fx.Node) -> fx.Node:
        """Follow a node that was replaced to the one that holds its value now."""
        while node in self._replaced:
            node = self._replaced[node]
        return node

    def _call(self, match: Match, inputs: tuple[Any, ...], module: nn.Module, marks: _Marks) -> None:
        target = self._claim(match)
        with self.graph.inserting_before(match.output):
            node = self.graph.create_node("call_module", target, inputs)
        self.modules[target] = module
        self.calls[target] += 1
        node.meta = {"place": target, **marks}
        self._hand_over(match.output, node)

    def _claim(self, match: Match) -> str:
        """Choose the name of a new module: that of the member it stands for, unless another node still needs it."""
        base = name = match.place
        own = sum(node.op == "call_module" and str(node.target) == base for node in match.ops.values())
        taken, number = self.calls[base] > own or base in self.tensors, 1
        while taken:
            name, number = f"{base}_{number}", number + 1
            taken = name in self.modules or name in self.tensors
        return name

    def _steps_of(self, expansion: Expand, inputs: tuple[Any, ...]) -> fx.Graph:
        left_out = frozenset(index for index, value in enumerate(inputs) if value is None)
        key = (type(expansion.module), expansion.key, len(inputs), left_out)
        if expansion.key is None or key not in self._traced:
            self._traced[key] = InlineTracer(len(inputs), left_out).trace(expansion.module)
        return self._traced[key]

    def _expand(self, match: Match, inputs: tuple[Any, ...], expansion: Expand, marks: _Marks) -> None:
        prefix = self._claim(match)
        module = expansion.module
        inner = self._steps_of(expansion, inputs)
        named = dict(module.named_modules(remove_duplicate=False))
        values: dict[fx.Node, fx.Node] = {}
        entering = (value for value in inputs if value is not None)
        for node in inner.nodes:
            if node.op == "placeholder":
                values[node] = next(entering)
                continue
            if node.op == "output":
                self._hand_over(match.output, fx.node.map_arg(node.args[0], values.__getitem__))
                break
            target, place = node.target, join(prefix, node.name)
            if node.op in ("call_module", "get_attr"):
                target = place = join(prefix, str(target))
                self._adopt(node, place, named, module)
            args, kwargs = fx.node.map_arg((node.args, node.kwargs), values.__getitem__)
            with self.graph.inserting_before(match.output):
                new = self.graph.create_node(
                    node.op, target, args, kwargs, name=f"{prefix}_{node.name}".replace(".", "_")
                )
            new.meta = {"place": place, **marks}
            if place in self.names:
                new.meta["modules"] = (place, *marks["modules"])
            values[node] = new

    def _adopt(self, node: fx.Node, target: str, named: dict[str, nn.Module], module: nn.Module) -> None:
        """Keep what an inlined node refers to under its new name."""
        if node.op == "call_module":
            self.modules[target] = named[str(node.target)]
            self.calls[target] += 1
        else:
            holder, _, name = str(node.target).rpartition(".")
            self.tensors[target] = getattr(module.get_submodule(holder), name)

    def inline(self, target: str, part: "Network") -> bool:
        """Put an exported graph in the place of every call of `target`; `False` when its results are read otherwise."""
        info = part.graph._codegen.pytree_info  # type: ignore[attr-defined]
        sites = [node for node in self.graph.nodes if node.op == "call_module" and node.target == target]
        plain = info.out_spec.is_leaf()
        if not plain and any(user.target is not operator.getitem for site in sites for user in site.users):
            return False
        for site in sites:
            self._inline_at(site, part, flatten_call(info.in_spec, site.args, site.kwargs), info.out_spec)
        return True

    def _inline_at(self, site: fx.Node, part: "Network", entering: list[Any], out_spec: TreeSpec) -> None:
        prefix = str(site.target)
        values: dict[fx.Node, Any] = {}
        arguments = iter(entering)
        for node in part.graph.nodes:
            if node.op == "placeholder":
                values[node] = next(arguments)
            elif node.op == "output":
                flat = fx.node.map_arg(node.args[0], values.__getitem__)
                self._hand_over(site, tree_unflatten(list(flat), out_spec))
            else:
                with self.graph.inserting_before(site):
                    new = self.graph.node_copy(node, values.__getitem__)
                new.meta["within"] = prefix
                if node.op == "get_attr":
                    self.tensors[join(prefix, str(node.target))] = part.tensors[str(node.target)]
                    new.target = join(prefix, str(node.target))
                values[node] = new
        self.erase([site])
        self._readers = self._writers = self._calls = None

    def _hand_over(self, output: fx.Node, value: Any) -> None:
        """Let everyone who read `output` read `value` instead."""
        if isinstance(value, fx.Node):
            if output in self._forms:
                self._forms.setdefault(value, self._forms[output])
            output.replace_all_uses_with(value)
            self._replaced[output] = value
            return
        for user in list(output.users):
            item = value[user.args[1]]
            assert isinstance(item, fx.Node) or not user.users, "an item of a tuple that nobody reads"
            if isinstance(item, fx.Node):
                self._hand_over(user, item)
            self.erase([user])

    def erase(self, nodes: list[fx.Node]) -> None:
        """Erase nodes, last first, and the constants and size computations only they used."""
        pending = sorted(nodes, reverse=True)
        for node in pending:
            before = node.all_input_nodes
            if node.op == "call_module":
                self.calls[str(node.target)] -= 1
            self.graph.erase_node(node)
            self._forms.pop(node, None)
            self._sweep([used for used in before if used not in pending])

    def sweep(self) -> None:
        """Erase constants and size computations that nobody reads."""
        self._sweep(list(reversed(self.graph.nodes)))

    def _sweep(self, nodes: list[fx.Node]) -> None:
        for node in nodes:
            if not node._erased and not node.users and _is_scaffolding(node):
                self.erase([node])


def as_call(replacement: nn.Module | Call) -> Call:
    """Return a replacement that puts a module in place as a call of it."""
    return replacement if isinstance(replacement, Call) else Call(replacement)


def attribute_of(root: object, target: str) -> Any:
    return functools.reduce(getattr, target.split("."), root)


def network_of(
    model: fx.GraphModule, example: Example | None = None, *, title: str = "", training: bool | None = None
) -> Network:
    """Look at a graph module as a network; it is not copied."""
    tensors = {
        str(node.target): attribute_of(model, str(node.target)) for node in model.graph.nodes if node.op == "get_attr"
    }
    modules = dict(model.named_modules(remove_duplicate=False))
    mode = model.training if training is None else training
    return Network(model.graph, modules, tensors, title or type(model).__name__, mode, example)


def is_one_step(module: nn.Module) -> bool:
    """Say whether tracing does not look into a module: it stands for one kernel."""
    return module.__module__.startswith("embedl_deploy.nn") or getattr(type(module), "is_one_step", False) is True


def plain_base(kind: type[nn.Module]) -> type[nn.Module] | None:
    """Return torch's own layer that a subclass computes: it adds a constructor or attributes, and changes no method."""
    if kind.__module__.startswith("torch.nn"):
        return None
    if kind not in _BASES:
        _BASES[kind] = _plain_base(kind)
    return _BASES[kind]


_BASES: "WeakKeyDictionary[type[nn.Module], type[nn.Module] | None]" = WeakKeyDictionary()


def _plain_base(kind: type[nn.Module]) -> type[nn.Module] | None:
    position, base = next(
        (found for found in enumerate(kind.__mro__) if found[1].__module__.startswith("torch.nn")), (0, nn.Module)
    )
    if base is nn.Module or not issubclass(base, nn.Module) or issubclass(base, _CONTAINERS):
        return None
    known = {name for parent in base.__mro__ for name, value in vars(parent).items() if callable(value)}
    changed = {name for child in kind.__mro__[:position] for name in vars(child)} & known
    return base if changed <= _HARMLESS else None


class InlineTracer(fx.Tracer):
    """Trace a module that a pattern offers: every module inside that is torch's or ours is one step.

    Arguments that are left out, and those after the last one given, keep their defaults.
    """

    def __init__(self, given: int, left_out: frozenset[int]) -> None:
        super().__init__()
        self._given = given
        self._left_out = left_out
        self._seen = 0

    def is_leaf_module(self, m: nn.Module, module_qualified_name: str) -> bool:
        return super().is_leaf_module(m, module_qualified_name) or is_one_step(m)

    def create_proxy(self, kind: str, target: Any, args: Any, kwargs: Any, *rest: Any, **named: Any) -> Any:
        if kind == "placeholder":
            position, self._seen = self._seen, self._seen + 1
            if position in self._left_out:
                return None
            if position >= self._given:
                return args[0]
        return super().create_proxy(kind, target, args, kwargs, *rest, **named)


def is_in_place(module: nn.Module | None) -> bool:
    """Say whether a module changes its input; reads the dictionary, as asking a module for what it lacks is slow."""
    return module is not None and module.__dict__.get("inplace") is True


def writes(network: Network, node: fx.Node) -> bool:
    module = network.module_of(node)
    if module is not None:
        return is_in_place(module) or any(is_in_place(part) for part in module.children())
    if node.op not in ("call_function", "call_method"):
        return False
    name = str(node.target) if node.op == "call_method" else getattr(node.target, "__name__", "")
    stem = name.partition(".")[0]
    magic = stem.startswith("__")
    return (stem.endswith("_") and not magic) or name in _IN_PLACE or bool(node.kwargs.get("inplace"))


def owner_of(node: fx.Node) -> str:
    """Return the qualified name of the module whose forward made the node."""
    stack = node.meta.get("nn_module_stack")
    path = str(next(reversed(stack.values()))[0]) if stack else ""
    return join(node.meta.get("within", ""), path.removeprefix("L['self']").removeprefix("."))


def modules_of(node: fx.Node) -> tuple[str, ...]:
    """Return the modules of the user's model that a node comes from, the main one first; empty is the model itself."""
    noted = node.meta.get("modules")
    return tuple(noted) if noted else (str(node.target) if node.op == "call_module" else owner_of(node),)


def _is_same(module: nn.Module, model: nn.Module, name: str) -> bool:
    """Say whether a module is the one a model has under this name, or stands for it on its parameters."""
    try:
        other = model.get_submodule(name)
    except AttributeError:
        return False
    own = {id(parameter) for parameter in other.parameters(recurse=False)}
    return module is other or any(id(parameter) in own for parameter in module.parameters())


def join(*parts: str) -> str:
    return ".".join(part for part in parts if part)


def _is_scaffolding(node: fx.Node) -> bool:
    """Say whether an unused node can go: it reads an attribute or computes a size."""
    name = str(node.target) if node.op == "call_method" else getattr(node.target, "__name__", "").partition(".")[0]
    return node.op == "get_attr" or (node.op in ("call_method", "call_function") and name in _PURE)


def _form(value: object) -> _Form:
    return _Form(tuple(value.shape), value.dtype) if isinstance(value, torch.Tensor) else _Form()
