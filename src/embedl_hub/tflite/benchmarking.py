"""Profile on a board that has Google's ``benchmark_model`` and nothing else.

``benchmark_model --graph=M --num_runs=N --min_secs=S --max_secs=S [--num_threads=N] --use_xnnpack=BOOL …``, once for
the times and once more with ``--enable_op_profiling=true`` for the operators.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from embedl_hub.core.profile import ProfileError, TFLiteProfilingResult
from embedl_hub.errors import CommandError, TransferError
from embedl_hub.paths import RemotePath
from embedl_hub.tflite.benchmark import document_of, first_table, layers_of, parse_console
from embedl_hub.tflite.profiling import completed, log_model
from embedl_hub.toolchain.modules import source_of, with_modules
from embedl_hub.toolchain.profiles import log_document
from embedl_hub.toolchain.refusal import RefusedError, refusals_as

if TYPE_CHECKING:
    from pathlib import Path

    from embedl_hub.core.compile import TFLiteCompiledModel
    from embedl_hub.core.context import HubContext
    from embedl_hub.core.device import AWSConfig, EmbedlLiteRTConfig
    from embedl_hub.toolchain.place import Place

_NOT_FOUND = (126, 127)


def profile_with_benchmark(
    ctx: HubContext, place: Place[EmbedlLiteRTConfig], model: TFLiteCompiledModel
) -> TFLiteProfilingResult:
    """Measure a model with the board's own benchmark_model."""
    with refusals_as(ProfileError):
        graph = log_model(ctx, model)
        entry = str(place.send(model.path))
        stdout = _run(place, [f"--graph={entry}", *run_flags(place.config)])
        _keep(ctx, "benchmark_model.txt", stdout.encode(), "raw")
        console = parse_console(stdout)
        layers = _layers(ctx, place, entry) if place.config.layer_runs > 0 else {"rows": [], "runs": 0}
        tool = {"name": "benchmark_model", "path": place.config.benchmark_model_path}
        document = document_of(console, layers, tool)
    document = completed(document, graph, model.source_of_tensors, place.title)
    log_document(ctx, with_modules(document, source_of(ctx, model)))
    return TFLiteProfilingResult.from_current_run(ctx)


def run_flags(config: EmbedlLiteRTConfig | AWSConfig) -> list[str]:
    """Return the flags of a timed benchmark."""
    words = [
        f"--num_runs={config.iterations}", f"--min_secs={config.min_seconds:g}", f"--max_secs={config.max_seconds:g}",
        f"--use_xnnpack={str(config.xnnpack).lower()}", "--report_peak_memory_footprint=true",
    ]  # fmt: skip
    if config.threads is not None:
        words.append(f"--num_threads={config.threads}")
    return [*words, *config.benchmark_args]


def layer_flags(runs: int) -> list[str]:
    """Return the flags that measure the operators instead, over so many runs."""
    return [f"--num_runs={runs}", "--min_secs=0", "--enable_op_profiling=true", "--op_profiling_output_mode=proto"]


def _layers(ctx: HubContext, place: Place[EmbedlLiteRTConfig], entry: str) -> dict[str, Any]:
    """Return the operators; a tool that knows no protobuf writes CSV, or the table comes on its console."""
    file = RemotePath(place.folder) / "operators.bin"
    flags = [
        *run_flags(place.config), *layer_flags(place.config.layer_runs),
        f"--op_profiling_output_file={file}", f"--profiling_output_csv_file={file}",
    ]  # fmt: skip
    try:
        stdout = _run(place, [f"--graph={entry}", *flags])
        contents = [_fetched(ctx, place, file), stdout.encode()]
        _keep(ctx, "operators.txt", stdout.encode(), "operators_text")
        table = first_table(content for content in contents if content)
        measured = parse_console(stdout).measured
        return layers_of(table, measured.count if measured is not None else None)
    except RefusedError as error:
        # The times are good without the operators; why these are missing is part of the result.
        return {"rows": [], "runs": 0, "missing_because": str(error)}


def _fetched(ctx: HubContext, place: Place[EmbedlLiteRTConfig], file: RemotePath) -> bytes:
    here = place.scratch / "operators.bin"
    try:
        place.get(file, here)
    except (TransferError, CommandError, OSError):
        return b""
    content = here.read_bytes()
    _keep(ctx, "operators.bin", content, "operators")
    return content


def _keep(ctx: HubContext, file_name: str, content: bytes, name: str) -> Path:
    path = ctx.artifact_dir / file_name
    path.write_bytes(content)
    ctx.client.log_artifact(path, name=name)
    return path


def _run(place: Place[EmbedlLiteRTConfig], flags: list[str]) -> str:
    program = str(place.config.benchmark_model_path)
    try:
        result = place.runner.run([program, *flags], hide=True, timeout_s=place.config.timeout_s)
    except CommandError as error:
        if error.exit_code in _NOT_FOUND:
            raise RefusedError(
                f"{place.title.capitalize()} has no program {program!r} that runs. Put Google's benchmark_model for "
                "its processor there, or leave benchmark_model_path out and let Python and ai-edge-litert do it."
            ) from error
        raise RefusedError(f"benchmark_model failed on {place.title}: {error}") from error
    # The numbers go to stdout or stderr, by how the tool was built.
    return result.stdout + "\n" + result.stderr
