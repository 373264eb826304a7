"""What a run was measured on: read from its parameters and its profile document."""

from __future__ import annotations

import json
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from embedl_hub.tracking import Run

# Operators that ONNX Runtime and its optimiser use for integers.
_INTEGER_OPS = ("QLinear", "QGemm", "QuantizeLinear", "DequantizeLinear", "MatMulInteger", "ConvInteger", "QAttention")

# The order is the order in which a reader must look: a ratio between two models means something else than one
# between two boards.
FACTS = (
    "model", "precision", "runtime", "execution providers", "device", "system", "threads", "power", "batch", "data",
    "optimisation", "provider",
)  # fmt: skip


@dataclass(frozen=True)
class Document:
    """A run's profile document, or why there is none."""

    content: Mapping[str, Any] = field(default_factory=dict)
    missing: str | None = None

    @property
    def samples_us(self) -> list[float]:
        """The raw samples."""
        samples = self.content.get("samples_us")
        return [float(value) for value in samples if _is_number(value)] if isinstance(samples, list) else []

    @property
    def layers(self) -> list[Mapping[str, Any]]:
        """The layer rows."""
        rows = self.get("layers", "rows")
        return [row for row in rows if isinstance(row, dict) and "name" in row] if isinstance(rows, list) else []

    def get(self, *keys: str) -> Any:  # noqa: ANN401 - any JSON
        """Return what is under a path of keys, or None."""
        found: Any = self.content
        for key in keys:
            found = found.get(key) if isinstance(found, dict) else None
        return found


def read_document(run: Run) -> Document:
    """Return a run's profile document; a run without one still has its parameters."""
    artifact = run.artifacts.get("output_file")
    if artifact is None or not artifact.file_name.endswith(".json"):
        return Document(missing="the run kept no profile document")
    if artifact.local_path is None:
        return Document(missing="the profile document is not on this machine")
    try:
        content = json.loads(artifact.local_path.read_text(encoding="utf-8"))
    except (OSError, ValueError) as error:
        return Document(missing=f"the profile document cannot be read: {error}")
    return Document(content) if isinstance(content, dict) else Document(missing="the profile document is no object")


def facts_of(run: Run, document: Document) -> dict[str, str | None]:
    """Return the facts by name; None for what is not known."""
    spec = _param(run, "$device_spec") or {}
    spec = spec if isinstance(spec, dict) else {}
    found = {
        "model": _model(run),
        "precision": _precision(run, document),
        "runtime": _runtime(run, document),
        "execution providers": _joined(document.get("settings", "providers")),
        "device": _device(run, document, spec),
        "system": document.get("environment", "board", "system") or spec.get("os"),
        "threads": _threads(document),
        "power": _power(document),
        "batch": _batch(document),
        "data": document.get("data", "source"),
        "optimisation": document.get("settings", "level"),
        "provider": run.provider,
    }
    return {name: None if found[name] is None else str(found[name]) for name in FACTS}


def _model(run: Run) -> str | None:
    artifact = run.artifacts.get("input")
    return None if artifact is None else f"{artifact.file_name} ({artifact.sha256[:12]})"


def _precision(run: Run, document: Document) -> str | None:
    if isinstance(told := _param(run, "precision"), str):
        return told
    if run.params.get("quantization") is not None:
        return "int8"
    ops = [str(row.get("op_type", "")) for row in document.layers]
    if not ops:
        return None
    return "int8" if any(op.startswith(_INTEGER_OPS) for op in ops) else "float"


def _runtime(run: Run, document: Document) -> str | None:
    name = document.get("runtime", "name") or _param(run, "$runtime")
    version = document.get("runtime", "version") or _param(run, "runtime_version")
    return " ".join(str(part) for part in (name, version) if part) or None


def _device(run: Run, document: Document, spec: Mapping[str, Any]) -> str | None:
    board = document.get("environment", "board") or {}
    hardware = [spec.get("device_name") or board.get("model"), board.get("cpu") or spec.get("cpu")]
    words = ", ".join(str(part) for part in hardware if part)
    name = run.device or document.get("place") or ("this machine" if run.provider == "local" else None)
    return f"{name} ({words})" if name and words else name or words or None


def _threads(document: Document) -> str | None:
    settings = document.get("settings")
    if not isinstance(settings, dict) or "threads" not in settings:
        return None
    cores = document.get("environment", "board", "cores_usable")
    return str(settings["threads"] or f"left to the runtime, {cores or 'unknown'} cores")


def _power(document: Document) -> str | None:
    before = document.get("environment", "before")
    if not isinstance(before, dict):
        return None
    governor, limit = before.get("governor"), before.get("clock_limit_mhz")
    words = [str(governor)] if governor else []
    words += [f"at most {limit} MHz"] if limit else []
    return ", ".join(words) or None


def _batch(document: Document) -> str | None:
    inputs = document.get("data", "inputs")
    if not isinstance(inputs, dict):
        return None
    shapes = {name: value.get("shape") for name, value in inputs.items() if isinstance(value, dict)}
    return ", ".join(f"{name} {_joined(shape, '×')}" for name, shape in sorted(shapes.items())) or None


def _joined(values: Sequence[object] | None, mark: str = ", ") -> str | None:
    return mark.join(map(str, values)) if isinstance(values, list) and values else None


def _param(run: Run, name: str) -> Any:  # noqa: ANN401 - any JSON
    return run.params[name].value if name in run.params else None


def _is_number(value: object) -> bool:
    return isinstance(value, int | float) and not isinstance(value, bool)
