"""The rest of the graph in float16, for a runtime that runs every operator in the type it is written in.

Inputs and outputs of the model stay float32. Two things stay float32 inside: a normalization spelled out in steps,
whose squares overflow, and an operator with a constant that float16 cannot hold.
"""

import numpy as np
import onnx
from onnx import TensorProto, helper, numpy_helper

from embedl_deploy.dialect._dialects import PAIR
from embedl_deploy.dialect._model import consumers, producers, replace_all

_HALF = np.finfo(np.float16)
# Operators whose float inputs are no values to compute with, or whose schema wants float32.
_FLOAT_ONLY = {"Resize": (1, 2)}


def to_float16(model: onnx.ModelProto) -> list[str]:
    """Turn a float32 graph into float16 in place; return what stayed float32, a line each."""
    return _Float16Converter(model).run()


class _Float16Converter:
    def __init__(self, model: onnx.ModelProto) -> None:
        self.model = onnx.shape_inference.infer_shapes(model)
        self.graph = model.graph
        self.constants = {value.name: value for value in self.graph.initializer}
        self.types = {
            value.name: value.type.tensor_type.elem_type
            for value in (*self.model.graph.value_info, *self.graph.input, *self.graph.output)
        }
        self.types |= {name: value.data_type for name, value in self.constants.items()}
        self.kept: dict[str, str] = {}

    def run(self) -> list[str]:
        self._keep_written_out_norms()
        self._keep_large_constants()
        self._keep_together()
        half_constants = self._constants()
        nodes: list[onnx.NodeProto] = []
        wide: dict[str, str] = {}  # float32 twin of a float16 tensor
        narrow: dict[str, str] = {}
        # What a tensor's own name holds after this: True for float16.
        is_half = {name: name in half_constants for name in self.constants}
        outputs = {value.name for value in self.graph.output}
        for value in self.graph.input:
            is_half[value.name] = False
        for node in self.graph.node:
            inside = node.name in self.kept
            for index, name in enumerate(node.input):
                if self.types.get(name) != TensorProto.FLOAT or index in _FLOAT_ONLY.get(node.op_type, ()):
                    continue
                if is_half.get(name, False) == (not inside):
                    continue
                twins = wide if inside else narrow
                if name not in twins:
                    twins[name] = f"{name}/{'float32' if inside else 'float16'}"
                    kind = TensorProto.FLOAT if inside else TensorProto.FLOAT16
                    nodes.append(helper.make_node("Cast", [name], [twins[name]], name=twins[name], to=kind))
                node.input[index] = twins[name]
            nodes.append(node)
            nodes += self._results(node, outputs, is_half, narrow, inside=inside)
        replace_all(self.graph.node, nodes)
        del self.graph.value_info[:]
        return [f"{name} stays in float32: {reason}." for name, reason in self.kept.items()]

    def _results(
        self, node: onnx.NodeProto, outputs: set[str], is_half: dict[str, bool], narrow: dict[str, str], *, inside: bool
    ) -> list[onnx.NodeProto]:
        """Note what a node writes; a graph output keeps its name and type behind a Cast."""
        casts = []
        if node.op_type == "Cast" and not inside:
            for entry in node.attribute:
                if entry.name == "to" and entry.i == TensorProto.FLOAT and node.output[0] not in outputs:
                    entry.i = TensorProto.FLOAT16
        for index, name in enumerate(node.output):
            if self.types.get(name) != TensorProto.FLOAT:
                continue
            is_half[name] = not inside
            if name in outputs and not inside:
                node.output[index] = f"{name}/float16"
                is_half[name] = False
                narrow[name] = node.output[index]
                casts.append(
                    helper.make_node("Cast", [node.output[index]], [name], name=f"{name}/cast", to=TensorProto.FLOAT)
                )
        return casts

    def _constants(self) -> set[str]:
        """Turn the constants into float16 that only float16 operators read."""
        readers = consumers(self.graph)
        halves = set()
        for value in self.graph.initializer:
            users = readers.get(value.name, [])
            wide = any(node.name in self.kept or index in _FLOAT_ONLY.get(node.op_type, ()) for node, index in users)
            if value.data_type == TensorProto.FLOAT and not wide:
                with np.errstate(over="ignore", under="ignore"):
                    numbers = numpy_helper.to_array(value).astype(np.float16)
                value.CopyFrom(numpy_helper.from_array(numbers, value.name))
                halves.add(value.name)
        return halves

    def _keep_written_out_norms(self) -> None:
        """Find variance computed in steps (mean, subtract, square, mean, root) and keep the steps in float32."""
        maker = producers(self.graph)
        readers = consumers(self.graph)
        for root in (node for node in self.graph.node if node.op_type == "Sqrt"):
            steps = _back(root, maker, {"Add", "ReduceMean", "Pow", "Mul", "Sub", "Sqrt"}, 7)
            if any(step.op_type == "ReduceMean" for step in steps):
                for step in (*steps, *(reader for reader, _ in readers.get(root.output[0], []))):
                    self.kept.setdefault(step.name, "its squares overflow float16")

    def _keep_large_constants(self) -> None:
        for node in self.graph.node:
            for index, name in enumerate(node.input):
                value = self.constants.get(name)
                if value is None or value.data_type != TensorProto.FLOAT:
                    continue
                numbers = np.abs(numpy_helper.to_array(value))
                is_scale = node.op_type in PAIR and index == 1
                if np.any(numbers > _HALF.max):
                    self.kept.setdefault(node.name, f"{name} has a value above {_HALF.max}")
                elif is_scale and np.any((numbers < _HALF.tiny) & (numbers > 0)):
                    self.kept.setdefault(node.name, f"{name} is too small for float16")

    def _keep_together(self) -> None:
        """Keep a DQ and its Q in one type: they share their scale."""
        maker, readers = producers(self.graph), consumers(self.graph)
        for node in self.graph.node:
            if node.op_type in PAIR and node.name in self.kept:
                before = maker.get(node.input[0])
                others = [before] if before is not None and before.op_type == "QuantizeLinear" else []
                others += [other for other, index in readers.get(node.input[1], []) if index == 1]
                for other in others:
                    self.kept.setdefault(other.name, self.kept[node.name])


def _back(node: onnx.NodeProto, maker: dict[str, onnx.NodeProto], kinds: set[str], depth: int) -> list[onnx.NodeProto]:
    if node.op_type not in kinds or not depth:
        return []
    found = [node]
    for name in node.input:
        if name in maker:
            found += [step for step in _back(maker[name], maker, kinds, depth - 1) if step not in found]
    return found
