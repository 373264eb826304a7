"""Options that several commands share, and what every command prints."""

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any, TypeVar

import click

from embedl_deploy.dialect import DIALECTS

BROKEN = 3
FILE = click.Path(path_type=Path, dir_okay=False)
PLACE = click.Path(path_type=Path)
_F = TypeVar("_F", bound=Callable[..., Any])

as_json = click.option("--json", "as_json", is_flag=True, help="Print one JSON object instead of a table.")
dialect = click.option(
    "--dialect",
    required=True,
    type=click.Choice([item.name for item in DIALECTS]),
    help="The runtime the file is for.",
)
chosen_dialect = click.option(
    "--dialect",
    type=click.Choice([item.name for item in DIALECTS]),
    help="The runtime the file is for; or give --device.",
)
device = click.option(
    "--device",
    metavar="here|FAMILY",
    help="The processor the file is for, instead of --dialect: this one, or a kernel family such as x86-avx2.",
)
data = click.option(
    "--data",
    type=PLACE,
    help="Batches: a .npy or .npz file, or a folder of them. Entries of a .npz are inputs by name, or arr_0, arr_1, …",
)


def model_options(function: _F) -> _F:
    """Add what names a model in torch and its example inputs."""
    for option in (
        click.option(
            "--backend",
            help="The backend to use; found by itself where one is installed or the dialect tells.",
        ),
        click.option(
            "--shape",
            "shapes",
            multiple=True,
            metavar="1x3x224x224",
            help="Shape of an example input, where there is no data; once per input.",
        ),
        data,
        click.argument("model"),
    ):
        function = option(function)
    return function


def dialect_of(dialect: str | None, device: str | None) -> str:
    """Return the dialect that was named, or the one of the device."""
    if dialect is not None and device is not None:
        raise click.UsageError("Give --dialect or --device, not both: the dialect follows from the device.")
    if dialect is None and device is None:
        raise click.UsageError("Give --dialect or --device.")
    if dialect is not None:
        return dialect
    from embedl_deploy.dialect import dialect_for  # noqa: PLC0415 - --help needs no ONNX

    return dialect_for(device).name


def say(value: Any, *, as_json: bool) -> None:
    """Print a result: its own text, or its data as JSON."""
    if as_json:
        value = json.dumps(value.to_dict() if hasattr(value, "to_dict") else value, default=str)
    click.echo(str(value))
