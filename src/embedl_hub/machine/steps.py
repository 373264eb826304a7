"""Providers whose work is a function imported on use: registering them imports no vendor's package."""

from __future__ import annotations

import importlib
from collections.abc import Iterable, Mapping
from typing import TYPE_CHECKING, Any

from embedl_hub.core.device import settings_of
from embedl_hub.core.profile import ColdStartProfiler, ConcurrentProfiler, SustainedProfiler
from embedl_hub.errors import NoProviderError
from embedl_hub.machine.machine import open_machine
from embedl_hub.refusal import needed_packages

if TYPE_CHECKING:
    from embedl_hub.core.component import Component
    from embedl_hub.core.context import HubContext
    from embedl_hub.core.device import ProviderConfig


class _Step:
    """A provider that imports the function which does the work when it is called."""

    def __init__(
        self, component: type[Component], work: str, title: str, extra: str, configs: tuple[type[ProviderConfig], ...]
    ) -> None:
        self._component, self._work, self._configs = component, work, configs
        self._title, self._extra = title, extra
        self.__qualname__ = work
        self.__signature__ = component.run_signature()

    def __call__(self, ctx: HubContext, *args: object, device: str | None = None, **options: object) -> object:
        module, _, name = self._work.partition(":")
        with needed_packages(what=self._title, extra=self._extra):
            function = getattr(importlib.import_module(module), name)
        if not self._configs:
            return function(ctx, *args, device=device, **options)
        with open_machine(ctx, device, self._component, *self._configs) as machine:
            # What the device says is recorded already; this is what applies where it says nothing.
            ctx.client.run.log_batch(settings_of(machine.config))
            return function(ctx, machine, *args, **options)


def provide(
    types: Iterable[str],
    works: Mapping[type[Component], str],
    *,
    tools: tuple[str, ...],
    title: str,
    extra: str,
    configs: tuple[type[ProviderConfig], ...] = (),
) -> None:
    """Register the work of several steps for provider types.

    Args:
        types: The provider types.
        works: For each step the function that does the work, as ``package.module:name``. It takes what the step takes;
            with ``configs`` the machine comes second, in place of ``device``.
        tools: Distributions whose versions matter for the result.
        title: What needs the packages of ``extra``, for the message when one is missing.
        extra: The extra of the hub that brings them.
        configs: The classes of the settings on this machine and on a board, for work on a machine.
    """
    for component, work in works.items():
        for provider_type in types:
            component.provider(provider_type, tools=tools)(_Step(component, work, title, extra, configs))


_MEASUREMENTS: Mapping[type[Component], str] = {
    ColdStartProfiler: "embedl_hub.machine.measurements:cold_starts",
    ConcurrentProfiler: "embedl_hub.machine.measurements:run_concurrently",
    SustainedProfiler: "embedl_hub.machine.sustained:sustain",
}


def provide_measurements(types: Iterable[str], *, title: str, extra: str) -> None:
    """Register, for the provider types of a toolchain with a driver, the kinds of measurement that all have."""
    provide(types, _MEASUREMENTS, tools=("edgeproof-device", "numpy"), title=title, extra=extra)


def vendor_package(name: str, service: str, extra: str) -> Any:  # noqa: ANN401 - the vendor's module
    """Return a vendor's package, or say the line that installs it."""
    try:
        return importlib.import_module(name)
    except ImportError as error:
        raise NoProviderError(
            f"{service} needs the Python package {name}, which cannot be imported ({error}). "
            f"Install it with: pip install 'edgeproof-hub[{extra}]'"
        ) from error
