"""Engines by name: ours and those of installed packages, by entry points."""

from __future__ import annotations

import importlib.metadata

from embedl_hub.errors import ConfigError, known
from embedl_hub.fleet._engine import Engine

GROUP = "embedl_hub.engines"


def find_engine(name: str) -> Engine:
    """Return an engine by name, ready to open; what an entry point names is called without arguments."""
    entries = {entry.name: entry for entry in importlib.metadata.entry_points(group=GROUP)}
    if name not in entries:
        raise ConfigError(f"There is no engine {name!r}; installed: {known(entries)}.")
    try:
        engine = entries[name].load()()
    except ImportError as error:
        raise ConfigError(
            f"The engine {name!r} needs a package that is not installed ({error}): pip install 'edgeproof-hub[{name}]'"
        ) from error
    if not isinstance(engine, Engine):
        raise ConfigError(f"The engine {name!r} ({entries[name].value}) has no open(ctx, targets).")
    return engine
