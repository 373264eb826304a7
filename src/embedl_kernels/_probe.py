"""Ask the runtime itself: 64 products of 255 and 127, added up by its own kernel."""

from __future__ import annotations

import time
from dataclasses import dataclass
from typing import Any, Callable, Dict, Optional

import numpy as np

from embedl_kernels._families import EXACT, FAMILIES, SATURATING, Family, family_of

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
    """What the runtime answered.

    Attributes:
        total: The sum it gave.
        u8s8: ``exact``, ``saturating``, or the sum itself as text where it is neither.
        milliseconds: How long it took, session included.
    """

    total: int
    u8s8: str
    milliseconds: float

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
    alike = (one for one in FAMILIES if one.runtime == runtime and one.architectures == found.architectures)
    return next((one for one in alike if one.u8s8 == asked.u8s8), found)


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
