"""A file is looked at before it is written: a model that no runtime loads is an error here, not there."""

import importlib
import re

import onnx
from torch import nn

from embedl_deploy.errors import ExportError

# Above this the checker and ONNX Runtime need the weights in a file beside the model.
_LARGEST = 1_900_000_000
_NODE = re.compile(r"node(?::\s*name:|\s*name:|:)?\s*\(?([^\s():]*/[^\s():]+)")


def check_file(model: onnx.ModelProto, source: nn.Module, *, optimize: bool = False) -> None:
    """Raise if a model is not valid, or ONNX Runtime, where it is installed, does not load it.

    Args:
        model: What is to be written.
        source: What it was made from, for advice.
        optimize: Load it as a user would; without, its operators and types are looked at as they stand.

    Raises:
        ExportError: It is not valid; the operator and its types are named.
    """
    if model.ByteSize() > _LARGEST:
        return
    try:
        onnx.checker.check_model(model, full_check=True)
    except (onnx.checker.ValidationError, onnx.shape_inference.InferenceError) as exc:
        raise ExportError(_text(str(exc), source)) from exc
    if optimize or _runs_as_written(model):
        _load(model, source, optimize=optimize)


def _runs_as_written(model: onnx.ModelProto) -> bool:
    """Tell whether every operator is one of ONNX's own."""
    return all(node.domain in ("", "ai.onnx") for node in model.graph.node)


def _load(model: onnx.ModelProto, source: nn.Module, *, optimize: bool) -> None:
    try:
        runtime = importlib.import_module("onnxruntime")
    except ImportError:
        return
    options = runtime.SessionOptions()
    options.log_severity_level, options.intra_op_num_threads = 4, 1
    if not optimize:
        options.graph_optimization_level = runtime.GraphOptimizationLevel.ORT_DISABLE_ALL
    state = runtime.capi.onnxruntime_pybind11_state
    try:
        runtime.InferenceSession(model.SerializeToString(), options, providers=["CPUExecutionProvider"])
    except state.NotImplemented:
        # The file is valid; this machine's ONNX Runtime has no kernel for one of its types.
        return
    except (state.InvalidGraph, state.InvalidArgument, state.Fail, state.RuntimeException) as exc:
        raise ExportError(_text(str(exc), source)) from exc


def _text(reason: str, source: nn.Module) -> str:
    """Say which operator is wrong, and what to do."""
    place = _NODE.search(reason)
    where = f" at '{place.group(1)}'" if place is not None else ""
    told = " ".join(reason.split())
    text = f"the file would not be valid{where}, so nothing was written: {told[:400]}."
    types = sorted({str(one.dtype).removeprefix("torch.") for one in source.parameters() if one.is_floating_point()}
                   - {"float32"})  # fmt: skip
    if types:
        return f"{text} The model's weights are {', '.join(types)}: call model.float() before transform."
    return f"{text} Leave the layer out (QuantConfig(skip=ModulesToSkip.layers(...))), and report it."
