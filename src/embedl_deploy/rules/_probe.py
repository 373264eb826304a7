"""Ask a runtime what it makes of graphs: which nodes compute on integers, in which kernel, and what is refused.

A placement is a word for each node of the float graph: ``integer KERNEL``, ``float``, ``taken`` (done by the integer
kernel before it), or for all of them ``built``, ``refused``, ``crashed`` or ``timed out``.
"""

import contextlib
import os
import re
import select
import subprocess
import tempfile
import time
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import IO, Protocol, Self

import onnx

from embedl_deploy.dialect._dialects import WEIGHTED
from embedl_deploy.dialect._facts import MOVING, NOT_COMPUTING
from embedl_deploy.dialect._model import read
from embedl_deploy.dialect._qdq_placement import View
from embedl_deploy.errors import DialectError
from embedl_device.interpreter import python_argv
from embedl_device.readers import UnreadableError, parse_json

FLOAT, TAKEN, REFUSED, INTEGER = "float", "taken", "refused", "integer"
CRASHED, TIMED_OUT = "crashed", "timed out"
UNTOLD = "untold"
"""The outcome of a node of which the runtime tells nothing."""
BUILT = "built"
"""The outcome of all nodes of a graph that a compiler takes whose result nobody can look into."""
FAILED = frozenset({REFUSED, CRASHED, TIMED_OUT})
"""What becomes of a whole graph that does not run."""
_WORKER = Path(__file__).with_name("_worker.py")
_START_S, _ANSWER_S = 120.0, 60.0
_CHUNK, _MOST_ANSWER = 1 << 16, 1 << 20
_INTEGER_KERNELS = ("QLinear", "QGemm", "MatMulInteger", "ConvInteger", "QAttention", "MatMulNBits")
_TAKEN_IN = MOVING | {"Clip", "Relu"}
# Operators whose kernels take floats and integers alike.
_ON_BOTH = frozenset({"ArgMax", "MaxPool", "Pad", "ReduceMax", "ReduceMin", "Relu", "Resize", "TopK"})
# What ONNX Runtime hangs on a node's name when it replaces the node.
_SUFFIX = re.compile(r"(_token_\d+|/MatMulAddFusion|/duplicated|_nchwc|/reshape)+$")

Placement = Mapping[str, str]


class Probe(Protocol):
    """Asks one version of one runtime."""

    @property
    def runtime(self) -> str:
        """The runtime's name, as dialects call it."""

    @property
    def version(self) -> str:
        """Its version."""

    def ask(self, models: Sequence[onnx.ModelProto]) -> Iterator[Placement]:
        """Yield for each model the placement of its nodes, in order."""


class OnnxRuntimeProbe:
    """Asks the ONNX Runtime of an interpreter, in a process that is started anew when a graph crashes or hangs it."""

    runtime = "onnxruntime"
    plain_settings = frozenset({"goes to", "second before"})  # it decides on one operator and the Q/DQ around it

    def __init__(
        self, python: Path | str | None = None, *, start_s: float = _START_S, answer_s: float = _ANSWER_S
    ) -> None:  # fmt: skip
        self.python = None if python is None else str(python)
        self.start_s, self.answer_s = start_s, answer_s
        self._worker: _Worker | None = None
        self.version = self._open()

    def _open(self) -> str:
        worker = _Worker(python_argv(self.python, file=str(_WORKER), isolated=self.python is not None))
        first = worker.answer(self.start_s)
        if not isinstance(first, dict) or "version" not in first:
            said = worker.close()
            who = self.python or "This Python"
            why = f"it did not answer within {self.start_s:g} s" if first == TIMED_OUT else said or "no answer"
            raise DialectError(
                f"{who} has no ONNX Runtime that can be asked: {why}. Give --python the interpreter of an environment "
                "that has it, or --version to have one made."
            )
        self._worker = worker
        return str(first["version"])

    def close(self) -> None:
        """End the process."""
        if self._worker is not None:
            self._worker.close()
            self._worker = None

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def ask(self, models: Sequence[onnx.ModelProto]) -> Iterator[Placement]:
        """Yield what ONNX Runtime makes of each model."""
        with tempfile.TemporaryDirectory() as folder:
            for number, model in enumerate(models):
                path = Path(folder) / f"{number}.onnx"
                onnx.save(model, path)
                yield placement_by(model, *self._loaded(path))
                for each in (path, _optimized(path)):
                    with contextlib.suppress(FileNotFoundError):
                        each.unlink()

    def _loaded(self, path: Path) -> tuple[onnx.ModelProto | None, str]:
        """Return the graph that ONNX Runtime writes, or none and what became of the question."""
        if self._worker is None:
            self._open()
        assert self._worker is not None
        self._worker.say(str(path))
        answer = self._worker.answer(self.answer_s)
        if isinstance(answer, str) or "refused" not in answer:
            self.close()
            return None, answer if isinstance(answer, str) else CRASHED
        return (None, REFUSED) if answer["refused"] else (onnx.load(_optimized(path)), "")


