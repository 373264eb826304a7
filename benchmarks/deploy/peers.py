"""The opponents: one environment each, made on first use, and one script each, run inside it.

python benchmarks/deploy/peers.py [--only PEER ...]     # make the environments and say what is in them
"""

from __future__ import annotations

import argparse
import hashlib
import json
import os
import subprocess
import sys
import venv
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))
from deploy import cache

SCRIPTS = Path(__file__).resolve().parent / "peer_scripts"
INSTALL_SECONDS = 1800
QUANTISE_SECONDS = 900


@dataclass(frozen=True)
class Peer:
    """A candidate: the script that quantises, the packages it needs, and its settings."""

    name: str
    script: str
    packages: tuple[str, ...] = ()
    options: dict[str, Any] = field(default_factory=dict)


_ORT = ("onnxruntime==1.31.1", "onnx==1.23.2", "onnxscript==0.7.2", "sympy==1.14.0", "numpy==2.4.6")
_NNCF = ("nncf==3.4.0", "onnxruntime==1.31.1", "onnx==1.23.2", "numpy==2.4.6")
_MODELOPT = ("nvidia-modelopt[onnx]==0.47.0", "torch==2.13.0", "requests==2.34.2", "huggingface_hub==2.4.0")
_TORCHAO = ("torchao==0.18.0", "torch==2.13.0", "onnx==1.23.2", "onnxscript==0.7.2", "numpy==2.4.6")

ORT = Peer("onnxruntime u8", "ort.py", _ORT, {"settings": "u8"})
ORT_DEFAULT = Peer("onnxruntime default", "ort.py", _ORT, {"settings": "default"})
ORT_PERCENTILE = Peer("onnxruntime u8 percentile", "ort.py", _ORT, {"settings": "u8", "method": "Percentile"})
NNCF = Peer("nncf", "nncf_onnx.py", _NNCF)
MODELOPT = Peer("modelopt-onnx", "modelopt_onnx.py", _MODELOPT)
TORCHAO = Peer("torchao pt2e", "torchao_pt2e.py", _TORCHAO)
OURS = Peer("edgeproof", "ours.py")
OURS_CURED = Peer("edgeproof, cures", "ours.py", options={"cures": True})
PEERS = (ORT, ORT_DEFAULT, NNCF, MODELOPT, TORCHAO)


class PeerError(Exception):
    """A peer failed; its last words are the message."""


def python_of(peer: Peer) -> Path:
    """Return the interpreter of a peer's environment, making the environment first; ours is the one that runs."""
    if not peer.packages:
        return Path(sys.executable)
    key = hashlib.sha256("\n".join((sys.version, *peer.packages)).encode()).hexdigest()[:10]
    home = cache.folder("environments") / f"{peer.script.removesuffix('.py')}-{key}"
    python = home / "bin" / "python"
    if not (home / "done").exists():
        print(f"{peer.name}: installing {', '.join(peer.packages)} ...", file=sys.stderr, flush=True)
        venv.create(home, with_pip=True, clear=True)
        install = [str(python), "-m", "pip", "install", "--quiet", "--disable-pip-version-check", *peer.packages]
        _run(peer, install, INSTALL_SECONDS)
        (home / "done").touch()
    return python


def _run(peer: Peer, command: list[str], seconds: int) -> None:
    quiet = dict(os.environ, PYTHONWARNINGS="ignore", NNCF_CI="ON", OMP_NUM_THREADS="1")
    try:
        done = subprocess.run(command, capture_output=True, text=True, check=False, timeout=seconds, env=quiet)
    except subprocess.TimeoutExpired as error:
        raise PeerError(f"{peer.name}: no answer within {seconds} s") from error
    if done.returncode:
        said = [line for line in (done.stderr + done.stdout).splitlines() if line.strip()]
        raise PeerError(f"{peer.name}: {said[-1].strip() if said else f'exit code {done.returncode}'}")


def quantise(peer: Peer, sources: dict[str, str], out: Path, **options: Any) -> dict[str, Any]:  # noqa: ANN401
    """Let a candidate write a quantised file and return its figures; a failure is a figure too."""
    report, asked = out.with_suffix(".report.json"), out.with_suffix(".job.json")
    settings = {**peer.options, **options}
    asked.write_text(json.dumps({**sources, "out": str(out), "report": str(report), "options": settings}))
    report.unlink(missing_ok=True)
    out.unlink(missing_ok=True)
    try:
        _run(peer, [str(python_of(peer)), str(SCRIPTS / peer.script), str(asked)], QUANTISE_SECONDS)
    except PeerError as error:
        return {"failed": str(error)}
    figures: dict[str, Any] = json.loads(report.read_text())
    return figures


def main() -> None:
    """Make the environments."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--only", nargs="+", choices=[peer.name for peer in PEERS])
    options = parser.parse_args()
    for peer in PEERS:
        if options.only is None or peer.name in options.only:
            try:
                print(f"{peer.name}: {python_of(peer)}", flush=True)
            except PeerError as error:
                print(error, flush=True)


if __name__ == "__main__":
    main()
