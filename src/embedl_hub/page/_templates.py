"""The templates, with every value escaped, and the chart library as it lies in its installed package."""

from __future__ import annotations

import functools
import gzip
import hashlib
import importlib.util
import re
from pathlib import Path
from urllib.parse import quote

import jinja2
from markupsafe import Markup

from embedl_graph import graph_markup
from embedl_hub.core.document import find_metric
from embedl_hub.errors import ConfigError
from embedl_hub.page import _format

FOLDER = Path(__file__).parent
_STYLES_OF_ITS_OWN = re.compile(r'if\(!document\.getElementById\("([0-9a-f]{64})"\)\)')


@functools.cache
def templates() -> jinja2.Environment:
    environment = jinja2.Environment(
        loader=jinja2.FileSystemLoader(FOLDER / "templates"),
        autoescape=True,
        undefined=jinja2.StrictUndefined,
        trim_blocks=True,
        lstrip_blocks=True,
    )
    environment.filters.update(
        number=_format.number, percent=_format.percent, size=_format.size, moment=_format.moment,
        moment_iso=_format.moment_iso, span=_format.span, value=_format.value, script_json=_script_json,
    )  # fmt: skip
    environment.globals.update(
        graph_section=_graph_section,
        find_metric=find_metric,
        ago=_format.ago,
        quote=lambda text: quote(str(text), safe=""),
    )
    return environment


def _graph_section(address: str = "") -> Markup:
    return Markup(graph_markup("Graph of the model", address=address))  # noqa: S704 - escaped where it is made


def _script_json(values: object) -> Markup:
    # No character of it can end the element it stands in.
    return Markup(_format.for_script(values))  # noqa: S704 - see above


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
    return library_path().read_text(encoding="utf-8")


@functools.cache
def library_packed() -> bytes:
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
