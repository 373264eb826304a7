"""The ways in. Nothing heavy is imported before one of them is called."""

from __future__ import annotations

import importlib.util
import os
from collections.abc import Callable, Collection, Sequence
from pathlib import Path
from typing import TYPE_CHECKING

from embedl_hub.errors import ConfigError

if TYPE_CHECKING:
    from starlette.applications import Starlette
    from starlette.requests import Request

    from embedl_hub.tracking import Store

_NEEDED = ("jinja2", "plotly", "starlette", "uvicorn")


def app(
    open_store: Callable[[], Store],
    *,
    read_only: bool | Callable[[Request], bool] = True,
    projects: Callable[[Request], Collection[str] | None] | None = None,
    hosts: Sequence[str] | None = None,
    sign_out: str | None = None,
    token: str | None = None,
) -> Starlette:
    """Return the page as an ASGI application, to be served alone or mounted behind a login.

    Args:
        open_store: Returns an open store, asked for each request; who opened it closes it. Names that change slowly are
            remembered for as long as it is the same object.
        read_only: Whether runs can be labeled, archived and deleted; for a server, told for each request.
        projects: The projects that a request may see; None for all.
        hosts: The names under which the page may be asked for, as in the Host header without the port. Guards a page
            without a login against other sites that point their name at this machine. None asks nothing.
        sign_out: The path that signs a user out, for a button.
        token: What lets a visitor in, in the address (``?token=``) that he opens first or as a bearer token. For a page
            without a login on a machine that others use too. None lets everybody in.
    """
    require_extra()
    from embedl_hub.page._app import Options, build  # noqa: PLC0415 - see the top

    names = None if hosts is None else tuple(hosts)
    return build(Options(open_store, read_only, projects, names, sign_out, token))


def export_run(store: Store, run_id: str, path: str | os.PathLike[str]) -> Path:
    """Write one run, or a sweep's matrix, as a single HTML file that needs nothing else, and return its path."""
    require_extra()
    from embedl_hub.page._export import run_html, write  # noqa: PLC0415 - see the top

    return write(run_html(store, run_id), path)


def export_comparison(store: Store, run_ids: Sequence[str], path: str | os.PathLike[str]) -> Path:
    """Write a comparison of two to six runs as a single HTML file that needs nothing else, and return its path."""
    require_extra()
    from embedl_hub.page._export import comparison_html, write  # noqa: PLC0415 - see the top

    return write(comparison_html(store, run_ids), path)


def require_extra() -> None:
    """Say what to install when something the page needs is missing."""
    missing = [name for name in _NEEDED if importlib.util.find_spec(name) is None]
    if missing:
        raise ConfigError(f"The page needs {', '.join(missing)}. Install it with: pip install 'edgeproof-hub[ui]'")
