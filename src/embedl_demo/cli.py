"""``embedl-hub demo``: a network from PyTorch to a measured INT8 model, in about two minutes."""

from __future__ import annotations

import os
import sys
from dataclasses import asdict
from pathlib import Path

import click

from embedl_demo._demo import DemoResult, Effort, run_demo
from embedl_deploy.errors import DeployError
from embedl_device import schema
from embedl_device.json_output import as_json_text, json_option
from embedl_hub.errors import ConfigError, HubError

UNPROVED = 3
"""The exit code when a file does not compute what was simulated."""
NEEDED = "pip install 'edgeproof[demo]'"


@click.command()
@click.option("--quick", is_flag=True, help="Fewer digits, short measurements: the same steps, less precise figures.")
@click.option(
    "--home", type=click.Path(path_type=Path, file_okay=False),
    help="The store's folder; EMBEDL_HUB_HOME, else .embedl in this folder.",
)  # fmt: skip
@click.option("--program", default="embedl-hub", hidden=True, help="How the reader starts this command line.")
@json_option(schema.of(DemoResult))
def command(*, quick: bool, home: Path | None, program: str, as_json: bool) -> None:
    """Train a small network, quantize it, export it per runtime, prove the files, measure them; one table, one report.

    About two minutes on two cores. Every step is a run in the store. Exit code 3: a file failed its proof.
    """
    folder = Path(home or os.environ.get("EMBEDL_HUB_HOME") or ".embedl").absolute()
    try:
        effort = Effort.quick() if quick else Effort()
        found = run_demo(folder, effort, program=program, out=sys.stderr if as_json else None)
    except KeyboardInterrupt:
        click.echo(f"\ndemo: stopped; what it recorded so far is kept in {folder}.", err=True)
        sys.exit(130)
    except ModuleNotFoundError as error:
        raise ConfigError(f"demo: {error}; everything that it needs comes with: {NEEDED}") from error
    except (HubError, DeployError) as error:
        raise ConfigError(f"demo: {error}") from error
    if as_json:
        click.echo(as_json_text(asdict(found), indent=2))
    if not found.passed:
        sys.exit(UNPROVED)
