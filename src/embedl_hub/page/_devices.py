"""Devices for the page: those that runs were made on, and those of the home's file that none was made on yet."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, TypedDict

from embedl_hub.core.device import DEVICES_FILE, load_devices, recall_spec
from embedl_hub.errors import HubError
from embedl_hub.health import device_health
from embedl_hub.tracking import equal

if TYPE_CHECKING:
    from embedl_hub.core.device import DeviceSpec
    from embedl_hub.health import Health
    from embedl_hub.page._scope import Scope

SPEC_PARAM = "$device_spec"


@dataclass(frozen=True)
class DeviceFacts:
    """A device at a glance; what nobody told is empty or None."""

    name: str
    health: Health
    type: str = ""
    cpu: str = ""
    cores: int | None = None
    memory_bytes: int | None = None
    waiting: int = 0  # runs on it that go on or wait
    runs: int = 0
    failed: int = 0
    last_started_ms: int | None = None


@dataclass(frozen=True)
class Devices:
    """All devices, and why those of the home's file are not among them, if they are not."""

    rows: tuple[DeviceFacts, ...]
    problem: str = ""


def devices_of(scope: Scope) -> Devices:
    """Return the devices that a visitor may see."""
    seen = {each.name: each for each in scope.store.devices()}
    own, problem = _own(scope)
    names = list(dict.fromkeys([*own, *seen]))
    health = device_health(scope.store, names)
    rows = []
    for name in names:
        kind, spec = own.get(name, ("", {}))
        summary = seen.get(name)
        told = {**_told(scope, name), **spec} if summary else spec
        facts = DeviceFacts(name, health[name], kind or str(told.get("provider", "")), **_processor(told))
        if summary is not None:
            facts = replace(
                facts, waiting=_waiting(scope, name), runs=summary.runs, failed=summary.failed,
                last_started_ms=summary.last_started_ms,
            )  # fmt: skip
        rows.append(facts)
    return Devices(tuple(rows), problem)


class _Processor(TypedDict):
    cpu: str
    cores: int | None
    memory_bytes: int | None


def _processor(told: Mapping[str, object]) -> _Processor:
    cores, memory = told.get("cores"), told.get("memory_bytes")
    return {
        "cpu": str(told.get("cpu") or ""),
        "cores": cores if isinstance(cores, int) else None,
        "memory_bytes": memory if isinstance(memory, int) else None,
    }


def _own(scope: Scope) -> tuple[dict[str, tuple[str, Mapping[str, object]]], str]:
    """Return type and spec of the devices in the home's file; who sees a part of the store sees none of them."""
    if scope.visible is not None:
        return {}, ""
    home = scope.whole.home
    try:
        devices = load_devices(home / DEVICES_FILE)
    except HubError as error:
        return {}, str(error)
    return {each.name: (each.provider_type or "", _known(recall_spec(home, each))) for each in devices}, ""


def _known(spec: DeviceSpec) -> dict[str, object]:
    return {name: value for name, value in vars(spec).items() if value}


def _told(scope: Scope, name: str) -> dict[str, object]:
    """Return what the newest run on a device noted of it."""
    newest = scope.find([equal("device", name)], archived=None, limit=1).runs
    if not newest:
        return {}
    run = scope.run(newest[0].id)
    spec = run.params[SPEC_PARAM].value if SPEC_PARAM in run.params else {}
    return {"provider": run.provider or "", **(spec if isinstance(spec, Mapping) else {})}


def _waiting(scope: Scope, name: str) -> int:
    return scope.count([equal("device", name), "status = 'RUNNING' or status = 'SCHEDULED'"])
