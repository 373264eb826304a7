"""Write the stubs of the lazy faces: what type checkers and editors see of names that are found on use.

    .venv/bin/python tools/stubs.py [--check]

A stub repeats the face's own imports and adds the names of the toolchains and services that ship with the hub.
"""

from __future__ import annotations

import ast
import importlib
import sys
from pathlib import Path

SOURCE = Path(__file__).resolve().parent.parent / "src"
FACES = tuple(f"embedl_hub.core.{name}" for name in ("compile", "component", "device", "invoke", "profile"))
HEADER = "# Written by tools/stubs.py: the face's own names, and those of the toolchains and services that ship.\n"


def stub(face: str) -> str:
    """Return the text of a face's stub."""
    module = importlib.import_module(face)
    tree = ast.parse(path_of(face).with_suffix(".py").read_text(encoding="utf-8"))
    lines = []
    for node in tree.body:
        if isinstance(node, ast.ImportFrom) and node.module in ("collections.abc", "typing"):
            lines.append(ast.unparse(node))
        elif isinstance(node, ast.ImportFrom):
            public = [alias.name for alias in node.names if alias.name in module.__all__]
            lines += [f"from {node.module} import {name} as {name}" for name in public]
        elif isinstance(node, ast.Import | ast.AnnAssign):
            lines.append(ast.unparse(node))
        elif isinstance(node, ast.If):
            lines += [ast.unparse(each) for each in node.body]
    toolchains = sorted(set(dir(module)) - set(module.__all__)) if not face.endswith(".component") else []
    lines += [f"from {getattr(module, name).__module__} import {name} as {name}" for name in toolchains]
    if face.endswith(".device"):
        bases = ", ".join(base.__name__ for base in module.LocalConfig.__bases__)
        lines.append(f"class LocalConfig({bases}): ...")
    if face.endswith(".component"):
        lines.insert(0, "from enum import StrEnum")
        members = "".join(f"\n    {member.name} = {member.value!r}" for member in module.ProviderType)
        lines.append(f"class ProviderType(StrEnum):{members}")
    return HEADER + "\n".join(lines) + "\n"


def path_of(face: str) -> Path:
    """Return the stub of a face."""
    return SOURCE / Path(*face.split(".")) / "__init__.pyi"


def main() -> None:
    """Write the stubs, or say which are stale."""
    stale = [face for face in FACES if not path_of(face).exists() or path_of(face).read_text() != stub(face)]
    if "--check" in sys.argv[1:]:
        if stale:
            sys.exit(f"Stale stubs: {', '.join(stale)}. Write them anew: .venv/bin/python tools/stubs.py")
        return
    for face in stale:
        path_of(face).write_text(stub(face), encoding="utf-8")


if __name__ == "__main__":
    main()
