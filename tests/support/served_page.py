"""The page of a store, really served."""

from __future__ import annotations

import socket
import threading
from contextlib import contextmanager
from typing import TYPE_CHECKING

import uvicorn

from embedl_hub import page

if TYPE_CHECKING:
    from collections.abc import Iterator

    from embedl_hub.tracking import Store


@contextmanager
def served(store: Store, *, read_only: bool = True) -> Iterator[str]:
    """Serve the page of a store on a free port; yields its address."""
    application = page.app(lambda: store, hosts=("127.0.0.1",), read_only=read_only)
    server = uvicorn.Server(uvicorn.Config(application, log_level="warning", lifespan="off"))
    with socket.create_server(("127.0.0.1", 0)) as listening:
        thread = threading.Thread(target=server.run, kwargs={"sockets": [listening]})
        thread.start()
        try:
            yield f"http://127.0.0.1:{listening.getsockname()[1]}"
        finally:
            server.should_exit = True
            thread.join(30)
