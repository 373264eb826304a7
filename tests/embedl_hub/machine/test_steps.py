"""Providers name the function that does their work; each of them is there and takes what the step takes."""

from __future__ import annotations

import importlib
import inspect

import pytest

from embedl_hub.core.component import Component, load_provider, provider_types
from embedl_hub.core.toolchain import toolchains
from embedl_hub.errors import NoProviderError
from embedl_hub.machine.steps import _Step, vendor_package


def steps() -> list[tuple[type[Component], _Step]]:
    for provider_type in provider_types():
        load_provider(provider_type)
    components = [component for toolchain in toolchains() for component in toolchain.components]
    providers = [(component, component._table.find(kind)) for component in components for kind in provider_types()]
    return [(each, found.function) for each, found in providers if found and isinstance(found.function, _Step)]


def test_all_work_is_there() -> None:
    """A name in a text is checked by nobody else."""
    found = steps()
    assert len(found) >= 20
    for component, step in found:
        module, _, name = step._work.partition(":")
        work = inspect.signature(getattr(importlib.import_module(module), name))
        ctx, *rest = inspect.signature(step).parameters
        given = [ctx, "machine", *rest] if step._configs else [ctx, *rest]
        given = [each for each in given if not (step._configs and each == "device")]
        takes_rest = any(parameter.kind is parameter.VAR_KEYWORD for parameter in work.parameters.values())
        missing = set(work.parameters) - set(given)
        assert takes_rest or list(work.parameters) == given, (component, step._work)
        assert missing <= {"given"}, (component, step._work)


def test_a_missing_vendor_is_one_line_to_type() -> None:
    with pytest.raises(NoProviderError, match=r"Some service needs the Python package nowhere.*edgeproof-hub\[extra\]"):
        vendor_package("nowhere", "Some service", "extra")
