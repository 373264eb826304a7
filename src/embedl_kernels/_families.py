"""Kernel families as data: what integer kernels compute, by runtime, architecture and feature; and a probe of them."""

from __future__ import annotations

import time
from dataclasses import dataclass
from typing import Any, Callable, Dict, FrozenSet, Iterable, Optional, Tuple

import numpy as np

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
    """Kernels that give the same bits for the same file."""

    name: str
    runtime: str  # ``onnxruntime``, ``litert`` or ``openvino``
    architectures: FrozenSet[str]  # machine names that it is found on
    any_of: FrozenSet[str]  # processor features, one of which it needs; empty for none
    u8s8: str  # what a sum of u8 × s8 products is: ``exact``, or ``saturating``: pairs are added in 16 bits and cut off
    signed: bool  # whether kernels for signed activations are the fast ones
    title: str  # what people call such processors
    # Whether sums with a weight of -128 may wrap around: of all kernels (``all``), or of the depthwise ones
    wraps: str = ""
    # How an addition of quantized values is computed: ``fused`` multiply-add, in ``steps``, in ``fixed`` point
    add: str = "fused"
    since: Tuple[int, ...] = (1, 16)  # first version of the runtime for which this was checked

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
    return tuple(family for family in FAMILIES if family.runtime == runtime)


def get_family(name: str) -> Family:
    """Return a family by its name.

    Raises:
        KeyError: There is none of that name; the message has those that are.
    """
    for family in FAMILIES:
        if family.name == name:
            return family
    raise KeyError("There is no kernel family {!r}; known are {}.".format(name, ", ".join(f.name for f in FAMILIES)))


def family_of(architecture: str, features: Iterable[str], runtime: str = "onnxruntime") -> Optional[Family]:
    """Return the family of a processor by what it says of itself, None for an architecture that is not known."""
    machine, found = architecture.lower(), {name.lower() for name in features}
    for family in families(runtime):
        fits = machine in family.architectures or (machine.startswith("arm") and "arm" in family.architectures)
        if fits and (not family.any_of or family.any_of & found):
            return family
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


_LENGTH = 64
_SUM = _LENGTH * 255 * 127
_PAIRS = _LENGTH // 2 * 32767


def _field(number: int, payload: bytes) -> bytes:
    return bytes([number << 3 | 2, len(payload)]) + payload


def _value(name: bytes, kind: int) -> bytes:
    """A graph input or output whose shape is left open."""
    return _field(1, name) + _field(2, _field(1, bytes([0x08, kind])))


def _model() -> bytes:
    """MatMulInteger of uint8 A and int8 B, written as protobuf by hand: a board has no onnx package."""
    node = _field(1, b"A") + _field(1, b"B") + _field(2, b"Y") + _field(4, b"MatMulInteger")
    graph = _field(1, node) + _field(2, b"probe")
    graph += _field(11, _value(b"A", 2)) + _field(11, _value(b"B", 3)) + _field(12, _value(b"Y", 6))
    opset = _field(1, b"") + bytes([0x10, 10])
    return bytes([0x08, 5]) + _field(7, graph) + _field(8, opset)


MODEL = _model()


@dataclass(frozen=True)
class Probe:
    """What the runtime answered."""

    total: int  # the sum it gave
    u8s8: str  # ``exact``, ``saturating``, or the sum itself as text where it is neither
    milliseconds: float  # how long it took, session included

    def to_dict(self) -> Dict[str, Any]:
        """Return everything as JSON-able data."""
        return {"total": self.total, "u8s8": self.u8s8, "milliseconds": round(self.milliseconds, 3)}


def probe(open_session: Callable[[bytes], Any]) -> Probe:
    """Run the probe with a function that opens a session on a model in memory."""
    start = time.perf_counter()
    session = open_session(MODEL)
    feed = {"A": np.full((8, _LENGTH), 255, np.uint8), "B": np.full((_LENGTH, 16), 127, np.int8)}
    total = int(np.asarray(session.run(None, feed)[0]).reshape(-1)[0])
    kind = {_SUM: EXACT, _PAIRS: SATURATING}.get(total, str(total))
    return Probe(total, kind, (time.perf_counter() - start) * 1e3)


def same_family(found: Optional[Family], asked: Probe, runtime: str = "onnxruntime") -> Optional[Family]:
    """Return the family that the probe confirms: the one by features, or the one that answers as the runtime did.

    An emulator or a virtual machine may hide features that the processor's description lists, and the other way round.
    """
    if found is None or found.u8s8 == asked.u8s8 or asked.u8s8 not in (EXACT, SATURATING):
        return found
    alike = (family for family in FAMILIES if family.runtime == runtime and family.architectures == found.architectures)
    return next((family for family in alike if family.u8s8 == asked.u8s8), found)


def kernels_here(open_session: Callable[[bytes], Any], architecture: str, features: Any) -> Dict[str, Any]:
    """Return this machine's family, confirmed by the probe, as data for a record."""
    by_features = family_of(architecture, features)
    asked = probe(open_session)
    family = same_family(by_features, asked)
    return {
        "family": None if family is None else family.name,
        "by_features": None if by_features is None else by_features.name,
        "u8s8": asked.u8s8,
        "probe": asked.to_dict(),
    }
