"""The operators of `_frozen` on their way through torch's exporter: single nodes there, Q/DQ in the file."""

from collections.abc import Callable
from typing import Any

import onnx
import torch
from onnx import helper
from onnx.defs import OpSchema
from onnxscript import values
from torch import nn

from embedl_deploy.dialect._model import attribute, rename_tensor, replace_all
from embedl_deploy.export._frozen import VALUE, WEIGHT, FrozenStub, FrozenWeight, entries

DOMAIN = "edgeproof"
_TENSORS = [kind for kind in onnx.defs.get_schema("Identity").type_constraints[0].allowed_type_strs if kind[:2] == "te"]

_TYPES = {
    torch.float32: onnx.TensorProto.FLOAT,
    torch.int8: onnx.TensorProto.INT8,
    torch.uint8: onnx.TensorProto.UINT8,
    torch.int16: onnx.TensorProto.INT16,
    torch.uint16: onnx.TensorProto.UINT16,
    torch.float8_e4m3fn: onnx.TensorProto.FLOAT8E4M3FN,
}


def translations() -> dict[Any, Callable[..., Any]]:
    """Return, for torch's exporter, the node that stands for each operator."""
    return {VALUE: _node("Value"), WEIGHT: _node("Weight")}


def _node(name: str) -> Callable[..., Any]:
    schema = OpSchema(
        name,
        DOMAIN,
        1,
        inputs=[OpSchema.FormalParameter("value", "T")],
        outputs=[OpSchema.FormalParameter("result", "R")],
        type_constraints=[("T", _TENSORS, ""), ("R", _TENSORS, "")],
        attributes=[OpSchema.Attribute("entry", OpSchema.AttrType.INT, required=True)],
    )
    operator = values.Op(values.Opset(DOMAIN, 1), name, schema)

    def translate(value: Any, entry: int, dtype: int = 0) -> Any:
        # The exporter knows the type of the result from torch.
        del dtype
        return operator(value, entry=entry)

    return translate


def write_quantizers(graph: onnx.GraphProto, frozen: nn.Module) -> dict[str, str]:
    """Write the quantizers out in a file; return the tensor that each label of a stub stands for."""
    return _Writer(graph, frozen).run()


class _Writer:
    """Writes a pair with its scale and zero point for every stub, and a DequantizeLinear for every weight."""

    def __init__(self, graph: onnx.GraphProto, frozen: nn.Module) -> None:
        self.graph = graph
        self.parts = list(entries(frozen).items())
        self.source: dict[str, str] = {}  # What a stub passes on, by the name it was passed on under.
        self.labels: dict[str, str] = {}
        self.stored: set[str] = set()

    def run(self) -> dict[str, str]:
        nodes: list[onnx.NodeProto] = []
        for node in self.graph.node:
            for index, name in enumerate(node.input):
                node.input[index] = self.source.get(name, name)
            nodes += self._written(node) if node.domain == DOMAIN else [node]
        self._name_outputs(nodes)
        replace_all(self.graph.node, nodes)
        return self.labels

    def _written(self, node: onnx.NodeProto) -> list[onnx.NodeProto]:
        name, part = self.parts[attribute(node, "entry")]
        if isinstance(part, FrozenWeight):
            scale = self._constant(f"{name}.scale", part.numbers[0])
            made = helper.make_node(
                "DequantizeLinear", [node.input[0], scale], node.output, axis=part.axis, block_size=part.block
            )
            return [_like(node, made)]
        self.labels[part.label] = node.input[0]
        if not part.quantizes:
            self.source[node.output[0]] = node.input[0]
            return []
        return self._pair(node, name, part)

    def _pair(self, node: onnx.NodeProto, name: str, stub: FrozenStub) -> list[onnx.NodeProto]:
        scale, zero_point = stub.numbers
        numbers = [self._constant(f"{name}.scale", scale), self._constant(f"{name}.zero_point", zero_point)]
        codes = f"{node.output[0]}/codes"
        return [
            _like(node, helper.make_node("QuantizeLinear", [node.input[0], *numbers], [codes])),
            _like(node, helper.make_node("DequantizeLinear", [codes, *numbers], node.output)),
        ]

    def _constant(self, name: str, value: torch.Tensor) -> str:
        """Store a number in the file; a layer that is called twice has it once."""
        if name not in self.stored:
            self.stored.add(name)
            data = value.cpu().flatten().view(torch.uint8).numpy().tobytes()
            self.graph.initializer.append(helper.make_tensor(name, _TYPES[value.dtype], value.shape, data, raw=True))
        return name

    def _name_outputs(self, nodes: list[onnx.NodeProto]) -> None:
        """Keep the names of outputs that a stub passed on."""
        made = {name for node in nodes for name in node.output}
        now: dict[str, str] = {}
        for wanted in [output.name for output in self.graph.output if output.name in self.source]:
            origin = self.source[wanted]
            if origin in made and origin not in now:
                now[origin] = wanted
                rename_tensor(nodes, origin, wanted)
            else:
                # An input of the model, or what is an output already.
                nodes.append(helper.make_node("Identity", [now.get(origin, origin)], [wanted]))
        self.labels = {label: now.get(name, name) for label, name in self.labels.items()}


def _like(node: onnx.NodeProto, made: onnx.NodeProto) -> onnx.NodeProto:
    """Give a node the scopes of the one that it stands for."""
    made.metadata_props.extend(node.metadata_props)
    return made
