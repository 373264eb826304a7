"""The files that trtexec exports, read with care, and an engine's layers led back to the nodes of the user's model.

trtexec writes its files by hand, not with a JSON library (NVIDIA/TensorRT samples/common/sampleReporting.cpp at v8.6.1,
v10.16 and v11.1): names stand raw between quotation marks, and what is not a number is ``nan`` or ``inf``. So each file
is first read as it is written, line by line; then as plain JSON, should a later version write that. Every time is in
milliseconds because its key says so.

From TensorRT 10 on an engine built with details says what a layer stands for (``Metadata``: ``[ONNX Layer: conv]`` for
each node). Before, the names tell: ``conv + relu`` is fused from both, ``PWN(add, mul)`` too, and
``{ForeignNode[first...last]}`` stands for everything between. What only copies or converts was added by TensorRT.
"""

from __future__ import annotations

import json
import math
import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np

from embedl_device.readers import UnreadableError, read_plain
from embedl_hub.core.answer import parse_answer
from embedl_hub.core.document import LayerRow
from embedl_hub.errors import quoted_list
from embedl_hub.models.onnx_file import nodes_of
from embedl_hub.refusal import RefusedError

if TYPE_CHECKING:
    import onnx

_NUMBER = r"[-+]?(?:\d+\.?\d*(?:[eE][-+]?\d+)?|nan(?:\([^)]*\))?|inf)"
_FIELD = re.compile(rf'"(\w+)"\s*:\s*({_NUMBER})')
_TIME_LINE = re.compile(r"^\s*,?\s*\{(.*)\}\s*$")
_COUNT_LINE = re.compile(r'^\s*\{\s*"count"\s*:\s*(\d{1,12})\s*\}\s*$')
_LAYER_LINE = re.compile(r'^\s*,\s*\{\s*"name"\s*:\s*"(.*)"\s*,\s*"timeMs"\s*:(.*)\}\s*$')
_OUTPUT = re.compile(
    r'\{ "name" : "([^\n]*)"\n\s*, "dimensions" : "([0-9x]*)"\n\s*, "values" : \[ ?([^\]]*?) ?\]\n\s*\}'
)
_TIME_KEYS = ("h2dMs", "computeMs", "d2hMs", "latencyMs")
# A sum of three rounded numbers against a rounded sum; six digits are written.
_ROUNDING = 1e-4
_METADATA = re.compile(r"\[ONNX Layer: (.*?)\](?=$|[\x1e\x1f\[])", re.DOTALL)
_FOREIGN = re.compile(r"ForeignNode\[(.*?)\.\.\.(.*)\]")
_ADDED = ("Reformatting CopyNode", "reformat", "Reformat", "[HostToDeviceCopy]", "[DeviceToHostCopy]", "copied_")
_PROFILE_MARK = re.compile(r" \[profile \d+\]$")


class Query(NamedTuple):
    """One measured inference, in ms; ``latency_ms`` is the sum of the other three."""

    latency_ms: float
    compute_ms: float
    h2d_ms: float
    d2h_ms: float


class LayerTime(NamedTuple):
    """One layer as it was timed; None where it never ran."""

    name: str
    average_ms: float | None


@dataclass(frozen=True)
class LayerProfile:
    """The layers in the order they ran, and in how many runs."""

    count: int
    layers: tuple[LayerTime, ...]


class LayerInfo(NamedTuple):
    """What the engine says of a layer; everything but the name is missing unless it was built with details."""

    name: str
    kind: str = ""
    metadata: str = ""
    formats: tuple[str, ...] = ()
    tactic: str = ""


@dataclass(frozen=True)
class Output:
    """One output tensor; numbers of float outputs have six digits."""

    name: str
    shape: tuple[int, ...]
    values: tuple[str, ...]

    def array(self, dtype: str) -> np.ndarray:
        """Return the numbers as an array of a type."""
        try:
            kind = np.dtype(dtype)
            if kind.kind in "iub":
                numbers = np.array([int(word) for word in self.values], dtype=np.int64).astype(kind)
            else:
                numbers = np.array([_as_float(word) for word in self.values], dtype=np.float64).astype(kind)
            return numbers.reshape(self.shape)
        except (ValueError, OverflowError, TypeError) as error:
            raise RefusedError(f"Output {self.name!r} is not an array of {dtype}: {error}.") from error


