"""``embedl-deploy check``."""

from pathlib import Path

import click

from embedl_deploy.cli import options
from embedl_device import schema


def _shape() -> schema.Shape:
    from embedl_deploy.dialect import Contract  # noqa: PLC0415 - needs ONNX

    return schema.of(Contract, coverage=schema.array(schema.WHOLE))


@click.command("check", short_help="Predict and confirm the kernel of every operator of a Q/DQ file.")
@click.argument("file", type=options.FILE)
@options.target
@options.dialect
@options.runtime_version
@click.option(
    "--fail-on",
    multiple=True,
    type=click.Choice(["unfused", "float", "rounded", "disagreement"]),
    help="Exit with 3 when an operator has Q/DQ and runs in float (unfused), when a convolution, linear or matrix "
    "product runs in float (float; other operators do not count), when the runtime rounds weights that are float in "
    "the file (rounded), or when it chose another kernel than predicted (disagreement).",
)
@options.as_json(_shape)
def command(
    file: Path, target: str | None, dialect: str | None, runtime_version: str, fail_on: tuple[str, ...], *,
    as_json: bool,
) -> int:  # fmt: skip
    """Predict for every operator of a Q/DQ FILE the kernel it will land in, and say why not otherwise.

    For ONNX Runtime the answer is confirmed by the graph it writes after optimizing; for TensorRT the file is built
    with TensorRT-RTX where that is installed.
    """
    from embedl_deploy.dialect import check  # noqa: PLC0415 - --help needs no ONNX

    contract = check(file, options.dialect_of(dialect, target), runtime_version=runtime_version)
    options.print_result(contract, as_json=as_json)
    broken = [(what, row) for what in fail_on for row in contract.failures(what)]
    for what, row in broken:
        click.echo(f"embedl-deploy: {what}: {row.operator} {row.node}: {row.reason}", err=True)
    return options.BROKEN if broken or contract.refused else 0
