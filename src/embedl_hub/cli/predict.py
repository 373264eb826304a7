"""``embedl-hub predict``: say how much faster INT8 will be than float on a device, before anything is compiled."""

from __future__ import annotations

import contextlib
import pkgutil
from pathlib import Path

import click

from embedl_device.schema import FLAG, NUMBER, TEXT, array, fields, maybe
from embedl_hub.cli._output import emit, home_option, json_option, number, read_shape, table, working
from embedl_hub.cli._steps import chosen_device, open_context
from embedl_hub.core.compile import CompileError
from embedl_hub.core.lookup import find_model
from embedl_hub.core.toolchain import toolchains
from embedl_hub.errors import ConfigError
from embedl_hub.refusal import needed_packages, refusals_as

_SHAPE = fields(
    {
        "model": TEXT, "speedup": NUMBER, "low": NUMBER, "high": NUMBER, "float_ms": NUMBER, "int8_ms": NUMBER,
        "known": NUMBER, "reasons": array(TEXT), "place": TEXT, "family": maybe(TEXT), "runtime_version": TEXT,
        "measured_now": FLAG,
    }
)  # fmt: skip


@click.command()
@click.argument("model")
@click.option("--device", help="The device; the one in use, else this machine, if not given.")
@click.option("--here", is_flag=True, help="On this machine, whatever devices there are.")
@click.option("--input-shape", metavar="N,N,...", help="Fixes the shape of the model's input.")
@click.option("--per-channel/--no-per-channel", default=False, help="One scale per output channel of a weight.")
@click.option("--quantize-io/--no-quantize-io", default=False, help="Inputs and outputs are integers too.")
@home_option
@json_option(_SHAPE)
def command(
    model: str, device: str | None, here: bool, input_shape: str | None, per_channel: bool, quantize_io: bool,
    home: Path | None, as_json: bool,
) -> None:  # fmt: skip
    """Say how much faster INT8 will be than float on a device, before anything is compiled.

    MODEL is a float ONNX file, or the id of a run whose source is meant. The first time, what kernels cost is measured
    on the device; that takes about ten seconds, and is kept in the home.
    """
    chosen = chosen_device(home, device, here=here)
    toolchain = next((each for each in toolchains() if each.predictor is not None), None)
    if toolchain is None or toolchain.predictor is None:
        raise ConfigError("No toolchain that is installed predicts anything.")
    with needed_packages(f"{toolchain.title} models", toolchain.name):
        predict = pkgutil.resolve_name(toolchain.predictor)
    with open_context(home, None, here=here, device=chosen) as ctx, refusals_as(CompileError):
        source = Path(find_model(ctx, toolchain.compiler, model))
        claim = ctx.claim(chosen) if chosen else contextlib.nullcontext()
        with claim, working(f"{model} on {chosen or 'this machine'}"):
            prediction = predict(
                ctx,
                chosen,
                source,
                input_shape=read_shape(input_shape),
                per_channel=per_channel,
                quantize_io=quantize_io,
            )
    if as_json:
        emit({"model": model, **prediction.to_dict()})
        return
    click.echo(f"{prediction}")
    gain = prediction.gain
    rows = [("float", number(gain.float_ms, "ms")), ("INT8", number(gain.int8_ms, "ms"))]
    rows += [("kernels", f"{prediction.family or 'unknown'}, {toolchain.title} {prediction.runtime_version}")]
    rows += [("what makes it smaller", reason) for reason in gain.reasons]
    table(None, rows, folds=True)
