"""``embedl-deploy quantize``."""

from pathlib import Path

import click

from embedl_deploy.cli import options
from embedl_device import schema


@click.command("quantize", short_help="Calibrate a model and keep the statistics.")
@options.model_options
@click.option("--output", "-o", required=True, type=options.FILE, help="Where the calibration statistics go.")
@options.as_json(
    schema.fields(
        {"calibration": schema.TEXT, "backend": schema.TEXT, "batches": schema.WHOLE, "tensors": schema.WHOLE}
    )
)
def command(
    model: str, data: Path | None, shapes: tuple[str, ...], target: str | None, backend: str | None, output: Path, *,
    as_json: bool,
) -> int:  # fmt: skip
    """Place Q/DQ in MODEL, run the calibration batches of --data once, and keep their statistics.

    MODEL is package.module:callable, or the path of a .pt2 file. `export --calibration` makes files from the statistics
    with any calibration method, without the data.
    """
    from embedl_deploy import transform  # noqa: PLC0415 - --help needs no torch
    from embedl_deploy.cli.data import naming_files  # noqa: PLC0415
    from embedl_deploy.cli.model import example, load_model, tensors  # noqa: PLC0415
    from embedl_deploy.errors import InputError  # noqa: PLC0415
    from embedl_deploy.quantize import collect, insert_qdq, plan_qdq  # noqa: PLC0415
    from embedl_deploy.target import choose_backend  # noqa: PLC0415

    if data is None:
        raise InputError("Calibration needs batches: give --data.")
    if not output.parent.is_dir():
        raise InputError(f"There is no folder {str(output.parent)!r} to write to.")
    chosen = choose_backend(backend, target)
    args = example(data, shapes)
    fused = transform(load_model(model), args, chosen).model
    placed = insert_qdq(fused, plan_qdq(fused, args, backend=chosen))
    with naming_files(data):
        calibration = collect(placed, tensors(data), progress=not as_json)
    calibration.save(output)
    tensors_seen, batches = len(calibration.statistics), calibration.batches
    facts = {"calibration": str(output), "backend": chosen.name, "batches": batches, "tensors": tensors_seen}
    text = f"{output}: {tensors_seen} tensors watched over {batches} batches for {chosen.name}"
    options.print_result(facts if as_json else text, as_json=as_json)
    return 0
