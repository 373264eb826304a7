"""An index that somebody has tampered with: wheels of the right names whose code is theirs."""

from __future__ import annotations

import zipfile
from collections.abc import Mapping
from pathlib import Path

import pytest


def planted_wheel(folder: Path, name: str, version: str, tag: str = "py3-none-any", code: str = "") -> Path:
    """Write a wheel that pip installs without complaint."""
    module = name.replace("-", "_")
    path = folder / f"{module}-{version}-{tag}.whl"
    info = f"{module}-{version}.dist-info"
    with zipfile.ZipFile(path, "w") as wheel:
        wheel.writestr(f"{module}/__init__.py", code)
        wheel.writestr(f"{info}/METADATA", f"Metadata-Version: 2.1\nName: {name}\nVersion: {version}\n")
        wheel.writestr(f"{info}/WHEEL", f"Wheel-Version: 1.0\nGenerator: x\nRoot-Is-Purelib: true\nTag: {tag}\n")
        wheel.writestr(f"{info}/RECORD", "")
    return path


def planted_index(folder: Path, packages: Mapping[str, str], monkeypatch: pytest.MonkeyPatch, code: str = "") -> None:
    """Let pip see nothing but a folder with planted wheels of these names and versions."""
    folder.mkdir()
    for name, version in packages.items():
        planted_wheel(folder, name, version, code=code)
    monkeypatch.setenv("PIP_NO_INDEX", "1")
    monkeypatch.setenv("PIP_FIND_LINKS", str(folder))
    monkeypatch.setenv("PIP_CONFIG_FILE", "/dev/null")
