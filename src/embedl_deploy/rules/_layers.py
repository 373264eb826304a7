"""Ask a runtime that tells its layers: many small graphs in one file, as one question takes seconds."""

import contextlib
import tempfile
from collections.abc import Iterator, Sequence
from importlib.metadata import entry_points
from pathlib import Path
from typing import Self

import onnx
from onnx import compose

from embedl_deploy.dialect._ask import GROUP, Layer, by_node
from embedl_deploy.dialect._model import read
from embedl_deploy.errors import DialectError, quoted_list
from embedl_deploy.rules._probe import FLOAT, INTEGER, REFUSED, Placement

UNTOLD = "untold"
"""The outcome of a node of which the runtime tells nothing."""
_AT_ONCE = 64


class LayersProbe:
    """Asks a runtime by the function that an installed package names for it (``embedl_deploy.runtimes``)."""

    # Graphs of one version of the operators go into one file; runtimes that convert ONNX hardly tell versions apart.
    plain_settings = frozenset({"opset"})

    def __init__(self, runtime: str, version: str = "") -> None:
        found = {entry.name: entry for entry in entry_points(group=GROUP)}
        if runtime not in found:
            known = quoted_list(["onnxruntime", *found])
            raise DialectError(
                f"No installed package can ask {runtime!r}; known are {known}. A package does by an entry point of "
                f"{GROUP}."
            )
        self.runtime = runtime
        self.version = version
        self._layers_of = found[runtime].load()

    def ask(self, models: Sequence[onnx.ModelProto]) -> Iterator[Placement]:
        """Yield what the runtime makes of each model; what it refuses is found by halves."""
        found: dict[int, Placement] = {}
        by_opset: dict[int, list[int]] = {}
        for place, model in enumerate(models):
            by_opset.setdefault(model.opset_import[0].version, []).append(place)
        for places in by_opset.values():
            for start in range(0, len(places), _AT_ONCE):
                self._ask(models, places[start : start + _AT_ONCE], found)
        yield from (found[place] for place in range(len(models)))

    def _ask(self, models: Sequence[onnx.ModelProto], places: Sequence[int], found: dict[int, Placement]) -> None:
        try:
            layers = by_node(self._loaded(_joined([models[place] for place in places])))
        except ImportError as exc:
            raise DialectError(f"{self.runtime} cannot be asked: {exc}") from exc
        except Exception:  # noqa: BLE001 (whatever a runtime says of a file is an answer)
            if len(places) == 1:
                found[places[0]] = dict.fromkeys((node.name for node in read(models[places[0]]).graph.node), REFUSED)
                return
            middle = len(places) // 2
            self._ask(models, places[:middle], found)
            self._ask(models, places[middle:], found)
            return
        for number, place in enumerate(places):
            nodes = read(models[place]).graph.node
            found[place] = {node.name: _word(layers.get(f"c{number}/{node.name}")) for node in nodes}

    def _loaded(self, model: onnx.ModelProto) -> Sequence[Layer]:
        with tempfile.TemporaryDirectory() as folder:
            path = Path(folder) / "model.onnx"
            onnx.save(model, path)
            layers: Sequence[Layer] = self._layers_of(path)
            return layers

    def close(self) -> None:
        """Nothing is open."""

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        with contextlib.suppress(Exception):
            self.close()


def _word(layer: Layer | None) -> str:
    if layer is None or layer.integer is None:
        return UNTOLD
    return f"{INTEGER} {layer.op_type}" if layer.integer else FLOAT


def _joined(models: Sequence[onnx.ModelProto]) -> onnx.ModelProto:
    """Put models side by side into one; names get the model's number in front."""
    parts = [compose.add_prefix(model, f"c{number}/") for number, model in enumerate(models)]
    whole = parts[0]
    for part in parts[1:]:
        for name in ("node", "initializer", "input", "output", "value_info"):
            getattr(whole.graph, name).extend(getattr(part.graph, name))
    return whole
