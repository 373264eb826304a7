"""What OpenVINO refuses, led back to the user's model: which node, which module, and what to do about it."""

from __future__ import annotations

import re
from typing import TYPE_CHECKING

import onnx

from embedl_hub.models.module_names import read_modules
from embedl_hub.models.onnx_file import nodes_of
from embedl_hub.refusal import RefusedError

if TYPE_CHECKING:
    from collections.abc import Iterator

# How versions from 2024.0 on name what they stumbled over: operators without a rule, a node, a layer made of it.
_OPERATORS = re.compile(r"(?:operations|operators): ((?:[\w.-]+, )*[\w.-]+)")
_NODE = re.compile(r"<Node\(\w+\): ([^>]+)>")
_LAYER = re.compile(r"friendly_name '([^']+)'")
_MOST_NODES = 5


def check_opset(model: onnx.ModelProto) -> None:
    """Refuse an opset that nobody knows yet: OpenVINO reads it as the newest it knows, and may compute otherwise."""
    newest = onnx.defs.onnx_opset_version()
    for entry in model.opset_import:
        if entry.domain in ("", "ai.onnx") and entry.version > newest:
            raise RefusedError(
                f"The model has opset {entry.version}; onnx {onnx.__version__} on this machine knows opsets up to "
                f"{newest}. Export it with one of those, or install a newer onnx and openvino."
            )


def explained(error: RefusedError, model: onnx.ModelProto) -> RefusedError:
    """Return a refusal of OpenVINO with the nodes and modules it is about, where it tells."""
    text = str(error)
    nodes = list(dict.fromkeys(_named(text, model)))
    if not nodes:
        return error
    modules = read_modules(model).of_node
    kinds = {node.name: node.op_type for node in nodes_of(model.graph)}
    words = []
    for name in nodes[:_MOST_NODES]:
        module = next(iter(modules.get(name, ())), "")
        words.append(f"{kinds[name]} {name!r}" + (f" of module {module!r}" if module else ""))
    more = f" and {len(nodes) - _MOST_NODES} more" if len(nodes) > _MOST_NODES else ""
    opset = next((entry.version for entry in model.opset_import if entry.domain in ("", "ai.onnx")), 0)
    return RefusedError(
        f"{text.rstrip('. ')}. It is about {', '.join(words)}{more}, in a model of opset {opset}. Leave the operator "
        "out of the exported part, write it with others, or use another version of OpenVINO or of the opset."
    )


def _named(text: str, model: onnx.ModelProto) -> Iterator[str]:
    nodes = list(nodes_of(model.graph))
    makers = {output: node.name for node in nodes for output in node.output if output}
    names = {node.name for node in nodes}
    for found in _OPERATORS.finditer(text):
        # ``com.me.Wobble``, ``Det``, or with the opset: ``Det-17``.
        lacking = {re.sub(r"-\d+$", "", word) for word in found[1].split(", ")}
        yield from (node.name for node in nodes if {node.op_type, f"{node.domain}.{node.op_type}"} & lacking)
    for pattern in (_NODE, _LAYER):
        for found in pattern.finditer(text):
            if found[1] in names:
                yield found[1]
            elif found[1] in makers:
                yield makers[found[1]]
