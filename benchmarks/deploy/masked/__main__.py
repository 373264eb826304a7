"""Run a program on a family of processors: python -m deploy.masked FAMILY PROGRAM [ARGUMENT ...]."""

from __future__ import annotations

import os
import sys
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parents[2]))
from deploy import masked

ENOUGH = 3

if __name__ == "__main__":
    if len(sys.argv) < ENOUGH:
        sys.exit(f"{__doc__}\nFamilies: host, {', '.join(masked.HIDDEN)}")
    try:
        os.execvpe(sys.argv[2], sys.argv[2:], masked.environment(sys.argv[1]))  # noqa: S606
    except masked.MaskError as error:
        sys.exit(str(error))
