"""How a Python is started: never with the current folder, or a script's, among the places that it imports from.

``python -m`` and ``python -c`` look there first, so that a ``numpy.py`` beside a model would be run as numpy.
What the user put on PYTHONPATH stays: that is the user's own choice.
"""

from __future__ import annotations

import sys

# Every Python since 3.8 understands it. ``sys`` is built in, and the folder stands first, as an empty name.
_WITHOUT_FOLDER = "import sys; sys.path[:1] = filter(None, sys.path[:1])\n"
_MODULE = "import runpy\nrunpy.run_module({!r}, run_name='__main__', alter_sys=True)\n"


def python_argv(
    python: str | None = None,
    *,
    module: str | None = None,
    code: str | None = None,
    file: str | None = None,
    isolated: bool = False,
) -> list[str]:
    """Return the start of a command that runs a module, a code or a file; its arguments follow.

    Args:
        python: Which Python, here or on a board, of any version since 3.8; the one that runs this when not given.
        module: Run it as ``-m`` does.
        code: Run it as ``-c`` does.
        file: An archive that imports from itself; a script needs ``isolated`` unless this Python runs it.
        isolated: Without PYTHONPATH and the user's own packages too, for an environment that has all it needs.
    """
    if python is None and not isolated and sys.version_info < (3, 11):
        python = sys.executable  # it knows no -P
    if isolated or python is None:
        flag = "-I" if isolated else "-P"
        what = ["-m", module] if module is not None else ["-c", code] if code is not None else [file]
        return [python or sys.executable, flag, *(word for word in what if word is not None)]
    if file is not None:
        return [python, file]
    return [python, "-c", _WITHOUT_FOLDER + (code if code is not None else _MODULE.format(module))]


def version_checks(python: str, *packages: str) -> dict[str, list[str]]:
    """Return the commands that print the version of a Python and of packages in it, without importing any of them."""
    checks = {"python": python_argv(python, code="import platform; print(platform.python_version())")}
    for name in packages:
        code = "import importlib.metadata as m; print(m.version('{}'))".format(name)
        checks[name] = python_argv(python, code=code)
    return checks
