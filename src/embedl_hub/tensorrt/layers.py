"""Layers of an engine led back to the source: which nodes of the user's model each one stands for.

From TensorRT 10 on an engine built with details says it itself (``Metadata``: ``[ONNX Layer: conv]`` for each node).
Before, the names tell: ``conv + relu`` is fused from both, ``PWN(add, mul)`` too, and ``{ForeignNode[first...last]}``
stands for everything between. What only copies or converts was added by TensorRT.
"""

from __future__ import annotations

import re
from typing import TYPE_CHECKING, Any

from embedl_hub.tensorrt.formats import LayerInfo
from embedl_hub.toolchain.model import nodes_of

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping, Sequence

    import onnx

    from embedl_hub.tensorrt.formats import LayerProfile

_METADATA = re.compile(r"\[ONNX Layer: (.*?)\](?=$|[\x1e\x1f\[])", re.DOTALL)
_FOREIGN = re.compile(r"ForeignNode\[(.*?)\.\.\.(.*)\]")
_ADDED = ("Reformatting CopyNode", "reformat", "Reformat", "[HostToDeviceCopy]", "[DeviceToHostCopy]", "copied_")
_PROFILE_MARK = re.compile(r" \[profile \d+\]$")


def join_layers(
    profile: LayerProfile, infos: Sequence[LayerInfo], source: onnx.ModelProto | None
) -> list[dict[str, Any]]:
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
            {
                "name": layer.name,
                "op_type": info.kind or _kind_by_name(layer.name),
                "provider": "TensorRT",
                "compute_unit": "DLA" if info.kind == "DLA" else "GPU",
                "time_ms": layer.average_ms,
                "share": layer.average_ms / total if layer.average_ms is not None and total else None,
                "tactic": info.tactic,
                "formats": list(info.formats),
                "source_nodes": nodes,
                "added_by_runtime": not nodes,
            }
        )
    return rows


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
        told = list(dict.fromkeys(_METADATA.findall(metadata)))
        if told:
            known = [node for node in told if node in self._order]
            return sorted(known, key=self._order.__getitem__) if self._order else told
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


def _kind_by_name(name: str) -> str:
    return "Reformat" if name.startswith(_ADDED) else ""


def uncovered(rows: Sequence[Mapping[str, Any]], source: onnx.ModelProto) -> list[str]:
    """Return the nodes that no layer stands for: folded, or fused in a way the engine does not tell."""
    covered = {name for row in rows for name in row["source_nodes"]}
    return [node.name for node in source.graph.node if node.name not in covered]
