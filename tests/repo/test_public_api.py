"""The public names, written down: a change here is a change for users."""

from __future__ import annotations

import importlib
from pathlib import Path

import pytest

SNAPSHOT = Path(__file__).with_name("public_api.txt")


def _snapshot() -> dict[str, list[str]]:
    names: dict[str, list[str]] = {}
    for line in SNAPSHOT.read_text().splitlines():
        module, _, listed = line.partition(": ")
        names[module] = listed.split()
    return names


@pytest.mark.parametrize("module", sorted(_snapshot()))
def test_a_face_offers_what_is_written_down(module: str) -> None:
    """Every name in __all__ is there and on the list, and nothing else is."""
    face = importlib.import_module(module)
    assert sorted(face.__all__) == sorted(_snapshot()[module])
    for name in face.__all__:
        assert hasattr(face, name), f"{module}.{name}"


def test_every_face_is_written_down() -> None:
    """A new public package is added to the list."""
    source = Path(__file__).parents[2] / "src"
    faces = {
        ".".join(path.relative_to(source).parent.parts)
        if path.name == "__init__.py"
        else ".".join(path.relative_to(source).with_suffix("").parts)
        for path in source.rglob("*.py")
        if not path.name.startswith("_") or path.name == "__init__.py"
        if "__all__ = " in path.read_text()
    }
    assert faces == set(_snapshot())
