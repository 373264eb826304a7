"""What a board is: as the user says, completed by asking the board once."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Mapping

# Prints "key=value" lines; every line is optional. $1 is the artifact root or nothing.
PROBE = """\
root=${1:-${XDG_CACHE_HOME:-$HOME/.cache}/edgeproof}
mkdir -p -- "$root/runs" "$root/store" && chmod 700 -- "$root" && (cd -- "$root" && echo "root=$(pwd -P)") || exit 1
echo "os=$(. /etc/os-release 2>/dev/null && echo "$PRETTY_NAME" || uname -s)"
echo "architecture=$(uname -m)"
echo "version.kernel=$(uname -r)"
echo "cores=$(getconf _NPROCESSORS_ONLN 2>/dev/null || nproc 2>/dev/null)"
while read -r key value unit; do
  if [ "$key" = MemTotal: ]; then echo "memory_kib=$value"; break; fi
done 2>/dev/null < /proc/meminfo
if [ -r /proc/device-tree/model ]; then echo "model=$(tr -d '\\000' < /proc/device-tree/model)"; fi
echo "cpu=$(sed -n 's/^model name[^:]*: //p' /proc/cpuinfo 2>/dev/null | head -n 1)"
echo "features=$(sed -n -e 's/^flags[^:]*: //p' -e 's/^Features[^:]*: //p' /proc/cpuinfo 2>/dev/null | head -n 1)"
if command -v nvidia-smi >/dev/null 2>&1; then
  nvidia-smi --query-gpu=name,driver_version --format=csv,noheader 2>/dev/null | while IFS=, read -r name driver; do
    echo "accelerator=$name"; echo "version.nvidia_driver=${driver# }"
  done
elif [ -r /etc/nv_tegra_release ]; then
  echo "accelerator=NVIDIA Tegra"; echo "version.l4t=$(head -n 1 /etc/nv_tegra_release)"
fi
for path in /dev/hailo[0-9]* /dev/apex_[0-9]* /dev/accel/accel[0-9]*; do
  if [ -e "$path" ]; then echo "accelerator=${path#/dev/}"; fi
done
if command -v python3 >/dev/null 2>&1; then
  echo "version.python=$(python3 -c 'import platform; print(platform.python_version())')"
fi
"""
# What decides which kernels a runtime takes; the first of each architecture is there on almost every processor, so that
# one without any of the others is known to have none.
_FEATURES = (
    "sse4_2", "avx2", "avx512f", "avx512_vnni", "avx_vnni", "amx_int8",
    "asimd", "asimddp", "i8mm", "asimdhp", "sve", "bf16",
)  # fmt: skip


@dataclass(frozen=True)
class DeviceSpec:
    """What a device is. Fields left out are filled in by asking the board.

    Attributes:
        device_name: What people call it: ``Jetson Orin Nano``, ``Samsung Galaxy S24``.
        os: Operating system with its version.
        architecture: ``aarch64``, ``x86_64`` …
        cpu: The processor's own name.
        cores: Processors that are online.
        memory_bytes: Main memory.
        accelerators: GPUs, NPUs and the like, by name.
        versions: Versions of what matters there, by name.
        features: Instruction sets of the processor that decide which kernels a runtime takes, as the system names them.
    """

    device_name: str | None = None
    os: str | None = None
    architecture: str | None = None
    cpu: str | None = None
    cores: int | None = None
    memory_bytes: int | None = None
    accelerators: tuple[str, ...] = ()
    versions: Mapping[str, str] = field(default_factory=dict)
    features: tuple[str, ...] = ()

    def over(self, found: DeviceSpec) -> DeviceSpec:
        """Return the spec with what it leaves out taken from what was found."""
        return DeviceSpec(
            device_name=self.device_name or found.device_name,
            os=self.os or found.os,
            architecture=self.architecture or found.architecture,
            cpu=self.cpu or found.cpu,
            cores=self.cores or found.cores,
            memory_bytes=self.memory_bytes or found.memory_bytes,
            accelerators=self.accelerators or found.accelerators,
            versions={**found.versions, **self.versions},
            features=self.features or found.features,
        )

    def kernel_family(self, runtime: str = "onnxruntime") -> str | None:
        """Return the family of a runtime's integer kernels on such a processor; None for what is not known.

        The processor's word alone: a run on the device records what the runtime itself answered.
        """
        if not self.architecture or not self.features:
            return None
        from embedl_kernels import family_of  # noqa: PLC0415 - needs numpy, which a face must not cost

        family = family_of(self.architecture, self.features, runtime)
        return None if family is None else family.name


def spec_of(answer: Mapping[str, list[str]]) -> DeviceSpec:
    """Return what a board said of itself."""

    def first(key: str) -> str | None:
        return next((value for value in answer.get(key, ()) if value), None)

    cores, memory = first("cores"), first("memory_kib")
    flags = (first("features") or "").split()
    return DeviceSpec(
        device_name=first("model"),
        os=first("os"),
        architecture=first("architecture"),
        cpu=first("cpu"),
        cores=int(cores) if cores and cores.isdigit() else None,
        memory_bytes=int(memory) * 1024 if memory and memory.isdigit() else None,
        accelerators=tuple(answer.get("accelerator", ())),
        versions={key.partition(".")[2]: values[0] for key, values in answer.items() if key.startswith("version.")},
        features=tuple(name for name in _FEATURES if name in flags),
    )


def parse_probe(text: str) -> dict[str, list[str]]:
    """Return the probe's lines as lists of values by key."""
    answer: dict[str, list[str]] = {}
    for line in text.splitlines():
        key, equals, value = line.partition("=")
        if equals:
            answer.setdefault(key, []).append(value.strip())
    return answer
