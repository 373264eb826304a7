"""Conversions kept: the same model with the same options is converted once on this machine."""

from __future__ import annotations

import hashlib
import json
import os
import shutil
from pathlib import Path
from typing import TYPE_CHECKING, Any

from embedl_hub.tflite import converter
from embedl_hub.tflite.environment import cache_dir, key
from embedl_hub.tracking import hash_file

if TYPE_CHECKING:
    from collections.abc import Mapping

_CAP_BYTES = 4 << 30
_MODEL, _ANSWER = "model.tflite", "answer.json"


def key_of(source_sha256: str, options: Mapping[str, Any], calibration: Path | None) -> str:
    """Return what a conversion is known by: everything that can change its result."""
    facts = {
        "source": source_sha256,
        "options": dict(options),
        "calibration": None if calibration is None else _digest(calibration),
        "environment": key(),
        "code": hash_file(Path(converter.__file__)),
    }
    return hashlib.sha256(json.dumps(facts, sort_keys=True).encode()).hexdigest()


def look_up(name: str) -> tuple[Path, dict[str, Any]] | None:
    """Return a kept model and its facts; None when there is none, or it is damaged."""
    folder = _folder() / name
    try:
        answer = json.loads((folder / _ANSWER).read_text(encoding="utf-8"))
        if hash_file(folder / _MODEL) != answer["sha256"]:
            return None
        os.utime(folder)
    except (OSError, ValueError, KeyError, TypeError):
        return None
    return folder / _MODEL, answer


def keep(name: str, model: Path, answer: Mapping[str, Any]) -> None:
    """Keep a conversion; whoever comes first stays."""
    folder = _folder() / name
    part = folder.with_name(f".{name}.{os.getpid()}.part")
    part.mkdir(parents=True, exist_ok=True)
    try:
        shutil.copyfile(model, part / _MODEL)
        facts = {**answer, "sha256": hash_file(part / _MODEL)}
        (part / _ANSWER).write_text(json.dumps(facts), encoding="utf-8")
        if folder.exists():
            shutil.rmtree(folder, ignore_errors=True)
        part.rename(folder)
    except OSError:
        # A cache that cannot be written costs time, not the result.
        shutil.rmtree(part, ignore_errors=True)
    _trim()


def _folder() -> Path:
    return cache_dir() / "compiled" / "tflite"


def _trim() -> None:
    """Drop the least recently used until the rest fits."""
    entries = sorted(
        ((folder.stat().st_mtime, sum(file.stat().st_size for file in folder.iterdir()), folder)
         for folder in _folder().iterdir() if folder.is_dir()),
        key=lambda entry: entry[0],
    )  # fmt: skip
    total = sum(size for _, size, _ in entries)
    for _, size, folder in entries:
        if total <= _CAP_BYTES:
            return
        shutil.rmtree(folder, ignore_errors=True)
        total -= size


def _digest(path: Path) -> str:
    if path.is_file():
        return hash_file(path)
    files = sorted(file for file in path.iterdir() if file.suffix in {".npy", ".npz"})
    return hashlib.sha256("\n".join(f"{file.name} {hash_file(file)}" for file in files).encode()).hexdigest()
