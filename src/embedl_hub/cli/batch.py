"""``embedl-hub batch``: record many values at once from standard input, all or none."""

from __future__ import annotations

import shlex
import sys
from collections.abc import Iterable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import click

from embedl_device.readers import parse_json
from embedl_device.schema import TEXT, WHOLE, fields
from embedl_hub.cli._output import as_value, home_option, json_option, report
from embedl_hub.cli.log import attached
from embedl_hub.errors import ConfigError

_HOW = "param NAME VALUE, metric NAME NUMBER [STEP], tag NAME VALUE, or the same as JSON"


@dataclass
class _Values:
    params: dict[str, object] = field(default_factory=dict)
    metrics: list[tuple[str, float, int | None]] = field(default_factory=list)
    tags: dict[str, object] = field(default_factory=dict)


@click.command()
@click.argument("run_id")
@home_option
@json_option(fields({"run": TEXT, "params": WHOLE, "metrics": WHOLE, "tags": WHOLE}))
def command(run_id: str, home: Path | None, as_json: bool) -> None:
    """Record many values of a run that `run start` began, in one go: all lines, or none when one is wrong.

    \b
    Lines of standard input, as words or as JSON:
      param precision int8
      metric loss 0.25 100
      tag stage ci
      {"kind": "metric", "name": "loss", "value": 0.25, "step": 100}
    """  # noqa: D301 - click's mark for text that keeps its lines
    values = _read(sys.stdin)
    with attached(home, run_id) as run:
        run.log_batch(values.params, values.metrics, values.tags)
    counts = {name: len(logged) for name, logged in vars(values).items()}
    text = f"Recorded {', '.join(f'{count} {name}' for name, count in counts.items())}."
    report({"run": run.id, **counts}, text, as_json=as_json)


def _read(lines: Iterable[str]) -> _Values:
    values = _Values()
    for number, line in enumerate(lines, start=1):
        text = line.strip()
        if not text or text.startswith("#"):
            continue
        try:
            _add(values, **(parse_json(text) if text.startswith("{") else _split(text)))
        except (KeyError, TypeError, ValueError) as error:
            raise ConfigError(
                f"Line {number} cannot be recorded: {text!r:.200} ({error}). A line is: {_HOW}. Nothing was recorded."
            ) from error
    return values


def _split(text: str) -> dict[str, object]:
    words = shlex.split(text)
    if len(words) < 3:
        raise ValueError("a kind, a name and a value are needed")
    kind, name, value, *rest = words
    if len(rest) > (kind == "metric"):
        raise ValueError("too many words; put text with spaces in quotation marks")
    step = int(rest[0]) if rest else None
    return {"kind": kind, "name": name, "value": as_value(value) if kind == "param" else value, "step": step}


def _add(values: _Values, kind: str, name: str, value: Any, step: int | None = None, **_: object) -> None:  # noqa: ANN401 - any JSON value
    match kind:
        case "param":
            values.params[name] = value
        case "metric":
            values.metrics.append((name, float(value), step))
        case "tag":
            values.tags[name] = value
        case _:
            raise ValueError(f"there is no kind {kind!r}")
