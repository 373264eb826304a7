"""``embedl-deploy quantize``."""

from pathlib import Path

import click

from embedl_deploy.cli import options


@click.command("quantize")
@options.model_options
@click.option("--output", "-o", required=True, type=options.FILE, help="Where the calibration statistics go.")
@options.as_json
def command(
    model: str, data: Path | None, shapes: tuple[str, ...], backend: str | None, output: Path, *, as_json: bool
) -> int:
    """Place Q/DQ in MODEL, run the calibration batches of --data once, and keep their statistics.

    MODEL is package.module:callable, or the path of a .pt2 file. `export --calibration` makes files from the statistics
    with any calibration method, without the data.
    """
    from embedl_deploy.cli.model import backend_for, example, load_model, tensors, transformed  # noqa: PLC0415
    from embedl_deploy.errors import InputError  # noqa: PLC0415
    from embedl_deploy.quantize import collect, insert_qdq, plan_qdq  # noqa: PLC0415

    if data is None:
        raise InputError("Calibration needs batches: give --data.")
    if not output.parent.is_dir():
        raise InputError(f"There is no folder {str(output.parent)!r} to write to.")
    chosen = backend_for(backend)
    args = example(data, shapes)
    fused = transformed(load_model(model), args, chosen)
    placed = insert_qdq(fused, plan_qdq(fused, args, backend=chosen))
    calibration = collect(placed, tensors(data), progress=not as_json)
    calibration.save(output)
    facts = {
        "calibration": str(output),
        "backend": chosen.name,
        "batches": calibration.batches,
        "tensors": len(calibration.statistics),
    }
    text = f"{output}: {facts['tensors']} tensors watched over {facts['batches']} batches for {chosen.name}"
    options.say(facts if as_json else text, as_json=as_json)
    return 0
