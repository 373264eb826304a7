"""``embedl-hub memory``: say what a model takes in memory, layer by layer, and whether a device has room for it."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

import click

from embedl_device.schema import ANY, FLAG, TEXT, WHOLE, Shape, array, fields, maybe
from embedl_hub.cli._output import PATH, as_value, emit, home_option, json_option, pairs, table, working
from embedl_hub.cli._steps import chosen_device, open_context
from embedl_hub.core.document import fit_of
from embedl_hub.core.memory import memory_of, predict_memory, read_size
from embedl_hub.core.profile import ProfileError
from embedl_hub.errors import ConfigError
from embedl_hub.refusal import refusals_as

if TYPE_CHECKING:
    from embedl_hub.core.document import Fit, MemoryProfile
    from embedl_hub.core.toolchain import Toolchain

_WILL_NOT_FIT = 1
_SHOWN = 5


_SHAPE: Shape = {
    **fields(
        {
            "model": TEXT, "toolchain": TEXT, "fits": maybe(FLAG), "verdict": TEXT, "method": TEXT,
            "arena_bytes": maybe(WHOLE), "weights_bytes": maybe(WHOLE), "peak_layer": maybe(TEXT),
            "parts": array(fields({"what": TEXT, "bytes": WHOLE})),
            "rows": array(
                fields({"name": TEXT, "op_type": TEXT, "in_use_bytes": WHOLE, "scratch_bytes": WHOLE})
            ),
            "missing_because": maybe(TEXT), "runtime_bytes": WHOLE,
        }
    ),
    # What a runtime tells besides.
    "additionalProperties": ANY,
}  # fmt: skip


@click.command()
@click.argument("model")
@click.option("--device", help="The device whose memory is meant; the one in use if not given.")
@click.option("--here", is_flag=True, help="This machine, whatever devices there are.")
@click.option("--memory", "memory", metavar="256MB", help="Hold it against so much memory instead of a device's.")
@click.option("--runtime", "toolchain_name", help="The toolchain; that of the file if not given.")
@click.option(
    "--set", "changes", multiple=True, metavar="NAME=VALUE", help="A setting of the runtime, as xnnpack=false."
)
@click.option("--picture", type=PATH, help="Also draw memory over the layers into this .svg file.")
@home_option
@json_option(_SHAPE)
def command(
    model: str, device: str | None, here: bool, memory: str | None, toolchain_name: str | None,
    changes: tuple[str, ...], picture: Path | None, home: Path | None, as_json: bool,
) -> None:  # fmt: skip
    """Say what a model takes in memory, layer by layer, and whether a device has room for it; nothing is sent or run.

    MODEL is a file of a runtime's own format (.onnx, .tflite, .pte), or the id of a run that made or used one. The exit
    code is 1 when it will not fit.
    """
    chosen = None if memory else chosen_device(home, device, here=here)
    with refusals_as(ProfileError), open_context(home, None, here=here, device=chosen) as hub:
        values = {name: as_value(text) for name, text in pairs(changes).items()}
        with working(f"the memory of {model}"):
            toolchain, predicted = predict_memory(hub, model, chosen, toolchain_name=toolchain_name, changes=values)
        fit = fit_of(predicted, read_size(memory) if memory else memory_of(hub, chosen, here=here))
    if picture is not None:
        _draw(predicted, picture)
    if as_json:
        emit(
            {"model": model, "toolchain": toolchain.name, "fits": fit.fits, "verdict": fit.text, **predicted.as_json()}
        )
    else:
        _show(toolchain, predicted, fit)
    if fit.fits is False:
        click.get_current_context().exit(_WILL_NOT_FIT)


def _draw(predicted: MemoryProfile, path: Path) -> None:
    from embedl_hub.page import memory_picture  # noqa: PLC0415 - only for a picture

    drawn = memory_picture(predicted)
    if not drawn:
        raise ConfigError(f"There is nothing to draw: {predicted.problem}.")
    if path.suffix.lower() != ".svg":
        raise ConfigError(f"--picture is {str(path)!r}; the picture is an SVG file, so its name must end in .svg.")
    try:
        path.write_text(drawn + "\n", encoding="utf-8")
    except OSError as error:
        raise ConfigError(f"The picture cannot be written to {path}: {error}.") from error
    click.echo(f"The picture is in {path}.", err=True)


def _show(toolchain: Toolchain, predicted: MemoryProfile, fit: Fit) -> None:
    click.echo(fit.text[0].upper() + fit.text[1:] + ".")
    rows = [("runtime", toolchain.title), ("method", predicted.method)]
    if predicted.weights_bytes is not None:
        rows.append(("weights", _mb(predicted.weights_bytes)))
    if predicted.arena_bytes is not None:
        rows.append(("arena", _mb(predicted.arena_bytes)))
    if predicted.problem:
        rows.append(("not told", predicted.problem))
    table(None, rows, folds=True)
    fullest = sorted(predicted.rows, key=lambda row: row.in_use_bytes + row.scratch_bytes, reverse=True)[:_SHOWN]
    if fullest:
        click.echo()
        lines = [(row.name, row.op_type, _mb(row.in_use_bytes), _mb(row.scratch_bytes)) for row in fullest]
        table(("layer", "operation", "in use", "scratch"), lines)


def _mb(size_bytes: int) -> str:
    return f"{size_bytes / 1e6:.3f} MB"
