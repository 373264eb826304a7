"""``embedl-deploy plan``."""

from pathlib import Path

import click

from embedl_deploy.cli import options


@click.command("plan")
@options.model_options
@options.as_json
def command(model: str, data: Path | None, shapes: tuple[str, ...], backend: str | None, *, as_json: bool) -> int:
    """Show what would be fused and quantised in MODEL, and why not the rest.

    MODEL is package.module:callable, or the path of a .pt2 file.
    """
    from embedl_deploy import transform  # noqa: PLC0415 - --help needs no torch
    from embedl_deploy.cli.model import backend_for, example, load_model  # noqa: PLC0415
    from embedl_deploy.quantize import plan_qdq  # noqa: PLC0415

    chosen = backend_for(backend)
    args = example(data, shapes)
    result = transform(load_model(model), args, chosen)
    placement = plan_qdq(result.model, args, backend=chosen) if chosen.quantized_patterns else None
    if as_json:
        layers = [] if placement is None else [
            {"place": one.place, "layer": one.layer, "runs": one.runs, "rule": one.rule}
            for one in placement.layers
        ]  # fmt: skip
        options.say({"backend": chosen.name, "steps": result.plan.counts(), "layers": layers}, as_json=True)
        return 0
    click.echo(str(result.plan))
    if placement is not None:
        click.echo(f"\n{placement}")
    return 0
