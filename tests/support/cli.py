"""The command line as a user calls it: a process of its own. What it prints as JSON must have the shape it promises."""

from __future__ import annotations

import functools
import json
import os
import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import click
import jsonschema

from embedl_deploy.cli.main import cli as deploy
from embedl_device.json_output import printing, schema_of
from embedl_hub.cli.main import cli


def hub(
    *arguments: object, cwd: Path | str | None = None, stdin: str = "", **variables: str
) -> subprocess.CompletedProcess[str]:
    """Run a command and return how it ended."""
    kept = {name: value for name, value in os.environ.items() if not name.startswith("EMBEDL_HUB_")}
    done = subprocess.run(
        [sys.executable, "-m", "embedl_hub", *map(str, arguments)],
        capture_output=True, text=True, timeout=120, check=False, cwd=cwd, input=stdin,
        env={**kept, "EMBEDL_HUB_PREDICTION": "off", **variables},
    )  # fmt: skip
    # With --every a line follows for each change, without end.
    if "--json" in arguments and "--every" not in arguments and done.stdout:
        check_shape(list(map(str, arguments)), json.loads(done.stdout))
    return done


def check_shape(arguments: Sequence[str], printed: object, program: str = "embedl-hub") -> None:
    """Fail unless what a command printed is what its schema says: every field, and none that is not listed."""
    known = _schemas(program)
    words = [word for word in arguments if word != "--json"]
    name = next((" ".join(words[:count]) for count in (3, 2, 1) if " ".join(words[:count]) in known), None)
    # Others' commands have no schema.
    if name is not None:
        jsonschema.Draft202012Validator(known[name]).validate(printed)


@functools.cache
def _schemas(program: str) -> dict[str, Any]:
    root = {"embedl-hub": cli, "embedl-deploy": deploy}[program]
    return {name: closed(schema_of(program, name, command)) for name, command in printing(root, click.Context(root))}


def closed(schema: Any) -> Any:
    """Return a schema whose objects may have no other fields than those listed."""
    if isinstance(schema, list):
        return [closed(part) for part in schema]
    if not isinstance(schema, dict):
        return schema
    inner = {key: closed(part) for key, part in schema.items()}
    if inner.get("type") in ("object", ["object", "null"]):
        inner.setdefault("additionalProperties", False)
    return inner


def answer(*arguments: object, cwd: Path | str | None = None, **variables: str) -> Any:
    """Run a command that must succeed and return its JSON."""
    done = hub(*arguments, "--json", cwd=cwd, **variables)
    assert done.returncode == 0, done.stderr
    return json.loads(done.stdout)
