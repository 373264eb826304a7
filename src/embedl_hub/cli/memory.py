"""``embedl-hub memory``: say what a model takes in memory, layer by layer, and whether a device has room for it."""

from __future__ import annotations

import dataclasses
import pkgutil
import re
from pathlib import Path
from typing import TYPE_CHECKING

import click

from embedl_device.schema import ANY, FLAG, TEXT, WHOLE, Shape, array, fields, maybe
from embedl_hub.cli._output import PATH, as_value, emit, home_option, json_option, pairs, table, working
from embedl_hub.cli._steps import chosen_device, find_run, open_context
from embedl_hub.core.device import ProviderConfig
from embedl_hub.core.document import fit_of
from embedl_hub.core.profile import ProfileError
from embedl_hub.core.toolchain import Toolchain, find_toolchain, toolchains
from embedl_hub.errors import ConfigError, quoted_list
from embedl_hub.refusal import needed_packages, refusals_as

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping

    from embedl_hub.core import HubContext
    from embedl_hub.core.document import Fit, MemoryProfile

_UNITS = {"kb": 1e3, "mb": 1e6, "gb": 1e9, "kib": 1 << 10, "mib": 1 << 20, "gib": 1 << 30}
_WILL_NOT_FIT = 1
_SHOWN = 5


_SHAPE: Shape = {
    **fields(
        {
            "model": TEXT, "toolchain": TEXT, "fits": maybe(FLAG), "verdict": TEXT, "method": TEXT,
            "arena_bytes": maybe(WHOLE), "weights_bytes": maybe(WHOLE), "peak_layer": maybe(TEXT),
            "parts": array(fields({"what": TEXT, "bytes": WHOLE})),
            "rows": array(
                fields({"name": TEXT, "op_type": TEXT, "in_use_bytes": WHOLE, "scratch_bytes": WHOLE})
            ),
            "missing_because": maybe(TEXT), "runtime_bytes": WHOLE,
        }
    ),
    # What a runtime tells besides.
    "additionalProperties": ANY,
}  # fmt: skip


@click.command()
@click.argument("model")
@click.option("--device", help="The device whose memory is meant; the one in use if not given.")
@click.option("--here", is_flag=True, help="This machine, whatever devices there are.")
@click.option("--memory", "memory", metavar="256MB", help="Hold it against so much memory instead of a device's.")
@click.option("--runtime", "toolchain_name", help="The toolchain; that of the file if not given.")
@click.option(
    "--set", "changes", multiple=True, metavar="NAME=VALUE", help="A setting of the runtime, as xnnpack=false."
)
@click.option("--picture", type=PATH, help="Also draw memory over the layers into this .svg file.")
@home_option
@json_option(_SHAPE)
def command(
    model: str, device: str | None, here: bool, memory: str | None, toolchain_name: str | None,
    changes: tuple[str, ...], picture: Path | None, home: Path | None, as_json: bool,
) -> None:  # fmt: skip
    """Say what a model takes in memory, layer by layer, and whether a device has room for it; nothing is sent or run.

    MODEL is a file of a runtime's own format (.onnx, .tflite, .pte), or the id of a run that made or used one. The exit
    code is 1 when it will not fit.
    """
    with refusals_as(ProfileError), open_context(home, None, here=here) as hub:
        path, name = _file_of(hub, model)
        wanted = toolchain_name or name
        toolchain = _by_suffix(path) if wanted is None else find_toolchain(wanted)
        chosen = None if memory else chosen_device(home, device, here=here)
        plan = _planner(toolchain)
        with working(f"{model} in {toolchain.title}"):
            predicted = plan(path, _config(hub, chosen, toolchain, pairs(changes)))
        fit = fit_of(predicted, _read_size(memory) if memory else _memory_of(hub, chosen, here=here))
    if picture is not None:
        _draw(predicted, picture)
    if as_json:
        emit(
            {"model": model, "toolchain": toolchain.name, "fits": fit.fits, "verdict": fit.text, **predicted.as_json()}
        )
    else:
        _show(toolchain, predicted, fit)
    if fit.fits is False:
        click.get_current_context().exit(_WILL_NOT_FIT)


def _file_of(hub: HubContext, model: str) -> tuple[Path, str | None]:
    """Return the file, and the toolchain that a run says it is for."""
    if Path(model).exists():
        return Path(model), None
    run = find_run(hub, model)
    artifact = run.artifacts.get("path") or run.artifacts.get("input")
    if artifact is None:
        raise ConfigError(f"Run {run.id} has no model; it logged {quoted_list(run.artifacts)}.")
    return hub.bring_here(artifact), next((each.name for each in toolchains() if _made(each, run.component)), None)