class _Worker:
    """A process that answers a line with a line of JSON; what else it says goes to a file, as a pipe would fill."""

    def __init__(self, argv: Sequence[str]) -> None:
        self._said: IO[bytes] = tempfile.TemporaryFile()  # noqa: SIM115 - open as long as the process
        self._process = subprocess.Popen(argv, stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=self._said)
        self._rest = b""

    def say(self, line: str) -> None:
        assert self._process.stdin is not None
        with contextlib.suppress(BrokenPipeError):  # the missing answer tells
            self._process.stdin.write(f"{line}\n".encode())
            self._process.stdin.flush()

    def answer(self, limit_s: float) -> dict[str, object] | str:
        """Return the next answer; ``timed out`` or ``crashed`` where there is none."""
        assert self._process.stdout is not None
        file, end = self._process.stdout.fileno(), time.monotonic() + limit_s
        while b"\n" not in self._rest:
            left = end - time.monotonic()
            if left <= 0 or not select.select([file], [], [], left)[0]:
                return TIMED_OUT
            got = os.read(file, _CHUNK)
            if not got or len(self._rest) > _MOST_ANSWER:
                return CRASHED
            self._rest += got
        line, _, self._rest = self._rest.partition(b"\n")
        try:
            found = parse_json(line)
        except UnreadableError:
            return CRASHED
        return found if isinstance(found, dict) else CRASHED

    def close(self) -> str:
        """End the process; return the last line that it said."""
        self._process.kill()
        self._process.wait()
        for pipe in (self._process.stdin, self._process.stdout):
            with contextlib.suppress(BrokenPipeError):
                if pipe is not None:
                    pipe.close()
        self._said.seek(max(0, self._said.seek(0, os.SEEK_END) - _CHUNK))
        lines = self._said.read(_CHUNK).decode("utf-8", "replace").strip().splitlines()
        self._said.close()
        return lines[-1][:300] if lines else ""


def _optimized(path: Path) -> Path:
    return path.with_name(f"{path.name}.optimized")


def placement_by(model: onnx.ModelProto, optimized: onnx.ModelProto | None, failed: str = "") -> Placement:
    """Return the placement of a model's nodes by the graph that ONNX Runtime made of it, or by how it failed."""
    qdq = read(model)
    if optimized is None:
        return dict.fromkeys((node.name for node in qdq.graph.node), failed or REFUSED)
    kernels = _kernels(optimized.graph)
    makers = {name: node for node in optimized.graph.node for name in node.output}
    kernels = {**_nameless(qdq.graph, optimized.graph, kernels), **kernels}
    view = View(qdq)
    placed: dict[str, str] = {}
    for node in qdq.graph.node:
        found = kernels.get(node.name) or kernels.get(node.output[0])
        placed[node.name] = found or _gone(node, makers, view, placed)
    return placed


def _gone(
    node: onnx.NodeProto, makers: Mapping[str, onnx.NodeProto], view: View, placed: Mapping[str, str]
) -> str:  # fmt: skip
    """Tell of a node that is in the optimized graph no more whether an integer kernel does its work."""
    if node.op_type in WEIGHTED:
        return FLOAT
    now = makers.get(node.output[0])
    while now is not None and now.op_type in NOT_COMPUTING:
        now = makers.get(now.input[0])
    if now is not None:  # its result is still there: written by the kernel that took it in, or by what replaced it
        return TAKEN if now.op_type.removeprefix("Nhwc").startswith(_INTEGER_KERNELS) else FLOAT
    before = [
        view.maker[name].name
        for index, name in enumerate(node.input)
        if name in view.maker and (node.name, index) not in view.edges
    ]
    is_after_integers = any(placed.get(name, FLOAT).startswith((INTEGER, TAKEN)) for name in before)
    return TAKEN if is_after_integers and _leads_to_q(node, view) else FLOAT


