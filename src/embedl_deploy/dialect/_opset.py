"""The version of the standard operators: raised where a file needs it, refused where that cannot be done."""

import onnx
from onnx import version_converter

from embedl_deploy.dialect._model import opset_of
from embedl_deploy.errors import ModelFileError

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
