"""The graph ONNX Runtime really runs: written by a session, read back, matched by node name."""

import re
import tempfile
from collections import Counter
from pathlib import Path

import onnx

from embedl_deploy.dialect._observe import make_session
from embedl_deploy.errors import ModelFileError

# What ONNX Runtime hangs on a node's name when it replaces the node.
_SUFFIX = re.compile(r"(_token_\d+|/MatMulAddFusion|/duplicated|_nchwc|/reshape)+$")


def optimized(model: onnx.ModelProto) -> onnx.ModelProto:
    """Return the graph after all of ONNX Runtime's optimisations.

    Raises:
        ModelFileError: ONNX Runtime does not take the model.
    """
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "optimized.onnx"
        try:
            make_session(model, optimized_model_filepath=str(path))
        except Exception as exc:
            reason = str(exc).strip().splitlines()[0] if str(exc).strip() else type(exc).__name__
            raise ModelFileError(f"ONNX Runtime does not take the model: {reason}") from exc
        return onnx.load(path)


def kernels(graph: onnx.GraphProto) -> dict[str, str]:
    """Return the kernel under each node's original name."""
    found: dict[str, str] = {}
    for node in graph.node:
        found.setdefault(_SUFFIX.sub("", node.name), node.op_type)
    return found


def leftovers(graph: onnx.GraphProto) -> tuple[int, int]:
    """Count the Q and the DQ that are left to run."""
    counts = Counter(node.op_type for node in graph.node)
    return counts["QuantizeLinear"], counts["DequantizeLinear"]
