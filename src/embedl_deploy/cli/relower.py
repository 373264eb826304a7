"""``embedl-deploy relower``."""

from dataclasses import asdict
from pathlib import Path

import click

from embedl_deploy.cli import options
from embedl_device import schema


def _shape() -> schema.Shape:
    from embedl_deploy.dialect import Relowered  # noqa: PLC0415 - needs ONNX

    return schema.of(Relowered, path=schema.TEXT)


@click.command("relower", short_help="Write a Q/DQ file of any tool in another runtime's dialect.")
@click.argument("source", type=options.FILE)
@click.argument("output", type=options.FILE)
@options.target
@options.dialect
@options.runtime_version
@click.option("--refit", is_flag=True, help="Choose scales anew from observed ranges instead of keeping them.")
@click.option(
    "--float-type",
    type=click.Choice(["float32", "float16"]),
    default="float32",
    show_default=True,
    help="Type of what is not quantized; float16 is for TensorRT 11.",
)
@click.option("--fallback", is_flag=True, help="Leave in float what the dialect cannot express, instead of refusing.")
@options.data
@options.as_json(_shape)
def command(  # noqa: PLR0913 - a parameter per option
    source: Path, output: Path, target: str | None, dialect: str | None, runtime_version: str, *, refit: bool,
    float_type: str,
    fallback: bool, data: Path | None, as_json: bool,
) -> int:  # fmt: skip
    """Write the Q/DQ file SOURCE, made by any tool, as OUTPUT in another runtime's dialect.

    Scales that the dialect can hold stay, bit for bit. With --data, ranges that the file does not tell are observed.
    """
    from embedl_deploy.cli.data import batches, by_name  # noqa: PLC0415 - --help needs no ONNX
    from embedl_deploy.dialect import input_names, relower  # noqa: PLC0415

    chosen = options.dialect_of(dialect, target)
    samples = None
    if data is not None:
        names = input_names(source)
        samples = (by_name(batch, names) for batch in batches(data))
    done = relower(
        source, output, dialect=chosen, scales="refit" if refit else "keep", float_type=float_type, fallback=fallback,
        samples=samples, runtime_version=runtime_version,
    )  # fmt: skip
    options.print_result({**asdict(done), "path": str(done.path)} if as_json else done, as_json=as_json)
    return 0
