"""Ask a runtime that tells its layers: many small graphs in one file, as one question takes seconds."""

import contextlib
import itertools
import re
import tempfile
from collections.abc import Iterator, Mapping, Sequence
from importlib.metadata import entry_points
from pathlib import Path
from typing import Self

import onnx
from onnx import compose

from embedl_deploy.dialect._ask import GROUP, Layer, by_node
from embedl_deploy.dialect._model import read
from embedl_deploy.errors import DialectError, quoted_list
from embedl_deploy.rules._probe import BUILT, FLOAT, INTEGER, REFUSED, UNTOLD, Placement

# The types of an operator's own tensors choose its kernel, and the converter needs sizes: fewer questions will do.
_BY_OPERATOR = frozenset({"litert"})
_OF_OTHERS = frozenset({
    "goes to", "second before", "sizes", "zero", "output zero", "read by", "second read by", "output read by",
})  # fmt: skip
_AT_ONCE = 128
_NAMED = re.compile(r"\bcase(\d+)/")


class LayersProbe:
    """Asks a runtime by the function that an installed package names for it (``embedl_deploy.runtimes``)."""

    is_slow = True

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
        self.looks_beyond = runtime not in _BY_OPERATOR
        # Graphs of one opset go into one file, and runtimes that convert ONNX hardly tell opsets apart.
        self.plain_settings = frozenset({"opset"}) | (frozenset() if self.looks_beyond else _OF_OTHERS)
        self._layers_of = found[runtime].load()

    def ask(self, models: Sequence[onnx.ModelProto]) -> Iterator[Placement]:
        """Yield what the runtime makes of each model."""
        places = range(len(models))
        for _, run in itertools.groupby(places, key=lambda place: models[place].opset_import[0].version):
            run_of = list(run)
            for some in (run_of[start : start + _AT_ONCE] for start in range(0, len(run_of), _AT_ONCE)):
                found: dict[int, Placement] = {}
                self._ask({place: _part(models[place], place) for place in some}, found)
                for place in some:
                    nodes = read(models[place]).graph.node
                    told = found.get(place)  # nothing for one that was refused
                    yield {node.name: REFUSED if told is None else told.get(f"{_prefix(place)}{node.name}", UNTOLD)
                           for node in nodes}  # fmt: skip

    def _ask(self, parts: Mapping[int, onnx.ModelProto], found: dict[int, Placement]) -> None:
        """Ask about graphs in one file; when it is refused, leave out the graph that is named, or ask by halves."""
        try:
            layers = self._loaded(_joined(list(parts.values())))
        except ImportError as exc:
            raise DialectError(f"{self.runtime} cannot be asked: {exc}") from exc
        except Exception as exc:  # noqa: BLE001 (whatever a runtime says of a file is an answer)
            named = {int(number) for number in _NAMED.findall(str(exc))} & set(parts)
            if len(parts) == 1 or len(named) == 1:
                place = next(iter(named or parts))
                halves = [[each for each in parts if each != place]]
            else:
                order = list(parts)
                halves = [order[: len(order) // 2], order[len(order) // 2 :]]
            for half in filter(None, halves):
                self._ask({place: parts[place] for place in half}, found)
            return
        if layers is None:
            found |= {place: {node.name: BUILT for node in part.graph.node} for place, part in parts.items()}
            return
        words = {name: _word(layer) for name, layer in by_node(layers).items()}
        found |= dict.fromkeys(parts, words)

    def _loaded(self, model: onnx.ModelProto) -> Sequence[Layer] | None:
        with tempfile.TemporaryDirectory() as folder:
            path = Path(folder) / "model.onnx"
            onnx.save(model, path)
            layers: Sequence[Layer] | None = self._layers_of(path)
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


def _prefix(place: int) -> str:
    return f"case{place}/"


def _part(model: onnx.ModelProto, place: int) -> onnx.ModelProto:
    """Return a model whose names tell its place."""
    return compose.add_prefix(model, _prefix(place))


def _joined(parts: Sequence[onnx.ModelProto]) -> onnx.ModelProto:
    """Put models side by side into one."""
    whole = onnx.ModelProto()
    whole.CopyFrom(parts[0])
    for part in parts[1:]:
        for name in ("node", "initializer", "input", "output", "value_info"):
            getattr(whole.graph, name).extend(getattr(part.graph, name))
    return whole
