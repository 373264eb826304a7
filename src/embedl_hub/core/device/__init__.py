"""Devices and how to reach them."""

from embedl_hub.core.device._board import BOARD_LABEL, Board
from embedl_hub.core.device._config import ProviderConfig
from embedl_hub.core.device._device import Device
from embedl_hub.core.device._devices_file import DEVICES_FILE, load_devices, make_device, read_devices
from embedl_hub.core.device._kind import DeviceKind, device_kind_names, find_device_kind, register_device_kind
from embedl_hub.core.device._local import LocalCommandRunner
from embedl_hub.core.device._onnxruntime import EmbedlONNXRuntimeConfig, ONNXRuntimeConfig
from embedl_hub.core.device._qai_hub import QAIHubConfig
from embedl_hub.core.device._runner import AnyPath, CommandResult, CommandRunner, Lease, LeasingRunner
from embedl_hub.core.device._spec import DeviceSpec
from embedl_hub.core.device._ssh import SSHCommandRunner
from embedl_hub.core.device._ssh_config import SSHConfig

__all__ = [
    "BOARD_LABEL",
    "DEVICES_FILE",
    "AnyPath",
    "Board",
    "CommandResult",
    "CommandRunner",
    "Device",
    "DeviceKind",
    "DeviceSpec",
    "EmbedlONNXRuntimeConfig",
    "Lease",
    "LeasingRunner",
    "LocalCommandRunner",
    "ONNXRuntimeConfig",
    "ProviderConfig",
    "QAIHubConfig",
    "SSHCommandRunner",
    "SSHConfig",
    "device_kind_names",
    "find_device_kind",
    "load_devices",
    "make_device",
    "read_devices",
    "register_device_kind",
]
