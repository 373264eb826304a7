"""Where the benchmarks keep what is slow to make: environments, data sets, weights, exported files."""

from __future__ import annotations

import os
from pathlib import Path


def folder(*parts: str) -> Path:
    """Return a folder of the cache, made if need be: EDGEPROOF_BENCH, or edgeproof-bench in the user's cache."""
    home = os.environ.get("EDGEPROOF_BENCH")
    base = os.environ.get("XDG_CACHE_HOME") or str(Path.home() / ".cache")
    made = Path(home or Path(base) / "edgeproof-bench").joinpath(*parts)
    made.mkdir(parents=True, exist_ok=True)
    return made
