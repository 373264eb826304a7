"""Whether a device has room for a model: what its toolchain predicts, held against the device's memory."""

from __future__ import annotations

import dataclasses
import os
import pkgutil
import re
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import TYPE_CHECKING

from embedl_hub.core.device import LOCAL, ProviderConfig
from embedl_hub.core.lookup import find_run
from embedl_hub.core.toolchain import Toolchain, find_toolchain, toolchains
from embedl_hub.errors import ConfigError, quoted_list
from embedl_hub.refusal import needed_packages

if TYPE_CHECKING:
    from embedl_hub.core.context import HubContext
    from embedl_hub.core.document import MemoryProfile

_UNITS = {"kb": 1e3, "mb": 1e6, "gb": 1e9, "kib": 1 << 10, "mib": 1 << 20, "gib": 1 << 30}


def predict_memory(
    ctx: HubContext,
    model: str,
    device: str | None = None,
    *,
    toolchain_name: str | None = None,
    changes: Mapping[str, object] | None = None,
) -> tuple[Toolchain, MemoryProfile]:
    """Return what a model takes in memory, layer by layer, and the toolchain that says so; nothing is sent or run.

    Args:
        ctx: An open context.
        model: A file of a runtime's own format, or the id of a run that made or used one.
        device: The device whose settings count; the toolchain's own if not given.
        toolchain_name: The toolchain; that of the file if not given.
        changes: Settings of the runtime to change, by name.
    """
    path, name = _file_of(ctx, model)
    wanted = toolchain_name or name
    toolchain = _by_suffix(path) if wanted is None else find_toolchain(wanted)
    return toolchain, _planner(toolchain)(path, _config(ctx, device, toolchain, changes or {}))


def _file_of(ctx: HubContext, model: str) -> tuple[Path, str | None]:
    """Return the file, and the toolchain that a run says it is for."""
    if Path(model).exists():
        return Path(model), None
    run = find_run(ctx, model)
    artifact = run.artifacts.get("path") or run.artifacts.get("input")
    if artifact is None:
        raise ConfigError(f"Run {run.id} has no model; it logged {quoted_list(run.artifacts)}.")
    return ctx.bring_here(artifact), next((each.name for each in toolchains() if _made(each, run.component)), None)


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
    ctx: HubContext, device: str | None, toolchain: Toolchain, changes: Mapping[str, object]
) -> ProviderConfig | None:
    """Return the device's settings for a toolchain, or its own for this machine, with changes."""
    config = None
    if device is not None and toolchain.profiler is not None:
        config = ctx.find_device(device).get_provider_config(ProviderConfig, toolchain.profiler)
    if not changes:
        return config
    if config is None:
        config = ProviderConfig() if toolchain.local_config is None else toolchain.local_config()
    known = [field.name for field in dataclasses.fields(config)]
    if unknown := set(changes) - set(known):
        raise ConfigError(f"{quoted_list(unknown)} is no setting of {toolchain.title}; it has {quoted_list(known)}.")
    return dataclasses.replace(config, **changes)


def memory_of(ctx: HubContext, device: str | None, *, here: bool) -> int | None:
    """Return the memory that a device's spec tells; one that leaves it out is asked."""
    if device is not None:
        found = ctx.find_device(device)
        told = found.spec.memory_bytes or ctx.device_spec(device).memory_bytes
        if told is not None or found.runner is not None or found.provider_type != LOCAL:
            return told
    elif not here and ctx.devices:
        return None
    return os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES")


def read_size(text: str) -> int:
    """Return the number of bytes that a text such as 256MB means."""
    found = re.fullmatch(r"\s*([0-9]{1,12}(?:\.[0-9]{1,6})?)\s*([a-zA-Z]+)\s*", text)
    unit = None if found is None else _UNITS.get(found[2].lower())
    if found is None or unit is None:
        raise ConfigError(f"The memory is given as {text!r}; it must be a number with a unit, as 256MB or 1GiB.")
    return int(float(found[1]) * unit)
