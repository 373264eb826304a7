"""The version of the standard operators: raised where a file needs it, refused where that cannot be done."""

import onnx
from onnx import version_converter

from embedl_deploy.dialect._model import opset_of
from embedl_deploy.errors import ModelFileError

_TYPED = 21
_CHANGED = frozenset({"GroupNormalization", "Scan", "If", "Loop"})
_NEW_TYPES = frozenset({
    onnx.TensorProto.INT4, onnx.TensorProto.UINT4, onnx.TensorProto.INT16, onnx.TensorProto.UINT16,
})  # fmt: skip
_IR_VERSIONS = {13: 7, 14: 7, 15: 8, 16: 8, 17: 8, 18: 8, 19: 9, 20: 9, 21: 10}


def raise_opset(model: onnx.ModelProto, version: int) -> onnx.ModelProto:
    """Return a model of at least this version; the one given if it has it.

    Raises:
        ModelFileError: ONNX's own converter cannot convert it.
    """
    old = opset_of(model)
    if old >= version:
        return model
    try:
        raised = version_converter.convert_version(model, version)
    except Exception as exc:
        reason = str(exc).strip().splitlines()[0] if str(exc).strip() else type(exc).__name__
        raise ModelFileError(
            f"The model has opset {old}, this needs {version}, and it could not be converted: {reason} "
            f"Export it again with opset {version}."
        ) from exc
    raised.ir_version = max(raised.ir_version, model.ir_version, _IR_VERSIONS.get(version, 10))
    if not raised.metadata_props:
        raised.metadata_props.extend(model.metadata_props)
    return raised


def relax_opset(model: onnx.ModelProto) -> None:
    """Say opset 20 instead of 21 where the file needs nothing of 21.

    The two differ in the types that operators take, and in GroupNormalization. ONNX Runtime carries pairs of opset 21
    across other operators with a type that it forgets to change with the zero point's, and then refuses the model: seen
    on x86 with signed activations, in 1.30 and 1.31.
    """
    if opset_of(model) != _TYPED or any(node.op_type in _CHANGED for node in model.graph.node):
        return
    pairs = [node for node in model.graph.node if node.op_type in ("QuantizeLinear", "DequantizeLinear")]
    if any(entry.name in ("block_size", "output_dtype") for node in pairs for entry in node.attribute):
        return
    if any(value.data_type in _NEW_TYPES for value in model.graph.initializer):
        return
    for entry in model.opset_import:
        if entry.domain in ("", "ai.onnx"):
            entry.version = _TYPED - 1
    model.ir_version = min(model.ir_version, _IR_VERSIONS[_TYPED - 1])
