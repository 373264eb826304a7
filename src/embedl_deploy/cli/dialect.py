"""``embedl-deploy dialect``: what versions of runtimes make of Q/DQ graphs."""

from dataclasses import replace
from pathlib import Path

import click

from embedl_deploy.cli import options
from embedl_device import schema

_RULES = schema.fields(
    {
        "format": schema.WHOLE, "runtime": schema.TEXT, "version": schema.TEXT, "processor": schema.TEXT,
        "newest_opset": schema.WHOLE, "graphs": schema.WHOLE, "fused": schema.by_name(schema.array(schema.TEXT)),
        "facts": schema.array(schema.TEXT), "values": schema.array(schema.TEXT),
        "rules": schema.described(
            schema.array(schema.array(schema.ANY)),
            "operator, outcome, smallest graph, number of graphs, and conditions: places in facts and values, and 1 "
            "where the fact has the value, 0 where it has another",
        ),
    }
)  # fmt: skip


def _diff_shape() -> schema.Shape:
    from embedl_deploy.rules import DialectDiff  # noqa: PLC0415 - needs ONNX

    return schema.of(DialectDiff)


def _learned_shape() -> schema.Shape:
    from embedl_deploy.rules import Lesson  # noqa: PLC0415 - needs ONNX

    of_one = schema.fields(
        {
            "runtime": schema.TEXT, "version": schema.TEXT, "path": schema.maybe(schema.TEXT), "rules": schema.WHOLE,
            "graphs": schema.WHOLE, "operators": schema.array(schema.of(Lesson)),
            "failed": schema.described(schema.TEXT, "why there are no rules; empty where there are"),
        }
    )  # fmt: skip
    return schema.fields({"versions": schema.array(of_one)})


@click.group("dialect", short_help="What versions of a runtime fuse: learn it, list it, compare two.")
def command() -> None:
    """Learn from a runtime which operators it runs in integers, list the rules, and compare two versions."""


@command.command("diff", short_help="Tell what two versions of a runtime fuse differently.")
@click.argument("runtime")
@click.argument("old")
@click.argument("new")
@click.argument("operator", required=False)
@click.option("--folder", type=options.PATH, help="Journals that 'learn' wrote; what ships with Edgeproof otherwise.")
@click.option("--html", type=options.FILE, help="Write a page with the graph of each change here.")
@click.option("--graphs", type=options.PATH, help="Write the smallest graph of each change as an ONNX file here.")
@options.as_json(_diff_shape)
def diff_command(
    runtime: str, old: str, new: str, operator: str | None, *, folder: Path | None, html: Path | None,
    graphs: Path | None, as_json: bool,
) -> None:  # fmt: skip
    """Tell what the versions OLD and NEW of a RUNTIME make of the same graphs that is not the same.

    Of all operators, or of one OPERATOR; what runs in integers no more comes first. Versions may be named by their
    beginning: embedl-deploy dialect diff onnxruntime 1.18 1.31 Conv
    """
    import onnx  # noqa: PLC0415 - --help needs no ONNX

    from embedl_deploy.errors import DialectError  # noqa: PLC0415
    from embedl_deploy.rules import Case, diff, example_graph  # noqa: PLC0415

    found = diff(runtime, old, new, folder=folder)
    if operator is not None:
        found = found.of(operator)
    try:
        if html is not None:
            html.write_text(found.to_html(), encoding="utf-8")
        if graphs is not None:
            graphs.mkdir(parents=True, exist_ok=True)
            for number, change in enumerate(found.changes, 1):
                onnx.save(example_graph(Case.parse(change.example)), graphs / f"{number}-{change.operator}.onnx")
    except OSError as exc:
        raise DialectError(f"It cannot be written: {exc}.") from exc
    options.print_result(found, as_json=as_json)


