"""From a component and a context to one provider function.

Providers come with a toolchain, or by an entry point of their own (group ``embedl_hub.providers``, the name is the
provider type); they are imported on first use, so importing a component imports no vendor's package.
"""

from __future__ import annotations

import functools
import importlib
from collections.abc import Callable
from contextvars import ContextVar
from dataclasses import dataclass
from enum import StrEnum
from functools import cache
from typing import TYPE_CHECKING, Any

from embedl_hub import plugins
from embedl_hub.core.component._signature import source_of
from embedl_hub.core.device import LOCAL
from embedl_hub.errors import NoProviderError, SignatureError, quoted_list
from embedl_hub.plugins import PROVIDERS, TOOLCHAINS

if TYPE_CHECKING:
    from importlib.metadata import EntryPoint

    from embedl_hub.core.context import HubContext

_LOADING: ContextVar[bool] = ContextVar("loading", default=False)
"""Whether this thread is importing a provider's package."""


@dataclass(frozen=True)
class Provider:
    """A registered implementation of a component's step."""

    type: str
    function: Callable[..., Any]
    options: frozenset[str] | None = None
    tools: tuple[str, ...] = ()

    @property
    def source(self) -> str:
        """Its name, with the file and line that it stands at."""
        return f"{self.function.__qualname__} ({source_of(self.function)})"

    def is_again(self, other: Provider) -> bool:
        """Whether both are one function, defined again: a cell of a notebook, a page pasted twice."""
        mine, its = self.function, other.function
        return (mine.__module__, mine.__qualname__) == (its.__module__, its.__qualname__)


class ProviderTable:
    """The providers of one component class; those of its bases are seen through ``parents``."""

    def __init__(self, component: str, parents: tuple[ProviderTable, ...]) -> None:
        self._component = component
        self._parents = parents
        self._own: dict[str, Provider] = {}

    def add(self, provider: Provider, *, replace: bool) -> None:
        """Register a provider; a type that another function has is an error unless that is to be replaced."""
        if provider.type in self._own and _LOADING.get():
            # The user's registration came before the built-in one was needed; the user's stays.
            return
        if not replace and not _LOADING.get():
            load_provider(provider.type, fail=False)
            taken = self._own.get(provider.type)
            if taken is not None and not provider.is_again(taken):
                raise SignatureError(
                    f"{provider.source}: {self._component} already has a provider {provider.type!r}, {taken.source}. "
                    f"Write @{self._component}.provider({provider.type!r}, replace=True) to take its place, or another "
                    f"name. Registered: {quoted_list(self.types())}."
                )
        self._own[provider.type] = provider

    def find(self, provider_type: str) -> Provider | None:
        """Return the provider of a type; the class's own goes before its bases'."""
        if provider_type in self._own:
            return self._own[provider_type]
        return next((found for parent in self._parents if (found := parent.find(provider_type))), None)

    def types(self) -> set[str]:
        """Return all provider types, inherited ones included."""
        return set(self._own).union(*(parent.types() for parent in self._parents))


def choose(table: ProviderTable, component: str, ctx: HubContext, device: str | None) -> tuple[Provider, str | None]:
    """Return the provider for a call and the name of the device it runs on, None for this machine without one.

    An explicit device must be known and served; ``local`` is this machine. Otherwise the first device that is served.
    This machine is chosen without being named only where the context has no devices: its latency must not pass for a
    board's.
    """
    is_here = not ctx.devices if device is None else device == LOCAL and device not in ctx.devices
    if is_here:
        if (provider := _lookup(table, LOCAL)) is not None:
            return provider, None
        raise _no_provider(table, component, ctx, "it has no local provider")
    if device is not None:
        chosen = ctx.find_device(device)
        provider = _lookup(table, chosen.provider_type)
        if provider is None:
            raise _no_provider(table, component, ctx, f"device {device!r} is of type {chosen.provider_type!r}")
        return provider, device
    for name, candidate in ctx.devices.items():
        if (provider := _lookup(table, candidate.provider_type)) is not None:
            return provider, name
    raise _no_provider(table, component, ctx, "no device on the context is of a type it serves")


def _lookup(table: ProviderTable, provider_type: str) -> Provider | None:
    found = table.find(provider_type)
    if found is None and load_provider(provider_type):
        found = table.find(provider_type)
    return found


def load_provider(provider_type: str, *, fail: bool = True) -> bool:
    """Import what provides a type, if it is installed; tell whether there is anything."""
    wanted = plugins.plugin_name(provider_type)
    sources: list[tuple[EntryPoint | None, Callable[[], object]]] = [
        (plugins.entries(TOOLCHAINS).get(name), functools.partial(importlib.import_module, toolchain.providers[wanted]))
        for name, toolchain in plugins.load_all(TOOLCHAINS)
        if wanted in toolchain.providers
    ]
    if (own := plugins.entries(PROVIDERS).get(wanted)) is not None:
        sources.append((own, own.load))
    for entry, load in sources:
        token = _LOADING.set(True)
        try:
            load()
        except ImportError as error:
            if not fail:
                return False
            package = plugins.origin(entry) if entry is not None else "a registered toolchain"
            raise NoProviderError(
                f"The provider {provider_type!r} of {package} could not be loaded: {error}. {_install_hint(entry)}"
            ) from error
        finally:
            _LOADING.reset(token)
    return bool(sources)


def provider_types() -> list[str]:
    """Return every provider type that is installed, without importing providers."""
    served = {each for _, toolchain in plugins.load_all(TOOLCHAINS) for each in toolchain.providers}
    return sorted(served | set(plugins.plugin_names(PROVIDERS)))


def _no_provider(table: ProviderTable, component: str, ctx: HubContext, reason: str) -> NoProviderError:
    # For the list only; one that cannot be imported must not hide the others.
    lacking = [each for each in provider_types() if not load_provider(each, fail=False)]
    hints = [(each, _install_hint(plugins.entries(PROVIDERS).get(each))) for each in lacking]
    devices = ", ".join(f"{name!r} ({device.provider_type})" for name, device in ctx.devices.items()) or "none"
    wanted = {device.provider_type for device in ctx.devices.values()} | {LOCAL}
    add_device = "Add a device of one of these types (embedl-hub device add NAME --type TYPE), or register"
    add_device = add_device if table.types() else "Register"
    advice = " ".join(hint for provider_type, hint in hints if provider_type in wanted and hint)
    here = " To run it on this machine, say device='local' (--here)." if ctx.devices and table.find(LOCAL) else ""
    return NoProviderError(
        f"No provider for {component} on this device: {reason}. Its provider types: {quoted_list(table.types())}. "
        f"Devices on the context: {devices}. {advice or f'{add_device} a provider: @{component}.provider(...).'}{here}"
    )


def _install_hint(entry: EntryPoint | None) -> str:
    """Return the line that installs what a provider needs: the extra is called like its entry point."""
    if entry is None or entry.dist is None:
        return ""
    for extra in entry.dist.metadata.get_all("Provides-Extra") or ():
        if plugins.plugin_name(extra) == plugins.plugin_name(entry.name):
            return f"Install it with: pip install '{entry.dist.name}[{extra}]'"
    return f"Install it with: pip install --upgrade {entry.dist.name}"


@cache
def make_provider_type() -> type[StrEnum]:
    """Return the enum ``ProviderType``."""
    members = {name.upper(): name for name in (LOCAL, *provider_types())}
    functional: Any = StrEnum
    made: type[StrEnum] = functional("ProviderType", members, module="embedl_hub.core.component")
    return made
