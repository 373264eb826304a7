"""``embedl-deploy verify``."""

from pathlib import Path
from typing import TYPE_CHECKING, TypedDict

import click

from embedl_deploy.cli import options

if TYPE_CHECKING:
    from torch import nn


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
    default=6.0,
    show_default=True,
    help="Decibels that every output must reach against the model; another model's come out near 0 or below.",
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
@options.as_json
def command(  # noqa: PLR0913 - a parameter per option
    file: Path, data: Path, model: str | None, calibration: Path | None, target: str | None, backend: str | None,
    min_sqnr: float, families: tuple[str, ...], html: Path | None, *, as_json: bool,
) -> int:  # fmt: skip
    """Run FILE in ONNX Runtime and compare it with integer arithmetic, and with the model it came from.

    Exits with 3 when a quantized boundary or an output lies outside its bound, and names the first, and when a
    processor that --family or --target names gives other bits.
    """
    from embedl_deploy.cli.data import batches, by_name  # noqa: PLC0415 - --help needs neither torch nor ONNX
    from embedl_deploy.dialect import input_names  # noqa: PLC0415
    from embedl_deploy.export import verify  # noqa: PLC0415

    names = input_names(file)
    samples = (by_name(batch, names) for batch in batches(data))
    stages = _stages(model, calibration, backend, target, data)
    found = verify(file, samples, min_sqnr_db=min_sqnr, target=target, families=families, **stages)
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
