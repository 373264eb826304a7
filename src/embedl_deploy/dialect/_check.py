"""`check`: the kernel of every operator, predicted from the file and, where the runtime is here, confirmed by it."""

import os
from collections.abc import Iterable
from dataclasses import asdict, dataclass
from typing import Any

import onnx

from embedl_deploy._table import table
from embedl_deploy.dialect._build import build_tensorrt
from embedl_deploy.dialect._dialects import MOVES, TENSORRT, Dialect, get_dialect
from embedl_deploy.dialect._files import load
from embedl_deploy.dialect._fuse import Kernel, fuse, propagated
from embedl_deploy.dialect._model import Parts, name_nodes, read
from embedl_deploy.dialect._names import read_modules
from embedl_deploy.dialect._optimized import kernels, leftovers, optimized
from embedl_deploy.dialect._place import WEIGHTED
from embedl_deploy.dialect._rules import predict
from embedl_deploy.errors import DialectError

FAILURES = ("unfused", "float", "rounded", "disagreement")


@dataclass(frozen=True)
class Verdict:
    """One operator of a file.

    Attributes:
        node: Its name in the file.
        operator: Its type.
        module: The module it was made from, where the file tells.
        kernel: The kernel it will land in.
        state: ``integer``; ``float``: not meant to be quantised; ``unfused``: it has Q/DQ and yet runs in float, or
            its Q/DQ keep it from melting with its neighbours; ``rounded``: its weights are float in the file, and the
            runtime rounds them; ``taken``: done by another operator's kernel.
        reason: Why, in words.
        found: The kernel that the runtime really chose, empty where that is not known.
    """

    node: str
    operator: str
    module: str
    kernel: str
    state: str
    reason: str
    found: str = ""

    @property
    def agrees(self) -> bool:
        """Whether the runtime chose what was predicted, as far as is known."""
        if not self.found:
            return True
        # Nhwc… is the same kernel in another layout.
        same = self.found.removeprefix("Nhwc") == self.kernel
        return same or (self.state != "integer" and not self.found.startswith(("Q", "MatMulI")))


@dataclass(frozen=True)
class Contract:
    """What a runtime will make of a file; prints as a table.

    Attributes:
        dialect: Whose rules were used.
        rows: One verdict per operator.
        confirmed: How the prediction was confirmed, or why it was not.
        refused: What the runtime said when it refused the file, empty otherwise.
        left: Q and DQ that are left to run, where known.
    """

    dialect: str
    rows: tuple[Verdict, ...]
    confirmed: str
    refused: str = ""
    left: tuple[int, int] | None = None

    @property
    def unfused(self) -> tuple[Verdict, ...]:
        """Operators that have Q/DQ and gain nothing by it."""
        return tuple(row for row in self.rows if row.state == "unfused")

    @property
    def rounded(self) -> tuple[Verdict, ...]:
        """Operators whose float weights the runtime rounds."""
        return tuple(row for row in self.rows if row.state == "rounded")

    @property
    def disagreements(self) -> tuple[Verdict, ...]:
        """Operators for which the runtime chose another kernel than predicted."""
        return tuple(row for row in self.rows if not row.agrees)

    @property
    def coverage(self) -> tuple[int, int]:
        """How many convolutions, linears and matrix products compute on integers, of how many."""
        weighted = [row for row in self.rows if row.operator in WEIGHTED]
        return sum(row.state == "integer" for row in weighted), len(weighted)

    def failures(self, what: str) -> tuple[Verdict, ...]:
        """Return the rows that fail a demand.

        Demands are ``unfused``, ``float`` (a weighted operator in float), ``rounded`` (float weights that the runtime
        rounds), ``disagreement``.

        Raises:
            DialectError: There is no such demand.
        """
        if what == "unfused":
            return self.unfused
        if what == "float":
            return tuple(row for row in self.rows if row.operator in WEIGHTED and row.state in ("float", "unfused"))
        if what == "rounded":
            return self.rounded
        if what == "disagreement":
            return self.disagreements
        raise DialectError(f"There is no demand {what!r}; known are {', '.join(FAILURES)}.")

    def to_dict(self) -> dict[str, Any]:
        """Return everything as JSON-able data."""
        return {**asdict(self), "coverage": list(self.coverage)}

    def __str__(self) -> str:
        head = ["node", "operator", "kernel", "state", "reason"]
        rows = [[row.module or row.node, row.operator, row.kernel, row.state, _why(row)] for row in self.rows]
        done, of = self.coverage
        counts = f"{self.dialect}: {done} of {of} weighted operators in integers, {len(self.unfused)} unfused."
        lines = [table(head, rows), "", counts]
        if self.left is not None:
            lines.append(f"Left to run: {self.left[0]} Q, {self.left[1]} DQ.")
        if self.rounded:
            lines.append(f"ROUNDED: float weights of {len(self.rounded)} operators.")
        if self.refused:
            lines.append(f"REFUSED: {self.refused}")
        return "\n".join([*lines, self.confirmed])


