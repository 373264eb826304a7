"""The templates, with every value escaped."""

from __future__ import annotations

import functools
from pathlib import Path

import jinja2
from markupsafe import Markup

from embedl_hub.page import _json, _words

FOLDER = Path(__file__).parent


@functools.cache
def templates() -> jinja2.Environment:
    """Return the environment that all pages are rendered in."""
    environment = jinja2.Environment(
        loader=jinja2.FileSystemLoader(FOLDER / "templates"),
        autoescape=True,
        undefined=jinja2.StrictUndefined,
        trim_blocks=True,
        lstrip_blocks=True,
    )
    environment.filters.update(
        number=_words.number, percent=_words.percent, size=_words.size, moment=_words.moment,
        moment_iso=_words.moment_iso, span=_words.span, value=_words.value, script_json=_script_json,
    )  # fmt: skip
    return environment


def _script_json(values: object) -> Markup:
    # No character of it can end the element it stands in.
    return Markup(_json.for_script(values))  # noqa: S704 - see above
