"""A file parsed and built by TensorRT-RTX, in a process of its own: a crash of the compiler stays there.

Without a GPU an engine can be built and not be looked into: whether the builder takes a file is all that is told.

``python -m embedl_deploy.dialect._build FILE`` prints one JSON object.
"""

import importlib.util
import json
import subprocess
import sys
import tempfile
from functools import partial
from pathlib import Path
from typing import Any, TypedDict

import onnx

from embedl_deploy._extras import need
from embedl_deploy.dialect._dialects import Contract, Dialect, Verdict
from embedl_deploy.errors import DialectError
from embedl_device.interpreter import python_argv

_TIMEOUT_S = 600
# Open sizes get this one; the engine is thrown away.
_OPEN_SIZE = 1


class _Answer(TypedDict):
    """What the compiler's process prints; `refused` is its reason, empty when it built an engine."""

    version: str
    refused: str
    bytes: int
    layers: int


def confirm(model: onnx.ModelProto, dialect: Dialect, rows: tuple[Verdict, ...]) -> Contract:
    """Let TensorRT-RTX parse and build the file, or say that it is not installed."""
    contract = partial(Contract, dialect.name, rows)
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "model.onnx"
        onnx.save(model, path)
        try:
            answer = _asked(path)
        except ImportError:
            return contract(
                "Predicted from rules; install 'edgeproof-deploy[tensorrt-rtx]' to have the file really built."
            )
        except _NoAnswerError as exc:
            return contract(str(exc), exc.what)
    if answer["refused"]:
        return contract(f"TensorRT-RTX {answer['version']} refused the file.", answer["refused"])
    size = f"{answer['bytes'] / 1e6:.1f} MB, {answer['layers']} network layers"
    return contract(f"TensorRT-RTX {answer['version']} parsed the file and built an engine ({size}).")


def layers_of(path: Path) -> None:
    """Have an ONNX file built; of the layers of an engine nothing is told.

    Raises:
        ImportError: TensorRT-RTX is not installed.
        DialectError: It refused the file, crashed on it or did not finish.
    """
    answer = _asked(path)
    if answer["refused"]:
        raise DialectError(answer["refused"])


class _NoAnswerError(DialectError):
    """The compiler ended without an answer."""

    def __init__(self, text: str, what: str) -> None:
        super().__init__(text)
        self.what = what


def _asked(path: Path) -> _Answer:
    """Return what the compiler's process answers about a file."""
    if importlib.util.find_spec("tensorrt_rtx") is None:
        raise ImportError("TensorRT-RTX is not installed; pip install 'edgeproof-deploy[tensorrt-rtx]'")
    try:
        done = subprocess.run(
            [*python_argv(module=__name__), str(path)],
            capture_output=True, text=True, check=False, timeout=_TIMEOUT_S,
        )  # fmt: skip
    except subprocess.TimeoutExpired as exc:
        raise _NoAnswerError(f"TensorRT-RTX did not finish within {_TIMEOUT_S} s.", "timeout") from exc
    last = done.stdout.strip().splitlines()[-1:] or [""]
    if done.returncode or not last[0].startswith("{"):
        tail = done.stderr.strip().splitlines()[-1:] or [f"exit code {done.returncode}"]
        raise _NoAnswerError("TensorRT-RTX crashed on this file.", tail[0])
    answer: _Answer = json.loads(last[0])
    return answer


def _build(path: str) -> _Answer:
    trt = need("tensorrt_rtx")
    complaints: list[str] = []

    class Logger(trt.ILogger):  # type: ignore[misc, name-defined]
        """Keeps what the compiler complains about: it is the only reason that a failed build has."""

        def __init__(self) -> None:
            super().__init__()

        def log(self, severity: Any, text: str) -> None:
            if severity <= trt.ILogger.Severity.ERROR:
                complaints.append(text)

    logger = Logger()
    builder = trt.Builder(logger)
    network = builder.create_network(0)
    parser = trt.OnnxParser(network, logger)
    answer: _Answer = {"version": trt.__version__, "refused": "", "bytes": 0, "layers": 0}
    if not parser.parse_from_file(path):
        lines = [line for index in range(parser.num_errors) for line in parser.get_error(index).desc().splitlines()]
        answer["refused"] = _reason(lines)
        return answer
    config = builder.create_builder_config()
    config.num_compute_capabilities = 1
    # Targets that need no GPU here; FP8 begins with SM89.
    has_fp8 = any(network.get_layer(index).get_output_type(0) == trt.fp8 for index in range(network.num_layers))
    target = trt.ComputeCapability.SM89 if has_fp8 else trt.ComputeCapability.SM86
    config.set_compute_capability(target, 0)
    profile = builder.create_optimization_profile()
    for index in range(network.num_inputs):
        value = network.get_input(index)
        shape = [_OPEN_SIZE if size < 0 else size for size in value.shape]
        if list(value.shape) != shape:
            profile.set_shape(value.name, shape, shape, shape)
    config.add_optimization_profile(profile)
    engine = builder.build_serialized_network(network, config)
    if engine is None:
        answer["refused"] = f"the network was parsed, and no engine could be built: {_reason(complaints)}"
        return answer
    return {**answer, "bytes": engine.nbytes, "layers": network.num_layers}


def _reason(lines: list[str]) -> str:
    """Join what the compiler said; without a GPU every refusal also complains about the driver."""
    reasons = [line.strip() for line in lines if line.strip() and "Cuda Runtime" not in line]
    return " ".join(dict.fromkeys(reasons)) or "no reason given"


if __name__ == "__main__":
    print(json.dumps(_build(sys.argv[1])))  # noqa: T201 - the answer to the parent