def _nameless(
    graph: onnx.GraphProto, optimized: onnx.GraphProto, kernels: Mapping[str, str]
) -> dict[str, str]:  # fmt: skip
    """Return the kernels of nodes that lost their names and their results'.

    Versions before 1.19 do so to what they turn to NHWC, and call a MatMul that takes its bias in ``gemm``.
    """
    lost: dict[str, list[str]] = {}
    for node in graph.node:
        if node.name not in kernels and node.output[0] not in kernels:
            lost.setdefault(node.op_type, []).append(node.name)
    found: dict[str, list[onnx.NodeProto]] = {}
    known = {name for node in graph.node for name in (node.name, *node.output)}
    for node in optimized.node:
        is_gemm = _SUFFIX.sub("", node.name) == "gemm" and node.op_type in ("Gemm", "QGemm") and "gemm" not in known
        if is_gemm:
            found.setdefault("MatMul", []).append(node)
        elif node.op_type.startswith("Nhwc") and not {_SUFFIX.sub("", node.name), *node.output} & known:
            found.setdefault(node.op_type.removeprefix("Nhwc"), []).append(node)
    # Both graphs are in the order of their work.
    return {
        name: FLOAT if now.op_type == "Gemm" else f"{INTEGER} {now.op_type.removeprefix('Nhwc')}"
        for kind, names in lost.items()
        if len(names) == len(found.get(kind, ()))
        for name, now in zip(names, found[kind], strict=True)
    }


def _leads_to_q(node: onnx.NodeProto, view: View) -> bool:
    """Tell whether a node's result is rounded, if only behind what a kernel takes in too or what moves it."""
    readers = view.readers.get(node.output[0], [])
    if any((reader.name, index) in view.edges for reader, index in readers):
        return True
    after = view.only_reader(node.output[0])
    return after is not None and after.op_type in _TAKEN_IN and _leads_to_q(after, view)


def _kernels(graph: onnx.GraphProto) -> dict[str, str]:
    """Return what the nodes of an optimized graph compute on, by the names of the nodes or tensors they stand for."""
    found: dict[str, str] = {}
    whole = _whole(graph)
    for node in graph.node:
        kind = node.op_type.removeprefix("Nhwc")
        if kind in ("QuantizeLinear", "DequantizeLinear") or kind in NOT_COMPUTING:
            continue
        is_integer = kind.startswith(_INTEGER_KERNELS) or (kind in _ON_BOTH and node.input[0] in whole)
        # A node that replaced several stands under the name of the first; one in integers tells more. A file that
        # went through ONNX Runtime before has such names itself.
        names = {node.name, _SUFFIX.sub("", node.name)}
        if node.output and _SUFFIX.sub("", node.name) == node.op_type:
            names.add(node.output[0])  # 1.18 forgets the name with the layout, and calls the result by it
        for name in names:
            if not found.get(name, "").startswith(INTEGER):
                found[name] = f"{INTEGER} {kind}" if is_integer else FLOAT
    return found


def _whole(graph: onnx.GraphProto) -> set[str]:
    """Return the tensors of integers in an optimized graph."""
    found: set[str] = set()
    for node in graph.node:
        kind = node.op_type.removeprefix("Nhwc")
        passes = kind in NOT_COMPUTING | _ON_BOTH and bool(node.input) and node.input[0] in found
        if kind == "QuantizeLinear" or passes or _writes_integers(node):
            found |= set(node.output)
    return found


def _writes_integers(node: onnx.NodeProto) -> bool:
    """Tell whether a node is an integer kernel that writes integers: with a scale of its own for the output."""
    if node.op_type == "QGemm":
        return len(node.input) > 7 and bool(node.input[7])
    return node.op_type.removeprefix("Nhwc").startswith("QLinear")
