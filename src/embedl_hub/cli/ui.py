"""``embedl-hub ui``: the page of this machine's store, for this machine alone."""

from __future__ import annotations

import contextlib
import errno
import secrets
import signal
import socket
import tempfile
import threading
import webbrowser
from collections.abc import Iterator
from pathlib import Path

import click

from embedl_device.schema import TEXT, fields
from embedl_hub.cli._output import home_option, json_option, report
from embedl_hub.errors import ConfigError
from embedl_hub.tracking import Store, find_home

_ADDRESS = "127.0.0.1"
_HOSTS = (_ADDRESS, "localhost")


@click.command()
@click.option("--port", type=click.IntRange(0, 65_535), default=8734, show_default=True, help="0 takes any free one.")
@click.option("--no-browser", is_flag=True, help="Do not open the browser.")
@click.option("--write", is_flag=True, help="Let the page label, archive and delete runs.")
@home_option
@json_option(fields({"address": TEXT, "home": TEXT}))
def command(port: int, no_browser: bool, write: bool, home: Path | None, as_json: bool) -> None:
    """Show runs, profiles, comparisons and devices in the browser; only from this machine, and read-only.

    The address has a token that lets you in, and nobody else: other accounts of this machine can reach the port too.
    """
    from embedl_hub import page  # noqa: PLC0415 - after the options are known to be right

    folder = find_home(home, uses_devices=False)
    with Store(folder) as store, contextlib.ExitStack() as stack:
        token = secrets.token_urlsafe(32)
        application = page.app(lambda: store, read_only=not write, hosts=_HOSTS, token=token)
        import uvicorn  # noqa: PLC0415 - page.app says what to install when it is missing

        server = uvicorn.Server(uvicorn.Config(application, log_level="warning", access_log=False, server_header=False))
        with _listen(port) as listening:
            # From the line that names Ctrl+C on, it stops the server, however far that has come.
            signal.signal(signal.SIGINT, server.handle_exit)
            address = f"http://{_ADDRESS}:{listening.getsockname()[1]}/?token={token}"
            text = f"{folder} is shown at {address} (Ctrl+C stops it)"
            report({"address": address, "home": str(folder)}, text, as_json=as_json)
            if not no_browser:
                # The socket listens already: the browser waits for the answer, not for luck.
                leading = stack.enter_context(_leading_to(address))
                threading.Thread(target=webbrowser.open, args=(leading,), daemon=True).start()
            server.run(sockets=[listening])


@contextlib.contextmanager
def _leading_to(address: str) -> Iterator[str]:
    """Yield a file's address that leads there: what a browser is started with is in everybody's list of processes."""
    with tempfile.NamedTemporaryFile("w", suffix=".html", encoding="utf-8") as file:
        file.write(f'<!doctype html><meta http-equiv="refresh" content="0; url={address}">')
        file.flush()
        yield Path(file.name).as_uri()


def _listen(port: int) -> socket.socket:
    try:
        return socket.create_server((_ADDRESS, port))
    except OSError as error:
        if error.errno not in {errno.EADDRINUSE, errno.EACCES}:
            raise
        raise ConfigError(
            f"Port {port} cannot be had ({error.strerror}); name another with --port, or 0 for any."
        ) from error
