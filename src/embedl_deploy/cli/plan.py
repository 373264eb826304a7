"""``embedl-deploy plan``."""

from pathlib import Path

import click

from embedl_deploy.cli import options
from embedl_device import schema

_NOTE = (
    "'float' is what is not rounded in simulation. Export rounds more where the target's runtime gains by it: "
    "'embedl-deploy check FILE' tells what a file runs in integers."
)


@click.command("plan", short_help="Show what would be fused and quantized, and why not the rest.")
@options.model_options
@options.as_json(
    schema.fields(
        {
            "backend": schema.TEXT,
            "steps": schema.by_name(schema.WHOLE),
            "layers": schema.array(schema.fields(dict.fromkeys(("place", "layer", "runs", "rule"), schema.TEXT))),
        }
    )
)
def command(
    model: str, data: Path | None, shapes: tuple[str, ...], target: str | None, backend: str | None, *, as_json: bool
) -> int:
    """Show what would be fused and quantized in MODEL, and why not the rest.

    MODEL is package.module:callable, or the path of a .pt2 file.
    """
    from embedl_deploy import transform  # noqa: PLC0415 - --help needs no torch
    from embedl_deploy.cli.model import example, load_model  # noqa: PLC0415
    from embedl_deploy.quantize import plan_qdq  # noqa: PLC0415
    from embedl_deploy.target import choose_backend  # noqa: PLC0415

    chosen = choose_backend(backend, target)
    args = example(data, shapes)
    result = transform(load_model(model), args, chosen)
    placement = plan_qdq(result.model, args, backend=chosen) if chosen.quantized_patterns else None
    if as_json:
        layers = [
            {"place": decision.place, "layer": decision.layer, "runs": decision.runs, "rule": decision.rule}
            for decision in (() if placement is None else placement.layers)
        ]
        options.print_result({"backend": chosen.name, "steps": result.plan.counts(), "layers": layers}, as_json=True)
        return 0
    click.echo(str(result.plan))
    if placement is not None:
        click.echo(f"\n{placement}\n\n{_NOTE}")
    return 0
