"""From a component and a context to one provider function.

Built-in and third-party providers are found by entry points (group ``embedl_hub.providers``, the name is the
provider type) and imported on first use, so importing a component imports no vendor's package.
"""

from __future__ import annotations

import functools
import importlib.metadata
import sys
import threading
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from embedl_hub.core.component._provider_type import ProviderType, normal_type
from embedl_hub.errors import NoProviderError, SignatureError, known

if TYPE_CHECKING:
    from collections.abc import Callable
    from types import ModuleType

    from embedl_hub.core.context import HubContext

GROUP = "embedl_hub.providers"


@dataclass(frozen=True)
class Provider:
    """A registered way to carry out a component's step."""

    type: str
    function: Callable[..., Any]
    tools: tuple[str, ...] = ()


class ProviderTable:
    """The providers of one component class; those of its bases are seen through ``parents``."""

    def __init__(self, component: str, parents: tuple[ProviderTable, ...]) -> None:
        self._component = component
        self._parents = parents
        self._own: dict[str, Provider] = {}

    def add(self, provider: Provider, *, replace: bool) -> None:
        """Register a provider; a type that is taken is an error unless it is to be replaced."""
        if provider.type in self._own and _LOADING.active():
            # The user's registration came before the built-in one was needed; the user's stays.
            return
        if not replace and not _LOADING.active():
            load_provider(provider.type, fail=False)
            if provider.type in self._own:
                taken = self._own[provider.type].function
                raise SignatureError(
                    f"{self._component} already has a provider {provider.type!r} "
                    f"({taken.__module__}.{taken.__qualname__}); pass replace=True to take its place. "
                    f"Registered: {known(self.types())}."
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

    An explicit device must be known and served. Otherwise the first device that is served, else LOCAL.
    """
    if device is not None:
        chosen = ctx.find_device(device)
        provider = _lookup(table, chosen.provider_type)
        if provider is None:
            raise _nobody(table, component, ctx, f"device {device!r} is of type {chosen.provider_type!r}")
        return provider, device
    for name, candidate in ctx.devices.items():
        if (provider := _lookup(table, candidate.provider_type)) is not None:
            return provider, name
    if (provider := _lookup(table, ProviderType.LOCAL.value)) is not None:
        return provider, None
    raise _nobody(
        table, component, ctx, "no device on the context is of a type it serves, and it has no local provider"
    )


def _lookup(table: ProviderTable, provider_type: str) -> Provider | None:
    found = table.find(provider_type)
    if found is None and load_provider(provider_type):
        found = table.find(provider_type)
    return found


def load_provider(provider_type: str, *, fail: bool = True) -> bool:
    """Import the package that provides a type, if one is installed; tell whether there is one."""
    entry = entry_points_by_type(tuple(sys.path)).get(normal_type(provider_type))
    if entry is None:
        return False
    try:
        with _LOADING:
            entry.load()
    except ImportError as error:
        if not fail:
            return False
        package = entry.dist.name if entry.dist is not None else "its package"
        raise NoProviderError(
            f"The provider {provider_type!r} of {package} could not be loaded: {error}. {_install_hint(entry)}"
        ) from error
    return True


@functools.lru_cache(maxsize=8)
def entry_points_by_type(_path: tuple[str, ...]) -> dict[str, importlib.metadata.EntryPoint]:
    """Return the installed providers by type; asked anew when the import path changes."""
    return {normal_type(entry.name): entry for entry in importlib.metadata.entry_points(group=GROUP)}


@dataclass(frozen=True)
class InstalledProvider:
    """A provider type that a package on this machine brings.

    Attributes:
        type: The provider type.
        distribution: The package it comes with.
        version: That package's version.
        package: Its module; None when it cannot be imported.
        problem: Why it cannot be imported.
        install: The line that installs what it needs.
    """

    type: str
    distribution: str | None
    version: str | None
    package: ModuleType | None
    problem: str | None
    install: str


def installed_providers() -> list[InstalledProvider]:
    """Import every installed provider and return them by type, those that cannot be imported included."""
    found = []
    for provider_type, entry in sorted(entry_points_by_type(tuple(sys.path)).items()):
        package, problem = None, None
        try:
            with _LOADING:
                package = entry.load()
        except Exception as error:  # noqa: BLE001 - whatever somebody's package does on import must not hide the others
            problem = f"{type(error).__name__}: {error}"
        name, version = (entry.dist.name, entry.dist.version) if entry.dist is not None else (None, None)
        found.append(InstalledProvider(provider_type, name, version, package, problem, _install_hint(entry)))
    return found


class _Loading:
    """Marks the time in which this thread imports a provider's package."""

    def __init__(self) -> None:
        self._local = threading.local()

    def active(self) -> bool:
        return getattr(self._local, "depth", 0) > 0

    def __enter__(self) -> None:
        self._local.depth = getattr(self._local, "depth", 0) + 1

    def __exit__(self, *_: object) -> None:
        self._local.depth -= 1


_LOADING = _Loading()


def _nobody(table: ProviderTable, component: str, ctx: HubContext, reason: str) -> NoProviderError:
    installed = entry_points_by_type(tuple(sys.path))
    # For the list only; one that cannot be imported must not hide the others. One that can and still does not serve
    # this component needs no installing.
    lacking = {provider_type for provider_type in installed if not load_provider(provider_type, fail=False)}
    devices = ", ".join(f"{name!r} ({device.provider_type})" for name, device in ctx.devices.items()) or "none"
    wanted = {device.provider_type for device in ctx.devices.values()} | {ProviderType.LOCAL.value}
    hints = [_install_hint(installed[kind]) for kind in sorted(wanted & lacking) if kind not in table.types()]
    add_device = "Add a device of one of these types (embedl-hub device add NAME --type TYPE), or register"
    add_device = add_device if table.types() else "Register"
    advice = " ".join(filter(None, hints)) or f"{add_device} a provider: @{component}.provider(...)."
    return NoProviderError(
        f"Nobody can carry out {component} here: {reason}. Its provider types: {known(table.types())}. "
        f"Devices on the context: {devices}. {advice}"
    )


def _install_hint(entry: importlib.metadata.EntryPoint) -> str:
    """Return the line that installs what a provider needs: the extra is called like its type."""
    if entry.dist is None:
        return ""
    for extra in entry.dist.metadata.get_all("Provides-Extra") or ():
        if normal_type(extra) == normal_type(entry.name):
            return f"Install it with: pip install '{entry.dist.name}[{extra}]'"
    return f"Install it with: pip install --upgrade {entry.dist.name}"
