"""The test package: what Device Farm's host gets, and the commands it runs with the phone attached."""

from __future__ import annotations

import io
import re
import zipfile
from typing import TYPE_CHECKING

from embedl_hub.toolchain.refusal import RefusedError

if TYPE_CHECKING:
    from collections.abc import Sequence
    from pathlib import Path

MODEL, TOOL = "model.tflite", "benchmark_model"
CONSOLE, OPERATORS, OPERATORS_CONSOLE = "benchmark_model.txt", "operators.bin", "operators.txt"
_THERE = "/data/local/tmp/edgeproof"
_SAFE = re.compile(r"[A-Za-z0-9_./:=,+@%-]+")
# The service takes no package of Python tests without a test in it.
_TEST = '''"""Device Farm asks for a test; the work is done by the test spec."""


def test_nothing():
    """Pass."""
'''


def packed(model: Path, tool: Path) -> bytes:
    """Return the package; equal files give equal bytes."""
    if not tool.is_file():
        raise RefusedError(
            f"There is no {tool}. AWSConfig(benchmark_model=...) is Google's benchmark_model for Android on this "
            "machine (android_aarch64_benchmark_model of the LiteRT tools)."
        )
    buffer = io.BytesIO()
    with zipfile.ZipFile(buffer, "w", zipfile.ZIP_DEFLATED) as archive:
        for name, content in (
            ("requirements.txt", b"pytest\n"),
            ("tests/test_nothing.py", _TEST.encode()),
            (MODEL, model.read_bytes()),
            (TOOL, tool.read_bytes()),
        ):
            entry = zipfile.ZipInfo(name, (1980, 1, 1, 0, 0, 0))
            entry.compress_type = zipfile.ZIP_DEFLATED
            entry.external_attr = 0o755 << 16
            archive.writestr(entry, content)
    return buffer.getvalue()


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
        with zipfile.ZipFile(io.BytesIO(content)) as archive:
            for entry in archive.infolist():
                name = entry.filename.rpartition("/")[2]
                if name in (CONSOLE, OPERATORS, OPERATORS_CONSOLE):
                    found[name] = archive.read(entry)
    except (zipfile.BadZipFile, OSError, EOFError) as error:
        raise RefusedError(f"AWS Device Farm's archive of artifacts cannot be read: {error}.") from error
    return found
