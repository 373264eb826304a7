"""What a file is worth: its speed in turns with the others, its distance from float, what ONNX Runtime made of it."""

from __future__ import annotations

import tempfile
import time
from collections import Counter
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
import onnx
import onnxruntime

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping

    from numpy.typing import NDArray

INTEGER = frozenset(
    ("QLinearConv", "QLinearConvTranspose", "ConvInteger", "QGemm", "QLinearMatMul", "MatMulIntegerToFloat",
     "MatMulInteger", "DynamicQuantizeMatMul", "QAttention")
)  # fmt: skip
FLOAT = frozenset(("Conv", "FusedConv", "NhwcFusedConv", "ConvTranspose", "Gemm", "FusedGemm", "MatMul", "FusedMatMul"))

_MOVERS = ("DequantizeLinear", "QuantizeLinear", "Transpose", "Reshape", "Cast")


def session(path: Path, optimized: Path | None = None) -> onnxruntime.InferenceSession:
    """Open a file on one thread."""
    options = onnxruntime.SessionOptions()
    options.intra_op_num_threads = 1
    options.inter_op_num_threads = 1
    options.log_severity_level = 3
    if optimized is not None:
        options.optimized_model_filepath = str(optimized)
    return onnxruntime.InferenceSession(str(path), options, providers=["CPUExecutionProvider"])


def outputs(opened: onnxruntime.InferenceSession, inputs: NDArray[np.float32], batch: int) -> NDArray[np.float32]:
    """Run inputs batch by batch and return the first output of all."""
    name = opened.get_inputs()[0].name
    parts = [opened.run(None, {name: inputs[at : at + batch]})[0] for at in range(0, len(inputs), batch)]
    return np.concatenate(parts)


def sqnr(wanted: NDArray[Any], got: NDArray[Any]) -> float:
    """Return the signal-to-noise ratio in dB; 200 stands for equal."""
    noise = float(np.square(wanted.astype(np.float64) - got).sum())
    signal = float(np.square(wanted.astype(np.float64)).sum())
    return 200.0 if noise == 0 else 10 * float(np.log10(signal / noise))


def race(
    sessions: Mapping[str, onnxruntime.InferenceSession], feed: NDArray[np.float32], rounds: int
) -> dict[str, list[float]]:
    """Run every session once a round, each round from another start, and return the milliseconds of each round.

    The milliseconds are the thread's own CPU time: a session has one thread, and what the machine's other work takes
    from it in between would be charged to whoever runs.
    """
    names = list(sessions)
    times: dict[str, list[float]] = {name: [] for name in names}
    inputs = {name: {opened.get_inputs()[0].name: feed} for name, opened in sessions.items()}
    for name in names:
        sessions[name].run(None, inputs[name])
    for number in range(rounds):
        shift = number % len(names)
        for name in names[shift:] + names[:shift]:
            start = time.thread_time_ns()
            sessions[name].run(None, inputs[name])
            times[name].append((time.thread_time_ns() - start) / 1e6)
    return times


@dataclass
class Coverage:
    """Weighted operators by the arithmetic they run in, and what is left of Q and DQ inside the graph."""

    integer: int = 0
    float_: int = 0
    float_ops: dict[str, int] = field(default_factory=dict)
    attention_integer: int = 0
    attention_float: int = 0
    inner_q: int = 0
    inner_dq: int = 0
    edge_q: int = 0
    edge_dq: int = 0
    ops: dict[str, int] = field(default_factory=dict)

    @property
    def share(self) -> float:
        """Return the integer share of weighted operators."""
        return self.integer / max(1, self.integer + self.float_)

    def as_dict(self) -> dict[str, Any]:
        """Return the figures, for a result file."""
        return {**asdict(self), "share": self.share}


def coverage(path: Path) -> Coverage:
    """Read what ONNX Runtime's optimizer makes of a file."""
    with tempfile.TemporaryDirectory() as folder:
        optimized = Path(folder) / "optimized.onnx"
        session(path, optimized)
        graph = onnx.load(optimized, load_external_data=False).graph
    made_by = {output: node for node in graph.node for output in node.output}
    constants = {tensor.name for tensor in graph.initializer}
    inputs, results = {value.name for value in graph.input} - constants, {value.name for value in graph.output}
    readers = Counter(name for node in graph.node for name in node.input)
    found = Coverage(ops=dict(Counter(node.op_type for node in graph.node)))
    left: Counter[str] = Counter()
    for node in graph.node:
        if node.op_type in INTEGER | FLOAT:
            _count_weighted(node, made_by, constants, found, left)
        elif node.op_type == "QuantizeLinear":
            found.edge_q += node.input[0] in inputs
            found.inner_q += node.input[0] not in inputs
        elif node.op_type == "DequantizeLinear":
            at_edge = node.output[0] in results and not readers[node.output[0]]
            found.edge_dq += at_edge
            found.inner_dq += not at_edge
    found.float_ops = dict(left)
    return found


def _count_weighted(
    node: onnx.NodeProto,
    made_by: Mapping[str, onnx.NodeProto],
    constants: set[str],
    found: Coverage,
    left: Counter[str],
) -> None:
    """Put one convolution, linear or product of two activations into its column."""
    integer = node.op_type in INTEGER
    if any(_is_constant(name, made_by, constants) for name in _operands(node)):
        found.integer += integer
        found.float_ += not integer
        if not integer:
            left[node.op_type] += 1
    else:
        found.attention_integer += integer
        found.attention_float += not integer


def _operands(node: onnx.NodeProto) -> Iterator[str]:
    """Name the tensors an operator multiplies."""
    second = 3 if node.op_type in ("QLinearConv", "QGemm", "QLinearMatMul") else 1
    yield node.input[0]
    yield node.input[second]


def _is_constant(name: str, made_by: Mapping[str, onnx.NodeProto], constants: set[str]) -> bool:
    while name in made_by and made_by[name].op_type in _MOVERS:
        name = made_by[name].input[0]
    return name in constants
