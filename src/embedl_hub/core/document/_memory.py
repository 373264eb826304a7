"""Memory by layer, as a runtime told it or as it is predicted, and whether a device has room for it."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Self

_MB = 1e6


@dataclass(frozen=True)
class LayerMemory:
    """What of the arena is in use while one layer runs."""

    name: str
    op_type: str = ""
    in_use_bytes: int = 0  # every tensor that is alive then, with the layer's own outputs and packed weights
    scratch_bytes: int = 0  # what its kernel takes for itself besides, where that is known


@dataclass(frozen=True)
class MemoryPart:
    """A part of the arena at its peak."""

    what: str
    size_bytes: int


@dataclass(frozen=True)
class MemoryProfile:
    """What a model takes in a runtime; ``parts`` add up to ``arena_bytes`` exactly."""

    method: str  # how the figures were found out
    arena_bytes: int | None = None  # what the runtime's arena holds in the end
    weights_bytes: int | None = None  # weights that are not in the arena
    peak_layer: str | None = None  # where most of the arena is in use
    rows: tuple[LayerMemory, ...] = ()  # the layers in the order they run
    parts: tuple[MemoryPart, ...] = ()  # what the arena is made of at that layer
    problem: str | None = None  # why there are no figures, or what they leave out
    runtime_bytes: int = 0  # what the runtime takes without any model, about
    facts: Mapping[str, object] = field(default_factory=dict)  # what else is told

    @property
    def total_bytes(self) -> int | None:
        """Arena and weights; None unless both are known."""
        if self.arena_bytes is None or self.weights_bytes is None:
            return None
        return self.arena_bytes + self.weights_bytes

    def as_json(self) -> dict[str, object]:
        """Return it for a document."""
        return {
            "method": self.method,
            "arena_bytes": self.arena_bytes,
            "weights_bytes": self.weights_bytes,
            "peak_layer": self.peak_layer,
            "parts": [{"what": part.what, "bytes": part.size_bytes} for part in self.parts],
            "rows": [dict(vars(row)) for row in self.rows],
            "missing_because": self.problem,
            "runtime_bytes": self.runtime_bytes,
            **self.facts,
        }

    @classmethod
    def from_json(cls, content: Mapping[str, object]) -> Self:
        """Read it as far as it can be read."""
        rows = tuple(
            LayerMemory(str(row.get("name")), str(row.get("op_type") or ""), _count(row, "in_use_bytes") or 0,
                        _count(row, "scratch_bytes") or 0)
            for row in _objects(content.get("rows"))
        )  # fmt: skip
        parts = [(str(part.get("what")), _count(part, "bytes")) for part in _objects(content.get("parts"))]
        layer, problem = content.get("peak_layer"), content.get("missing_because")
        known = {
            "method", "arena_bytes", "weights_bytes", "peak_layer", "parts", "rows", "missing_because", "runtime_bytes",
        }  # fmt: skip
        return cls(
            str(content.get("method") or ""),
            _count(content, "arena_bytes"),
            _count(content, "weights_bytes"),
            layer if isinstance(layer, str) else None,
            rows,
            tuple(MemoryPart(what, size) for what, size in parts if size is not None),
            problem if isinstance(problem, str) else None,
            _count(content, "runtime_bytes") or 0,
            {name: value for name, value in content.items() if name not in known},
        )


@dataclass(frozen=True)
class Fit:
    """Whether a model has room on a device: ``fits`` is None where that is not known; ``text`` says it in words."""

    fits: bool | None
    text: str


def fit_of(plan: MemoryProfile, memory_bytes: int | None) -> Fit:
    """Hold a prediction against a device's memory, None for one that nobody knows."""
    if plan.total_bytes is None:
        return Fit(None, f"whether it fits is not known: {plan.problem or 'its memory cannot be predicted'}")
    needed = plan.total_bytes + plan.runtime_bytes
    layer = f", at layer {plan.peak_layer}" if plan.peak_layer else ""
    made_of = (
        f"weights {_mb(plan.weights_bytes or 0)}, arena {_mb(plan.arena_bytes or 0)}, "
        f"the runtime itself about {_mb(plan.runtime_bytes)}"
    )
    if memory_bytes is None:
        return Fit(None, f"takes {_mb(needed)} MB{layer} ({made_of}); the memory of the device is not known")
    verdict = "fits" if needed <= memory_bytes else "will not fit"
    return Fit(needed <= memory_bytes, f"{verdict}: {_mb(needed)} of {_mb(memory_bytes)} MB{layer} ({made_of})")


def _mb(size_bytes: int) -> str:
    megabytes = size_bytes / _MB
    return f"{megabytes:.0f}" if megabytes >= 10 else f"{megabytes:.1f}"


def _objects(value: object) -> list[Mapping[str, object]]:
    return [each for each in value if isinstance(each, Mapping)] if isinstance(value, list) else []


def _count(content: Mapping[str, object], key: str) -> int | None:
    value = content.get(key)
    return value if isinstance(value, int) and not isinstance(value, bool) and value >= 0 else None
