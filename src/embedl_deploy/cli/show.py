"""``embedl-deploy show``."""

import webbrowser
from pathlib import Path
from typing import TYPE_CHECKING

import click

from embedl_deploy.cli import options
from embedl_deploy.errors import InputError, ModelFileError
from embedl_device import schema

if TYPE_CHECKING:
    from collections.abc import Iterator

    from embedl_graph import Coloring, ModelGraph, Shown


@click.command("show", short_help="Write the graph of a model as a page.")
@options.model_options
@click.option("--against", metavar="OTHER", type=options.PATH, help="A second file, shown beside the first.")
@click.option("--profile", type=options.FILE, help="A profile document: nodes are colored by time and placement.")
@click.option(
    "--verification", type=options.FILE, help="What `verify --json` printed: nodes are colored by their error."
)
@click.option("--html", type=options.FILE, help="The page to write; MODEL's name with .html if not given.")
@click.option("--open", "open_it", is_flag=True, help="Open the page in a browser.")
@options.as_json(
    schema.fields(
        {"page": schema.TEXT, "graphs": schema.array(schema.fields({"title": schema.TEXT, "nodes": schema.WHOLE}))}
    )
)
def command(  # noqa: PLR0913 - a parameter per option
    model: str, data: Path | None, shapes: tuple[str, ...], target: str | None, backend: str | None,
    against: Path | None, profile: Path | None, verification: Path | None, html: Path | None,
    *, open_it: bool, as_json: bool,
) -> int:  # fmt: skip
    """Write the graph of MODEL as one HTML file that needs no server and no network.

    MODEL is an ONNX or TFLite file, or a model in torch as for `plan`: then the network is shown before and after the
    transform for --target or --backend.
    """
    from embedl_graph import graph_html, shown  # noqa: PLC0415 - --help needs none of it

    if _is_file(model):
        first = _read(Path(model))
        one = shown(first, list(_colorings(first, profile, verification)), _layers(first, profile))
        other: Shown | None = None if against is None else shown(_read(against))
    else:
        if against is not None or profile is not None or verification is not None:
            raise InputError("--against, --profile and --verification are for ONNX and TFLite files.")
        one, other = _transformed(model, data, shapes, target, backend)
    page = html or Path(Path(model.replace(":", ".")).name + ".html")
    try:
        page.write_text(graph_html(one, other), encoding="utf-8", errors="replace")
    except OSError as error:
        raise InputError(f"{str(page)!r} cannot be written: {error.strerror}.") from error
    graphs = [each.graph for each in (one, other) if each is not None]
    facts = {"page": str(page), "graphs": [{"title": graph.title, "nodes": len(graph.nodes)} for graph in graphs]}
    counts = ", ".join(f"{graph.title} has {len(graph.nodes)} nodes" for graph in graphs)
    options.print_result(facts if as_json else f"{page}: {counts}", as_json=as_json)
    if open_it:
        webbrowser.open(page.absolute().as_uri())
    return 0


def _is_file(model: str) -> bool:
    from embedl_graph import SUFFIXES  # noqa: PLC0415

    path = Path(model)
    return path.is_dir() or model.endswith(SUFFIXES) or (path.is_file() and not model.endswith(".pt2"))


def _read(path: Path) -> "ModelGraph":
    from embedl_graph import GraphError, read_graph  # noqa: PLC0415

    try:
        return read_graph(path)
    except GraphError as error:
        raise ModelFileError(str(error)) from error


def _colorings(graph: "ModelGraph", profile: Path | None, verification: Path | None) -> "Iterator[Coloring]":
    from embedl_graph import error_coloring, layer_colorings, layers_of  # noqa: PLC0415

    if profile is not None:
        found = list(layer_colorings(graph, layers_of(_document(profile))))
        if not found:
            raise InputError(f"{str(profile)!r} has no layer that names a node of {graph.title!r}.")
        yield from found
    if verification is not None:
        steps = _document(verification).get("boundaries")
        errors = {
            str(row["tensor"]): float(row["simulated_lsb"])
            for row in (steps if isinstance(steps, list) else [])
            if isinstance(row, dict) and isinstance(row.get("simulated_lsb"), int | float) and "tensor" in row
        }
        note = "Largest difference between the file as it runs and the simulated model, in quantization steps."
        colored = list(error_coloring(graph, errors, "steps", note))
        if not colored:
            raise InputError(
                f"{str(verification)!r} has no error of a tensor of {graph.title!r}; `verify --json` tells errors when "
                "it is given --model and --calibration."
            )
        yield from colored


def _layers(graph: "ModelGraph", profile: Path | None) -> dict[int, int]:
    from embedl_graph import layer_numbers, layers_of  # noqa: PLC0415

    return {} if profile is None else layer_numbers(graph, layers_of(_document(profile)))


def _document(path: Path) -> dict[str, object]:
    from embedl_device.readers import UnreadableError, read_json  # noqa: PLC0415

    try:
        found = read_json(path)
    except (OSError, UnreadableError) as error:
        raise InputError(f"{str(path)!r} cannot be read as JSON: {error}.") from error
    if not isinstance(found, dict):
        raise InputError(f"{str(path)!r} is no document: it holds no object.")
    return found


def _transformed(
    model: str, data: Path | None, shapes: tuple[str, ...], target: str | None, backend: str | None
) -> "tuple[Shown, Shown]":
    from embedl_deploy import transform  # noqa: PLC0415
    from embedl_deploy.cli.model import example, load_model  # noqa: PLC0415
    from embedl_deploy.target import choose_backend  # noqa: PLC0415
    from embedl_graph import shown  # noqa: PLC0415

    report = transform(load_model(model), example(data, shapes), choose_backend(backend, target)).report
    before, after = report.pictures()
    return shown(before), shown(after)
