"""Apply a placement: stubs on values, quantizers on weights, batch norm folded into the layers that take it."""

from collections.abc import Iterator, Mapping
from dataclasses import replace

from torch import fx, nn

from embedl_deploy._graph.clone import copy_deep
from embedl_deploy._graph.network import Network, network_of
from embedl_deploy.errors import QuantizationError
from embedl_deploy.nn import (
    Add,
    FusedAddReLU,
    FusedConvBN,
    FusedConvBNAdd,
    Mode,
    QuantizableModule,
    QuantizedConv,
    QuantizedElementwise,
    QuantizedLayer,
    QuantSpec,
    QuantStub,
)
from embedl_deploy.nn.quantized import Together
from embedl_deploy.quantize._config import QuantConfig
from embedl_deploy.quantize._placement import Boundary, Placement
from embedl_deploy.quantize._quantization import (
    Quantization,
    find_quantization,
    put_quantization,
    quantization_of,
)


def transformed_network(model: nn.Module) -> Network:
    if not isinstance(model, fx.GraphModule):
        raise QuantizationError(
            f"this {type(model).__name__} was not transformed, so nobody knows its kernels; "
            "call transform(model, args) first and give its .model."
        )
    return network_of(model)


def stubs_of(model: nn.Module) -> Iterator[tuple[str, QuantStub]]:
    return ((name, part) for name, part in model.named_modules() if isinstance(part, QuantStub))


def layers_of(model: nn.Module) -> Iterator[tuple[str, QuantizedLayer]]:
    return ((name, part) for name, part in model.named_modules() if isinstance(part, QuantizedLayer))


def insert_qdq(
    model: nn.Module, matches: Placement, config: QuantConfig | None = None, *, symmetric: bool | None = None
) -> fx.GraphModule:
    """Put quantize/dequantize pairs into a copy of a transformed model; they pass values on until it is calibrated.

    Args:
        model: A transformed model; it is not changed, and the copy has weights of its own.
        matches: Where the pairs go, from `plan_qdq`.
        config: How tensors are quantized.
        symmetric: What activations are when the config leaves it open; `None` for what the placement's backend wants.

    Raises:
        QuantizationError: The model was not transformed, has pairs already, or `matches` is no placement.
    """
    transformed_network(model)
    if not isinstance(matches, Placement):
        raise QuantizationError(
            f"matches is a {type(matches).__name__}; it is the Placement that plan_qdq(model, args) returns."
        )
    assert isinstance(model, fx.GraphModule)
    if find_quantization(model) is not None:
        raise QuantizationError("this model has quantize/dequantize pairs already; give the model that transform made.")
    config = config or QuantConfig()
    result = copy_deep(model)
    symmetric = matches.symmetric if symmetric is None else symmetric
    form, weight = config.activation.format(symmetric=symmetric), config.weight
    nodes = {node.name: node for node in result.graph.nodes}
    modules = dict(result.named_modules())
    for decision in matches.layers:
        layer = modules.get(str(nodes[decision.node].target))
        if isinstance(layer, QuantizableModule):
            layer.quantize(
                QuantSpec(
                    decision.place, decision.points, form, weight.precision, weight.per_channel, weight.block_size
                )
            )
    network, places = network_of(result), set[str]()
    watched = {boundary.value: boundary.readers for boundary in matches.boundaries if not boundary.inside}
    for value in matches.observed():
        place = _unused(places, network.place_of(nodes[value]))
        _insert(result, nodes[value], watched.get(value, ()), QuantStub(place, form, quantizes=False))
    put_quantization(result, Quantization(matches, config, symmetric, {}))
    wire(result, matches)
    return result


def wire(model: fx.GraphModule, placement: Placement) -> None:
    """Let a model that has its stubs round where a placement says, in place."""
    rounded = {boundary.key: boundary for boundary in placement.rounded}
    watched = {boundary.value: boundary.readers for boundary in placement.boundaries if not boundary.inside}
    required = {boundary.key for boundary in placement.boundaries if boundary.quantizes}
    leaders: dict[str, str] = {}
    groups: dict[str, str] = {}
    for key, name, stub, node in _keyed_stubs(model, placement):
        boundary = rounded.get(key)
        stub.required = key in required
        stub.quantizes = boundary is not None and not stub.masked
        stub.mode = Mode.QUANTIZE if stub.quantizes and stub.calibrated else Mode.FLOAT
        if boundary is not None:
            groups[name] = leaders.setdefault(boundary.group, name)
        if node is not None:
            _rewire(node, watched.get(key[0], ()) if boundary is None else boundary.readers)
    _attach_stubs(model, active=placement.integer_kernels)
    _note_behind(model)
    _note_together(model)
    model.graph.lint()
    model.recompile()
    put_quantization(model, replace(quantization_of(model), placement=placement, groups=groups))


def boundary_stubs(model: fx.GraphModule, placement: Placement) -> list[tuple[Boundary, str, QuantStub]]:
    """Return every boundary of a placement with its stub and the stub's name."""
    found = {key: (name, stub) for key, name, stub, _ in _keyed_stubs(model, placement)}
    return [(boundary, *found[boundary.key]) for boundary in placement.rounded if boundary.key in found]


_Key = tuple[str, str]


