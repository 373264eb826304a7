"""Profiles as every toolchain keeps them: one document, the same metrics, the same verdicts."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING, Any

from embedl_hub.paths import RemotePath
from embedl_hub.toolchain.arrays import write_npz
from embedl_hub.toolchain.model import check_data, shape_wish
from embedl_hub.toolchain.refusal import RefusedError

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    import numpy as np

    from embedl_hub.core.context import HubContext
    from embedl_hub.core.device import MeasuringConfig
    from embedl_hub.toolchain.model import Tensor
    from embedl_hub.toolchain.place import Place

FORMAT = 1


def data_arguments(
    place: Place[MeasuringConfig], inputs: Sequence[Tensor], data: Mapping[str, np.ndarray] | None
) -> list[str]:
    """Bring the data to measure on to the place and return the words for it; none when it is to be made up there."""
    if data is not None:
        check_data(inputs, data, "input_data")
        path = place.scratch / "data.npz"
        write_npz(path, data)
        return ["--input-dir", str(RemotePath(place.put(path, "data/data.npz")).parent)]
    for tensor in inputs:
        if not tensor.is_fixed:
            raise RefusedError(
                f"Input {tensor} has no fixed shape, so there is nothing to measure. Compile with "
                f"{shape_wish(tensor)}, or profile with input_data={{{tensor.name!r}: ...}} "
                f"(--input-data {tensor.name}=FILE.npy)."
            )
    return []


def check_format(document: Mapping[str, Any], place: Place[MeasuringConfig]) -> None:
    """Refuse a document of another version."""
    if document.get("format") != FORMAT:
        raise RefusedError(
            f"The device program on {place.title} writes profiles of format {document.get('format')!r}, this hub "
            f"reads {FORMAT}. Install the same version of edgeproof-device there."
        )


def log_document(ctx: HubContext, document: Mapping[str, Any]) -> None:
    """Keep the document and log what every profile has in common."""
    path = ctx.artifact_dir / "profile.json"
    path.write_text(json.dumps(document, indent=1), encoding="utf-8")
    ctx.client.log_artifact(path, name="output_file")
    log_metrics(ctx, document)


def log_metrics(ctx: HubContext, document: Mapping[str, Any]) -> None:
    """Log what every profile has in common; what is not known is left out."""
    client = ctx.client
    latency = document["latency_ms"]
    metrics = {
        "latency": latency["mean"], "latency_median": latency["median"], "latency_p90": latency["p90"],
        "latency_p99": latency["p99"], "latency_min": latency["min"], "latency_std": latency["std"],
        "fps": 1e3 / latency["mean"] if latency["mean"] else None, "load_time": document["load_time_ms"],
        "first_latency": document["first_latency_ms"], "peak_memory_mb": document["peak_memory_mb"],
        "iterations": document["iterations"], "warmup": document["warmup"],
    }  # fmt: skip
    for name, value in metrics.items():
        if value is not None:
            client.log_metric(name, value)
    client.log_param("verdict", document["verdict"])
    client.log_param("verdict_reason", document["verdict_reason"])
    client.log_param("memory_method", document["memory_method"])
    client.log_param("runtime_version", document["runtime"]["version"])
