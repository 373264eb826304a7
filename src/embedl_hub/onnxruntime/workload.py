"""Which kernels a model runs, as float and as INT8, on which shapes; in a process of its own.

INT8 is made by the real quantiser with made-up ranges, and the runtime of this machine runs both once with its own
profile on: what it fuses is not guessed. ``python -m embedl_hub.onnxruntime.workload REQUEST.json`` prints one JSON
object.
"""

from __future__ import annotations

import json
import logging
import sys
import warnings
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from embedl_hub.onnxruntime.quantizing import flat_biases, float_model
from embedl_hub.onnxruntime.weightless import give_weights, int8_of, take_weights
from embedl_hub.toolchain.model import model_file, read_graph
from embedl_hub.toolchain.own_process import answer, ask
from embedl_hub.toolchain.refusal import RefusedError

if TYPE_CHECKING:
    from collections.abc import Mapping

_DTYPES = {
    "tensor(float)": np.float32, "tensor(double)": np.float64, "tensor(float16)": np.float16, "tensor(int8)": np.int8,
    "tensor(uint8)": np.uint8, "tensor(int32)": np.int32, "tensor(int64)": np.int64, "tensor(bool)": np.bool_,
}  # fmt: skip
_KERNEL = "_kernel_time"


@dataclass(frozen=True)
class WorkloadRequest:
    """Whose kernels are wanted; paths are text, for the journey as JSON.

    Attributes:
        model: The float model, with fixed shapes.
        activations: The number format.
        weights: Likewise.
        per_channel: One scale per output channel of a weight.
        quantize_io: Inputs and outputs are integers too.
        layouts: Whether layouts of this machine's processor family are those of the target.
    """

    model: str
    activations: str = "uint8"
    weights: str = "int8"
    per_channel: bool = False
    quantize_io: bool = False
    layouts: bool = True


def workload(request: WorkloadRequest, scratch: Path) -> dict[str, list[dict[str, Any]]]:
    """Return the nodes that run, as float and as INT8: ``op``, ``inputs``, ``outputs``."""
    return ask(__name__, asdict(request), scratch / "workload.json", lambda error: f"The kernels are unknown: {error}")


def workload_here(request: WorkloadRequest, folder: Path) -> dict[str, list[dict[str, Any]]]:
    """Do it in this process."""
    import onnx  # noqa: PLC0415 - only this process needs it

    folder.mkdir()
    model = onnx.load(flat_biases(float_model(Path(request.model), folder)))
    sizes = take_weights(model)
    kinds = {"float": give_weights(model, sizes)}
    kinds["int8"] = give_weights(int8_of(model, request), sizes)
    found = {}
    for kind, made in kinds.items():
        path = folder / f"{kind}.onnx"
        onnx.save(made, path)
        is_signed = request.activations == "int8"
        found[kind] = nodes_run(path, folder / kind, layouts=request.layouts, is_signed=is_signed)
    return found


def nodes_run(model: Path, prefix: Path, *, layouts: bool, is_signed: bool = False) -> list[dict[str, Any]]:
    """Run a model once and return its nodes.

    Args:
        model: The model.
        prefix: Where the runtime's profile goes, without its ending.
        layouts: Whether data may be laid out as this machine's processor likes it.
        is_signed: Whether signed activations are fused, as they are on ARM and not on x86.
    """
    import onnxruntime  # noqa: PLC0415 - only this process needs it

    options = onnxruntime.SessionOptions()
    options.log_severity_level = 3
    level = "ORT_ENABLE_ALL" if layouts else "ORT_ENABLE_EXTENDED"
    options.graph_optimization_level = getattr(onnxruntime.GraphOptimizationLevel, level)
    if is_signed:
        options.add_session_config_entry("session.qdqisint8allowed", "1")
    options.enable_profiling = True
    options.profile_file_prefix = str(prefix)
    # It runs once: packing weights first would cost more than it saves.
    options.add_session_config_entry("session.disable_prepacking", "1")
    try:
        session = onnxruntime.InferenceSession(str(model_file(model)), options, providers=["CPUExecutionProvider"])
        session.run(None, {value.name: _made_up(value) for value in session.get_inputs()})
        trace = Path(session.end_profiling())
    except RefusedError:
        raise
    except Exception as error:  # the runtime raises a class of its own per cause
        text = " ".join(str(error).split())[:500]
        raise RefusedError(f"ONNX Runtime {onnxruntime.__version__} cannot run the model: {text}") from error
    return [
        _node(event) for event in json.loads(trace.read_text(encoding="utf-8", errors="replace")) if _is_node(event)
    ]


def _is_node(event: Mapping[str, Any]) -> bool:
    return event.get("cat") == "Node" and str(event.get("name", "")).endswith(_KERNEL)


def _node(event: Mapping[str, Any]) -> dict[str, Any]:
    facts = event["args"]
    return {"op": facts["op_name"], "inputs": facts["input_type_shape"], "outputs": facts["output_type_shape"]}


def _made_up(value: Any) -> np.ndarray:  # noqa: ANN401 - the runtime's object
    if value.type not in _DTYPES:
        raise RefusedError(f"Input {value.name!r} is of {value.type}; numbers are needed.")
    # An open size is a batch or a length; 1 runs everywhere.
    shape = [size if isinstance(size, int) and size > 0 else 1 for size in value.shape]
    return np.zeros(shape, _DTYPES[value.type])


def has_open_sizes(model: Path) -> bool:
    """Tell whether an input has no fixed shape: the work then depends on data."""
    given = {value.name for value in read_graph(model).graph.initializer}
    return any(
        not dim.dim_value
        for value in read_graph(model).graph.input
        if value.name not in given
        for dim in value.type.tensor_type.shape.dim
    )


def main() -> int:
    """Answer what the file on the command line asks."""
    logging.disable(logging.WARNING)
    warnings.simplefilter("ignore")
    return answer("onnxruntime", lambda request, folder: workload_here(WorkloadRequest(**request), folder))


if __name__ == "__main__":
    sys.exit(main())