def _made(toolchain: Toolchain, component: str | None) -> bool:
    return component in {each.__name__ for each in toolchain.components}


def _by_suffix(path: Path) -> Toolchain:
    able = [each for each in toolchains() if each.memory_planner is not None]
    found = next((each for each in able if path.suffix in each.suffixes), None)
    if found is None:
        known = quoted_list(suffix for each in able for suffix in each.suffixes)
        raise ConfigError(f"The memory of {path.name!r} cannot be predicted; that of files ending in {known} can.")
    return found


def _planner(toolchain: Toolchain) -> Callable[[Path, ProviderConfig | None], MemoryProfile]:
    if toolchain.memory_planner is None:
        able = [each.name for each in toolchains() if each.memory_planner is not None]
        raise ConfigError(f"{toolchain.title} does not tell how it plans memory; {quoted_list(able)} do.")
    with needed_packages(f"{toolchain.title} models", toolchain.name):
        plan: Callable[[Path, ProviderConfig | None], MemoryProfile] = pkgutil.resolve_name(toolchain.memory_planner)
    return plan


def _config(
    hub: HubContext, device: str | None, toolchain: Toolchain, changes: Mapping[str, str]
) -> ProviderConfig | None:
    """Return the device's settings for a toolchain, or its own for this machine, with changes."""
    config = None
    if device is not None and toolchain.profiler is not None:
        config = hub.find_device(device).get_provider_config(ProviderConfig, toolchain.profiler)
    if not changes:
        return config
    if config is None:
        config = ProviderConfig() if toolchain.local_config is None else toolchain.local_config()
    known = [field.name for field in dataclasses.fields(config)]
    if unknown := set(changes) - set(known):
        raise ConfigError(f"{quoted_list(unknown)} is no setting of {toolchain.title}; it has {quoted_list(known)}.")
    return dataclasses.replace(config, **{name: as_value(text) for name, text in changes.items()})


def _memory_of(hub: HubContext, device: str | None, *, here: bool) -> int | None:
    """Return what a device's spec says; one that leaves it out is asked."""
    if device is not None:
        return hub.find_device(device).spec.memory_bytes or hub.device_spec(device).memory_bytes
    if not here and hub.devices:
        return None
    import os  # noqa: PLC0415 - only for this machine

    return os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES")


def _read_size(text: str) -> int:
    found = re.fullmatch(r"\s*([0-9]{1,12}(?:\.[0-9]{1,6})?)\s*([a-zA-Z]+)\s*", text)
    unit = None if found is None else _UNITS.get(found[2].lower())
    if found is None or unit is None:
        raise ConfigError(f"--memory is {text!r}; it must be a number with a unit, as 256MB or 1GiB.")
    return int(float(found[1]) * unit)


def _draw(predicted: MemoryProfile, path: Path) -> None:
    from embedl_hub.page import memory_picture  # noqa: PLC0415 - only for a picture

    drawn = memory_picture(predicted)
    if not drawn:
        raise ConfigError(f"There is nothing to draw: {predicted.problem}.")
    if path.suffix.lower() != ".svg":
        raise ConfigError(f"--picture is {str(path)!r}; the picture is an SVG file, so its name must end in .svg.")
    try:
        path.write_text(drawn + "\n", encoding="utf-8")
    except OSError as error:
        raise ConfigError(f"The picture cannot be written to {path}: {error}.") from error
    click.echo(f"The picture is in {path}.", err=True)


def _show(toolchain: Toolchain, predicted: MemoryProfile, fit: Fit) -> None:
    click.echo(fit.text[0].upper() + fit.text[1:] + ".")
    rows = [("runtime", toolchain.title), ("method", predicted.method)]
    if predicted.weights_bytes is not None:
        rows.append(("weights", _mb(predicted.weights_bytes)))
    if predicted.arena_bytes is not None:
        rows.append(("arena", _mb(predicted.arena_bytes)))
    if predicted.problem:
        rows.append(("not told", predicted.problem))
    table(None, rows, folds=True)
    fullest = sorted(predicted.rows, key=lambda row: row.in_use_bytes + row.scratch_bytes, reverse=True)[:_SHOWN]
    if fullest:
        click.echo()
        lines = [(row.name, row.op_type, _mb(row.in_use_bytes), _mb(row.scratch_bytes)) for row in fullest]
        table(("layer", "operation", "in use", "scratch"), lines)


def _mb(size_bytes: int) -> str:
    return f"{size_bytes / 1e6:.3f} MB"
