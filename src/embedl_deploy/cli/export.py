"""``embedl-deploy export``."""

from pathlib import Path
from typing import Any

import click

from embedl_deploy.cli import options
from embedl_device import schema

METHODS = ("minmax", "moving_average_minmax", "histogram", "percentile", "mse", "entropy")


@click.command("export", short_help="Write a model as an ONNX file for a runtime.")
@options.model_options
@click.option("--output", "-o", required=True, type=options.FILE, help="The file to write.")
@options.dialect
@options.runtime_version
@click.option("--calibration", type=options.FILE, help="Statistics that `quantize` wrote; else --data is run.")
@click.option(
    "--method", type=click.Choice(METHODS), help="How ranges are found; chosen on held-out batches unless told."
)
@click.option("--skip", multiple=True, help="Qualified name of a layer to leave in float; may be given more than once.")
@click.option("--float", "as_float", is_flag=True, help="Fuse only, quantize nothing.")
@click.option("--dynamic-batch", is_flag=True, help="Leave the first dimension of every input open.")
@options.as_json(
    schema.fields(
        {"file": schema.TEXT, "backend": schema.TEXT, "dialect": schema.TEXT, "quantized": schema.FLAG},
        {"notes": schema.array(schema.TEXT), "ranges": schema.TEXT, "warnings": schema.array(schema.TEXT)},
    )
)
def command(  # noqa: PLR0913, PLR0917 - a parameter per option
    model: str, data: Path | None, shapes: tuple[str, ...], target: str | None, backend: str | None, output: Path,
    dialect: str | None, runtime_version: str, calibration: Path | None, method: str | None, skip: tuple[str, ...],
    *, as_float: bool, dynamic_batch: bool, as_json: bool,
) -> int:  # fmt: skip
    """Fuse and quantize MODEL and write it as an ONNX file for a runtime.

    MODEL is package.module:callable, or the path of a .pt2 file.
    """
    from embedl_deploy import transform  # noqa: PLC0415 - --help needs no torch
    from embedl_deploy.cli.model import example, load_model, tensors  # noqa: PLC0415
    from embedl_deploy.dialect import get_dialect, notes_of  # noqa: PLC0415
    from embedl_deploy.errors import InputError  # noqa: PLC0415
    from embedl_deploy.export import export_onnx  # noqa: PLC0415
    from embedl_deploy.quantize import quantization_of  # noqa: PLC0415
    from embedl_deploy.target import choose_backend, get_target  # noqa: PLC0415

    if not output.parent.is_dir():
        raise InputError(f"There is no folder {str(output.parent)!r} to write to.")
    dialect = options.dialect_of(dialect, target)
    named = backend or (get_dialect(dialect).backend if target is None else get_target(target).backend)
    chosen = choose_backend(named or None, None)
    args = example(data, shapes)
    made = transform(load_model(model), args, chosen).model
    if not as_float:
        made = _quantized(made, args, chosen, data, calibration, method, skip)
    samples = list(tensors(data)) if data is not None and calibration is not None else None
    runtime_version = runtime_version or ("" if target is None else get_target(target).runtime_version)
    export_onnx(
        made, args, output, dialect=None if as_float else dialect, dynamic_batch=dynamic_batch, samples=samples,
        runtime_version="" if as_float else runtime_version,
    )  # fmt: skip
    facts = {"file": str(output), "backend": chosen.name, "dialect": dialect, "quantized": not as_float}
    lines = [f"{output}: {dialect}, backend {chosen.name}"]
    if runtime_version and not as_float:
        facts["notes"] = list(notes_of(output))
        lines += [f"{len(notes_of(output))} notes:", *notes_of(output)] if notes_of(output) else []
    if not as_float:
        record = quantization_of(made)
        facts |= {"ranges": record.config.activation.range_method.value, "warnings": list(record.warnings)}
        lines += [f"Warning: {warning}" for warning in record.warnings]
        lines += [str(part) for part in (record.ranges, *record.outputs) if part is not None]
    options.print_result(facts if as_json else "\n".join(lines), as_json=as_json)
    return 0


def _quantized(
    model: Any,
    args: Any,
    backend: Any,
    data: Path | None,
    calibration: Path | None,
    method: str | None,
    skip: tuple[str, ...],
) -> Any:
    from embedl_deploy.cli.data import naming_files  # noqa: PLC0415
    from embedl_deploy.cli.model import tensors  # noqa: PLC0415
    from embedl_deploy.errors import InputError  # noqa: PLC0415
    from embedl_deploy.quantize import (  # noqa: PLC0415
        Calibration,
        CalibrationMethod,
        ModulesToSkip,
        QuantConfig,
        TensorQuantConfig,
        quantize,
    )

    if calibration is None and data is None:
        raise InputError("Quantizing needs --calibration or --data; give --float to export without.")
    config = QuantConfig(
        activation=TensorQuantConfig(calibration_method=None if method is None else CalibrationMethod[method.upper()]),
        skip=ModulesToSkip.layers(*skip),
    )
    batches = Calibration.load(calibration) if calibration is not None else list(tensors(data or Path()))
    with naming_files(None if calibration is not None else data):
        return quantize(model, args, config, batches, backend=backend)