class _Format:
    """Says what was expected of a file that is not as it should be."""

    def __init__(self, what: str, expected: str) -> None:
        self._what = what
        self._expected = expected

    def refusal(self, found: str) -> RefusedError:
        return RefusedError(
            f"trtexec wrote {self._what} in a form this hub does not know: {found}. Expected {self._expected}. "
            "The file is kept with the run."
        )


_TIMES = _Format("the times (--exportTimes)", f"a list of records with {', '.join(_TIME_KEYS)}")
_PROFILE = _Format("the layer times (--exportProfile)", '{"count"}, then records with name and averageMs')
_INFO = _Format("the layers (--exportLayerInfo)", 'an object with "Layers"')
_OUTPUTS = _Format("the outputs (--exportOutput)", "a list of records with name, dimensions and values")


def parse_times(text: str) -> tuple[Query, ...]:
    """Return the measured queries; warm-ups are not among them."""
    records = _time_records(text)
    if not records:
        raise _TIMES.refusal("it holds no query")
    return tuple(_query(record) for record in records)


def _time_records(text: str) -> list[dict[str, float]]:
    lines = [line for line in text.splitlines() if line.strip()]
    if len(lines) >= 2 and lines[0].strip() == "[" and lines[-1].strip() == "]":
        found = [_TIME_LINE.match(line) for line in lines[1:-1]]
        if all(found):
            return [{key: _as_float(value) for key, value in _FIELD.findall(match[1])} for match in found if match]
    records = _json(text, _TIMES)
    if not isinstance(records, list) or not all(isinstance(record, dict) for record in records):
        raise _TIMES.refusal(f"it is {_shown(records)}")
    return [{str(key): _as_number(value) for key, value in record.items()} for record in records]


def _query(record: Mapping[str, float]) -> Query:
    if missing := [key for key in _TIME_KEYS if key not in record]:
        raise _TIMES.refusal(f"a record lacks {quoted_list(missing)}, it has {quoted_list(record)}")
    h2d, compute, d2h, latency = (record[key] for key in _TIME_KEYS)
    if not all(math.isfinite(value) and value >= 0 for value in (h2d, compute, d2h, latency)) or latency == 0:
        raise _TIMES.refusal(f"a time is not a number of ms: {[h2d, compute, d2h, latency]}")
    whole = h2d + compute + d2h
    if abs(whole - latency) > _ROUNDING * latency + 1e-5:
        # What a change of unit in one of the columns would look like.
        raise _TIMES.refusal(f"a latency of {latency} ms is not the sum of its parts, {whole:g} ms")
    return Query(latency, compute, h2d, d2h)


def parse_profile(text: str) -> LayerProfile:
    """Return the layers' times in one inference."""
    lines = [line for line in text.splitlines() if line.strip()]
    head = _COUNT_LINE.match(lines[1]) if len(lines) >= 3 and lines[0].strip() == "[" else None
    if head is not None and lines[-1].strip() == "]":
        found = [_LAYER_LINE.match(line) for line in lines[2:-1]]
        if all(found):
            rows = [(match[1], dict(_FIELD.findall(f'"timeMs":{match[2]}'))) for match in found if match]
            return _profile(int(head[1]), [(name, {k: _as_float(v) for k, v in row.items()}) for name, row in rows])
    records = _json(text, _PROFILE)
    if not isinstance(records, list) or not records or not all(isinstance(record, dict) for record in records):
        raise _PROFILE.refusal(f"it is {_shown(records)}")
    count = records[0].get("count")
    if not isinstance(count, int) or isinstance(count, bool):
        raise _PROFILE.refusal(f"it begins with {_shown(records[0])}")
    layers = []
    for record in records[1:]:
        name = record.get("name")
        if not isinstance(name, str):
            raise _PROFILE.refusal(f"a layer has no name: {_shown(record)}")
        layers.append((name, {key: _as_number(value) for key, value in record.items() if key != "name"}))
    return _profile(count, layers)


