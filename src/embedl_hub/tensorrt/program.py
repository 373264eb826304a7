"""trtexec's command line: asked once what it can do, called with a time limit, every ending in words."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

from embedl_hub.core.device import TrtexecConfig
from embedl_hub.errors import CommandError
from embedl_hub.tensorrt.log import (
    Capabilities,
    errors,
    is_mismatch,
    is_out_of_memory,
    parse_facts,
    parse_help,
    unknown_options,
)
from embedl_hub.tensorrt.options import check_version
from embedl_hub.toolchain.refusal import RefusedError

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from embedl_hub.core.compile import TensorRTCompiledModel
    from embedl_hub.core.context import HubContext
    from embedl_hub.tensorrt.place import Place

_NO_ENGINES = (".onnx", ".tflite")
_NOT_FOUND = 127
_KILLED = 137
_QUICK_S = 120.0
_NOTE = "trtexec"
# Where NVIDIA's packages, JetPack and containers put it without putting it on PATH.
_USUAL = ("/usr/src/tensorrt/bin/trtexec", "/opt/tensorrt/bin/trtexec", "/usr/local/tensorrt/bin/trtexec")

# $1 the GPU's number. Prints "key=value" lines; every line is optional.
_ASK_GPU = """\
if command -v nvidia-smi >/dev/null 2>&1; then
  for field in name compute_cap driver_version; do
    echo "$field=$(nvidia-smi --id="$1" --query-gpu="$field" --format=csv,noheader 2>/dev/null | head -n 1)"
  done
fi
if [ -r /proc/device-tree/model ]; then echo "board=$(tr -d '\\000' < /proc/device-tree/model)"; fi
if [ -r /etc/nv_tegra_release ]; then echo "l4t=$(head -n 1 /etc/nv_tegra_release)"; fi
exit 0
"""
_LABEL = "edgeproof-tensorrt"


@dataclass(frozen=True)
class Trtexec:
    """A trtexec that answered.

    Attributes:
        path: The program there.
        capabilities: What it can do.
        gpu: What the machine says about its GPU, by key; empty where it says nothing.
    """

    path: str
    capabilities: Capabilities
    gpu: Mapping[str, str]


def find_trtexec(place: Place) -> Trtexec:
    """Return the place's trtexec; it is asked once while the context lives."""
    wanted = (_NOTE, place.config.trtexec_path, place.config.gpu)
    kept = place.notes.get(str(wanted))
    if isinstance(kept, Trtexec):
        return kept
    path, text = _help(place)
    capabilities = parse_help(text)
    if capabilities is None:
        raise RefusedError(
            f"{path!r} on {place.title} answers --help with {' '.join(text.split())[:200]!r}, which is not what "
            "trtexec says. Is it another program? Say where trtexec is: TrtexecConfig(trtexec_path=...)."
        )
    check_version(capabilities, place.title)
    found = Trtexec(path, capabilities, _ask_gpu(place))
    place.notes[str(wanted)] = found
    return found


def check_maker(model: TensorRTCompiledModel) -> None:
    """Refuse an engine of the other library, and what is no engine, before it is sent anywhere."""
    if model.path.file_name.endswith(_NO_ENGINES):
        raise RefusedError(
            f"{model.path.file_name} is no TensorRT engine. Compile the model first: embedl-hub compile tensorrt, or "
            "TensorRTCompiler."
        )
    if "tensorrt_rtx_version" in model.engine:
        raise RefusedError(
            f"The engine was built by TensorRT-RTX {model.engine['tensorrt_rtx_version']}, which is another library "
            "than trtexec's. Compile the model on this device."
        )


