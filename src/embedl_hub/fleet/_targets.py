"""From what a sweep says about devices to its targets."""

from __future__ import annotations

from typing import TYPE_CHECKING

from embedl_hub.errors import known
from embedl_hub.fleet._model import Target

if TYPE_CHECKING:
    from embedl_hub.core import HubContext
    from embedl_hub.fleet._model import DeviceWish

HERE = "here"
"""The target that is this machine without a device."""


def find_targets(ctx: HubContext, wish: DeviceWish) -> tuple[tuple[Target, ...], list[str]]:
    """Return the targets that a sweep wants, and what is wrong with its wishes."""
    problems: list[str] = []
    targets: dict[str, Target] = {}
    names = wish.names
    if not names and wish.where is None and not wish.pools:
        names = tuple(ctx.devices) or (HERE,)
    for name in dict.fromkeys(names):
        if name in ctx.devices:
            targets[name] = Target(name, (name,))
        elif name == HERE and not ctx.devices:
            targets[name] = Target(name, ())
        else:
            problems.append(f"there is no device {name!r}; the context has: {known(ctx.devices)}")
    for what, given in (("where", wish.where), ("pools", wish.pools)):
        if given:
            problems.append(f"devices: {what} is not known here; name the devices: names = [...]")
    return tuple(targets.values()), problems
