"""Which module of the user's model each node comes from, and what number format each module has in a file.

The exporter notes the modules of operators. A file's Q/DQ and what lowering puts in are led back from there: a pair
belongs to the module that made its tensor, a weight's or bias's to the module that reads it.
"""

import json
from collections.abc import Mapping

import onnx

from embedl_deploy.dialect._dialects import PAIR
from embedl_deploy.dialect._model import (
    FORMAT,
    MODULES,
    PRECISIONS,
    consumers,
    integer_type_name,
    producers,
    read_entry,
    set_metadata,
)
from embedl_deploy.errors import ModelFileError

Names = tuple[str, ...]
_VERSION = "1"
# What only moves numbers, in whatever format they have.
_MOVES = frozenset({"Cast", "Concat", "Flatten", "Identity", "Reshape", "Shape", "Slice", "Squeeze", "Transpose",
                    "Unsqueeze"})  # fmt: skip
_CLAMPS = ("Relu", "Clip")
_WORDS = {"uint8": "int8", "uint16": "int16", "uint4": "int4", "float8e4m3fn": "fp8"}


def read_modules(model: onnx.ModelProto) -> dict[str, Names]:
    """Return the modules of each node, the main one first; what cannot be read is left out."""
    try:
        entries = read_entry(model, MODULES, "{}")
    except ModelFileError:
        return {}
    listed = {node: [names] if isinstance(names, str) else names for node, names in entries.items()}
    return {
        node: tuple(names)
        for node, names in listed.items()
        if isinstance(names, list) and names and all(isinstance(name, str) for name in names)
    }


def main_modules(model: onnx.ModelProto) -> dict[str, str]:
    return {node: names[0] for node, names in read_modules(model).items()}


def note_modules(model: onnx.ModelProto, modules: Mapping[str, Names]) -> None:
    """Write down the modules of every node, and the number format of every module."""
    whole = _ModuleFinder(model.graph, modules).run()
    precisions = json.dumps(_precisions(model, whole))
    set_metadata(model, {FORMAT: _VERSION, MODULES: json.dumps(whole), PRECISIONS: precisions})


def renew_modules(model: onnx.ModelProto) -> None:
    """Do it again after the nodes have changed; a file without modules stays without."""
    if known := read_modules(model):
        note_modules(model, known)


class _ModuleFinder:
    """Leads the nodes of one graph back to modules."""

    def __init__(self, graph: onnx.GraphProto, known: Mapping[str, Names]) -> None:
        self.graph = graph
        self.makers = producers(graph)
        self.readers = consumers(graph)
        self.constants = {value.name for value in graph.initializer}
        # Names of pairs are made anew by every lowering; an old one may mean another tensor now.
        self.found = {node.name: known[node.name] for node in graph.node
                      if node.name in known and node.op_type not in PAIR}  # fmt: skip

    def run(self) -> dict[str, Names]:
        for node in self.graph.node:
            if node.name not in self.found and (names := self._before(node)):
                self.found[node.name] = names
        for node in reversed(self.graph.node):
            readers = (reader.name for name in node.output for reader, _ in self.readers.get(name, ()))
            if node.name not in self.found and (name := next((name for name in readers if name in self.found), None)):
                self.found[node.name] = self.found[name]
        return {node.name: self.found[node.name] for node in self.graph.node if node.name in self.found}

    def _before(self, node: onnx.NodeProto) -> Names:
        """Return the modules of what made the first value a node reads; an input is made by none but the model."""
        value = next((name for name in node.input if name), "")
        if value in self.constants or not value:
            return ()
        maker = self.makers.get(value)
        return ("",) if maker is None else self.found.get(maker.name, ())


def _precisions(model: onnx.ModelProto, modules: Mapping[str, Names]) -> dict[str, str]:
    """Return the number format of each module's operators: of those with weights, where it has any."""
    formats = _Formats(model.graph)
    words: dict[str, dict[bool, list[str]]] = {}
    for node in model.graph.node:
        word, has_weights = formats.of(node)
        if node.op_type not in (*PAIR, *_MOVES) and node.name in modules:
            words.setdefault(modules[node.name][0], {}).setdefault(has_weights, []).append(word)
    return {name: " and ".join(dict.fromkeys(found[max(found)])) for name, found in words.items()}


class _Formats:
    """Tells the number formats of operators, in the order of the graph."""

    def __init__(self, graph: onnx.GraphProto) -> None:
        self.makers = producers(graph)
        self.constants = {value.name: value for value in graph.initializer}
        kinds = {value.data_type for value in graph.initializer}
        self.plain = "float16" if onnx.TensorProto.FLOAT16 in kinds else "float32"
        self.seen: dict[str, str] = {}

    def of(self, node: onnx.NodeProto) -> tuple[str, bool]:
        floats = any(len(self.constants[name].dims) > 1 for name in node.input if name in self.constants)
        values = [self.makers.get(name) for name in node.input if name not in self.constants]
        pairs = [maker for maker in values if maker is not None and maker.op_type == "DequantizeLinear"]
        weights = [pair for pair in pairs if pair.input[0] in self.constants]
        activations = [pair for pair in pairs if pair.input[0] not in self.constants]
        word = self.plain
        if activations and len(activations) == len(values) - len(weights) and not floats:
            word = self._held(activations[0])
        elif node.op_type in _CLAMPS and values and values[0] is not None:
            # It is done in the kernel before it, where that computes on integers.
            word = self.seen.get(values[0].name, word)
        self.seen[node.name] = word
        held = [self._held(pair) for pair in weights if len(self.constants[pair.input[0]].dims) > 1]
        return word if not held or held[0] == word else f"{word}, weights {held[0]}", bool(held) or floats

    def _held(self, pair: onnx.NodeProto) -> str:
        """Return the format of what a DQ reads; its sign is the runtime's affair."""
        maker = self.makers.get(pair.input[0])
        zero = pair.input[2] if len(pair.input) > 2 else maker.input[2] if maker and len(maker.input) > 2 else ""
        held = self.constants.get(pair.input[0]) or self.constants.get(zero)
        name = integer_type_name(held.data_type) if held is not None else "uint8"
        return _WORDS.get(name, name)
