"""``embedl-deploy calibration``."""

from pathlib import Path
from typing import TYPE_CHECKING

import click

from embedl_deploy.cli import options
from embedl_device import schema

if TYPE_CHECKING:
    from collections.abc import Iterator

    import torch


def _shape() -> schema.Shape:
    from embedl_deploy.quantize import DataVerdict, Drop  # noqa: PLC0415 - needs torch

    number, text, whole = schema.NUMBER, schema.TEXT, schema.WHOLE
    layer = {"name": text, "channels": whole, "distance": number, "shift": number, "spread": number}
    evidence = {
        "verdict": schema.of(DataVerdict), "reason": text, "source": text, "samples": whole,
        "distance": schema.maybe(number), "fault": text, "advice": text, "repaired_distance": schema.maybe(number),
        "tried": schema.by_name(number), "layers": schema.array(schema.fields(layer)),
    }  # fmt: skip
    change = schema.fields({"name": text, "growth": number, "spread": number})
    scales = {
        "total": whole, "unsettled": whole, "change": number, "groups": whole, "reason": text,
        "changes": schema.array(change),
    }  # fmt: skip
    return schema.fields(
        {
            "format": whole, "lines": schema.array(text), "evidence": schema.fields(evidence),
            "scales": schema.maybe(schema.fields(scales)), "drop": schema.maybe(schema.of(Drop)), "reason": text,
        }
    )  # fmt: skip


@click.group("calibration", short_help="Look at calibration data before trusting it.")
def command() -> None:
    """Look at calibration data before trusting it."""


@command.command("check", short_help="Say whether data fits a network, whether it is enough, and what it will cost.")
@options.model_options
@click.option(
    "--evaluation",
    type=options.PATH,
    help="Batches to measure the drop on, as for --data; without them a part of --data is held out.",
)
@click.option("--labels", type=options.FILE, help="The class of every sample of --evaluation, in order, as .npy.")
@click.option("--only-data", is_flag=True, help="Look at the data alone, and quantize nothing.")
@click.option("--html", type=options.FILE, help="Write the verdict as a page too.")
@options.as_json(_shape)
def check(  # noqa: PLR0913 - a parameter per option
    model: str, data: Path | None, shapes: tuple[str, ...], target: str | None, backend: str | None,
    evaluation: Path | None, labels: Path | None, html: Path | None, *, only_data: bool, as_json: bool,
) -> int:  # fmt: skip
    """Compare --data with what MODEL keeps of its training data, and say what more of it would change.

    Without --target it is quantized for this machine. MODEL is package.module:callable, or the path of a .pt2 file.
    Exits with 3 when the data looks faulty: channels in the other order, another range, normalization that is missing
    or done twice, another layout, noise.
    """
    from embedl_deploy.cli.data import naming_files  # noqa: PLC0415 - --help needs no numpy
    from embedl_deploy.cli.model import load_model, tensors  # noqa: PLC0415 - nor torch
    from embedl_deploy.errors import InputError  # noqa: PLC0415
    from embedl_deploy.quantize import check_calibration  # noqa: PLC0415

    if data is None:
        raise InputError("There is nothing to check: give --data.")
    if shapes:
        raise InputError("The shapes are those of --data; leave --shape out.")
    if labels is not None and evaluation is None:
        raise InputError("The labels are of the samples to evaluate on: give --evaluation too.")
    if only_data and (evaluation is not None or target is not None or backend is not None):
        raise InputError("--only-data quantizes nothing: leave --evaluation, --target and --backend out.")
    if not only_data and target is None and backend is None:
        target = "here"  # what is asked first is about the data, and needs none
    batches = list(tensors(data))
    held = None if evaluation is None else list(_labeled(evaluation, labels))
    with naming_files(data):
        verdict = check_calibration(
            load_model(model), batches[0], batches, evaluation=held, backend=backend, target=target,
            quantized=not only_data,
        )  # fmt: skip
    options.print_result(verdict, as_json=as_json)
    if html is not None:
        try:
            verdict.save_html(html)
        except OSError as error:
            raise InputError(f"The page cannot be written to {html}: {error.strerror}.") from error
    return 0 if verdict.passed else options.BROKEN


def _labeled(path: Path, labels: Path | None) -> "Iterator[tuple[torch.Tensor, ...]]":
    """Yield batches to evaluate on, with their classes behind the inputs where they are known."""
    import torch  # noqa: PLC0415

    from embedl_deploy.cli.data import read_labels  # noqa: PLC0415
    from embedl_deploy.cli.model import tensors  # noqa: PLC0415

    batches = list(tensors(path))
    if labels is None:
        yield from batches
        return
    for batch, classes in zip(batches, read_labels(labels, [len(batch[0]) for batch in batches]), strict=True):
        yield (*batch, torch.from_numpy(classes))
