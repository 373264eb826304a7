"""The chart library, as it lies in its installed package: nothing is fetched, nothing is copied."""

from __future__ import annotations

import functools
import gzip
import hashlib
import importlib.util
import re
from pathlib import Path

from embedl_hub.errors import ConfigError

_STYLES_OF_ITS_OWN = re.compile(r'if\(!document\.getElementById\("([0-9a-f]{64})"\)\)')


@functools.cache
def library_path() -> Path:
    """Return the library's script."""
    # Found, not imported: the Python side of the package is of no use here.
    spec = importlib.util.find_spec("plotly")
    for folder in (spec.submodule_search_locations or ()) if spec else ():
        path = Path(folder, "package_data", "plotly.min.js")
        if path.is_file():
            return path
    raise ConfigError("The chart library is not installed. Install it with: pip install 'edgeproof-hub[ui]'")


@functools.cache
def library_text() -> str:
    """Return the script."""
    return library_path().read_text(encoding="utf-8")


@functools.cache
def library_packed() -> bytes:
    """Return the script as it is sent."""
    return gzip.compress(library_path().read_bytes(), compresslevel=6, mtime=0)


@functools.cache
def library_tag() -> str:
    """Return what tells one version of the script from another."""
    return hashlib.sha256(library_text().encode()).hexdigest()[:16]


@functools.cache
def style_ids() -> tuple[str, ...]:
    """Return the ids under which the library would write style elements of its own, for maps we do not draw.

    Elements with these ids keep it from doing so, which the page's policy would refuse with a message.
    """
    return tuple(sorted(set(_STYLES_OF_ITS_OWN.findall(library_text()))))
