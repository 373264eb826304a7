"""``embedl-deploy verify``."""

from pathlib import Path
from typing import Any

import click

from embedl_deploy.cli import options


@click.command("verify")
@click.argument("file", type=options.FILE)
@click.option("--data", required=True, type=options.PLACE, help="Batches to run, as for `export`.")
@click.option("--model", help="The original: package.module:callable, or the path of a .pt2 file.")
@click.option("--calibration", type=options.FILE, help="Statistics that `quantize` wrote: compare the simulation too.")
@click.option("--backend", help="The backend the file was made with; for --calibration, where several are installed.")
@click.option(
    "--min-sqnr",
    type=float,
    default=6.0,
    show_default=True,
    help="Decibels that every output must reach against the model; another model's come out near 0 or below.",
)
@click.option(
    "--targets",
    multiple=True,
    metavar="FAMILY",
    help="Predict what another processor answers: 'all', for information, or the name of a kernel family, which must "
    "then give the same bits; may be given more than once.",
)
@click.option("--html", type=options.FILE, help="Write the report as a page too.")
@options.as_json
def command(
    file: Path, data: Path, model: str | None, calibration: Path | None, backend: str | None, min_sqnr: float,
    targets: tuple[str, ...], html: Path | None, *, as_json: bool,
) -> int:  # fmt: skip
    """Run FILE in ONNX Runtime and compare it with integer arithmetic, and with the model it came from.

    Exits with 3 when a quantised boundary or an output lies outside its bound, and names the first, and when a
    processor that --targets names gives other bits.
    """
    from embedl_deploy.cli.data import batches, by_name  # noqa: PLC0415 - --help needs neither torch nor ONNX
    from embedl_deploy.dialect import input_names  # noqa: PLC0415
    from embedl_deploy.export import verify  # noqa: PLC0415

    names = input_names(file)
    samples = (by_name(batch, names) for batch in batches(data))
    found = verify(file, samples, min_sqnr_db=min_sqnr, targets=targets, **_stages(model, calibration, backend, data))
    options.say(found, as_json=as_json)
    if html is not None:
        found.save_html(html)
    differ = [row for row in found.families if row.family in targets and not row.same]
    return 0 if found.passed and not differ else options.BROKEN


def _stages(model: str | None, calibration: Path | None, backend: str | None, data: Path) -> dict[str, Any]:
    if model is None:
        return {}
    from embedl_deploy.cli.model import backend_for, example, load_model, transformed  # noqa: PLC0415

    original = load_model(model)
    if calibration is None:
        return {"original": original}
    from embedl_deploy.quantize import Calibration, quantize  # noqa: PLC0415

    chosen = backend_for(backend)
    args = example(data, ())
    fused = transformed(original, args, chosen)
    simulated = quantize(fused, args, forward_loop=Calibration.load(calibration), backend=chosen)
    return {"original": original, "transformed": fused, "simulated": simulated}
