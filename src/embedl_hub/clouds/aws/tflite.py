"""TFLite profiles on AWS Device Farm's phones: what its host gets, the commands it runs there, and what comes back."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

from embedl_device.readers import UnreadableError, open_zip
from embedl_device.statistics import Judgement, Verdict
from embedl_hub.clouds.aws.config import AWSConfig
from embedl_hub.clouds.aws.service import PACKAGE, SPEC, Farm, vendor
from embedl_hub.core.profile import ProfileError
from embedl_hub.machine.machine import zipped
from embedl_hub.machine.program import refuse_until
from embedl_hub.refusal import RefusedError, refusals_as
from embedl_hub.toolchains.tflite import benchmark
from embedl_hub.toolchains.tflite.components import TFLiteProfiler, TFLiteProfilingResult
from embedl_hub.toolchains.tflite.profile import completed, keep_profile, log_model

if TYPE_CHECKING:
    from embedl_hub.core.context import HubContext
    from embedl_hub.core.document import ProfileDocument
    from embedl_hub.toolchains.tflite.components import TFLiteCompiledModel

MODEL, TOOL = "model.tflite", "benchmark_model"
CONSOLE, OPERATORS, OPERATORS_CONSOLE = "benchmark_model.txt", "operators.bin", "operators.txt"
_THERE = "/data/local/tmp/edgeproof"
_SAFE = re.compile(r"[A-Za-z0-9_./:=,+@%-]+")
# The service takes no package of Python tests without a test in it.
_TEST = '''"""Device Farm asks for a test; the work is done by the test spec."""


def test_nothing():
    """Pass."""
'''
_REASON = (
    "measured by benchmark_model on a phone of AWS Device Farm: means without samples, on hardware that others used "
    "before, with clocks and temperature unknown"
)


def packed(model: Path, tool: Path) -> bytes:
    """Return the package; equal files give equal bytes."""
    if not tool.is_file():
        raise RefusedError(
            f"There is no {tool}. AWSConfig(benchmark_model=...) is Google's benchmark_model for Android on this "
            "machine (android_aarch64_benchmark_model of the LiteRT tools)."
        )
    contents = {"requirements.txt": b"pytest\n", "tests/test_nothing.py": _TEST.encode()}
    return zipped({**contents, MODEL: model.read_bytes(), TOOL: tool.read_bytes()}, mode=0o755)


def test_spec(run_flags: Sequence[str], layer_flags: Sequence[str]) -> str:
    """Return the test spec: push, run for the times, run for the operators, pull.

    Flags end up in a shell on the host and in another on the phone, so only plain words are let through.
    """
    for flag in (*run_flags, *layer_flags):
        if _SAFE.fullmatch(flag) is None:
            raise RefusedError(f"benchmark_args may hold letters, digits and _./:=,+@%- only, not {flag!r}.")
    adb = 'adb -s "$DEVICEFARM_DEVICE_UDID"'
    graph = f"--graph={_THERE}/{MODEL}"
    timed = f"{_THERE}/{TOOL} {graph} {' '.join(run_flags)}"
    commands = {
        "install": ["export ADB_TRACE="],
        "pre_test": [
            f"{adb} shell mkdir -p {_THERE}",
            f'{adb} push "$DEVICEFARM_TEST_PACKAGE_PATH/{MODEL}" {_THERE}/{MODEL}',
            f'{adb} push "$DEVICEFARM_TEST_PACKAGE_PATH/{TOOL}" {_THERE}/{TOOL}',
            f"{adb} shell chmod 755 {_THERE}/{TOOL}",
        ],
        "test": [f'{adb} shell "{timed}" > "$DEVICEFARM_LOG_DIR/{CONSOLE}" 2>&1'],
        "post_test": [f"{adb} shell rm -rf {_THERE}"],
    }
    if layer_flags:
        profiled = f"{timed} {' '.join(layer_flags)} --op_profiling_output_file={_THERE}/{OPERATORS}"
        commands["test"] += [
            f'{adb} shell "{profiled}" > "$DEVICEFARM_LOG_DIR/{OPERATORS_CONSOLE}" 2>&1 || true',
            f'{adb} pull {_THERE}/{OPERATORS} "$DEVICEFARM_LOG_DIR/{OPERATORS}" || true',
        ]
    lines = ["version: 0.1", "phases:"]
    for phase, words in commands.items():
        lines += [f"  {phase}:", "    commands:", *(f"      - {_quoted(word)}" for word in words)]
    return "\n".join([*lines, "artifacts:", "  - $DEVICEFARM_LOG_DIR", ""])


def _quoted(text: str) -> str:
    """Return a YAML string; in single quotes nothing but the quote itself has a meaning."""
    return "'" + text.replace("'", "''") + "'"


def unpacked(content: bytes) -> dict[str, bytes]:
    """Return our files of the service's archive of artifacts, by their names, wherever in it they lie."""
    found: dict[str, bytes] = {}
    try:
        with open_zip(content) as archive:
            for entry in archive.infolist():
                name = entry.filename.rpartition("/")[2]
                if name in (CONSOLE, OPERATORS, OPERATORS_CONSOLE):
                    found[name] = archive.read(entry)
    except (OSError, UnreadableError) as error:
        raise RefusedError(f"AWS Device Farm's archive of artifacts cannot be read: {error}.") from error
    return found