def _profile(count: int, layers: Sequence[tuple[str, Mapping[str, float]]]) -> LayerProfile:
    if count < 1:
        raise _PROFILE.refusal(f"it counts {count} runs")
    times = []
    for name, row in layers:
        # Before TensorRT 8 there was no medianMs; nobody needs it here.
        if not {"timeMs", "averageMs"} <= row.keys():
            raise _PROFILE.refusal(f"layer {name!r} has {quoted_list(row)}")
        average, total = row["averageMs"], row["timeMs"]
        if average < 0 or average > total * (1 + _ROUNDING) + 1e-6 or average * count < total * (1 - _ROUNDING) - 1e-6:
            # What a change of unit in one of the columns would look like.
            raise _PROFILE.refusal(f"layer {name!r} takes {average} ms a run but {total} ms in {count} runs")
        times.append(LayerTime(name, average if math.isfinite(average) else None))
    return LayerProfile(count, tuple(times))


def parse_layer_info(text: str) -> tuple[LayerInfo, ...]:
    """Return what the engine says of its layers: names only, unless it was built with details."""
    document = _json(text, _INFO)
    layers = document.get("Layers") if isinstance(document, dict) else None
    if not isinstance(layers, list):
        raise _INFO.refusal(f"it is {_shown(document)}")
    return tuple(_layer_info(layer) for layer in layers)


def _layer_info(layer: object) -> LayerInfo:
    if isinstance(layer, str):
        return LayerInfo(layer)
    if not isinstance(layer, dict) or not isinstance(layer.get("Name"), str):
        raise _INFO.refusal(f"a layer is {_shown(layer)}")
    outputs = layer.get("Outputs")
    formats = tuple(
        str(tensor["Format/Datatype"])
        for tensor in (outputs if isinstance(outputs, list) else ())
        if isinstance(tensor, dict) and "Format/Datatype" in tensor
    )
    words = {key: str(layer.get(key) or "") for key in ("LayerType", "Metadata", "TacticName")}
    return LayerInfo(layer["Name"], words["LayerType"], words["Metadata"], formats, words["TacticName"])


def parse_outputs(text: str) -> tuple[Output, ...]:
    """Return the output tensors of the last inference."""
    found = _OUTPUT.findall(text)
    rest = re.sub(r"[\s,\[\]]", "", _OUTPUT.sub("", text))
    if found and not rest:
        return tuple(_output(name, shape, re.findall(r"[^,\s]+", values)) for name, shape, values in found)
    records = _json(text, _OUTPUTS)
    if not isinstance(records, list) or not records:
        raise _OUTPUTS.refusal(f"it is {_shown(records)}")
    outputs = []
    for record in records:
        values = record.get("values") if isinstance(record, dict) else None
        if not isinstance(values, list) or not isinstance(record.get("name"), str):
            raise _OUTPUTS.refusal(f"a record is {_shown(record)}")
        outputs.append(_output(record["name"], str(record.get("dimensions")), [str(value) for value in values]))
    return tuple(outputs)


def _output(name: str, dimensions: str, values: Sequence[str]) -> Output:
    if not re.fullmatch(r"(\d{1,18}(x\d{1,18})*)?", dimensions):
        raise _OUTPUTS.refusal(f"output {name!r} has the dimensions {dimensions!r:.100}")
    # A scalar has no dimensions and one value.
    shape = tuple(int(size) for size in dimensions.split("x") if size)
    if math.prod(shape) != len(values):
        raise _OUTPUTS.refusal(f"output {name!r} of shape {list(shape)} has {len(values)} values")
    if wrong := next((word for word in values if not re.fullmatch(_NUMBER, word)), None):
        raise _OUTPUTS.refusal(f"output {name!r} holds {wrong!r:.50}")
    return Output(name, shape, tuple(values))


def read_file(path: Path, title: str) -> str:
    """Return the text of a file of trtexec's; a board may have sent something else under its name."""
    try:
        return read_plain(path).decode("utf-8", "replace")
    except (OSError, UnreadableError) as error:
        raise RefusedError(f"What {title} sent as {path.name} cannot be read: {error}.") from error


def _json(text: str, form: _Format) -> Any:  # noqa: ANN401 - whatever the file holds
    try:
        # Layer names may hold control characters; the separators of the metadata are some.
        return parse_answer(text, strict=False)
    except ValueError as error:
        raise form.refusal(f"{_shown(text)} ({error})") from error


def _as_float(word: str) -> float:
    """Return a number as C prints it: some libraries say what kind of nan it is."""
    return math.nan if "nan" in word else float(word)


