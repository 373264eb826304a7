"""The candidates of the INT8 comparisons: one script each, run inside an environment of its own."""

from __future__ import annotations

import json
import sys
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))
import environments
from environments import Environment, PeerError

SCRIPTS = Path(__file__).resolve().parent / "peer_scripts"
QUANTIZE_SECONDS = 900


@dataclass(frozen=True)
class Peer:
    """A candidate: the script that quantizes, where it runs, and its settings."""

    name: str
    script: str
    environment: Environment = environments.OURS
    options: dict[str, Any] = field(default_factory=dict)


ORT = Peer("onnxruntime u8", "ort.py", environments.ORT, {"settings": "u8"})
ORT_DEFAULT = Peer("onnxruntime default", "ort.py", environments.ORT, {"settings": "default"})
ORT_PERCENTILE = Peer(
    "onnxruntime u8 percentile", "ort.py", environments.ORT, {"settings": "u8", "method": "Percentile"}
)
ORT_REDUCED = Peer("onnxruntime u8 reduced", "ort.py", environments.ORT, {"settings": "u8 reduced"})
ORT_U8U8 = Peer("onnxruntime u8u8", "ort.py", environments.ORT, {"settings": "u8u8"})
ORT_S8S8 = Peer("onnxruntime s8s8", "ort.py", environments.ORT, {"settings": "s8s8"})
NNCF = Peer("nncf", "nncf_onnx.py", environments.NNCF)
MODELOPT = Peer("modelopt-onnx", "modelopt_onnx.py", environments.MODELOPT)
TORCHAO = Peer("torchao pt2e", "torchao_pt2e.py", environments.TORCHAO)
OURS = Peer("edgeproof", "ours.py")
OURS_CURED = Peer("edgeproof, cures", "ours.py", options={"cures": True})
PEERS = (ORT, ORT_DEFAULT, NNCF, MODELOPT, TORCHAO)


def quantize(peer: Peer, sources: dict[str, str], out: Path, **options: Any) -> dict[str, Any]:  # noqa: ANN401
    """Let a candidate write a quantized file and return its figures; a failure is a figure too."""
    report, asked = out.with_suffix(".report.json"), out.with_suffix(".job.json")
    settings = {**peer.options, **options}
    asked.write_text(json.dumps({**sources, "out": str(out), "report": str(report), "options": settings}))
    report.unlink(missing_ok=True)
    out.unlink(missing_ok=True)
    try:
        python = environments.python_of(peer.environment)
        environments.run(peer.name, [str(python), str(SCRIPTS / peer.script), str(asked)], QUANTIZE_SECONDS)
    except PeerError as error:
        return {"failed": str(error)}
    figures: dict[str, Any] = json.loads(report.read_text())
    return figures


def ready(chosen: list[Peer]) -> tuple[list[Peer], dict[str, str]]:
    """Return the candidates whose environments are there, and of every opponent its version or why it is missing."""
    found = {peer.environment: environments.find(peer.environment) for peer in chosen if peer.environment.packages}
    told = {peer.name: found[peer.environment][1] for peer in chosen if peer.environment in found}
    return [peer for peer in chosen if not told.get(peer.name, "").startswith("missing")], told


def rows_of_missing(told: dict[str, str]) -> dict[str, dict[str, Any]]:
    """Return rows for the opponents that are missing: they say why."""
    return {
        name: {"failed": said.removeprefix("missing: ")} for name, said in told.items() if said.startswith("missing")
    }
