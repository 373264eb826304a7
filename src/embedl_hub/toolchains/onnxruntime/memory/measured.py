"""The memory that ONNX Runtime told of a run, with the tensors of the graph: which layer made what is in the arena.

Every number is the runtime's own. Names come from the graph, and only where the tensors that it says are alive at the
peak add up, to the byte, to what the runtime says was asked for.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

from embedl_hub.core.document import LayerMemory, MemoryProfile
from embedl_hub.toolchains.onnxruntime.memory.kernels import weights_of
from embedl_hub.toolchains.onnxruntime.memory.planner import plan_buffers
from embedl_hub.toolchains.onnxruntime.memory.predict import arena_parts
from embedl_hub.toolchains.onnxruntime.memory.shapes import infer_types

if TYPE_CHECKING:
    import onnx

    from embedl_hub.toolchains.onnxruntime.memory.shapes import Shapes

_KEPT = ("first_run_arena_bytes", "peak_bytes", "packed_weights_bytes")


def measured_memory(told: Mapping[str, Any], compiled: onnx.ModelProto, shapes: Shapes | None = None) -> MemoryProfile:
    """Return what a device program told, with weights and the parts of the arena at its peak."""
    method, rows = str(told["method"]), told["rows"]
    if not rows or told.get("arena_bytes") is None:
        return MemoryProfile(method, problem=told.get("missing_because") or "the runtime told nothing")
    types, _ = infer_types(compiled, shapes)
    kept = weights_of(compiled.graph.node, compiled.graph, types).kept
    at = next((number for number, row in enumerate(rows) if row["name"] == told.get("peak_layer")), 0)
    base, peak = told.get("packed_weights_bytes") or 0, rows[at]
    wanted = (peak.get("requested_bytes") or 0) - (told.get("packed_weights_requested_bytes") or 0)
    tensors = _tensors_at(compiled, [row["name"] for row in rows], at, shapes)
    if sum(tensors.values()) != wanted:
        tensors = {"layers, which of them is not known": wanted}
    highest = peak["in_use_bytes"] + (peak.get("scratch_bytes") or 0)
    layers = tuple(
        LayerMemory(row["name"], row["op_type"], row["in_use_bytes"], row.get("scratch_bytes") or 0) for row in rows
    )
    parts = tuple(arena_parts(base, tensors, peak["in_use_bytes"] - base, highest, told["arena_bytes"]))
    facts = {name: told[name] for name in _KEPT if told.get(name) is not None}
    return MemoryProfile(method, told["arena_bytes"], kept, told.get("peak_layer"), layers, parts, facts=facts)


def _tensors_at(model: onnx.ModelProto, order: list[str], at: int, shapes: Shapes | None) -> dict[str, int]:
    """Return the bytes of tensors that are alive at a node by who made them; none where names do not agree."""
    nodes = {node.name or node.output[0]: node for node in model.graph.node}
    types, unknown = infer_types(model, shapes)
    if unknown or set(order) != set(nodes) or len(order) != len(nodes):
        return {}
    plan = plan_buffers([nodes[name] for name in order], model.graph, types)
    alive: dict[str, str] = {}
    for number, step in enumerate(plan.steps):
        alive |= dict.fromkeys(step.takes, step.name)
        if number == at:
            break
        for name in step.returns:
            alive.pop(name, None)
    found: dict[str, int] = {}
    for name, maker in alive.items():
        found[maker] = found.get(maker, 0) + plan.sizes[name]
    return found