def _as_number(value: object) -> float:
    if not isinstance(value, int | float) or isinstance(value, bool):
        return math.nan
    try:
        return float(value)
    except OverflowError:
        return math.inf


def _shown(value: object) -> str:
    text = value if isinstance(value, str) else json.dumps(value, default=str)
    return repr(" ".join(text.split())[:80]) if text.strip() else "empty"


def join_layers(
    profile: LayerProfile, infos: Sequence[LayerInfo], source: onnx.ModelProto | None
) -> tuple[LayerRow, ...]:
    """Return the rows of a profile: each layer with its time, kind and source nodes."""
    waiting: dict[str, list[LayerInfo]] = {}
    for info in infos:
        waiting.setdefault(info.name, []).append(info)
    origins = Origins(source)
    total = sum(layer.average_ms or 0 for layer in profile.layers)
    rows = []
    for layer in profile.layers:
        # Names can repeat; both files list them in the order they run.
        same = waiting.get(layer.name)
        info = (same.pop(0) if len(same) > 1 else same[0]) if same else LayerInfo(layer.name)
        nodes = origins.of(layer.name, info.metadata)
        rows.append(
            LayerRow(
                layer.name,
                info.kind or ("Reformat" if layer.name.startswith(_ADDED) else ""),
                "DLA" if info.kind == "DLA" else "GPU",
                layer.average_ms,
                layer.average_ms / total if layer.average_ms is not None and total else None,
                tuple(nodes),
                added_by_runtime=not nodes,
                provider="TensorRT",
                extra={"tactic": info.tactic, "formats": list(info.formats)},
            )
        )
    return tuple(rows)


class Origins:
    """Finds the source nodes of a layer."""

    def __init__(self, source: onnx.ModelProto | None) -> None:
        self._nodes = [] if source is None else list(nodes_of(source.graph))
        self._order = {node.name: index for index, node in enumerate(self._nodes)}
        self._makers = {output: node.name for node in self._nodes for output in node.output if output}
        names = sorted(self._order, key=len, reverse=True)
        # A name counts where nothing that could belong to a longer name touches it.
        self._pattern = re.compile(rf"(?<![\w/.:])(?:{'|'.join(map(re.escape, names))})(?![\w/.:])") if names else None

    def of(self, name: str, metadata: str) -> list[str]:
        """Return the nodes a layer stands for, in the model's order; none for what TensorRT added."""
        named = list(dict.fromkeys(_METADATA.findall(metadata)))
        if named:
            known = [node for node in named if node in self._order]
            return sorted(known, key=self._order.__getitem__) if self._order else named
        plain = _PROFILE_MARK.sub("", name)
        if self._pattern is None or plain.startswith(_ADDED):
            return []
        found = set(self._between(plain))
        found |= {match for match in self._pattern.findall(plain) if match in self._order}
        return sorted(found, key=self._order.__getitem__)

    def _between(self, name: str) -> Iterator[str]:
        """Yield the nodes on the way from the first to the last of a foreign node."""
        match = _FOREIGN.search(name)
        if match is None:
            return
        first, last = (self._known(part) for part in match.groups())
        if last is None:
            return
        behind = self._leading_to(last)
        if first is None:
            # It begins with a constant of the parser's own; all that leads to the last node is the best there is.
            yield from behind
            return
        reached = {first}
        for node in self._nodes:
            if node.name in behind and any(self._makers.get(tensor) in reached for tensor in node.input):
                reached.add(node.name)
        yield from reached

    def _known(self, text: str) -> str | None:
        if text in self._order:
            return text
        found = self._pattern.findall(text) if self._pattern is not None else []
        return found[-1] if found else None

    def _leading_to(self, name: str) -> set[str]:
        found, waiting = {name}, [name]
        while waiting:
            for tensor in self._nodes[self._order[waiting.pop()]].input:
                maker = self._makers.get(tensor)
                if maker is not None and maker not in found:
                    found.add(maker)
                    waiting.append(maker)
        return found


def uncovered(rows: Sequence[LayerRow], source: onnx.ModelProto) -> list[str]:
    """Return the nodes that no layer stands for: folded, or fused in a way the engine does not tell."""
    covered = {name for row in rows for name in row.source_nodes}
    return [node.name for node in source.graph.node if node.name not in covered]
