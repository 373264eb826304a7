"""Ask a runtime what it made of a file.

Whoever drives a runtime says, by an entry point that is named like `Dialect.runtime`:

[project.entry-points."embedl_deploy.runtimes"]
openvino = "package.module:layers_of"

``layers_of(path)`` loads an ONNX file on this machine and returns the layers that the runtime really runs, or None
where it takes the file and nobody can look into it. It raises ImportError where the runtime is not installed; what else
it raises is the runtime's refusal.
"""

import tempfile
from collections.abc import Sequence
from dataclasses import replace
from functools import partial
from importlib.metadata import EntryPoint, PackageNotFoundError, entry_points, version
from pathlib import Path
from typing import Protocol

import onnx

from embedl_deploy.dialect._dialects import WEIGHTED, Contract, Dialect, Verdict
from embedl_deploy.errors import first_line

GROUP = "embedl_deploy.runtimes"
# Where a distribution is not called like its runtime.
_DISTRIBUTIONS = {"litert": "ai-edge-litert", "tensorrt": "tensorrt-rtx"}


class Layer(Protocol):
    """One layer as a runtime ran it."""

    @property
    def op_type(self) -> str:
        """What it computes, in the runtime's word."""

    @property
    def source_nodes(self) -> tuple[str, ...]:
        """The nodes of the file that it stands for."""

    @property
    def integer(self) -> bool | None:
        """Whether it computed in integers; None for one that only moves or converts, or where nobody tells."""


def confirm(model: onnx.ModelProto, dialect: Dialect, rows: tuple[Verdict, ...]) -> Contract:
    """Compare a prediction with the layers that the dialect's runtime really runs, where a package can ask it."""
    contract = partial(Contract, dialect.name, rows)
    point = _find(dialect.runtime)
    if point is None:
        who = dialect.runtime or dialect.name
        return contract(
            f"Predicted from rules; {who} was not asked: no installed package can. edgeproof-hub asks those that it "
            f"has a toolchain for; another package, by an entry point of {GROUP}."
        )
    try:
        layers = _layers(point, model)
    except ImportError as exc:
        return contract(f"Predicted from rules; {dialect.runtime} was not asked: {first_line(exc).rstrip('.')}.")
    except Exception as exc:  # noqa: BLE001 (whatever a runtime says of a file is an answer)
        return contract(f"{dialect.runtime} was asked and refused the file.", first_line(exc))
    if layers is None:
        return contract(f"{dialect.runtime} takes the file; of its layers it tells nothing.")
    seen = by_node(layers)
    confirmed = tuple(_confirmed(row, seen.get(row.node)) for row in rows)
    known = [row.agrees for row in confirmed if row.in_integers is not None]
    word = "Confirmed" if all(known) else "Contradicted"
    text = f"{word} by the layers that {dialect.runtime} ran: {sum(known)} of {len(known)} operators agree."
    untold = sum(row.in_integers is None and row.state != "taken" and row.operator in WEIGHTED for row in confirmed)
    return replace(contract(text + (f" Of {untold} weighted ones it tells nothing." if untold else "")), rows=confirmed)


def by_node(layers: Sequence[Layer]) -> dict[str, Layer]:
    """Return the layer that tells most of each node: one that computed before one that moved, float before integer.

    A node may stand for several, a padding before a convolution for one; a part in float is enough to lose the gain.
    """
    rank = {False: 0, True: 1, None: 2}
    found: dict[str, Layer] = {}
    for layer in layers:
        for node in layer.source_nodes:
            if node not in found or rank[layer.integer] < rank[found[node].integer]:
                found[node] = layer
    return found


def installed(runtime: str) -> str:
    """Return the version of a runtime that is installed here; nothing where none is."""
    try:
        return version(_DISTRIBUTIONS.get(runtime, runtime))
    except PackageNotFoundError:
        return ""


def _find(runtime: str) -> EntryPoint | None:
    found = entry_points(group=GROUP, name=runtime) if runtime else ()
    return next(iter(found), None)


def _layers(point: EntryPoint, model: onnx.ModelProto) -> Sequence[Layer] | None:
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "model.onnx"
        onnx.save(model, path)
        layers: Sequence[Layer] | None = point.load()(path)
        return layers


def _confirmed(row: Verdict, layer: Layer | None) -> Verdict:
    """Note what ran; what another operator's kernel does is judged there, and what only moves data nowhere."""
    if layer is None or layer.integer is None or row.state == "taken":
        return row
    return replace(row, found=layer.op_type, in_integers=layer.integer)