def _why(row: Verdict) -> str:
    return row.reason if row.agrees else f"PREDICTION WRONG: the runtime chose {row.found}. {row.reason}"


def check(model: onnx.ModelProto | str | os.PathLike[str], dialect: str | Dialect) -> Contract:
    """Predict for every operator of a Q/DQ file the kernel it will land in.

    For ONNX Runtime the prediction is compared with the graph it writes after optimising; for TensorRT the file is
    parsed and built with TensorRT-RTX where that package is installed (no GPU is needed).

    Raises:
        DialectError: The dialect is unknown.
        ModelFileError: The file cannot be read.
    """
    target = get_dialect(dialect)
    proto = onnx.ModelProto()
    proto.CopyFrom(load(model))
    name_nodes(proto.graph)
    parts = read(proto)
    modules = {node: names[0] for node, names in read_modules(proto).items()}
    if target.name.startswith("onnxruntime"):
        parts = propagated(parts)
        rows = _verdicts(parts, fuse(parts, signed_kernels=target.activation == "int8"), target, modules)
        return _confirm_onnxruntime(proto, rows, target)
    rows = _verdicts(parts, predict(parts, target), target, modules)
    if target is TENSORRT:
        built = build_tensorrt(proto)
        return Contract(target.name, rows, built.summary, built.refused)
    return Contract(target.name, rows, f"Predicted from rules; {target.name} itself was not asked.")


def _verdicts(parts: Parts, found: Iterable[Kernel], dialect: Dialect, modules: dict[str, str]) -> tuple[Verdict, ...]:
    by_name = {}
    for kernel in found:
        node = kernel.node
        reads = any((node.name, index) in parts.edges for index in range(len(node.input)))
        state = "integer" if kernel.integer else "float"
        if kernel.integer and "breaks" in kernel.reason:
            state = "unfused"
        lost = kernel.reason.startswith("refused") or (reads and _could_gain(parts, kernel, dialect))
        if lost and not kernel.integer:
            state = "unfused"
        if kernel.rounded:
            state = "rounded"
        if node.op_type == "Identity":
            state = "taken"
        by_name[node.name] = Verdict(
            node.name, node.op_type, modules.get(node.name, ""), kernel.name, state, kernel.reason
        )
        for name in kernel.covers:
            by_name[name] = Verdict(
                name, "", modules.get(name, ""), kernel.name, "taken", f"fused into {node.op_type} {node.name}"
            )
    rows = []
    for node in parts.graph.node:
        row = by_name[node.name]
        rows.append(row if row.operator else Verdict(**{**asdict(row), "operator": node.op_type}))
    return tuple(rows)


def _could_gain(parts: Parts, kernel: Kernel, dialect: Dialect) -> bool:
    """Tell whether an operator in float behind a DQ is a loss.

    Moving floats costs no more than moving integers, and an operator that also reads floats was not meant to be
    quantised: its DQ belongs to the kernel before it.
    """
    node = kernel.node
    if (node.name, 0) in parts.spread and node.input[1] not in parts.weights:
        return False  # its weight is float, and was meant to be
    if node.op_type in MOVES:
        return "different scales" in kernel.reason
    whole = all(
        (node.name, index) in parts.edges or name in parts.weights or name in parts.constants()
        for index, name in enumerate(node.input)
        if name
    )
    return node.op_type in dialect.integers and (whole or node.op_type in WEIGHTED)


def _confirm_onnxruntime(model: onnx.ModelProto, rows: tuple[Verdict, ...], target: Dialect) -> Contract:
    if (target.activation == "int8") != _is_arm():
        return Contract(target.name, rows, "Predicted from rules; this machine has the other kind of processor.")
    graph = optimized(model).graph
    seen = kernels(graph)
    confirmed = tuple(
        Verdict(**{**asdict(row), "found": seen.get(row.node, "")}) if row.state != "taken" else row for row in rows
    )
    wrong = sum(not row.agrees for row in confirmed)
    known = sum(bool(row.found) for row in confirmed)
    words = f"Confirmed by ONNX Runtime's optimised graph: {known - wrong} of {known} operators found there agree."
    return Contract(target.name, confirmed, words, left=leftovers(graph))


def _is_arm() -> bool:
    """Tell whether this machine's processor has kernels for signed activations."""
    return os.uname().machine.lower().startswith(("aarch64", "arm"))
