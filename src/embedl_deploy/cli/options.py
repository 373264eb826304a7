"""Options that several commands share, and what every command prints."""

from collections.abc import Callable
from pathlib import Path
from typing import Any, TypeVar

import click

from embedl_deploy.dialect import dialects
from embedl_device import json_output
from embedl_device.json_output import as_json_text

BROKEN = 3
as_json = json_output.json_option
FILE = click.Path(path_type=Path, dir_okay=False)
PATH = click.Path(path_type=Path)
_F = TypeVar("_F", bound=Callable[..., Any])


class _DialectName(click.ParamType):  # type: ignore[type-arg]
    """A dialect's name; those of installed packages count, and are looked up when one is given."""

    name = "dialect"

    def convert(self, value: str, param: click.Parameter | None, ctx: click.Context | None) -> str:
        return str(click.Choice([dialect.name for dialect in dialects()]).convert(value, param, ctx))


data = click.option(
    "--data",
    type=PATH,
    help="Batches: a .npy or .npz file, or a folder of them. Entries of a .npz are inputs by name, or arr_0, arr_1, …",
)
target = click.option(
    "--target",
    metavar="NAME",
    help="What the model is for, such as onnxruntime-x86, tensorrt, here, or a kernel family: patterns, backend and "
    "dialect follow.",
)
backend = click.option(
    "--backend", help="Whose patterns to use, instead of the target's; the only one if one is installed."
)
runtime_version = click.option(
    "--runtime-version",
    default="",
    metavar="1.18",
    help="The version of the runtime on the target, where it is not the newest: what that one does not run in integers "
    "stays float. A device says its own.",
)
dialect = click.option(
    "--dialect", type=_DialectName(), metavar="NAME", help="How the file is written, where no target says."
)


def model_options(function: _F) -> _F:
    """Add what names a model in torch, its example inputs and what it is for."""
    shape = click.option(
        "--shape",
        "shapes",
        multiple=True,
        metavar="1x3x224x224",
        help="Shape of an example input, where there is no data; once per input.",
    )
    for option in (backend, target, shape, data, click.argument("model")):
        function = option(function)
    return function


def dialect_of(dialect: str | None, target: str | None) -> str:
    """Return the dialect that was named, or the target's."""
    from embedl_deploy.target import choose_dialect  # noqa: PLC0415 - --help needs no ONNX

    chosen = choose_dialect(dialect, target)
    if chosen is None:
        raise click.UsageError("Give --target or --dialect.")
    return chosen.name


def print_result(value: Any, *, as_json: bool) -> None:
    """Print a result: its own text, or its data as JSON."""
    click.echo(as_json_text(value.to_dict() if hasattr(value, "to_dict") else value) if as_json else str(value))
