"""Does NVML's energy counter agree with the integral of its samples of power?

Loads of different strength on one GPU, idle before and after: the counter's joules, as a sustained run takes them,
against the trapezoids over power read every 50 ms, which is what is left where a GPU has no counter. The load is a
kernel of our own through the driver; nothing but the driver and nvidia-ml-py is needed.

    PYTHONPATH=src python benchmarks/hub/bench_energy.py [--loads 10] [--seconds 20] [--json FILE]
"""

from __future__ import annotations

import ctypes
import sys
import time
from pathlib import Path
from typing import TYPE_CHECKING, Any

from embedl_device.power._nvml import NvmlEnergy, NvmlPower, handles
from embedl_device.sustained._energy import Series, integrated

sys.path.insert(0, str(Path(__file__).parents[1]))
from figures import Figure, alone, declared
from report import Session, parser

if TYPE_CHECKING:
    from collections.abc import Callable

WITHIN = 0.03
PERIOD_S = 0.05
# Power is the average of up to a second: before and after, so much of it is idle that nothing is cut off.
MARGIN_S = 2.5
_BLOCKS, _THREADS = 2048, 256
_PTX = b"""
.version 6.0
.target sm_50
.address_size 64
.visible .entry burn(.param .u64 out, .param .u32 count)
{
  .reg .pred %p; .reg .f32 %a, %b, %c, %d; .reg .u32 %i, %n, %t, %block, %size; .reg .u64 %o, %off;
  ld.param.u64 %o, [out];
  ld.param.u32 %n, [count];
  cvta.to.global.u64 %o, %o;
  mov.u32 %t, %tid.x;
  cvt.rn.f32.u32 %a, %t;
  mov.f32 %b, 0f3F800000;
  mov.f32 %c, 0f3F7FFF00;
  mov.f32 %d, 0f3DCCCCCD;
  mov.u32 %i, 0;
again:
  fma.rn.f32 %a, %a, %c, %d;
  fma.rn.f32 %b, %b, %c, %d;
  fma.rn.f32 %a, %a, %c, %b;
  fma.rn.f32 %b, %b, %c, %a;
  fma.rn.f32 %a, %a, %c, %d;
  fma.rn.f32 %b, %b, %c, %d;
  add.u32 %i, %i, 1;
  setp.lt.u32 %p, %i, %n;
  @%p bra again;
  add.f32 %a, %a, %b;
  mov.u32 %block, %ctaid.x;
  mov.u32 %size, %ntid.x;
  mad.lo.u32 %t, %block, %size, %t;
  mul.wide.u32 %off, %t, 4;
  add.u64 %o, %o, %off;
  st.global.f32 [%o], %a;
  ret;
}
\0"""


class Gpu:
    """The first GPU, by the driver's own interface."""

    def __init__(self) -> None:
        self._cuda = ctypes.CDLL("libcuda.so.1")
        device, context, module = ctypes.c_int(), ctypes.c_void_p(), ctypes.c_void_p()
        self._function, self._memory = ctypes.c_void_p(), ctypes.c_uint64()
        self._call("cuInit", 0)
        self._call("cuDeviceGet", ctypes.byref(device), 0)
        self._call("cuDevicePrimaryCtxRetain", ctypes.byref(context), device)
        self._call("cuCtxSetCurrent", context)
        self._call("cuModuleLoadData", ctypes.byref(module), ctypes.c_char_p(_PTX))
        self._call("cuModuleGetFunction", ctypes.byref(self._function), module, ctypes.c_char_p(b"burn"))
        self._call("cuMemAlloc_v2", ctypes.byref(self._memory), ctypes.c_size_t(4 * _BLOCKS * _THREADS))

    def _call(self, name: str, *arguments: Any) -> None:  # noqa: ANN401 - the driver's
        code = getattr(self._cuda, name)(*arguments)
        if code:
            raise OSError(f"{name} failed with the driver's code {code}.")

    def burn(self, count: int) -> None:
        """Compute, and wait for the end of it."""
        values = (ctypes.c_uint64(self._memory.value), ctypes.c_uint32(count))
        pointers = (ctypes.c_void_p * 2)(*(ctypes.cast(ctypes.byref(value), ctypes.c_void_p) for value in values))
        sizes = [ctypes.c_uint(size) for size in (_BLOCKS, 1, 1, _THREADS, 1, 1, 0)]
        self._call("cuLaunchKernel", self._function, *sizes, None, pointers, None)
        self._call("cuCtxSynchronize")

    def count_for(self, seconds: float) -> int:
        """Return how long the loop must be to take about so long."""
        count = 1000
        while True:
            start = time.perf_counter()
            self.burn(count)
            took_s = time.perf_counter() - start
            if took_s >= seconds / 2:
                return max(1, int(count * seconds / took_s))
            count *= 4


