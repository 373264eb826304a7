"""Write requirements/constraints.txt: the versions of everything that ./test installs, as they are tested here.

.venv/bin/python tools/constraints.py
"""

from __future__ import annotations

import sys
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parent))

from closure import ROOT, closure, requirements_in

TARGET = ROOT / "requirements/constraints.txt"
HEAD = """\
# Written by tools/constraints.py from the tested environment; ./run, ./test and ./bench install these versions.
# Python {}.{}.
"""


def constraints() -> str:
    """Return the file's text for this environment."""
    wanted = requirements_in(ROOT / "requirements/test.txt")
    lines = sorted(f"{name}=={one.public_version}" for name, one in closure(wanted).items())
    return HEAD.format(*sys.version_info[:2]) + "\n".join(lines) + "\n"


if __name__ == "__main__":
    TARGET.write_text(constraints())
    print(f"{TARGET.relative_to(ROOT)}: {len(TARGET.read_text().splitlines()) - 2} distributions")
