"""The command line as a user calls it: a process of its own."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any


def hub(
    *arguments: object, cwd: Path | str | None = None, stdin: str = "", **variables: str
) -> subprocess.CompletedProcess[str]:
    """Run a command and return how it ended."""
    kept = {name: value for name, value in os.environ.items() if not name.startswith("EMBEDL_HUB_")}
    return subprocess.run(
        [sys.executable, "-m", "embedl_hub", *map(str, arguments)],
        capture_output=True, text=True, timeout=120, check=False, cwd=cwd, input=stdin,
        env={**kept, "EMBEDL_HUB_PREDICTION": "off", **variables},
    )  # fmt: skip


def answer(*arguments: object, cwd: Path | str | None = None, **variables: str) -> Any:
    """Run a command that must succeed and return its JSON."""
    done = hub(*arguments, "--json", cwd=cwd, **variables)
    assert done.returncode == 0, done.stderr
    return json.loads(done.stdout)