def _help(place: Place) -> tuple[str, str]:
    wanted = place.config.trtexec_path
    paths = (wanted, *_USUAL) if wanted == TrtexecConfig().trtexec_path else (wanted,)
    for path in paths:
        try:
            result = place.runner.run([path, "--help"], hide=True, timeout_s=_QUICK_S)
        except CommandError as error:
            if error.exit_code != _NOT_FOUND:
                raise RefusedError(f"trtexec does not start on {place.title}: {error}") from error
            if "shared librar" in error.stderr:
                raise RefusedError(
                    f"trtexec is on {place.title} but a library it needs is not: {error.stderr.strip()[-300:]}. "
                    "Set LD_LIBRARY_PATH for that account, or install the library."
                ) from error
            continue
        return path, result.stdout
    raise RefusedError(
        f"{place.title.capitalize()} has no trtexec: looked for {', '.join(paths)}. It comes with TensorRT (on Debian "
        "the package libnvinfer-bin, on Jetson with JetPack). If it is elsewhere, say where: "
        "TrtexecConfig(trtexec_path=...), or --set trtexec_path=PATH with embedl-hub device add (for this machine with "
        "--type trtexec --runner local)."
    )


def _ask_gpu(place: Place) -> dict[str, str]:
    argv = ["sh", "-c", _ASK_GPU, _LABEL, str(place.config.gpu)]
    lines = place.runner.run(argv, hide=True, timeout_s=_QUICK_S).stdout.splitlines()
    pairs = (line.partition("=") for line in lines)
    return {key: value.strip() for key, _, value in pairs if value.strip() and "[" not in value}


@dataclass(frozen=True)
class Answer:
    """What a call of trtexec that went well printed."""

    text: str

    @property
    def facts(self) -> dict[str, str]:
        """The GPU and the library, in trtexec's words."""
        return parse_facts(self.text)


def call(ctx: HubContext, place: Place, program: Trtexec, what: str, words: Sequence[str]) -> Answer:
    """Run trtexec in the run's folder there; what it prints is kept, whether it succeeds or not."""
    name = f"trtexec-{what}.log"
    try:
        result = place.runner.run([program.path, *words], place.folder, hide=True, timeout_s=place.config.timeout_s)
    except CommandError as error:
        _keep(ctx, name, error.argv, error.stdout, error.stderr)
        raise RefusedError(_ending(place, program, what, error, name)) from error
    _keep(ctx, name, [program.path, *words], result.stdout, result.stderr)
    return Answer(f"{result.stdout}\n{result.stderr}")


def _keep(ctx: HubContext, name: str, argv: Sequence[str], stdout: str, stderr: str) -> None:
    path = ctx.artifact_dir / name
    path.write_text(f"$ {' '.join(argv)}\n{stdout}\n{stderr}", encoding="utf-8")
    ctx.client.log_artifact(path, name=name)


def _ending(place: Place, program: Trtexec, what: str, error: CommandError, kept: str) -> str:
    """Return why a call failed, in one message; the whole of it is kept."""
    text = f"{error.stdout}\n{error.stderr}"
    said = errors(text)
    tail = f" trtexec's own words are kept as {kept!r}; the last: {said[-1][:300] if said else 'none'!r}."
    version = program.capabilities.version_text
    if error.timeout_s is not None:
        return (
            f"trtexec was stopped after {error.timeout_s:g} s during {what} on {place.title}. Building may take long: "
            f"give TrtexecConfig(timeout_s=...) more; what it had timed is in its timing cache there.{tail}"
        )
    if lacking := unknown_options(text):
        return (
            f"The trtexec of {place.title} (TensorRT {version}) has no option {', '.join(lacking)}; leave it out of "
            f"cli_args.{tail}"
        )
    if is_out_of_memory(text) or error.exit_code == _KILLED:
        less = "a smaller workspace_mib or smaller max_shapes need less" if what == "build" else "a smaller batch does"
        return f"The memory of {place.title} ran out during {what}: close what else runs there; {less}.{tail}"
    if what != "build" and is_mismatch(text):
        line = next((line for line in said if is_mismatch(line)), said[-1] if said else "")
        return (
            f"The engine was not built for {place.title} (TensorRT {version}, {gpu_words(program.gpu)}): {line[:300]} "
            f"Engines hold for one GPU and one version; compile the model on that device.{tail}"
        )
    return f"trtexec failed during {what} on {place.title}: {'; '.join(said[-3:])[:600] or error}.{tail}"


def gpu_words(gpu: Mapping[str, str]) -> str:
    """Return a GPU in words."""
    name = gpu.get("name") or gpu.get("board") or "a GPU that does not say its name"
    return f"{name} ({gpu['compute_cap']})" if "compute_cap" in gpu else name
