"""Profile: measured where the model runs, by the device program or by Google's benchmark; completed and kept here."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from embedl_hub.core.profile import ProfileError, TFLiteProfilingResult
from embedl_hub.tflite.graph import read_graph
from embedl_hub.tflite.place import settings
from embedl_hub.toolchain.modules import source_of, with_modules
from embedl_hub.toolchain.profiles import check_format, data_arguments, log_document
from embedl_hub.toolchain.program import call, plan_arguments
from embedl_hub.toolchain.refusal import refusals_as

if TYPE_CHECKING:
    from collections.abc import Mapping

    from embedl_hub.core.compile import TFLiteCompiledModel
    from embedl_hub.core.context import HubContext
    from embedl_hub.core.device import LiteRTConfig
    from embedl_hub.tflite.graph import Graph
    from embedl_hub.toolchain.place import Place


def profile_model(ctx: HubContext, place: Place[LiteRTConfig], model: TFLiteCompiledModel) -> TFLiteProfilingResult:
    """Measure a model on a place with the device program."""
    with refusals_as(ProfileError):
        graph = log_model(ctx, model)
        words = data_arguments(place, graph.inputs, None)
        document = call(
            place,
            "profile",
            ["--model", place.send(model.path), *words, *settings(place.config), *plan_arguments(place.config)],
        )
        check_format(document, place)
    document = completed(document, graph, model.source_of_tensors, place.title)
    log_document(ctx, with_modules(document, source_of(ctx, model)))
    return TFLiteProfilingResult.from_current_run(ctx)


def log_model(ctx: HubContext, model: TFLiteCompiledModel) -> Graph:
    """Record which model is measured, and read it."""
    ctx.client.log_artifact(model.path, name="input", ctx=ctx)
    ctx.client.log_param("$runtime", "tflite")
    graph = read_graph(model.path.to_local(ctx).local())
    ctx.client.log_param("precision", graph.precision)
    return graph


def completed(document: Mapping[str, Any], graph: Graph, sources: Mapping[str, str], place: str) -> dict[str, Any]:
    """Return a document with its layers led back to the source model, where the runtime's own operators ran.

    A delegate fuses and reorders without telling which operators it took, so its layers stand for themselves.
    """
    rows = []
    for row in document["layers"]["rows"]:
        names = _sources(row.get("node"), graph, sources)
        rows.append(
            {
                **row,
                "compute_unit": row.get("compute_unit", "CPU"),
                "source_nodes": names,
                # A layer that tells no operator stands for some of the model's, nobody knows which.
                "added_by_runtime": not names and isinstance(row.get("node"), int),
            }
        )
    return {
        **document,
        "place": place,
        "source": {"nodes": [], "is_compiled_model": not sources, "nodes_without_layer": []},
        "layers": {**document["layers"], "rows": rows},
    }


def _sources(node: object, graph: Graph, sources: Mapping[str, str]) -> list[str]:
    if not isinstance(node, int) or not 0 <= node < len(graph.operators):
        return []
    found = (sources.get(tensor) for tensor in graph.operators[node].outputs)
    return [name for name in found if name]
