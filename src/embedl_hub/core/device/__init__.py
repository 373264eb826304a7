"""Devices and how to reach them. The toolchains' and services' own settings are found on use."""

from typing import Any

from embedl_hub.core.device._board import BOARD_LABEL, Board, recall_spec, remember_spec
from embedl_hub.core.device._device import Device, DeviceSpec, MeasuringConfig, ProviderConfig, check_args, settings_of
from embedl_hub.core.device._devices_file import (
    Pool,
    base_of,
    load_devices,
    load_pools,
    make_device,
    make_pool,
    read_devices,
)
from embedl_hub.core.device._kind import (
    ANY_RUNNER,
    LOCAL,
    NO_RUNNER,
    CheckResult,
    DeviceKind,
    RunnerKind,
    device_kind_names,
    device_kinds,
    find_device_kind,
    find_runner,
    register_device_kind,
    register_runner,
    runner_names,
)
from embedl_hub.core.device._local import LocalCommandRunner
from embedl_hub.core.device._process import Commands, stoppable_commands
from embedl_hub.core.device._query import Clause, DeviceQuery
from embedl_hub.core.device._runner import AnyPath, CommandResult, CommandRunner, Lease, LeasingRunner
from embedl_hub.core.device._ssh import SSHCommandRunner
from embedl_hub.core.device._ssh_config import SSHConfig
from embedl_hub.core.faces import lazy_face, local_config
from embedl_hub.trust import DEVICES_FILE

__all__ = [
    "ANY_RUNNER",
    "BOARD_LABEL",
    "DEVICES_FILE",
    "LOCAL",
    "NO_RUNNER",
    "AnyPath",
    "Board",
    "CheckResult",
    "Clause",
    "CommandResult",
    "CommandRunner",
    "Commands",
    "Device",
    "DeviceKind",
    "DeviceQuery",
    "DeviceSpec",
    "Lease",
    "LeasingRunner",
    "LocalCommandRunner",
    "MeasuringConfig",
    "Pool",
    "ProviderConfig",
    "RunnerKind",
    "SSHCommandRunner",
    "SSHConfig",
    "base_of",
    "check_args",
    "device_kind_names",
    "device_kinds",
    "find_device_kind",
    "find_runner",
    "load_devices",
    "load_pools",
    "make_device",
    "make_pool",
    "read_devices",
    "recall_spec",
    "register_device_kind",
    "register_runner",
    "remember_spec",
    "runner_names",
    "settings_of",
    "stoppable_commands",
]

_find, __dir__ = lazy_face(__name__, __all__)


def __getattr__(name: str) -> Any:  # noqa: ANN401 - a class
    return local_config() if name == "LocalConfig" else _find(name)
