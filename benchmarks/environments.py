"""The opponents' environments: one each, made on first use outside the repository and kept."""

from __future__ import annotations

import hashlib
import os
import subprocess
import sys
import venv
from dataclasses import dataclass
from pathlib import Path

import cache

INSTALL_SECONDS = 1800


@dataclass(frozen=True)
class Environment:
    """An environment: a name for its folder, and what is installed in it; nothing means the one that runs."""

    name: str
    packages: tuple[str, ...] = ()


OURS = Environment("ours")
MLFLOW = Environment("mlflow", ("mlflow==3.17.2",))
MLTRAQ = Environment("mltraq", ("mltraq==0.1.165",))
# Its own client does not import with any MLflow that pip chooses for it; it is asked by MLflow's, as its guide says.
FASTTRACKML = Environment("fasttrackml", ("fasttrackml==0.6.0", "mlflow==2.22.5"))
_ORT = ("onnxruntime==1.31.1", "onnx==1.23.2", "onnxscript==0.7.2", "sympy==1.14.0", "numpy==2.4.6")
_NNCF = ("nncf==3.4.0", "onnxruntime==1.31.1", "onnx==1.23.2", "numpy==2.4.6")
_MODELOPT = ("nvidia-modelopt[onnx]==0.47.0", "torch==2.13.0", "requests==2.34.2", "huggingface_hub==2.4.0")
_TORCHAO = ("torchao==0.18.0", "torch==2.13.0", "onnx==1.23.2", "onnxscript==0.7.2", "numpy==2.4.6")
ORT = Environment("ort", _ORT)
NNCF = Environment("nncf_onnx", _NNCF)
NNCF_OPENVINO = Environment("nncf_openvino", ("nncf==3.4.0", "openvino==2026.4.1", "onnx==1.23.2", "numpy==2.4.6"))
MODELOPT = Environment("modelopt_onnx", _MODELOPT)
TORCHAO = Environment("torchao_pt2e", _TORCHAO)
# Two versions of one runtime, for a bisection between them.
VERSIONS = {
    version: Environment(f"onnxruntime-{version}", (f"onnxruntime=={version}", "numpy==2.2.6"))
    for version in ("1.20.1", "1.21.1")
}
LOADGEN = Environment("loadgen", ("mlcommons_loadgen==6.0.17",))
ALL = {
    "MLflow": MLFLOW,
    "MLtraq": MLTRAQ,
    "FastTrackML": FASTTRACKML,
    "onnxruntime.quantization": ORT,
    "NNCF": NNCF,
    "NNCF for OpenVINO": NNCF_OPENVINO,
    "ModelOpt": MODELOPT,
    "torchao": TORCHAO,
    "LoadGen": LOADGEN,
    **{f"ONNX Runtime {version}": each for version, each in VERSIONS.items()},
}


class PeerError(Exception):
    """An opponent could not be installed or failed; its last words are the message."""


def python_of(environment: Environment) -> Path:
    """Return an environment's interpreter, making the environment first."""
    if not environment.packages:
        return Path(sys.executable)
    key = hashlib.sha256("\n".join((sys.version, *environment.packages)).encode()).hexdigest()[:10]
    home = cache.folder("environments") / f"{environment.name}-{key}"
    python = home / "bin" / "python"
    if not (home / "done").exists():
        print(f"{environment.name}: installing {', '.join(environment.packages)} ...", file=sys.stderr, flush=True)
        venv.create(home, with_pip=True, clear=True)
        install = [str(python), "-m", "pip", "install", "--quiet", "--disable-pip-version-check"]
        run(environment.name, [*install, *environment.packages], INSTALL_SECONDS)
        (home / "done").touch()
    return python


def run(name: str, command: list[str], seconds: int) -> str:
    """Run something in an opponent's environment and return what it prints."""
    quiet = dict(os.environ, PYTHONWARNINGS="ignore", NNCF_CI="ON", OMP_NUM_THREADS="1")
    try:
        done = subprocess.run(command, capture_output=True, text=True, check=False, timeout=seconds, env=quiet)
    except subprocess.TimeoutExpired as error:
        raise PeerError(f"{name}: no answer within {seconds} s") from error
    if done.returncode:
        said = [line for line in (done.stderr + done.stdout).splitlines() if line.strip()]
        raise PeerError(f"{name}: {said[-1].strip() if said else f'exit code {done.returncode}'}")
    return done.stdout


def find(environment: Environment, *, wanted: bool = True) -> tuple[Path | None, str]:
    """Return an opponent's interpreter and version; no interpreter and why, when it is not to be had."""
    if not wanted:
        return None, "missing: left out with --without-peers"
    try:
        python = python_of(environment)
        name = environment.packages[0].partition("==")[0].partition("[")[0]
        return python, run(name, [str(python), "-c", _VERSION, name], 60).strip()
    except PeerError as error:
        return None, f"missing: {error}"


_VERSION = "import importlib.metadata, sys; print(importlib.metadata.version(sys.argv[1]))"
