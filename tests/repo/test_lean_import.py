"""Importing a face costs nothing: no vendor package, nothing heavy, little time."""

from __future__ import annotations

import json
import subprocess
import sys

import pytest

HEAVY = (
    "numpy",
    "torch",
    "onnx",
    "onnxruntime",
    "rich",
    "qai_hub",
    "boto3",
    "asyncio",
    "tensorrt",
    "mlflow",
    "http.server",
    "jinja2",
    "plotly",
    "starlette",
    "uvicorn",
)


@pytest.mark.parametrize(
    "module",
    [
        "embedl_hub",
        "embedl_hub.core",
        "embedl_hub.core.component",
        "embedl_hub.core.compile",
        "embedl_hub.core.profile",
        "embedl_hub.core.invoke",
        "embedl_hub.core.device",
        "embedl_hub.page",
        "embedl_hub.tracking",
        "embedl_hub.testing",
        "embedl_hub.pytest_plugin",
        "embedl_hub.bisection",
        "embedl_hub.comparison",
        "embedl_hub.credentials",
        "embedl_hub.cli.main",
    ],
)
def test_a_face_wakes_nothing_heavy(module: str) -> None:
    """In a fresh process."""
    code = f"import json, sys, {module}; print(json.dumps(sorted(sys.modules)))"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    loaded = set(json.loads(done.stdout))
    assert not {name for name in HEAVY if name in loaded}
