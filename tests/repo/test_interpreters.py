"""One function starts Pythons: any other place would import from the current folder again."""

from __future__ import annotations

import ast
from pathlib import Path

SRC = Path(__file__).parents[2] / "src"
ALLOWED = SRC / "embedl_device" / "interpreter.py"
# Words of messages, and a candidate that ``python_argv`` is given.
NAMED = {
    "embedl_device/program.py": "messages",
    "embedl_hub/cli/doctor.py": "messages",
    "embedl_hub/machine/environment.py": "a candidate",
}


def test_no_other_place_builds_such_a_command() -> None:
    """Neither from this Python's path, nor with the options that run a module or a text."""
    found = []
    for path in sorted(SRC.rglob("*.py")):
        if path == ALLOWED:
            continue
        name = path.relative_to(SRC).as_posix()
        for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
            if isinstance(node, ast.Attribute) and ast.unparse(node) == "sys.executable" and name not in NAMED:
                found.append(f"{name}:{node.lineno}: sys.executable")
            if isinstance(node, ast.List | ast.Tuple) and _starts_python(node):
                found.append(f"{name}:{node.lineno}: {ast.unparse(node)[:80]}")
            if isinstance(node, ast.Constant) and isinstance(node.value, str) and _is_open(node.value):
                found.append(f"{name}:{node.lineno}: {node.value[:80]!r}")
    assert not found, "use embedl_device.interpreter.python_argv"


def _starts_python(words: ast.List | ast.Tuple) -> bool:
    texts = [word.value for word in words.elts if isinstance(word, ast.Constant)]
    is_shell = any(ast.unparse(word).strip("'\"") in ("sh", "shell", "bash") or "'sh'" in ast.unparse(word)
                   for word in words.elts)  # fmt: skip
    return "-m" in texts or ("-c" in texts and not is_shell)


def _is_open(text: str) -> bool:
    """Tell whether a shell's text starts a Python whose first import could be planted."""
    _, started, code = text.partition("$(python3 -c '")
    return bool(started) and not code.startswith("import sys; print(")
