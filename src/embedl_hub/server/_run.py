"""Serving until it is stopped."""

from __future__ import annotations

import importlib.util
import os
import signal
import socket
from collections.abc import Callable
from typing import TYPE_CHECKING

from embedl_hub.errors import ConfigError
from embedl_hub.server._telemetry import configure_logging

if TYPE_CHECKING:
    from starlette.types import ASGIApp

    from embedl_hub.server._login import Door
    from embedl_hub.server._settings import Settings


def serve(settings: Settings, *, ready: Callable[[str], None] = lambda _: None) -> None:
    """Serve until SIGTERM or Ctrl-C; requests that are being answered are finished first.

    Args:
        settings: How.
        ready: Told the address once the server listens.
    """
    try:
        import uvicorn  # noqa: PLC0415 - an extra

        from embedl_hub.server import _patience as patience  # noqa: PLC0415 - needs the extra too
        from embedl_hub.server._app import make_app  # noqa: PLC0415 - needs the extra too
    except ImportError as error:
        raise ConfigError(f"The server needs {error.name}: pip install 'edgeproof-hub[server]'") from error
    configure_logging()
    # What a server writes is its own: uploads, the index, keys.
    os.umask(0o077)
    # Half of the open files for clients that are waited for: the rest is for answers, runs and the database.
    most = min(settings.connections, patience.raise_file_limit() // 2)
    room = patience.Room(most, min(most, settings.connections_per_address))
    scheme = "http" if settings.certificate is None else "https"
    with _listening(settings) as listener:
        config = uvicorn.Config(
            make_app(settings, _page()),
            log_config=None,
            access_log=False,
            server_header=False,
            lifespan="on",
            http=patience.patient_in(room),
            ws="none",
            timeout_graceful_shutdown=settings.shutdown_s,
            ssl_certfile=settings.certificate,
            ssl_keyfile=settings.private_key,
        )
        host, port = listener.getsockname()[:2]
        shown = f"[{host}]" if ":" in host else host
        server = patience.PatientServer(config)
        ready(f"{scheme}://{shown}:{port}")
        # Uvicorn stops in good order and then raises the signal again for whoever had it before: that is a clean end.
        signal.signal(signal.SIGTERM, lambda *_: None)
        server.run(sockets=[listener])
    if not server.started:
        raise ConfigError("The server could not start; the lines above say why.")


def _listening(settings: Settings) -> socket.socket:
    family = socket.AF_INET6 if ":" in settings.host else socket.AF_INET
    try:
        return socket.create_server((settings.host, settings.port), family=family, backlog=512)
    except OSError as error:
        raise ConfigError(
            f"{settings.host} port {settings.port} cannot be listened on: {error}. Choose another with --port."
        ) from error


def _page() -> Callable[[Door], ASGIApp] | None:
    """Return the maker of the page, where it is installed."""
    if importlib.util.find_spec("embedl_hub.page") is None:
        return None
    from embedl_hub import page  # noqa: PLC0415 - an extra

    def make(door: Door) -> ASGIApp:
        app: ASGIApp = page.app(
            door.open_store,
            read_only=lambda _: not door.key().may_write,
            projects=lambda _: None if door.key().opens_all else door.key().projects,
            sign_out="/logout",
        )
        return app

    return make
