"""trtexec's command line: asked once what it can do, called with a time limit, every ending in words."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

from embedl_hub.errors import CommandError
from embedl_hub.refusal import RefusedError
from embedl_hub.toolchains.tensorrt import log
from embedl_hub.toolchains.tensorrt.config import TrtexecConfig
from embedl_hub.toolchains.tensorrt.options import check_version, log_precision

if TYPE_CHECKING:
    from embedl_hub.core.context import HubContext
    from embedl_hub.machine.machine import Machine
    from embedl_hub.toolchains.tensorrt.components import TensorRTCompiledModel

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
    """A trtexec that answered, and what its machine says about the GPU, by key; empty where it says nothing."""

    path: str
    capabilities: log.Capabilities
    gpu: Mapping[str, str]


def find_trtexec(machine: Machine[TrtexecConfig]) -> Trtexec:
    """Return the machine's trtexec; it is asked once while the context lives."""
    wanted = (_NOTE, machine.config.trtexec_path, machine.config.gpu)
    kept = machine.notes.get(str(wanted))
    if isinstance(kept, Trtexec):
        return kept
    path, text = _help(machine)
    capabilities = log.parse_help(text)
    if capabilities is None:
        raise RefusedError(
            f"{path!r} on {machine.title} answers --help with {' '.join(text.split())[:200]!r}, which is not what "
            "trtexec says. Is it another program? Say where trtexec is: TrtexecConfig(trtexec_path=...)."
        )
    check_version(capabilities, machine.title)
    found = Trtexec(path, capabilities, ask_gpu(machine, _ASK_GPU))
    machine.notes[str(wanted)] = found
    return found


def log_model(ctx: HubContext, model: TensorRTCompiledModel) -> None:
    """Record which engine is measured or run; one of the other library, and what is no engine, is refused here."""
    ctx.client.log_artifact(model.path, name="input", ctx=ctx)
    ctx.client.log_param("$runtime", "tensorrt")
    log_precision(ctx, model.engine)
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


def _help(machine: Machine[TrtexecConfig]) -> tuple[str, str]:
    wanted = machine.config.trtexec_path
    paths = (wanted, *_USUAL) if wanted == TrtexecConfig().trtexec_path else (wanted,)
    for path in paths:
        try:
            result = machine.runner.run([path, "--help"], hide=True, timeout_s=_QUICK_S)
        except CommandError as error:
            if error.exit_code != _NOT_FOUND:
                raise RefusedError(f"trtexec does not start on {machine.title}: {error}") from error
            if "shared librar" in error.stderr:
                raise RefusedError(
                    f"trtexec is on {machine.title} but a library it needs is not: {error.stderr.strip()[-300:]}. "
                    "Set LD_LIBRARY_PATH for that account, or install the library."
                ) from error
            continue
        return path, result.stdout
    raise RefusedError(
        f"{machine.title.capitalize()} has no trtexec: looked for {', '.join(paths)}. It comes with TensorRT (on "
        "Debian the package libnvinfer-bin, on Jetson with JetPack). If it is elsewhere, say where: "
        "TrtexecConfig(trtexec_path=...), or --set trtexec_path=PATH with embedl-hub device add (for this machine with "
        "--type trtexec --runner local)."
    )


def ask_gpu(machine: Machine[TrtexecConfig], script: str) -> dict[str, str]:
    """Return what a script prints of the GPU, by key; what is not known comes in brackets and is left out."""
    argv = ["sh", "-c", script, _LABEL, str(machine.config.gpu)]
    lines = machine.runner.run(argv, hide=True, timeout_s=_QUICK_S).stdout.splitlines()
    pairs = (line.partition("=") for line in lines)
    return {key: value.strip() for key, _, value in pairs if value.strip() and "[" not in value}


def call(ctx: HubContext, machine: Machine[TrtexecConfig], program: Trtexec, what: str, words: Sequence[str]) -> str:
    """Run trtexec in the run's folder there and return what it prints; that is kept, also when it fails."""
    name = f"trtexec-{what}.log"
    try:
        result = machine.runner.run(
            [program.path, *words], machine.folder, hide=True, timeout_s=machine.config.timeout_s
        )
    except CommandError as error:
        _keep(ctx, name, error.argv, error.stdout, error.stderr)
        raise RefusedError(_explain_failure(machine, program, what, error, name)) from error
    _keep(ctx, name, [program.path, *words], result.stdout, result.stderr)
    return f"{result.stdout}\n{result.stderr}"


def _keep(ctx: HubContext, name: str, argv: Sequence[str], stdout: str, stderr: str) -> None:
    path = ctx.artifact_dir / name
    # The one file of a run that quotes a command line with what the user gave for it.
    text = ctx.client.redactor.text(f"$ {' '.join(argv)}\n{stdout}\n{stderr}")
    path.write_text(text, encoding="utf-8")
    ctx.client.log_artifact(path, name=name)


def _explain_failure(
    machine: Machine[TrtexecConfig], program: Trtexec, what: str, error: CommandError, kept: str
) -> str:
    """Return why a call failed, in one message; the whole of it is kept."""
    text = f"{error.stdout}\n{error.stderr}"
    messages = log.errors(text)
    tail = f" trtexec's own words are kept as {kept!r}; the last: {messages[-1][:300] if messages else 'none'!r}."
    version = program.capabilities.version_text
    if error.timeout_s is not None:
        return (
            f"trtexec was stopped after {error.timeout_s:g} s during {what} on {machine.title}. Building may take "
            f"long: give TrtexecConfig(timeout_s=...) more; what it had timed is in its timing cache there.{tail}"
        )
    if lacking := log.unknown_options(text):
        return (
            f"The trtexec of {machine.title} (TensorRT {version}) has no option {', '.join(lacking)}; leave it out of "
            f"cli_args.{tail}"
        )
    if log.is_out_of_memory(text) or error.exit_code == _KILLED:
        less = "a smaller workspace_mib or smaller max_shapes need less" if what == "build" else "a smaller batch does"
        return f"The memory of {machine.title} ran out during {what}: close what else runs there; {less}.{tail}"
    if what != "build" and log.is_mismatch(text):
        line = next((line for line in messages if log.is_mismatch(line)), messages[-1] if messages else "")
        return (
            f"The engine was not built for {machine.title} (TensorRT {version}, {gpu_words(program.gpu)}): "
            f"{line[:300]} Engines hold for one GPU and one version; compile the model on that device.{tail}"
        )
    return f"trtexec failed during {what} on {machine.title}: {'; '.join(messages[-3:])[:600] or error}.{tail}"


def gpu_words(gpu: Mapping[str, str]) -> str:
    """Return a GPU in words."""
    name = gpu.get("name") or gpu.get("board") or "a GPU that does not say its name"
    return f"{name} ({gpu['compute_cap']})" if "compute_cap" in gpu else name
