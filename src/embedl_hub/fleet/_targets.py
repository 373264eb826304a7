"""From what a sweep says about devices to its targets."""

from __future__ import annotations

from typing import TYPE_CHECKING

from embedl_hub.core.device import DEVICES_FILE, load_pools
from embedl_hub.errors import ConfigError, known
from embedl_hub.fleet._model import Target

if TYPE_CHECKING:
    from collections.abc import Mapping

    from embedl_hub.core import HubContext
    from embedl_hub.core.device import Pool
    from embedl_hub.fleet._model import DeviceWish

HERE = "here"
"""The target that is this machine without a device."""


def find_targets(
    ctx: HubContext, wish: DeviceWish, pools: Mapping[str, Pool] | None = None
) -> tuple[tuple[Target, ...], list[str]]:
    """Return the targets that a sweep wants, and what is wrong with its wishes.

    Args:
        ctx: The context with the devices.
        wish: What the sweep says.
        pools: The pools by name; those of the home's devices if not given.
    """
    problems: list[str] = []
    targets = {name: Target(name, (name,)) for name in _meant(ctx, wish, problems)}
    for name in _named(ctx, wish):
        if name in ctx.devices:
            targets.setdefault(name, Target(name, (name,)))
        elif name == HERE and not ctx.devices:
            targets[name] = Target(name, ())
        else:
            problems.append(f"there is no device {name!r}; the context has: {known(ctx.devices)}")
    for name, members in _pooled(ctx, wish, pools, problems).items():
        targets[name] = Target(name, members)
    return tuple(targets.values()), problems


def _named(ctx: HubContext, wish: DeviceWish) -> tuple[str, ...]:
    if wish.names or wish.where is not None or wish.pools:
        return wish.names
    return tuple(ctx.devices) or (HERE,)


def _meant(ctx: HubContext, wish: DeviceWish, problems: list[str]) -> list[str]:
    """Return the devices that a query means."""
    if wish.where is None:
        return []
    try:
        return ctx.find_devices(wish.where)
    except ConfigError as error:
        problems.append(f"devices where: {error}")
        return []


def _pooled(
    ctx: HubContext, wish: DeviceWish, pools: Mapping[str, Pool] | None, problems: list[str]
) -> dict[str, tuple[str, ...]]:
    if pools is None and wish.pools:
        pools = {} if ctx.home is None else load_pools(ctx.home / DEVICES_FILE)
    facts = {name: (device.provider_type, ctx.known_spec(name)) for name, device in ctx.devices.items()}
    found = {}
    for name in wish.pools:
        if pools is None or name not in pools:
            problems.append(f"there is no pool {name!r}; known: {known(pools or ())}")
        elif name in ctx.devices:
            problems.append(f"pool {name!r} is called like a device; a matrix has one column of a name")
        else:
            try:
                found[name] = tuple(pools[name].members(facts))
            except ConfigError as error:
                problems.append(str(error))
    return found
