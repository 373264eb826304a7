"""``embedl-deploy verify``."""

from pathlib import Path
from typing import TYPE_CHECKING, TypedDict

import click

from embedl_deploy.cli import options
from embedl_device import schema

if TYPE_CHECKING:
    from torch import nn


def _shape() -> schema.Shape:
    from embedl_deploy.export import (  # noqa: PLC0415 - needs torch and ONNX
        BoundaryRow,
        FamilyRow,
        LayerRow,
        MetricRow,
        OutputRow,
        Verification,
    )

    judged = {"outputs": OutputRow, "layers": LayerRow, "metrics": MetricRow}
    rows = {name: schema.array(_nullable(schema.of(kind, inside=schema.FLAG))) for name, kind in judged.items()}
    rows |= {
        name: schema.array(_nullable(schema.of(kind)))
        for name, kind in (("boundaries", BoundaryRow), ("families", FamilyRow))
    }
    sentences = schema.array(schema.TEXT)
    return schema.of(Verification, **rows, passed=schema.FLAG, failures=sentences, verdict=schema.TEXT)


def _nullable(row: schema.Shape) -> schema.Shape:
    """Return a row whose numbers that are not finite are null."""
    properties = {
        name: schema.maybe(shape) if shape is schema.NUMBER else shape for name, shape in row["properties"].items()
    }
    return {**row, "properties": properties}


@click.command("verify", short_help="Compare an exported file with the model it came from.")
@click.argument("file", type=options.FILE)
@click.option("--data", required=True, type=options.PATH, help="Batches to run, as for `export`.")
@click.option("--model", help="The original: package.module:callable, or the path of a .pt2 file.")
@click.option("--calibration", type=options.FILE, help="Statistics that `quantize` wrote: compare the simulation too.")
@options.target
@options.backend
@click.option(
    "--min-sqnr",
    type=float,
    default=10.0,
    show_default=True,
    help="Decibels that every output of a quantized file must reach against the float model.",
)
@click.option(
    "--min-written",
    type=float,
    default=45.0,
    show_default=True,
    help="Decibels between stages of the same arithmetic: the file as written and the simulated model, a float file "
    "and its model.",
)
@click.option(
    "--max-drop-db",
    type=float,
    default=20.0,
    show_default=True,
    help="Decibels that the file as it runs may lie below the simulated model.",
)
@click.option("--labels", type=options.FILE, help="The class of every sample, in order, as .npy: accuracies count too.")
@click.option(
    "--max-drop",
    type=float,
    default=0.02,
    show_default=True,
    help="How far the accuracy on the labels may lie below the simulated model's.",
)
@click.option(
    "--family",
    "families",
    multiple=True,
    metavar="NAME",
    help="Predict what another processor answers: 'all', for information, or the name of a kernel family, which must "
    "then give the same bits; may be given more than once.",
)
@click.option("--html", type=options.FILE, help="Write the report as a page too.")
@options.as_json(_shape)
def command(  # noqa: PLR0913, PLR0917 - a parameter per option
    file: Path, data: Path, model: str | None, calibration: Path | None, target: str | None, backend: str | None,
    min_sqnr: float, min_written: float, max_drop_db: float, labels: Path | None, max_drop: float,
    families: tuple[str, ...], html: Path | None, *, as_json: bool,
) -> int:  # fmt: skip
    """Run FILE in ONNX Runtime and compare it with integer arithmetic, and with the model it came from.

    Every stage must agree with the others within its bounds; the verdict says which were compared. Exits with 3 when
    one does not, and names the first wrong layer, and when a processor that --family or --target names gives other
    bits.
    """
    from embedl_deploy.cli.data import batches, by_name, read_labels  # noqa: PLC0415 - --help needs neither torch nor ONNX
    from embedl_deploy.dialect import input_names  # noqa: PLC0415
    from embedl_deploy.export import verify  # noqa: PLC0415

    names = input_names(file)
    samples = [by_name(batch, names) for batch in batches(data)]
    sizes = [len(next(iter(batch.values()))) for batch in samples]
    stages = _stages(model, calibration, backend, target, data)
    found = verify(
        file, samples, min_sqnr_db=min_sqnr, min_written_db=min_written, max_drop_db=max_drop_db, max_drop=max_drop,
        labels=None if labels is None else read_labels(labels, sizes), target=target, families=families, **stages,
    )  # fmt: skip
    options.print_result(found, as_json=as_json)
    if html is not None:
        found.save_html(html)
    named = set(families) - {"all"} if families else set()
    differ = [row for row in found.families if (row.family in named or "all" not in families) and not row.same]
    return 0 if found.passed and not differ else options.BROKEN


class _Stages(TypedDict, total=False):
    """The models that a file came from, as `verify` takes them."""

    original: "nn.Module"
    transformed: "nn.Module"
    simulated: "nn.Module"


def _stages(
    model: str | None, calibration: Path | None, backend: str | None, target: str | None, data: Path
) -> _Stages:
    if model is None:
        return {}
    from embedl_deploy import transform  # noqa: PLC0415
    from embedl_deploy.cli.model import example, load_model  # noqa: PLC0415

    original = load_model(model)
    if calibration is None:
        return {"original": original}
    from embedl_deploy.quantize import Calibration, quantize  # noqa: PLC0415
    from embedl_deploy.target import choose_backend  # noqa: PLC0415

    chosen = choose_backend(backend, None if backend else target)
    args = example(data, ())
    fused = transform(original, args, chosen).model
    simulated = quantize(fused, args, forward_loop=Calibration.load(calibration), backend=chosen)
    return {"original": original, "transformed": fused, "simulated": simulated}