def measure(gpu: Gpu, count: int, share: float, seconds: float, energy: NvmlEnergy, power: NvmlPower) -> dict[str, Any]:
    """Compute for a share of the time; return the joules of the counter and of the integral over the same time."""
    times: list[float] = []
    watts: list[float] = []
    joules: list[float] = []
    begin = time.perf_counter()

    def look() -> None:
        if not times or time.perf_counter() - begin - times[-1] >= PERIOD_S:
            first = time.perf_counter()
            joules.append(energy.read())
            watts.append(power.read())
            times.append((first + time.perf_counter()) / 2 - begin)

    _until(begin + MARGIN_S, look)
    end = time.perf_counter() + seconds
    while time.perf_counter() < end:
        start = time.perf_counter()
        gpu.burn(count)
        look()
        _until(start + (time.perf_counter() - start) / share, look)
    _until(time.perf_counter() + MARGIN_S, look)
    counted = Series(times, [value - joules[0] for value in joules])
    summed = integrated(times, watts)
    whole = (times[0], times[-1])
    idle = [series.watts(times[0] + 0.5, times[0] + MARGIN_S - 0.2) for series in (counted, summed)]
    return {
        "share": share, "seconds": whole[1] - whole[0], "readings": len(times), "idle_w": idle,
        "counter_j": counted.joules[-1], "integral_j": summed.joules[-1],
        "mean_w": counted.watts(*whole),
    }  # fmt: skip


def _until(time_s: float, look: Callable[[], None]) -> None:
    while time.perf_counter() < time_s:
        look()
        time.sleep(0.005)


def figures(data: dict[str, Any]) -> list[Figure]:
    """Return what is quoted."""
    off = [100 * (row["integral_j"] / row["counter_j"] - 1) for row in data["loads"]]
    worst = max(off, key=abs)
    what = "integral of NVML's power against its energy counter"
    farthest = declared(f"{what}: farthest off", "%", worst, 1.0)
    return [
        farthest.required(f"within {100 * WITHIN:g} %", abs(worst) <= 100 * WITHIN).in_short(),
        alone(f"{what}: off by", "%", off),
        alone("power under load", "W", [row["mean_w"] for row in data["loads"]]),
    ]


def main() -> None:
    """Measure and print."""
    options = parser(__doc__)
    options.add_argument("--loads", type=int, default=10, help="so many loads (default 10)")
    options.add_argument("--seconds", type=float, default=20.0, help="length of a load (default 20)")
    arguments = options.parse_args()
    session = Session("energy", options, arguments, gpu=True)
    found, problem = handles()
    if not found:
        sys.exit(f"There is no GPU with NVML here ({problem or 'pip install nvidia-ml-py'}).")
    nvml, handle, name = found[0]
    energy, power = NvmlEnergy(nvml, handle, name), NvmlPower(nvml, handle, name)
    gpu = Gpu()
    count = gpu.count_for(0.05)
    rows = []
    for number in range(arguments.loads):
        share = 0.2 + 0.8 * number / max(1, arguments.loads - 1)
        rows.append(measure(gpu, count, share, arguments.seconds, energy, power))
        print(rows[-1], file=sys.stderr, flush=True)
    data = {"loads": rows, "gpu": name, "period_s": PERIOD_S}
    session.finish(data, figures(data), packages=("nvidia-ml-py",), facts={"gpu": name})


if __name__ == "__main__":
    main()