def profile_model(
    ctx: HubContext, model: TFLiteCompiledModel, *, device: str | None, until: str | None
) -> TFLiteProfilingResult:
    """Measure on a phone of the service; costs money by the minute."""
    vendor()
    with refusals_as(ProfileError):
        found = ctx.find_device(device or "")
        config = found.get_provider_config(AWSConfig, TFLiteProfiler) or AWSConfig()
        refuse_until(until, config, "benchmark_model on a phone of AWS Device Farm")
        graph = log_model(ctx, model)
        content = packed(ctx.bring_here(model.path), Path(config.benchmark_model).expanduser())
        timed = benchmark.run_flags(config, config.benchmark_args, xnnpack=config.xnnpack)
        spec = test_spec(timed, benchmark.layer_flags(config.layer_runs) if config.layer_runs > 0 else [])
        farm = Farm(ctx, config)
        package_arn = farm.upload("edgeproof.zip", PACKAGE, content)
        arns = (package_arn, farm.upload("edgeproof.yml", SPEC, spec.encode()))
        ctx.client.log_param("aws_uploads", list(arns))
        with farm.pool(found.spec.device_name) as pool:
            run = farm.run(pool, *arns)
        _log_costs(ctx, run, config)
        phone, archive = farm.artifacts(run)
        ctx.client.log_param("aws_device", {key: str(phone.get(key)) for key in ("name", "model", "os", "arn")})
        files = {} if archive is None else unpacked(archive)
        for name, content in files.items():
            (ctx.artifact_dir / name).write_bytes(content)
            ctx.client.log_artifact(ctx.artifact_dir / name, name="raw" if name == CONSOLE else name)
        document = _document(files, run, phone)
    place = str(phone.get("name") or "AWS Device Farm")
    return keep_profile(ctx, model, completed(document, graph, model, place))


def _log_costs(ctx: HubContext, run: Mapping[str, Any], config: AWSConfig) -> None:
    minutes = run.get("deviceMinutes") or {}
    ctx.client.log_param("aws_result", {key: run.get(key) for key in ("status", "result", "message")})
    ctx.client.log_metric("device_minutes", float(minutes.get("total") or 0.0))
    ctx.client.log_metric("cost_usd", float(minutes.get("metered") or 0.0) * config.price_per_minute_usd)


def _document(files: Mapping[str, bytes], run: Mapping[str, Any], phone: Mapping[str, Any]) -> ProfileDocument:
    if CONSOLE not in files:
        raise RefusedError(
            f"AWS Device Farm: run {run['arn']} ended {run.get('result')} ({run.get('message') or 'no reason given'}) "
            "and left no output of benchmark_model."
        )
    console = benchmark.parse_console(files[CONSOLE].decode("utf-8", "replace"))
    tables = [files[name] for name in (OPERATORS, OPERATORS_CONSOLE) if files.get(name)]
    try:
        layers = benchmark.layers_of(benchmark.first_table(tables), None)
    except RefusedError as error:
        layers = benchmark.no_layers(str(error))
    document = benchmark.document_of(console, layers, {"name": "benchmark_model", "run": run["arn"]})
    board = {"model": phone.get("name"), "system": phone.get("os"), "architecture": phone.get("cpu", {})}
    judged = replace(document, judgement=Judgement(Verdict.INDICATIVE, _REASON))
    return judged.with_facts(environment={"board": board})
