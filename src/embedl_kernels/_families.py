"""Kernel families as data: what integer kernels compute, by runtime, architecture and processor feature."""

from __future__ import annotations

from dataclasses import dataclass
from typing import FrozenSet, Iterable, Optional, Tuple

EXACT = "exact"
SATURATING = "saturating"
REQUIRES = "edgeproof.requires"
"""The key in a model's metadata under which a file says what kernels it needs."""
EXACT_U8S8 = "u8s8=exact"
"""What stands there in a file whose weights use all 8 bits."""
_X86 = frozenset({"x86_64", "amd64", "i386", "i686", "x86"})
_ARM = frozenset({"aarch64", "arm64", "armv7l", "armv8l", "arm"})
_VNNI = frozenset({"avx512_vnni", "avx_vnni", "amx_int8"})


@dataclass(frozen=True)
class Family:
    """Kernels that give the same bits for the same file.

    Attributes:
        name: The name to ask for it by.
        runtime: ``onnxruntime``, ``litert`` or ``openvino``.
        architectures: Machine names that it is found on.
        any_of: Processor features, one of which it needs; empty for none.
        u8s8: What a sum of u8 × s8 products is: ``exact``, or ``saturating``: pairs are added in 16 bits and cut off.
        signed: Whether kernels for signed activations are the fast ones.
        wraps: Whether sums with a weight of -128 may wrap around: of all kernels (``all``), or of the depthwise ones.
        add: How an addition of quantised values is computed: ``fused`` multiply-add, in ``steps``, in ``fixed`` point.
        title: What people call such processors.
        since: First version of the runtime for which this was checked.
    """

    name: str
    runtime: str
    architectures: FrozenSet[str]
    any_of: FrozenSet[str]
    u8s8: str
    signed: bool
    title: str
    wraps: str = ""
    add: str = "fused"
    since: Tuple[int, ...] = (1, 16)

    @property
    def saturates(self) -> bool:
        """Whether a file may answer otherwise here than its integers say."""
        return self.u8s8 == SATURATING

    @property
    def cause(self) -> str:
        """Why its answers may differ from a file's arithmetic; empty where they cannot."""
        if not self.saturates:
            return ""
        return (
            f"this processor has no VNNI: u8 x s8 kernels of {self.runtime} add products in pairs in 16 bits and cut "
            "off what does not fit"
        )


# The first that fits is the one: rows of a runtime go from the newest processor to the oldest.
FAMILIES: Tuple[Family, ...] = (
    Family(
        "x86-vnni", "onnxruntime", _X86, _VNNI, EXACT, signed=False,
        title="x86 with VNNI or AMX: Intel from Cascade Lake on, AMD from Zen 4 on",
    ),
    Family(
        "x86-avx2", "onnxruntime", _X86, frozenset({"avx2"}), SATURATING, signed=False,
        title="x86 with AVX2 or AVX-512 and no VNNI: Intel Haswell to Skylake, AMD up to Zen 3, most Atoms",
    ),
    Family(
        "x86-sse", "onnxruntime", _X86, frozenset(), EXACT, signed=False,
        title="x86 without AVX2: Intel before Haswell, old Atoms", add="steps",
    ),
    Family(
        "arm-i8mm", "onnxruntime", _ARM, frozenset({"i8mm"}), EXACT, signed=True,
        title="ARM with matrix products (i8mm): Neoverse V1, Cortex-A710, Apple M2", wraps="depthwise", add="fixed",
    ),
    Family(
        "arm-dotprod", "onnxruntime", _ARM, frozenset({"asimddp"}), EXACT, signed=True,
        title="ARM with dot products: Cortex-A55, -A76, Raspberry Pi 5, Jetson Orin", wraps="depthwise", add="fixed",
    ),
    Family(
        "arm-neon", "onnxruntime", _ARM, frozenset(), EXACT, signed=True,
        title="ARM without dot products: Cortex-A53, -A72, Raspberry Pi 3 and 4", wraps="all", add="fixed",
    ),
    Family(
        "litert-x86", "litert", _X86, frozenset(), EXACT, signed=True,
        title="LiteRT (XNNPACK) on x86: products widened to 16 bits first, or VNNI", since=(2, 0),
    ),
    Family(
        "litert-arm", "litert", _ARM, frozenset(), EXACT, signed=True,
        title="LiteRT (XNNPACK) on ARM", since=(2, 0),
    ),
    Family(
        "openvino-x86-vnni", "openvino", _X86, _VNNI, EXACT, signed=False,
        title="OpenVINO on x86 with VNNI or AMX", since=(2024, 0),
    ),
    Family(
        "openvino-x86-avx2", "openvino", _X86, frozenset({"avx2"}), SATURATING, signed=False,
        title="OpenVINO on x86 with AVX2 or AVX-512 and no VNNI", since=(2024, 0),
    ),
    Family(
        "openvino-x86-sse", "openvino", _X86, frozenset(), SATURATING, signed=False,
        title="OpenVINO on x86 without AVX2", since=(2024, 0),
    ),
    Family(
        "openvino-arm", "openvino", _ARM, frozenset(), EXACT, signed=True,
        title="OpenVINO on ARM", since=(2024, 0),
    ),
)  # fmt: skip


def families(runtime: str = "onnxruntime") -> Tuple[Family, ...]:
    """Return the families of a runtime."""
    return tuple(one for one in FAMILIES if one.runtime == runtime)


def get_family(name: str) -> Family:
    """Return a family by its name.

    Raises:
        KeyError: There is none of that name; the message has those that are.
    """
    for one in FAMILIES:
        if one.name == name:
            return one
    raise KeyError("There is no kernel family {!r}; known are {}.".format(name, ", ".join(f.name for f in FAMILIES)))


def family_of(architecture: str, features: Iterable[str], runtime: str = "onnxruntime") -> Optional[Family]:
    """Return the family of a processor by what it says of itself, None for an architecture that is not known."""
    machine, found = architecture.lower(), {name.lower() for name in features}
    for one in families(runtime):
        fits = machine in one.architectures or (machine.startswith("arm") and "arm" in one.architectures)
        if fits and (not one.any_of or one.any_of & found):
            return one
    return None


def mismatch(requires: str, family: Optional[Family]) -> str:
    """Say why a file with a requirement gives wrong answers on a family; empty where it does not, or none is known.

    Args:
        requires: What the file's metadata holds under `REQUIRES`; several requirements are separated by commas.
        family: The kernels it is to run on.
    """
    if EXACT_U8S8 not in [word.strip() for word in requires.split(",")] or family is None or not family.saturates:
        return ""
    return (
        "the file uses all 8 bits of its weights and needs exact u8 x s8 sums, and {}. Compile or export it again for "
        "this device, or make the portable file of its Q/DQ form: embedl-deploy relower FILE PORTABLE --dialect "
        "onnxruntime-x86".format(family.cause)
    )
