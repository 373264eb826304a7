"""``embedl-hub predict``: say how much faster INT8 will be than float on a device, before anything is compiled."""

from __future__ import annotations

import contextlib
from pathlib import Path

import click

from embedl_hub.cli._output import emit, home_option, json_option, number, table, working
from embedl_hub.cli._settings import read_settings
from embedl_hub.cli._steps import find_model, open_context
from embedl_hub.core.compile import CompileError, ONNXRuntimeCompiler
from embedl_hub.errors import ConfigError
from embedl_hub.toolchain.refusal import needed_packages, refusals_as
from embedl_hub.tracking import find_home


@click.command()
@click.argument("model")
@click.option("--device", help="The device; the one in use, else this machine, if not given.")
@click.option("--here", is_flag=True, help="On this machine, whatever devices there are.")
@click.option("--input-shape", metavar="N,N,...", help="Fixes the shape of the model's input.")
@click.option("--per-channel/--no-per-channel", default=False, help="One scale per output channel of a weight.")
@click.option("--quantize-io/--no-quantize-io", default=False, help="Inputs and outputs are integers too.")
@home_option
@json_option
def command(
    model: str, device: str | None, here: bool, input_shape: str | None, per_channel: bool, quantize_io: bool,
    home: Path | None, as_json: bool,
) -> None:  # fmt: skip
    """Say how much faster INT8 will be than float on a device, before anything is compiled.

    MODEL is a float ONNX file, or the id of a run whose source is meant. The first time, what kernels cost is measured
    on the device; that takes about ten seconds, and is kept in the home.
    """
    if here and device:
        raise click.UsageError("--device and --here contradict each other.")
    with needed_packages("ONNX Runtime models", "onnxruntime"):
        from embedl_hub.onnxruntime.place import place_of  # noqa: PLC0415 - vendor packages on use
        from embedl_hub.onnxruntime.predicting import predict  # noqa: PLC0415
        from embedl_hub.toolchain.model import fix_input_shape, read_model, write_model  # noqa: PLC0415
    chosen = None if here else device or read_settings(find_home(home)).get("device")
    with open_context(home, None, here=here) as ctx, refusals_as(CompileError):
        source = Path(find_model(ctx, ONNXRuntimeCompiler, model))
        claimed = ctx.claim(chosen) if chosen else contextlib.nullcontext()
        with claimed, place_of(ctx, chosen, ONNXRuntimeCompiler) as place, working(f"{model} on {place.title}"):
            if input_shape is not None:
                float_model = read_model(source)
                fix_input_shape(float_model, _sizes(input_shape))
                source = write_model(float_model, place.scratch / "fixed.onnx")
            told = predict(ctx, place, source, per_channel=per_channel, quantize_io=quantize_io)
    if as_json:
        emit({"model": model, **told.to_dict()})
        return
    click.echo(f"{told}")
    gain = told.gain
    rows = [("float", number(gain.float_ms, "ms")), ("INT8", number(gain.int8_ms, "ms"))]
    rows += [("kernels", f"{told.family or 'unknown'}, ONNX Runtime {told.runtime_version}")]
    rows += [("eats the gain", reason) for reason in gain.reasons]
    table(None, rows, folds=True)


def _sizes(text: str) -> tuple[int, ...]:
    try:
        return tuple(int(size) for size in text.split(","))
    except ValueError:
        raise ConfigError(f"--input-shape is {text!r}; it must be sizes with commas between, as 1,3,224,224.") from None