def _keyed_stubs(model: fx.GraphModule, placement: Placement) -> Iterator[tuple[_Key, str, QuantStub, fx.Node | None]]:
    """List stubs with what they stand on: values of the graph, with the stub's node, then points inside layers."""
    modules = dict(model.named_modules())
    for node in model.graph.nodes:
        stub = modules.get(str(node.target)) if node.op == "call_module" else None
        if isinstance(stub, QuantStub):
            yield (node.all_input_nodes[0].name, ""), str(node.target), stub, node
    labels = {part.label: (name, part) for name, part in modules.items() if isinstance(part, QuantStub)}
    places = {decision.node: decision.place for decision in placement.layers}
    # Layers of other authors decide for themselves about the stubs inside them.
    for value, inside in (boundary.key for boundary in placement.boundaries if boundary.inside):
        if (found := labels.get(f"{places[value]}.{inside}")) is not None:
            yield (value, inside), *found, None


def _rewire(stub: fx.Node, readers: tuple[str, ...]) -> None:
    """Let some of those who read a value read its stub instead, and the others the value itself."""
    (value,) = stub.all_input_nodes
    for user in [*value.users, *stub.users]:
        if user is not stub:
            reads = not readers or user.name in readers
            user.replace_input_with(value if reads else stub, stub if reads else value)


def _attach_stubs(model: fx.GraphModule, *, active: bool) -> None:
    """Tell every layer that runs on integers the stubs around it, and others that they have none."""
    calls: dict[str, list[fx.Node]] = {}
    for node in model.graph.nodes:
        if node.op == "call_module":
            calls.setdefault(str(node.target), []).append(node)
    modules = dict(model.named_modules())
    for target, (node, *others) in calls.items():
        layer = modules[target]
        if isinstance(layer, QuantizedElementwise):
            layer = layer.layer
            model.set_submodule(target, layer)
        for part in layer.modules():
            if isinstance(part, QuantizedLayer):
                part.grid = None
        if not active:
            continue
        stubs = [_stub_at(modules, value) for value in node.args]
        inputs = tuple(stub for stub in stubs if stub is not None)
        # A layer that is called twice has other stubs each time.
        if others or not stubs or len(inputs) < len(stubs) or not isinstance(layer, QuantizableModule):
            continue
        readers = list(node.users)
        attached = layer.attach_stubs(inputs, _stub_at(modules, readers[0]) if len(readers) == 1 else None)
        if attached is not layer:
            model.set_submodule(target, attached)


# Not the class: another author's layer may do more behind what it inherits.
_FINISH = {Add.forward, FusedAddReLU.forward, FusedConvBN.forward, FusedConvBNAdd.forward}


def _note_behind(model: fx.GraphModule) -> None:
    """Tell every layer the stub that alone reads its result; one that is called twice has several."""
    modules = dict(model.named_modules())
    found: dict[QuantizableModule, list[tuple[QuantStub, ...]]] = {}
    for node in model.graph.nodes:
        part = modules.get(str(node.target)) if node.op == "call_module" else None
        layer = part.layer if isinstance(part, QuantizedElementwise) else part
        if isinstance(layer, QuantizableModule) and type(layer).forward in _FINISH:
            reader = next(iter(node.users), None)
            stub = modules.get(str(reader.target)) if reader is not None and reader.op == "call_module" else None
            found.setdefault(layer, []).append((stub,) if isinstance(stub, QuantStub) and len(node.users) == 1 else ())
    for layer, stubs in found.items():
        layer.behind = stubs[0] if len(stubs) == 1 else ()


_MOST_TOGETHER = 8


def _note_together(model: fx.GraphModule) -> None:
    """Let layers that follow each other round their weights in one step; those without batch norm have their own."""
    kinds: dict[object, list[QuantizedLayer]] = {}
    for _, layer in layers_of(model):
        if layer.weight_quantizer is not None:
            norm = layer.bn if isinstance(layer, QuantizedConv) else None
            kinds.setdefault(None if norm is None else getattr(norm, "eps", 0.0), []).append(layer)
    for alike in kinds.values():
        for start in range(0, len(alike), _MOST_TOGETHER):
            together = Together(alike[start : start + _MOST_TOGETHER])
            for layer in together.layers:
                layer.together = together


def _stub_at(modules: Mapping[str, nn.Module], node: object) -> QuantStub | None:
    """Return the stub that a node is, if it carries a pair."""
    found = modules.get(str(node.target)) if isinstance(node, fx.Node) and node.op == "call_module" else None
    return found if isinstance(found, QuantStub) and found.quantizes else None


def _unused(taken: set[str], place: str) -> str:
    """Return the place, with a number when it is taken: a module that is called twice makes two values."""
    name, number = place, 1
    while name.replace(".", "_") in taken:
        number += 1
        name = f"{place}:{number}"
    taken.add(name.replace(".", "_"))
    return name


def _insert(model: fx.GraphModule, value: fx.Node, readers: tuple[str, ...], stub: QuantStub) -> None:
    field = stub.label.replace(".", "_")
    # The stub on `x.to(...)` must not be called `to`: modules have a method of that name.
    name = f"stubs.{field}_" if hasattr(nn.Module, field) else f"stubs.{field}"
    model.add_submodule(name, stub)
    stub.training = model.training
    with model.graph.inserting_after(value):
        node = model.graph.create_node("call_module", name, (value,))
    node.meta = {"place": name}
    _rewire(node, readers)