@command.command("rules", short_help="List what a version of a runtime does with an operator.")
@click.argument("runtime")
@click.argument("version")
@click.argument("operator", required=False)
@options.as_json(_RULES)
def rules_command(runtime: str, version: str, operator: str | None, *, as_json: bool) -> None:
    """List the rules of a RUNTIME's VERSION, all or those of an OPERATOR, each with the smallest graph of it."""
    from embedl_deploy._table import table  # noqa: PLC0415
    from embedl_deploy.dialect import get_table  # noqa: PLC0415
    from embedl_deploy.dialect._tables import words  # noqa: PLC0415
    from embedl_deploy.dialect._versions import find_version  # noqa: PLC0415
    from embedl_deploy.errors import DialectError, quoted_list  # noqa: PLC0415

    found = get_table(runtime, version)
    known = find_version(runtime, version)
    rules = [rule for rule in found.rules if operator in (None, rule.operator)]
    if not rules:
        raise DialectError(f"There are no rules of {operator!r}; known are {quoted_list(sorted(found.operators))}.")
    if as_json:
        options.print_result(replace(found, rules=tuple(rules)), as_json=True)
        return
    rows = [[rule.operator, rule.outcome, words(rule.conditions), rule.example] for rule in rules]
    click.echo(table(("operator", "outcome", "where", "smallest graph"), rows, widest=120))
    click.echo(
        f"\n{found.runtime} {found.version}: {len(rules)} rules from {found.graphs} graphs, learned on "
        f"{found.processor}; reads opset {found.newest_opset} at most."
    )
    if known is not None and known.note:
        click.echo(known.note)


@command.command("learn", short_help="Learn the rules of versions of a runtime from the runtimes themselves.")
@click.argument("runtime")
@click.option(
    "--version",
    "versions",
    multiple=True,
    metavar="1.18.1",
    help="A version of ONNX Runtime, installed in an environment of its own in the user's cache; several times for "
    "several. The runtime that is installed here otherwise.",
)
@click.option("--python", type=options.FILE, help="The interpreter of an environment that has ONNX Runtime, instead.")
@click.option("--folder", type=options.PATH, help="Where journals and tables go; in the user's cache unless told.")
@click.option("--operator", "chosen", multiple=True, help="Only this one; several times for several.")
@click.option("--jobs", type=click.IntRange(1, 256), default=1, show_default=True, help="So many versions at a time.")
@click.option("--ray", metavar="ADDRESS", help="Spread the versions over a Ray cluster that sees the folder.")
@options.as_json(_learned_shape)
def learn_command(
    runtime: str, *, versions: tuple[str, ...], python: Path | None, folder: Path | None, chosen: tuple[str, ...],
    jobs: int, ray: str | None, as_json: bool,
) -> int:  # fmt: skip
    """Learn from a RUNTIME which operators it runs in integers, by running small graphs chosen for it.

    It takes minutes. What was asked is kept: the same command goes on where it was stopped.
    """
    from concurrent.futures import ProcessPoolExecutor  # noqa: PLC0415 - --help needs none of it
    from contextlib import ExitStack  # noqa: PLC0415
    from multiprocessing import get_context  # noqa: PLC0415

    from embedl_deploy._spread import over_ray  # noqa: PLC0415
    from embedl_deploy.rules import cache_folder, learn  # noqa: PLC0415

    if versions and python is not None:
        raise click.UsageError("Give --version or --python, not both.")
    if ray is not None and jobs > 1:
        raise click.UsageError("Give --jobs or --ray, not both.")
    where = folder or cache_folder() / "dialects"
    with ExitStack() as stack:
        spread = over_ray(ray) if ray is not None else None
        if jobs > 1 and len(versions) > 1:
            # A forked process would share the threads of whatever was imported here.
            spread = stack.enter_context(ProcessPoolExecutor(jobs, mp_context=get_context("spawn"))).map
        found = learn(
            runtime, where, versions=versions, python=python, operators=chosen, spread=spread,
            say=lambda line: click.echo(line, err=True),
        )  # fmt: skip
    told = {"versions": [each.to_dict() for each in found]} if as_json else "\n".join(map(str, found))
    options.print_result(told, as_json=as_json)
    return 1 if any(each.failed for each in found) else 0
