"""NVIDIA GPUs by NVML, where the package nvidia-ml-py is: the energy counter, and the power it is made of.

``nvidia-smi`` tells no energy; its power is what `NvmlPower` reads.
"""

from __future__ import annotations

import importlib
from typing import Any, List, Optional

from embedl_device.power._source import GPU, Found, Source

# Reasons that mean less speed than asked for: power cap, hardware slowdown, sync boost, thermal, power brake. Idle,
# application clocks and display clocks are choices.
_SLOWED = 0x4 | 0x8 | 0x10 | 0x20 | 0x40 | 0x80


class NvmlEnergy(Source):
    """A GPU's own counter, in mJ since the driver was loaded."""

    domain, family, is_counter = GPU, "nvml", True

    def __init__(self, nvml: Any, handle: Any, name: str) -> None:
        self._nvml, self._handle, self.name = nvml, handle, name

    def read(self) -> float:
        """Return the joules since the driver was loaded."""
        return float(_asked(self._nvml, "nvmlDeviceGetTotalEnergyConsumption", self._handle)) / 1e3


class NvmlPower(Source):
    """What a GPU takes now: the average of the last second or less, as the GPU's generation has it."""

    domain, family, is_counter = GPU, "nvml", False

    def __init__(self, nvml: Any, handle: Any, name: str) -> None:
        self._nvml, self._handle, self.name = nvml, handle, name

    def read(self) -> float:
        """Return the watts of now."""
        return float(_asked(self._nvml, "nvmlDeviceGetPowerUsage", self._handle)) / 1e3


class GpuState:
    """Clock, temperature and reasons of slowing down of one GPU."""

    def __init__(self, nvml: Any, handle: Any, number: int) -> None:
        self._nvml, self._handle, self.name = nvml, handle, "GPU {}".format(number)

    def clock_mhz(self) -> Optional[float]:
        """Return the clock of its processors."""
        return self._number("nvmlDeviceGetClockInfo", 1)

    def temperature_c(self) -> Optional[float]:
        """Return its temperature."""
        return self._number("nvmlDeviceGetTemperature", 0)

    def slowed(self) -> Optional[float]:
        """Return 1 while it is slowed down, else 0."""
        reasons = self._number("nvmlDeviceGetCurrentClocksThrottleReasons")
        return None if reasons is None else float(bool(int(reasons) & _SLOWED))

    def _number(self, name: str, *more: int) -> Optional[float]:
        try:
            return float(_asked(self._nvml, name, self._handle, *more))
        except ValueError:
            return None


def _asked(nvml: Any, name: str, *arguments: Any) -> Any:
    try:
        return getattr(nvml, name)(*arguments)
    except (AttributeError, nvml.NVMLError) as error:
        raise ValueError("{}: {}".format(name, error)) from error


def find_nvml(package: str = "pynvml") -> Found:
    """Find the GPUs' counters; their power where one has none."""
    gpus, problem = handles(package)
    sources: List[Source] = []
    for nvml, handle, name in gpus:
        for kind in (NvmlEnergy, NvmlPower):
            source = kind(nvml, handle, name)
            try:
                source.read()
            except ValueError as error:
                problem = "{}: {}".format(name, error)
                continue
            sources.append(source)
            break
    return Found(sources, [problem] if problem and not sources else [])


def find_gpus(package: str = "pynvml") -> List[GpuState]:
    """Find the GPUs whose state can be watched."""
    return [GpuState(nvml, handle, number) for number, (nvml, handle, _) in enumerate(handles(package)[0])]


def handles(package: str = "pynvml") -> Any:
    """Return NVML, a handle and a name for each GPU, and what is wrong if something is."""
    try:
        nvml = importlib.import_module(package)
    except ImportError:
        return [], None
    try:
        nvml.nvmlInit()
        found = []
        for number in range(nvml.nvmlDeviceGetCount()):
            handle = nvml.nvmlDeviceGetHandleByIndex(number)
            title = nvml.nvmlDeviceGetName(handle)
            title = title.decode("utf-8", "replace") if isinstance(title, bytes) else str(title)
            found.append((nvml, handle, "NVML GPU {} ({})".format(number, title)))
    except (AttributeError, OSError, nvml.NVMLError) as error:
        return [], "NVML cannot be used: {}".format(error)
    return found, None
