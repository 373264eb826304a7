"""Devices and how to reach them."""

from embedl_hub.core.device._aws import AWSConfig
from embedl_hub.core.device._board import BOARD_LABEL, Board
from embedl_hub.core.device._config import ProviderConfig
from embedl_hub.core.device._device import Device
from embedl_hub.core.device._devices_file import DEVICES_FILE, load_devices, make_device, read_devices
from embedl_hub.core.device._here import LocalConfig
from embedl_hub.core.device._kind import DeviceKind, device_kind_names, find_device_kind, register_device_kind
from embedl_hub.core.device._litert import EmbedlLiteRTConfig, LiteRTConfig
from embedl_hub.core.device._local import LocalCommandRunner
from embedl_hub.core.device._measuring import MeasuringConfig
from embedl_hub.core.device._onnxruntime import EmbedlONNXRuntimeConfig, ONNXRuntimeConfig
from embedl_hub.core.device._pools import Pool, load_pools, make_pool
from embedl_hub.core.device._process import Commands, stoppable_commands
from embedl_hub.core.device._qai_hub import QAIHubConfig
from embedl_hub.core.device._query import Clause, DeviceQuery
from embedl_hub.core.device._recall import recall_spec, remember_spec
from embedl_hub.core.device._runner import AnyPath, CommandResult, CommandRunner, Lease, LeasingRunner
from embedl_hub.core.device._spec import DeviceSpec
from embedl_hub.core.device._ssh import SSHCommandRunner
from embedl_hub.core.device._ssh_config import SSHConfig
from embedl_hub.core.device._tensorrt import TensorRTRTXConfig, TrtexecConfig

__all__ = [
    "BOARD_LABEL",
    "DEVICES_FILE",
    "AWSConfig",
    "AnyPath",
    "Board",
    "Clause",
    "CommandResult",
    "CommandRunner",
    "Commands",
    "Device",
    "DeviceKind",
    "DeviceQuery",
    "DeviceSpec",
    "EmbedlLiteRTConfig",
    "EmbedlONNXRuntimeConfig",
    "Lease",
    "LeasingRunner",
    "LiteRTConfig",
    "LocalCommandRunner",
    "LocalConfig",
    "MeasuringConfig",
    "ONNXRuntimeConfig",
    "Pool",
    "ProviderConfig",
    "QAIHubConfig",
    "SSHCommandRunner",
    "SSHConfig",
    "TensorRTRTXConfig",
    "TrtexecConfig",
    "device_kind_names",
    "find_device_kind",
    "load_devices",
    "load_pools",
    "make_device",
    "make_pool",
    "read_devices",
    "recall_spec",
    "register_device_kind",
    "remember_spec",
    "stoppable_commands",
]
