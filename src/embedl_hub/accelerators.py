"""Accelerators that boards have: how a board is asked for them, and by which names they are told apart."""

from __future__ import annotations

KINDS = {
    "gpu": ("gpu", "nvidia", "geforce", "quadro", "tesla", "tegra", "radeon", "mali", "adreno", "intel arc"),
    "tpu": ("tpu", "apex"),
    "npu": ("npu", "tpu", "apex", "hailo", "accel/", "hexagon", "ethos"),
}
"""Kinds of accelerators, by parts of the names that drivers give them."""

# For a POSIX shell; prints lines "accelerator=NAME" and "version.KEY=VALUE".
PROBE = """\
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
"""
